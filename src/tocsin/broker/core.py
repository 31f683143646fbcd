"""The core: publishes of all connections → micro-batches → matches → fan-out.

Enters: events from any connection of this event loop. Leaves: messages in outboxes, rows on disk,
and for each publish an acknowledgement that comes when its durable notifications are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from tocsin.broker import schema
from tocsin.broker.config import Config
from tocsin.broker.events import Event
from tocsin.broker.metrics import Metrics
from tocsin.broker.registry import Registry
from tocsin.broker.storage import Storage
from tocsin.broker.subscription import Session, Subscription
from tocsin.broker.topics import Topics
from tocsin.errors import EventError, LimitError, TocsinError, UnavailableError

_BLOCK = 1 << 20
_RECENT_BYTES = 10_000
_QUEUE_BYTES = 64 << 20
log = logging.getLogger("tocsin.broker")


class Receipt(NamedTuple):
    """What became of a publish: the numbers of its events, and how many matches they had."""

    first: int
    last: int
    matches: int


class Closable(Protocol):
    """A stream that can be told to end."""

    def close(self, reason: str) -> None:
        """End once what waits is taken."""


class _Publish:
    __slots__ = ("at", "events", "future")

    def __init__(self, events: Sequence[Event], future: asyncio.Future[Receipt]) -> None:
        self.events = events
        self.future = future
        self.at = time.perf_counter()


class Broker:
    """A broker within one event loop."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        self.config = config
        self.metrics = Metrics()
        self.storage = Storage(config.data, config.synchronous)
        self.topics = Topics(config.types, clock)
        self.registry = Registry(config, self.storage, self.topics)
        self.recent: deque[Event] = deque(maxlen=config.recent_events)
        self.registry.recent = self.recent
        self.n_connections = 0
        self.streams: set[Closable] = set()
        self.is_draining = False
        self.is_ready = False
        self.on_backlog: Callable[[Subscription], None] = lambda _: None
        self._clock = clock
        self._queue: deque[_Publish] = deque()
        self._n_queued = self._n_bytes = 0
        self._n_unsettled = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._settled = asyncio.Event()
        self._dirty: list[Session] = []
        self._matching = ThreadPoolExecutor(1, "tocsin-match")
        self._tasks: list[asyncio.Task[None]] = []
        self._next_seq = self._reserved = 0

    async def start(self) -> None:
        """Load what is stored and begin to work."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.registry.restore)
        self._next_seq = self.storage.first(schema.first_free)
        self._reserved = self._next_seq + _BLOCK
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

    def _set_gauges(self) -> None:
        gauges = self.metrics.gauges
        registry, storage = self.registry, self.storage
        gauges["subscriptions"] = ("Live subscriptions.", lambda: len(registry.by_id))
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

    def offer(self, events: Sequence[Event]) -> asyncio.Future[Receipt]:
        """Publish without waiting for room: for callers that have asked `is_full`."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self.is_draining:
            future.set_exception(UnavailableError("the broker is stopping"))
        elif not events:
            future.set_result(Receipt(0, 0, 0))
        else:
            self._queue.append(_Publish(events, future))
            self._n_queued += len(events)
            self._n_bytes += sum(len(event.text) for event in events)
            self._n_unsettled += 1
            self._settled.clear()
            self._wake.set()
        return future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            batch = self._take()
            events = [event for publish in batch for event in publish.events]
            try:
                matched = await loop.run_in_executor(self._matching, self.topics.match, events)
                self._deliver(batch, matched)
            except Exception as error:  # a bug, but the broker must not stand still
                log.exception("a batch failed")
                for publish in batch:
                    self._settle(publish, UnavailableError(f"internal error: {error!r}"))

    def _take(self) -> list[_Publish]:
        batch, n = [], 0
        while self._queue and n < self.config.batch_events:
            batch.append(self._queue.popleft())
            n += len(batch[-1].events)
        self._n_queued -= n
        self._n_bytes -= sum(len(event.text) for publish in batch for event in publish.events)
        if not self._queue:
            self._wake.clear()
        if not self.is_full:
            self._room.set()
        return batch

    def _settle(self, publish: _Publish, result: Receipt | TocsinError) -> None:
        self._n_unsettled -= 1
        if not self._n_unsettled:
            self._settled.set()
        if publish.future.done():  # whoever published has gone
            return
        if isinstance(result, Receipt):
            self.metrics.to_acknowledge.observe(time.perf_counter() - publish.at)
            publish.future.set_result(result)
        else:
            publish.future.set_exception(result)

    # Fan-out.

    def _deliver(
        self, batch: Sequence[_Publish], matched: Sequence[list[int] | TocsinError]
    ) -> None:
        rows: list[schema.EventRow] = []
        notes: list[tuple[int, int]] = []
        offers: list[tuple[Subscription, Event]] = []
        durable: list[tuple[_Publish, Receipt]] = []
        at, now = 0, time.time_ns() // 1000
        for publish in batch:
            found = matched[at : at + len(publish.events)]
            at += len(publish.events)
            refusal = self._refusal(found)
            if refusal is not None:
                self.metrics.refused += 1
                self._settle(publish, refusal)
                continue
            n_notes, n_matches = len(notes), 0
            for event, nos in zip(publish.events, found, strict=True):
                assert isinstance(nos, list)
                if event.valid_until is not None and event.valid_until <= now:
                    nos = []
                n_matches += len(nos)
                self._number(event, now)
                n_before = len(notes)
                self._fan_out(event, nos, notes, offers)
                if len(notes) > n_before:
                    rows.append(_to_row(event, len(notes) - n_before))
            receipt = Receipt(publish.events[0].seq, publish.events[-1].seq, n_matches)
            self.metrics.matches += n_matches
            self.metrics.events += len(publish.events)
            self.metrics.to_notify.observe(time.perf_counter() - publish.at, len(publish.events))
            if len(notes) > n_notes:
                durable.append((publish, receipt))
            else:
                self._settle(publish, receipt)
        self.metrics.batches += 1
        if notes:
            self._store(rows, notes, offers, durable)
        self.flush()

    def _refusal(self, found: Sequence[list[int] | TocsinError]) -> TocsinError | None:
        for row, nos in enumerate(found):
            if isinstance(nos, TocsinError):
                if isinstance(nos, EventError):
                    return EventError(nos.message, attribute=nos.attribute, row=row)
                return nos
        if self.registry.n_refusing:
            return self._overflow(found)
        return None

    def _overflow(self, found: Sequence[list[int] | TocsinError]) -> TocsinError | None:
        """Return the refusal of a subscription that may not lose what no longer fits."""
        counts: dict[int, int] = {}
        for nos in found:
            for no in nos if isinstance(nos, list) else ():
                counts[no] = counts.get(no, 0) + 1
        for no, n in counts.items():
            each = self.registry.by_no.get(no)
            if (
                each is not None
                and each.wanted.options.get("overflow") == "refuse"
                and each.pending + n > self.config.max_backlog
            ):
                return LimitError("the backlog of a subscription is full", "max_backlog", 1.0)
        return None

    def _number(self, event: Event, now: int) -> None:
        event.seq, event.published = self._next_seq, now
        self._next_seq += 1
        if len(event.text) <= _RECENT_BYTES:
            self.recent.append(event)
        if self._reserved - self._next_seq < _BLOCK // 2:
            self._reserved += _BLOCK
            self.storage.forget(schema.reserve, self._reserved)

    def _fan_out(
        self,
        event: Event,
        nos: Iterable[int],
        notes: list[tuple[int, int]],
        offers: list[tuple[Subscription, Event]],
    ) -> None:
        by_no = self.registry.by_no
        for no in nos:
            found = by_no.get(no)
            if found is None:  # unsubscribed meanwhile
                continue
            found.n_matched += 1
            if found.durable:
                notes.append((no, event.seq))
                offers.append((found, event))
            else:
                for session in found.listeners:
                    self._notify(session, found, event)

    def _notify(self, session: Session, found: Subscription, event: Event) -> None:
        """Put a transient notification into an outbox."""
        outbox = session.outbox
        n_dropped = outbox.put(session.render(found, event, False, outbox.n_dropped), True)
        self.metrics.notifications += 1
        if n_dropped:
            self.metrics.dropped += n_dropped
            if self.config.slow_consumer == "disconnect":
                session.close_slow()
        if not session.is_dirty:
            self.touch(session)

    def touch(self, session: Session) -> None:
        """Have a session flushed at the end of this round."""
        if not session.is_dirty:
            session.is_dirty = True
            self._dirty.append(session)

    def flush(self) -> None:
        """Let the sessions write that got something."""
        dirty, self._dirty = self._dirty, []
        for session in dirty:
            session.is_dirty = False
            session.flush()

    def _store(
        self,
        rows: Sequence[schema.EventRow],
        notes: Sequence[tuple[int, int]],
        offers: Sequence[tuple[Subscription, Event]],
        durable: Sequence[tuple[_Publish, Receipt]],
    ) -> None:
        for found, _ in offers:
            found.pending += 1
        future = self.storage.submit(schema.add_events, rows, notes)
        for found in {found.no: found for found, _ in offers}.values():
            self._bound(found)
        future.add_done_callback(lambda done: self._stored(done, offers, durable))

    def _bound(self, found: Subscription) -> None:
        """Keep a backlog within its bound: the oldest goes."""
        surplus = found.pending - self.config.max_backlog
        if surplus > 0 and found.wanted.options.get("overflow") != "refuse":
            found.missed += surplus
            self.metrics.overflowed += surplus
            self._lessen(found, surplus, schema.drop_oldest, surplus)

    def _stored(
        self,
        done: asyncio.Future[None],
        offers: Sequence[tuple[Subscription, Event]],
        durable: Sequence[tuple[_Publish, Receipt]],
    ) -> None:
        error = done.exception()
        if error is not None:
            log.error("a commit failed: %s", error)
            for found, _ in offers:
                found.pending -= 1
        for publish, receipt in durable:
            failure = error if isinstance(error, TocsinError) else UnavailableError(str(error))
            self._settle(publish, receipt if error is None else failure)
        if error is None:
            for found, event in offers:
                found.last_seq = event.seq
                if found.consumer is not None:
                    found.consumer.offer(event)
                else:
                    self.on_backlog(found)
        self.flush()

    # Acknowledging.

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
            for each in [each for each in found.consumer.in_flight if each <= seq]:
                del found.consumer.in_flight[each]
            found.consumer.resume()
        found.pending -= n
        self.metrics.acknowledged += n
        return n

    async def acknowledge_ids(self, found: Subscription, seqs: Sequence[int]) -> int:
        """Forget notifications of a subscription by their numbers; return how many there were."""
        n = await self.storage.submit(schema.acknowledge, found.no, seqs)
        if found.consumer is not None:
            for seq in seqs:
                found.consumer.in_flight.pop(seq, None)
            found.consumer.resume()
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

    # The end.

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1)
            due = self.registry.due()
            if due:
                with contextlib.suppress(TocsinError):
                    await self.remove(due)

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


def _to_row(event: Event, refs: int) -> schema.EventRow:
    return schema.EventRow(
        event.seq, event.type, event.text, event.extra(), event.valid_until, event.published, refs
    )
