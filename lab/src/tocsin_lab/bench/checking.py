"""Whether answers are right: compared with NumPy's, which shares no code with any engine.

Enters: a way to answer events, a workload, its subscriptions. Leaves: nothing but an AssertionError
where an answer is wrong. Half of the events are of the workload; the others are changed so that
each satisfies a subscription: in W0 and T hardly any event of the workload matches anything, and an
engine that finds nothing must not pass.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.model import EventType, SubscriptionId
from tocsin.workloads import Workload
from tocsin_lab.bench.probes import Event, probes
from tocsin_lab.workloads import Written

Answers = Sequence[list[SubscriptionId]]

_CHECKED = 10
"""As many events of the workload are checked, and as many that satisfy a subscription."""


def check(
    answer: Callable[[pa.Table], Answers], chosen: Workload, n: int, seed: int, events: pa.Table
) -> tuple[pa.Table, NDArray[np.int64]]:
    """Compare the answers to some events with NumPy's; return the events and their match counts.

    Half of the events are of the workload; the others are changed to satisfy a subscription.
    """
    random = np.random.default_rng(seed)
    n_events = min(_CHECKED, len(events))
    plain = events.take(random.choice(len(events), n_events, replace=False))
    satisfied = [None] * n_events + random.choice(n, min(_CHECKED, n), replace=False).tolist()
    samples = plain.to_pylist()
    if isinstance(chosen, Written):
        return _check_written(answer, chosen, (n, seed), samples, satisfied[n_events:])
    for number in satisfied[n_events:]:
        rows = chosen.subscription_rows(1, seed, first=number)
        samples.append(made_for(rows, chosen.event_type, samples[number % n_events]))
    table = pa.Table.from_pylist(samples, schema=events.schema)
    predicates = Predicates.of(chosen.subscription_rows(n, seed))
    counts = [
        check_event(event, ids, number, predicates)
        for event, ids, number in zip(samples, answer(table), satisfied, strict=True)
    ]
    return table, np.array(counts, np.int64)


def _check_written(
    answer: Callable[[pa.Table], Answers],
    chosen: Written,
    of: tuple[int, int],
    plain: list[Event],
    satisfied: list[int],
) -> tuple[pa.Table, NDArray[np.int64]]:
    """Do the same where the workload says itself what matches; `of` is how many, and the seed."""
    n, seed = of
    made = [
        chosen.made_for(number, seed, plain[at % len(plain)]) for at, number in enumerate(satisfied)
    ]
    table = pa.Table.from_pylist(plain + made, schema=chosen.events(1).schema)
    expected = chosen.expected(table, n, seed)
    for ids, own, event in zip(answer(table), expected, table.to_pylist(), strict=True):
        if sorted(map(int, ids)) != own:
            raise AssertionError(f"{len(ids)} matches instead of {len(own)}: {event}")
    for number, own in zip(satisfied, expected[len(plain) :], strict=True):
        if number not in own:
            raise AssertionError(f"an event made for subscription {number} does not satisfy it")
    return table, np.array([len(own) for own in expected], np.int64)


def made_for(rows: pa.Table, event_type: EventType, event: Event) -> Event:
    """Return an event changed so that it satisfies the subscription of some predicate rows."""
    return event | next(probes(rows.to_pylist(), event_type))


def check_same(answers: Answers, expected: Answers, events: Sequence[Event]) -> None:
    """Compare the answers of two matchers, event by event."""
    for event, some, others in zip(events, answers, expected, strict=True):
        if len(set(some)) != len(some):
            raise AssertionError(f"a subscription is found twice: {event}")
        wrong = set(some).symmetric_difference(others)
        if wrong:
            some_wrong = sorted(wrong, key=str)[:5]
            raise AssertionError(
                f"{len(some)} matches, and {len(others)} by a fresh matcher, which differ "
                f"about {some_wrong}: {event}"
            )


def check_event(
    event: Mapping[str, object],
    ids: list[SubscriptionId],
    satisfied: int | None,
    predicates: Predicates,
) -> int:
    """Compare an answer with NumPy's; return how many match.

    The event was made to satisfy the subscription `satisfied`, if one is given.
    """
    expected = predicates.matches(event)
    if satisfied is not None and satisfied not in expected:
        raise AssertionError(f"an event made for subscription {satisfied} does not satisfy it")
    if sorted(map(int, ids)) != expected:
        wrong = sorted(set(expected).symmetric_difference(map(int, ids)))[:5]
        raise AssertionError(
            f"{len(ids)} matches instead of {len(expected)}, wrong about {wrong}: {event}"
        )
    return len(expected)


@dataclass(frozen=True)
class Predicates:
    """Predicate rows as arrays, to be evaluated by NumPy; those of a subscription stand together.

    `number` is NaN where the literal is a text, `text` is -1 where it is a number.
    """

    ids: NDArray[np.int64]
    start: NDArray[np.int64]
    attribute: NDArray[np.int64]
    op: NDArray[np.int64]
    number: NDArray[np.float64]
    text: NDArray[np.int64]
    attributes: list[str]
    ops: list[str]
    texts: dict[str, int]

    @classmethod
    def of(cls, rows: pa.Table) -> Predicates:
        """Take what `Workload.subscription_rows` gives."""
        id = rows["id"].to_numpy()
        first = np.flatnonzero(np.diff(id, prepend=-1))
        attribute, op = (rows[name].combine_chunks() for name in ("attribute", "op"))
        number = rows["value" if "value" in rows.column_names else "number"]
        text, texts = np.full(len(rows), -1), {}
        if "text" in rows.column_names:
            encoded = rows["text"].combine_chunks().dictionary_encode()
            text = encoded.indices.fill_null(-1).to_numpy()
            texts = {each: code for code, each in enumerate(encoded.dictionary.to_pylist())}
        return cls(
            ids=id[first],
            start=np.append(first, len(id)),
            attribute=attribute.indices.to_numpy(),
            op=op.indices.to_numpy(),
            number=number.cast(pa.float64()).fill_null(np.nan).to_numpy(),
            text=text,
            attributes=attribute.dictionary.to_pylist(),
            ops=op.dictionary.to_pylist(),
            texts=texts,
        )

    def matches(self, event: Mapping[str, object]) -> list[int]:
        """Return the ids of the subscriptions whose predicates all hold, in ascending order."""
        values = [event.get(name) for name in self.attributes]
        numbers = np.array([np.nan if isinstance(v, str | None) else v for v in values], np.float64)
        parts = self._parts(values)
        texts = np.array([self.texts.get(v, -2) if isinstance(v, str) else -2 for v in values])
        alive = np.arange(len(self.ids))
        done: list[NDArray[np.int64]] = []
        while len(alive):  # the first predicate of each subscription, then the second, …
            row = self.start[alive] + len(done)
            alive = alive[self._hold(row, numbers, texts) | parts[row]]
            is_last = self.start[alive] + len(done) + 1 == self.start[alive + 1]
            done.append(alive[is_last])
            alive = alive[~is_last]
        return sorted(self.ids[np.concatenate(done)].tolist())

    def _parts(self, values: list[object]) -> NDArray[np.bool_]:
        """Say which rows are patterns of the form %word%, of a word that their value contains."""
        holds = np.zeros(len(self.op), np.bool_)
        if "LIKE" in self.ops:
            patterns = list(self.texts)
            for row in np.flatnonzero(self.op == self.ops.index("LIKE")).tolist():
                value, pattern = values[self.attribute[row]], patterns[self.text[row]]
                assert pattern[0] == pattern[-1] == "%", "other patterns are not checked"
                assert not set(pattern[1:-1]) & set("%_"), "other patterns are not checked"
                holds[row] = isinstance(value, str) and pattern[1:-1] in value
        return holds

    def _hold(
        self,
        row: NDArray[np.int64],
        numbers: NDArray[np.float64],
        texts: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Say which predicates hold for the values of an event."""
        attribute, op = self.attribute[row], self.op[row]
        value, literal = numbers[attribute], self.number[row]
        holds: NDArray[np.bool_] = texts[attribute] == self.text[row]
        for code, name in enumerate(self.ops):
            if name in _COMPARISONS:
                holds |= (op == code) & _COMPARISONS[name](value, literal)
        return holds


_COMPARISONS: dict[str, Callable[[Any, Any], NDArray[np.bool_]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
