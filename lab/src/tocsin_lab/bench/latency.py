"""How long a single event takes: a mapping in, ids out.

Enters: a workload, how many subscriptions and events, an engine, a seed. Leaves: a dictionary ready
for JSON. Loading and building are as in `tocsin_lab.bench.match`, and the same sample of events is
checked, here through `Matcher.match`. Then every event is matched by itself, one after the other on
one thread, and timed by itself; the garbage collector runs as it would in any program. The times
include the call of the clock, some 0.1 µs. At the end the same mappings go to
`Matcher.match_batch`, a hundred at a time: `together_us` is what an event takes so, and its matches
must be as many.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.workloads import workload
from tocsin_lab.bench.checking import Answers, check
from tocsin_lab.bench.load import load_matcher
from tocsin_lab.bench.machine import machine, one_core, peak_rss_mb, versions
from tocsin_lab.bench.settings import LatencySetting, MatchSetting
from tocsin_lab.bench.steps import Progress, Steps

Event = dict[str, object]

_WARM_UP = 200
_TOGETHER = 100


def run(setting: LatencySetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures; raises AssertionError when an answer is wrong."""
    chosen = workload(setting.workload)
    if setting.subscriptions < 1 or setting.events < 1:
        raise ArgumentError("this takes at least one subscription and one event")
    loading = MatchSetting(
        setting.workload, setting.subscriptions, setting.events, setting.engine, seed=setting.seed
    )
    steps = Steps(progress, 5)
    with one_core():
        steps.start("generate events")
        table = chosen.events(setting.events, setting.seed)
        mappings = _mappings(table)
        steps.finish()
        loaded = load_matcher(chosen, loading, steps)
        matcher = loaded.matcher
        steps.start("check a sample")
        check(
            lambda some: _answers(matcher, some),
            chosen,
            setting.subscriptions,
            setting.seed,
            table,
        )
        steps.finish()
        steps.start("match")
        _time(matcher, mappings[:_WARM_UP])
        nanoseconds, matches = _time(matcher, mappings)
        _time_together(matcher, mappings[:_WARM_UP])
        together_us, n_together = _time_together(matcher, mappings)
        steps.finish()
    assert n_together == matches, "a batch of mappings does not match what each does by itself"
    return {
        "workload": setting.workload,
        "engine": setting.engine,
        "subscriptions": setting.subscriptions,
        "events": setting.events,
        "matches": matches,
        "matches_per_event": round(matches / setting.events, 4),
        "load_s": round(loaded.load_s, 6),
        "build_s": round(loaded.build_s, 6),
        **_percentiles(np.array(nanoseconds) / 1000),
        "together_us": round(together_us, 2),
        "bytes_per_subscription": round(matcher.nbytes / setting.subscriptions, 1),
        "peak_rss_mb": peak_rss_mb(),
        "seed": setting.seed,
        "machine": machine(),
        "versions": versions(),
    }


def _percentiles(microseconds: NDArray[np.float64]) -> dict[str, float]:
    mean = float(microseconds.mean())
    return {
        "p50_us": round(float(np.percentile(microseconds, 50)), 2),
        "p99_us": round(float(np.percentile(microseconds, 99)), 2),
        "mean_us": round(mean, 2),
        "max_us": round(float(microseconds.max()), 2),
        "events_per_s": round(1e6 / mean, 1),
    }


def _mappings(table: pa.Table) -> list[Event]:
    """Return events as a user has them: without absent attributes."""
    return [
        {name: value for name, value in event.items() if value is not None}
        for event in table.to_pylist()
    ]


def _answers(matcher: Matcher, table: pa.Table) -> Answers:
    return [matcher.match(event) for event in _mappings(table)]


def _time(matcher: Matcher, events: list[Event]) -> tuple[list[int], int]:
    """Match events one by one; return the nanoseconds of each and the matches of all."""
    gc.collect()
    nanoseconds = []
    matches = 0
    for event in events:
        started = perf_counter_ns()
        ids = matcher.match(event)
        nanoseconds.append(perf_counter_ns() - started)
        matches += len(ids)
    return nanoseconds, matches


def _time_together(matcher: Matcher, events: list[Event]) -> tuple[float, int]:
    """Match events a hundred at a time; return the microseconds of each and the matches of all."""
    gc.collect()
    nanoseconds = matches = 0
    for first in range(0, len(events), _TOGETHER):
        batch = events[first : first + _TOGETHER]
        started = perf_counter_ns()
        answers = matcher.match_batch(batch)
        nanoseconds += perf_counter_ns() - started
        matches += answers.n_matches
    return nanoseconds / 1000 / max(len(events), 1), matches


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as a plain table."""
    facts = result["machine"]
    lines = [
        ("subscriptions", f"{result['subscriptions']:,} of {result['workload']}"),
        ("engine", result["engine"]),
        ("matches", f"{result['matches_per_event']:,} an event"),
        ("events", f"{result['events']:,}, one by one"),
        ("p50", f"{result['p50_us']:,.1f} µs"),
        ("p99", f"{result['p99_us']:,.1f} µs"),
        ("mean", f"{result['mean_us']:,.1f} µs"),
        ("together", f"{result['together_us']:,.1f} µs an event, {_TOGETHER} mappings a call"),
        ("machine", f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB"),
        ("versions", ", ".join(f"{k} {v}" for k, v in result["versions"].items())),
    ]
    return "\n".join(f"{name:<15}{text}" for name, text in lines)
