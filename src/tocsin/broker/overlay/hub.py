"""The hub: the router of a running broker.

Enters: the broker's subscriptions and events (`network.Network`), connections to peers, what
they say. Leaves: messages on those connections, and for each event the numbers of the peers
that get it. A peer is to the core what a subscriber is: under one number it is durable, and
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
from tocsin.broker.overlay.duplicates import DuplicateFilter
from tocsin.broker.overlay.forms import ALWAYS
from tocsin.broker.overlay.grades import Grading
from tocsin.broker.overlay.messages import Codebook, Message, to_plain
from tocsin.broker.overlay.router import Router
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

_MAX_PEERS = 1_000
_SAVE = 0.02
"""Seconds in which changes of the router's state are stored together."""
log = logging.getLogger("tocsin.network")


class Connection(Session, Protocol):
    """What the hub needs of a connection to a peer."""

    principal: Any
    is_revoked: bool
    sent_codes: Codebook
    received_codes: Codebook

    def close(self, reason: str) -> None:
        """End it."""

    def revoke(self) -> None:
        """End it at once."""


@dataclass
class Peer:
    """A broker that this one is linked to, or was."""

    name: str
    durable: Subscription
    transient: Subscription
    instance: str
    last_received: int = 0
    """Highest sequence number received from this peer and stored."""
    busy: asyncio.Future[Any] | None = None
    """Events of this peer that are being stored."""
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
        self.peers: dict[str, Peer] = {}
        self.spurious = 0
        self.repeated = 0
        self.duplicates = DuplicateFilter()
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
        for row in storage.first(rows.peers):
            self._add(row)
        if state is not None:
            try:
                self.router.restore(json.loads(state))
            except (KeyError, TypeError, ValueError, TocsinError):
                log.exception(
                    "interests of peers cannot be read; until they are sent again, all events go"
                )
                self.router = self._router()
        for name in self.peers:
            self.router.expect(name)
        waiting = {no: (n, last) for no, n, last in storage.first(rows.waiting)}
        for each in self.peers.values():
            queue = each.durable
            queue.pending, queue.last_seq = waiting.get(queue.no, (0, 0))
        self._set_gauges()

    def start(self) -> None:
        """Begin to talk: the broker has started."""
        self._loop = asyncio.get_running_loop()
        self.flush()
        self._save_now()  # from now on what is stored may be behind

    async def stop(self) -> None:
        """Store the final state of the router, after the links are closed."""
        self._loop = None
        self._save_now()
        with contextlib.suppress(TocsinError):
            await self.broker.storage.submit(rows.save_state, self._saved)

    def _set_gauges(self) -> None:
        gauges, each = self.broker.metrics.gauges, self.peers
        gauges["links"] = ("Peers known.", lambda: len(each))
        gauges["links_up"] = (
            "Peers connected.",
            lambda: sum(n.connection is not None for n in each.values()),
        )
        gauges["links_waiting"] = (
            "Events that wait for peers.",
            lambda: sum(n.durable.pending for n in each.values()),
        )
        gauges["links_ignored"] = (
            "States of brokers that were not believed.",
            lambda: self.router.graph.ignored,
        )
        gauges["links_refused"] = (
            "Events of peers that were refused.",
            lambda: sum(n.counts["refused"] for n in each.values()),
        )
        gauges["links_spurious"] = (
            "Events of peers that match no subscription here or behind another peer.",
            lambda: self.spurious,
        )
        for name in ("events_in", "events_out", "bytes_in", "bytes_out"):
            gauges[f"links_{name}"] = (
                f"{name.partition('_')[0].capitalize()} over links, {name[-3:].strip('_')}.",
                lambda name=name: sum(n.counts[name] for n in each.values()),  # type: ignore[misc]
            )

    def _add(self, row: rows.PeerRow) -> Peer:
        id = f"link:{row.name}"
        options = {"max_backlog": self.broker.config.link_backlog}
        durable = Subscription(
            row.no, SubscriptionSpec(id, "", durable=True, options=options, stored=False), 0
        )
        transient = Subscription(row.no - 1, SubscriptionSpec(id, "", stored=False), 0)
        peer = Peer(row.name, durable, transient, row.instance, row.last_received)
        self.peers[row.name] = peer
        self.broker.subscriptions.by_no[durable.no] = durable
        self.broker.subscriptions.by_no[transient.no] = transient
        return peer

    # Calls of the core.

    def subscribed(self, subscription: Subscription) -> None:
        """Add or change a local subscription."""
        spec = subscription.spec
        if subscription.transition_mask:  # transitions need every publication
            form = ALWAYS
            self._watchers.setdefault(spec.type, set()).add(subscription.no)
        else:
            form = self._form(spec) if subscription.form is None else subscription.form
            subscription.form = None
        self.router.subscribe(subscription.no, spec.type, form, keep=subscription.durable)
        self._schedule()

    def _form(self, spec: SubscriptionSpec) -> NormalForm:
        """Return the normal form of a stored condition; of one that costs too much, all events."""
        event_type = self.broker.matcher.event_type(spec.type)
        try:
            return normalize(bind(parse(spec.where), spec.params), event_type)
        except (ConditionCostError, TooManyConjunctionsError):
            return ALWAYS

    def unsubscribed(self, subscription: Subscription) -> None:
        """Remove a local subscription."""
        self.router.unsubscribe(subscription.no)
        self._schedule()
        type = subscription.spec.type
        if subscription.transition_mask and type in self._watchers:
            self._watchers[type].discard(subscription.no)
            if not self._watchers[type]:
                self._spawn(self._forget_publications(type))

    def publishing(self, events: Sequence[Event]) -> None:
        """Advertise types before their first events."""
        new = {event.type for event in events} - self.router.types
        for type in new:
            self.router.advertise(type)
        if new:
            self.flush()
            self._save()

    def route(self, event: Event, is_matched: bool) -> Sequence[int]:
        """Return the numbers of the peers that get an event."""
        if event.gone == "expired":  # every broker finds out by itself
            return ()
        numbers = []
        for name, keep in self.router.route(
            event.type, event.attributes, event.source, event.numbers
        ):
            peer = self.peers.get(name)
            is_for_all = event.gone is None and not event.is_past
            if peer is None or not (is_for_all or self.watches(name, event.type)):
                continue
            if keep:
                numbers.append(peer.durable.no)
            elif peer.connection is not None:
                numbers.append(peer.transient.no)
        if event.source is not None and not is_matched and not numbers:
            self.spurious += 1
            if event.source in self.peers:
                self.peers[event.source].counts["spurious"] += 1
        return numbers

    def watches(self, peer: str, type: str | None) -> bool:
        """Whether a peer gets all publications of a type, so that it may know their keys."""
        link = self.router.links.get(peer)
        if link is None:
            return False
        topics = {None, type} - link.pending
        return any(topic in link.interests and link.interests[topic].is_all for topic in topics)

    # Connections.

    async def connect(
        self, name: str, instance: str, connection: Connection, opened_by: str, levels: int = 0
    ) -> Peer:
        """Register a connection to a peer; it replaces an older one.

        Where both ends open one, that of the end whose name comes first stays. `levels` are those
        that the peer matches with.
        """
        if name == self.name:
            raise ArgumentError(f"both ends are called {name!r}; every broker needs its own name")
        peer = self.peers.get(name)
        if peer is not None and peer.connection is not None and peer.opened_by < opened_by:
            raise ProtocolError(f"{name} is linked already")
        if peer is None:
            if len(self.peers) >= _MAX_PEERS:
                raise LimitError("too many peers; forget some", "peers")
            no = min((n.transient.no for n in self.peers.values()), default=0) - 1
            peer = self._add(rows.PeerRow(name, no, instance, 0))
            await self._store(peer)
        elif peer.instance != instance:  # its database is new, and its numbers start again
            peer.instance, peer.last_received = instance, 0
            await self._store(peer)
        if peer.connection is not None:
            peer.connection.close("replaced")
            self.disconnect(peer, peer.connection)
        peer.connection, peer.opened_by = connection, opened_by
        peer.counts["ups"] += 1
        self.router.link_up(name, levels)
        self.flush()
        peer.transient.listeners = [connection]
        peer.consumer = Consumer(
            self.broker,
            peer.durable,
            connection,
            lambda: connection.close("replaced"),
            window=self.broker.config.window,
        )
        peer.consumer.attach()
        self._save()
        log.info("linked to %s", name)
        self.broker.audit.note("link.up", None, peer=name, opened_by=opened_by)
        return peer

    async def _store(self, peer: Peer) -> None:
        row = rows.PeerRow(peer.name, peer.durable.no, peer.instance, peer.last_received)
        await self.broker.storage.submit(rows.set_peer, row)

    def disconnect(self, peer: Peer, connection: Connection) -> None:
        """Unregister a connection; unacknowledged events stay in the backlog."""
        if peer.connection is not connection:
            return
        peer.connection = None
        peer.transient.listeners = []
        if peer.consumer is not None:
            peer.consumer.detach()
            peer.consumer = None
        self.router.link_down(peer.name)
        self.flush()
        self._save()
        log.info("no longer linked to %s", peer.name)
        self.broker.audit.note("link.down", None, peer=peer.name)

    async def forget(self, name: str) -> None:
        """Forget a peer and all that waits for it."""
        peer = self.peers.pop(name, None)
        if peer is None:
            raise UnknownSubscriptionError(name)
        if peer.connection is not None:
            peer.connection.close("forgotten")
            self.disconnect(peer, peer.connection)
        self.router.forget(name)
        for each in (peer.durable, peer.transient):
            self.broker.subscriptions.by_no.pop(each.no, None)
        self.flush()
        self._save()
        storage = self.broker.storage
        await storage.submit(schema.remove_subscriptions, [peer.durable.no])
        await storage.submit(rows.remove_peer, name)

    # Messages.

    def receive(self, peer: Peer, message: Message) -> None:
        """Apply a routing message of a peer."""
        before = watched(self.router, peer.name)
        self.router.receive(peer.name, message)
        now = watched(self.router, peer.name)
        if now - before:
            self._spawn(self._send_publications(peer, now - before))
        self._save()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_publications(self, peer: Peer, topics: set[str | None]) -> None:
        """Send existing publications to a peer that begins to watch them.

        They are marked as past: its other subscriptions got them when they were published.
        """

        async def work() -> None:
            existing = [
                (peer.durable, event, ENTER)
                for (type, _), event in list(self.broker.publications.by_address.items())
                if (type in topics or None in topics) and event.source != peer.name
            ]
            if existing:
                await self.broker.delivery.deliver_existing(existing, _nothing)

        try:
            await self.broker.ingest.in_order(work)
        except TocsinError as error:
            log.warning("%s did not get the existing publications: %s", peer.name, error)

    async def _forget_publications(self, topic: str | None) -> None:
        """Drop remote publications that no subscription here or at a peer watches.

        Later changes of them are not sent to this broker.
        """

        async def work() -> None:
            publications = self.broker.publications
            unwatched = [
                address
                for address, event in publications.by_address.items()
                if event.origin is not None
                and topic in (None, address[0])
                and not self._is_watched(address[0])
            ]
            for address in unwatched:
                publications.forget(address)
            if unwatched:
                changes = schema.PublicationChanges(
                    gone=[(type or "", key) for type, key in unwatched]
                )
                await self.broker.storage.submit(schema.add_events, [], [], changes)

        with contextlib.suppress(TocsinError):
            await self.broker.ingest.in_order(work)

    def _is_watched(self, type: str | None) -> bool:
        """Whether publications of a type are watched here or at a peer."""
        here = any(self._watchers.get(topic) for topic in {None, type})
        return here or any(self.watches(peer, type) for peer in self.peers)

    def flush(self) -> None:
        """Send the messages that the router has queued."""
        for name, message in self.router.take():
            peer = self.peers.get(name)
            if peer is not None and peer.connection is not None:
                connection = peer.connection
                line = json_text.write(to_plain(message, connection.sent_codes))
                connection.outbox.put(line + b"\n", False)
                connection.flush()

    def _schedule(self) -> None:
        """Send soon, so that many changes go as one message."""
        if self._loop is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._is_scheduled = False
        self.flush()

    def _save(self) -> None:
        """Store the state of the router soon."""
        if self._loop is not None and not self._is_saving:
            self._is_saving = True
            self._loop.call_later(_SAVE, self._save_now)

    def _save_now(self) -> None:
        self._is_saving = False
        state = json.dumps(self.router.to_state(is_clean=self._loop is None))
        if state != self._saved:
            self._saved = state
            self.broker.storage.forget(rows.save_state, state)

    # For operators.

    def describe(self) -> dict[str, Any]:
        """Return the network as JSON, for `GET /overlay`."""
        return {
            "name": self.name,
            "instance": self.instance,
            "brokers": sorted(self.router.graph.members()),
            "types": sorted(map(str, self.router.types)),
            "spurious": self.spurious,
            "repeated": self.repeated,
            "grade": self.broker.config.link_grade,
            "links": [
                self._describe(each)
                for each in self.peers.values()
                if each.name in self.router.links
            ],
        }

    def _describe(self, peer: Peer) -> dict[str, Any]:
        from tocsin.broker.overlay.descriptions import describe_interest

        link = self.router.links[peer.name]
        state = "active" if link.is_active else "stand-by" if link.is_up else "down"
        return {
            "name": peer.name,
            "state": state,
            "waiting": peer.durable.pending,
            "dropped": peer.durable.missed,
            **peer.counts,
            **_coded(link.levels, peer.connection),
            "types": sorted("events without a type" if t is None else t for t in link.types),
            "wants": [
                describe_interest(topic, link.interests.get(topic), topic in link.pending)
                for topic in sorted({*link.interests, *link.pending}, key=str)
            ],
            "sent": {
                topic or "every type": len(outgoing.sent or {})
                for topic, outgoing in link.outgoing.items()
            },
        }


def _coded(levels: int, connection: Connection | None) -> dict[str, int]:
    """Return with how many levels ranges travel coded, and how many did over a connection."""
    return {
        "levels": levels,
        "coded_in": 0 if connection is None else connection.received_codes.n_coded,
        "coded_out": 0 if connection is None else connection.sent_codes.n_coded,
    }


def watched(router: Router, peer: str) -> set[str | None]:
    """Return the topics of which a peer gets all events."""
    link = router.links.get(peer)
    if link is None:
        return set()
    return {
        topic
        for topic, interest in link.interests.items()
        if topic not in link.pending and interest.is_all
    }


def _nothing(connection: object) -> None:
    """Change nothing else."""
