"""How an index adapts when subscriptions or events change.

Enters: a scenario, how many subscriptions and events, in how many parts subscriptions are replaced.
Leaves: a dictionary ready for JSON: events a second over time. After Fabret et al., section 6.2.3
and figure 4, on workloads like W0:

========= =======================================================================================
interests all subscriptions ask for 16 of the 32 attributes, one of them fixed and four free; they
          are replaced by others that ask for the other 16. Events stay as they are
skew      one of the two fixed attributes of W0 comes to have 2 values instead of 35, in events and
          in new subscriptions alike
========= =======================================================================================

The phases: `before`; `changing`, where the oldest part of the subscriptions is replaced by new ones
and all events are of the new kind; `after`, with all of them replaced; `adapted`, after
`Matcher.profile` with new events and `Matcher.rebuild`; and `fresh`, a new matcher that has known
such events from the start, matched in turn with the adapted one. Where `after` is as fast as
`adapted`, the index followed by itself: segments are merged in the background, and replanned.
`checks` are the conjunctions that an event is expected to find under its keys, before the change
and at the end, from which one sees what no layout can win back.

Deviations: the paper replaces 50 subscriptions a second for 16 hours and compares two strategies.
We replace a part at once, match, and go on; time for changes is reported apart from the rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin_lab.bench.checking import Predicates, check_event, check_same, made_for
from tocsin_lab.bench.machine import machine, one_core, peak_rss_mb, versions
from tocsin_lab.bench.probes import Event
from tocsin_lab.bench.settings import AdaptSetting
from tocsin_lab.bench.steps import Progress, Steps
from tocsin_lab.bench.timing import measure
from tocsin_lab.workloads import Equalities

_PHASES = ("before", "changing", "after", "adapted", "fresh")
_PLATEAU = 3
"""How many points a phase without changes has."""
_CHECKED = 30
_CHECKED_BY_NUMPY = 6
_BAR = 40
_FEW = 1000


@dataclass(frozen=True)
class Side:
    """One side of the change: a workload, perhaps with one attribute skewed."""

    workload: Equalities
    skewed: str | None = None
    n_values: int = 2

    def events(self, n: int, seed: int, first: int = 0) -> pa.Table:
        """Return events as the workload does."""
        table = self.workload.events(n, seed, first)
        if self.skewed is None:
            return table
        at = table.column_names.index(self.skewed)
        return table.set_column(at, self.skewed, self._few(table[self.skewed]))

    def rows(self, n: int, seed: int, first: int = 0) -> pa.Table:
        """Return subscriptions with one predicate a row, as the workload does."""
        table = self.workload.subscription_rows(n, seed, first)
        if self.skewed is None:
            return table
        is_skewed = pc.equal(table["attribute"], self.skewed)
        values = pc.if_else(is_skewed, self._few(table["value"]), table["value"])
        return table.set_column(table.column_names.index("value"), "value", values)

    def _few(self, values: pa.ChunkedArray) -> pa.Array:
        return pa.array((values.to_numpy() - 1) % self.n_values + 1)


_HALVES = tuple(range(16)), tuple(range(16, 32))
_W0 = Equalities("W0", equal=(0, 1), n_free=3)

SCENARIOS: dict[str, tuple[Side, Side]] = {
    "interests": (
        Side(Equalities("interests", equal=_HALVES[0][:1], n_free=4, free=_HALVES[0][1:])),
        Side(Equalities("interests", equal=_HALVES[1][:1], n_free=4, free=_HALVES[1][1:])),
    ),
    "skew": (Side(_W0), Side(_W0, skewed="a0")),
}


@dataclass
class _Curve:
    """Points of the curve, each the median of some repeats."""

    repeats: int
    steps: Steps
    began: float = field(default_factory=perf_counter)
    points: list[dict[str, Any]] = field(default_factory=list)

    def add(self, phase: str, replaced: float, matcher: Matcher, events: pa.Table) -> None:
        """Build the index by matching one event, then time the whole batch."""
        started = perf_counter()
        matcher.match_batch(events.slice(0, 1))
        build_s = perf_counter() - started
        timing = measure(lambda: matcher.match_batch(events), self.repeats, lambda: None)
        self.points.append(
            {
                "phase": phase,
                "at_s": round(perf_counter() - self.began, 3),
                "replaced": round(replaced, 4),
                "events_per_s": round(len(events) / timing.median, 1),
                "build_s": round(build_s, 6),
            }
        )
        self.steps.finish()

    def rate(self, phase: str) -> float:
        """The median rate of a phase."""
        return float(median(self._rates(phase)))

    def lowest(self) -> float:
        """The lowest rate between the change and the merge."""
        return float(min(self._rates("changing") + self._rates("after")))

    def _rates(self, phase: str) -> list[float]:
        return [p["events_per_s"] for p in self.points if p["phase"] == phase]


def run(adapt: AdaptSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures; raises AssertionError when an answer is wrong."""
    if adapt.scenario not in SCENARIOS:
        raise ArgumentError(
            f"there is no scenario {adapt.scenario!r}; choose {' or '.join(SCENARIOS)}"
        )
    if min(adapt.subscriptions, adapt.events, adapt.parts, adapt.repeats) < 1:
        raise ArgumentError("this takes at least one subscription, event, part and repeat")
    before, after = SCENARIOS[adapt.scenario]
    steps = Steps(progress, 4 * _PLATEAU + adapt.parts + 3)
    with one_core():
        steps.start("compile")
        _rehearse(adapt, before, after)
        steps.finish()
        matcher, fresh, curve, spent = _follow(adapt, before, after, steps)
        steps.start("check")
        checked = _check(matcher, fresh, after, adapt)
        steps.finish()
    return _figures(adapt, curve, spent, checked)


def _rehearse(adapt: AdaptSetting, before: Side, after: Side) -> None:
    """Go through all calls on a small matcher, so that the kernels are compiled."""
    n = min(adapt.subscriptions, _FEW)
    small = replace(adapt, subscriptions=n, events=min(adapt.events, _FEW))
    matcher, events = _load(small, before, 0), after.events(small.events, adapt.seed)
    matcher.match_batch(events)
    matcher.unsubscribe_many(range(n // 2))
    matcher.subscribe_many(after.rows(n, adapt.seed, first=n))
    matcher.match_batch(events)
    _adapt(matcher, after, small)
    matcher.match_batch(events)


def _load(adapt: AdaptSetting, side: Side, first: int) -> Matcher:
    """Make a matcher that knows the events of a side and holds its subscriptions."""
    matcher = Matcher(side.workload.event_type, engine=adapt.engine)
    matcher.profile(side.events(adapt.events, adapt.seed))
    matcher.subscribe_many(side.rows(adapt.subscriptions, adapt.seed, first))
    return matcher


def _follow(
    adapt: AdaptSetting, before: Side, after: Side, steps: Steps
) -> tuple[Matcher, Matcher, _Curve, dict[str, Any]]:
    """Go through the phases; return both matchers, the curve, and what was spent and expected.

    The profiled events differ from the matched ones.
    """
    n, curve = adapt.subscriptions, _Curve(adapt.repeats, steps)
    steps.start("before")
    matcher = _load(adapt, before, 0)
    events = before.events(adapt.events, adapt.seed, first=adapt.events)
    for _ in range(_PLATEAU):
        curve.add("before", 0.0, matcher, events)
    checks = {"before": _checks(matcher)}
    steps.start("changing")
    events = after.events(adapt.events, adapt.seed, first=adapt.events)
    change_s = 0.0
    for part in range(adapt.parts):
        start, end = (n * k // adapt.parts for k in (part, part + 1))
        new = after.rows(end - start, adapt.seed, first=n + start)
        started = perf_counter()
        matcher.unsubscribe_many(range(start, end))
        if end > start:
            matcher.subscribe_many(new)
        change_s += perf_counter() - started
        curve.add("changing", end / n, matcher, events)
    steps.start("after")
    for _ in range(_PLATEAU):
        curve.add("after", 1.0, matcher, events)
    steps.start("merge")
    spent: dict[str, Any] = {"change_s": round(change_s, 6)} | _adapt(matcher, after, adapt)
    steps.finish()
    steps.start("adapted and fresh")
    fresh = _load(adapt, after, n)
    for _ in range(_PLATEAU):
        curve.add("adapted", 1.0, matcher, events)
        curve.add("fresh", 1.0, fresh, events)
    spent["checks"] = checks | {"adapted": _checks(matcher), "fresh": _checks(fresh)}
    return matcher, fresh, curve, spent


def _checks(matcher: Matcher) -> float | None:
    """Return how many conjunctions an event is expected to be checked against, where known."""
    expected = getattr(matcher.index, "expected_checks", None)
    return None if expected is None else round(expected(), 2)


def _adapt(matcher: Matcher, after: Side, adapt: AdaptSetting) -> dict[str, float]:
    """Profile the new events and merge."""
    known = after.events(adapt.events, adapt.seed)
    started = perf_counter()
    matcher.profile(known)
    profiled = perf_counter()
    matcher.rebuild()
    return {
        "profile_s": round(profiled - started, 6),
        "merge_s": round(perf_counter() - profiled, 6),
    }


def _check(matcher: Matcher, fresh: Matcher, after: Side, adapt: AdaptSetting) -> int:
    """Compare the adapted matcher with the fresh one and with NumPy; return the events checked.

    Half of the events are made for subscriptions.
    """
    n, event_type = adapt.subscriptions, after.workload.event_type
    plain = after.events(_CHECKED, adapt.seed, first=2 * adapt.events)
    events: list[Event] = plain.to_pylist()
    satisfied: list[int | None] = [None] * len(events)
    random = np.random.default_rng(adapt.seed)
    for number in (n + random.choice(n, min(_CHECKED, n), replace=False)).tolist():
        rows = after.rows(1, adapt.seed, first=number)
        events.append(made_for(rows, event_type, events[number % _CHECKED]))
        satisfied.append(number)
    table = pa.Table.from_pylist(events, schema=plain.schema)
    answers = list(matcher.match_batch(table))
    check_same(answers, list(fresh.match_batch(table)), events)
    predicates = Predicates.of(after.rows(n, adapt.seed, first=n))
    for at in range(0, len(events), _CHECKED_BY_NUMPY):
        check_event(events[at], answers[at], satisfied[at], predicates)
    return len(events)


def _figures(
    adapt: AdaptSetting, curve: _Curve, spent: Mapping[str, Any], checked: int
) -> dict[str, Any]:
    rates = {phase: curve.rate(phase) for phase in _PHASES}
    points = sorted(curve.points, key=lambda point: _PHASES.index(point["phase"]))
    return {
        "benchmark": "adapt",
        "scenario": adapt.scenario,
        "engine": adapt.engine,
        "subscriptions": adapt.subscriptions,
        "events": adapt.events,
        "parts": adapt.parts,
        "repeats": adapt.repeats,
        "seed": adapt.seed,
        "curve": points,
        "events_per_s": rates,
        "lowest_over_before": round(curve.lowest() / rates["before"], 4),
        "after_over_before": round(rates["after"] / rates["before"], 4),
        "adapted_over_before": round(rates["adapted"] / rates["before"], 4),
        "adapted_over_after": round(rates["adapted"] / rates["after"], 4),
        "adapted_over_fresh": round(rates["adapted"] / rates["fresh"], 4),
        **spent,
        "checked": checked,
        "peak_rss_mb": peak_rss_mb(),
        "machine": machine(),
        "versions": versions(),
    }


def render(result: Mapping[str, Any]) -> str:
    """Return the curve as bars, and the ratios."""
    lines = [
        f"{result['scenario']}: {result['subscriptions']:,} subscriptions, "
        f"engine {result['engine']}",
        f"{'phase':<10}{'replaced':>9}{'events/s':>12}",
    ]
    highest = max(point["events_per_s"] for point in result["curve"])
    for point in result["curve"]:
        bar = "#" * max(1, round(_BAR * point["events_per_s"] / highest))
        lines.append(
            f"{point['phase']:<10}{point['replaced']:>9.0%}{point['events_per_s']:>12,.0f}  {bar}"
        )
    facts = result["machine"]
    lines += [
        f"lowest / before: {result['lowest_over_before']}, "
        f"after / before: {result['after_over_before']}, "
        f"adapted / before: {result['adapted_over_before']}",
        f"adapted / after: {result['adapted_over_after']}, "
        f"adapted / fresh: {result['adapted_over_fresh']}",
        f"checks an event: {result['checks']}",
        f"profile {result['profile_s']:.2f} s, merge {result['merge_s']:.2f} s",
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB; "
        + ", ".join(f"{name} {number}" for name, number in result["versions"].items()),
    ]
    return "\n".join(lines)
