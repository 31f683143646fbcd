"""Match: the fifth pass matches the valid events against the pinned subscriptions.

Enters: valid events and a snapshot. Leaves: a frame of notifications. In the mode `matches` that is
a plan, which the sinks run; in the mode `transitions` events are updates of publications, which are
committed here (`publication_table`), and the notifications are the transitions of the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tocsin.spark.columns import quoted
from tocsin.spark.match_plan import match_pinned
from tocsin.spark.pipeline.batch import ORIGIN, Batch, Frames
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.publication_table import PublicationTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class MatchEvents:
    """Matches each event by itself; `ids` is the type of subscription ids."""

    def __init__(self, config: Config, ids: str) -> None:
        self.config = config
        self.ids = ids

    def __call__(self, batch: Batch, frames: Frames) -> Frames:
        """Return the frames with notifications, and with unmatched events if they are wanted."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        n_unmatched = 0 if self.config.unmatched else None
        if frames.events is None:
            return replace(frames, n_matches=0, n_unmatched=n_unmatched)
        events = frames.events
        if not frames.n_events:
            observation = Observation()
            events = events.observe(observation, f.count(f.lit(1)).alias("events"))
            frames = replace(frames, counted=events, observation=observation)
        keep = self._kept_columns(events)
        matches = self._match(batch, frames, events, keep)
        if not self.config.unmatched:
            return replace(frames, notifications=matches)
        matches = batch.cache(matches)
        columns = [quoted(name) for name in keep]
        return replace(
            frames,
            notifications=matches.selectExpr(*columns, "explode(subscriptions) AS subscription"),
            unmatched=matches.where("size(subscriptions) = 0").selectExpr(*columns),
        )

    def _match(self, batch: Batch, frames: Frames, events: DataFrame, keep: list[str]) -> DataFrame:
        assert frames.snapshot is not None
        shape = "arrays" if self.config.unmatched else self.config.shape
        matches = match_pinned(
            events,
            frames.snapshot,
            batch.now,
            keep,
            shape,  # type: ignore[arg-type]
            ids=self.ids,  # type: ignore[arg-type]
            placement=self.config.placement,  # type: ignore[arg-type]
        )
        if shape == "arrays" and not self.config.unmatched:
            return matches.where("size(subscriptions) > 0")
        return matches

    def _kept_columns(self, events: DataFrame) -> list[str]:
        """Return the columns of notifications; Kafka sinks also need the origin of events."""
        names = [name for name in events.columns if name != ORIGIN]
        if self.config.keep is not None:
            names = [name for name in self.config.keep if name in names]
        has_kafka = any(sink.kind == "kafka" for sink in self.config.sinks)
        return [*names, ORIGIN] if has_kafka and ORIGIN in events.columns else names


class MatchPublications:
    """Updates publications by the events of a batch."""

    def __init__(self, publications: PublicationTable) -> None:
        self.publications = publications

    def __call__(self, batch: Batch, frames: Frames) -> Frames:
        """Return the frames with the batch's transitions, which are decided from then on."""
        events = None if frames.events is None else frames.events.drop(ORIGIN)
        with batch.stage("transitions"):
            kept = self.publications.step(events, batch)
        return replace(
            frames,
            notifications=self.publications.transitions(kept),
            n_events=frames.n_events or kept.events,
            n_matches=kept.entered + kept.left,
            publications=kept.publications,
            entered=kept.entered,
            left=kept.left,
        )
