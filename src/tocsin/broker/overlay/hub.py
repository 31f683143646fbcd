"""The hub: the router of a running broker.

Enters: the broker's subscriptions and events (`network.Network`), connections to neighbours, what
they say. Leaves: messages on those connections, and for each event the numbers of the neighbours
that get it. A neighbour is to the core what a subscriber is: under one number it is durable, and
its events are on disk until it acknowledges them; under another it is transient. So what waits for
a link is stored, paged and bounded as what waits for a subscriber is.

Used within the event loop, but for `restore` and what it calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tocsin.broker import schema
from tocsin.broker.core import Broker
from tocsin.broker.durable import Consumer
from tocsin.broker.events import Event
from tocsin.broker.overlay import rows
from tocsin.broker.overlay.forms import ALWAYS
from tocsin.broker.overlay.grades import Grading
from tocsin.broker.overlay.messages import Message, Speech, to_plain
from tocsin.broker.overlay.router import Router
from tocsin.broker.overlay.seen import Seen
from tocsin.broker.protocol import json_text
from tocsin.broker.subscription import Session, Subscription, SubscriptionSpec
from tocsin.broker.transitions import ENTER
from tocsin.errors import (
    ArgumentError,
    ConditionCostError,
    LimitError,
    ProtocolError,
    TocsinError,
    TooManyConjunctionsError,
    UnknownSubscriptionError,
)
from tocsin.language import parse
from tocsin.normalize import NormalForm, bind, normalize

_MOST_NEIGHBOURS = 1_000
_SAVE = 0.02
"""Seconds in which changes of the router's state are stored together."""
log = logging.getLogger("tocsin.network")


class Connection(Session, Protocol):
    """What the hub needs of a connection to a neighbour."""

    principal: Any
    is_revoked: bool
    told: Speech
    heard: Speech

    def close(self, reason: str) -> None:
        """End it."""

    def revoke(self) -> None:
        """End it at once."""


@dataclass
class Neighbour:
    """A broker that this one is linked to, now or at times."""

    name: str
    durable: Subscription
    transient: Subscription
    instance: str
    taken: int = 0
    """The last number of its that is on disk here."""
    busy: asyncio.Future[Any] | None = None
    """Events of its that are being stored."""
    connection: Connection | None = None
    opened_by: str = ""
    """Which end opened the connection."""
    consumer: Consumer | None = None
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("events_in", "events_out", "bytes_in", "bytes_out", "spurious", "refused", "ups"), 0
        )
    )


class Hub:
    """One broker's part in a network."""

    def __init__(self, broker: Broker) -> None:
        config = broker.config
        self.broker = broker
        self.name = config.name
        self.instance = ""
        self.neighbours: dict[str, Neighbour] = {}
        self.spurious = 0
        self.repeated = 0
        self.seen = Seen()
        self.router = self._router()
        self._watchers: dict[str | None, set[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_scheduled = self._is_saving = False
        self._saved = ""
        self._loop: asyncio.AbstractEventLoop | None = None

    def _router(self) -> Router:
        config = self.broker.config
        grading = Grading(config.link_grade, bound=config.link_bound, max_pieces=config.link_pieces)
        return Router(self.name, grading, levels=config.link_levels)

    # Before the start.

    def restore(self) -> None:
        """Load what is stored, before the broker starts."""
        storage = self.broker.storage
        self.instance, state = storage.first(rows.prepare)
        self.name = self.name or f"broker-{self.instance[:8]}"
        self.router = self._router()
        for row in storage.first(rows.neighbours):
            self._add(row)
        if state is not None:
            try:
                self.router.restore(json.loads(state))
            except (KeyError, TypeError, ValueError, TocsinError):
                log.exception("what neighbours wanted cannot be read; they get everything for now")
                self.router = self._router()
        for name in self.neighbours:
            self.router.expect(name)
        waiting = {no: (n, last) for no, n, last in storage.first(rows.waiting)}
        for each in self.neighbours.values():
            found = each.durable
            found.pending, found.last_seq = waiting.get(found.no, (0, 0))
        self._set_gauges()

    def start(self) -> None:
        """Begin to talk: the broker has started."""
        self._loop = asyncio.get_running_loop()
        self.flush()
        self._save_now()  # from now on what is stored may be behind

    async def stop(self) -> None:
        """Store what neighbours said: the links are closed, and nothing comes after it."""
        self._loop = None
        self._save_now()
        with contextlib.suppress(TocsinError):
            await self.broker.storage.submit(rows.save_state, self._saved)

    def _set_gauges(self) -> None:
        gauges, each = self.broker.metrics.gauges, self.neighbours
        gauges["links"] = ("Neighbours known.", lambda: len(each))
        gauges["links_up"] = (
            "Neighbours connected.",
            lambda: sum(n.connection is not None for n in each.values()),
        )
        gauges["links_waiting"] = (
            "Events that wait for neighbours.",
            lambda: sum(n.durable.pending for n in each.values()),
        )
        gauges["links_ignored"] = (
            "States of brokers that were not believed.",
            lambda: self.router.graph.ignored,
        )
        gauges["links_refused"] = (
            "Events of neighbours that were refused.",
            lambda: sum(n.counts["refused"] for n in each.values()),
        )
        gauges["links_spurious"] = (
            "Events of neighbours that nobody here wanted.",
            lambda: self.spurious,
        )
        for name in ("events_in", "events_out", "bytes_in", "bytes_out"):
            gauges[f"links_{name}"] = (
                f"{name.partition('_')[0].capitalize()} over links, {name[-3:].strip('_')}.",
                lambda name=name: sum(n.counts[name] for n in each.values()),  # type: ignore[misc]
            )

    def _add(self, row: rows.NeighbourRow) -> Neighbour:
        id = f"link:{row.name}"
        options = {"max_backlog": self.broker.config.link_backlog}
        durable = Subscription(
            row.no, SubscriptionSpec(id, "", durable=True, options=options, stored=False), 0
        )
        transient = Subscription(row.no - 1, SubscriptionSpec(id, "", stored=False), 0)
        found = Neighbour(row.name, durable, transient, row.instance, row.taken)
        self.neighbours[row.name] = found
        self.broker.subscriptions.by_no[durable.no] = durable
        self.broker.subscriptions.by_no[transient.no] = transient
        return found

    # What the core says.

    def subscribed(self, subscription: Subscription) -> None:
        """Take note of a subscription that is new or changed."""
        wanted = subscription.spec
        if subscription.transition_mask:  # transitions need every publication
            form = ALWAYS
            self._watchers.setdefault(wanted.type, set()).add(subscription.no)
        else:
            form = self._form(wanted) if subscription.form is None else subscription.form
            subscription.form = None
        self.router.subscribe(subscription.no, wanted.type, form, keep=subscription.durable)
        self._schedule()

    def _form(self, wanted: SubscriptionSpec) -> NormalForm:
        """Return the normal form of a stored condition; of one that costs too much, all events."""
        event_type = self.broker.matcher.event_type(wanted.type)
        try:
            return normalize(bind(parse(wanted.where), wanted.params), event_type)
        except (ConditionCostError, TooManyConjunctionsError):
            return ALWAYS

    def unsubscribed(self, subscription: Subscription) -> None:
        """Take note of a subscription that is gone."""
        self.router.unsubscribe(subscription.no)
        self._schedule()
        type = subscription.spec.type
        if subscription.transition_mask and type in self._watchers:
            self._watchers[type].discard(subscription.no)
            if not self._watchers[type]:
                self._spawn(self._forget_past(type))

    def publishing(self, events: Sequence[Event]) -> None:
        """Advertise types before their first events."""
        new = {event.type for event in events} - self.router.types
        for type in new:
            self.router.advertise(type)
        if new:
            self.flush()
            self._save()

    def route(self, event: Event, is_matched: bool) -> Sequence[int]:
        """Return the numbers of the neighbours that get an event."""
        if event.gone == "expired":  # every broker finds out by itself
            return ()
        found = []
        for peer, keep in self.router.route(
            event.type, event.attributes, event.source, event.numbers
        ):
            neighbour = self.neighbours.get(peer)
            is_for_all = event.gone is None and not event.is_past
            if neighbour is None or not (is_for_all or self.watches(peer, event.type)):
                continue
            if keep:
                found.append(neighbour.durable.no)
            elif neighbour.connection is not None:
                found.append(neighbour.transient.no)
        if event.source is not None and not is_matched and not found:
            self.spurious += 1
            if event.source in self.neighbours:
                self.neighbours[event.source].counts["spurious"] += 1
        return found

    def watches(self, peer: str, type: str | None) -> bool:
        """Whether a neighbour gets all publications of a type, so that it may know their keys."""
        link = self.router.links.get(peer)
        if link is None:
            return False
        wants = [link.wants.get(topic) for topic in {None, type} if topic not in link.pending]
        return any(
            want is not None and any(not held for held in want.slots.values()) for want in wants
        )

    # Connections.

    async def meet(
        self, name: str, instance: str, connection: Connection, opened_by: str, levels: int = 0
    ) -> Neighbour:
        """Take up a connection to a neighbour, in the place of an older one.

        Where both ends open one, that of the end whose name comes first stays. `levels` are those
        that the neighbour matches with.
        """
        if name == self.name:
            raise ArgumentError(f"both ends are called {name!r}; every broker needs its own name")
        found = self.neighbours.get(name)
        if found is not None and found.connection is not None and found.opened_by < opened_by:
            raise ProtocolError(f"{name} is linked already")
        if found is None:
            if len(self.neighbours) >= _MOST_NEIGHBOURS:
                raise LimitError("too many neighbours; forget some", "neighbours")
            no = min((n.transient.no for n in self.neighbours.values()), default=0) - 1
            found = self._add(rows.NeighbourRow(name, no, instance, 0))
            await self._store(found)
        elif found.instance != instance:  # its database is new, and its numbers begin anew
            found.instance, found.taken = instance, 0
            await self._store(found)
        if found.connection is not None:
            found.connection.close("replaced")
            self.part(found, found.connection)
        found.connection, found.opened_by = connection, opened_by
        found.counts["ups"] += 1
        self.router.link_up(name, levels)
        self.flush()
        found.transient.listeners = [connection]
        found.consumer = Consumer(
            self.broker,
            found.durable,
            connection,
            lambda: connection.close("replaced"),
            window=self.broker.config.window,
        )
        found.consumer.attach()
        self._save()
        log.info("linked to %s", name)
        self.broker.audit.note("link.up", None, peer=name, opened_by=opened_by)
        return found

    async def _store(self, found: Neighbour) -> None:
        row = rows.NeighbourRow(found.name, found.durable.no, found.instance, found.taken)
        await self.broker.storage.submit(rows.set_neighbour, row)

    def part(self, found: Neighbour, connection: Connection) -> None:
        """Let a connection go; what the neighbour has not acknowledged waits."""
        if found.connection is not connection:
            return
        found.connection = None
        found.transient.listeners = []
        if found.consumer is not None:
            found.consumer.detach()
            found.consumer = None
        self.router.link_down(found.name)
        self.flush()
        self._save()
        log.info("no longer linked to %s", found.name)
        self.broker.audit.note("link.down", None, peer=found.name)

    async def forget(self, name: str) -> None:
        """Forget a neighbour and all that waits for it."""
        found = self.neighbours.pop(name, None)
        if found is None:
            raise UnknownSubscriptionError(name)
        if found.connection is not None:
            found.connection.close("forgotten")
            self.part(found, found.connection)
        self.router.forget(name)
        for each in (found.durable, found.transient):
            self.broker.subscriptions.by_no.pop(each.no, None)
        self.flush()
        self._save()
        storage = self.broker.storage
        await storage.submit(schema.remove_subscriptions, [found.durable.no])
        await storage.submit(rows.remove_neighbour, name)

    # Messages.

    def hear(self, found: Neighbour, message: Message) -> None:
        """Take in what a neighbour says about routing."""
        before = watched(self.router, found.name)
        self.router.receive(found.name, message)
        now = watched(self.router, found.name)
        if now - before:
            self._spawn(self._tell_past(found, now - before))
        self._save()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_past(self, found: Neighbour, topics: set[str | None]) -> None:
        """Send the publications that are there to a neighbour that begins to watch them.

        They are marked: its other subscriptions had them when they were published.
        """

        async def work() -> None:
            told = [
                (found.durable, event, ENTER)
                for (type, _), event in list(self.broker.publications.by_address.items())
                if (type in topics or None in topics) and event.source != found.name
            ]
            if told:
                await self.broker.delivery.deliver_existing(told, _nothing)

        try:
            await self.broker.ingest.in_order(work)
        except TocsinError as error:
            log.warning("%s was not told of the past: %s", found.name, error)

    async def _forget_past(self, topic: str | None) -> None:
        """Forget far publications that nobody here or behind this broker watches any more.

        From now on they change without this broker's knowledge.
        """

        async def work() -> None:
            past = self.broker.publications
            gone = [
                place
                for place, event in past.by_address.items()
                if event.origin is not None
                and topic in (None, place[0])
                and not self._is_watched(place[0])
            ]
            for place in gone:
                past.forget(place)
            if gone:
                kept = schema.PublicationChanges(gone=[(type or "", key) for type, key in gone])
                await self.broker.storage.submit(schema.add_events, [], [], kept)

        with contextlib.suppress(TocsinError):
            await self.broker.ingest.in_order(work)

    def _is_watched(self, type: str | None) -> bool:
        """Whether publications of a type are watched here or at a neighbour."""
        here = any(self._watchers.get(topic) for topic in {None, type})
        return here or any(self.watches(peer, type) for peer in self.neighbours)

    def flush(self) -> None:
        """Send what the router has to say."""
        for peer, message in self.router.take():
            neighbour = self.neighbours.get(peer)
            if neighbour is not None and neighbour.connection is not None:
                connection = neighbour.connection
                line = json_text.write(to_plain(message, connection.told))
                connection.outbox.put(line + b"\n", False)
                connection.flush()

    def _schedule(self) -> None:
        """Send soon, so that many changes are told as one."""
        if self._loop is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._is_scheduled = False
        self.flush()

    def _save(self) -> None:
        """Store what the router knows, soon."""
        if self._loop is not None and not self._is_saving:
            self._is_saving = True
            self._loop.call_later(_SAVE, self._save_now)

    def _save_now(self) -> None:
        self._is_saving = False
        state = json.dumps(self.router.to_state(is_clean=self._loop is None))
        if state != self._saved:
            self._saved = state
            self.broker.storage.forget(rows.save_state, state)

    # For people.

    def describe(self) -> dict[str, Any]:
        """Return what an operator may want to know."""
        return {
            "name": self.name,
            "instance": self.instance,
            "brokers": sorted(self.router.graph.members()),
            "types": sorted(map(str, self.router.types)),
            "spurious": self.spurious,
            "repeated": self.repeated,
            "grade": self.broker.config.link_grade,
            "links": [self._describe(each) for each in self.neighbours.values()],
        }

    def _describe(self, found: Neighbour) -> dict[str, Any]:
        from tocsin.broker.overlay.describing import describe_want

        link = self.router.links[found.name]
        state = "active" if link.is_active else "stand-by" if link.is_up else "down"
        return {
            "name": found.name,
            "state": state,
            "waiting": found.durable.pending,
            "dropped": found.durable.missed,
            **found.counts,
            **_coded(link.levels, found.connection),
            "types": sorted("events without a type" if t is None else t for t in link.types),
            "wants": [
                describe_want(topic, link.wants.get(topic), topic in link.pending)
                for topic in sorted({*link.wants, *link.pending}, key=str)
            ],
            "sent": {
                topic or "every type": len(outgoing.sent or {})
                for topic, outgoing in link.outgoing.items()
            },
        }


def _coded(levels: int, connection: Connection | None) -> dict[str, int]:
    """Return with how many levels ranges travel coded, and how many did over a connection."""
    told, heard = (connection.told, connection.heard) if connection is not None else (None, None)
    return {
        "levels": levels,
        "coded_in": 0 if heard is None else heard.n_coded,
        "coded_out": 0 if told is None else told.n_coded,
    }


def watched(router: Router, peer: str) -> set[str | None]:
    """Return the topics of which a neighbour wants everything."""
    link = router.links.get(peer)
    if link is None:
        return set()
    return {
        topic
        for topic, want in link.wants.items()
        if topic not in link.pending and any(not held for held in want.slots.values())
    }


def _nothing(connection: object) -> None:
    """Change nothing else."""
