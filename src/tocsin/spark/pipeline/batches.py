"""One micro-batch: pin → parse → validate → match → sinks → metrics.

Enters: the frame that Spark hands to `foreachBatch`, and the batch's number. Leaves: what the sinks
were given, the events set aside, and the metrics of the batch.

The version of the subscriptions and the moment at which they are seen are pinned in the store
before anything is matched. A replay of the batch, after whatever crash, finds the pin, and finds
which of the tables have the batch already. What it does again gives the same rows.

In the mode `transitions`, events are updates of publications that `keeping` keeps, and the sinks
are given what began and what ceased to match.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

from tocsin.errors import PipelineError
from tocsin.spark import drift as schema_drift
from tocsin.spark import worker
from tocsin.spark.match_plan import match_pinned
from tocsin.spark.pipeline import sources, statistics
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.folders import open_folder
from tocsin.spark.pipeline.keeping import Keeper
from tocsin.spark.pipeline.lines import CODE, ORIGINAL, REASON, TEXT, parser
from tocsin.spark.pipeline.metrics import BatchMetrics, has_metrics, write_metrics
from tocsin.spark.pipeline.sinks import open_sinks
from tocsin.spark.pipeline.sources import ARRIVED, ORIGIN, Lines, Taken
from tocsin.spark.pipeline.tables import Batch, Table
from tocsin.spark.pipeline.validate import drift, quoted, validated
from tocsin.spark.worker import Moment
from tocsin.store.snapshot import StoreSnapshot
from tocsin.store.subscription_store import SubscriptionStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MARKS = (CODE, REASON, ORIGINAL)
_UNPIN_EVERY = 10
_BAD = "code string, reason string, original string, origin string"


class BatchRunner:
    """Runs micro-batches, one at a time."""

    def __init__(
        self, config: Config, spark: SparkSession, on_batch: Callable[[BatchMetrics], None]
    ) -> None:
        self.config = config
        self.spark = spark
        self.on_batch = on_batch
        self.store = SubscriptionStore(config.subscriptions)
        self.folder = open_folder(config.output, spark)
        self.sinks = open_sinks(config, spark)
        self.quarantine = Table(f"{config.output}/quarantine", spark)
        self.unmatched = Table(f"{config.output}/unmatched", spark)
        self.sampler = statistics.Sampler(config, self.folder)
        self.ids = self._choose_ids()
        is_text = self.ids == "string"
        self.keeper = Keeper(config, spark, is_text) if config.tracking else None
        self._drift: tuple[object, tuple[str, ...]] = (None, ())

    def _choose_ids(self) -> str:
        """Return the type of ids in the output: what it was before, or what the store has now."""
        snapshot = self.store.snapshot()
        entry = worker.open_matcher(Moment.of(snapshot, time.time()), snapshot=snapshot)
        self._check_types(entry.matcher.event_type)
        found = "integer" if snapshot.state.ids == "integers" else "string"
        self.folder.create("pipeline.json", json.dumps({"ids": found}).encode())
        said: dict[str, str] = json.loads(self.folder.read("pipeline.json") or b"{}")
        return said.get("ids", found)

    def _check_types(self, theirs: Any) -> None:
        """Refuse an event type that the subscriptions contradict."""
        ours = self.config.event_type
        for name, kind in ours.attributes.items() if ours else ():
            declared = theirs.kind_of(name) if theirs else None
            if declared is not None and declared is not kind:
                raise PipelineError(
                    f"event.attributes.{name} is {kind.value}, but the subscriptions in "
                    f"{self.config.subscriptions} were made for {declared.value}"
                )

    def run(self, frame: DataFrame, query: str, number: int) -> BatchMetrics | None:
        """Run one micro-batch; None when it was finished before."""
        if has_metrics(self.folder, query, number):
            return None
        started = time.time()
        clock = Stages()
        with clock.stage("pin"):
            pinned = self.store.pin(query, number)
            snapshot = self.store.snapshot(pinned.version)
            moment = Moment.of(snapshot, pinned.now)
            held = worker.open_matcher(moment, snapshot=snapshot)
        batch = Batch(query, number, pinned.version, pinned.now)
        with ExitStack() as cached:
            found = _Work(self, batch, snapshot, clock, cached).run(frame)
        finished = time.time()
        arrived = found.pop("arrived")
        metrics = BatchMetrics(
            query=query,
            batch=number,
            started=started,
            finished=finished,
            version=pinned.version,
            now=pinned.now,
            subscriptions=len(held.matcher),
            lag=None if arrived is None else max(0.0, finished - arrived),
            ms=clock.ms,
            **found,
        )
        write_metrics(self.folder, metrics)
        self._let_go(query, number)
        if self.keeper is not None:
            self.keeper.tidy(batch)
        self.on_batch(metrics)
        return metrics

    def _let_go(self, query: str, number: int) -> None:
        """Unpin versions that only batches used which will not be replayed any more."""
        if number % _UNPIN_EVERY == _UNPIN_EVERY - 1 and number >= self.config.retain:
            self.store.unpin(query, number + 1 - self.config.retain)

    def drift_of(
        self, schema: StructType, batch: Batch, snapshot: StoreSnapshot
    ) -> tuple[str, ...]:
        """Return what the columns of a batch silence, in words."""
        key = (schema.json(), batch.version)
        if self._drift[0] != key:
            moment = Moment.of(snapshot, batch.now)
            held = worker.open_matcher(moment, snapshot=snapshot)
            said = tuple(map(str, schema_drift.find_issues(schema, held.matcher)))
            self._drift = (key, said)
        return self._drift[1]


class Stages:
    """The milliseconds that stages took."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what is done inside towards a stage."""
        start = time.perf_counter()
        yield
        spent = 1000 * (time.perf_counter() - start)
        self.ms[name] = round(self.ms.get(name, 0.0) + spent, 1)


class _Work:
    """The steps of one batch. What they keep in Spark's cache is let go of at the end."""

    def __init__(
        self,
        runner: BatchRunner,
        batch: Batch,
        snapshot: StoreSnapshot,
        clock: Stages,
        cached: ExitStack,
    ) -> None:
        self.snapshot = snapshot
        self.runner = runner
        self.config = runner.config
        self.batch = batch
        self.clock = clock
        self.cached = cached
        self.said: tuple[str, ...] = ()

    def run(self, frame: DataFrame) -> dict[str, Any]:
        """Do all the steps; return the counts of the batch."""
        with self.clock.stage("read"):
            taken = sources.take(self.config, self.runner.spark, frame)
        if taken.is_empty and self.runner.keeper is None:
            return self._counts(0, 0, 0, None, taken.arrived)
        with self.clock.stage("parse"):
            parts, some_bad = self._parse(taken)
            events, n_events, n_bad, arrived = self._count(parts, some_bad)
        with self.clock.stage("quarantine"):
            n_bad += self._set_aside(parts if n_bad else None, taken)
        good = None if events is None else self._good(events, some_bad)
        n_unmatched: int | None = 0 if self.config.unmatched else None
        n_matches = 0
        tracked: dict[str, int] = {}
        if self.runner.keeper is not None:
            good = None if some_bad and n_bad == n_events else good
            tracked = self._track(self.runner.keeper, good)
            n_updates = tracked.pop("events")
            n_events = n_events or n_updates
            n_matches = tracked["entered"] + tracked["left"]
        elif good is not None:
            n_events, n_matches, n_unmatched = self._match(good, n_events)
        with self.clock.stage("statistics"):
            if good is not None:
                self.runner.sampler.add(good, n_events, self.batch)
        n_events += len(taken.unreadable)
        earliest = taken.arrived if arrived is None else arrived
        return {**self._counts(n_events, n_matches, n_bad, n_unmatched, earliest), **tracked}

    def _counts(
        self, events: int, matches: int, bad: int, unmatched: int | None, arrived: float | None
    ) -> dict[str, Any]:
        return {
            "events": events,
            "matches": matches,
            "quarantined": bad,
            "unmatched": unmatched,
            "arrived": arrived,
            "drift": self.said,
        }

    # Parse and validate.

    def _parse(self, taken: Taken) -> tuple[list[DataFrame], bool]:
        """Return frames of events, those that are none marked, and whether there may be such."""
        parts = [self._parse_lines(lines) for lines in taken.lines]
        some_bad = bool(parts)
        for frame in taken.frames:
            said = drift(self.config.event_type, dict(frame.dtypes))
            self._say(said.values())
            checked, may_be_bad = validated(frame, self.config.event_type, self.config.required)
            parts.append(checked)
            some_bad = some_bad or may_be_bad
        return parts, some_bad

    def _parse_lines(self, lines: Lines) -> DataFrame:
        from pyspark.sql.types import StructField, StructType

        form = lines.form
        missing = [
            name for name in form.event_type.attributes if form.columns and name not in form.columns
        ]
        self._say(f"column {name!r} is missing: absent in every event" for name in missing)
        typed = ", ".join(
            f"{quoted(name)} {_SQL[kind.value]}"
            for name, kind in form.event_type.attributes.items()
        )
        marks = ", ".join(f"{name} string" for name in _MARKS)
        carried = [
            StructField(each.name, each.dataType)
            for each in lines.frame.schema
            if each.name != TEXT
        ]
        schema = StructType([*_fields(typed), *carried, *_fields(marks)])
        return lines.frame.mapInArrow(parser(form), schema)

    def _say(self, said: Any) -> None:
        self.said = (*self.said, *(text for text in said if text not in self.said))

    def _count(
        self, parts: list[DataFrame], some_bad: bool
    ) -> tuple[DataFrame | None, int, int, float | None]:
        """Count events and bad ones where there may be some; the frame is kept for what follows."""
        from pyspark.sql import functions as f

        if not parts:
            return None, 0, 0, None
        events = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
        if not some_bad:
            return events, 0, 0, None
        events = self._keep(events)
        parts[:] = [events]
        wanted = [f.count(f.lit(1)), f.count(CODE)]
        if ARRIVED in events.columns:
            wanted.append(f.min(f.unix_millis(ARRIVED)))
        row = events.agg(*wanted).collect()[0]
        arrived = row[2] / 1000 if len(row) > 2 and row[2] is not None else None
        return events, row[0], row[1], arrived

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        self.cached.callback(kept.unpersist)
        return kept

    def _set_aside(self, parts: list[DataFrame] | None, taken: Taken) -> int:
        """Write what is no event to the quarantine; return how many files were not even read."""
        frames = []
        if parts:
            events = parts[0]
            origin = ORIGIN if ORIGIN in events.columns else "CAST(NULL AS string)"
            bad = events.where(f"{CODE} IS NOT NULL")
            frames.append(
                bad.selectExpr(
                    f"{CODE} AS code",
                    f"{REASON} AS reason",
                    f"{ORIGINAL} AS original",
                    f"{origin} AS origin",
                )
            )
        if taken.unreadable:
            rows = [("file", reason, None, path) for path, reason in taken.unreadable]
            frames.append(self.runner.spark.createDataFrame(rows, _BAD))
        if frames:
            whole = reduce(lambda a, b: a.unionByName(b), frames)
            self.runner.quarantine.write(whole, self.batch)
        return len(taken.unreadable)

    def _good(self, events: DataFrame, some_bad: bool) -> DataFrame:
        good = events.where(f"{CODE} IS NULL").drop(*_MARKS) if some_bad else events
        return good.drop(ARRIVED)

    # Match and deliver.

    def _match(self, good: DataFrame, n_events: int) -> tuple[int, int, int | None]:
        """Match events and hand notifications to the sinks; return what was counted."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        self._say(self.runner.drift_of(good.schema, self.batch, self.snapshot))
        seen = Observation()
        counting = not n_events
        is_there = self.runner.sinks[0].has(self.batch)
        if counting:
            good = good.observe(seen, f.count(f.lit(1)).alias("events"))
        notifications, unmatched = self._notifications(good)
        n_matches = n_unmatched = None
        if len(self.runner.sinks) > 1 or not _counts_rows(self.runner.sinks):
            notifications = self._keep(notifications)
            is_there = False
            with self.clock.stage("match"):  # all of it: a sink may look at the first rows only
                n_matches = notifications.count()
        for sink in self.runner.sinks:
            with self.clock.stage(sink.name if n_matches is not None else f"match+{sink.name}"):
                delivered = sink.write(notifications, self.batch)
                n_matches = delivered if n_matches is None else n_matches
        assert n_matches is not None
        if unmatched is not None:
            with self.clock.stage("unmatched"):
                n_unmatched = self.runner.unmatched.write(unmatched, self.batch).rows
        if counting:  # nothing was seen where the sink had the batch already
            n_events = good.count() if is_there else int(seen.get["events"])
        return n_events, n_matches, n_unmatched

    def _track(self, keeper: Keeper, good: DataFrame | None) -> dict[str, int]:
        """Update publications and hand transitions to the sinks; return what was counted."""
        if good is not None:
            good = good.drop(ORIGIN)
            self._say(self.runner.drift_of(good.schema, self.batch, self.snapshot))
        with self.clock.stage("transitions"):
            kept = keeper.step(good, self.batch)
        notifications = keeper.transitions(kept)
        for sink in self.runner.sinks:
            with self.clock.stage(sink.name):
                if notifications is not None:
                    sink.write(notifications, self.batch)
        return {
            "events": kept.events,
            "publications": kept.publications,
            "entered": kept.entered,
            "left": kept.left,
        }

    def _notifications(self, good: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        keep = self._kept(good)
        shape = "arrays" if self.config.unmatched else self.config.shape
        found = match_pinned(
            good,
            self.snapshot,
            self.batch.now,
            keep,
            shape,  # type: ignore[arg-type]
            ids=self.runner.ids,  # type: ignore[arg-type]
            placement=self.config.placement,  # type: ignore[arg-type]
        )
        if not self.config.unmatched:
            if shape == "arrays":
                found = found.where("size(subscriptions) > 0")
            return found, None
        found = self._keep(found)
        columns = [quoted(name) for name in keep]
        rows = found.selectExpr(*columns, "explode(subscriptions) AS subscription")
        return rows, found.where("size(subscriptions) = 0").selectExpr(*columns)

    def _kept(self, good: DataFrame) -> list[str]:
        wanted = self.config.keep
        names = [name for name in good.columns if name != ORIGIN]
        kept = names if wanted is None else [name for name in wanted if name in names]
        has_kafka = any(sink.kind == "kafka" for sink in self.config.sinks)
        return [*kept, ORIGIN] if has_kafka and ORIGIN in good.columns else kept


def _fields(ddl: str) -> list[Any]:
    """Return the fields that a text like `a string, b double` declares."""
    from pyspark.sql.types import StructType

    declared: Any = StructType.fromDDL(ddl)
    return list(declared.fields)


def _counts_rows(sinks: list[Any]) -> bool:
    return any(hasattr(sink, "table") for sink in sinks)


_SQL = {
    "integer": "bigint",
    "float": "double",
    "string": "string",
    "boolean": "boolean",
    "timestamp": "timestamp",
}
