"""What a parametric update costs, against unsubscribing and subscribing again.

Enters: an engine, a workload, how many subscriptions, updates and a seed. Leaves: a dictionary
ready for JSON. The workload is one whose subscriptions are made of templates with parameters: M,
where each update moves the price range of one of them by up to a percent, or H, where it moves the
segments that a driver watches by one or two. It is made by `Matcher.update(id, params=…)`, and by
`unsubscribe` and `subscribe` with the same new parameters. After each change an event is matched,
so that work which an engine puts off until then is seen: *delay* is the change and that match, less
what such a match takes when nothing has changed.

Times are processor time of this process, so that other programs do not count. After the updates a
sample of events is matched by the matcher and by the oracle on the subscriptions that changed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from time import process_time_ns
from typing import Any

import numpy as np

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.workloads import Workload, workload
from tocsin_lab.bench.machine import machine, one_core, versions
from tocsin_lab.bench.steps import Progress, Steps

Event = dict[str, object]
Params = dict[str, object]
_WARM_UP = 20
_MOST = 10_000
"""Of how many subscriptions of a template any may be changed."""


def run(
    subscriptions: int = 100_000,
    updates: int = 200,
    engine: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
    *,
    name: str = "M",
) -> dict[str, Any]:
    """Measure and return the figures; raises AssertionError when an answer is wrong."""
    if subscriptions < 1 or updates < 1:
        raise ArgumentError("this takes at least one subscription and one update")
    chosen = workload(name)
    if not chosen.templates:
        raise ArgumentError(f"the subscriptions of {name} have no parameters; choose M or H")
    steps = Steps(progress, 4)
    with one_core():
        steps.start("load")
        matcher, changeable = _load(chosen, engine, subscriptions, seed)
        events = chosen.events(updates + _WARM_UP, seed).to_pylist()
        steps.finish()
        rounds = _Rounds(matcher, changeable, events, seed)
        figures: dict[str, float] = {}
        for how, change in (("update", rounds.update), ("resubscribe", rounds.resubscribe)):
            steps.start(how)
            figures |= rounds.time(how, change, updates)
            steps.finish()
        steps.start("check")
        rounds.check()
        steps.finish()
    return {
        "workload": name,
        "engine": engine,
        "subscriptions": subscriptions,
        "updates": updates,
        **figures,
        "ratio": round(figures["resubscribe_us"] / figures["update_us"], 2),
        "delay_ratio": round(figures["resubscribe_delay_us"] / figures["update_delay_us"], 2),
        "seed": seed,
        "machine": machine(),
        "versions": versions(),
    }


def _load(
    chosen: Workload, engine: str, n: int, seed: int
) -> tuple[Matcher, dict[int, tuple[str, Params]]]:
    """Return a matcher, and some of its subscriptions: their conditions and parameters."""
    matcher = Matcher(chosen.event_type, engine=engine)
    changeable: dict[int, tuple[str, Params]] = {}
    tables = chosen.subscription_params(n, seed)
    for where, table in zip(chosen.templates, tables, strict=True):
        matcher.subscribe_many(table, where=where)
        for params in table.slice(0, _MOST).to_pylist():
            changeable[params.pop("id")] = (where, params)
    return matcher, changeable


class _Rounds:
    """Changes to a matcher, each followed by an event."""

    def __init__(
        self,
        matcher: Matcher,
        changeable: dict[int, tuple[str, Params]],
        events: list[Event],
        seed: int,
    ) -> None:
        self.matcher = matcher
        self.held = changeable
        self.events = events
        self.random = np.random.default_rng(seed)
        self.changed: set[int] = set()

    def update(self, id: int, params: Params) -> None:
        self.matcher.update(id, params={"low": params["low"], "high": params["high"]})

    def resubscribe(self, id: int, params: Params) -> None:
        self.matcher.unsubscribe(id)
        self.matcher.subscribe(id, self.held[id][0], params)

    def time(self, name: str, change: Callable[[int, Params], None], n: int) -> dict[str, float]:
        """Return the mean microseconds of a change, and of a change and the match after it."""
        chosen = self.random.choice(list(self.held), n + _WARM_UP)
        changes: list[int] = []
        delays: list[int] = []
        quiet: list[int] = []
        gc.collect()
        for id, event in zip(chosen.tolist(), self.events, strict=True):
            params = self._moved(id)
            started = process_time_ns()
            change(id, params)
            changed = process_time_ns()
            self.matcher.match(event)
            matched = process_time_ns()
            self.matcher.match(event)
            quiet.append(process_time_ns() - matched)
            changes.append(changed - started)
            delays.append(matched - started)
        used = slice(_WARM_UP, None)
        mean = [float(np.mean(kept[used])) / 1000 for kept in (changes, delays, quiet)]
        return {
            f"{name}_us": round(mean[0], 2),
            f"{name}_delay_us": round(max(mean[1] - mean[2], mean[0]), 2),
        }

    def _moved(self, id: int) -> Params:
        """Return a subscription's parameters with another range."""
        where, known = self.held[id]
        low, high = known["low"], known["high"]
        if isinstance(low, int) and isinstance(high, int):
            step = 1 + id % 2
            params = known | {"low": low + step, "high": high + step}
        else:
            old_low, old_high = float(str(low)), float(str(high))
            new_low = round(old_low * (1 + self.random.uniform(-0.01, 0.01)), 2)
            params = known | {"low": new_low, "high": round(new_low + old_high - old_low, 2)}
        self.held[id] = (where, params)
        self.changed.add(id)
        return params

    def check(self) -> None:
        """Hold what was changed against the oracle."""
        oracle = Matcher(self.matcher.event_type, engine="oracle")
        for id in self.changed:
            oracle.subscribe(id, *self.held[id])
        for event in self.events[:20]:
            found = self.changed.intersection(self.matcher.match(event))
            assert found == set(oracle.match(event)), f"{event} is matched wrongly"


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as a plain table."""
    lines = [
        ("subscriptions", f"{result['subscriptions']:,} of {result['workload']}"),
        ("engine", result["engine"]),
        ("update", f"{result['update_us']:,.1f} µs; delay {result['update_delay_us']:,.1f} µs"),
        (
            "resubscribe",
            f"{result['resubscribe_us']:,.1f} µs; delay {result['resubscribe_delay_us']:,.1f} µs",
        ),
        ("ratio", f"{result['ratio']:,.1f}; of delays {result['delay_ratio']:,.1f}"),
        ("versions", ", ".join(f"{k} {v}" for k, v in result["versions"].items())),
    ]
    return "\n".join(f"{name:<15}{text}" for name, text in lines)
