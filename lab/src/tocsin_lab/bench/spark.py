"""What matching costs on Spark, in processor time of the JVM and the Python workers.

Enters: how many subscriptions and events of W0, a seed, repeats. Leaves: a dictionary ready for
JSON. In one session of Spark in local mode, all on the same Parquet files of events:

- *identity*: a `mapInArrow` that gives back what it gets, then a count: what it costs to move these
  columns through Python at all;
- *match*: `ts.match` against a store, then a count;
- *join*: what a competent user of Spark would write instead: the predicates of a subscription are
  columns of a table, a hash join on the pair of attributes that every subscription tests (a0 and
  a1) gives candidates, and a filter checks the other three predicates. It gets fewer events, since
  it takes long, and their counts are compared.

Each is run once unmeasured, then `repeats` times in turns; figures are medians. The memory that a
Python worker has for itself is read with a small index and with a large one: what the index adds.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import tocsin
from tocsin import spark as ts
from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.workloads import workload
from tocsin_lab.bench import processes
from tocsin_lab.bench.machine import machine, versions
from tocsin_lab.bench.settings import PlacementSetting, SparkSetting
from tocsin_lab.bench.steps import Progress, Steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WORKLOAD = "W0"
_MOST_LOADED = 1_000_000


@dataclass(frozen=True)
class Cost:
    """Seconds of one run: of all processors together, and on the clock; and what it counted."""

    cpu_s: float
    wall_s: float
    count: int


def run(setting: SparkSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures; raises AssertionError when counts differ."""
    if setting.placement == "partitioned":
        from tocsin_lab.bench import placements

        n, parts = setting.subscriptions, setting.parts
        return placements.run(
            PlacementSetting(n, setting.n_events, parts, seed=setting.seed), progress
        )
    if min(setting.subscriptions, setting.n_events, setting.join_events, setting.repeats) < 1:
        raise ArgumentError("this takes at least one subscription, event and repeat")
    steps = Steps(progress, 6 + 2 * setting.repeats + (2 if setting.memory_mb else 0))
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as name:
        folder = Path(name)
        steps.start("build the store")
        store, n_bytes = _build(setting.subscriptions, setting.seed, folder / "store")
        steps.finish()
        steps.start("start Spark")
        session = start(setting.cores, folder)
        steps.finish()
        try:
            with processes.Meter() as meter:
                result = _measure(session, setting, folder, store, meter, steps)
            if setting.memory_mb:
                per_subscription = n_bytes / setting.subscriptions
                result["memory"] = _memory(session, setting, folder, per_subscription, steps)
        finally:
            session.stop()
    return result | {
        "benchmark": "spark",
        "workload": _WORKLOAD,
        "subscriptions": setting.subscriptions,
        "events": setting.n_events,
        "seed": setting.seed,
        "repeats": setting.repeats,
        "machine": machine(),
        "versions": versions("pyspark"),
    }


def start(cores: int, folder: Path) -> SparkSession:
    """Start Spark in local mode; its workers import the Tocsin that runs here."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    source = str(Path(tocsin.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("tocsin-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.shuffle.partitions", str(2 * cores))
        # With a limit in bytes, Spark adds up all columns of a batch again for every row of it.
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def _build(n: int, seed: int, path: Path) -> tuple[str, int]:
    """Save an index of n subscriptions; return its path and size."""
    chosen = workload(_WORKLOAD)
    matcher = Matcher(chosen.event_type)
    for first in range(0, n, _MOST_LOADED):
        size = min(_MOST_LOADED, n - first)
        matcher.subscribe_many(chosen.subscription_rows(size, seed, first=first))
    matcher.rebuild()
    matcher.save(path)
    return str(path), matcher.nbytes


def _measure(
    session: SparkSession,
    setting: SparkSetting,
    folder: Path,
    store: str,
    meter: processes.Meter,
    steps: Steps,
) -> dict[str, Any]:
    steps.start("write events")
    n, seed = setting.n_events, setting.seed
    everything = ts.generate_events(session, _WORKLOAD, n, seed, number="event")
    everything.write.parquet(str(folder / "events"))
    _subscription_columns(setting, folder / "subscriptions.parquet")
    steps.finish()
    events = session.read.parquet(str(folder / "events"))
    few = events.filter(f"event < {setting.join_events}")

    def identity() -> int:
        return events.mapInArrow(_same, events.schema).count()

    def match() -> int:
        return ts.match(events, store, keep=["event"]).count()

    steps.start("identity and match")
    identity()
    match()
    steps.finish()
    costs: dict[str, list[Cost]] = {"identity": [], "match": []}
    for _ in range(setting.repeats):
        for name, query in (("identity", identity), ("match", match)):
            costs[name].append(_cost(query, meter))
            steps.finish()
    steps.start("join")
    subscriptions = folder / "subscriptions.parquet"
    pair_join(session, events.filter(f"event < {setting.join_events // 50}"), subscriptions).count()
    expected = ts.match(few, store, keep=["event"]).count()
    few_cost = _cost(lambda: ts.match(few, store, keep=["event"]).count(), meter)
    joined = _cost(lambda: pair_join(session, few, subscriptions).count(), meter)
    assert joined.count == expected, f"the join found {joined.count} matches, not {expected}"
    steps.finish()
    return _figures(costs, few_cost, joined, setting)


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(batches)


def _cost(query: Callable[[], int], meter: processes.Meter) -> Cost:
    cpu, wall = meter.seconds(), perf_counter()
    count = query()
    return Cost(meter.seconds() - cpu, perf_counter() - wall, count)


def _subscription_columns(setting: SparkSetting, path: Path) -> None:
    """Write subscriptions as the user of the join would have them: a column for each predicate."""
    import pyarrow.parquet as pq

    chosen = workload(_WORKLOAD)
    rows = chosen.subscription_rows(setting.subscriptions, setting.seed)
    attribute = rows["attribute"].combine_chunks().indices.to_numpy().reshape(-1, 5)
    value = rows["value"].combine_chunks().to_numpy().reshape(-1, 5)
    columns: dict[str, Any] = {"subscription": rows["id"].to_numpy()[::5]}
    columns |= {"p0": value[:, 0], "p1": value[:, 1]}
    for at in range(2, 5):
        columns |= {f"i{at}": attribute[:, at].astype("int32"), f"v{at}": value[:, at]}
    pq.write_table(pa.table(columns), path, row_group_size=100_000)


def pair_join(session: SparkSession, events: DataFrame, subscriptions: Path) -> DataFrame:
    """Match by a hash join on a pair of predicates: the baseline.

    Every subscription of W0 tests a0 and a1, so they are the key. The other three predicates name
    their attributes, so the values of an event are put into an array, and looked up there.
    """
    from pyspark.sql import functions as f

    subs = session.read.parquet(str(subscriptions))
    values = f.array(*(f.col(f"a{i}") for i in range(32)))
    wide = events.select("event", "a0", "a1", values.alias("v"))
    joined = wide.join(f.broadcast(subs), (wide["a0"] == subs["p0"]) & (wide["a1"] == subs["p1"]))
    for at in range(2, 5):
        joined = joined.filter(f.get("v", f.col(f"i{at}")) == f.col(f"v{at}"))
    return joined.select("event", "subscription")


def _figures(
    costs: Mapping[str, list[Cost]], few: Cost, joined: Cost, setting: SparkSetting
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, runs in costs.items():
        cpu = statistics.median(run.cpu_s for run in runs)
        figures[name] = {
            "cpu_s": round(cpu, 3),
            "cpu_us_per_event": round(cpu / setting.n_events * 1e6, 3),
            "wall_s": round(statistics.median(run.wall_s for run in runs), 3),
            "runs_cpu_s": [round(run.cpu_s, 3) for run in runs],
        }
    figures["matches"] = costs["match"][0].count
    ratio = figures["match"]["cpu_s"] / figures["identity"]["cpu_s"]
    figures["match_to_identity"] = round(ratio, 3)
    figures["join"] = {
        "events": setting.join_events,
        "cpu_s": round(joined.cpu_s, 3),
        "wall_s": round(joined.wall_s, 3),
        "match_cpu_s": round(few.cpu_s, 3),
        "matches": joined.count,
    }
    per_event = figures["match"]["cpu_s"] / setting.n_events
    figures["join_to_match"] = round(joined.cpu_s / setting.join_events / per_event, 1)
    figures["join_to_match_same_events"] = round(joined.cpu_s / max(few.cpu_s, 1e-9), 1)
    return figures


def _memory(
    session: SparkSession,
    setting: SparkSetting,
    folder: Path,
    per_subscription: float,
    steps: Steps,
) -> dict[str, Any]:
    """Measure what Python workers hold for themselves when they use a large index.

    The last figure is read once all workers have matched: until then pages that others will share
    seem to belong to the first who reads them.
    """
    steps.start("build a large store")
    n = int(setting.memory_mb * 2**20 / per_subscription)
    store, n_bytes = _build(n, setting.seed, folder / "large")
    small, _ = _build(2000, setting.seed, folder / "small")
    steps.finish()
    steps.start("memory")
    tasks = session.range(0, 4 * setting.cores, 1, 4 * setting.cores)
    imported: dict[int, float] = {}
    for path in (small, store):
        rows = tasks.mapInArrow(MemoryTask(path, setting.seed), "pid long").collect()
        if path == small:
            imported = {row["pid"]: processes.private_mb(row["pid"]) for row in rows}
    after = {row["pid"]: processes.private_mb(row["pid"]) for row in rows if row["pid"] in imported}
    steps.finish()
    return {
        "index_mb": round(n_bytes / 2**20, 1),
        "subscriptions": n,
        "workers": [
            {"without_mb": round(imported[pid], 1), "with_mb": round(mb, 1)}
            for pid, mb in after.items()
        ],
        "added_mb": round(max(mb - imported[pid] for pid, mb in after.items()), 1),
    }


class MemoryTask:
    """What `mapInArrow` runs: opens a store, matches some events, and says which process it is."""

    def __init__(self, store: str, seed: int) -> None:
        self.store = store
        self.seed = seed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Match in one worker."""
        from tocsin.spark import worker

        for _ in batches:
            pass
        worker.close_all()
        snapshot = tocsin.SubscriptionStore(self.store).snapshot()
        cached = worker.open_matcher(worker.Moment.of(snapshot, 0.0), verify=False)
        for first in range(0, 5 * 65_536, 65_536):
            cached.matcher.match_batch(workload(_WORKLOAD).events(65_536, self.seed, first=first))
        worker.freeze()
        yield pa.record_batch({"pid": [os.getpid()]})


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as a plain table."""
    if "partitioned" in result:
        from tocsin_lab.bench import placements

        return placements.render(result)
    same, match, join = result["identity"], result["match"], result["join"]
    lines = [
        ("subscriptions", f"{result['subscriptions']:,} of {result['workload']}"),
        ("identity", f"{same['cpu_us_per_event']} CPU-µs an event, {same['wall_s']} s"),
        ("match", f"{match['cpu_us_per_event']} CPU-µs an event, {match['wall_s']} s"),
        ("  ratio", f"{result['match_to_identity']}"),
        ("pair join", f"{join['cpu_s']} CPU-s for {join['events']:,} events"),
        ("  ratio", f"{result['join_to_match']} (same events: {join['match_cpu_s']} CPU-s)"),
    ]
    if "memory" in result:
        memory = result["memory"]
        lines.append(
            ("memory", f"{memory['added_mb']} MB a worker for an index of {memory['index_mb']} MB")
        )
    facts = result["machine"]
    lines.append(("machine", f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB"))
    return "\n".join(f"{name:<15}{text}" for name, text in lines)
