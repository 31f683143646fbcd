"""Notifications → records of a Kafka topic, in effect each once.

Enters: the notifications of a batch. Leaves: a record for each: the key is a column (by default the
subscription), the value is the row as JSON, the headers are its origin::

    tocsin-query, tocsin-batch, tocsin-version     the batch
    tocsin-event                                   topic/partition/offset, if events have them

Spark's Kafka sink uses no transactions: an interrupted batch leaves some of its records in the
topic, and a repeated task sends its records again. So

1. before the first record of a batch is sent, a *started* file with the time is created;
2. records are stored on the executors before any is sent, so that sending reads no shuffle: if
   one were lost, Spark would run the stage again and count attempts of its tasks from 0; a task
   that Spark repeats refuses to run, which fails the whole write;
3. a batch that is started but not *done* is compared with its records in the topic from that time
   on, which are found by their headers, and the difference of the multisets is sent.

This cannot exclude a producer of a driver or executor that was given up but still lives, and
delivers after the comparison of step 3. A consumer that must not see such a record twice drops a
second one with the same `tocsin-query`, `tocsin-batch`, `tocsin-event` and `subscription`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tocsin.errors import PipelineError
from tocsin.spark.columns import quoted
from tocsin.spark.pipeline.batch import ORIGIN, Batch
from tocsin.spark.pipeline.config import Sink
from tocsin.spark.pipeline.folders import open_folder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SLACK_MS = 60_000
"""The maximum lag of the executors' clocks behind the driver's."""
_ATTEMPTS = 3
_RECORD = "key string, value string, headers array<struct<key: string, value: binary>>"


class KafkaSink:
    """A topic of notifications."""

    def __init__(self, sink: Sink, output: str, spark: SparkSession) -> None:
        self.name = sink.name
        self.topic = sink.topic
        self.key = sink.key
        self.spark = spark
        self.options = {**sink.options, "kafka.bootstrap.servers": sink.servers}
        self.folder = open_folder(f"{output}/sinks/{sink.name}", spark)

    def has(self, batch: Batch) -> bool:
        """Return whether all records of a batch were sent."""
        return self.folder.read(f"done/{batch.name}.json") is not None

    def write(self, notifications: DataFrame, batch: Batch) -> None:
        """Send the records of a batch that were not sent yet."""
        if self.has(batch):
            return
        if self.key not in notifications.columns:
            columns = ", ".join(notifications.columns)
            raise PipelineError(
                f"sink {self.name!r}: key is {self.key!r}; the columns are {columns}"
            )
        records = self._records(notifications, batch)
        now_ms = int(time.time() * 1000)
        is_first = self.folder.create(f"started/{batch.name}.json", b"%d" % now_ms)
        for attempt in range(_ATTEMPTS):
            rest = records if is_first and not attempt else self._missing(records, batch)
            try:
                self._send(rest)
                break
            except Exception:
                if attempt == _ATTEMPTS - 1:
                    raise
        self.folder.create(f"done/{batch.name}.json", b"{}")

    def _records(self, notifications: DataFrame, batch: Batch) -> DataFrame:
        from pyspark.sql import functions as f

        columns = [quoted(name) for name in notifications.columns if name != ORIGIN]
        headers = {
            "tocsin-query": f.lit(batch.query),
            "tocsin-batch": f.lit(str(batch.number)),
            "tocsin-version": f.lit(str(batch.version)),
        }
        if ORIGIN in notifications.columns:
            headers["tocsin-event"] = f.col(ORIGIN)
        return notifications.select(
            f.col(quoted(self.key)).cast("string").alias("key"),
            f.to_json(f.struct(*columns)).alias("value"),
            f.array(*(_header(name, value) for name, value in headers.items())).alias("headers"),
        )

    def _send(self, records: DataFrame) -> None:
        writer = guarded(records).write.format("kafka").options(**self.options)
        writer.option("topic", self.topic).option("includeHeaders", "true").save()

    def _missing(self, records: DataFrame, batch: Batch) -> DataFrame:
        """Return the records of a batch that the topic lacks."""
        from pyspark.sql import functions as f

        started = self.folder.read(f"started/{batch.name}.json") or b"0"
        since = max(0, int(started) - _SLACK_MS)
        reader = self.spark.read.format("kafka").options(**self.options)
        reader = reader.option("subscribe", self.topic).option("includeHeaders", "true")
        reader = reader.option("startingTimestamp", since)
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
        sent = reader.load().select(
            f.col("key").cast("string"), f.col("value").cast("string"), f.col("headers")
        )
        ours = {"tocsin-query": batch.query, "tocsin-batch": str(batch.number)}
        for name, value in ours.items():
            sent = sent.where(f.array_contains("headers", _header(name, f.lit(value))))
        return records.exceptAll(sent)


def _header(name: str, value: Column) -> Column:
    from pyspark.sql import functions as f

    return f.struct(f.lit(name).alias("key"), f.encode(value, "UTF-8").alias("value"))


def guarded(records: DataFrame) -> DataFrame:
    """Return records such that no task that sends some of them runs twice.

    They are stored on the executors first. If a plan with a shuffle loses it, Spark runs stages
    again and counts attempts of their tasks from 0, as if nothing had been sent.
    """
    return records.localCheckpoint().mapInArrow(refuse_repeats(), _RECORD)


def refuse_repeats() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that passes batches through, and fails in a task that Spark repeats."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise RuntimeError("a task that sends records is not repeated: some may be sent")
        yield from batches

    return run
