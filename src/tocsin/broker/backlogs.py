"""Backlogs: what durable subscribers have not acknowledged yet.

Enters: acknowledgements, refusals, backlogs beyond their bound. Leaves: rows that go, and counts
that say how many are left. A part of the broker (`core.py`); used within the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from tocsin.broker import schema
from tocsin.broker.config import Config
from tocsin.broker.metrics import Metrics
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Subscription


class Backlogs:
    """What is done to notifications that are on disk."""

    def __init__(self, config: Config, storage: Storage, metrics: Metrics) -> None:
        self.config = config
        self.storage = storage
        self.metrics = metrics
        self.on_backlog: Callable[[Subscription], None] = lambda _: None

    def bound(self, found: Subscription) -> None:
        """Keep a backlog within its bound: the oldest goes."""
        most = int(found.wanted.options.get("max_backlog", self.config.max_backlog))
        surplus = found.pending - most
        if surplus > 0 and found.wanted.options.get("overflow") != "refuse":
            found.missed += surplus
            self.metrics.overflowed += surplus
            self._lessen(found, surplus, schema.drop_oldest, surplus)

    def acknowledge(self, found: Subscription, seqs: Sequence[int]) -> None:
        """Forget notifications that a subscriber has."""
        self.metrics.acknowledged += len(seqs)
        self._lessen(found, len(seqs), schema.acknowledge, seqs)

    def _lessen(
        self, found: Subscription, n: int, change: Callable[..., int], *args: object
    ) -> None:
        """Make a backlog smaller by what is there of the n notifications that shall go."""
        found.pending -= n

        def correct(done: asyncio.Future[int]) -> None:
            found.pending += n - (done.result() if done.exception() is None else 0)

        self.storage.submit(change, found.no, *args).add_done_callback(correct)

    async def acknowledge_upto(self, found: Subscription, seq: int) -> int:
        """Forget all of a subscription up to a number, whether in flight or not."""
        n = await self.storage.submit(schema.acknowledge_upto, found.no, seq)
        if found.consumer is not None:
            found.consumer.forget([each for each in found.consumer.in_flight if each <= seq])
        found.pending -= n
        self.metrics.acknowledged += n
        return n

    async def acknowledge_ids(self, found: Subscription, seqs: Sequence[int]) -> int:
        """Forget notifications of a subscription by their numbers; return how many there were."""
        n = await self.storage.submit(schema.acknowledge, found.no, seqs)
        if found.consumer is not None:
            found.consumer.forget(set(seqs))
        found.pending -= n
        self.metrics.acknowledged += n
        return n

    def bury(self, found: Subscription, seq: int, reason: str) -> None:
        """Move a notification to the dead letters."""
        self.metrics.dead += 1
        self._lessen(found, 1, schema.bury, seq, reason, time.time_ns() // 1000)

    async def revive(self, found: Subscription) -> int:
        """Have the dead letters of a subscription delivered again."""
        n = await self.storage.submit(schema.revive, found.no)
        found.pending += n
        if n and found.consumer is not None:
            found.consumer.rewind()
        elif n:
            self.on_backlog(found)
        return n
