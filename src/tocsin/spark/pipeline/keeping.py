"""The publications of a pipeline: kept from batch to batch, with what their updates brought about.

A folder beside the checkpoint's own::

    <query>-<batch>-<bucket>-<attempt>.arrow      the publications of a bucket, after the batch
    <query>-<batch>-<attempt>.parquet             transitions that one task found
    <query>-<batch>.json                          the manifest: which of them count

Enters: the events of a batch, each an update of the publication that its key names, and what was
kept of the batch before. Leaves: the files above; the transitions of the batch as a frame.

Publications and transitions of a batch count from one moment on, when its manifest is created,
which one attempt can do and no second one. So a batch that is replayed with a manifest finds its
transitions decided, and only hands them on to the sinks that lack them; one without a manifest is
done again from the publications of the batch before, which stay until later batches are finished.

Updates are packed into buckets by the hash of their key as in `spark.transition_plan`, and
`publications` updates each bucket. `ts.transitions` keeps buckets in Spark's state store, which
only a plan that is a stream from end to end can use. Here the tasks write them as files: a batch is
read, parsed and validated by plans of its own, after its version was pinned.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tocsin.errors import ArgumentError, PipelineError
from tocsin.spark import transition_plan, worker
from tocsin.spark.pipeline.batch import Batch
from tocsin.spark.pipeline.config import Config
from tocsin.spark.publications import Rules, State, step
from tocsin.spark.transition_plan import BLOB, BUCKET, PLACE
from tocsin.spark.worker import Moment
from tocsin.storage import disk
from tocsin.storage.pins import Pin
from tocsin.storage.place import Place, to_place
from tocsin.transitions import ENTER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = "publications"
FORMAT = 1
_KEPT = 3
"""Of so many of the last batches publications and transitions are kept."""
_TIDY_EVERY = 5
_REPORT = (
    "bucket int, state string, publications long, checksum long, events long, entered long, "
    "gone long, found string"
)
"""What a task says of its buckets; `found` names its file of transitions, in one row."""


class Bucket(NamedTuple):
    """What is kept of a bucket: its file, how many publications are in it, and its CRC-32.

    Files of earlier releases have no checksum.
    """

    name: str
    n: int
    checksum: int | None = None


@dataclass(frozen=True)
class Kept:
    """What counts of a batch: a file a bucket with its publications, and files of transitions."""

    query: str
    batch: int
    version: int
    now: float
    key: str
    buckets: int
    events: int = 0
    entered: int = 0
    left: int = 0
    states: Mapping[str, Bucket] = field(default_factory=dict)
    """By bucket: what is kept of it."""
    found: tuple[str, ...] = ()
    schema: str | None = None
    """The columns of transitions, as Spark writes them in JSON."""
    format: int = FORMAT

    @property
    def publications(self) -> int:
        """How many publications there are after the batch."""
        return sum(bucket.n for bucket in self.states.values())

    @property
    def files(self) -> set[str]:
        """The files that count."""
        return {*self.found, *(bucket.name for bucket in self.states.values())}


class Keeper:
    """Keeps the publications of a pipeline."""

    def __init__(self, config: Config, spark: SparkSession, is_text: bool) -> None:
        assert config.tracking is not None
        self.rules: Rules = config.tracking.rules
        self.buckets = config.tracking.buckets
        self.subscriptions = to_place(config.subscriptions)
        self.spark = spark
        self.is_text = is_text
        self.place = to_place(f"{config.checkpoint}/{FOLDER}")

    def step(self, events: DataFrame | None, batch: Batch) -> Kept:
        """Bring publications to what they are after a batch, unless that was done already."""
        found = self.kept(batch)
        if found is not None:
            return found
        before = self._before(batch)
        task = StepTask(self, batch, {} if before is None else before.states)
        rows = self._packed(events, batch).mapInArrow(task, _REPORT).collect()
        kept = Kept(
            batch.query,
            batch.number,
            batch.version,
            batch.now,
            self.rules.key,
            self.buckets,
            events=sum(row["events"] for row in rows),
            entered=sum(row["entered"] for row in rows),
            left=sum(row["gone"] for row in rows),
            states={
                str(row["bucket"]): Bucket(row["state"], row["publications"], row["checksum"])
                for row in rows
                if row["state"] is not None
            },
            found=tuple(row["found"] for row in rows if row["found"] is not None),
            schema=self._schema(events) or (before.schema if before else None),
        )
        try:
            self.place.commit_once(f"{batch.name}.json", from_kept(kept))
        except FileExistsError:  # another driver was faster
            return self._require(batch.query, batch.number)
        except OSError as error:
            reason = f"cannot be written: {error.strerror or error}"
            raise PipelineError(f"{self.place}: {reason}") from error
        return kept

    def transitions(self, kept: Kept) -> DataFrame | None:
        """Return the transitions of a batch: the key, the subscription, the kind.

        None where there has been no publication yet: nobody knows what keys are then.
        """
        from pyspark.sql.types import StructType

        if kept.schema is None:
            return None
        schema = StructType.fromJson(json.loads(kept.schema))
        if not kept.found:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema)
        reader = reader.option("parquet.page.verify-checksum.enabled", "true")
        return reader.parquet(*map(self.place.path_of, kept.found))

    def kept(self, batch: Batch) -> Kept | None:
        """Return what counts of a batch, or None where nothing does yet."""
        return self._read(batch.query, batch.number)

    def tidy(self, batch: Batch) -> None:
        """Remove, now and then, what the last batches do not need."""
        if batch.number % _TIDY_EVERY != _TIDY_EVERY - 1:
            return
        first = batch.number - _KEPT + 1
        needed: set[str] = set()
        for number in range(first, batch.number + 1):
            kept = self._read(batch.query, number)
            needed |= set() if kept is None else kept.files
        for name in self.place.names():
            of = _number_of(name, batch.query)
            if of is not None and of < first and name not in needed:
                self.place.remove(name)

    def _packed(self, events: DataFrame | None, batch: Batch) -> DataFrame:
        """Return updates by bucket; every bucket is there, if only for what has changed."""
        from pyspark.sql import functions as f

        empty = self.spark.range(0, self.buckets, 1, 1)
        packed = empty.selectExpr(
            f"CAST(id AS int) AS {BUCKET}", f"-1L AS {PLACE}", f"CAST('' AS binary) AS {BLOB}"
        )
        if events is not None:
            packed = self._updates(events, batch).unionAll(packed)
        n = min(self.buckets, self.spark.sparkContext.defaultParallelism)
        return packed.repartitionById(n, f.pmod(f.col(BUCKET), f.lit(n)).cast("int"))

    def _updates(self, events: DataFrame, batch: Batch) -> DataFrame:
        try:
            transition_plan.check_rules(events.schema, self.rules)
            moment = Moment.read(self.subscriptions, batch.version, batch.now)
            matcher = worker.open_matcher(moment).matcher
            names = transition_plan.needed(events.schema, matcher, self.rules)
        except ArgumentError as error:
            raise PipelineError(f"transitions: {error}") from None
        return transition_plan.pack(events, names, self.rules.key, self.buckets)

    def _schema(self, events: DataFrame | None) -> str | None:
        if events is None:
            return None
        return transition_plan.output_schema(events.schema, self.rules.key, self.is_text).json()

    def _before(self, batch: Batch) -> Kept | None:
        if batch.number == 0:
            return None
        before = self._require(batch.query, batch.number - 1)
        for name, was, now in (
            ("key", before.key, self.rules.key),
            ("buckets", before.buckets, self.buckets),
        ):
            if was != now:
                raise PipelineError(
                    f"transitions.{name} was {was!r} and is {now!r} now, but publications were "
                    "kept by it: change it back, or start with a new checkpoint"
                )
        return before

    def _require(self, query: str, number: int) -> Kept:
        found = self._read(query, number)
        if found is None:
            raise PipelineError(
                f"{self.place}: the publications of batch {number} are not there: a pipeline that "
                "tells of transitions needs a checkpoint of its own, from its first batch on"
            )
        return found

    def _read(self, query: str, number: int) -> Kept | None:
        name = f"{Batch(query, number).name}.json"
        try:
            return to_kept(self.place.read(name), self.place.path_of(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = f"cannot be read: {error.strerror or error}"
            raise PipelineError(f"{self.place}: {reason}") from error


def from_kept(kept: Kept) -> bytes:
    """Return what counts of a batch as a manifest, with a checksum of all that it says."""
    said = asdict(kept)
    said["states"] = {bucket: list(of) for bucket, of in kept.states.items()}
    return json.dumps({**said, "checksum": _checksum(said)}).encode()


def to_kept(content: bytes, path: str) -> Kept:
    """Return what a manifest says; those of earlier releases have no checksum."""
    try:
        values: dict[str, Any] = json.loads(content)
        checksum = values.pop("checksum", None)
        if checksum is not None and checksum != _checksum(values):
            raise PipelineError(f"{path} is damaged: its checksum is wrong")
        values["states"] = {bucket: Bucket(*of) for bucket, of in values["states"].items()}
        values["found"] = tuple(values["found"])
        kept = Kept(**values)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise PipelineError(f"{path} is damaged") from None
    if kept.format > FORMAT:
        raise PipelineError(f"{path}: written by a newer version (format {kept.format})")
    return kept


def _checksum(said: object) -> int:
    return zlib.crc32(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())


def _number_of(name: str, query: str) -> int | None:
    """Return the batch that a file belongs to, or None where it is of no batch of this query."""
    if not name.startswith(f"{query}-"):
        return None
    number = name[len(query) + 1 :].partition("-")[0].partition(".")[0]
    return int(number) if number.isdigit() else None


class StepTask:
    """What `mapInArrow` runs: steps the buckets of one partition on, and says what it wrote."""

    def __init__(self, keeper: Keeper, batch: Batch, before: Mapping[str, Bucket]) -> None:
        self.place = str(keeper.place)
        self.rules = keeper.rules
        self.is_text = keeper.is_text
        self.name = batch.name
        self.now = Moment.read(keeper.subscriptions, batch.version, batch.now)
        self.before = before

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Step all buckets of a partition on."""
        packed: dict[int, list[tuple[int, bytes]]] = {}
        for batch in batches:
            columns = [batch.column(name) for name in (BUCKET, PLACE, BLOB)]
            for bucket, at, blob in zip(*columns, strict=True):
                packed.setdefault(bucket.as_py(), []).append((at.as_py(), blob.as_buffer()))
        if not packed:
            return
        place = to_place(self.place)
        rows, tables = [], []
        for bucket in sorted(packed):
            row, found = self._step(place, bucket, transition_plan.unpacked(packed.pop(bucket)))
            rows.append(row)
            tables += [] if found is None else [found]
        if tables:
            rows[0]["found"] = self._write_found(place, pa.concat_tables(tables))
        worker.freeze()
        yield pa.RecordBatch.from_pylist(rows, _report_schema())

    def _step(
        self, place: Place, bucket: int, updates: pa.Table | None
    ) -> tuple[dict[str, Any], pa.Table | None]:
        """Step one bucket on; return what it is now, and its transitions."""
        old = self.before.get(str(bucket))
        state = None if old is None else read_state(place, old)
        subscriptions = transition_plan.subscriptions_of(self.now)
        pin = Pin(self.now.version, self.now.now)
        new, found = step(state, updates, pin, self.rules, subscriptions)
        table = found.to_table(self.is_text)
        kept = None
        if new is not None:
            kept = old if old and new is state else self._write_state(place, bucket, new)
        n_found, n_entered = (0, 0) if table is None else (len(table), _count(table, ENTER.value))
        row = {
            "bucket": bucket,
            "state": None if kept is None else kept.name,
            "publications": 0 if kept is None else kept.n,
            "checksum": None if kept is None else kept.checksum,
            "events": 0 if updates is None else len(updates),
            "entered": n_entered,
            "gone": n_found - n_entered,
        }
        return row, table

    def _write_state(self, place: Place, bucket: int, state: State) -> Bucket:
        name = f"{self.name}-{bucket:05d}-{uuid.uuid4().hex[:12]}.arrow"
        octets = state.to_bytes()
        place.put(name, lambda path: disk.write_file(path, [octets]))
        return Bucket(name, len(state.values), zlib.crc32(octets))

    def _write_found(self, place: Place, found: pa.Table) -> str:
        name = f"{self.name}-{uuid.uuid4().hex[:12]}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(found, sink, compression="zstd", write_page_checksum=True)
        octets = memoryview(sink.getvalue())
        place.put(name, lambda path: disk.write_file(path, [octets]))
        return name


def read_state(place: Place, bucket: Bucket) -> State:
    """Return the publications that were kept of a bucket."""
    path = place.path_of(bucket.name)
    try:
        octets = place.read(bucket.name)
        if bucket.checksum is not None and zlib.crc32(octets) != bucket.checksum:
            raise PipelineError(f"{path} is damaged: its checksum is wrong")
        return State.from_bytes(octets)
    except FileNotFoundError:
        raise PipelineError(f"{path} is missing: publications were kept in it") from None
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror or error}") from error
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"{path} is damaged: {error}") from error


def _count(table: pa.Table, kind: str) -> int:
    return int(pc.sum(pc.equal(table.column("kind"), kind)).as_py() or 0)


def _report_schema() -> pa.Schema:
    types = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
    pairs = (text.split() for text in _REPORT.split(", "))
    return pa.schema([(name, types[kind]) for name, kind in pairs])
