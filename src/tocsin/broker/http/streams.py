"""Streams: Server-Sent Events of one subscription, WebSockets of many.

Enters: a request that stays open. Leaves: notifications as they come. A stream of a durable
subscription begins with its oldest unacknowledged notification. `Last-Event-ID` acknowledges all up
to it; with `ack=auto`, notifications written to the connection are acknowledged. Both change the
backlog, so a browser's GET that may come from a page of another site is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from tocsin.broker.core import Broker
from tocsin.broker.durable import Consumer
from tocsin.broker.events import Event, check_type, from_json
from tocsin.broker.http.guarded import Chunks
from tocsin.broker.http.requests import (
    acknowledge_ids,
    acknowledged_ids,
    admit,
    broker_of,
    is_deliberate,
    off_loop,
    principal_of,
    source_of,
)
from tocsin.broker.http.subscriptions import find_own, own, refuse, to_spec
from tocsin.broker.idempotency import to_key
from tocsin.broker.protocol import json_text, sse
from tocsin.broker.quota import CHANGE, LIST
from tocsin.broker.sessions import StreamSession
from tocsin.broker.subscription import Subscription
from tocsin.broker.terms import retraction, to_terms
from tocsin.broker.tokens import Principal
from tocsin.errors import (
    ArgumentError,
    EventError,
    LimitError,
    NotAllowedError,
    TocsinError,
    UnknownSubscriptionError,
)

SEND = "tocsin.send"
_CHUNKED = (b"transfer-encoding", b"chunked")
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStream(Response):
    """An answer that goes on until either side ends it.

    It bypasses Starlette: a batch may write to a thousand streams at once.
    """

    def __init__(
        self,
        broker: Broker,
        heard: Sequence[Subscription],
        session: StreamSession,
        consumer: Consumer | None,
    ) -> None:
        self.status_code = 200
        self.media_type = "text/event-stream"
        self.background = None
        self.broker = broker
        self.heard = heard
        self.session = session
        self.consumer = consumer
        self.init_headers(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send messages as they come."""
        broker, session = self.broker, self.session
        state = scope.get("state", {})
        state.get("stream", lambda: None)()
        broker.connections.opened(session)
        watching = asyncio.create_task(self._watch(receive))
        try:
            chunks = self._chunks_of(scope)
            headers = [*self.raw_headers, *([] if chunks is None else [_CHUNKED])]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            # From here on Starlette is not needed.
            await self._write(
                scope.get(SEND, send), None if chunks is None else chunks(session.flush)
            )
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watching.cancel()
            broker.connections.closed(session)
            session.end()
            for each in self.heard:
                stop_listening(each, session, self.consumer)

    async def _write(self, send: Send, chunks: Chunks | None) -> None:
        session, consumer = self.session, self.consumer
        wait = self.broker.config.heart_beat_ms / 1000
        messages = [b": connected\n\n"]
        while True:
            for chunk in _chunks(messages):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if consumer is not None and not session.is_lost:
                consumer.written()
            if chunks is not None:
                session.write_to(chunks)
                chunks = None
            if session.closed is not None and not len(session.outbox):
                end = sse.encode("closed", json_text.write({"reason": session.closed}))
                await send({"type": "http.response.body", "body": end, "more_body": True})
                return
            messages = await session.take(wait)
            if consumer is not None:
                consumer.taken()
            if not messages and session.closed is None:
                is_live = self.broker.subscriptions.is_live
                if not any(is_live(each) for each in self.heard):
                    session.close("unsubscribed")
                else:
                    messages = [sse.COMMENT]

    def _chunks_of(self, scope: Scope) -> Callable[[Callable[[], None]], Chunks] | None:
        """Return how to write past the application, where no acknowledgement waits for a write."""
        if self.consumer is not None or scope["method"] != "GET" or scope["http_version"] != "1.1":
            return None
        make: Callable[[Callable[[], None]], Chunks] | None
        make = scope.get("state", {}).get("chunks")
        return make

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.session.close("gone")


_MOST_BYTES = 1 << 18
_AT_ONCE = 1_000


def new_session(
    broker: Broker, principal: Principal, request: HTTPConnection, as_sse: bool
) -> StreamSession:
    """Return a new session; raise LimitError where there are too many connections."""
    config = broker.config
    broker.connections.check()
    transport = request.scope.get("state", {}).get("transport")
    return StreamSession(config.outbox_messages, config.outbox_bytes, as_sse, principal, transport)


async def listen(
    broker: Broker,
    subscription: Subscription,
    session: StreamSession,
    auto: bool,
    replaced: Any,
    after: int = 0,
) -> Consumer | None:
    """Deliver the notifications of a subscription to a session from now on."""
    if not subscription.spec.durable:
        await broker.batches.listen(subscription, session, after)
        return None
    if "webhook" in subscription.spec.options:
        raise ArgumentError("the notifications of this subscription go to its webhook")
    window = int(subscription.spec.options.get("window", broker.config.window))
    consumer = Consumer(broker, subscription, session, replaced, window=window, auto=auto)
    consumer.attach()
    return consumer


def stop_listening(subscription: Subscription, session: Any, consumer: Consumer | None) -> None:
    """Undo `listen`."""
    if consumer is not None:
        consumer.detach()
    elif session in subscription.listeners:
        subscription.listeners.remove(session)


async def get_stream(request: Request) -> Response:
    """Stream the notifications of a subscription."""
    broker, subscription = own(request)
    if subscription.spec.durable and request.method == "GET" and not is_deliberate(request):
        raise NotAllowedError(
            "reading a durable subscription takes it over: use POST, or send a Tocsin-Client "
            "header, so that it is known not to be another site's page",
            known=True,
        )
    session = new_session(broker, principal_of(request), request, as_sse=True)
    ack = request.query_params.get("ack", "explicit")
    if ack not in ("explicit", "auto"):
        raise ArgumentError("ack is explicit or auto")
    last = json_text.to_number(request.headers.get("last-event-id"))
    if last is not None and not broker.numbers.is_own(last):  # of another epoch, or never assigned
        last = None
    if subscription.spec.durable and last is not None:
        await broker.backlog.acknowledge_upto(subscription, last)
    consumer = await listen(
        broker, subscription, session, ack == "auto", lambda: session.close("replaced"), last or 0
    )
    return EventStream(broker, [subscription], session, consumer)


def _chunks(messages: list[bytes]) -> list[bytes]:
    if sum(map(len, messages)) <= _MOST_BYTES:
        return [b"".join(messages)] if messages else []
    return [b"".join(messages[at : at + 256]) for at in range(0, len(messages), 256)]


async def get_streams(request: Request) -> Response:
    """Stream all transient subscriptions whose ids begin with `prefix`, as they are now."""
    broker, principal = broker_of(request), principal_of(request)
    prefix = request.query_params.get("prefix", "")
    if not prefix:
        raise ArgumentError("give the prefix of the subscriptions' ids")
    broker.rates.take(principal.id, LIST)
    every = list(broker.subscriptions.by_id.values())
    mine = await asyncio.get_running_loop().run_in_executor(
        None, _beginning, every, prefix, principal
    )
    if not mine:
        raise UnknownSubscriptionError(prefix)
    session = new_session(broker, principal, request, as_sse=True)
    for at, each in enumerate(mine, 1):
        await broker.batches.listen(each, session)
        if not at % _AT_ONCE:
            await asyncio.sleep(0)
    return EventStream(broker, mine, session, None)


def _beginning(
    every: Sequence[Subscription], prefix: str, principal: Principal
) -> list[Subscription]:
    """Return the transient subscriptions whose ids begin so, in the order of their ids."""
    mine = [
        each
        for each in every
        if each.id.startswith(prefix)
        and not each.spec.durable
        and principal.may_see(each.spec.owner)
    ]
    return sorted(mine, key=lambda each: each.id)


class Socket:
    """One WebSocket: operations come in, answers and notifications go out."""

    def __init__(self, socket: WebSocket, broker: Broker, principal: Principal) -> None:
        self.socket = socket
        self.broker = broker
        self.principal = principal
        self.session = new_session(broker, principal, socket, as_sse=False)
        self.heard: dict[str, tuple[Subscription, Consumer | None]] = {}
        self.made: list[Subscription] = []

    async def run(self) -> None:
        """Serve until either side closes."""
        self.broker.connections.opened(self.session)
        writer = asyncio.create_task(self._write())
        try:
            await self._read()
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self.broker.connections.closed(self.session)
            self.session.end()
            for subscription, consumer in self.heard.values():
                stop_listening(subscription, self.session, consumer)
            if self.made:
                await self.broker.remove(self.made)

    async def _write(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while self.session.closed is None:
                messages = await self.session.take(self.broker.config.heart_beat_ms / 1000)
                for _, consumer in self.heard.values():
                    if consumer is not None:
                        consumer.taken()
                for message in messages:
                    await self.socket.send_text(message.decode())
                for _, consumer in self.heard.values():
                    if consumer is not None and not self.session.is_lost:
                        consumer.written()
            await self.socket.close(1008, self.session.closed)

    async def _read(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                received = await self.socket.receive()
                if received["type"] == "websocket.disconnect":
                    return
                if self.session.outbox.is_full_of_answers and not await self._has_capacity():
                    return
                text = received.get("text")
                raw = text.encode(errors="replace") if text is not None else received["bytes"]
                await self._answer(raw)

    async def _has_capacity(self) -> bool:
        """Wait until the client reads its answers; cut it off where it reads none in time."""
        if await self.session.capacity(self.broker.config.limits.request_seconds):
            return True
        self.broker.metrics.refused += 1
        self.session.close("slow-consumer")
        if self.session.transport is not None:
            self.session.transport.abort()
        return False

    async def _answer(self, raw: bytes) -> None:
        ref: dict[str, Any] = {}
        try:
            fields = await off_loop(len(raw), json_text.read, raw)
            if not isinstance(fields, dict):
                raise ArgumentError("an operation is a JSON object")
            if "ref" in fields:
                ref = {"ref": _to_ref(fields.pop("ref"))}
            answer = {**await self._do(fields, len(raw)), **ref}
        except TocsinError as error:
            self.broker.metrics.refused += 1
            answer = {"error": error.code, "detail": str(error), **ref}
        self.session.outbox.answer(json_text.write(answer))
        self.session.flush()

    async def _do(self, fields: dict[str, Any], n_bytes: int) -> dict[str, Any]:
        op = fields.pop("op", None)
        operation = self._OPERATIONS.get(op) if isinstance(op, str) else None
        if operation is None:
            raise ArgumentError(f"op is {', '.join(self._OPERATIONS)}")
        return {"ok": op, **await operation(self, fields, n_bytes)}

    async def _once(self, events: list[Event], fields: dict[str, Any], op: str) -> dict[str, Any]:
        """Publish; once, where the operation has an idempotency key."""
        name = fields.pop("idempotency_key", None)
        key = None
        if name is not None:
            key = to_key(self.principal.id, name, op.encode(), json_text.write(fields))
        receipt = await self.broker.publish(events, key)
        answer = {"first": receipt.first, "last": receipt.last, "matches": receipt.matches}
        return {**answer, "replayed": True} if receipt.replayed else answer

    async def _publish(self, fields: dict[str, Any], n_bytes: int) -> dict[str, Any]:
        type = check_type(fields.get("type"))
        self.principal.may_publish(type)
        values = fields.get("events", [fields["event"]] if "event" in fields else None)
        if not isinstance(values, list):
            raise EventError("publish takes event, an object, or events, an array of them")
        if len(values) > self.broker.config.limits.max_events:
            raise LimitError("too many events in one request", "max_events")
        self.principal.bucket.take(len(values))
        event_type = self.broker.matcher.event_type(type)
        terms = to_terms(fields)

        def read() -> list[Event]:
            events = [from_json(each, type, event_type, row=row) for row, each in enumerate(values)]
            if terms is None:
                return events
            return [terms.apply(each, event_type, row) for row, each in enumerate(events)]

        events = await off_loop(n_bytes, read)
        return await self._once(events, fields, "publish")

    async def _retract(self, fields: dict[str, Any], n_bytes: int) -> dict[str, Any]:
        """Retract a publication; a missing one is no error."""
        type = check_type(fields.get("type"))
        self.principal.may_publish(type)
        self.principal.bucket.take(1)
        return await self._once([retraction(type, fields.get("key"))], fields, "retract")

    async def _subscribe(self, fields: dict[str, Any], n_bytes: int) -> dict[str, Any]:
        """Add a subscription that ends with the connection, and listen to it."""
        await self.broker.rates.wait(self.principal.id, CHANGE)
        fields.setdefault("id", f"ws-{secrets.token_hex(8)}")
        spec = replace(to_spec(fields, self.principal, self.broker), stored=False)
        if spec.durable:  # by name, or because it has a webhook
            raise ArgumentError("make durable subscriptions with POST /subscriptions, then listen")
        (made,) = await self.broker.registry.add([spec])
        self.made.append(made)
        answer = await self._listen_to(made, False)
        warnings = await self.broker.warnings(made.spec)
        return {**answer, "warnings": warnings} if warnings else answer

    def _own(self, fields: dict[str, Any]) -> Subscription:
        return find_own(self.broker, self.principal, fields.get("id"))

    async def _listen(self, fields: dict[str, Any], n_bytes: int) -> dict[str, Any]:
        return await self._listen_to(self._own(fields), bool(fields.get("auto")))

    async def _listen_to(self, subscription: Subscription, auto: bool) -> dict[str, Any]:
        if subscription.id not in self.heard:
            consumer = await listen(
                self.broker,
                subscription,
                self.session,
                auto,
                lambda: self._replaced(subscription.id),
            )
            self.heard[subscription.id] = (subscription, consumer)
        return {"id": subscription.id}

    def _replaced(self, id: str) -> None:
        self.heard.pop(id, None)
        self.session.outbox.answer(json_text.write({"closed": id}))
        self.session.flush()

    async def _unsubscribe(self, fields: dict[str, Any], n_bytes: int) -> dict[str, Any]:
        """Stop listening; remove the subscription if the connection added it."""
        subscription, consumer = self.heard.pop(str(fields.get("id")), (None, None))
        if subscription is None:
            raise UnknownSubscriptionError(str(fields.get("id")))
        await self.broker.rates.wait(self.principal.id, CHANGE)
        stop_listening(subscription, self.session, consumer)
        if subscription in self.made:
            self.made.remove(subscription)
            await self.broker.remove([subscription])
        return {"id": subscription.id}

    async def _acknowledge(self, fields: dict[str, Any], n_bytes: int) -> dict[str, Any]:
        subscription = self._own(fields)
        upto, ids = fields.get("upto"), fields.get("ids", [])
        if type(upto) is int and 0 <= upto < 1 << 63:
            return {"acknowledged": await self.broker.backlog.acknowledge_upto(subscription, upto)}
        checked = acknowledged_ids(ids, self.broker.config.limits)
        return {"acknowledged": await acknowledge_ids(self.broker, subscription, checked)}

    async def _refuse(self, fields: dict[str, Any], n_bytes: int) -> dict[str, Any]:
        return {"refused": await refuse(self.broker, self._own(fields), fields)}

    _OPERATIONS: ClassVar[
        dict[str, Callable[[Socket, dict[str, Any], int], Awaitable[dict[str, Any]]]]
    ] = {
        "publish": _publish,
        "retract": _retract,
        "subscribe": _subscribe,
        "listen": _listen,
        "unsubscribe": _unsubscribe,
        "ack": _acknowledge,
        "nack": _refuse,
    }


def _to_ref(value: object) -> object:
    """Return the client's reference for an answer, a text or a number."""
    if not isinstance(value, str | int | float | None):
        raise ArgumentError("ref is a text or a number")
    return value


async def websocket(socket: WebSocket) -> None:
    """Serve a WebSocket; browsers send their token as the subprotocol `bearer.TOKEN`."""
    offered = socket.scope.get("subprotocols", [])
    try:
        token = next((each[7:] for each in offered if each.startswith("bearer.")), None)
        if token is not None:
            principal = socket.app.state.tokens.authenticate(token, source_of(socket))
            admit(socket, principal)
        else:
            principal = principal_of(socket)
        served = Socket(socket, broker_of(socket), principal)
    except (NotAllowedError, LimitError):
        await socket.close(1008)
        return
    await socket.accept("tocsin" if "tocsin" in offered else None)
    await served.run()
