"""What an update of a publication costs on Spark, in processor time of the JVM and the workers.

Enters: how many publications, subscriptions and updates, and the size of a micro-batch. Leaves: a
dictionary ready for JSON. Publications are points of eight whole numbers from 0 to 999 that wander;
a subscription has ranges of two of them. A first micro-batch brings all publications, then some of
updates, all unmeasured, until the JVM has compiled most of what it runs. Then come the updates that
are measured, through `ts.transitions` to no sink, the JVM and the Python processes counted apart,
and what Spark says of its state store.

The baseline is what Spark's own examples show: `transformWithState` with one group for each key,
the last values in a `ValueState`, matched one by one with the same matcher. It gets fewer
updates, since it takes long; the query's start is measured apart, by a run over a tenth of them,
and taken off both. Ours is measured before it and after it, and both count, so that a machine whose
speed drifts is fair to both sides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tocsin import spark as ts
from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin_lab.bench import processes
from tocsin_lab.bench.machine import machine, versions
from tocsin_lab.bench.settings import TransitionsSetting
from tocsin_lab.bench.spark import start
from tocsin_lab.bench.steps import Progress, Steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ATTRIBUTES = 8
_VALUES = 1_000
_STREAMING = "spark.sql.streaming"
_CLASSES = "org.apache.spark.sql.execution.streaming"
SETTINGS = {
    f"{_STREAMING}.stateStore.providerClass": f"{_CLASSES}.state.RocksDBStateStoreProvider",
    # What changed is written at each commit, not all that there is.
    f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The other manager starts a process for every file that it names on a local disk.
    f"{_STREAMING}.checkpointFileManagerClass": (
        f"{_CLASSES}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""How Spark is set for both sides: as docs/spark.md advises."""
_FILES = 2
"""Files in a micro-batch, and so tasks that read it."""
_SCHEMA = "key long, n long, " + ", ".join(f"a{i} int" for i in range(_ATTRIBUTES))


@dataclass(frozen=True)
class Cost:
    """Seconds of one run: of all processors together, and on the clock; some of them the JVM's.

    `state_ms` are the milliseconds a micro-batch that tasks spent on committing state, in all.
    """

    cpu_s: float
    wall_s: float
    java_s: float = 0.0
    state_ms: float = 0.0

    def less(self, other: Cost) -> Cost:
        """Return what this took more than another."""
        return Cost(
            self.cpu_s - other.cpu_s,
            self.wall_s - other.wall_s,
            self.java_s - other.java_s,
            self.state_ms,
        )


def run(setting: TransitionsSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures."""
    if min(setting.publications, setting.subscriptions, setting.batch, setting.batches) < 1:
        raise ArgumentError("this takes at least one publication, subscription and update")
    steps = Steps(progress, 7 if setting.baseline else 4)
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as place:
        folder = Path(place)
        steps.start("build the store, start Spark")
        store = _build(setting, folder / "store")
        session = start(setting.cores, folder)
        for name, value in SETTINGS.items():
            session.conf.set(name, value)
        session.conf.set("spark.sql.shuffle.partitions", setting.cores)
        steps.finish()
        try:
            result = _measure(session, setting, folder, store, steps)
        finally:
            session.stop()
    return {
        "benchmark": "transitions",
        **asdict(setting),
        "machine": machine(),
        "versions": versions("pyspark"),
        **result,
    }


def _build(setting: TransitionsSetting, path: Path) -> str:
    source = np.random.default_rng(setting.seed)
    n = setting.subscriptions
    first = source.integers(0, _ATTRIBUTES, n)
    second = (first + source.integers(1, _ATTRIBUTES, n)) % _ATTRIBUTES
    low = source.integers(0, _VALUES - setting.width, (2, n))
    matcher = Matcher()
    rows = {
        "id": np.tile(np.arange(n), 4),
        "attribute": [f"a{a}" for a in np.concatenate([first, first, second, second])],
        "op": [">="] * n + ["<"] * n + [">="] * n + ["<"] * n,
        "value": np.concatenate([low[0], low[0] + setting.width, low[1], low[1] + setting.width]),
    }
    matcher.subscribe_many(rows)
    matcher.rebuild()
    matcher.save(path)
    return str(path)


class _Wandering:
    """Publications whose values wander: micro-batches of updates, one after the other."""

    def __init__(self, setting: TransitionsSetting) -> None:
        self._source = np.random.default_rng([setting.seed, 1])
        self._values = self._source.integers(0, _VALUES, (setting.publications, _ATTRIBUTES))
        self._n = 0

    def all(self) -> pa.Table:
        """Return all publications as they are."""
        return self._table(np.arange(len(self._values)), self._values)

    def updates(self, n: int) -> pa.Table:
        """Return n updates; a publication may come several times."""
        keys = self._source.integers(0, len(self._values), n)
        steps = self._source.integers(-1, 2, (n, _ATTRIBUTES))
        values = np.clip(self._values[keys] + steps, 0, _VALUES - 1)
        self._values[keys] = values
        return self._table(keys, values)

    def _table(self, keys: Any, values: Any) -> pa.Table:
        numbers = np.arange(self._n, self._n + len(keys))
        self._n += len(keys)
        columns = {f"a{i}": values[:, i].astype(np.int32) for i in range(_ATTRIBUTES)}
        return pa.table({"key": keys, "n": numbers, **columns})


def _measure(
    session: SparkSession,
    setting: TransitionsSetting,
    folder: Path,
    store: str,
    steps: Steps,
) -> dict[str, Any]:
    wandering = _Wandering(setting)

    def tracked(events: DataFrame) -> DataFrame:
        return ts.transitions(events, store, "key", order="n", buckets=8 * setting.cores)

    def measured(name: str, of: Any, tables: list[pa.Table]) -> Cost:
        return _run(session, folder, name, of, tables)

    steps.start("all publications")
    measured("ours", tracked, [wandering.all()])
    steps.finish()
    steps.start("updates")
    if setting.warm_up:
        measured(
            "ours", tracked, [wandering.updates(setting.batch) for _ in range(setting.warm_up)]
        )
    steps.finish()

    def updates() -> Cost:
        """Measure all micro-batches; the query's start, which one takes too, is taken off."""
        few = measured("ours", tracked, [wandering.updates(setting.batch)])
        tables = [wandering.updates(setting.batch) for _ in range(setting.batches)]
        many = measured("ours", tracked, tables)
        return many.less(few) if setting.batches > 1 else many

    runs, theirs = [updates()], {}
    steps.finish()
    if setting.baseline:
        theirs = _baseline(measured, setting, store, steps)
        runs.append(updates())
        steps.finish()
    return _figures(setting, runs, theirs)


def _figures(
    setting: TransitionsSetting, runs: list[Cost], baseline: dict[str, Any]
) -> dict[str, Any]:
    """Return the totals of all runs, and the baseline measured between them."""
    n = (setting.batch * (setting.batches - 1) or setting.batch) * len(runs)
    cpu, wall = sum(run.cpu_s for run in runs), sum(run.wall_s for run in runs)
    result: dict[str, Any] = {
        "updates_per_s": n / wall,
        "cpu_us_per_update": 1e6 * cpu / n,
        "jvm_us_per_update": 1e6 * sum(run.java_s for run in runs) / n,
        "cores_used": cpu / wall,
        "state_commit_ms": sum(run.state_ms for run in runs) / len(runs),
        "runs": [
            {
                "updates_per_s": n / len(runs) / run.wall_s,
                "cpu_us_per_update": 1e6 * run.cpu_s / (n / len(runs)),
            }
            for run in runs
        ],
    }
    if baseline:
        theirs = baseline["cpu_us_per_update"]
        result |= {"baseline": baseline, "ratio": theirs / result["cpu_us_per_update"]}
    return result


def _baseline(
    measured: Any, setting: TransitionsSetting, store: str, steps: Steps
) -> dict[str, Any]:
    wandering = _Wandering(setting)

    def one_by_one(events: DataFrame) -> DataFrame:
        grouped = events.groupBy("key")
        out = "key long, subscription long, kind string"
        return grouped.transformWithState(_one_key(store), out, "Append", "None")

    steps.start("the baseline")
    measured("theirs", one_by_one, [wandering.updates(setting.baseline // 10)])
    few = measured("theirs", one_by_one, [wandering.updates(setting.baseline // 10)])
    steps.finish()
    many = measured("theirs", one_by_one, [wandering.updates(setting.baseline)])
    steps.finish()
    n = setting.baseline - setting.baseline // 10
    return {
        "name": "transformWithState, one key a group",
        "cpu_us_per_update": 1e6 * (many.cpu_s - few.cpu_s) / n,
    }


def _run(session: SparkSession, folder: Path, name: str, of: Any, tables: list[pa.Table]) -> Cost:
    """Let a query process some tables, one a micro-batch, and stop."""
    files = folder / name / "input"
    files.mkdir(parents=True, exist_ok=True)
    for table in tables:
        size = -(-len(table) // _FILES)
        for first in range(0, size * _FILES, size):
            waiting = folder / name / "waiting.parquet"
            pq.write_table(table.slice(first, size), waiting)
            waiting.rename(files / f"{len(list(files.iterdir())):06}.parquet")
    with processes.Meter() as meter:
        return _timed(session, folder / name, of, meter)


def _timed(session: SparkSession, folder: Path, of: Any, meter: processes.Meter) -> Cost:
    cpu, java, wall = meter.seconds(), meter.java_seconds(), perf_counter()
    events = (
        session.readStream.schema(_SCHEMA)
        .option("maxFilesPerTrigger", _FILES)
        .parquet(str(folder / "input"))
    )
    query = (
        of(events).writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination()
    wall = perf_counter() - wall
    commits = [
        operator.commitTimeMs for done in query.recentProgress for operator in done.stateOperators
    ]
    state_ms = sum(commits) / max(1, len(commits))
    return Cost(meter.seconds() - cpu, wall, meter.java_seconds() - java, state_ms)


def _one_key(store: str) -> Any:
    """Return a processor as Spark's examples write them: one publication a group."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class OneKey(StatefulProcessor):
        """Keeps the last values of one publication, and compares what they match."""

        def init(self, handle: Any) -> None:
            self._values = handle.getValueState("values", _SCHEMA)
            self._matcher = Matcher.open(store, verify=False)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for row in sorted(rows, key=lambda row: row.n):
                values = self._values.get()
                before = set(self._match(values)) if values is not None else set()
                after = set(self._match(tuple(row)))
                self._values.update(tuple(row))
                for kind, ids in (("LEAVE", before - after), ("ENTER", after - before)):
                    for id in ids:
                        yield Row(key=key[0], subscription=id, kind=kind)

        def _match(self, values: Any) -> list[Any]:
            return self._matcher.match({f"a{i}": values[2 + i] for i in range(_ATTRIBUTES)})

        def close(self) -> None:
            pass

    return OneKey()


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    each = " and ".join(f"{run['updates_per_s']:,.0f}" for run in result["runs"])
    lines = [
        f"{result['publications']:,} publications, {result['subscriptions']:,} subscriptions, "
        f"micro-batches of {result['batch']:,} updates",
        f"  {result['updates_per_s']:,.0f} updates/s on {result['cores']} cores "
        f"({each}), "
        f"{result['cpu_us_per_update']:.1f} CPU-µs an update",
        f"  of these {result['jvm_us_per_update']:.1f} in the JVM, the rest in Python; "
        f"{result['cores_used']:.1f} cores were had; committing state took "
        f"{result['state_commit_ms']:,.0f} ms a micro-batch, over all tasks",
    ]
    if "ratio" in result:
        lines.append(
            f"  {result['baseline']['name']}: {result['baseline']['cpu_us_per_update']:,.0f} "
            f"CPU-µs an update, {result['ratio']:,.0f} times as much"
        )
    return "\n".join(lines)
