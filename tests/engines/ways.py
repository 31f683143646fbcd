"""Workloads for single segments, and what they should find by a plain evaluation.

The evaluation looks at every range of every condition for every event, with NumPy. It shares the
cells with the segment (`tests/encode` holds them against the conditions), and nothing else.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.encode.events import to_batch
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.content import Content, from_table
from tocsin.engines.auto.part import Part
from tocsin.engines.auto.plan import Costs
from tocsin.engines.auto.segment import Segment
from tocsin.language import parse
from tocsin.normalize import normalize
from tocsin.normalize.bulk import normalize_texts
from tocsin.normalize.layout import from_forms
from tocsin.normalize.table import ConjunctionTable

Kind = TypeVar("Kind", bound=Part)
Random = np.random.Generator
EPOCH = dt.datetime(2026, 1, 1)


class Held:
    """A segment with what it was built of."""

    def __init__(
        self,
        texts: Sequence[str],
        sample: Any = None,
        costs: Costs | None = None,
        pool: BufferPool | None = None,
    ) -> None:
        self.content: Content = from_table(_to_table(texts))
        batch = None if sample is None else to_batch(sample)
        self.segment = Segment.build(self.content, batch, costs, pool)
        self.segment.check()

    def check(self, events: Any) -> int:
        """Compare what events find with the plain evaluation; return the number of matches."""
        batch = to_batch(events)
        found = self.segment.match(PreparedBatch(batch, self.segment.space))
        assert len(found.offsets) == len(batch) + 1
        row = np.repeat(np.arange(len(batch)), np.diff(found.offsets))
        pairs = np.sort(row * len(self.content.ids) + found.values)
        expected = np.flatnonzero(self.satisfied(batch).T.reshape(-1))
        wrong = np.setxor1d(pairs, expected)
        assert not len(wrong), f"{len(wrong)} wrong of {len(expected)}: {self._show(wrong[0])}"
        assert len(pairs) == len(expected), "a conjunction is found twice"
        return len(expected)

    def check_each(self, events: pa.Table) -> None:
        """Compare what each event finds when it comes alone."""
        is_satisfied = self.satisfied(to_batch(events))
        for e, event in enumerate(events.to_pylist()):
            ids = np.sort(self.segment.match_one(event))
            assert ids.tolist() == self.content.ids[is_satisfied[:, e]].tolist(), event

    def _show(self, pair: int) -> str:
        event, conjunction = divmod(int(pair), len(self.content.ids))
        return f"conjunction {conjunction}, event {event}"

    def satisfied(self, batch: Any) -> NDArray[np.bool_]:
        """Say which conjunctions each event satisfies: a row a conjunction."""
        conditions = self.content.conditions
        cells = self.content.space.encode(batch)
        holds = np.ones((len(self.content.ids), len(batch)), np.bool_)
        for c in range(len(holds)):
            for i in range(conditions.start[c], conditions.start[c + 1]):
                first, last = conditions.range_start[i], conditions.range_start[i + 1]
                given = cells[conditions.attribute[i]]
                inside = np.zeros(len(batch), np.bool_)
                for low, high in zip(
                    conditions.low[first:last], conditions.high[first:last], strict=True
                ):
                    inside |= (low <= given) & (given < high)
                holds[c] &= inside
        return holds


def part(segment: Segment, kind: type[Kind]) -> Kind:
    """Return the part of a segment that is of a kind."""
    (found,) = (each for each in segment.parts if isinstance(each, kind))
    return found


def _to_table(texts: Sequence[str]) -> ConjunctionTable:
    """One by one, where a condition may have several ranges; in bulk where there are many."""
    if len(texts) > 5_000:
        return normalize_texts(pa.array(list(texts))).table
    return from_forms([normalize(parse(text)) for text in texts])


def number(random: Random, n: int) -> str:
    return f"{random.integers(n)}"


def text(random: Random, n: int) -> str:
    return f"'t{random.integers(n):05}'"


def moment(random: Random, n: int) -> str:
    return f"TIMESTAMP '{EPOCH + dt.timedelta(hours=int(random.integers(n)))}'"


KINDS = {"number": number, "text": text, "moment": moment}


def predicate(random: Random, name: str, n: int, shape: str, kind: str = "number") -> str:
    """Return a condition on one attribute, with literals among n."""
    value = KINDS[kind]
    a, b = sorted([value(random, n), value(random, n)])
    if kind == "number":
        a, b = sorted([a, b], key=int)
    return {
        "equal": f"{name} = {a}",
        "range": f"{name} BETWEEN {a} AND {b}",
        "below": f"{name} < {a}",
        "above": f"{name} > {a}",
        "absent or below": f"({name} IS NULL OR {name} < {a})",
        "absent or equal": f"({name} IS NULL OR {name} = {a})",
        "among": f"{name} IN ({a}, {b}, {value(random, n)})",
        "not equal": f"{name} <> {a}",
        "not between": f"{name} NOT BETWEEN {a} AND {b}",
        "absent": f"{name} IS NULL",
        "present": f"{name} IS NOT NULL",
    }[shape]


SHAPES = (
    "equal", "range", "below", "above", "absent or below", "absent or equal", "among", "not equal",
    "not between", "absent", "present",
)  # fmt: skip


def any_predicate(random: Random, name: str, n: int, kind: str = "number") -> str:
    return predicate(random, name, n, str(random.choice(SHAPES)), kind)


def column(
    random: Random,
    n_events: int,
    n: int,
    kind: str = "number",
    lacks: float = 0.2,
    is_whole: bool = False,
) -> Any:
    """Return a column of values among n and just beside them, of which some are null."""
    values = random.integers(-1, n + 1, n_events)
    is_null = random.random(n_events) < lacks
    if kind == "number" and not is_whole and random.random() < 0.5:
        return pa.array(values + 0.5 * random.integers(0, 2, n_events), mask=is_null)
    given: list[Any] = values.tolist()
    if kind == "text":
        given = [f"t{value:05}" if value >= 0 else "" for value in given]
    if kind == "moment":
        given = [EPOCH + dt.timedelta(hours=value) for value in given]
    return pa.array(given, mask=is_null)


def first_rows(table: pa.Table, n: int) -> pa.Table:
    """Return n rows of a table, over and over if there are fewer."""
    return table.take(np.arange(n) % max(len(table), 1))
