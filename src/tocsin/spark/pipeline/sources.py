"""Sources: the formats from which a stream of events is read.

Enters: the configured source. Leaves: `stream`, the frame of Spark's query, and for each of its
micro-batches frames of lines, which are to be parsed, or of typed columns, and unreadable files.

*Files* are streamed by name: Spark's log of the query says which files a batch has, and the batch
reads them itself. So files with different columns can be in one batch, and one that is not a
Parquet file is quarantined by its name. *Kafka* gives the value of each record as a line.
*Generated* events depend on the seed and their number alone, on any number of partitions.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tocsin.errors import PipelineError
from tocsin.spark.pipeline.batch import ARRIVED, ORIGIN, Frames, Lines
from tocsin.spark.pipeline.config import FILE_FORMATS, Config, Source
from tocsin.spark.pipeline.folders import to_local
from tocsin.spark.pipeline.lines import TEXT, LineFormat
from tocsin.workloads import workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = "path string, modificationTime timestamp, length bigint, content binary"
_MAX_HEADER = 1 << 20


def stream(config: Config, spark: SparkSession) -> DataFrame:
    """Return the streaming frame that the query runs over."""
    source = config.source
    if source.format in FILE_FORMATS:
        return _file_names(source, spark)
    if source.format == "kafka":
        return _kafka(source, spark)
    if source.format == "generated":
        return _blocks(source, spark)
    raise PipelineError("source.format is 'frame': pass the DataFrame as Pipeline(events=...)")


def read(config: Config, spark: SparkSession, frames: Frames) -> Frames:
    """Return the lines or events of a micro-batch of `stream`, or of the caller's frame."""
    source = config.source
    if source.format in FILE_FORMATS:
        return _read_files(config, spark, frames)
    if source.format == "kafka":
        assert config.event_type is not None
        lines = Lines(frames.source, LineFormat(config.event_type, config.required))
        return replace(frames, lines=(lines,))
    if source.format == "generated":
        return replace(frames, typed=(generate(source, frames.source),))
    return replace(frames, typed=(frames.source,))


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
    """Return a stream of the numbers of blocks of events, a few for each batch."""
    reader = spark.readStream.format("rate-micro-batch")
    reader = reader.option("rowsPerBatch", source.blocks).option("numPartitions", source.blocks)
    return reader.load().selectExpr("value AS block")


def generate(source: Source, blocks: DataFrame) -> DataFrame:
    """Return the events of blocks."""
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


def _read_files(config: Config, spark: SparkSession, frames: Frames) -> Frames:
    rows = frames.source.collect()
    if not rows:
        return frames
    paths = sorted(row["path"] for row in rows)
    oldest = min(row["modificationTime"] for row in rows)
    arrived = oldest.replace(tzinfo=oldest.tzinfo or _local_zone()).timestamp()
    frames = replace(frames, arrived=arrived)
    if config.source.format == "parquet":
        return _read_parquet(spark, paths, frames)
    assert config.event_type is not None
    if config.source.format == "json":
        form = LineFormat(config.event_type, config.required)
        return replace(frames, lines=(Lines(_read_lines(spark, paths), form),))
    return _read_csv(config, spark, paths, frames)


def _local_zone() -> dt.tzinfo | None:
    """Return the zone of the timestamps that Spark collects, which do not name it."""
    return dt.datetime.now().astimezone().tzinfo


def _read_lines(spark: SparkSession, paths: list[str], header: str | None = None) -> DataFrame:
    lines = spark.read.text(paths)
    lines = lines.where("trim(value) <> ''")
    if header is not None:
        lines = lines.where(lines["value"] != header)
    return lines.selectExpr(f"CAST(value AS binary) AS {TEXT}", f"_metadata.file_path AS {ORIGIN}")


def _read_csv(config: Config, spark: SparkSession, paths: list[str], frames: Frames) -> Frames:
    source = config.source
    assert config.event_type is not None
    if source.columns:
        columns = source.columns
        form = LineFormat(config.event_type, config.required, columns, source.delimiter)
        return replace(frames, lines=(Lines(_read_lines(spark, paths), form),))
    by_header: dict[str, list[str]] = {}
    for path in paths:
        by_header.setdefault(_first_line(spark, path), []).append(path)
    lines: list[Lines] = []
    unreadable: list[tuple[str, str]] = []
    for header, files in by_header.items():
        names = tuple(name.strip().strip('"') for name in header.split(source.delimiter))
        if not header.strip() or "" in names or len(set(names)) < len(names):
            reason = f"the first line must name the columns, each once; it is {header[:100]!r}"
            unreadable.extend((file, reason) for file in files)
            continue
        form = LineFormat(config.event_type, config.required, names, source.delimiter)
        lines.append(Lines(_read_lines(spark, files, header), form))
    return replace(frames, lines=tuple(lines), unreadable=tuple(unreadable))


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


def _read_parquet(spark: SparkSession, paths: list[str], frames: Frames) -> Frames:
    """Read Parquet files, those with the same columns together."""
    import pyarrow.parquet as pq

    unreadable: list[tuple[str, str]] = []
    groups: dict[str, list[str]] = {}
    for path in paths:
        local = to_local(path)
        if local is None:  # each footer would cost a job; Spark merges compatible columns
            groups.setdefault("", []).append(path)
            continue
        try:
            schema = pq.read_schema(local).remove_metadata()
        except FileNotFoundError:
            raise PipelineError(f"{path} was removed before it was read") from None
        except (pa.ArrowException, OSError) as error:
            unreadable.append((path, f"not a Parquet file: {str(error).splitlines()[0]}"))
            continue
        groups.setdefault(str(schema), []).append(path)
    reader = spark.read.option("mergeSchema", "true")
    typed = tuple(reader.parquet(*files) for files in groups.values())
    return replace(frames, typed=typed, unreadable=tuple(unreadable))
