"""Where events come from: a stream whose micro-batches become frames of events or of lines.

Enters: the configured source. Leaves: `stream`, what Spark's query reads, and for each micro-batch
a `Taken`: frames of lines (to be parsed) or of typed columns, and what could not even be read.

*Files* are streamed by name: Spark's log of a query says which files a batch holds, and the batch
reads them then. So a file whose columns changed stands beside others that did not, and one that is
no Parquet file at all is set aside by its name. *Kafka* gives the value of each record as a line.
*Generated* events depend on the seed and their number alone, whatever the number of partitions.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from tocsin.errors import PipelineError
from tocsin.spark.pipeline.config import FILE_FORMATS, Config, Source
from tocsin.spark.pipeline.folders import to_local
from tocsin.spark.pipeline.lines import TEXT, LineFormat
from tocsin.workloads import workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN, ARRIVED = "_tocsin_origin", "_tocsin_arrived"
_FILES = "path string, modificationTime timestamp, length bigint, content binary"
_MAX_HEADER = 1 << 20


@dataclass(frozen=True)
class Lines:
    """Some lines, and how they are to be read."""

    frame: DataFrame
    form: LineFormat


@dataclass(frozen=True)
class Taken:
    """What a micro-batch holds."""

    lines: list[Lines] = field(default_factory=list)
    frames: list[DataFrame] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    arrived: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all."""
        return not (self.lines or self.frames or self.unreadable)


def stream(config: Config, spark: SparkSession) -> DataFrame:
    """Return the streaming frame that the query runs over."""
    source = config.source
    if source.format in FILE_FORMATS:
        return _file_names(source, spark)
    if source.format == "kafka":
        return _kafka(source, spark)
    if source.format == "generated":
        return _blocks(source, spark)
    raise PipelineError("source.format is 'frame': give the DataFrame to Pipeline(events=...)")


def take(config: Config, spark: SparkSession, frame: DataFrame) -> Taken:
    """Return the events of a micro-batch of `stream`, or of a frame that the caller gave."""
    source = config.source
    if source.format in FILE_FORMATS:
        return _take_files(config, spark, frame)
    if source.format == "kafka":
        assert config.event_type is not None
        return Taken(lines=[Lines(frame, LineFormat(config.event_type, config.required))])
    if source.format == "generated":
        return Taken(frames=[generate(source, frame)])
    return Taken(frames=[frame])


# Kafka.


def _kafka(source: Source, spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("kafka").options(**source.options)
    reader = reader.option("kafka.bootstrap.servers", source.servers)
    reader = reader.option("subscribe", source.topic).option("startingOffsets", source.start)
    if source.batch_events:
        reader = reader.option("maxOffsetsPerTrigger", source.batch_events)
    return reader.load().selectExpr(
        f"value AS {TEXT}",
        f"concat_ws('/', topic, partition, offset) AS {ORIGIN}",
        f"timestamp AS {ARRIVED}",
    )


# Generated events.


def _blocks(source: Source, spark: SparkSession) -> DataFrame:
    """Stream the numbers of blocks of events, a few each batch."""
    reader = spark.readStream.format("rate-micro-batch")
    reader = reader.option("rowsPerBatch", source.blocks).option("numPartitions", source.blocks)
    return reader.load().selectExpr("value AS block")


def generate(source: Source, blocks: DataFrame) -> DataFrame:
    """Turn numbers of blocks into the events of these blocks."""
    kind = workload(source.workload)
    n = max(1, source.batch_events // source.blocks)
    schema = ", ".join(
        f"`{name}` {_SPARK_TYPES[kind.value]}" for name, kind in kind.event_type.attributes.items()
    )
    make = _generator(source.workload, n, source.seed, source.events)
    return blocks.mapInArrow(make, f"{schema}, event bigint")


_SPARK_TYPES = {"integer": "bigint", "float": "double", "string": "string", "boolean": "boolean"}


def _generator(
    name: str, n: int, seed: int, total: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kind = workload(name)
        for batch in batches:
            for block in batch.column(0).to_pylist():
                size = n if not total else max(0, min(n, total - block * n))
                events = kind.events(size, seed, block * n)
                numbers = pa.array(range(block * n, block * n + size), pa.int64())
                yield from events.append_column("event", numbers).to_batches()

    return run


# Files.


def _file_names(source: Source, spark: SparkSession) -> DataFrame:
    local = to_local(source.path)
    if local is not None and not local.is_dir():
        raise PipelineError(f"source.path: there is no folder {source.path}")
    reader = spark.readStream.format("binaryFile").schema(_FILES)
    options = {"recursiveFileLookup": "true", **source.options}
    reader = reader.option("maxFilesPerTrigger", source.batch_files).options(**options)
    # Only what is selected here is read: the content is not.
    return reader.load(source.path).select("path", "modificationTime")


def _take_files(config: Config, spark: SparkSession, names: DataFrame) -> Taken:
    rows = names.collect()
    if not rows:
        return Taken()
    paths = sorted(row["path"] for row in rows)
    oldest = min(row["modificationTime"] for row in rows)
    arrived = oldest.replace(tzinfo=oldest.tzinfo or _local_zone()).timestamp()
    if config.source.format == "parquet":
        return _take_parquet(spark, paths, arrived)
    assert config.event_type is not None
    if config.source.format == "json":
        form = LineFormat(config.event_type, config.required)
        return Taken(lines=[Lines(_read_lines(spark, paths), form)], arrived=arrived)
    return _take_csv(config, spark, paths, arrived)


def _local_zone() -> dt.tzinfo | None:
    """Spark hands out timestamps in the zone of the process, without saying so."""
    return dt.datetime.now().astimezone().tzinfo


def _read_lines(spark: SparkSession, paths: list[str], header: str | None = None) -> DataFrame:
    lines = spark.read.text(paths)
    kept = lines.where("trim(value) <> ''")
    if header is not None:
        kept = kept.where(kept["value"] != header)
    return kept.selectExpr(f"CAST(value AS binary) AS {TEXT}", f"_metadata.file_path AS {ORIGIN}")


def _take_csv(config: Config, spark: SparkSession, paths: list[str], arrived: float) -> Taken:
    source = config.source
    assert config.event_type is not None
    if source.columns:
        columns = source.columns
        form = LineFormat(config.event_type, config.required, columns, source.delimiter)
        return Taken(lines=[Lines(_read_lines(spark, paths), form)], arrived=arrived)
    by_header: dict[str, list[str]] = {}
    for path in paths:
        by_header.setdefault(_first_line(spark, path), []).append(path)
    taken = Taken(arrived=arrived)
    for header, files in by_header.items():
        names = tuple(name.strip().strip('"') for name in header.split(source.delimiter))
        if not header.strip() or "" in names or len(set(names)) < len(names):
            reason = f"the first line must name the columns, each once; it is {header[:100]!r}"
            taken.unreadable.extend((file, reason) for file in files)
            continue
        form = LineFormat(config.event_type, config.required, names, source.delimiter)
        taken.lines.append(Lines(_read_lines(spark, files, header), form))
    return taken


def _first_line(spark: SparkSession, path: str) -> str:
    local = to_local(path)
    if local is not None:
        try:
            with local.open("rb") as file:
                return file.readline(_MAX_HEADER).decode(errors="replace").rstrip("\r\n")
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror}") from None
    first = spark.read.text(path).limit(1).collect()
    return str(first[0]["value"]) if first else ""


def _take_parquet(spark: SparkSession, paths: list[str], arrived: float) -> Taken:
    """Read Parquet files, those of the same columns together."""
    import pyarrow.parquet as pq

    taken = Taken(arrived=arrived)
    groups: dict[str, list[str]] = {}
    for path in paths:
        local = to_local(path)
        if local is None:  # a footer costs a job each there; Spark merges what it can
            groups.setdefault("", []).append(path)
            continue
        try:
            schema = pq.read_schema(local).remove_metadata()
        except FileNotFoundError:
            raise PipelineError(f"{path} has gone before it was read") from None
        except (pa.ArrowException, OSError) as error:
            taken.unreadable.append((path, f"not a Parquet file: {str(error).splitlines()[0]}"))
            continue
        groups.setdefault(str(schema), []).append(path)
    for files in groups.values():
        frame = spark.read.option("mergeSchema", "true").parquet(*files)
        taken.frames.append(frame)
    return taken
