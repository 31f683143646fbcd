"""Seed 001, figure 4: throughput while what people ask for, or what happens, changes.

Fabret et al., section 6.2.3. Enters: a scale. Leaves: an outcome for each scenario of
`tocsin.bench.adapt`: *interests* (figure 4a) and *skew* (4b). The *dynamic* strategy maintains the
clustering; *no change* keeps the tables that were best before the change, and only puts new
subscriptions where they are best among these. *Built anew* is an engine that has never known but
the new subscriptions and events: no strategy can be expected to do better.

Deviations: time is compressed. The paper replaces 50 subscriptions a second for 16 hours; here an
eighth of them is replaced at once, eight times, and events are matched after each. What the change
itself costs stands beside the rates, not in them. The statistics of events that the paper expects
of an independent tool are `Matcher.profile` of a few thousand events after each part.

What can be recovered at all after the skew follows from the cost formula of section 3.1.1; see
`possible`.
"""

from __future__ import annotations

from functools import partial
from math import comb
from typing import NamedTuple

from tocsin.bench.adapt import SCENARIOS
from tocsin.bench.plot import Plot
from tocsin.bench.report.outcome import Experiment, Figure, Finding, Outcome, Row, Scale, series
from tocsin.bench.report.timing import MICRO, Filled, seconds
from tocsin.bench.steps import Progress, Steps
from tocsin.engines.clustering.costs import Costs

_SIZE = 3_000_000
_PARTS = 8
_PLATEAU = 2
_PROFILED = 4096
_STRATEGIES = ("dynamic", "no change")
_ANEW = "built anew"
_TITLES = {
    "interests": "Throughput while interests move to other attributes (figure 4a)",
    "skew": "Throughput while an attribute comes to have two values (figure 4b)",
}
_RECOVERED = 0.9
_WHY_NOT = (
    "Where an attribute has two values in place of 35, every key over it has 17 times as many "
    "subscriptions: to check as few of them as before, an event needs a key with one attribute "
    "more, of which there are many, and each table is a look (`tables`). In the paper the first "
    "phase takes most of the time and hides that; here it does not (`first_us`). With the tables "
    "that are best by the paper's cost formula before and after, no cost of a look up to a "
    "microsecond lets more than {possible:.0%} be recovered."
)
_VALUES, _FEW_VALUES = 35, 2
_N_FREE, _N_ASKED = 30, 3
"""How many attributes W0 has besides the two fixed ones, and how many of them one asks for."""
_LOOKS = tuple(2 ** (k / 4) for k in range(41))
"""Costs of a look to try, in checks: up to 1,024, which would be a microsecond."""


class Recovery(NamedTuple):
    """The rate after a change over the rate before, of each strategy; and of an engine anew."""

    dynamic: float
    no_change: float
    anew: float


def possible(n: int, first_phase: float) -> float:
    """Return the share of its throughput that an engine can have after the skew, at the best.

    `first_phase` is what it costs an event, in checks. There is a table over both fixed attributes
    and some over these and one more; of these, as many as are best before and after each, for that
    cost of a look for which most is recovered.
    """

    def least(n_keys: int, look: float) -> float:
        return first_phase + min(
            _checks(n, n_keys, tables) + look * (tables + 1) for tables in range(_N_FREE + 1)
        )

    before, after = _VALUES * _VALUES, _VALUES * _FEW_VALUES
    return max(least(before, look) / least(after, look) for look in _LOOKS)


def _checks(n: int, n_keys: int, tables: int) -> float:
    """Return the checks of an event: subscriptions that ask for an attribute with a table are under
    three predicates, the others under two, which make `n_keys` keys.
    """
    outside = comb(_N_FREE - tables, _N_ASKED) / comb(_N_FREE, _N_ASKED)
    return n / n_keys * (outside + (1 - outside) / _VALUES)


def follow(scenario: str, scale: Scale, progress: Progress | None = None) -> Outcome:
    """Go through one scenario with both strategies."""
    steps = Steps(progress, len(_STRATEGIES) * (_PARTS + _PLATEAU + 1) + 1)
    rows: list[Row] = []
    for strategy in _STRATEGIES:
        steps.start(f"{scenario}, {strategy}")
        rows += _rates(scenario, strategy, scale, steps)
    steps.start(f"{scenario}, {_ANEW}")
    rows += _rates_anew(scenario, scale)
    steps.finish()
    title, recovery = _TITLES[scenario], _recovery(rows)
    lines = series(rows, "replaced", "events_per_s", "strategy")
    plot = Plot(title, "share of the subscriptions replaced", "events/s", lines)
    name = "001-4a-interests" if scenario == "interests" else "001-4b-skew"
    text = (
        f"{scale.size(_SIZE):,} subscriptions, of which an eighth after the other is replaced. "
        "`change_s` is the processor time of that, the engine's maintenance included. “Built anew” "
        "is an engine that knew the new world from the start. `first_us` is what the first phase, "
        "from values to predicates, takes of `us_per_event`."
    )
    figure = Figure(name, title, text, tuple(rows), plot)
    first_phase = 1000 * min(float(row["first_us"]) for row in rows) / Costs().check
    why_not = _WHY_NOT.format(possible=possible(scale.size(_SIZE), first_phase))
    return Outcome((figure,), _findings(scenario, scale, recovery, why_not))


def _rates(scenario: str, strategy: str, scale: Scale, steps: Steps) -> list[Row]:
    before, after = SCENARIOS[scenario]
    held = Filled(before, before.workload.event_type, "dynamic", scale)
    held.matcher.profile(before.events(_PROFILED, scale.seed))
    held.fill(scale.size(_SIZE))
    steps.finish()
    if strategy == "no change":
        held.engine.freeze()
    rows = [_point(strategy, -0.1, 0.0, held), _point(strategy, 0.0, 0.0, held)]
    held.events = after.events(len(held.events), scale.seed, first=_PROFILED)
    for part in range(_PARTS):
        spent = _replace(scenario, held, scale, part, strategy == "dynamic")
        rows.append(_point(strategy, (part + 1) / _PARTS, spent, held))
        steps.finish()
    for at in range(_PLATEAU):
        rows.append(_point(strategy, 1.0 + (at + 1) / 10, 0.0, held))
        steps.finish()
    return rows


def _rates_anew(scenario: str, scale: Scale) -> list[Row]:
    after = SCENARIOS[scenario][1]
    held = Filled(after, after.workload.event_type, "dynamic", scale)
    held.matcher.profile(after.events(_PROFILED, scale.seed))
    held.fill(scale.size(_SIZE))
    held.events = after.events(len(held.events), scale.seed, first=_PROFILED)
    return [_point(_ANEW, 1.0 + (at + 1) / 10, 0.0, held) for at in range(_PLATEAU)]


def _replace(scenario: str, held: Filled, scale: Scale, part: int, is_told: bool) -> float:
    """Replace a part of the subscriptions, the oldest first; return the seconds it took."""
    after = SCENARIOS[scenario][1]
    start, end = (held.n * k // _PARTS for k in (part, part + 1))
    gone = list(range(start, end))
    new = after.rows(end - start, scale.seed, first=held.n + start)
    known = after.events(_PROFILED, scale.seed)
    spent = seconds(lambda: held.matcher.unsubscribe_many(gone))
    spent += seconds(lambda: held.matcher.subscribe_rows(new))
    if is_told:
        spent += seconds(lambda: held.matcher.profile(known))
    return spent + seconds(held.build)


def _point(strategy: str, replaced: float, spent: float, held: Filled) -> Row:
    taken, phases = held.microseconds(), held.phases()
    first = phases["cells_us"] + phases["predicates_us"]
    return {
        "strategy": strategy,
        "replaced": round(replaced, 3),
        "events_per_s": round(MICRO / taken, 1),
        "us_per_event": round(taken, 3),
        "first_us": round(first, 3),
        "change_s": round(spent, 3),
        "tables": len(held.engine.tables),
        "matches_per_event": round(held.matches_per_event(), 4),
    }


def _recovery(rows: list[Row]) -> Recovery:
    before = [row for row in rows if float(row["replaced"]) <= 0]
    after = [row for row in rows if float(row["replaced"]) >= 1]
    old = [_best(strategy, before) for strategy in (*_STRATEGIES, _STRATEGIES[0])]
    new = [_best(strategy, after) for strategy in (*_STRATEGIES, _ANEW)]
    return Recovery(*(n / o for n, o in zip(new, old, strict=True)))


def _best(strategy: str, rows: list[Row]) -> float:
    return max(float(row["events_per_s"]) for row in rows if row["strategy"] == strategy)


def _findings(scenario: str, scale: Scale, recovery: Recovery, why_not: str) -> tuple[Finding, ...]:
    of = f"of the former throughput in the scenario “{scenario}”"
    return (
        Finding(
            f"dynamic recovers at least 90 % {of}",
            f"{recovery.dynamic:.0%}; an engine built anew has {recovery.anew:.0%}",
            recovery.dynamic >= _RECOVERED if scale.is_telling else None,
            "" if scenario != "skew" or recovery.dynamic >= _RECOVERED else why_not,
        ),
        Finding(
            f"“No change” does not recover 90 % {of}",
            f"{recovery.no_change:.0%}",
            recovery.no_change < _RECOVERED if scale.is_telling else None,
        ),
    )


EXPERIMENTS = (
    Experiment("figure 4a", partial(follow, "interests")),
    Experiment("figure 4b", partial(follow, "skew")),
)
