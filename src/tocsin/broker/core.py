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
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from tocsin.broker import schema
from tocsin.broker.admission import Admission
from tocsin.broker.audit import Audit, names_of
from tocsin.broker.config import Config
from tocsin.broker.events import Event
from tocsin.broker.fan_out import BLOCK, Change, FanOut, Publish
from tocsin.broker.fan_out import Receipt as Receipt
from tocsin.broker.idempotency import Entry, Key
from tocsin.broker.metrics import Metrics
from tocsin.broker.network import Mark
from tocsin.broker.quota import Rates, excess, mean_sizes
from tocsin.broker.storage import SOUND, Storage
from tocsin.broker.subscription import Session, Subscription
from tocsin.broker.supervisor import Supervisor
from tocsin.broker.tokens import Principal
from tocsin.errors import DiskFullError, TocsinError, UnavailableError

T = TypeVar("T")
_QUEUE_BYTES = 64 << 20
_BOUND_EVERY = 10.0
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
        storage = Storage(config.data, config.synchronous, check_seconds=config.check_seconds)
        super().__init__(config, storage, Metrics(), clock)
        self.registry.teller = self
        self.n_connections = 0
        self.admission = Admission(config.limits)
        self.rates = Rates(config.limits)
        self.streams: set[Closable] = set()
        self.is_draining = False
        self.is_ready = False
        self._queue: deque[Publish | _Job] = deque()
        self._n_queued = self._n_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._matching = ThreadPoolExecutor(1, "tocsin-match")
        self.supervisor = Supervisor(self.metrics)
        self.audit = Audit(config, self.metrics)

    async def start(self) -> None:
        """Load what is stored and begin to work; where that fails, let the folder go."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._restore)
        except BaseException:
            self.storage.close()
            raise
        self.storage.start()
        self.bound_dead(self.registry.by_no)
        self._room.set()
        self._settled.set()
        self._set_gauges()
        self.disk.start()
        self.supervisor.check("the database writer", self.storage.find_problem)
        self.supervisor.keep("batches", self._work)
        self.supervisor.keep("sweep", self._sweep)
        await loop.run_in_executor(self._matching, self.topics.match, [Event(None, {}, b"{}")])
        self.is_ready = True

    def _restore(self) -> None:
        if sqlite3.sqlite_version_info < SOUND:
            log.warning(
                "SQLite %s can damage a database that two processes write; 3.51.3 does not",
                sqlite3.sqlite_version,
            )
        numbers = self.storage.begin_numbers(BLOCK)
        self.epoch, self._first_seq, self._next_seq = numbers.epoch, numbers.first, numbers.next
        self._reserved = numbers.next + BLOCK
        if numbers.reason is not None:
            log.warning(
                "a new epoch begins: %s; event numbers go on at %d", numbers.reason, numbers.next
            )
        if self.network is not None:
            self.registry.network = self.network
            self.network.restore()
        self.registry.restore()
        for no, mean in self.storage.first(mean_sizes):
            if no in self.registry.by_no:
                self.registry.by_no[no].mean_bytes = mean
        self.restore_dead(self.registry.by_no)
        oldest = self.idempotency.oldest()
        self.storage.first(lambda c: schema.forget_keys(c, oldest, []))
        self.idempotency.restore(self.storage.first(lambda c: schema.keys(c, oldest)))
        self.past.restore(
            self.storage.first(schema.publications), self.storage.first(schema.retained)
        )

    def _set_gauges(self) -> None:
        gauges = self.metrics.gauges
        registry, storage, past = self.registry, self.storage, self.past
        gauges["subscriptions"] = ("Live subscriptions.", lambda: len(registry.by_id))
        gauges["quarantined"] = (
            "Stored subscriptions that could not be loaded.",
            lambda: sum(each.quarantine is not None for each in registry.by_id.values()),
        )
        gauges["publications"] = ("Publications that stay.", lambda: len(past.by_place))
        gauges["retained"] = ("Events retained.", lambda: len(past.retained))
        gauges["connections"] = ("Open connections.", lambda: self.n_connections)
        gauges["strangers"] = (
            "Open connections that have not shown who they are.",
            lambda: self.admission.n_strangers,
        )
        gauges["queue_events"] = ("Events that wait to be matched.", lambda: self._n_queued)
        gauges["storage_waiting"] = ("Changes that wait for disk.", lambda: storage.n_waiting)
        gauges["storage_bytes"] = ("Bytes of the database.", storage.size)
        gauges["disk_free_bytes"] = ("Bytes that may still be written.", self.disk.free)
        gauges["backlog"] = (
            "Notifications that wait for an acknowledgement.",
            lambda: sum(each.pending for each in registry.by_id.values()),
        )
        gauges["idempotency_keys"] = (
            "Idempotency keys that are kept.",
            lambda: len(self.idempotency),
        )
        gauges["dead_letters"] = (
            "Dead letters that are kept.",
            lambda: sum(each.dead for each in registry.by_id.values()),
        )
        gauges["dead_letter_bytes"] = (
            "Bytes of the dead letters that are kept.",
            lambda: sum(each.dead_bytes for each in registry.by_id.values()),
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

    async def publish(self, events: Sequence[Event], key: Key | None = None) -> Receipt:
        """Publish events, all of them or none; return when durable notifications are on disk.

        With a key that was used for the same events before, return what became of these.
        """
        await self.room()
        return await (self.offer(events) if key is None else self.offer_once(events, key))

    def is_known(self, key: Key) -> bool:
        """Whether something was published, or is being published, under an idempotency key."""
        return self.idempotency.find(key) is not None

    def offer_once(
        self, events: Sequence[Event], key: Key, change: Change | None = None
    ) -> asyncio.Future[Receipt]:
        """Publish as `offer` does, unless that was done under the same key before."""
        if self.is_draining or not events:
            return self.offer(events)
        entry = self.idempotency.find(key)
        if entry is None:
            entry = self.idempotency.begin(key)
            return self.offer(events, change=change, entries=[entry])
        if entry.is_in_doubt:
            return asyncio.ensure_future(self._offer_doubtful(events, key, change))
        self.metrics.replayed += 1
        return entry.replay()

    async def _offer_doubtful(
        self, events: Sequence[Event], key: Key, change: Change | None
    ) -> Receipt:
        """Publish under a key whose commit failed: unless it is on disk all the same."""
        await self._end_doubt(key)
        return await self.offer_once(events, key, change)

    async def _end_doubt(self, key: Key) -> None:
        """Ask the database about a key whose commit failed."""
        row = await self.storage.submit(schema.find_key, key.owner, key.name)
        entry = self.idempotency.find(key)
        if entry is not None and entry.is_in_doubt:
            self.idempotency.forgive(entry, row)

    async def publish_each(
        self, events: Sequence[Event], keys: Sequence[Key]
    ) -> tuple[Receipt, int]:
        """Publish those events of a request whose own keys are new: all of these or none.

        Return their receipt, and how many events were left out. Where none is new, the receipt has
        the numbers that they got before.
        """
        await self.room()
        for key in dict.fromkeys(keys):  # what others publish meanwhile is waited for
            entry = self.idempotency.find(key)
            if entry is not None and entry.is_in_doubt:
                await self._end_doubt(key)
            elif entry is not None and entry.receipt is None:
                with contextlib.suppress(TocsinError):
                    await entry.replay()
        if self.is_draining or not events:
            return await self.offer(events), 0
        known = [entry for entry in map(self.idempotency.find, keys) if entry is not None]
        if any(entry.receipt is None for entry in known):  # begun since
            return await self.publish_each(events, keys)
        first = dict(reversed(list(zip(keys, events, strict=True))))
        fresh = {key: first[key] for key in dict.fromkeys(keys) if not self.is_known(key)}
        self.metrics.replayed += len(events) - len(fresh)
        if fresh:
            entries = [self.idempotency.begin(key, event) for key, event in fresh.items()]
            receipt = await self.offer(list(fresh.values()), entries=entries)
        else:
            receipts = [entry.receipt for entry in known if entry.receipt is not None]
            numbers = [number for each in receipts for number in (each.first, each.last)]
            receipt = Receipt(min(numbers), max(numbers), 0, replayed=True)
        return receipt, len(events) - len(fresh)

    def _forget_keys(self) -> None:
        """Forget idempotency keys whose window is over."""
        gone = self.idempotency.expire()
        if gone:
            self.storage.forget(schema.forget_keys, self.idempotency.oldest(), gone)

    def offer(
        self,
        events: Sequence[Event],
        mark: Mark | None = None,
        change: Change | None = None,
        entries: Sequence[Entry] = (),
    ) -> asyncio.Future[Receipt]:
        """Publish without waiting for room: for callers that have asked `is_full`.

        A `change` is made in the transaction that stores the events: both or none. The
        `entries` are those of the publish's idempotency keys.
        """
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self.is_draining:
            future.set_exception(UnavailableError("the broker is stopping"))
        elif self.storage.fatal is not None:
            future.set_exception(UnavailableError(self.storage.fatal))
        elif not events:
            future.set_result(Receipt(0, 0, 0))
        elif self.disk.is_low and any(
            e.gone is None and (e.key is not None or e.retain_until is not None) for e in events
        ):
            future.set_exception(DiskFullError("the disk is nearly full: nothing more is stored"))
        else:
            self._n_queued += len(events)
            self._n_bytes += sum(len(event.text) for event in events)
            if not self.past.is_retaining:
                self.past.is_retaining = any(e.retain_until is not None for e in events)
            if self.network is not None and mark is None:
                self.network.publishing(events)
            span = None if self.telemetry is None else self.telemetry.publish(len(events))
            self._enqueue(Publish(events, future, span, mark, change, entries))
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
        while True:
            await self._wake.wait()
            batch = self._take_batch()
            if isinstance(batch, _Job):
                await self._do(batch)
                continue
            try:
                waiting = await self._run_batch(batch)
            except Exception as error:
                self._undo()
                if len(batch) == 1 or isinstance(error, UnavailableError):
                    for publish in batch:
                        self._fail(publish, error)
                    continue
                log.exception("a batch failed; its publishes are run one by one")
                waiting = await self._run_each(batch)
            if waiting is not None:
                await asyncio.wait([waiting])

    async def _run_batch(self, batch: list[Publish]) -> asyncio.Future[list[int]] | None:
        """Match and deliver a batch; where this raises, nothing of it was delivered."""
        n_events = sum(len(publish.events) for publish in batch)
        if self._reserved - self._next_seq < BLOCK // 2 + n_events:
            await self.ensure_numbers(n_events + self.past.n_ends)
        groups = [publish.events for publish in batch]
        loop = asyncio.get_running_loop()
        with self._spanned(batch):
            answer = await loop.run_in_executor(self._matching, self.past.match, groups)
            return self.deliver(batch, answer)

    async def _run_each(self, batch: list[Publish]) -> asyncio.Future[list[int]] | None:
        """Run the publishes of a batch one by one, so that a bad one fails alone."""
        last = None
        for publish in batch:
            try:
                waiting = await self._run_batch([publish])
            except Exception as error:
                self._undo()
                self._fail(publish, error)
                continue
            if waiting is not None:
                await asyncio.wait([waiting])
                last = waiting
        return last

    def _undo(self) -> None:
        try:
            self.past.undo(with_ended=True)
        except Exception:
            log.exception("what a batch had changed could not be put back")

    def _fail(self, publish: Publish, error: Exception) -> None:
        """Refuse a publish that could not be run."""
        if not isinstance(error, TocsinError):  # a bug, but the broker must not stand still
            log.error("a publish failed", exc_info=error)
            error = UnavailableError(f"internal error: {error!r}")
        self.metrics.refused += 1
        self._settle(publish, error)

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
        next_bound = 0.0
        while True:
            end, now = self.past.next_end, self.past.now()
            await asyncio.sleep(1 if end is None else min(1.0, max(0.01, (end - now) / 1e6)))
            due = self.registry.due()
            self._forget_keys()
            with contextlib.suppress(TocsinError):
                if due:
                    self.audit.note("subscription.expire", None, **names_of([d.id for d in due]))
                    await self.remove(due)
                await self.expire_dead(self.registry.by_no)
                if end is not None and end <= self.past.now():
                    await self._end_due()
                if self.past.is_retaining:
                    await self.in_order(self._retire)
                if self.config.limits.max_durable_bytes and time.monotonic() >= next_bound:
                    next_bound = time.monotonic() + _BOUND_EVERY
                    await self._bound_tokens()
            self.supervisor.recovered("sweep")

    async def _bound_tokens(self) -> None:
        """Keep what each token has in backlogs within its bytes."""
        every = list(self.registry.by_no.values())
        loop = asyncio.get_running_loop()
        for found, n in await loop.run_in_executor(None, excess, every, self.config):
            self.drop_oldest(found, min(n, found.pending))

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
        await self.registry.remove(gone)
        for found in gone:
            if found.consumer is not None:
                consumer = found.consumer
                consumer.detach()
                consumer.on_replaced()

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
        self.disk.stop()
        await self.supervisor.stop()
        self._matching.shutdown()
        self.registry.close()
        self.audit.close()
        await asyncio.get_running_loop().run_in_executor(None, self.storage.close)
