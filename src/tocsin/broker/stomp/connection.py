"""A STOMP client: what its frames ask for, and notifications as MESSAGE frames.

Enters: frames in order. Leaves: calls of the core, frames. Destinations are `/topic/TYPE` for
events of a type and `/events` for events without one (to send) or of every type (to subscribe). A
subscription ends with its connection, unless it has a `durable-subscription-name`. A transaction's
SEND frames are published as one: all or none.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import ClassVar

from tocsin.broker.core import Receipt
from tocsin.broker.durable import Consumer
from tocsin.broker.events import Event, check_type, from_stomp
from tocsin.broker.keyed import NAMES, retraction, to_flag, to_terms, to_wants
from tocsin.broker.protocol import json_text
from tocsin.broker.protocol import stomp as codec
from tocsin.broker.protocol.stomp import Frame
from tocsin.broker.stomp.link import Link, Owner
from tocsin.broker.stomp.transactions import Transactions
from tocsin.broker.subscription import Subscription, Wanted
from tocsin.broker.telemetry import of_sender
from tocsin.errors import (
    DuplicateSubscriptionError,
    LimitError,
    ProtocolError,
    TocsinError,
    UnknownSubscriptionError,
)

_OWN = frozenset(
    "destination content-type content-length receipt transaction valid-until message-id "
    "subscription ack redelivered missed key ttl merge retract retain transition gone".split()
)
_TERMS = frozenset(("key", "ttl", "merge", "valid-until", "retain", "retract"))
_ACKS = ("auto", "client", "client-individual")


class _Heard:
    """A subscription of a connection."""

    def __init__(self, found: Subscription, ack: str, consumer: Consumer | None, head: bytes):
        self.found = found
        self.ack = ack
        self.consumer = consumer
        self.head = head


class Connection(Link):
    """One client. It is also the session of its subscriptions."""

    def __init__(self, server: Owner) -> None:
        super().__init__(server)
        self.heard: dict[str, _Heard] = {}
        self.by_no: dict[int, _Heard] = {}
        self.transactions = Transactions(self.broker.config.limits)
        self._unsettled: set[asyncio.Future[Receipt]] = set()

    def lost(self) -> None:
        """Forget the client; its transient subscriptions go with it."""
        gone = []
        for heard in self.heard.values():
            self._stop(heard)
            if not heard.found.wanted.stored:
                gone.append(heard.found)
        self.heard.clear()
        self.by_no.clear()
        self.transactions.clear()
        if gone and not self.broker.is_draining:
            self.server.keep(asyncio.create_task(self.broker.remove(gone)))

    def written(self) -> None:
        """Go on with durable subscriptions where the outbox was full."""
        if self.is_revoked:  # what waited was thrown away
            return
        for heard in self.heard.values():
            if heard.consumer is not None:
                heard.consumer.taken()
                heard.consumer.written()

    def handle(self, frame: Frame) -> Awaitable[None] | None:
        """Do what a frame asks for; return what must be waited for, if anything."""
        if frame.command == "SEND" and self.principal is not None:
            return self._on_send(frame)
        if frame.command in ("CONNECT", "STOMP"):
            self._on_connect(frame)
            return None
        if self.principal is None:
            raise ProtocolError("the first frame is CONNECT")
        handler = self._HANDLERS.get(frame.command)
        if handler is None:
            raise ProtocolError(f"{frame.command} is no frame of a client")
        return handler(self, frame)

    def _on_connect(self, frame: Frame) -> None:
        if self.principal is not None:
            raise ProtocolError("CONNECT comes once")
        if "1.2" not in self.need(frame, "accept-version").split(","):
            self.send_frame("ERROR", {"version": "1.2", "message": "only STOMP 1.2 is supported"})
            self.close()
            return
        sends, wants = codec.heart_beats(frame.headers.get("heart-beat", "0,0"))
        self.principal = self.server.tokens.authenticate(frame.headers.get("passcode"))
        ours = self.broker.config.heart_beat_ms
        if ours and sends:
            self.expects_every = max(ours, sends) / 1000
        if ours and wants:
            self.sends_every = max(ours, wants) / 1000
        self.send_frame(
            "CONNECTED",
            {
                "version": "1.2",
                "heart-beat": f"{ours},{ours}",
                "session": secrets.token_hex(8),
                "server": "tocsin",
            },
        )

    # Sending.

    def _on_send(self, frame: Frame) -> Awaitable[None] | None:
        if "transaction" in frame.headers:
            self._keep_for_later(frame)
            return None
        assert self.principal is not None
        event = self._to_event(frame)
        if self.broker.is_full or self.principal.bucket.rate:
            return self._send_when_possible(frame, [event])
        self._offer(frame, [event])
        return None

    def _to_event(self, frame: Frame) -> Event:
        assert self.principal is not None
        headers = frame.headers
        type = to_type(self.need(frame, "destination"))
        self.principal.may_publish(type)
        mine = {k: v for k, v in headers.items() if k not in _OWN} if len(headers) > 1 else {}
        if _TERMS.isdisjoint(headers):
            return self._plain(mine, frame, type)
        terms = to_terms({name.replace("-", "_"): headers.get(name) for name in _TERMS})
        if to_flag(headers.get("retract", False), "retract"):
            return retraction(type, headers.get("key"))
        event = self._plain(mine, frame, type)
        return event if terms is None else terms.apply(event, self.broker.topics.event_type(type))

    def _plain(self, mine: dict[str, str], frame: Frame, type: str | None) -> Event:
        kind = frame.headers.get("content-type", "")
        return from_stomp(mine, frame.body, kind, type, self.broker.topics.event_type(type))

    async def _wait_for_rate(self, n: int) -> None:
        """Wait until so many events may be sent: the client is slowed down, not refused."""
        assert self.principal is not None
        while True:
            try:
                self.principal.bucket.take(n)
                return
            except LimitError as error:
                await asyncio.sleep(error.retry_after or 1)

    async def _send_when_possible(self, frame: Frame, events: list[Event]) -> None:
        await self._wait_for_rate(len(events))
        await self.broker.room()
        self._offer(frame, events)

    def _offer(self, frame: Frame, events: list[Event]) -> None:
        with of_sender(self.broker.telemetry, frame.headers):
            future = self.broker.offer(events)
        self._unsettled.add(future)
        future.add_done_callback(lambda done: self._settled(frame, done))

    def _settled(self, frame: Frame, done: asyncio.Future[Receipt]) -> None:
        self._unsettled.discard(done)
        error = done.exception()
        if self.is_closing:
            return
        if isinstance(error, TocsinError):
            self.fail(error, frame)
        elif "receipt" in frame.headers:
            self.receipt(frame)

    def _keep_for_later(self, frame: Frame) -> None:
        self.transactions.keep(frame.headers["transaction"], frame)
        self.receipt(frame)

    def _on_begin(self, frame: Frame) -> None:
        self.transactions.begin(self.need(frame, "transaction"))
        self.receipt(frame)

    def _end(self, frame: Frame) -> list[Frame]:
        return self.transactions.end(self.need(frame, "transaction"))

    def _on_abort(self, frame: Frame) -> None:
        self._end(frame)
        self.receipt(frame)

    def _on_commit(self, frame: Frame) -> Awaitable[None]:
        return self._commit(frame, self._end(frame))

    async def _commit(self, frame: Frame, kept: list[Frame]) -> None:
        """Publish what a transaction sent; when that is on disk, do what it acknowledged."""
        events = [self._to_event(each) for each in kept if each.command == "SEND"]
        if events:
            await self._wait_for_rate(len(events))
            await self.broker.publish(events)
        for each in kept:
            if each.command != "SEND":
                self._acknowledge(each)
        self.receipt(frame)

    # Subscribing.

    def _on_subscribe(self, frame: Frame) -> Awaitable[None]:
        id, ack = self.need(frame, "id"), frame.headers.get("ack", "auto")
        if ack not in _ACKS:
            raise ProtocolError(f"ack is {', '.join(_ACKS)}")
        if id in self.heard:
            raise DuplicateSubscriptionError(id)
        type = to_type(self.need(frame, "destination"))
        assert self.principal is not None
        self.principal.may_subscribe(type)
        where = frame.headers.get("selector", "").strip() or "TRUE"
        wants = _to_wants(frame.headers.get("transitions"))
        options = {"transitions": wants} if wants else {}
        name = frame.headers.get("durable-subscription-name")
        inner = f"stomp-{secrets.token_hex(6)}-{id}"[:200] if name is None else name
        wanted = Wanted(
            inner, where, type, durable=name is not None, owner=self.principal.id, options=options,
            stored=name is not None,
        )  # fmt: skip
        return self._subscribe(frame, id, ack, wanted)

    async def _subscribe(self, frame: Frame, id: str, ack: str, wanted: Wanted) -> None:
        if not wanted.durable:
            (found,) = await self.broker.registry.add([wanted])
            if self.is_closing:
                await self.broker.remove([found])
                return
        else:
            found = await self._find_durable(wanted)
            if self.is_closing:
                return
        head = f"MESSAGE\nsubscription:{codec.escape(id)}\n".encode()
        heard = _Heard(found, ack, None, head)
        self.heard[id] = self.by_no[found.no] = heard
        self.receipt(frame)
        if not wanted.durable:
            await self.broker.listen(found, self)
            if self.is_closing:
                self._stop(heard)
            return
        window = int(found.wanted.options.get("window", self.broker.config.window))
        heard.consumer = Consumer(
            self.broker, found, self, self._replaced, window=window, auto=ack == "auto"
        )
        heard.consumer.attach()

    async def _find_durable(self, wanted: Wanted) -> Subscription:
        """Return the durable subscription of this name: made, changed or as it is."""
        assert self.principal is not None
        registry = self.broker.registry
        name, where = wanted.id, wanted.where
        found = registry.by_id.get(name)
        if found is None:
            (found,) = await registry.add([wanted])
            return found
        mine = self.principal.may_see(found.wanted.owner)
        if not mine or not found.wanted.durable or found.wanted.type != wanted.type:
            raise DuplicateSubscriptionError(name)
        if found.wants != wanted.wants:
            raise DuplicateSubscriptionError(name)
        if "webhook" in found.wanted.options:
            raise DuplicateSubscriptionError(name)
        if found.wanted.where != where:
            await registry.change(found, where, None, {})
        return found

    def _replaced(self) -> None:
        self.fail(ProtocolError("another connection has taken the durable subscription over"))

    def _stop(self, heard: _Heard) -> None:
        if heard.consumer is not None:
            heard.consumer.detach()
        elif self in heard.found.listeners:
            heard.found.listeners.remove(self)

    def _on_unsubscribe(self, frame: Frame) -> Awaitable[None]:
        heard = self.heard.pop(self.need(frame, "id"), None)
        if heard is None:
            raise UnknownSubscriptionError(frame.headers["id"])
        self.by_no.pop(heard.found.no, None)
        self._stop(heard)
        return self._unsubscribe(frame, heard)

    async def _unsubscribe(self, frame: Frame, heard: _Heard) -> None:
        """A durable subscription stays, unless it is named here too."""
        if not heard.found.wanted.stored or "durable-subscription-name" in frame.headers:
            await self.broker.remove([heard.found])
        self.receipt(frame)

    def render(
        self, subscription: Subscription, event: Event, kind: int, redelivered: bool, missed: int
    ) -> bytes:
        """Return a notification as a MESSAGE frame."""
        heard = self.by_no[subscription.no]
        tail = event.stomp
        if tail is None:
            tail = event.stomp = _tail(event)
        more = b"message-id:%d-%d\n" % (subscription.no, event.seq)
        if heard.ack != "auto":
            more += b"ack:%d-%d\n" % (subscription.no, event.seq)
        if kind:
            more += b"transition:%s\n" % NAMES[kind].encode()
        if redelivered:
            more += b"redelivered:true\n"
        if missed:
            more += b"missed:%d\n" % missed
        return heard.head + more + tail

    def _on_ack(self, frame: Frame) -> None:
        if "transaction" in frame.headers:
            self._keep_for_later(frame)
            return
        self._acknowledge(frame)
        self.receipt(frame)

    def _acknowledge(self, frame: Frame) -> None:
        """Acknowledge, or (NACK) make a dead letter of a notification."""
        first, _, second = self.need(frame, "id").partition("-")
        no, seq = json_text.to_number(first), json_text.to_number(second)
        if no is None or seq is None:
            raise ProtocolError(f"no message has the ack {frame.headers['id'][:40]!r}")
        heard = self.by_no.get(no)
        if heard is None or heard.consumer is None:
            return  # transient, or unsubscribed meanwhile: nothing is kept
        if frame.command == "NACK":
            heard.consumer.bury(seq, "refused by the subscriber")
        elif heard.ack == "client":
            heard.consumer.acknowledge_upto(seq)
        else:
            heard.consumer.acknowledge(seq)

    def _on_disconnect(self, frame: Frame) -> Awaitable[None]:
        return self._disconnect(frame)

    async def _disconnect(self, frame: Frame) -> None:
        """Answer when all that was sent is settled, then close."""
        if self._unsettled:
            await asyncio.wait(self._unsettled)
        if not self.is_closing:
            self.receipt(frame)
            self.close()

    _HANDLERS: ClassVar[dict[str, Callable[[Connection, Frame], Awaitable[None] | None]]] = {
        "SUBSCRIBE": _on_subscribe,
        "UNSUBSCRIBE": _on_unsubscribe,
        "ACK": _on_ack,
        "NACK": _on_ack,
        "BEGIN": _on_begin,
        "COMMIT": _on_commit,
        "ABORT": _on_abort,
        "DISCONNECT": _on_disconnect,
    }


def to_type(destination: str) -> str | None:
    """Return the event type of a destination; None for `/events`."""
    if destination == "/events":
        return None
    name = destination.removeprefix("/topic/")
    if name == destination or not name:
        raise ProtocolError("a destination is /events or /topic/TYPE")
    return check_type(name)


def _to_wants(text: str | None) -> int:
    """Return which transitions a header asks for: `true`, `ENTER`, `LEAVE` or both names."""
    if text is None or text in ("true", "false"):
        return to_wants(text == "true")
    return to_wants([each.strip() for each in text.split(",")])


def _tail(event: Event) -> bytes:
    """Return what every MESSAGE of an event ends with."""
    body = event.text if event.body is None else event.body
    headers = {"destination": "/events" if event.type is None else f"/topic/{event.type}"}
    if event.content_type:
        headers["content-type"] = event.content_type
    if event.key is not None:
        headers["key"] = event.key
    if event.gone is not None:
        headers["gone"] = event.gone
    for name, value in (event.headers or {}).items():
        if isinstance(value, dict):  # the context of a CloudEvent
            headers |= {f"ce-{key}": str(inner) for key, inner in value.items()}
        else:
            headers.setdefault(name, str(value))
    lines = [f"{codec.escape(name)}:{codec.escape(value)}" for name, value in headers.items()]
    lines.append(f"content-length:{len(body)}")
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"
