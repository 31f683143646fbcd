"""How many events a second a matcher takes, against DuckDB doing the same in the same run.

Enters: a workload, how many subscriptions and events, an engine, a baseline, how many threads, a
seed and how many repeats. Leaves: a dictionary ready for JSON. The steps:

1. generate subscriptions and events;
2. compile the kernels on a small matcher, so that loading and building are not charged for it;
3. load (`load_s`) and build the index (`build_s`: the first match of a single event);
4. check the answers to some events, see `check`;
5. match all events once, unmeasured, then `repeats` times: from an Arrow table to offsets and ids;
6. time the baseline on as many of these events, from the first on, as it takes in some seconds.

Arrow, Numba and DuckDB are held to one thread. With more `threads`, as many Python threads each
match a slice of the events, and DuckDB has as many too.

`check` compares the matcher with an evaluation by NumPy that shares no code with any engine, on
events of the workload and on others changed so that each satisfies a subscription: in W0 and T
hardly any event of the workload matches anything, and an engine that finds nothing must not pass.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.bench.baselines import DuckDB, Measured, check_counts, formulations, measure_best
from tocsin.bench.machine import machine, one_core, peak_rss_mb, versions
from tocsin.bench.probes import probes
from tocsin.bench.timing import Timing, measure
from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.model import SubscriptionId
from tocsin.workloads import Workload, workload

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the steps done and the steps in all."""

Load = Literal["rows", "texts"]
Answers = Sequence[list[SubscriptionId]]

_FEW_SUBSCRIPTIONS, _FEW_EVENTS = 1000, 200
_CHECKED = 10
"""As many events of the workload are checked, and as many that satisfy a subscription."""

_DEFAULT_EVENTS = {"W0": 200_000, "W1": 200_000, "W2": 200_000, "T": 10_000, "TW": 10_000}
_OTHER_EVENTS = 20_000


@dataclass(frozen=True)
class Setting:
    """What to measure; no events means as many as suit the workload."""

    workload: str = "W0"
    subscriptions: int = 100_000
    events: int | None = None
    engine: str = "auto"
    baseline: Literal["duckdb", "none"] = "duckdb"
    threads: int = 1
    seed: int = 0
    repeats: int = 3
    load: Load = "rows"

    @property
    def n_events(self) -> int:
        """How many events."""
        return self.events or _DEFAULT_EVENTS.get(self.workload, _OTHER_EVENTS)


@dataclass(frozen=True)
class Loaded:
    """A matcher with its index built, and how long that took."""

    matcher: Matcher
    load_s: float
    build_s: float


class Steps:
    """Tells a progress callback what is being done, and how far the work has come."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._done = 0
        self._total = total
        self._what = ""

    def start(self, what: str) -> None:
        """Begin a step, or several of one name."""
        self._what = what
        self._show()

    def finish(self) -> None:
        """End a step."""
        self._done += 1
        self._show()

    def _show(self) -> None:
        if self._progress:
            self._progress(self._what, self._done, self._total)


def run(setting: Setting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures; raises AssertionError when an answer is wrong."""
    chosen = workload(setting.workload)
    _check_setting(setting)
    steps = Steps(progress, _n_steps(chosen, setting))
    with one_core():
        steps.start("generate events")
        events = chosen.events(setting.n_events, setting.seed)
        steps.finish()
        loaded = load_matcher(chosen, setting, steps)
        steps.start("check a sample")
        checked = check(loaded.matcher.match_batch, chosen, setting, events)
        steps.finish()
        steps.start("match")
        counts = _counts(_match(loaded.matcher, events, setting.threads))
        timing = measure(
            lambda: _match(loaded.matcher, events, setting.threads), setting.repeats, steps.finish
        )
        result = _figures(setting, loaded, counts, timing)
        best = None
        if setting.baseline == "duckdb":
            best = _measure_duckdb(chosen, setting, checked, (events, counts), steps)
    timings = {"load": setting.load, "match": timing.to_dict(len(events)), "baseline": _tried(best)}
    return result | _against(best, result["events_per_s"]) | _facts(setting, timings)


def _n_steps(chosen: Workload, setting: Setting) -> int:
    n = 4 + setting.repeats
    if setting.baseline == "duckdb":
        n += 1 + len(formulations(chosen)) + setting.repeats
    return n


def _check_setting(setting: Setting) -> None:
    if min(setting.subscriptions, setting.n_events, setting.threads, setting.repeats) < 1:
        raise ArgumentError("this takes at least one subscription, event, thread and repeat")
    if setting.baseline not in ("duckdb", "none"):
        raise ArgumentError(f"there is no baseline {setting.baseline!r}; choose duckdb or none")
    if setting.load not in ("rows", "texts"):
        raise ArgumentError(f"cannot load {setting.load!r}; choose rows or texts")


def load_matcher(chosen: Workload, setting: Setting, steps: Steps) -> Loaded:
    """Generate and load subscriptions and build the index, after compiling what that takes."""
    n = setting.subscriptions
    steps.start("compile")
    _load_and_build(chosen, min(n, _FEW_SUBSCRIPTIONS), setting, _FEW_EVENTS)
    steps.finish()
    steps.start("load")
    loaded = _load_and_build(chosen, n, setting, 1)
    steps.finish()
    return loaded


def _load_and_build(chosen: Workload, n: int, setting: Setting, n_events: int) -> Loaded:
    matcher = Matcher(chosen.event_type, engine=setting.engine)
    if setting.load == "texts":
        table = chosen.subscription_texts(n, setting.seed)
        started = perf_counter()
        matcher.subscribe_many(table)
    else:
        table = chosen.subscription_rows(n, setting.seed)
        started = perf_counter()
        matcher.subscribe_rows(table)
    load_s = perf_counter() - started
    events = chosen.events(n_events, setting.seed)
    started = perf_counter()
    matcher.match_batch(events)
    build_s = perf_counter() - started
    matcher.match(events.slice(0, 1).to_pylist()[0])
    return Loaded(matcher, load_s, build_s)


def check(
    answer: Callable[[pa.Table], Answers], chosen: Workload, setting: Setting, events: pa.Table
) -> tuple[pa.Table, NDArray[np.int64]]:
    """Compare the answers to some events with NumPy's; return the events and their match counts.

    Half of the events are of the workload; the others are changed to satisfy a subscription.
    """
    random = np.random.default_rng(setting.seed)
    n, n_events = setting.subscriptions, min(_CHECKED, len(events))
    plain = events.take(random.choice(len(events), n_events, replace=False))
    satisfied = [None] * n_events + random.choice(n, min(_CHECKED, n), replace=False).tolist()
    samples = plain.to_pylist()
    for number in satisfied[n_events:]:
        rows = chosen.subscription_rows(1, setting.seed, first=number).to_pylist()
        samples.append(samples[number % n_events] | next(probes(rows, chosen.event_type)))
    table = pa.Table.from_pylist(samples, schema=events.schema)
    predicates = Predicates.of(chosen.subscription_rows(n, setting.seed))
    counts = [
        _check_event(event, found, number, predicates)
        for event, found, number in zip(samples, answer(table), satisfied, strict=True)
    ]
    return table, np.array(counts, np.int64)


def _check_event(
    event: Mapping[str, object],
    found: list[SubscriptionId],
    satisfied: int | None,
    predicates: Predicates,
) -> int:
    expected = predicates.matches(event)
    if satisfied is not None and satisfied not in expected:
        raise AssertionError(f"an event made for subscription {satisfied} does not satisfy it")
    if sorted(map(int, found)) != expected:
        wrong = sorted(set(expected).symmetric_difference(map(int, found)))[:5]
        raise AssertionError(
            f"{len(found)} matches instead of {len(expected)}, wrong about {wrong}: {event}"
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
        texts = np.array([self.texts.get(v, -2) if isinstance(v, str) else -2 for v in values])
        alive = np.arange(len(self.ids))
        done: list[NDArray[np.int64]] = []
        while len(alive):  # the first predicate of each subscription, then the second, …
            row = self.start[alive] + len(done)
            alive = alive[self._hold(row, numbers, texts)]
            is_last = self.start[alive] + len(done) + 1 == self.start[alive + 1]
            done.append(alive[is_last])
            alive = alive[~is_last]
        return sorted(self.ids[np.concatenate(done)].tolist())

    def _hold(
        self,
        row: NDArray[np.int64],
        numbers: NDArray[np.float64],
        texts: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Say which predicates hold for the values of an event."""
        attribute, op = self.attribute[row], self.op[row]
        given, literal = numbers[attribute], self.number[row]
        holds: NDArray[np.bool_] = texts[attribute] == self.text[row]
        for code, name in enumerate(self.ops):
            holds |= (op == code) & _COMPARISONS[name](given, literal)
        return holds


_COMPARISONS: dict[str, Callable[[Any, Any], NDArray[np.bool_]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _match(matcher: Matcher, events: pa.Table, threads: int) -> list[Matches]:
    """Match all events, a slice of them on each thread."""
    if threads == 1:
        return [matcher.match_batch(events)]
    ends = np.linspace(0, len(events), threads + 1).astype(int).tolist()
    slices = [events.slice(start, end - start) for start, end in pairwise(ends)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(matcher.match_batch, slices))


def _counts(parts: list[Matches]) -> NDArray[np.int64]:
    """Return how many subscriptions each event matches."""
    return np.concatenate([np.diff(part.offsets) for part in parts])


def _measure_duckdb(
    chosen: Workload,
    setting: Setting,
    checked: tuple[pa.Table, NDArray[np.int64]],
    timed: tuple[pa.Table, NDArray[np.int64]],
    steps: Steps,
) -> Measured:
    """Time DuckDB, after it has counted the checked events as we did."""
    steps.start("DuckDB: load")
    database = DuckDB(chosen, setting.subscriptions, setting.seed, setting.threads)
    steps.finish()
    steps.start("DuckDB: count")
    try:
        check_counts(database, *checked)
        return measure_best(database, *timed, setting.repeats, steps.finish)
    finally:
        database.close()


def _figures(
    setting: Setting, loaded: Loaded, counts: NDArray[np.int64], timing: Timing
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


def _tried(best: Measured | None) -> dict[str, object] | None:
    if best is None:
        return None
    return best.timing.to_dict(best.events) | {"formulation": best.name, "tried": best.tried}


def _against(best: Measured | None, events_per_s: float) -> dict[str, Any]:
    if best is None:
        nothing = {"name": "none", "events_per_s": None, "events": 0}
        return {"baseline": nothing, "ratio": None}
    rate = best.events_per_s
    return {
        "baseline": {"name": "duckdb", "events_per_s": round(rate, 1), "events": best.events},
        "ratio": round(events_per_s / rate, 2),
    }


def _facts(setting: Setting, timings: Mapping[str, object]) -> dict[str, Any]:
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
    base, facts = result["baseline"], result["machine"]
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
    if base["name"] != "none":
        way = result["timings"]["baseline"]["formulation"]
        rate = f"{base['events_per_s']:,.0f} events/s ({way}, {base['events']:,} events)"
        lines += [(base["name"], rate), ("ratio", f"{result['ratio']:,}")]
    lines.append(("machine", f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB"))
    lines.append(("versions", ", ".join(f"{k} {v}" for k, v in result["versions"].items())))
    return "\n".join(f"{name:<15}{text}" for name, text in lines)
