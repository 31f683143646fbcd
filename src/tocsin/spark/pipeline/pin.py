"""Pin: the first pass fixes the version of the subscriptions and the time of a micro-batch.

Enters: a batch. Leaves: its version and time, and the snapshot of the store. The pin is a file that
is created once in the store, so a replay of the batch uses the same subscriptions at the same time.
"""

from __future__ import annotations

from dataclasses import replace

from tocsin.spark import worker
from tocsin.spark.pipeline.batch import Batch, Frames
from tocsin.spark.worker import Moment
from tocsin.store.subscription_store import SubscriptionStore


class Pin:
    """Pins a batch, and opens the subscriptions on the driver."""

    def __init__(self, store: SubscriptionStore) -> None:
        self.store = store

    def __call__(self, batch: Batch, frames: Frames) -> Frames:
        """Return the frames with the snapshot that is pinned."""
        with batch.stage("pin"):
            batch.version, batch.now = self.store.pin(batch.query, batch.number)
            snapshot = self.store.snapshot(batch.version)
            moment = Moment.of(snapshot, batch.now)
            matcher = worker.open_matcher(moment, snapshot=snapshot).matcher
            return replace(frames, snapshot=snapshot, n_subscriptions=len(matcher))
