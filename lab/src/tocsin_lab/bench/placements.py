"""Partitioned against replicated matching, on a cluster of two workers.

Enters: how many subscriptions and events of workload M, into how many parts. Leaves: a dictionary
ready for JSON. A standalone cluster is started, each worker with one core; its tasks compile the
subscriptions into parts, those of like symbols together. Then the same events are matched part by
part and against the whole, in jobs of their own, and compared by their number and by the sum of
their hashes. What each worker's Python process holds after the partitioned job is asked of the
processes themselves: which parts they have open, how large these are, and their own memory.

To how many partitions an event goes is counted on events that the compile has not seen.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

import tocsin
from tocsin import spark as ts
from tocsin.errors import ArgumentError
from tocsin_lab.bench import processes
from tocsin_lab.bench.cluster import cluster
from tocsin_lab.bench.machine import machine, versions
from tocsin_lab.bench.settings import PlacementSetting
from tocsin_lab.bench.steps import Progress, Steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WORKLOAD = "M"
_ROUTED = 50_000
"""How many events are routed to see to how many partitions one goes."""
_PROFILED = 10_000


@dataclass(frozen=True)
class Matched:
    """What one placement found, in how many seconds of the clock and of all processors."""

    matches: int
    checksum: int
    wall_s: float
    cpu_s: float


def run(setting: PlacementSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures."""
    if min(setting.subscriptions, setting.events, setting.parts, setting.workers) < 1:
        raise ArgumentError("this takes at least one subscription, event, part and worker")
    steps = Steps(progress, 5)
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as name:
        folder = Path(name)
        steps.start("start a cluster")
        with cluster(folder, setting.workers, setting.memory) as (url, _):
            session = _session(url, folder, setting)
            steps.finish()
            try:
                result = _measure(session, setting, str(folder / "store"), steps)
            finally:
                session.stop()
    return result | {
        "benchmark": "placements",
        "workload": _WORKLOAD,
        **asdict(setting),
        "machine": machine(),
        "versions": versions("pyspark"),
    }


def _session(url: str, folder: Path, setting: PlacementSetting) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    source = str(Path(tocsin.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return (
        SparkSession.builder.master(url)
        .appName("tocsin-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", setting.memory)
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(paths))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.shuffle.partitions", str(2 * setting.workers))
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def _measure(
    session: SparkSession, setting: PlacementSetting, store: str, steps: Steps
) -> dict[str, Any]:
    n, seed = setting.subscriptions, setting.seed
    steps.start("compile")
    started = time.perf_counter()
    profiled = ts.generate_events(session, _WORKLOAD, _PROFILED, seed + 1)
    partitions = 4 * setting.workers
    subscriptions = ts.generate_subscriptions(session, _WORKLOAD, n, seed, partitions=partitions)
    report = ts.compile(subscriptions, store, parts=setting.parts, profile=ts.profile(profiled))
    compiled_s = time.perf_counter() - started
    steps.finish()
    events = ts.generate_events(
        session, _WORKLOAD, setting.events, seed + 2, number="event", partitions=setting.workers
    )
    matches: dict[str, Matched] = {}
    memory: dict[str, list[dict[str, Any]]] = {}
    modes: tuple[Literal["partitioned", "replicated"], ...] = ("partitioned", "replicated")
    for mode in modes:
        steps.start(mode)
        _forget(session, setting)
        matches[mode] = _matched(ts.match(events, store, keep=["event"], placement=mode))
        memory[mode] = _memory(session, setting)
        steps.finish()
    steps.start("routes")
    more = ts.generate_events(session, _WORKLOAD, _ROUTED, seed + 3)
    sent = _routed(more, store)
    steps.finish()
    partitioned, replicated = matches["partitioned"], matches["replicated"]
    is_same = partitioned.matches == replicated.matches
    return {
        "compiled_s": round(compiled_s, 1),
        "replication_expected": report.replication,
        "partitions_per_event": sent / _ROUTED,
        "partitioned": asdict(partitioned),
        "replicated": asdict(replicated),
        "same": is_same and partitioned.checksum == replicated.checksum,
        "worker_memory": memory,
    }


def _matched(frame: DataFrame) -> Matched:
    """Run a match; return how much it found, and a sum that tells other matches apart."""
    from pyspark.sql import functions as sf

    with processes.Meter() as meter:
        cpu, wall = meter.seconds(), time.perf_counter()
        hashed = sf.xxhash64("event", "subscription") % sf.lit(1_000_000_007)
        row = frame.agg(sf.count(sf.lit(1)), sf.sum(hashed)).collect()[0]
        wall = time.perf_counter() - wall
        return Matched(row[0], row[1] or 0, round(wall, 2), round(meter.seconds() - cpu, 2))


def _routed(events: DataFrame, store: str) -> int:
    """Return how many times events are sent to a part, all together."""
    from pyspark.sql import types as st

    from tocsin.spark.match_task import MatchSpec
    from tocsin.spark.routes import PART, TARGET, RouteTask
    from tocsin.spark.worker import Moment, Source

    snapshot = tocsin.SubscriptionStore(store).snapshot()
    source = Source(snapshot.place, Moment.of(snapshot, time.time()))
    n_parts = len(snapshot.state.parts)
    task = RouteTask(MatchSpec(source, (), "rows", True), None, n_parts)
    numbers = [st.StructField(name, st.IntegerType(), False) for name in (PART, TARGET)]
    return events.mapInArrow(task, st.StructType([*events.schema, *numbers])).count()


def _forget(session: SparkSession, setting: PlacementSetting) -> None:
    """Have all workers close what they hold open."""
    _ask(session, setting, Forgetting())


def _memory(session: SparkSession, setting: PlacementSetting) -> list[dict[str, Any]]:
    """Return what each worker holds, in all of its Python processes."""
    said = map(json.loads, _ask(session, setting, Holding()))
    by_process = {each["process"]: each for each in said}
    workers: dict[int, dict[str, Any]] = {}
    for each in by_process.values():
        of = workers.setdefault(each["worker"], {"processes": 0})
        of["processes"] += 1
        for name in ("matchers", "subscriptions", "bytes", "private_mb"):
            of[name] = round(of.get(name, 0) + each[name], 1)
    return [workers[worker] for worker in sorted(workers)]


def _ask(session: SparkSession, setting: PlacementSetting, task: Any) -> list[str]:
    """Run a task on every worker: several tasks that take a while, so that each gets some."""
    tasks = session.range(0, 3 * setting.workers, 1, 3 * setting.workers)
    return [row["said"] for row in tasks.mapInArrow(task, "said string").collect()]


class Forgetting:
    """What `mapInArrow` runs: closes all matchers of a process."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Close the matchers of this process."""
        from tocsin.spark import worker

        for _ in batches:
            worker.close_all()
            time.sleep(0.5)
            yield pa.record_batch({"said": [""]})


class Holding:
    """What `mapInArrow` runs: says which parts a process has open, and how large they are."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Describe the open matchers of this process."""
        from tocsin.spark import worker

        for _ in batches:
            opened = worker.open_matchers()
            said = {
                "worker": os.getppid(),  # the process that Spark forks a worker's others from
                "process": os.getpid(),
                "matchers": len(opened),
                "subscriptions": sum(map(len, opened)),
                "bytes": sum(matcher.nbytes for matcher in opened),
                "private_mb": round(processes.private_mb(), 1),
            }
            time.sleep(0.5)
            yield pa.record_batch({"said": [json.dumps(said)]})


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    lines = [
        f"{result['subscriptions']:,} subscriptions of {result['workload']} in {result['parts']} "
        f"parts, compiled in {result['compiled_s']} s by {result['workers']} workers",
        f"an event goes to {result['partitions_per_event']:.3f} partitions on average",
    ]
    for mode in ("partitioned", "replicated"):
        figures = result[mode]
        lines.append(
            f"{mode:<12} {figures['matches']:,} matches of {result['events']:,} events, "
            f"{figures['wall_s']} s, {figures['cpu_s']} CPU-s"
        )
        for said in result["worker_memory"][mode]:
            share = said["subscriptions"] / result["subscriptions"]
            lines.append(
                f"  a worker holds {said['subscriptions']:,} subscriptions ({share:.0%}) in "
                f"{said['matchers']} matchers of {said['bytes'] / 2**20:,.0f} MB; "
                f"{said['private_mb']} MB are its own, in {said['processes']} processes"
            )
    lines.append("both found the same" if result["same"] else "THE TWO DIFFER")
    return "\n".join(lines)
