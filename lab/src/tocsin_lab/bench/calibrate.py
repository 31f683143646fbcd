"""What the planner's cost constants are on this machine.

Enters: how often to repeat. Leaves: a dictionary ready for JSON: for each constant of
`engines.auto.plan.Costs` the nanoseconds measured here and those in use. Each is the slope between
two segments that differ in one thing only: the tables an event looks into, those where it finds
something, the entries there, the words of bitmaps, the attributes of a word. The constants in use
were taken from such runs; they are not changed by one, as a plan should not depend on how busy a
machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.encode.events import to_batch
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.content import from_table
from tocsin.engines.auto.plan import Costs
from tocsin.engines.auto.segment import Segment
from tocsin.normalize.bulk import normalize_texts
from tocsin_lab.bench.machine import machine, one_core, versions
from tocsin_lab.bench.settings import CalibrateSetting

Progress = Callable[[str, int, int], None]

_EVENTS = 1024
_NO_BITMAPS = Costs(word=1e9)
_ALL_TABLES = Costs(word=1e9, look=0.0)
_ONLY_BITMAPS = Costs(word=0.0, band=0.0)
_PATTERN_KEYS = Costs(word=1e9, scan=0.0, literal=0.0)
_NO_PATTERN_KEYS = Costs(word=1e9, scan=1e12)


def run(setting: CalibrateSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure the constants."""
    measured: dict[str, float] = {}
    steps = (_measure_tables, _measure_looks, _measure_check, _measure_bitmaps, _measure_patterns)
    with one_core():
        for done, step in enumerate(steps):
            if progress:
                progress(step.__name__.removeprefix("_measure_"), done, len(steps))
            measured |= step(setting.repeats)
    if progress:
        progress("done", len(steps), len(steps))
    used = Costs()
    return {
        "benchmark": "calibrate",
        "nanoseconds": {
            name: {"measured": round(value, 2), "in_use": getattr(used, name)}
            for name, value in measured.items()
        },
        "events": _EVENTS,
        "repeats": setting.repeats,
        "machine": machine(),
        "versions": versions(),
    }


def _measure_tables(repeats: int) -> dict[str, float]:
    """Time events that look into 8 and 48 tables and find nothing there."""
    few, many = 8, 48
    times = []
    for n in (few, many):
        texts = [f"a{i} = {v}" for i in range(n) for v in range(0, 40, 2)]
        events = {f"a{i}": np.full(_EVENTS, 2 * (i % 19) + 1) for i in range(n)}
        times.append(_per_event(texts, events, _NO_BITMAPS, repeats))
    probe = (times[1] - times[0]) / (many - few)
    return {"probe": probe, "family": max(times[0] - few * probe, 0.0)}


def _measure_looks(repeats: int) -> dict[str, float]:
    """Time events that find an entry in 20 and in 180 of 200 tables, and lack what it asks for."""
    few, many, n_tables = 20, 180, 200
    times = []
    for n in (few, many):
        texts = [f"a{i} = {1 if i < n else 2} AND b{i % 5} > 3" for i in range(n_tables)]
        events = {f"a{i}": np.ones(_EVENTS, np.int64) for i in range(n_tables)}
        times.append(_per_event(texts, events, _ALL_TABLES, repeats))
    return {"look": (times[1] - times[0]) / (many - few)}


def _measure_check(repeats: int) -> dict[str, float]:
    """Time events that find 1,000 and 9,000 entries under one key, none of which holds.

    They are planned for events of which all hold but for the key.
    """
    few, many = 1000, 9000
    ys = [f"y{i}" for i in range(7)]
    sample = {"k": np.arange(1, 50)} | {name: np.full(49, 100) for name in ("x", "z", *ys)}
    times = []
    for n in (few, many):
        texts = [f"k = 1 AND x > {i % 25} AND y{i % 7} > {i % 20} AND z > 5" for i in range(n)]
        texts += [f"k = {i} AND x > 60 AND y{i % 7} > 60 AND z > 60" for i in range(2, 50)]
        events = {"k": np.ones(_EVENTS, np.int64), "x": np.full(_EVENTS, -1)}
        times.append(_per_event(texts, events, _NO_BITMAPS, repeats, sample))
    return {"check": (times[1] - times[0]) / (many - few)}


def _measure_bitmaps(repeats: int) -> dict[str, float]:
    """Time events that meet 64 and 192 words of two attributes, and 192 words of six."""
    times = {}
    for n_words, n_attributes in ((64, 2), (192, 2), (192, 6)):
        texts = [
            " AND ".join(f"z{a} > {1000 + i % 900}" for a in range(n_attributes))
            for i in range(64 * n_words)
        ]
        events = {f"z{a}": np.full(_EVENTS, 500) for a in range(n_attributes)}
        times[n_words, n_attributes] = _per_event(texts, events, _ONLY_BITMAPS, repeats)
    with_two = (times[192, 2] - times[64, 2]) / 128
    band = (times[192, 6] - times[192, 2]) / 192 / 4
    return {"word": with_two - 2 * band, "band": band}


def _measure_patterns(repeats: int) -> dict[str, float]:
    """Time events with titles of 60 characters.

    First titles that no pattern fits; then 1,000 and 9,000 conjunctions under one pattern that fits
    them; then 20 and 180 patterns that are tried on each title and do not fit.
    """
    titles = [
        f"{i:05d}{'the quick brown fox jumps over a lazy dog ' * 2}"[:60] for i in range(_EVENTS)
    ]
    events = {"title": np.array(titles), "k": np.ones(_EVENTS, np.int64)}
    words = [f"title LIKE '%{i:04x}zq%' AND k > 5" for i in range(100)]
    scan = _per_event(words, events, _PATTERN_KEYS, repeats)
    few, many = 1000, 9000
    literal = [
        _per_event(
            [f"title LIKE '%fox%' AND k > {5 + i}" for i in range(n)],
            events,
            _PATTERN_KEYS,
            repeats,
        )
        for n in (few, many)
    ]
    few_patterns, many_patterns = 20, 180
    like = [
        _per_event(
            [f"k = 1 AND title LIKE '%quick%jumps%{i}z%'" for i in range(n)],
            events,
            _NO_PATTERN_KEYS,
            repeats,
        )
        for n in (few_patterns, many_patterns)
    ]
    return {
        "scan": scan,
        "literal": (literal[1] - literal[0]) / (many - few),
        "like": (like[1] - like[0]) / (many_patterns - few_patterns),
    }


def _per_event(
    texts: list[str],
    events: dict[str, Any],
    costs: Costs,
    repeats: int,
    sample: dict[str, Any] | None = None,
) -> float:
    """Return the nanoseconds a segment takes for an event, encoding apart; the least of some."""
    known = None if sample is None else to_batch(pa.table(sample))
    segment = Segment.build(from_table(normalize_texts(pa.array(texts)).table), known, costs)
    batch = PreparedBatch(to_batch(pa.table(events)), segment.space)
    segment.match(batch)
    least = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        matches = segment.match(batch)
        least = min(least, time.perf_counter() - started)
        assert len(matches.values) == 0, "nothing was to be found"
    return least / _EVENTS * 1e9


def render(result: Mapping[str, Any]) -> str:
    """Show the constants in a table."""
    lines = [f"{'cost of':<10}{'measured':>10}{'in use':>10}  (nanoseconds)"]
    for name, value in result["nanoseconds"].items():
        lines.append(f"{name:<10}{value['measured']:>10.2f}{value['in_use']:>10.2f}")
    return "\n".join(lines)
