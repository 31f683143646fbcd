"""How many events a second a matcher takes, against DuckDB doing the same in the same run.

Enters: a workload, how many subscriptions and events, an engine, a baseline, how many threads, a
seed and how many repeats. Leaves: a dictionary ready for JSON. The steps:

1. generate subscriptions and events;
2. compile the kernels on a small matcher, so that loading and building are not charged for it;
3. load (`load_s`) and build the index (`build_s`: the first match of a single event);
4. check the answers to some events, see `checking`;
5. match all events once, unmeasured, then `repeats` times: from an Arrow table to offsets and ids;
6. time the baselines, see `baselines`, on as many of these events, from the first on,
   as they take in some seconds; or Lucene's Monitor on the searches of X, see `lucene`.

`baseline` and `ratio` are about the best plain join, `baseline_keyed` and `ratio_keyed` about the
best one over an index built by hand.

Arrow, Numba and DuckDB are held to one thread. With more `threads`, as many Python threads each
match slices of the events, over and over for about a second: threads that wake up may share a core
for some milliseconds. DuckDB has as many threads too; `speed_up` is against one thread that matches
the same slices as often, in turn with them: the median of all turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.workloads import Workload, workload
from tocsin_lab.bench.baselines import DuckDB, Measured, check_counts, measure_best
from tocsin_lab.bench.checking import check
from tocsin_lab.bench.joins import formulations
from tocsin_lab.bench.load import Loaded, check_setting, load_matcher
from tocsin_lab.bench.machine import machine, one_core, peak_rss_mb, versions
from tocsin_lab.bench.settings import MatchSetting
from tocsin_lab.bench.steps import Progress, Steps
from tocsin_lab.bench.timing import Timing, measure, measure_in_turn
from tocsin_lab.workloads import Searches

_THREADS_FOR = 1.0
"""Seconds that several threads match for."""
_TURNS = 3
"""How many turns of several threads and one make a repeat."""


class Baselines(NamedTuple):
    """The best plain join and the best keyed one, as far as there are any."""

    plain: Measured | None = None
    keyed: Measured | None = None


def run(setting: MatchSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures; raises AssertionError when an answer is wrong."""
    chosen = workload(setting.workload)
    check_setting(setting)
    steps = Steps(progress, _n_steps(chosen, setting))
    with one_core():
        steps.start("generate events")
        events = chosen.events(setting.n_events, setting.seed)
        steps.finish()
        loaded = load_matcher(chosen, setting, steps)
        steps.start("check a sample")
        checked = check(
            loaded.matcher.match_batch, chosen, setting.subscriptions, setting.seed, events
        )
        steps.finish()
        steps.start("match")
        counts = _counts(_match(loaded.matcher, events, setting.threads))
        timing, speed_up = _timed(loaded.matcher, events, setting, steps)
        result = _figures(setting, loaded, counts, timing) | speed_up
        best = Baselines()
        if setting.baseline == "duckdb":
            best = _measure_duckdb(chosen, setting, checked, (events, counts), steps)
        if setting.baseline == "lucene":
            best = _measure_lucene(chosen, setting, checked, (events, counts), steps)
    timings = {
        "load": setting.load,
        "match": timing.to_dict(len(events)),
        "baseline": _timing_of(best.plain),
        "baseline_keyed": _timing_of(best.keyed),
    }
    rate = len(counts) / timing.median
    return result | _against(best, rate, setting.baseline) | _facts(setting, timings)


def _n_steps(chosen: Workload, setting: MatchSetting) -> int:
    n = 4 + setting.repeats
    if setting.baseline == "duckdb":
        ways = formulations(chosen, setting.subscriptions)
        n += 1 + len(ways) + setting.repeats * len({way.kind for way in ways})
    return n + (setting.baseline == "lucene")


def _match(matcher: Matcher, events: pa.Table, threads: int) -> list[Matches]:
    """Match all events, a slice of them on each thread."""
    if threads == 1:
        return [matcher.match_batch(events)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(matcher.match_batch, _slices(events, threads)))


def _match_for_long(matcher: Matcher, parts: list[pa.Table], threads: int, rounds: int) -> None:
    """Match all parts some times over; a thread that is done with one takes the next."""
    waiting = iter(parts * rounds)

    def work() -> None:
        for part in waiting:  # a list's iterator may be shared by threads
            matcher.match_batch(part)

    with ThreadPoolExecutor(threads) as pool:
        for working in [pool.submit(work) for _ in range(threads)]:
            working.result()


def _timed(
    matcher: Matcher, events: pa.Table, setting: MatchSetting, steps: Steps
) -> tuple[Timing, dict[str, float]]:
    """Time the events; on several threads also how much longer one takes for the same slices."""
    n, repeats = setting.threads, setting.repeats
    if n == 1:
        return measure(lambda: _match(matcher, events, 1), repeats, steps.finish), {}
    once = measure(lambda: _match(matcher, events, n), 1, lambda: None).median
    rounds, parts = max(1, round(_THREADS_FOR / once)), _slices(events, n)
    together, alone = measure_in_turn(
        lambda: _match_for_long(matcher, parts, n, rounds),
        lambda: _match_for_long(matcher, parts, 1, rounds),
        repeats * _TURNS,
        lambda: None,
    )
    for _ in range(repeats):
        steps.finish()
    ratios = [one / several for one, several in zip(alone.seconds, together.seconds, strict=True)]
    return together.of_each(rounds), {"speed_up": round(median(ratios), 2)}


def _slices(events: pa.Table, n: int) -> list[pa.Table]:
    ends = np.linspace(0, len(events), n + 1).astype(int).tolist()
    return [events.slice(start, end - start) for start, end in pairwise(ends)]


def _counts(parts: list[Matches]) -> NDArray[np.int64]:
    """Return how many subscriptions each event matches."""
    return np.concatenate([np.diff(part.offsets) for part in parts])


def _measure_duckdb(
    chosen: Workload,
    setting: MatchSetting,
    checked: tuple[pa.Table, NDArray[np.int64]],
    timed: tuple[pa.Table, NDArray[np.int64]],
    steps: Steps,
) -> Baselines:
    """Time DuckDB, after it has counted the checked events as we did."""
    steps.start("DuckDB: load")
    database = DuckDB(chosen, setting.subscriptions, setting.seed, setting.threads)
    steps.finish()
    steps.start("DuckDB: count")
    try:
        check_counts(database, *checked)
        plain = measure_best(database, "plain", timed, setting.repeats, steps.finish)
        return Baselines(
            plain, measure_best(database, "keyed", timed, setting.repeats, steps.finish)
        )
    finally:
        database.close()


def _measure_lucene(
    chosen: Workload,
    setting: MatchSetting,
    checked: tuple[pa.Table, NDArray[np.int64]],
    timed: tuple[pa.Table, NDArray[np.int64]],
    steps: Steps,
) -> Baselines:
    """Time Lucene's Monitor, after it has counted all documents as we did."""
    from tocsin_lab.bench import lucene

    steps.start("Lucene")
    assert isinstance(chosen, Searches)
    of = setting.subscriptions, setting.seed
    best = lucene.measure(chosen, of, checked, timed, setting.repeats)
    steps.finish()
    return Baselines(best)


def _figures(
    setting: MatchSetting, loaded: Loaded, counts: NDArray[np.int64], timing: Timing
) -> dict[str, Any]:
    return {
        "workload": setting.workload,
        "engine": setting.engine,
        "subscriptions": setting.subscriptions,
        "events": len(counts),
        "matches": int(counts.sum()),
        "matches_per_event": round(float(counts.mean()), 4),
        "load_s": round(loaded.load_s, 6),
        "build_s": round(loaded.build_s, 6),
        "match_s": round(timing.median, 6),
        "events_per_s": round(len(counts) / timing.median, 1),
        "bytes_per_subscription": round(loaded.matcher.nbytes / setting.subscriptions, 1),
        "peak_rss_mb": peak_rss_mb(),
    }


def _timing_of(best: Measured | None) -> dict[str, object] | None:
    if best is None:
        return None
    return best.timing.to_dict(best.events) | {"tried": best.tried}


def _against(best: Baselines, rate: float, name: str) -> dict[str, Any]:
    plain, ratio = _compared(name, best.plain, rate)
    keyed, ratio_keyed = _compared(f"{name}-keyed", best.keyed, rate)
    if plain is None:
        plain = {"name": "none", "events_per_s": None, "events": 0, "join": None}
    return {
        "baseline": plain,
        "ratio": ratio,
        "baseline_keyed": keyed,
        "ratio_keyed": ratio_keyed,
    }


def _compared(
    name: str, best: Measured | None, rate: float
) -> tuple[dict[str, Any] | None, float | None]:
    """Return the facts of a baseline, and how many times faster our rate is."""
    if best is None:
        return None, None
    facts = {
        "name": name,
        "events_per_s": round(best.events_per_s, 2),
        "events": best.events,
        "join": best.join,
    }
    return facts, round(rate / best.events_per_s, 2)


def _facts(setting: MatchSetting, timings: Mapping[str, object]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "versions": versions("duckdb"),
        "seed": setting.seed,
        "threads": setting.threads,
        "repeats": setting.repeats,
        "timings": timings,
    }


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as a plain table."""
    facts = result["machine"]
    lines = [
        ("subscriptions", f"{result['subscriptions']:,} of {result['workload']}"),
        ("engine", f"{result['engine']}, {result['threads']} thread(s)"),
        ("load, build", f"{result['load_s']:.2f} s, {result['build_s']:.2f} s"),
        ("index", f"{result['bytes_per_subscription']:,} bytes a subscription"),
        ("peak memory", f"{result['peak_rss_mb']:,} MB, generated data included"),
        ("matches", f"{result['matches']:,}, {result['matches_per_event']:,} an event"),
        ("matching", f"{result['match_s']:.3f} s for {result['events']:,} events"),
        ("events/s", f"{result['events_per_s']:,.0f}"),
    ]
    if "speed_up" in result:
        lines.append(("speed-up", f"{result['speed_up']} times one thread, by the same slices"))
    lines += _baseline_lines(result["baseline"], result["ratio"])
    lines += _baseline_lines(result["baseline_keyed"], result["ratio_keyed"])
    lines.append(("machine", f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB"))
    lines.append(("versions", ", ".join(f"{k} {v}" for k, v in result["versions"].items())))
    return "\n".join(f"{name:<15}{text}" for name, text in lines)


def _baseline_lines(base: Mapping[str, Any] | None, ratio: float | None) -> list[tuple[str, str]]:
    if base is None or ratio is None:
        return []
    rate = f"{base['events_per_s']:,} events/s on {base['events']:,} events ({base['join']})"
    return [(base["name"], rate), ("  ratio", f"{ratio:,}")]
