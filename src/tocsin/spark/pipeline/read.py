"""Read: the second pass turns Spark's frame of a micro-batch into frames of lines or of events.

Enters: file names, Kafka records, block numbers, or a frame from Python. Leaves: frames of lines,
frames of typed columns, and the files that cannot be read. `sources` has the formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tocsin.spark.pipeline import sources
from tocsin.spark.pipeline.batch import Batch, Frames
from tocsin.spark.pipeline.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Read:
    """Reads the events of a batch from the configured source."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self.config = config
        self.spark = spark

    def __call__(self, batch: Batch, frames: Frames) -> Frames:
        """Return the frames with lines, typed columns and unreadable files."""
        with batch.stage("read"):
            return sources.read(self.config, self.spark, frames)
