"""Backlogs: notifications of durable subscriptions that are not acknowledged.

Enters: acknowledgements, refusals, backlogs and dead letters beyond their bounds. Leaves: deleted
rows, and counts of the rest. Used within the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from tocsin.broker import quota, schema
from tocsin.broker.config import Config
from tocsin.broker.metrics import Metrics
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Subscription

_EXPIRED_AT_ONCE = 10_000


class Backlog:
    """The notifications that are on disk, of all subscriptions."""

    def __init__(self, config: Config, storage: Storage, metrics: Metrics) -> None:
        self.config = config
        self.storage = storage
        self.metrics = metrics
        self._next_expiry = 0.0

    def surplus(self, subscription: Subscription) -> int:
        """Return by how many notifications a backlog that drops its oldest exceeds its bound."""
        if subscription.refuses_overflow:
            return 0
        most = int(subscription.spec.options.get("max_backlog", self.config.max_backlog))
        return max(
            0,
            subscription.pending - most,
            quota.surplus(subscription, self.config.max_backlog_bytes),
        )

    def bound(self, subscription: Subscription) -> None:
        """Drop the oldest notifications beyond the bound of a backlog."""
        self.drop_oldest(subscription, self.surplus(subscription))

    def drop_oldest(self, subscription: Subscription, surplus: int) -> None:
        """Drop the oldest notifications of a backlog, and count them as missed."""
        if surplus > 0:
            subscription.missed += surplus
            self.metrics.overflowed += surplus
            self._delete(subscription, surplus, schema.drop_oldest, surplus)

    def acknowledge(self, subscription: Subscription, seqs: Sequence[int]) -> asyncio.Future[int]:
        """Delete acknowledged notifications; the future is done when that is on disk."""
        self.metrics.acknowledged += len(seqs)
        return self._delete(subscription, len(seqs), schema.acknowledge, seqs)

    def _delete(
        self, subscription: Subscription, n: int, change: Callable[..., int], *args: object
    ) -> asyncio.Future[int]:
        """Delete up to n notifications, and adjust `pending` by the number deleted."""
        subscription.pending -= n

        def correct(done: asyncio.Future[int]) -> None:
            subscription.pending += n - (done.result() if done.exception() is None else 0)

        future = self.storage.submit(change, subscription.no, *args)
        future.add_done_callback(correct)
        return future

    async def acknowledge_upto(self, subscription: Subscription, seq: int) -> int:
        """Acknowledge all notifications up to a number, in flight or not; return how many."""
        n = await self.storage.submit(schema.acknowledge_upto, subscription.no, seq)
        if subscription.consumer is not None:
            subscription.consumer.forget_upto(seq)
        self.acknowledged(subscription, n)
        return n

    async def acknowledge_ids(self, subscription: Subscription, seqs: Sequence[int]) -> int:
        """Acknowledge notifications by their numbers, in flight or not; return how many."""
        n = await self.storage.submit(schema.acknowledge, subscription.no, seqs)
        if subscription.consumer is not None:
            subscription.consumer.forget(set(seqs))
        self.acknowledged(subscription, n)
        return n

    def acknowledged(self, subscription: Subscription, n: int) -> None:
        """Count acknowledgements that are on disk."""
        subscription.pending -= n
        self.metrics.acknowledged += n

    # Redelivery.

    def redelivery(self, subscription: Subscription) -> tuple[float, int]:
        """Return `ack_seconds` and `max_deliveries` of a subscription; 0 is off."""
        if subscription.no < 0:  # a peer acknowledges in order and never refuses
            return 0.0, 0
        options, config = subscription.spec.options, self.config
        seconds = options.get("ack_seconds", config.ack_seconds)
        return float(seconds), int(options.get("max_deliveries", config.max_deliveries))

    async def put_off(self, subscription: Subscription, seqs: Sequence[int], seconds: float) -> int:
        """Send notifications again after some seconds; return how many."""
        due = time.time_ns() // 1000 + round(seconds * 1_000_000)
        n = await self.storage.submit(schema.put_off, subscription.no, seqs, due)
        if subscription.consumer is not None:
            subscription.consumer.put_off(seqs, seconds)
        return n

    # Dead letters.

    def bury(
        self, subscription: Subscription, seq: int, reason: str, deliveries: int = 0
    ) -> asyncio.Future[tuple[int, int]]:
        """Move a notification to the dead letters; the future is done when that is on disk."""
        self.metrics.dead += 1
        subscription.pending -= 1
        letter = schema.Letter(seq, reason, deliveries)
        future = self.storage.submit(schema.bury, subscription.no, letter, time.time_ns() // 1000)

        def correct(done: asyncio.Future[tuple[int, int]]) -> None:
            n, n_bytes = done.result() if done.exception() is None else (0, 0)
            subscription.pending += 1 - n
            self.count_dead(subscription, n, n_bytes)

        future.add_done_callback(correct)
        return future

    def buried(self, subscription: Subscription, n: int, n_bytes: int) -> None:
        """Count dead letters that are on disk."""
        self.metrics.dead += n
        subscription.pending -= n
        self.count_dead(subscription, n, n_bytes)

    async def bury_all(self, subscription: Subscription, seqs: Sequence[int], reason: str) -> int:
        """Move notifications to the dead letters, in flight or not; return how many."""
        done = await asyncio.gather(*(self.bury(subscription, seq, reason) for seq in set(seqs)))
        if subscription.consumer is not None:
            subscription.consumer.forget(set(seqs))
        return sum(n for n, _ in done)

    def count_dead(self, subscription: Subscription, n: int, n_bytes: int) -> None:
        """Count dead letters added or deleted; delete the oldest beyond the bounds."""
        subscription.dead += n
        subscription.dead_bytes += n_bytes
        surplus = max(0, subscription.dead - self.config.max_dead)
        surplus_bytes = max(0, subscription.dead_bytes - self.config.max_dead_bytes)
        if subscription.is_trimming or not (surplus or surplus_bytes):
            return
        subscription.is_trimming = True

        def trimmed(done: asyncio.Future[tuple[int, int]]) -> None:
            subscription.is_trimming = False
            if done.exception() is None:
                n_gone, n_gone_bytes = done.result()
                self.metrics.dead_dropped += n_gone
                if n_gone:
                    self.count_dead(subscription, -n_gone, -n_gone_bytes)

        future = self.storage.submit(schema.drop_dead, subscription.no, surplus, surplus_bytes)
        future.add_done_callback(trimmed)

    def restore_dead(self, by_no: Mapping[int, Subscription]) -> None:
        """Count the dead letters that are stored, before the broker starts."""
        for no, n, n_bytes in self.storage.first(schema.dead_totals):
            if no in by_no:
                by_no[no].dead, by_no[no].dead_bytes = n, n_bytes

    def bound_dead(self, by_no: Mapping[int, Subscription]) -> None:
        """Apply the bounds of the configuration, which may have changed, to stored dead letters."""
        for subscription in by_no.values():
            if subscription.dead:
                self.count_dead(subscription, 0, 0)

    async def expire_dead(self, by_no: Mapping[int, Subscription]) -> None:
        """Delete dead letters older than `dead_seconds`, once a minute at most."""
        seconds, now = self.config.dead_seconds, time.monotonic()
        if not seconds or now < self._next_expiry:
            return
        before = time.time_ns() // 1000 - round(seconds * 1_000_000)
        gone = await self.storage.submit(schema.expire_dead, before, _EXPIRED_AT_ONCE)
        if len(gone) < _EXPIRED_AT_ONCE:
            self._next_expiry = now + min(60.0, seconds)
        self.metrics.dead_dropped += len(gone)
        for no, _, n_bytes in gone:
            if no in by_no:
                self.count_dead(by_no[no], -1, -n_bytes)

    async def purge(self, subscription: Subscription, seqs: Sequence[int] | None) -> int:
        """Delete dead letters, all or those with these numbers; return how many."""
        n, n_bytes = await self.storage.submit(schema.purge, subscription.no, seqs)
        self.count_dead(subscription, -n, -n_bytes)
        return n
