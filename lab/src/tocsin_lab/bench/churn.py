"""How fast a matcher matches while its subscriptions change, and how long anyone has to wait.

Enters: a workload, how many subscriptions, how many changes a second and for how long, how many
events a batch has. Leaves: a dictionary ready for JSON. The steps:

1. load the subscriptions and build the index, as `tocsin_lab.bench.match` does, kernels compiled;
2. match batches, one after the other, while nothing changes;
3. match on while a second thread (`tocsin_lab.bench.writer`) subscribes and unsubscribes, half and
   half, at the requested rate, or as near to it as possible;
4. compare the matches with those of a fresh matcher of the surviving subscriptions, and with NumPy;
5. rebuild the index (`merge`), and match batches while nothing changes: a machine whose speed
   drifts is then not taken for a matcher that does. The unchanged rate is that of both times
   together.

Every batch ends with a few witnesses: events made for subscriptions that are never removed. A batch
whose answer misses one is an error, so that answers are watched during the change as well.

Rates are events by wall time, the waits for the other thread included. After Fabret et al., section
6.2.3, where subscriptions come and go at 50 a second; there the changes of a second come first, and
events fill what is left of it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.warm import warm_up
from tocsin.workloads import Workload, workload
from tocsin_lab.bench.checking import Predicates, check_event, check_same, made_for
from tocsin_lab.bench.load import check_setting, load_matcher
from tocsin_lab.bench.machine import (
    machine,
    one_core,
    peak_rss_mb,
    rss_mb,
    stolen_seconds,
    versions,
)
from tocsin_lab.bench.probes import Event
from tocsin_lab.bench.settings import ChurnSetting
from tocsin_lab.bench.steps import Progress, Steps
from tocsin_lab.bench.writer import Ids, Writer

_WITNESSES = 4
_POOL = 50_000
"""About as many events are generated; the batches are taken from them in turn."""
_MOST_BATCHES = 20
_UNCHANGED_SECONDS = 10.0
"""For so long nothing changes before, and as long after."""
_REHEARSED = 100
_CHECKED = 100
"""As many events are checked of each sort: of the workload, made for survivors, for the removed."""
_CHECKED_BY_NUMPY = 7
_KEPT_UP = 0.99


@dataclass
class _Matched:
    """What one phase of matching came to: the nanoseconds of each batch, and of the whole.

    `stolen_s` are the seconds that a host took from the machine's cores meanwhile, and
    `stolen_in_longest_s` those in the batch that took longest.
    """

    batch_ns: list[int] = field(default_factory=list)
    elapsed_s: float = 0.0
    stolen_s: float = 0.0
    longest_ns: int = 0
    stolen_in_longest_s: float = 0.0

    def add(self, batch_ns: int, stolen_s: float) -> None:
        """Count a batch."""
        if batch_ns > self.longest_ns:
            self.longest_ns, self.stolen_in_longest_s = batch_ns, stolen_s
        self.batch_ns.append(batch_ns)
        self.stolen_s += stolen_s

    def __add__(self, other: _Matched) -> _Matched:
        return _Matched(
            self.batch_ns + other.batch_ns,
            self.elapsed_s + other.elapsed_s,
            self.stolen_s + other.stolen_s,
        )

    def rate(self, batch: int) -> float:
        """Events a second."""
        return batch * len(self.batch_ns) / self.elapsed_s

    def to_dict(self, batch: int) -> dict[str, Any]:
        return {
            "seconds": round(self.elapsed_s, 3),
            "batches": len(self.batch_ns),
            "events_per_s": round(self.rate(batch), 1),
            "match_ms": _percentiles(self.batch_ns),
            "stolen_s": round(self.stolen_s, 2),
        }


@dataclass(frozen=True)
class _Batches:
    """Batches of one size to match in turn; each ends with events made for the witnesses."""

    tables: list[pa.Table]
    witnesses: list[int]

    @classmethod
    def of(cls, chosen: Workload, churn: ChurnSetting) -> _Batches:
        n_batches = min(max(_POOL // churn.batch, 2), _MOST_BATCHES)
        n_witnesses = min(_WITNESSES, churn.batch, churn.subscriptions)
        drawn = np.random.default_rng(churn.seed).choice(
            churn.subscriptions, n_witnesses, replace=False
        )
        witnesses: list[int] = drawn.tolist()
        tables = []
        for number in range(n_batches):
            events = chosen.events(churn.batch, churn.seed, first=number * churn.batch)
            last = events.slice(churn.batch - n_witnesses).to_pylist()
            made = [
                made_for(_rows(chosen, churn.seed, witness), chosen.event_type, event)
                for witness, event in zip(witnesses, last, strict=True)
            ]
            end = pa.Table.from_pylist(made, schema=events.schema)
            whole = pa.concat_tables([events.slice(0, churn.batch - n_witnesses), end])
            tables.append(whole.combine_chunks())
        return cls(tables, witnesses)

    def match(self, matcher: Matcher, go_on: Callable[[], bool]) -> _Matched:
        """Match one batch after the other as long as `go_on` says so, one at least."""
        done = _Matched()
        gc.collect()
        began, before = perf_counter(), stolen_seconds()
        for number in count():
            table = self.tables[number % len(self.tables)]
            started = perf_counter_ns()
            answers = matcher.match_batch(table)
            taken, after = perf_counter_ns() - started, stolen_seconds()
            done.add(taken, after - before)
            before = after
            for at, witness in enumerate(self.witnesses, len(table) - len(self.witnesses)):
                if witness not in answers[at]:
                    raise AssertionError(
                        f"subscription {witness} was not found by an event made for it, in batch "
                        f"{number} of a phase"
                    )
            if not go_on():
                break
        done.elapsed_s = perf_counter() - began
        return done

    def match_for(self, matcher: Matcher, seconds: float) -> _Matched:
        """Match batches for so long."""
        ending = perf_counter() + seconds
        return self.match(matcher, lambda: perf_counter() < ending)


def run(churn: ChurnSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures; raises AssertionError when an answer is wrong."""
    chosen = workload(churn.workload)
    check_setting(churn.matching)
    if not all(each > 0 for each in (churn.rate, churn.seconds, churn.batch, churn.chunk)):
        raise ArgumentError("rate, seconds, batch and chunk must be positive")
    steps = Steps(progress, 7)
    with one_core():
        steps.start("generate")
        batches = _Batches.of(chosen, churn)
        n_new = Writer.n_texts(churn.rate, churn.seconds, churn.chunk)
        texts = chosen.subscription_texts(n_new, churn.seed, first=churn.subscriptions)
        steps.finish()
        matcher = load_matcher(chosen, churn.matching, steps).matcher
        _rehearse(chosen, churn)
        steps.start("match, unchanged")
        for_s = min(_UNCHANGED_SECONDS, churn.seconds)
        calm_before = batches.match_for(matcher, for_s)
        steps.finish()
        steps.start("match, changing")
        removable = np.setdiff1d(np.arange(churn.subscriptions), batches.witnesses)
        writer = Writer(matcher, texts, removable, churn.chunk, churn.seed)
        before = _memory(matcher)
        busy = _match_and_change(matcher, batches, writer, churn)
        after = _memory(matcher)
        steps.finish()
        steps.start("check")
        checked = _check(matcher, chosen, churn, writer, batches.witnesses)
        steps.finish()
        steps.start("match, unchanged")
        matcher.rebuild()
        calm_after = batches.match_for(matcher, for_s)
        steps.finish()
    memory = {"before": before, "after": after}
    calm = {"before": calm_before, "after": calm_after}
    return _figures(churn, calm, busy, writer) | {
        "memory": memory,
        "peak_rss_mb": peak_rss_mb(),
        "survivors": len(matcher),
        "checked": checked,
        "machine": machine(),
        "versions": versions(),
    }


def _rehearse(chosen: Workload, churn: ChurnSetting) -> None:
    """Compile what changes need, on small matchers: matches between changes of every kind."""
    if churn.engine == "auto":
        warm_up()
    n = min(churn.subscriptions, 1000)
    matcher = Matcher(chosen.event_type, engine=churn.engine)
    matcher.subscribe_many(chosen.subscription_rows(n, churn.seed))
    texts = chosen.subscription_texts((_REHEARSED + 1) * churn.chunk, churn.seed, first=n)
    writer = Writer(matcher, texts, np.arange(n), churn.chunk, churn.seed)
    events = chosen.events(min(churn.batch, 1000), churn.seed)
    for _ in range(_REHEARSED):
        writer.change()
        matcher.match_batch(events)


def _match_and_change(
    matcher: Matcher, batches: _Batches, writer: Writer, churn: ChurnSetting
) -> _Matched:
    writer.start(churn.rate, churn.seconds)
    try:
        return batches.match(matcher, lambda: writer.is_running)
    finally:
        writer.stop()


def _memory(matcher: Matcher) -> dict[str, float]:
    gc.collect()
    return {
        "rss_mb": rss_mb(),
        "index_bytes": matcher.nbytes,
        "bytes_per_subscription": round(matcher.nbytes / max(len(matcher), 1), 1),
    }


def _rows(chosen: Workload, seed: int, number: int) -> pa.Table:
    return chosen.subscription_rows(1, seed, first=number)


def _check(
    matcher: Matcher,
    chosen: Workload,
    churn: ChurnSetting,
    writer: Writer,
    witnesses: Sequence[int],
) -> int:
    """Compare with a matcher built from the survivors, and with NumPy; return the events checked.

    A third of the events are of the workload, a third made for survivors, old and new, a third made
    for subscriptions that are gone.
    """
    survivors = np.sort(np.append(writer.live, witnesses))
    if len(matcher) != len(survivors):
        raise AssertionError(f"{len(matcher)} subscriptions are left instead of {len(survivors)}")
    random = np.random.default_rng(churn.seed)
    events: list[Event] = chosen.events(_CHECKED, churn.seed + 1).to_pylist()
    satisfied: list[int | None] = [None] * len(events)
    for pool in (survivors, np.array(writer.removed, np.int64)):
        for number in random.choice(pool, min(_CHECKED, len(pool)), replace=False).tolist():
            made = made_for(
                _rows(chosen, churn.seed, number), chosen.event_type, events[number % _CHECKED]
            )
            events.append(made)
            satisfied.append(number if pool is survivors else None)
    rows = _rows_of(survivors, chosen, churn, writer.n_subscribed)
    fresh = Matcher(chosen.event_type, engine=churn.engine)
    fresh.subscribe_many(rows)
    table = pa.Table.from_pylist(events, schema=chosen.events(1).schema)
    answers = list(matcher.match_batch(table))
    check_same(answers, list(fresh.match_batch(table)), events)
    predicates = Predicates.of(rows)
    for at in range(0, len(events), _CHECKED_BY_NUMPY):
        check_event(events[at], answers[at], satisfied[at], predicates)
    return len(events)


def _rows_of(survivors: Ids, chosen: Workload, churn: ChurnSetting, n_new: int) -> pa.Table:
    """Return the predicate rows of the subscriptions that are left."""
    n = churn.subscriptions + n_new
    rows = chosen.subscription_rows(n, churn.seed)
    is_left = np.zeros(n, np.bool_)
    is_left[survivors] = True
    return rows.filter(pa.array(is_left[rows["id"].to_numpy()]))


def _percentiles(nanoseconds: Sequence[int]) -> dict[str, float] | None:
    if not nanoseconds:
        return None
    ms = np.array(nanoseconds) / 1e6
    p50, p99 = np.percentile(ms, [50, 99])
    return {
        "p50": round(float(p50), 4),
        "p99": round(float(p99), 4),
        "max": round(float(ms.max()), 4),
    }


def _figures(
    churn: ChurnSetting, calm: Mapping[str, _Matched], busy: _Matched, writer: Writer
) -> dict[str, Any]:
    both = calm["before"] + calm["after"]
    unchanged, changing = both.to_dict(churn.batch), busy.to_dict(churn.batch)
    achieved = writer.n_changes / writer.elapsed_s
    longest_match = changing["match_ms"]["max"]
    longest_change = max(writer.subscribe_ns + writer.unsubscribe_ns, default=0) / 1e6
    return {
        "benchmark": "churn",
        "workload": churn.workload,
        "engine": churn.engine,
        "subscriptions": churn.subscriptions,
        "batch": churn.batch,
        "rate": churn.rate,
        "seconds": churn.seconds,
        "chunk": churn.chunk,
        "calls": ["subscribe", "unsubscribe"]
        if churn.chunk == 1
        else ["subscribe_many", "unsubscribe_many"],
        "seed": churn.seed,
        "changes": writer.n_changes,
        "subscribed": writer.n_subscribed,
        "unsubscribed": len(writer.removed),
        "changes_per_s": round(achieved, 1),
        "kept_up": achieved >= _KEPT_UP * churn.rate,
        "unchanged": unchanged
        | {f"events_per_s_{when}": round(c.rate(churn.batch), 1) for when, c in calm.items()},
        "changing": changing
        | {
            "subscribe_ms": _percentiles(writer.subscribe_ns),
            "unsubscribe_ms": _percentiles(writer.unsubscribe_ns),
        },
        "ratio": round(changing["events_per_s"] / unchanged["events_per_s"], 4),
        "longest_match_ms": longest_match,
        "longest_match_stolen_ms": round(1000 * busy.stolen_in_longest_s, 4),
        "longest_match_over_median": round(longest_match / changing["match_ms"]["p50"], 2),
        "longest_change_ms": round(longest_change, 4),
    }


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as a plain table."""
    calm, busy, facts = result["unchanged"], result["changing"], result["machine"]
    note = "" if result["kept_up"] else f": did not keep up with {result['rate']:,}"
    before, after = result["memory"]["before"], result["memory"]["after"]
    lines = [
        ("subscriptions", f"{result['subscriptions']:,} of {result['workload']}"),
        ("engine", result["engine"]),
        ("changes", f"{result['changes']:,} by {' and '.join(result['calls'])}"),
        ("in a call", f"{result['chunk']:,}"),
        ("changes/s", f"{result['changes_per_s']:,}{note}"),
        ("events/s", f"{busy['events_per_s']:,.0f}, unchanged {calm['events_per_s']:,.0f}"),
        (
            "  unchanged",
            f"{calm['events_per_s_before']:,.0f} before, {calm['events_per_s_after']:,.0f} after",
        ),
        ("ratio", f"{result['ratio']}"),
        ("batches", f"{result['batch']:,} events"),
        ("  unchanged", _in_words(calm["match_ms"])),
        ("  changing", _in_words(busy["match_ms"])),
        ("subscribe", _in_words(busy["subscribe_ms"])),
        ("unsubscribe", _in_words(busy["unsubscribe_ms"])),
        (
            "host took",
            f"{busy['stolen_s']:,.1f} s of the cores in {busy['seconds']:,.0f} s "
            f"({result['longest_match_stolen_ms']:,.0f} ms in the longest batch), unchanged "
            f"{calm['stolen_s']:,.1f} s in {calm['seconds']:,.0f} s",
        ),
        ("memory", f"{before['rss_mb']:,} MB before, {after['rss_mb']:,} MB after"),
        ("index", f"{before['index_bytes']:,} bytes before, {after['index_bytes']:,} after"),
        ("checked", f"{result['checked']:,} events against a fresh matcher"),
        ("machine", f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB"),
        ("versions", ", ".join(f"{k} {v}" for k, v in result["versions"].items())),
    ]
    return "\n".join(f"{name:<15}{text}" for name, text in lines)


def _in_words(ms: Mapping[str, float] | None) -> str:
    if ms is None:
        return "never called"
    return f"p50 {ms['p50']:,.2f} ms, p99 {ms['p99']:,.2f} ms, longest {ms['max']:,.2f} ms"
