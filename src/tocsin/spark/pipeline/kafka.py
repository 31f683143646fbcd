"""Notifications → records of a Kafka topic, in effect each once.

Enters: the notifications of a batch. Leaves: a record for each: the key is a column (by default the
subscription), the value the whole row as JSON, the headers say where it comes from::

    tocsin-query, tocsin-batch, tocsin-version     the batch
    tocsin-event                                   topic/partition/offset, where events have them

Spark's Kafka sink takes part in no transactions: a batch that was cut off leaves some of its
records in the topic, and a repeated task sends its records again. So

1. before the first record of a batch is sent, a *started* file with the time is created;
2. records are kept on the executors before any is sent, so that sending reads no shuffle, whose
   loss would make Spark run the stage again, its tasks counted from the first attempt; a task that
   Spark repeats refuses to run, and with it the whole write fails;
3. whoever finds a batch started but not *done* reads what of it is in the topic already, by the
   headers, from that time on, and sends the rest: the difference of the two as multisets.

What this cannot rule out: a producer of a driver or executor that was given up but still lives, and
delivers after step 3 has looked. A consumer who must not see even that drops a second record with
the same `tocsin-query`, `tocsin-batch`, `tocsin-event` and `subscription`.
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
"""How far the clocks of executors may lag behind the driver's."""
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
        """Whether all records of a batch were sent."""
        return self.folder.read(f"done/{batch.name}.json") is not None

    def write(self, notifications: DataFrame, batch: Batch) -> None:
        """Send a batch, or what of it has not been sent yet."""
        if self.has(batch):
            return
        if self.key not in notifications.columns:
            columns = ", ".join(notifications.columns)
            raise PipelineError(f"sink {self.name!r}: key is {self.key!r}; there are {columns}")
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
        """Return the records of a batch that are not in the topic yet."""
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

    They are kept on the executors first. A plan with a shuffle would be run again by stages when
    the shuffle is lost, its tasks counted from the first attempt, as if nothing had been sent.
    """
    return records.localCheckpoint().mapInArrow(refuse_repeats(), _RECORD)


def refuse_repeats() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step that hands batches on, and fails in a task that Spark runs once more."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise RuntimeError("a task that sends records is not repeated: some may be sent")
        yield from batches

    return run
