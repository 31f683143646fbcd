"""What a parametric update costs, against unsubscribing and subscribing again.

Enters: an `UpdateSetting`. Leaves: a dictionary ready for JSON. The workload is one whose
subscriptions are made of templates with parameters: M, where each update moves the price range of a
subscription by up to a percent, or H, where it moves the segments that a driver watches by one or
two. It is made by `Matcher.update(id, params=…)`, and by `unsubscribe` and `subscribe` with the
same new parameters. After each change an event is matched, so that work which an engine puts off
until then is seen: *delay* is the change and that match, less what such a match takes when nothing
has changed. Most of an update is the new condition's way into normal form; `index_update_us` is
what the engine takes by itself to replace a subscription, `index_resubscribe_us` what it takes to
delete the subscription and insert the new one. The engine `fastint` has an interface of its own for
parametric updates, which is timed as `parametric`.

Times are processor time of this process, so that other programs do not count. After the updates a
sample of events is matched by the matcher and by the oracle on the subscriptions that changed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from time import process_time_ns
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.encode.events import to_batch
from tocsin.engines import make
from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.matcher import Matcher
from tocsin.normalize import bind, normalize
from tocsin.normalize.bulk import normalize_template
from tocsin.normalize.layout import from_forms
from tocsin.workloads import Workload, workload
from tocsin_lab.bench.machine import machine, one_core, versions
from tocsin_lab.bench.settings import UpdateSetting
from tocsin_lab.bench.steps import Progress, Steps
from tocsin_lab.engines.fastint import FastintEngine
from tocsin_lab.engines.fastint.parametric import ParametricUpdates, moves_of, plan_of

Event = dict[str, object]
Params = dict[str, object]
Changeable = dict[int, tuple[str, Params]]
"""Conditions and parameters of subscriptions."""
_WARM_UP = 20
_MOST = 10_000
"""Only the first subscriptions of a template are changed."""


def run(setting: UpdateSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures; raises AssertionError when an answer is wrong."""
    if setting.subscriptions < 1 or setting.updates < 1:
        raise ArgumentError("this takes at least one subscription and one update")
    chosen = workload(setting.workload)
    if not chosen.templates:
        raise ArgumentError(
            f"the subscriptions of {setting.workload} have no parameters; choose M or H"
        )
    steps = Steps(progress, 6 if setting.engine == "fastint" else 5)
    with one_core():
        events = chosen.events(setting.updates + _WARM_UP, setting.seed).to_pylist()
        steps.start("index")
        figures = _time_index(chosen, setting, events)
        steps.finish()
        steps.start("load")
        matcher = Matcher(chosen.event_type, engine=setting.engine)
        for where, table in _tables(chosen, setting):
            matcher.subscribe_many(table, where=where)
        rounds = _Rounds(matcher, _changeable(chosen, setting, by_row=False), events, setting.seed)
        steps.finish()
        changes = {"update": rounds.update}
        if isinstance(matcher.index, FastintEngine):
            changes["parametric"] = rounds.parametric
        changes["resubscribe"] = rounds.resubscribe
        for how, change in changes.items():
            steps.start(how)
            figures |= rounds.time(how, change, setting.updates)
            steps.finish()
        steps.start("check")
        rounds.check()
        steps.finish()
    ratios = {
        f"{of}{ratio}": round(figures[f"{of}resubscribe_us"] / figures[f"{of}{how}_us"], 2)
        for how, ratio in (("update", "ratio"), ("parametric", "parametric_ratio"))
        for of in ("", "index_")
        if f"{of}{how}_us" in figures
    }
    delays = figures["resubscribe_delay_us"] / figures["update_delay_us"]
    return {
        **asdict(setting),
        **figures,
        **ratios,
        "delay_ratio": round(delays, 2),
        "machine": machine(),
        "versions": versions(),
    }


def _tables(chosen: Workload, setting: UpdateSetting) -> Iterator[tuple[str, pa.Table]]:
    """Yield the templates of a workload, each with a table of ids and parameters."""
    tables = chosen.subscription_params(setting.subscriptions, setting.seed)
    return zip(chosen.templates, tables, strict=True)


def _changeable(chosen: Workload, setting: UpdateSetting, *, by_row: bool) -> Changeable:
    """Return the conditions and parameters of some subscriptions, by id or by row."""
    changeable: Changeable = {}
    first = 0
    for where, table in _tables(chosen, setting):
        for row, params in enumerate(table.slice(0, _MOST).to_pylist(), first):
            id = params.pop("id")
            changeable[row if by_row else id] = (where, params)
        first += len(table)
    return changeable


class _NoExpressions:
    def expression(self, dense: int) -> Any:
        raise AssertionError("an engine that evaluates expressions is not timed by itself")


def _time_index(
    chosen: Workload, setting: UpdateSetting, events: Sequence[Event]
) -> dict[str, float]:
    """Time the engine by itself: `replace`, `delete` with `insert`, and `move` of `fastint`; in µs.

    Conditions are in normal form, and bounds are known, before the clock starts.
    """
    if setting.engine == "oracle":
        return {}
    engine, n = make(setting.engine, _NoExpressions(), {}), 0
    for where, table in _tables(chosen, setting):
        columns = {name: table.column(name) for name in table.column_names}
        form = normalize_template(where, columns, len(table), chosen.event_type).table
        shifted = replace(form, subscription=form.subscription + n)
        engine.insert(np.arange(n, n + len(table)), shifted)
        n += len(table)
    engine.match_batch(to_batch([*events]))
    conditions = _changeable(chosen, setting, by_row=True)
    random = np.random.default_rng(setting.seed)
    figures = {}
    own = ("parametric",) if isinstance(engine, FastintEngine) else ()
    for name in ("update", *own, "resubscribe"):
        taken: list[int] = []
        gc.collect()
        for event in events:
            row = int(random.choice(list(conditions)))
            where, params = conditions.pop(row)
            conditions[n] = (where, _moved(random, n, params))
            expression, params = parse(where), conditions[n][1]
            form = from_forms([normalize(bind(expression, params), chosen.event_type)])
            form = replace(form, subscription=form.subscription + n)
            plan = plan_of(expression, ("low", "high"))
            moves = moves_of(plan or (), params, chosen.event_type)
            old, new = np.array([row]), np.array([n])
            started = process_time_ns()
            if name == "update":
                engine.replace(old, new, form)
            elif name == "parametric":
                assert isinstance(engine, FastintEngine)
                is_moved = engine.move(row, n, moves or ())
                assert is_moved, f"the bounds of {row} were not moved"
            else:
                engine.delete(old)
                engine.insert(new, form)
            taken.append(process_time_ns() - started)
            engine.match_one(event)
            n += 1
        figures[f"index_{name}_us"] = round(float(np.mean(taken[_WARM_UP:])) / 1000, 2)
    return figures


class _Rounds:
    """Changes to a matcher, each followed by an event."""

    def __init__(
        self, matcher: Matcher, changeable: Changeable, events: list[Event], seed: int
    ) -> None:
        self.matcher = matcher
        self.conditions = changeable
        self.events = events
        self.random = np.random.default_rng(seed)
        self.changed: set[int] = set()

    def update(self, id: int, params: Params) -> None:
        self.matcher.update(id, params={"low": params["low"], "high": params["high"]})

    def parametric(self, id: int, params: Params) -> None:
        self._updates.update(id, {"low": params["low"], "high": params["high"]})

    @cached_property
    def _updates(self) -> ParametricUpdates:
        return ParametricUpdates(self.matcher)

    def resubscribe(self, id: int, params: Params) -> None:
        self.matcher.unsubscribe(id)
        self.matcher.subscribe(id, self.conditions[id][0], params)

    def time(self, name: str, change: Callable[[int, Params], None], n: int) -> dict[str, float]:
        """Return the mean microseconds of a change, and of a change and the match after it."""
        chosen = self.random.choice(list(self.conditions), n + _WARM_UP)
        changes: list[int] = []
        delays: list[int] = []
        quiet: list[int] = []
        gc.collect()
        for id, event in zip(chosen.tolist(), self.events, strict=True):
            where, params = self.conditions[id]
            params = _moved(self.random, id, params)
            self.conditions[id] = (where, params)
            self.changed.add(id)
            started = process_time_ns()
            change(id, params)
            changed = process_time_ns()
            self.matcher.match(event)
            matched = process_time_ns()
            self.matcher.match(event)
            quiet.append(process_time_ns() - matched)
            changes.append(changed - started)
            delays.append(matched - started)
        mean = [float(np.mean(times[_WARM_UP:])) / 1000 for times in (changes, delays, quiet)]
        return {
            f"{name}_us": round(mean[0], 2),
            f"{name}_delay_us": round(max(mean[1] - mean[2], mean[0]), 2),
        }

    def check(self) -> None:
        """Compare the changed subscriptions with the oracle."""
        oracle = Matcher(self.matcher.event_type, engine="oracle")
        for id in self.changed:
            oracle.subscribe(id, *self.conditions[id])
        for event in self.events[:20]:
            matches = self.changed.intersection(self.matcher.match(event))
            assert matches == set(oracle.match(event)), f"{event} is matched wrongly"


def _moved(random: np.random.Generator, id: int, params: Params) -> Params:
    """Return a subscription's parameters with another range."""
    low, high = params["low"], params["high"]
    if isinstance(low, int) and isinstance(high, int):
        step = 1 + id % 2
        return params | {"low": low + step, "high": high + step}
    old_low, old_high = float(str(low)), float(str(high))
    new_low = round(old_low * (1 + random.uniform(-0.01, 0.01)), 2)
    return params | {"low": new_low, "high": round(new_low + old_high - old_low, 2)}


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
        *_parametric_lines(result),
        *_index_lines(result),
        ("versions", ", ".join(f"{k} {v}" for k, v in result["versions"].items())),
    ]
    return "\n".join(f"{name:<15}{text}" for name, text in lines)


def _parametric_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "parametric_us" not in result:
        return []
    update, delay = result["parametric_us"], result["parametric_delay_us"]
    ratio = result["parametric_ratio"]
    return [("parametric", f"{update:,.1f} µs; delay {delay:,.1f} µs; ratio {ratio:,.1f}")]


def _index_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "index_ratio" not in result:
        return []
    update, resubscribe = result["index_update_us"], result["index_resubscribe_us"]
    text = f"{update:,.1f} µs; {resubscribe:,.1f} µs to delete and insert"
    if "index_parametric_us" in result:
        text += f"; {result['index_parametric_us']:,.1f} µs to move bounds"
    return [("index alone", text)]
