"""The publications of a pipeline, from batch to batch, and the transitions of each batch.

A folder inside the checkpoint's own::

    <query>-<batch>.json                          the manifest of a batch
    <query>-<batch>-<bucket>-<attempt>.arrow      the publications of a bucket after the batch
    <query>-<batch>-<attempt>.parquet             transitions from one task
    <query>-<batch>-<attempt>/part-….parquet      both, where only Spark reaches the checkpoint

Enters: the events of a batch, each an update of the publication that its key names, and the
publications after the batch before. Leaves: the files above; a frame of the batch's transitions.

A batch takes effect when its manifest is committed, which one attempt can do. A replayed batch that
has a manifest only delivers its transitions to the sinks that lack them. One without a manifest
runs again from the publications of the batch before, whose files stay until later batches are done.

Updates are packed into buckets by the hash of their key, and `publications` brings each bucket up
to date, as for `tocsin.spark.transitions`. That one keeps buckets in Spark's state store, which
needs a plan that is a stream from end to end; a pipeline pins, parses and validates each batch by
plans of its own, so tasks write buckets as files. A checkpoint on a local disk is written by the
tasks themselves. Behind a URL, tasks have no file system: Spark reads the buckets and sends them to
the tasks, and writes what they return, with the Hadoop configuration that it has.
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
from tocsin.spark.hadoop import open_place
from tocsin.spark.pipeline.batch import Batch
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.folders import open_folder
from tocsin.spark.publications import Rules, State, step, to_bytes
from tocsin.spark.transition_plan import BLOB, BUCKET
from tocsin.spark.transition_plan import PLACE as POSITION
from tocsin.spark.worker import Moment
from tocsin.storage import disk
from tocsin.storage.pins import Pin
from tocsin.storage.place import Place, to_place
from tocsin.transitions import ENTER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = "publications"
FORMAT = 1
_RETAINED = 3
"""The number of recent batches whose publications and transitions are retained."""
_VACUUM_EVERY = 5
_STATE = -2
"""The position of a row that holds a bucket's publications, not updates."""
_REPORT = (
    "bucket int, state string, publications long, checksum long, events long, entered long, "
    "gone long, found string"
)
"""The report of a task: a row for each bucket; `found` names its file of transitions, once."""
_CONTENT = f"{_REPORT}, octets binary, transitions binary"
"""The report together with the publications and transitions, for Spark to write."""


class BucketFile(NamedTuple):
    """The publications of a bucket: where they are, their number, and their CRC-32.

    `name` is that of a file, or that of a folder and of a row in its files. Earlier releases wrote
    no checksum.
    """

    name: str
    n: int
    checksum: int | None = None


@dataclass(frozen=True)
class PublicationManifest:
    """The files and counts of one batch."""

    query: str
    batch: int
    version: int
    now: float
    key: str
    buckets: int
    events: int = 0
    entered: int = 0
    left: int = 0
    states: Mapping[str, BucketFile] = field(default_factory=dict)
    """The publications by bucket."""
    transition_files: tuple[str, ...] = ()
    """Files, or one folder, of transitions; `found` in the manifest's file."""
    schema: str | None = None
    """The columns of transitions, as Spark writes them in JSON."""
    format: int = FORMAT

    @property
    def publications(self) -> int:
        """The number of publications after the batch."""
        return sum(bucket.n for bucket in self.states.values())

    @property
    def files(self) -> set[str]:
        """The names of the files and folders that the batch needs."""
        names = {*self.transition_files, *(bucket.name for bucket in self.states.values())}
        return {name.partition("/")[0] for name in names}

    def to_json(self) -> bytes:
        """Return the content of the manifest's file, with a checksum."""
        values = asdict(self)
        values["found"] = values.pop("transition_files")
        values["states"] = {bucket: list(of) for bucket, of in self.states.items()}
        return json.dumps({**values, "checksum": _checksum(values)}).encode()

    @classmethod
    def from_json(cls, content: bytes, path: str) -> PublicationManifest:
        """Return the manifest in a file, which need not have a checksum; raise PipelineError."""
        try:
            values: dict[str, Any] = json.loads(content)
            checksum = values.pop("checksum", None)
            if checksum is not None and checksum != _checksum(values):
                raise PipelineError(f"{path} is damaged: its checksum is wrong")
            values["states"] = {name: BucketFile(*of) for name, of in values["states"].items()}
            values["transition_files"] = tuple(values.pop("found"))
            manifest = cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise PipelineError(f"{path} is damaged") from None
        if manifest.format > FORMAT:
            raise PipelineError(f"{path}: written by a newer version (format {manifest.format})")
        return manifest


def _checksum(values: object) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


class PublicationTable:
    """The publications of a pipeline."""

    def __init__(self, config: Config, spark: SparkSession, is_text: bool) -> None:
        assert config.tracking is not None
        self.rules: Rules = config.tracking.rules
        self.buckets = config.tracking.buckets
        self.subscriptions = open_place(config.subscriptions)
        self.spark = spark
        self.is_text = is_text
        self.folder = open_folder(f"{config.checkpoint}/{FOLDER}", spark)
        self.place = self.folder.place

    def step(self, events: DataFrame | None, batch: Batch) -> PublicationManifest:
        """Apply the events of a batch, unless that was done before; return its manifest."""
        committed = self.committed(batch)
        if committed is not None:
            return committed
        before = self._before(batch)
        states = {} if before is None else dict(before.states)
        task = StepTask(self, batch, states)
        rows = self._run(self._packed(events, batch, states), task, batch)
        manifest = PublicationManifest(
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
                str(row["bucket"]): BucketFile(row["state"], row["publications"], row["checksum"])
                for row in rows
                if row["state"] is not None
            },
            transition_files=tuple(
                sorted({row["found"] for row in rows if row["found"] is not None})
            ),
            schema=self._schema(events) or (before.schema if before else None),
        )
        if not self.folder.create(f"{batch.name}.json", manifest.to_json()):
            return self._require(batch.query, batch.number)  # another driver was faster
        return manifest

    def transitions(self, manifest: PublicationManifest) -> DataFrame | None:
        """Return the transitions of a batch: the key, the subscription, the kind.

        None if there has been no publication yet, so that the type of keys is unknown.
        """
        from pyspark.sql.types import StructType

        if manifest.schema is None:
            return None
        schema = StructType.fromJson(json.loads(manifest.schema))
        if not manifest.transition_files:
            return self.spark.createDataFrame([], schema)
        files = [name for name in manifest.transition_files if name.endswith(".parquet")]
        if files:
            reader = self.spark.read.schema(schema)
            reader = reader.option("parquet.page.verify-checksum.enabled", "true")
            return reader.parquet(*map(self.place.path_of, files))
        written = self._read_content(manifest.transition_files)
        blobs = written.where("transitions IS NOT NULL").select("transitions")
        return blobs.mapInArrow(transition_plan.unpack, schema)

    def committed(self, batch: Batch) -> PublicationManifest | None:
        """Return the manifest of a batch, or None if it is not committed."""
        return self._read(batch.query, batch.number)

    def vacuum(self, batch: Batch) -> None:
        """Remove files that recent batches do not need, once in several batches."""
        if batch.number % _VACUUM_EVERY != _VACUUM_EVERY - 1:
            return
        first = batch.number - _RETAINED + 1
        needed: set[str] = set()
        for number in range(first, batch.number + 1):
            manifest = self._read(batch.query, number)
            needed |= set() if manifest is None else manifest.files
        for name in self.folder.names():
            number_ = _batch_of(name, batch.query)
            if number_ is not None and number_ < first and name not in needed:
                self.folder.remove(name)

    def _run(self, packed: DataFrame, task: StepTask, batch: Batch) -> list[Any]:
        """Run the tasks of a batch; return their reports."""
        if self.place.is_local:
            return packed.mapInArrow(task, _REPORT).collect()
        attempt = f"{batch.name}-{uuid.uuid4().hex[:12]}"
        packed.mapInArrow(task, _CONTENT).write.parquet(self.place.path_of(attempt))
        rows = self._read_content([attempt]).drop("octets", "transitions").collect()
        return [_with_folder(row.asDict(), attempt) for row in rows]

    def _read_content(self, folders: Iterable[str]) -> DataFrame:
        """Return the rows that Spark wrote to some folders."""
        reader = self.spark.read.schema(_CONTENT)
        reader = reader.option("parquet.page.verify-checksum.enabled", "true")
        return reader.parquet(*(self.place.path_of(name) for name in sorted(folders)))

    def _packed(
        self, events: DataFrame | None, batch: Batch, states: Mapping[str, BucketFile]
    ) -> DataFrame:
        """Return updates by bucket, with at least one row for each bucket."""
        from pyspark.sql import functions as f

        empty = self.spark.range(0, self.buckets, 1, 1)
        packed = empty.selectExpr(
            f"CAST(id AS int) AS {BUCKET}", f"-1L AS {POSITION}", f"CAST('' AS binary) AS {BLOB}"
        )
        if events is not None:
            packed = self._updates(events, batch).unionAll(packed)
        if not self.place.is_local:
            for frame in self._states(states):
                packed = packed.unionAll(frame)
        n = min(self.buckets, self.spark.sparkContext.defaultParallelism)
        return packed.repartitionById(n, f.pmod(f.col(BUCKET), f.lit(n)).cast("int"))

    def _states(self, states: Mapping[str, BucketFile]) -> Iterator[DataFrame]:
        """Yield the publications of buckets as Spark reads them, to be sent to the tasks."""
        from pyspark.sql import functions as f

        position = f"{_STATE}L AS {POSITION}"
        names = [bucket.name for bucket in states.values()]
        files = [name for name in names if "/" not in name]
        if files:  # earlier releases wrote them through fsspec
            whole = self.spark.read.format("binaryFile").load([*map(self.place.path_of, files)])
            bucket = r"CAST(regexp_extract(path, '-([0-9]{5,})-[0-9a-f]+[.]arrow$', 1) AS int)"
            yield whole.selectExpr(f"{bucket} AS {BUCKET}", position, f"content AS {BLOB}")
        pairs = [name.split("/") for name in names if "/" in name]
        if pairs:
            rows = self._read_content({folder for folder, _ in pairs})
            rows = rows.where(f.col("state").isin([name for _, name in pairs]))
            yield rows.selectExpr(f"bucket AS {BUCKET}", position, f"octets AS {BLOB}")

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

    def _before(self, batch: Batch) -> PublicationManifest | None:
        """Return the manifest of the batch before; raise PipelineError if the rules changed."""
        if batch.number == 0:
            return None
        before = self._require(batch.query, batch.number - 1)
        for name, was, now in (
            ("key", before.key, self.rules.key),
            ("buckets", before.buckets, self.buckets),
        ):
            if was != now:
                raise PipelineError(
                    f"transitions.{name} was {was!r} and is {now!r} now, but publications are "
                    "stored by it: change it back, or start with a new checkpoint"
                )
        return before

    def _require(self, query: str, number: int) -> PublicationManifest:
        manifest = self._read(query, number)
        if manifest is None:
            raise PipelineError(
                f"{self.place}: the publications of batch {number} are missing: a pipeline in the "
                "mode 'transitions' needs a checkpoint of its own, from its first batch on"
            )
        return manifest

    def _read(self, query: str, number: int) -> PublicationManifest | None:
        name = f"{Batch(query, number).name}.json"
        content = self.folder.read(name)
        if content is None:
            return None
        return PublicationManifest.from_json(content, self.place.path_of(name))


def _with_folder(row: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return a report that names its rows by the folder that Spark wrote them to."""
    state = row["state"]
    if state is not None and "/" not in state and not state.endswith(".arrow"):
        row["state"] = f"{folder}/{state}"
    if row["found"] is not None:
        row["found"] = folder
    return row


def _batch_of(name: str, query: str) -> int | None:
    """Return the number of the batch of this query that a file belongs to, or None."""
    if not name.startswith(f"{query}-"):
        return None
    number = name[len(query) + 1 :].partition("-")[0].partition(".")[0]
    return int(number) if number.isdigit() else None


class StepTask:
    """The task that `mapInArrow` runs: it applies updates to the buckets of one partition.

    `folder` is the place where it reads and writes buckets; None if Spark does that for it.
    """

    def __init__(
        self, table: PublicationTable, batch: Batch, before: Mapping[str, BucketFile]
    ) -> None:
        self.folder = str(table.place) if table.place.is_local else None
        self.rules = table.rules
        self.is_text = table.is_text
        self.name = batch.name
        self.now = Moment.read(table.subscriptions, batch.version, batch.now)
        self.before = before

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply the updates of a partition; report each of its buckets."""
        updates: dict[int, list[tuple[int, bytes]]] = {}
        states: dict[int, bytes] = {}
        for batch in batches:
            columns = [batch.column(name) for name in (BUCKET, POSITION, BLOB)]
            for bucket, position, blob in zip(*columns, strict=True):
                if position.as_py() == _STATE:
                    states[bucket.as_py()] = blob.as_py()
                else:
                    update = (position.as_py(), blob.as_buffer())
                    updates.setdefault(bucket.as_py(), []).append(update)
        if not updates:
            return
        place = None if self.folder is None else to_place(self.folder)
        rows, tables = [], []
        for bucket in sorted(updates):
            table = transition_plan.unpacked(updates.pop(bucket))
            row, transitions = self._step(place, bucket, table, states.pop(bucket, None))
            rows.append(row)
            tables += [] if transitions is None else [transitions]
        if tables:
            rows[0].update(self._write_transitions(place, pa.concat_tables(tables)))
        worker.freeze()
        yield pa.RecordBatch.from_pylist(rows, _schema_of(_CONTENT if place is None else _REPORT))

    def _step(
        self, place: Place | None, bucket: int, updates: pa.Table | None, octets: bytes | None
    ) -> tuple[dict[str, Any], pa.Table | None]:
        """Apply the updates of one bucket; return the report and the transitions."""
        old = self.before.get(str(bucket))
        state = None if old is None else self._read_state(place, old, octets)
        subscriptions = transition_plan.subscriptions_of(self.now)
        pin = Pin(self.now.version, self.now.now)
        new, changes = step(state, updates, pin, self.rules, subscriptions)
        table = changes.to_table(self.is_text)
        n_transitions, n_entered = (
            (0, 0) if table is None else (len(table), _count(table, ENTER.value))
        )
        row: dict[str, Any] = {
            "bucket": bucket,
            "publications": 0,
            "events": 0 if updates is None else len(updates),
            "entered": n_entered,
            "gone": n_transitions - n_entered,
        }
        if new is not None and new is state and old is not None:
            row |= {"state": old.name, "publications": old.n, "checksum": old.checksum}
        elif new is not None:
            row |= self._write_state(place, bucket, new)
        return row, table

    def _read_state(self, place: Place | None, bucket: BucketFile, octets: bytes | None) -> State:
        if place is not None:
            return read_state(place, bucket)
        if octets is None:
            raise PipelineError(f"{bucket.name} is missing: it has publications of a bucket")
        return _to_state(octets, bucket, bucket.name)

    def _write_state(self, place: Place | None, bucket: int, state: State) -> dict[str, Any]:
        """Write the publications of a bucket; return their part of the report."""
        name = f"{self.name}-{bucket:05d}-{uuid.uuid4().hex[:12]}"
        octets = state.to_bytes()
        row = {"publications": len(state.values), "checksum": zlib.crc32(octets)}
        if place is None:
            return {**row, "state": name, "octets": octets}
        name = f"{name}.arrow"
        place.put(name, lambda path: disk.write_file(path, [octets]))
        return {**row, "state": name}

    def _write_transitions(self, place: Place | None, transitions: pa.Table) -> dict[str, Any]:
        """Write the transitions of a task; return their part of the report."""
        name = f"{self.name}-{uuid.uuid4().hex[:12]}.parquet"
        if place is None:
            return {"found": name, "transitions": to_bytes(transitions)}
        sink = pa.BufferOutputStream()
        pq.write_table(transitions, sink, compression="zstd", write_page_checksum=True)
        octets = memoryview(sink.getvalue())
        place.put(name, lambda path: disk.write_file(path, [octets]))
        return {"found": name}


def read_state(place: Place, bucket: BucketFile) -> State:
    """Return the publications in the file of a bucket; raise PipelineError."""
    path = place.path_of(bucket.name)
    try:
        return _to_state(place.read(bucket.name), bucket, path)
    except FileNotFoundError:
        raise PipelineError(f"{path} is missing: it has publications of a bucket") from None
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror or error}") from error


def _to_state(octets: bytes, bucket: BucketFile, path: str) -> State:
    if bucket.checksum is not None and zlib.crc32(octets) != bucket.checksum:
        raise PipelineError(f"{path} is damaged: its checksum is wrong")
    try:
        return State.from_bytes(octets)
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"{path} is damaged: {error}") from error


def _count(table: pa.Table, kind: str) -> int:
    return int(pc.sum(pc.equal(table.column("kind"), kind)).as_py() or 0)


def _schema_of(ddl: str) -> pa.Schema:
    types = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "binary": pa.binary()}
    pairs = (text.split() for text in ddl.split(", "))
    return pa.schema([(name, types[kind]) for name, kind in pairs])
