"""Record: the last pass writes the metrics of a micro-batch, and removes what no replay needs.

Enters: the counts of a batch that all sinks have. Leaves: a sample of its events for the next
index, its metrics, which mark it as finished, and no pins or publications of batches that Spark
will not replay.
"""

from __future__ import annotations

import time
from dataclasses import replace

from tocsin.spark.pipeline.batch import Batch, Frames
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.folders import Folder
from tocsin.spark.pipeline.metrics import BatchMetrics, write_metrics
from tocsin.spark.pipeline.publication_table import PublicationTable
from tocsin.spark.pipeline.statistics import Sampler
from tocsin.store.subscription_store import SubscriptionStore

_UNPIN_EVERY = 10


class Record:
    """Records a finished batch."""

    def __init__(
        self,
        config: Config,
        folder: Folder,
        store: SubscriptionStore,
        publications: PublicationTable | None,
    ) -> None:
        self.folder = folder
        self.store = store
        self.publications = publications
        self.retain = config.retain
        self.sampler = Sampler(config, folder)

    def __call__(self, batch: Batch, frames: Frames) -> Frames:
        """Return the frames with the metrics."""
        with batch.stage("statistics"):
            if frames.events is not None:
                self.sampler.add(frames.events, frames.n_events, batch)
        batch.release()
        metrics = _metrics(batch, frames)
        write_metrics(self.folder, metrics)
        number = batch.number
        if number % _UNPIN_EVERY == _UNPIN_EVERY - 1 and number >= self.retain:
            self.store.unpin(batch.query, number + 1 - self.retain)
        if self.publications is not None:
            self.publications.vacuum(batch)
        return replace(frames, metrics=metrics)


def _metrics(batch: Batch, frames: Frames) -> BatchMetrics:
    finished = time.time()
    return BatchMetrics(
        query=batch.query,
        batch=batch.number,
        started=batch.started,
        finished=finished,
        version=batch.version,
        now=batch.now,
        subscriptions=frames.n_subscriptions,
        events=frames.n_events + len(frames.unreadable),
        matches=frames.n_matches or 0,
        quarantined=frames.n_quarantined,
        unmatched=frames.n_unmatched,
        lag=None if frames.arrived is None else max(0.0, finished - frames.arrived),
        ms=batch.ms,
        drift=frames.drift,
        publications=frames.publications,
        entered=frames.entered,
        left=frames.left,
    )
