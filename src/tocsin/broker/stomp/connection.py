"""A STOMP client: its frames as calls, and notifications as MESSAGE frames.

Enters: frames in order. Leaves: calls of the core, frames. Destinations are `/topic/TYPE` for
events of a type and `/events` for events without one (to send) or of every type (to subscribe). A
subscription ends with its connection, unless it has a `durable-subscription-name`. A transaction's
SEND frames are published as one, and its acknowledgements are on disk with them: all or none. A
RECEIPT comes when the effect of its frame is on disk.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from tocsin.arguments import to_written
from tocsin.broker.durable import Consumer
from tocsin.broker.events import OWN_HEADERS, Event, check_type, from_stomp
from tocsin.broker.idempotency import Key, to_key
from tocsin.broker.protocol import json_text
from tocsin.broker.protocol import stomp as codec
from tocsin.broker.protocol.stomp import Frame
from tocsin.broker.quota import CHANGE
from tocsin.broker.registry import SpecEdit
from tocsin.broker.stomp.link import Link, Owner
from tocsin.broker.stomp.transactions import REFUSED, Done, Settlement, Transactions
from tocsin.broker.subscription import (
    Subscription,
    SubscriptionSpec,
    to_delay,
    to_redelivery,
)
from tocsin.broker.telemetry import of_sender
from tocsin.broker.terms import retraction, to_flag, to_terms
from tocsin.broker.transitions import KINDS, refuse_old_name, to_transition_mask
from tocsin.errors import (
    DuplicateSubscriptionError,
    LimitError,
    ProtocolError,
    TocsinError,
    UnavailableError,
    UnknownSubscriptionError,
)

_TERMS = frozenset(("key", "ttl", "merge", "valid-until", "retain", "retract"))
_PASSING = ("receipt", "transaction", "content-length", "message-id")
"""Headers that differ where a frame is sent again."""
_ACKS = ("auto", "client", "client-individual")
_AT_ONCE = 256
_LARGE = 1 << 16


class _Heard:
    """A subscription of a connection."""

    def __init__(
        self, subscription: Subscription, ack: str, consumer: Consumer | None, head: bytes
    ):
        self.subscription = subscription
        self.ack = ack
        self.consumer = consumer
        self.head = head


class Connection(Link):
    """One client. It is also the session of its subscriptions."""

    def __init__(self, server: Owner) -> None:
        super().__init__(server)
        self.heard: dict[str, _Heard] = {}
        self.by_no: dict[int, _Heard] = {}
        self.transactions = Transactions(self.broker.config.limits, server.transactions)
        self._unsettled: set[asyncio.Future[Any]] = set()

    def lost(self) -> None:
        """Release the client; its transient subscriptions are removed."""
        gone = []
        for heard in self.heard.values():
            self._stop(heard)
            if not heard.subscription.spec.stored:
                gone.append(heard.subscription)
        self.heard.clear()
        self.by_no.clear()
        self.transactions.clear()
        if gone and not self.broker.ingest.is_draining:
            self.server.keep(asyncio.create_task(self.broker.remove(gone)))

    def written(self) -> None:
        """Continue durable subscriptions whose outbox was full."""
        if self.is_revoked:  # its messages were dropped
            return
        for heard in self.heard.values():
            if heard.consumer is not None:
                heard.consumer.taken()
                heard.consumer.written()

    def handle(self, frame: Frame) -> Awaitable[None] | None:
        """Handle a frame; return an awaitable where later frames must wait."""
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
        dialect = codec.choose(frame.headers.get("accept-version"))
        if dialect is None:
            known = ",".join(codec.DIALECTS)
            message = f"no version that the client accepts is supported: {known} are"
            self.send_frame("ERROR", {"version": known, "message": message})
            self.close()
            return
        sends, wants = codec.heart_beats(frame.headers.get("heart-beat", "0,0"))
        passcode = frame.headers.get("passcode")
        self.admit(self.server.tokens.authenticate(passcode, self.source))
        ours = self.broker.config.heart_beat_ms
        if ours and sends:
            self.expects_every = max(ours, sends) / 1000
        if ours and wants:
            self.sends_every = max(ours, wants) / 1000
        self.speak(dialect)
        self.send_frame(
            "CONNECTED",
            {
                "version": dialect.version,
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
        if len(frame.body) > _LARGE:
            return self._send_large(frame)
        event = self._to_event(frame)
        if self.broker.ingest.is_full or self.principal.bucket.rate:
            return self._send_when_possible(frame, [event])
        self._offer(frame, [event])
        return None

    def _to_event(self, frame: Frame) -> Event:
        assert self.principal is not None
        headers = frame.headers
        type = to_type(self.need(frame, "destination"))
        self.principal.may_publish(type)
        mine = (
            {k: v for k, v in headers.items() if k not in OWN_HEADERS} if len(headers) > 1 else {}
        )
        if _TERMS.isdisjoint(headers):
            return self._plain(mine, frame, type)
        terms = to_terms({name.replace("-", "_"): headers.get(name) for name in _TERMS})
        if to_flag(headers.get("retract", False), "retract"):
            return retraction(type, headers.get("key"))
        event = self._plain(mine, frame, type)
        return event if terms is None else terms.apply(event, self.broker.matcher.event_type(type))

    def _plain(self, mine: dict[str, str], frame: Frame, type: str | None) -> Event:
        kind = frame.headers.get("content-type", "")
        return from_stomp(mine, frame.body, kind, type, self.broker.matcher.event_type(type))

    async def _wait_for_rate(self, n: int) -> None:
        """Wait until n events may be sent: the client is slowed down, not refused."""
        assert self.principal is not None
        while True:
            try:
                self.principal.bucket.take(n)
                return
            except LimitError as error:
                await asyncio.sleep(error.retry_after or 1)

    async def _send_large(self, frame: Frame) -> None:
        """Read a large message in another thread, so that the event loop goes on."""
        loop = asyncio.get_running_loop()
        event = await loop.run_in_executor(None, self._to_event, frame)
        await self._send_when_possible(frame, [event])

    async def _send_when_possible(self, frame: Frame, events: list[Event]) -> None:
        await self._wait_for_rate(len(events))
        await self.broker.ingest.capacity()
        self._offer(frame, events)

    def _offer(self, frame: Frame, events: list[Event]) -> None:
        key = self._to_key(frame, frame) if "message-id" in frame.headers else None
        with of_sender(self.broker.telemetry, frame.headers):
            if key is None:
                future = self.broker.offer(events)
            else:
                future = self.broker.offer_once(events, key)
        self._answer_when_done(frame, future)

    def _to_key(self, frame: Frame, *content: Frame) -> Key | None:
        """Return the idempotency key of a SEND or COMMIT, for the content of some frames."""
        assert self.principal is not None
        name = frame.headers.get("message-id")
        if name is None:
            return None
        parts: list[bytes] = []
        for each in content:
            said = sorted(each.headers.items() - {(n, each.headers.get(n)) for n in _PASSING})
            parts += [each.command.encode(), json_text.write(said), each.body]
        return to_key(self.principal.id, name, *parts)

    def _answer_when_done(self, frame: Frame, future: asyncio.Future[Any]) -> None:
        self._unsettled.add(future)
        if "receipt" in frame.headers:
            self._n_owed += len(frame.headers["receipt"])
        future.add_done_callback(lambda done: self._settled(frame, done))

    def _settled(self, frame: Frame, done: asyncio.Future[Any]) -> None:
        self._unsettled.discard(done)
        was_full = bool(self._n_owed) and self._owes_too_much
        if "receipt" in frame.headers:
            self._n_owed -= len(frame.headers["receipt"])
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or self.is_closing:
            return
        if error is not None:
            if not isinstance(error, TocsinError):
                error = UnavailableError(f"the frame could not be served: {error}")
            self.fail(error, frame)
            return
        if "receipt" in frame.headers:
            self._receipt(frame, getattr(done.result(), "replayed", False))
        if was_full:
            self._handle_all()

    def _receipt(self, frame: Frame, is_replayed: bool) -> None:
        """Send the receipt of a frame, marked where the frame was a repeat."""
        if not is_replayed:
            self.receipt(frame)
        elif "receipt" in frame.headers:
            headers = {"receipt-id": frame.headers["receipt"], "replayed": "true"}
            self.send_frame("RECEIPT", headers)

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

    async def _commit(self, frame: Frame, frames: list[Frame]) -> None:
        """Publish the SENDs of a transaction and apply its acknowledgements: all or none."""
        events: list[Event] = []
        done = []
        for at, each in enumerate(frames, 1):
            if each.command == "SEND":
                events.append(self._to_event(each))
            else:
                done.append(self._to_done(each))
            if not at % _AT_ONCE:  # thousands of frames, while other clients wait
                await asyncio.sleep(0)
        settled = Settlement([each for each in done if each is not None])
        is_replayed = False
        if events:
            await self._wait_for_rate(len(events))
            await self.broker.ingest.capacity()
            change = settled.store if settled.done else None
            key = self._to_key(frame, *(each for each in frames if each.command == "SEND"))
            if key is None:
                await self.broker.offer(events, change=change)
            else:
                is_replayed = (await self.broker.offer_once(events, key, change)).replayed
                if is_replayed:
                    await self.broker.storage.submit(settled.store)
        elif settled.done:
            await self.broker.storage.submit(settled.store)
        settled.settle(self.broker.backlog)
        self._receipt(frame, is_replayed)

    # Subscribing.

    def _on_subscribe(self, frame: Frame) -> Awaitable[None]:
        id, ack = self._id_of(frame), frame.headers.get("ack", "auto")
        if ack not in _ACKS:
            raise ProtocolError(f"ack is {', '.join(_ACKS)}")
        if id in self.heard:
            raise DuplicateSubscriptionError(id)
        type = to_type(self.need(frame, "destination"))
        assert self.principal is not None
        self.principal.may_subscribe(type)
        selector = frame.headers.get("selector", "").strip()
        where = to_written(selector, frame.headers.get("dialect", "jms")) if selector else "TRUE"
        refuse_old_name(frame.headers)
        mask = to_transition_mask(frame.headers.get("notify"))
        options: dict[str, Any] = {"transitions": mask} if mask else {}
        options |= _to_redelivery(frame)
        name = frame.headers.get("durable-subscription-name")
        inner = f"stomp-{secrets.token_hex(6)}-{id}"[:200] if name is None else name
        spec = SubscriptionSpec(
            inner, where, type, durable=name is not None, owner=self.principal.id, options=options,
            stored=name is not None,
        )  # fmt: skip
        return self._subscribe(frame, id, ack, spec)

    def _id_of(self, frame: Frame) -> str:
        """Return the id of a client's subscription; in STOMP 1.0 its destination does as well."""
        if self.dialect is codec.V10 and not frame.headers.get("id"):
            return self.need(frame, "destination")
        return self.need(frame, "id")

    async def _subscribe(self, frame: Frame, id: str, ack: str, spec: SubscriptionSpec) -> None:
        await self.broker.rates.wait(spec.owner, CHANGE)
        if not spec.durable:
            (subscription,) = await self.broker.registry.add([spec])
            if self.is_closing:
                await self.broker.remove([subscription])
                return
        else:
            subscription = await self._find_durable(spec)
            if self.is_closing:
                return
        head = f"MESSAGE\nsubscription:{self.dialect.escape(id)}\n".encode()
        if "id" not in frame.headers:
            head = b"MESSAGE\n"
        heard = _Heard(subscription, ack, None, head)
        self.heard[id] = self.by_no[subscription.no] = heard
        warnings = await self.broker.warnings(spec) if "receipt" in frame.headers else []
        if self.is_closing:
            return
        self.receipt(frame, warnings)
        if not spec.durable:
            await self.broker.batches.listen(subscription, self)
            if self.is_closing:
                self._stop(heard)
            return
        window = int(subscription.spec.options.get("window", self.broker.config.window))
        heard.consumer = Consumer(
            self.broker, subscription, self, self._replaced, window=window, auto=ack == "auto"
        )
        heard.consumer.attach()

    async def _find_durable(self, spec: SubscriptionSpec) -> Subscription:
        """Return the durable subscription of this name, after adding or changing it."""
        assert self.principal is not None
        registry = self.broker.registry
        name, where = spec.id, spec.where
        subscription = self.broker.subscriptions.by_id.get(name)
        if subscription is None:
            self.broker.disk.check()
            (subscription,) = await registry.add([spec])
            self._record("subscription.create", subscription)
            return subscription
        mine = self.principal.may_see(subscription.spec.owner)
        if not mine or not subscription.spec.durable or subscription.spec.type != spec.type:
            raise DuplicateSubscriptionError(name)
        if subscription.transition_mask != spec.transition_mask:
            raise DuplicateSubscriptionError(name)
        if "webhook" in subscription.spec.options:
            raise DuplicateSubscriptionError(name)
        changed = {
            option: value
            for option, value in spec.options.items()
            if subscription.spec.options.get(option) != value
        }
        if subscription.spec.where != where or changed:
            is_new = subscription.spec.where != where
            edit = SpecEdit(where=where if is_new else None, options=changed)
            await registry.change(subscription, edit)
            self._record("subscription.change", subscription)
        return subscription

    def _record(self, act: str, subscription: Subscription) -> None:
        """Write a change of a durable subscription into the audit log."""
        self.broker.audit.note(act, self.principal, **{"from": self.source}, id=subscription.id)

    def _replaced(self) -> None:
        self.fail(ProtocolError("another connection has taken the durable subscription over"))

    def _stop(self, heard: _Heard) -> None:
        if heard.consumer is not None:
            heard.consumer.detach()
        elif self in heard.subscription.listeners:
            heard.subscription.listeners.remove(self)

    def _on_unsubscribe(self, frame: Frame) -> Awaitable[None]:
        id = self._id_of(frame)
        heard = self.heard.pop(id, None)
        if heard is None:
            raise UnknownSubscriptionError(id)
        self.by_no.pop(heard.subscription.no, None)
        self._stop(heard)
        return self._unsubscribe(frame, heard)

    async def _unsubscribe(self, frame: Frame, heard: _Heard) -> None:
        """Remove the subscription, unless it is durable and not named."""
        assert self.principal is not None
        await self.broker.rates.wait(self.principal.id, CHANGE)
        if not heard.subscription.spec.stored or "durable-subscription-name" in frame.headers:
            await self.broker.remove([heard.subscription])
            if heard.subscription.spec.stored:
                self._record("subscription.remove", heard.subscription)
        self.receipt(frame)

    def render(
        self,
        subscription: Subscription,
        event: Event,
        kind: int,
        redelivered: bool,
        missed: int,
        delivery_count: int = 0,
    ) -> bytes:
        """Return a notification as a MESSAGE frame."""
        heard = self.by_no[subscription.no]
        suffix = event.stomp
        if suffix is None:
            suffix = event.stomp = _suffix(event)
        if self.dialect is not codec.V12 and suffix.find(b"\\", 0, suffix.index(b"\n\n")) >= 0:
            suffix = _suffix(event, self.dialect)
        more = b"message-id:%d-%d\n" % (subscription.no, event.seq)
        if heard.ack != "auto":
            more += b"ack:%d-%d\n" % (subscription.no, event.seq)
        if kind:
            more += b"transition:%s\n" % KINDS[kind].encode()
        if redelivered:
            more += b"redelivered:true\n"
        if delivery_count:
            more += b"delivery-count:%d\n" % delivery_count
        if missed:
            more += b"missed:%d\n" % missed
        return heard.head + more + suffix

    def _on_ack(self, frame: Frame) -> None:
        if "transaction" in frame.headers:
            self._keep_for_later(frame)
            return
        done = self._to_done(frame)
        future = None if done is None else self._acknowledge(done)
        if future is None:
            self.receipt(frame)
        else:
            self._answer_when_done(frame, future)

    def _to_done(self, frame: Frame) -> Done | None:
        """Return the effect of an ACK or NACK; None for a transient subscription."""
        name = "id" if self.dialect is codec.V12 else "message-id"
        first, _, second = self.need(frame, name).partition("-")
        no, seq = json_text.to_number(first), json_text.to_number(second)
        if no is None or seq is None:
            raise ProtocolError(f"no message has the ack {frame.headers[name][:40]!r}")
        delay = None
        if frame.command == "NACK":
            delay = to_delay(frame.headers.get("delay"))
        heard = self.by_no.get(no)
        if heard is None or heard.consumer is None:
            return None  # transient, or unsubscribed meanwhile
        is_ack = frame.command == "ACK"
        seqs = heard.consumer.covered(seq, upto=is_ack and heard.ack == "client")
        return Done(heard.consumer, seqs, is_ack, delay) if seqs else None

    def _acknowledge(self, done: Done) -> asyncio.Future[Any] | None:
        """Acknowledge, put off, or (NACK) make a dead letter; the future waits for the disk."""
        if done.is_ack:
            return done.consumer.acknowledge(done.seqs)
        if done.delay is not None:
            subscription = done.consumer.subscription
            return asyncio.ensure_future(
                self.broker.backlog.put_off(subscription, done.seqs, done.delay)
            )
        return done.consumer.bury(done.seqs[0], REFUSED)

    def _on_disconnect(self, frame: Frame) -> Awaitable[None]:
        return self._disconnect(frame)

    async def _disconnect(self, frame: Frame) -> None:
        """Answer when all publishes are settled, then close."""
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


def _to_redelivery(frame: Frame) -> dict[str, Any]:
    """Return the terms of redelivery that a SUBSCRIBE names."""
    parameters: dict[str, Any] = {}
    for name, kind in (("ack-seconds", float), ("max-deliveries", int)):
        if name in frame.headers:
            try:
                parameters[name.replace("-", "_")] = kind(frame.headers[name])
            except ValueError:
                raise ProtocolError(f"{name} is a number") from None
    return to_redelivery(parameters)


def _suffix(event: Event, dialect: codec.Dialect = codec.V12) -> bytes:
    """Return the end that all MESSAGEs of an event have in common."""
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
    lines = [dialect.header(name, value) for name, value in headers.items()]
    lines.append(f"content-length:{len(body)}")
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"
