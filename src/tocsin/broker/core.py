"""The broker: its parts, wired in one place, and its lifecycle.

Enters: a configuration. Leaves: a `Broker` that publishes events: `publish` and `offer` put them
into the ingest queue, the batch loop matches and delivers them. A publish is acknowledged when its
durable notifications are on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence

from tocsin.broker import schema
from tocsin.broker.admission import Admission, Connections
from tocsin.broker.audit import Audit, names_of
from tocsin.broker.backlog import Backlog
from tocsin.broker.batches import BatchLoop
from tocsin.broker.config import Config
from tocsin.broker.delivery import Delivery
from tocsin.broker.events import Event
from tocsin.broker.hints import hints, type_hint
from tocsin.broker.idempotency import Entry, Idempotency, Key, Receipt
from tocsin.broker.ingest import Change, IngestQueue, Publish
from tocsin.broker.matching import BatchMatcher
from tocsin.broker.metrics import Metrics
from tocsin.broker.network import Mark, Network
from tocsin.broker.numbers import SequenceNumbers
from tocsin.broker.publications import PublicationTable
from tocsin.broker.quota import Disk, Rates, excess, mean_sizes
from tocsin.broker.registry import Registry
from tocsin.broker.storage import SOUND, Storage, decoded
from tocsin.broker.subscription import Subscription, SubscriptionSpec, SubscriptionTable
from tocsin.broker.supervisor import Supervisor
from tocsin.broker.telemetry import Telemetry
from tocsin.broker.webhooks import Webhooks
from tocsin.errors import DiskFullError, TocsinError, UnavailableError
from tocsin.language import parse
from tocsin.loading import prepare
from tocsin.normalize.bind import bind
from tocsin.normalize.budget import MAX_STEPS, Budget

_BOUND_EVERY = 10.0
log = logging.getLogger("tocsin.broker")


class Broker:
    """A broker within one event loop.

    `network` makes its part in a network of brokers. `on_bulk_load` is called after many
    subscriptions were added at once, `on_fatal` when the database can be used no more.
    """

    def __init__(
        self,
        config: Config,
        clock: Callable[[], float] = time.time,
        *,
        network: Callable[[Broker], Network] | None = None,
        on_bulk_load: Callable[[], None] = lambda: None,
        on_fatal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.config = config
        self.is_ready = False
        self.storage = storage = Storage(
            config.data, config.synchronous, check_seconds=config.check_seconds, on_fatal=on_fatal
        )
        self.metrics = metrics = Metrics()
        self.supervisor = Supervisor(metrics)
        self.audit = Audit(config, metrics)
        self.telemetry = Telemetry() if config.telemetry else None
        self.admission = Admission(config.limits)
        self.connections = Connections(config.limits)
        self.rates = Rates(config.limits)
        self.disk = Disk(config.data, config.min_free_bytes)
        self.numbers = numbers = SequenceNumbers(storage)
        self.ingest = ingest = IngestQueue(config)
        self.idempotency = Idempotency(config.idempotency_seconds, config.idempotency_keys)
        self.subscriptions = subscriptions = SubscriptionTable()
        self.publications = publications = PublicationTable(config, clock)
        self.matcher = matcher = BatchMatcher(config.types, clock, publications)
        self.backlog = backlog = Backlog(config, storage, metrics)
        self.network = None if network is None else network(self)
        self.webhooks = Webhooks(
            config, storage=storage, metrics=metrics, subscriptions=subscriptions, backlog=backlog,
            ingest=ingest, supervisor=self.supervisor, telemetry=self.telemetry,
        )  # fmt: skip
        self.delivery = delivery = Delivery(
            config, storage=storage, metrics=metrics, numbers=numbers, ingest=ingest,
            publications=publications, subscriptions=subscriptions, backlog=backlog,
            idempotency=self.idempotency, disk=self.disk, network=self.network,
            on_backlog=self.webhooks.wake,
        )  # fmt: skip
        self.batches = BatchLoop(
            ingest=ingest, matcher=matcher, publications=publications,
            subscriptions=subscriptions, numbers=numbers, delivery=delivery, metrics=metrics,
            telemetry=self.telemetry,
        )  # fmt: skip
        self.registry = Registry(
            config, storage=storage, matcher=matcher, publications=publications,
            subscriptions=subscriptions, ingest=ingest, delivery=delivery, backlog=backlog,
            network=self.network, on_bulk_load=on_bulk_load,
        )  # fmt: skip

    # The start.

    async def start(self) -> None:
        """Load the database and begin to work; where that fails, release the folder."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._restore)
        except BaseException:
            self.storage.close()
            raise
        self.storage.start()
        self.backlog.bound_dead(self.subscriptions.by_no)
        self._set_gauges()
        self.disk.start()
        self.supervisor.check("the database writer", self.storage.find_problem)
        self.supervisor.keep("batches", self.batches.run)
        self.supervisor.keep("sweep", self._sweep)
        await self.batches.warm_up()
        self.is_ready = True

    def _restore(self) -> None:
        if sqlite3.sqlite_version_info < SOUND:
            log.warning(
                "SQLite %s can damage a database that two processes write; 3.51.3 does not",
                sqlite3.sqlite_version,
            )
        storage, by_no = self.storage, self.subscriptions.by_no
        path = storage.path
        with decoded(path, "the sequence numbers"):
            self.numbers.restore()
        if self.network is not None:
            with decoded(path, "the links"):
                self.network.restore()
        with decoded(path, "the subscriptions"):
            self.registry.restore()
        for no, mean in storage.first(mean_sizes):
            if no in by_no:
                by_no[no].mean_bytes = mean
        with decoded(path, "the dead letters"):
            self.backlog.restore_dead(by_no)
        oldest = self.idempotency.oldest()
        storage.first(lambda c: schema.forget_keys(c, oldest, []))
        with decoded(path, "the idempotency keys"):
            self.idempotency.restore(storage.first(lambda c: schema.keys(c, oldest)))
        with decoded(path, "the publications and retained events"):
            self.publications.restore(
                storage.first(schema.publications), storage.first(schema.retained)
            )

    def _set_gauges(self) -> None:
        gauges = self.metrics.gauges
        subscriptions, storage = self.subscriptions, self.storage
        publications = self.publications
        gauges["subscriptions"] = ("Live subscriptions.", lambda: len(subscriptions.by_id))
        gauges["quarantined"] = (
            "Stored subscriptions that could not be loaded.",
            lambda: sum(each.quarantine is not None for each in subscriptions.by_id.values()),
        )
        gauges["publications"] = ("Publications.", lambda: len(publications.by_address))
        gauges["retained"] = ("Retained events.", lambda: len(publications.retained))
        gauges["connections"] = ("Open connections.", lambda: self.connections.n)
        gauges["strangers"] = (
            "Open connections that are not authenticated.",
            lambda: self.admission.n_strangers,
        )
        gauges["queue_events"] = ("Events in the ingest queue.", lambda: self.ingest.n_events)
        gauges["storage_waiting"] = ("Changes that wait for the disk.", lambda: storage.n_waiting)
        gauges["storage_bytes"] = ("Bytes of the database.", storage.size)
        gauges["disk_free_bytes"] = ("Free bytes on the disk.", self.disk.free)
        gauges["backlog"] = (
            "Unacknowledged notifications.",
            lambda: sum(each.pending for each in subscriptions.by_id.values()),
        )
        gauges["idempotency_keys"] = (
            "Idempotency keys.",
            lambda: len(self.idempotency),
        )
        gauges["dead_letters"] = (
            "Dead letters.",
            lambda: sum(each.dead for each in subscriptions.by_id.values()),
        )
        gauges["dead_letter_bytes"] = (
            "Bytes of dead letters.",
            lambda: sum(each.dead_bytes for each in subscriptions.by_id.values()),
        )

    # Publishing.

    async def publish(self, events: Sequence[Event], key: Key | None = None) -> Receipt:
        """Publish events, all or none; return when their durable notifications are on disk.

        With a key that was used for the same events before, return the receipt of the first time.
        """
        await self.ingest.capacity()
        return await (self.offer(events) if key is None else self.offer_once(events, key))

    def is_known(self, key: Key) -> bool:
        """Return whether an idempotency key was used, or is in use."""
        return self.idempotency.find(key) is not None

    def offer_once(
        self, events: Sequence[Event], key: Key, change: Change | None = None
    ) -> asyncio.Future[Receipt]:
        """Publish as `offer` does, or return the receipt of the first publish under the key."""
        if self.ingest.is_draining or not events:
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
        """Publish under a key whose commit failed, unless the database has it all the same."""
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
        """Publish the events of a request whose own keys are new: all of these or none.

        Return their receipt, and how many events were left out. Where none is new, the receipt has
        the numbers of the first publishes.
        """
        await self.ingest.capacity()
        for key in dict.fromkeys(keys):  # a publish in progress under the same key comes first
            entry = self.idempotency.find(key)
            if entry is not None and entry.is_in_doubt:
                await self._end_doubt(key)
            elif entry is not None and entry.receipt is None:
                with contextlib.suppress(TocsinError):
                    await entry.replay()
        if self.ingest.is_draining or not events:
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
        """Delete idempotency keys whose window is over."""
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
        """Publish without waiting for capacity: the caller looks at `ingest.is_full` before.

        A `change` is made in the transaction that stores the events: both or none. `entries` are
        the idempotency keys of the publish.
        """
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self.ingest.is_draining:
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
            self.publications.expect_retained(events)
            if self.network is not None and mark is None:
                self.network.publishing(events)
            span = None if self.telemetry is None else self.telemetry.publish(len(events))
            self.ingest.put(Publish(events, future, span, mark, change, entries))
        return future

    # Housekeeping, and the end.

    async def _sweep(self) -> None:
        next_bound = 0.0
        publications = self.publications
        while True:
            end, now = publications.next_end, publications.now()
            await asyncio.sleep(1 if end is None else min(1.0, max(0.01, (end - now) / 1e6)))
            due = self.registry.due()
            self._forget_keys()
            with contextlib.suppress(TocsinError):
                if due:
                    self.audit.note("subscription.expire", None, **names_of([d.id for d in due]))
                    await self.remove(due)
                await self.backlog.expire_dead(self.subscriptions.by_no)
                if end is not None and end <= publications.now():
                    await self._expire_publications()
                if publications.is_retaining:
                    await self.ingest.in_order(self._drop_retained)
                if self.config.limits.max_durable_bytes and time.monotonic() >= next_bound:
                    next_bound = time.monotonic() + _BOUND_EVERY
                    await self._bound_tokens()
            self.supervisor.recovered("sweep")

    async def _bound_tokens(self) -> None:
        """Drop the oldest notifications of tokens whose backlogs exceed `max_durable_bytes`."""
        every = list(self.subscriptions.by_no.values())
        loop = asyncio.get_running_loop()
        for subscription, n in await loop.run_in_executor(None, excess, every, self.config):
            self.backlog.drop_oldest(subscription, min(n, subscription.pending))

    async def _expire_publications(self) -> None:
        """Run an empty publish: each batch begins with the publications that have expired."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.ingest.put(Publish([], future))
        await future

    async def _drop_retained(self) -> None:
        gone = self.publications.retire()
        if gone:
            self.storage.forget(schema.forget_retained, gone)

    def recent_of(self, type: str | None) -> list[Event]:
        """Return the recent events that a subscription to a type meets; None: to all types."""
        recent = list(self.delivery.recent)
        return recent if type is None else [event for event in recent if event.type == type]

    async def warnings(self, spec: SubscriptionSpec) -> list[str]:
        """Return what is suspect about a subscription; nothing where others wait for trials."""
        recent, event_type = self.recent_of(spec.type), self.matcher.event_type(spec.type)

        def sentences() -> list[str]:
            budget = Budget(MAX_STEPS)
            form = prepare(spec.where, spec.params, event_type, budget=budget).form
            return hints(bind(parse(spec.where), spec.params), form, event_type, recent)

        about_type = type_hint(spec.type, self.matcher.types, list(self.delivery.recent))
        try:
            about_condition = await self.registry.try_out(sentences)
        except TocsinError:
            about_condition = []
        return [*([about_type] if about_type else []), *about_condition]

    async def remove(self, gone: Sequence[Subscription]) -> None:
        """Remove subscriptions and end their readers."""
        await self.registry.remove(gone)
        for subscription in gone:
            if subscription.consumer is not None:
                consumer = subscription.consumer
                consumer.detach()
                consumer.on_replaced()

    async def stop(self) -> None:
        """Settle publishes, write, close."""
        await self.ingest.drain()
        self.is_ready = False
        self.disk.stop()
        await self.webhooks.stop()
        await self.supervisor.stop()
        self.batches.close()
        self.registry.close()
        self.audit.close()
        await asyncio.get_running_loop().run_in_executor(None, self.storage.close)
