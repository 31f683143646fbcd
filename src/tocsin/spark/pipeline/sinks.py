"""Sinks: the destinations of notifications, each batch once.

Enters: the notifications of a batch, and the batch. Leaves: rows in a table, records in a topic, or
text on the terminal, and their number.

- *Parquet*: a table with a manifest for each batch (`tables`).
- *Delta*: Delta Lake's own writer, which ignores a second batch of the same number and query.
- *Kafka*: see `kafka`.
- *Console*: the first rows. A replayed batch is shown again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tocsin.errors import PipelineError
from tocsin.spark.pipeline.batch import Batch
from tocsin.spark.pipeline.config import Config, Sink
from tocsin.spark.pipeline.kafka import KafkaSink
from tocsin.spark.pipeline.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class BatchSink(Protocol):
    """Takes the notifications of a batch, unless it has the batch already."""

    name: str

    def has(self, batch: Batch) -> bool:
        """Return whether a batch was delivered already, as far as that is known."""

    def write(self, notifications: DataFrame, batch: Batch) -> int | None:
        """Deliver a batch; return the number of its notifications, if known."""


def open_sinks(config: Config, spark: SparkSession) -> list[BatchSink]:
    """Return the configured sinks."""
    return [_open(sink, config, spark) for sink in config.sinks]


def _open(sink: Sink, config: Config, spark: SparkSession) -> BatchSink:
    if sink.kind == "parquet":
        return ParquetSink(sink, spark)
    if sink.kind == "delta":
        return DeltaSink(sink, spark)
    if sink.kind == "kafka":
        return KafkaSink(sink, config.output, spark)
    return ConsoleSink(sink)


class ParquetSink:
    """Parquet files under manifests."""

    def __init__(self, sink: Sink, spark: SparkSession) -> None:
        self.name = sink.name
        self.options = dict(sink.options)
        self.table = Table(sink.path, spark)

    def has(self, batch: Batch) -> bool:
        """Return whether a batch has its manifest."""
        return self.table.committed(batch) is not None

    def write(self, notifications: DataFrame, batch: Batch) -> int:
        """Write a batch, unless it was written already."""
        return self.table.write(notifications, batch, self.options).rows


class DeltaSink:
    """A Delta table. Delta remembers the last batch of each query."""

    def __init__(self, sink: Sink, spark: SparkSession) -> None:
        self.name = sink.name
        self.path = sink.path
        self.options = dict(sink.options)
        if not has_delta(spark):
            raise PipelineError(
                "sinks.kind is 'delta', but Spark has no Delta Lake: add its package under "
                'spark.conf, such as "spark.jars.packages" = "io.delta:delta-spark_2.13:VERSION"'
            )

    def has(self, batch: Batch) -> bool:
        """Return False: only Delta knows."""
        return False

    def write(self, notifications: DataFrame, batch: Batch) -> None:
        """Append a batch; Delta drops one that it has already."""
        writer = notifications.write.format("delta").mode("append").options(**self.options)
        writer = writer.option("txnAppId", batch.query).option("txnVersion", batch.number)
        writer.save(self.path)


def has_delta(spark: SparkSession) -> bool:
    """Return whether the session can write Delta tables."""
    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(
            "io.delta.sql.DeltaSparkSessionExtension"
        )
    except Exception:
        return False
    return True


class ConsoleSink:
    """The first rows of each batch as a table on standard output."""

    def __init__(self, sink: Sink) -> None:
        self.name = sink.name
        self.rows = sink.rows

    def has(self, batch: Batch) -> bool:
        """Return False: the console keeps nothing."""
        return False

    def write(self, notifications: DataFrame, batch: Batch) -> None:
        """Show the first rows of a batch."""
        import sys

        text = notifications._show_string(self.rows, truncate=40)  # type: ignore[operator]
        sys.stdout.write(f"batch {batch.number}, version {batch.version}\n{text}\n")
        sys.stdout.flush()
