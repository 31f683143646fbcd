"""Backlogs: what durable subscribers have not acknowledged yet.

Enters: acknowledgements, refusals, backlogs and dead letters beyond their bounds. Leaves: rows that
go, and counts that say how many are left. A part of the broker (`core.py`); used within the event
loop.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from tocsin.broker import quota, schema
from tocsin.broker.config import Config
from tocsin.broker.metrics import Metrics
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Subscription

_EXPIRED_AT_ONCE = 10_000


class Backlogs(ABC):
    """What is done to notifications that are on disk."""

    def __init__(self, config: Config, storage: Storage, metrics: Metrics) -> None:
        self.config = config
        self.storage = storage
        self.metrics = metrics
        self._next_expiry = 0.0
        self.on_backlog: Callable[[Subscription], None] = lambda _: None

    def surplus(self, found: Subscription) -> int:
        """Return how many notifications a backlog has beyond its bound, where the oldest go."""
        if found.wanted.options.get("overflow") == "refuse":
            return 0
        most = int(found.wanted.options.get("max_backlog", self.config.max_backlog))
        return max(0, found.pending - most, quota.surplus(found, self.config.max_backlog_bytes))

    def bound(self, found: Subscription) -> None:
        """Keep a backlog within its bound: the oldest goes."""
        self.drop_oldest(found, self.surplus(found))

    def drop_oldest(self, found: Subscription, surplus: int) -> None:
        """Let the oldest notifications of a backlog go, and count them as missed."""
        if surplus > 0:
            found.missed += surplus
            self.metrics.overflowed += surplus
            self._lessen(found, surplus, schema.drop_oldest, surplus)

    def acknowledge(self, found: Subscription, seqs: Sequence[int]) -> asyncio.Future[int]:
        """Forget notifications that a subscriber has; the future is done when that is on disk."""
        self.metrics.acknowledged += len(seqs)
        return self._lessen(found, len(seqs), schema.acknowledge, seqs)

    def _lessen(
        self, found: Subscription, n: int, change: Callable[..., int], *args: object
    ) -> asyncio.Future[int]:
        """Make a backlog smaller by what is there of the n notifications that shall go."""
        found.pending -= n

        def correct(done: asyncio.Future[int]) -> None:
            found.pending += n - (done.result() if done.exception() is None else 0)

        future = self.storage.submit(change, found.no, *args)
        future.add_done_callback(correct)
        return future

    async def acknowledge_upto(self, found: Subscription, seq: int) -> int:
        """Forget all of a subscription up to a number, whether in flight or not."""
        n = await self.storage.submit(schema.acknowledge_upto, found.no, seq)
        if found.consumer is not None:
            found.consumer.forget_upto(seq)
        self.acknowledged(found, n)
        return n

    async def acknowledge_ids(self, found: Subscription, seqs: Sequence[int]) -> int:
        """Forget notifications of a subscription by their numbers; return how many there were."""
        n = await self.storage.submit(schema.acknowledge, found.no, seqs)
        if found.consumer is not None:
            found.consumer.forget(set(seqs))
        self.acknowledged(found, n)
        return n

    def acknowledged(self, found: Subscription, n: int) -> None:
        """Count acknowledgements that are on disk."""
        found.pending -= n
        self.metrics.acknowledged += n

    # Redelivery.

    def redelivery(self, found: Subscription) -> tuple[float, int]:
        """Return a subscription's `ack_seconds` and `max_deliveries`; 0 where there is none."""
        if found.no < 0:  # a neighbour's queue: it acknowledges in order and never refuses
            return 0.0, 0
        options, config = found.wanted.options, self.config
        seconds = options.get("ack_seconds", config.ack_seconds)
        return float(seconds), int(options.get("max_deliveries", config.max_deliveries))

    async def put_off(self, found: Subscription, seqs: Sequence[int], seconds: float) -> int:
        """Have notifications sent again after some seconds; return how many there were."""
        due = time.time_ns() // 1000 + round(seconds * 1_000_000)
        n = await self.storage.submit(schema.put_off, found.no, seqs, due)
        if found.consumer is not None:
            found.consumer.put_off(seqs, seconds)
        return n

    # Dead letters.

    def bury(
        self, found: Subscription, seq: int, reason: str, deliveries: int = 0
    ) -> asyncio.Future[tuple[int, int]]:
        """Move a notification to the dead letters; the future is done when that is on disk."""
        self.metrics.dead += 1
        found.pending -= 1
        letter = schema.Letter(seq, reason, deliveries)
        future = self.storage.submit(schema.bury, found.no, letter, time.time_ns() // 1000)

        def correct(done: asyncio.Future[tuple[int, int]]) -> None:
            n, n_bytes = done.result() if done.exception() is None else (0, 0)
            found.pending += 1 - n
            self._count_dead(found, n, n_bytes)

        future.add_done_callback(correct)
        return future

    def buried(self, found: Subscription, n: int, n_bytes: int) -> None:
        """Count dead letters that are on disk."""
        self.metrics.dead += n
        found.pending -= n
        self._count_dead(found, n, n_bytes)

    async def bury_all(self, found: Subscription, seqs: Sequence[int], reason: str) -> int:
        """Move notifications to the dead letters, whether in flight or not; return how many."""
        done = await asyncio.gather(*(self.bury(found, seq, reason) for seq in set(seqs)))
        if found.consumer is not None:
            found.consumer.forget(set(seqs))
        return sum(n for n, _ in done)

    def _count_dead(self, found: Subscription, n: int, n_bytes: int) -> None:
        """Count dead letters that came or went; where there are too many, the oldest go."""
        found.dead += n
        found.dead_bytes += n_bytes
        surplus = max(0, found.dead - self.config.max_dead)
        surplus_bytes = max(0, found.dead_bytes - self.config.max_dead_bytes)
        if found.is_trimming or not (surplus or surplus_bytes):
            return
        found.is_trimming = True

        def trimmed(done: asyncio.Future[tuple[int, int]]) -> None:
            found.is_trimming = False
            if done.exception() is None:
                n_gone, n_gone_bytes = done.result()
                self.metrics.dead_dropped += n_gone
                if n_gone:
                    self._count_dead(found, -n_gone, -n_gone_bytes)

        future = self.storage.submit(schema.drop_dead, found.no, surplus, surplus_bytes)
        future.add_done_callback(trimmed)

    def restore_dead(self, by_no: Mapping[int, Subscription]) -> None:
        """Count the dead letters that are stored, before the broker starts."""
        for no, n, n_bytes in self.storage.first(schema.dead_totals):
            if no in by_no:
                by_no[no].dead, by_no[no].dead_bytes = n, n_bytes

    def bound_dead(self, by_no: Mapping[int, Subscription]) -> None:
        """Keep the dead letters that are stored within bounds that may have changed."""
        for found in by_no.values():
            if found.dead:
                self._count_dead(found, 0, 0)

    async def expire_dead(self, by_no: Mapping[int, Subscription]) -> None:
        """Forget dead letters that are older than `dead_seconds`; looks once a minute at most."""
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
                self._count_dead(by_no[no], -1, -n_bytes)

    async def purge(self, found: Subscription, seqs: Sequence[int] | None) -> int:
        """Forget dead letters of a subscription, all or those named; return how many."""
        n, n_bytes = await self.storage.submit(schema.purge, found.no, seqs)
        self._count_dead(found, -n, -n_bytes)
        return n

    @abstractmethod
    async def ensure_numbers(self, n: int) -> None:
        """Have at least n event numbers that may be given."""

    @abstractmethod
    def new_number(self) -> int:
        """Return an event number that was never used."""

    async def revive(self, found: Subscription, seqs: Sequence[int] | None = None) -> int:
        """Have dead letters of a subscription delivered again, all or those named.

        They get new numbers. These are taken and submitted in one step: what is published later has
        higher ones and is written later, so that a reader finds all in the order of their numbers.
        """
        letters = await self.storage.submit(schema.dead_numbers, found.no, seqs)
        if not letters:
            return 0
        await self.ensure_numbers(len(letters))
        numbers = [(old, self.new_number()) for old in letters]
        future = self.storage.submit(schema.revive, found.no, numbers)

        def revived(done: asyncio.Future[tuple[int, int]]) -> None:
            if done.exception() is None and done.result()[0]:
                n, n_bytes = done.result()
                found.pending += n
                found.last_seq = max(found.last_seq, numbers[-1][1])
                self._count_dead(found, -n, -n_bytes)
                if found.consumer is not None:
                    found.consumer.look()
                else:
                    self.on_backlog(found)

        future.add_done_callback(revived)
        return (await future)[0]
