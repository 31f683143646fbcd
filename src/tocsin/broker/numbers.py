"""Sequence numbers of events, reserved on disk in blocks before they are used.

Enters: the numbers of the epoch (`epoch.py`). Leaves: numbers that grow and are never used again,
not even after a crash. Used within the event loop.
"""

from __future__ import annotations

import asyncio
import logging

from tocsin.broker.events import Event
from tocsin.broker.storage import Storage
from tocsin.errors import TocsinError, UnavailableError

BLOCK = 1 << 20
log = logging.getLogger("tocsin.broker")


class SequenceNumbers:
    """The sequence numbers of a broker's events."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._epoch = 0
        self._first = self._next = self._reserved = 0
        self._reserving: asyncio.Task[None] | None = None

    def restore(self) -> None:
        """Load the epoch and reserve a block, before the broker starts."""
        numbers = self._storage.begin_numbers(BLOCK)
        self._epoch, self._first, self._next = numbers.epoch, numbers.first, numbers.next
        self._reserved = numbers.next + BLOCK
        if numbers.reason is not None:
            log.warning(
                "a new epoch begins: %s; event numbers go on at %d", numbers.reason, numbers.next
            )

    def assign(self, event: Event, now: int) -> None:
        """Give an event the next number and its time of publication, in microseconds."""
        if self._next >= self._reserved:
            raise UnavailableError("no event numbers are reserved on disk")
        event.seq, event.published = self._next, now
        self._next += 1

    def take(self) -> int:
        """Return the next number."""
        if self._next >= self._reserved:
            raise UnavailableError("no event numbers are reserved on disk")
        self._next += 1
        return self._next - 1

    def is_own(self, seq: int) -> bool:
        """Return whether a number was assigned in this epoch."""
        return self._first <= seq < self._next

    async def prepare(self, n_events: int, n_more: int) -> None:
        """Reserve numbers for a batch where the block runs low.

        `n_more` is how many transitions the batch may bring besides its events.
        """
        if self._reserved - self._next < BLOCK // 2 + n_events:
            await self.ensure(n_events + n_more)

    async def ensure(self, n: int) -> None:
        """Have at least n numbers reserved on disk; reserve the next block before this one ends."""
        n_left = self._reserved - self._next
        if n_left >= max(n, BLOCK // 2):
            return
        if self._reserving is None:
            upto = self._next + n + BLOCK
            self._reserving = asyncio.create_task(self._reserve(upto), name="reserve")
        if n_left < n:
            await asyncio.wait([self._reserving])
            if self._reserved - self._next < n:
                reason = self._storage.failure or "the epoch file cannot be written"
                raise UnavailableError(f"event numbers cannot be reserved on disk: {reason}")

    async def _reserve(self, upto: int) -> None:
        try:
            await self._storage.reserve(self._epoch, upto)
            self._reserved = max(self._reserved, upto)
        except TocsinError as error:
            log.error("event numbers cannot be reserved: %s", error)
        finally:
            self._reserving = None
