"""The ingest queue: publishes of all connections, in one order.

Enters: publishes, and jobs that have a place among them. Leaves: batches of publishes, and jobs one
at a time. A full queue makes publishers wait. Used within the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from tocsin.broker.config import Config
from tocsin.broker.events import Event
from tocsin.broker.idempotency import Entry, Receipt
from tocsin.broker.network import Mark
from tocsin.errors import UnavailableError

T = TypeVar("T")
_MAX_BYTES = 64 << 20
Change = Callable[[sqlite3.Connection], object]
"""A change of the database that is made in the transaction of a publish."""


class Publish:
    """Events that are published together, the future of their receipt, and changes with them."""

    __slots__ = ("at", "change", "entries", "events", "future", "is_keyed", "mark", "span")

    def __init__(
        self,
        events: Sequence[Event],
        future: asyncio.Future[Receipt],
        span: Any = None,
        mark: Mark | None = None,
        change: Change | None = None,
        entries: Sequence[Entry] = (),
    ) -> None:
        self.events = events
        self.entries = entries
        self.mark = mark
        self.change = change
        self.future = future
        self.at = time.perf_counter()
        self.span = span
        self.is_keyed = any(event.key is not None for event in events)


class Job:
    """Work that runs between two batches."""

    __slots__ = ("future", "work")

    def __init__(self, work: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future


class IngestQueue:
    """Publishes and jobs that wait for their batch."""

    def __init__(self, config: Config) -> None:
        self.is_draining = False
        self.n_events = 0
        self._config = config
        self._items: deque[Publish | Job] = deque()
        self._n_bytes = 0
        self._n_unsettled = 0
        self._is_filled = asyncio.Event()
        self._has_capacity = asyncio.Event()
        self._is_settled = asyncio.Event()
        self._has_capacity.set()
        self._is_settled.set()

    @property
    def is_full(self) -> bool:
        """Whether publishers should wait."""
        return self.n_events >= self._config.queue_events or self._n_bytes >= _MAX_BYTES

    async def capacity(self) -> None:
        """Wait until the queue is not full."""
        while self.is_full:
            self._has_capacity.clear()
            await self._has_capacity.wait()

    def put(self, item: Publish | Job) -> None:
        """Append a publish or a job; it counts as unsettled until `settled` is called."""
        if isinstance(item, Publish):
            self.n_events += len(item.events)
            self._n_bytes += sum(len(event.text) for event in item.events)
        self._items.append(item)
        self._n_unsettled += 1
        self._is_settled.clear()
        self._is_filled.set()

    def settled(self) -> None:
        """Count a publish or a job that is done."""
        self._n_unsettled -= 1
        if not self._n_unsettled:
            self._is_settled.set()

    async def in_order(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work between two batches, after all publishes that were put before.

        Raises UnavailableError while the broker stops, and whatever the work raises.
        """
        if self.is_draining:
            raise UnavailableError("the broker is stopping")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.put(Job(work, future))
        return await future

    async def take(self, is_alone: Callable[[Publish], bool]) -> list[Publish] | Job:
        """Wait for items; return a job, or the publishes up to the next job or `batch_events`.

        A publish for which `is_alone` is true is a batch of its own.
        """
        await self._is_filled.wait()
        batch: list[Publish] = []
        n = 0
        while self._items and n < self._config.batch_events:
            first = self._items[0]
            if isinstance(first, Job):
                if batch:
                    break
                self._items.popleft()
                self._update()
                return first
            alone = is_alone(first)
            if alone and batch:
                break
            self._items.popleft()
            batch.append(first)
            n += len(first.events)
            if alone:
                break
        self.n_events -= n
        self._n_bytes -= sum(len(event.text) for publish in batch for event in publish.events)
        self._update()
        return batch

    def _update(self) -> None:
        if not self._items:
            self._is_filled.clear()
        if not self.is_full:
            self._has_capacity.set()

    async def drain(self) -> None:
        """Take no more publishes; wait until those taken are settled, `drain_seconds` at most."""
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_seconds):
                await self._is_settled.wait()
