"""Deliver: the sixth pass writes the notifications of a micro-batch to the sinks.

Enters: notifications, and unmatched events if they are wanted. Leaves: what the sinks and the table
of unmatched events hold, and the counts. A sink that has the batch already does not take it again.
With one sink that counts its rows, matching and writing are one job; with others, notifications are
cached and counted first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tocsin.spark.pipeline.batch import Batch, Frames
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.sinks import open_sinks
from tocsin.spark.pipeline.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Deliver:
    """Writes notifications to all sinks."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self.sinks = open_sinks(config, spark)
        self.unmatched = Table(f"{config.output}/unmatched", spark)
        self.counts_rows = len(self.sinks) == 1 and hasattr(self.sinks[0], "table")

    def __call__(self, batch: Batch, frames: Frames) -> Frames:
        """Return the frames with the numbers of events, matches and unmatched events."""
        notifications, n_matches = frames.notifications, frames.n_matches
        if notifications is None:
            return frames
        prefix = "" if n_matches is not None else "match+"
        is_observed = not self.sinks[0].has(batch)  # otherwise nothing is matched again
        if n_matches is None and not self.counts_rows:
            notifications = batch.cache(notifications)
            prefix, is_observed = "", True
            with batch.stage("match"):  # all of it: a sink may read the first rows only
                n_matches = notifications.count()
        for sink in self.sinks:
            with batch.stage(f"{prefix}{sink.name}"):
                delivered = sink.write(notifications, batch)
            n_matches = delivered if n_matches is None else n_matches
        n_unmatched = frames.n_unmatched
        if frames.unmatched is not None:
            with batch.stage("unmatched"):
                n_unmatched = self.unmatched.write(frames.unmatched, batch).rows
        n_events = frames.n_events
        if frames.counted is not None and frames.observation is not None:
            n_events = (
                int(frames.observation.get["events"]) if is_observed else frames.counted.count()
            )
        return replace(frames, n_events=n_events, n_matches=n_matches, n_unmatched=n_unmatched)
