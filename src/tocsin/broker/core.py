"""The core: publishes of all connections → micro-batches → matches → fan-out, in one order.

Enters: events from any connection of this event loop, and whatever must have its place among them.
Leaves: messages in outboxes, rows on disk, and for each publish an acknowledgement that comes when
its durable notifications are there.

Batches follow each other. One that changes publications or retained events is on disk before the
next is matched; so is a change of subscriptions that looks at them (`in_order`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from tocsin.broker import schema
from tocsin.broker.config import Config
from tocsin.broker.events import Event
from tocsin.broker.fan_out import BLOCK, FanOut, Publish
from tocsin.broker.fan_out import Receipt as Receipt
from tocsin.broker.metrics import Metrics
from tocsin.broker.network import Mark
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Session, Subscription
from tocsin.broker.tokens import Principal
from tocsin.errors import TocsinError, UnavailableError

T = TypeVar("T")
_QUEUE_BYTES = 64 << 20
log = logging.getLogger("tocsin.broker")


class Closable(Protocol):
    """A stream that can be told to end."""

    principal: Principal | None
    is_revoked: bool

    def close(self, reason: str) -> None:
        """End once what waits is taken."""

    def revoke(self) -> None:
        """End at once: whoever it is has no rights any more."""


class _Job:
    """Work that has its place among the publishes."""

    __slots__ = ("future", "work")

    def __init__(self, work: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future


class Broker(FanOut):
    """A broker within one event loop."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        super().__init__(config, Storage(config.data, config.synchronous), Metrics(), clock)
        self.registry.teller = self
        self.n_connections = 0
        self.streams: set[Closable] = set()
        self.is_draining = False
        self.is_ready = False
        self._queue: deque[Publish | _Job] = deque()
        self._n_queued = self._n_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._matching = ThreadPoolExecutor(1, "tocsin-match")
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load what is stored and begin to work."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._restore)
        self._next_seq = self.storage.first(schema.first_free)
        self._reserved = self._next_seq + BLOCK
        self.storage.first(lambda connection: schema.reserve(connection, self._reserved))
        self.storage.start()
        self._room.set()
        self._settled.set()
        self._set_gauges()
        self._tasks = [
            asyncio.create_task(self._work(), name="batches"),
            asyncio.create_task(self._sweep(), name="sweep"),
        ]
        await loop.run_in_executor(self._matching, self.topics.match, [Event(None, {}, b"{}")])
        self.is_ready = True

    def _restore(self) -> None:
        if self.network is not None:
            self.registry.network = self.network
            self.network.restore()
        self.registry.restore()
        self.past.restore(
            self.storage.first(schema.publications), self.storage.first(schema.retained)
        )

    def _set_gauges(self) -> None:
        gauges = self.metrics.gauges
        registry, storage, past = self.registry, self.storage, self.past
        gauges["subscriptions"] = ("Live subscriptions.", lambda: len(registry.by_id))
        gauges["publications"] = ("Publications that stay.", lambda: len(past.by_place))
        gauges["retained"] = ("Events retained.", lambda: len(past.retained))
        gauges["connections"] = ("Open connections.", lambda: self.n_connections)
        gauges["queue_events"] = ("Events that wait to be matched.", lambda: self._n_queued)
        gauges["storage_waiting"] = ("Changes that wait for disk.", lambda: storage.n_waiting)
        gauges["storage_bytes"] = ("Bytes of the database.", storage.size)
        gauges["backlog"] = (
            "Notifications that wait for an acknowledgement.",
            lambda: sum(each.pending for each in registry.by_id.values()),
        )

    # Publishing.

    @property
    def is_full(self) -> bool:
        """Whether publishers should wait."""
        return self._n_queued >= self.config.queue_events or self._n_bytes >= _QUEUE_BYTES

    async def room(self) -> None:
        """Wait until the queue has room."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    async def publish(self, events: Sequence[Event]) -> Receipt:
        """Publish events, all of them or none; return when durable notifications are on disk."""
        await self.room()
        return await self.offer(events)

    def offer(self, events: Sequence[Event], mark: Mark | None = None) -> asyncio.Future[Receipt]:
        """Publish without waiting for room: for callers that have asked `is_full`."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self.is_draining:
            future.set_exception(UnavailableError("the broker is stopping"))
        elif not events:
            future.set_result(Receipt(0, 0, 0))
        else:
            self._n_queued += len(events)
            self._n_bytes += sum(len(event.text) for event in events)
            if not self.past.is_retaining:
                self.past.is_retaining = any(e.retain_until is not None for e in events)
            if self.network is not None and mark is None:
                self.network.publishing(events)
            span = None if self.telemetry is None else self.telemetry.publish(len(events))
            self._enqueue(Publish(events, future, span, mark))
        return future

    def _enqueue(self, item: Publish | _Job) -> None:
        self._queue.append(item)
        self._unsettle(1)
        self._wake.set()

    async def in_order(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something between two batches, when all that was offered before is done."""
        if self.is_draining:
            raise UnavailableError("the broker is stopping")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(_Job(work, future))
        return await future

    def _spanned(self, batch: Sequence[Publish]) -> contextlib.AbstractContextManager[None]:
        if self.telemetry is None:
            return contextlib.nullcontext()
        n_events = sum(len(publish.events) for publish in batch)
        return self.telemetry.batch(n_events, [publish.span for publish in batch])

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            batch = self._take_batch()
            if isinstance(batch, _Job):
                await self._do(batch)
                continue
            try:
                groups = [publish.events for publish in batch]
                with self._spanned(batch):
                    answer = await loop.run_in_executor(self._matching, self.past.match, groups)
                    waiting = self.deliver(batch, answer)
            except Exception as error:  # a bug, but the broker must not stand still
                log.exception("a batch failed")
                try:
                    self.past.undo(with_ended=True)
                except Exception:
                    log.exception("what a batch had changed could not be put back")
                for publish in batch:
                    if not publish.future.done():
                        self._settle(publish, UnavailableError(f"internal error: {error!r}"))
                continue
            if waiting is not None:
                await asyncio.wait([waiting])

    async def _do(self, job: _Job) -> None:
        try:
            if not job.future.done():  # whoever asked may have gone
                result = await job.work()
                if not job.future.done():
                    job.future.set_result(result)
        except Exception as error:
            if not job.future.done():
                job.future.set_exception(error)
        finally:
            self._unsettle(-1)

    def _take_batch(self) -> list[Publish] | _Job:
        """Take a job, or the publishes up to the next one."""
        batch: list[Publish] = []
        n = 0
        while self._queue and n < self.config.batch_events:
            first = self._queue[0]
            if isinstance(first, _Job):
                if batch:
                    break
                self._queue.popleft()
                self._tidy()
                return first
            alone = first.is_keyed and bool(self.registry.n_refusing)  # it may have to be undone
            if alone and batch:
                break
            self._queue.popleft()
            batch.append(first)
            n += len(first.events)
            if alone:
                break
        self._n_queued -= n
        self._n_bytes -= sum(len(event.text) for publish in batch for event in publish.events)
        self._tidy()
        return batch

    def _tidy(self) -> None:
        if not self._queue:
            self._wake.clear()
        if not self.is_full:
            self._room.set()

    async def listen(self, found: Subscription, session: Session, after: int = 0) -> None:
        """Have a session get the notifications of a transient subscription.

        It begins with ENTER for each publication that matches now, or with the retained events that
        match, where they come after a number.
        """
        if found.wants == 2 or not self.past.has_order(found.wanted):
            found.listeners.append(session)
        else:
            await self.in_order(lambda: self._listen(found, session, after))

    async def _listen(self, found: Subscription, session: Session, after: int) -> None:
        asked = [(found.no, found.wanted)]
        past = await asyncio.get_running_loop().run_in_executor(
            self._matching, self.past.find, asked
        )
        events = sorted((event for _, event in past if event.seq > after), key=lambda e: e.seq)
        surplus = max(0, len(events) - session.outbox.max_messages)
        session.outbox.n_dropped += surplus
        self.metrics.dropped += surplus
        for event in events[surplus:]:
            self._notify(session, found, event, 1 if found.wants else 0)
        found.listeners.append(session)
        self.flush()

    # The end.

    async def _sweep(self) -> None:
        while True:
            end, now = self.past.next_end, self.past.now()
            await asyncio.sleep(1 if end is None else min(1.0, max(0.01, (end - now) / 1e6)))
            due = self.registry.due()
            with contextlib.suppress(TocsinError):
                if due:
                    await self.remove(due)
                if end is not None and end <= self.past.now():
                    await self._end_due()
                if self.past.is_retaining:
                    await self.in_order(self._retire)

    async def _end_due(self) -> None:
        """Have publications whose time is over told of."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._enqueue(Publish([], future))
        await future

    async def _retire(self) -> None:
        gone = self.past.retire()
        if gone:
            self.storage.forget(schema.forget_retained, gone)

    async def remove(self, gone: Sequence[Subscription]) -> None:
        """Remove subscriptions and end what listens to them."""
        for found in gone:
            if found.consumer is not None:
                consumer = found.consumer
                consumer.detach()
                consumer.on_replaced()
        await self.registry.remove(gone)

    async def drain(self) -> None:
        """Take no more publishes; wait until those that are taken are settled."""
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_seconds):
                await self._settled.wait()

    async def stop(self) -> None:
        """Stop in order: settle, write, close."""
        await self.drain()
        self.is_ready = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._matching.shutdown()
        self.registry.close()
        await asyncio.get_running_loop().run_in_executor(None, self.storage.close)
