"""A Python client: `tocsin.connect(url)`, and `tocsin.connect_async(url)` for coroutines.

Enters: calls. Leaves: requests to a broker, and notifications as they come. A call that the broker
certainly did not take (nothing listens, or it says 503) is tried again for `retry_seconds`. So is a
publish whose outcome is not known: each has an idempotency key, under which the broker takes it
once. Other calls that the broker may have taken are not tried again. A stream
that breaks is opened again. Of a durable subscription, a notification is acknowledged when the next
one is asked for; what comes again although it was handled is left out.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from tocsin.broker.protocol import json_text, sse
from tocsin.errors import ArgumentError, RefusedError, UnavailableError

_REMEMBERED = 10_000
_LONGEST_PAUSE = 5.0
_JITTER = random.Random()  # our own, so that an application's seeded one is left alone
_SILENCE = 35.0  # a broker sends something every ten seconds, unless it is set otherwise


class Receipt(NamedTuple):
    """What became of a publish: how many events, their numbers, how many matches they had."""

    accepted: int
    first: int
    last: int
    matches: int


@dataclass(frozen=True)
class Notification:
    """An event that a subscription matches; or the publication that began or ceased to.

    `kind` is ENTER or LEAVE, or None for a plain match; `key` is the publication's. `gone` is
    `retracted` or `expired` where that is why it ceased to match. `delivery_count` says which
    delivery this is, where the subscription counts them (`ack_seconds`, `max_deliveries`).
    """

    subscription: str
    id: int
    event: dict[str, Any]
    type: str | None = None
    published: int = 0
    redelivered: bool = False
    missed: int = 0
    kind: str | None = None
    key: str | None = None
    gone: str | None = None
    delivery_count: int | None = None


class _Call(NamedTuple):
    method: str
    path: str
    body: object = None
    query: Mapping[str, str | list[str]] | None = None
    key: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers that go with the body and the idempotency key."""
        kind = {} if self.body is None else {"content-type": "application/json"}
        return kind if self.key is None else {**kind, "idempotency-key": self.key}


def _publish(events: object, terms: Mapping[str, object], key: str | None) -> _Call:
    several = list(events) if isinstance(events, Sequence) else [events]
    given = {name: value for name, value in terms.items() if value is not None}
    query = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }
    return _Call("POST", "/events", several, query, key or secrets.token_hex(16))


def _kept(key: str | int, type: str | None, method: str = "GET") -> _Call:
    place = f"/publications/{quote(str(key), safe='')}"
    once = secrets.token_hex(16) if method == "DELETE" else None
    return _Call(method, place, None, {} if type is None else {"type": type}, once)


def _check_unknown(error: RefusedError) -> None:
    """Let an error pass that only says that there is no such publication."""
    if error.code != "unknown-key":
        raise error


def _one(id: str, more: str = "") -> str:
    return f"/subscriptions/{quote(id, safe='')}{more}"


def _subscribe(id: str | None, where: str, options: Mapping[str, object]) -> _Call:
    known = {name: value for name, value in options.items() if value is not None}
    return _Call("POST", "/subscriptions", {"where": where, **known} | ({"id": id} if id else {}))


def _update(id: str, where: str | None, params: Mapping[str, object] | None) -> _Call:
    change = {"where": where, "params": params}
    return _Call("PATCH", _one(id), {k: v for k, v in change.items() if v is not None})


def _dead_page(id: str, after: int) -> _Call:
    return _Call("GET", _one(id, "/dead"), None, {"after": str(after)})


def _revive(id: str, letters: Sequence[int] | None) -> _Call:
    body = None if letters is None else {"ids": list(letters)}
    return _Call("POST", _one(id, "/revive"), body)


def _purge(id: str, letters: Sequence[int] | None) -> _Call:
    query = None if letters is None else {"id": [str(each) for each in letters]}
    return _Call("DELETE", _one(id, "/dead"), None, query)


def _refuse(
    id: str, notifications: Sequence[int], delay: float | None, reason: str | None
) -> _Call:
    terms = {"delay": delay, "reason": reason}
    named = {name: value for name, value in terms.items() if value is not None}
    return _Call("POST", _one(id, "/nack"), {"ids": list(notifications), **named})


def _acknowledge(id: str, notifications: list[int]) -> _Call:
    return _Call("POST", _one(id, "/ack"), {"ids": notifications})


def _answer(response: httpx.Response) -> Any:
    if response.status_code >= 400:
        try:
            found = json_text.read(response.content)
            code, detail = str(found["code"]), str(found["detail"])
        except Exception:  # an answer of something between us and the broker
            code, detail = "http", response.text[:200] or response.reason_phrase
        raise RefusedError(response.status_code, code, detail)
    return json_text.read(response.content) if response.content else None


def _to_notification(found: Mapping[str, Any]) -> Notification:
    """Return a notification; what newer brokers may add is left out."""
    known = {each.name for each in fields(Notification)}
    return Notification(**{name: value for name, value in found.items() if name in known})


def _to_receipt(found: Mapping[str, Any]) -> Receipt:
    return Receipt(*(int(found[name]) for name in Receipt._fields))


class _Tries:
    """How often and how long a call or a stream is tried again."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._pause = 0.05
        self._is_in_doubt = False

    def pause_in_doubt(self, error: Exception) -> float:
        """Do as `pause` where an answer never came, for which a long time may have gone by."""
        if not self._is_in_doubt:
            self._is_in_doubt = True
            self._end = time.monotonic() + self._seconds
        return self.pause(error)

    def pause(self, error: Exception) -> float:
        """Return how long to wait before the next try, or give up."""
        pause = self._pause * _JITTER.uniform(0.5, 1.0)
        if time.monotonic() + pause > self._end:
            raise UnavailableError(f"the broker cannot be reached: {error}") from None
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return pause


class _Stream:
    """The state of a stream across reconnections: what was handled, what is to acknowledge."""

    def __init__(self) -> None:
        self.parser = sse.Parser()
        self.handled: OrderedDict[int, None] = OrderedDict()
        self.again: list[int] = []
        self.ended: str | None = None

    def feed(self, data: bytes) -> list[Notification]:
        """Return the notifications that were not handled before; `again` are those that were."""
        found = []
        self.again = []
        for message in self.parser.feed(data):
            if message.event == "closed":
                self.ended = str(json_text.read(message.data.encode())["reason"])
            elif message.event == "notification":
                note = _to_notification(json_text.read(message.data.encode()))
                if note.id in self.handled:
                    self.again.append(note.id)
                else:
                    found.append(note)
        return found

    def handle(self, note: Notification) -> None:
        """Remember a notification."""
        self.handled[note.id] = None
        if len(self.handled) > _REMEMBERED:
            self.handled.popitem(last=False)

    def check_end(self) -> None:
        """Raise where the broker ended the stream for good."""
        if self.ended in ("replaced", "unsubscribed"):
            raise UnavailableError(f"the broker closed the stream: {self.ended}")
        self.parser, self.ended = sse.Parser(), None


def _options(url: str, token: str | None, timeout: float, verify: Any) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ArgumentError(f"a broker's URL begins with http:// or https://, not {url!r}")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return {"base_url": url, "headers": headers, "timeout": timeout, "verify": verify}


_LOST = (httpx.ConnectError, httpx.ConnectTimeout)


class Client:
    """A connection to a broker. Use it from one thread at a time, or make one for each."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retry_seconds: float = 10.0,
        verify: Any = True,
    ) -> None:
        self._http = httpx.Client(**_options(url, token, timeout, verify))
        self._retry = retry_seconds
        self._handling: set[tuple[str, int]] = set()

    def _do(self, call: _Call) -> Any:
        tries = _Tries(self._retry)
        body = None if call.body is None else json_text.write(call.body)
        headers = call.headers()
        while True:
            try:
                response = self._http.request(
                    call.method, call.path, content=body, params=call.query, headers=headers
                )
                if response.status_code != 503:
                    return _answer(response)
                time.sleep(tries.pause(UnavailableError(response.text[:200])))
            except _LOST as error:
                time.sleep(tries.pause(error))
            except httpx.HTTPError as error:
                if call.key is None:
                    raise UnavailableError(f"the broker did not answer: {error!r}") from None
                time.sleep(tries.pause_in_doubt(error))

    def publish(
        self,
        events: Mapping[str, object] | Sequence[Mapping[str, object]],
        *,
        type: str | None = None,
        valid_until: object = None,
        ttl: float | None = None,
        key: str | int | None = None,
        key_of: str | None = None,
        merge: bool = False,
        retain: float | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Publish one event or several (all or none); durable notifications are then on disk.

        With `key` the event is a publication that stays until it is retracted or its time is over;
        of several, `key_of` names the attribute that has the key. `merge` changes only what is
        named. `retain` keeps an event so many seconds for subscriptions to come.

        A publish that got no answer is tried again under its idempotency key, so that it is taken
        once. An application that may itself repeat a publish, for instance after a crash, gives a
        key of its own.
        """
        terms = {
            "type": type, "valid_until": valid_until, "ttl": ttl, "key": key, "key_of": key_of,
            "merge": merge or None, "retain": retain,
        }  # fmt: skip
        return _to_receipt(self._do(_publish(events, terms, idempotency_key)))

    def retract(self, key: str | int, *, type: str | None = None) -> bool:
        """Take a publication back; whether there was one."""
        try:
            self._do(_kept(key, type, "DELETE"))
        except RefusedError as error:
            _check_unknown(error)
            return False
        return True

    def publication(self, key: str | int, *, type: str | None = None) -> dict[str, Any] | None:
        """Return what a publication says now, under `event`; None where there is none."""
        try:
            found: dict[str, Any] = self._do(_kept(key, type))
        except RefusedError as error:
            _check_unknown(error)
            return None
        return found

    def subscribe(self, id: str | None, where: str, **options: object) -> str:
        """Make a subscription and return its id.

        Options: `params`, `type`, `durable`, `valid_until`, `overflow`, `window`, `webhook`,
        `ack_seconds`, `max_deliveries`;
        `transitions=True` (or `["ENTER"]`, `["LEAVE"]`) asks to be told when a publication begins
        or ceases to match, and of nothing else.
        """
        return str(self._do(_subscribe(id, where, options))["id"])

    def update(
        self, id: str, *, where: str | None = None, params: Mapping[str, object] | None = None
    ) -> None:
        """Change parameters or the condition of a subscription."""
        self._do(_update(id, where, params))

    def unsubscribe(self, id: str) -> None:
        """Remove a subscription."""
        self._do(_Call("DELETE", _one(id)))

    def subscription(self, id: str) -> dict[str, Any]:
        """Return what the broker knows of a subscription."""
        found: dict[str, Any] = self._do(_Call("GET", _one(id)))
        return found

    def stats(self) -> dict[str, Any]:
        """Return the broker's figures."""
        found: dict[str, Any] = self._do(_Call("GET", "/stats"))
        return found

    def acknowledge(self, id: str, notification: int) -> None:
        """Acknowledge one notification of a durable subscription."""
        self._do(_acknowledge(id, [notification]))

    def refuse(
        self,
        id: str,
        notification: int,
        *,
        delay: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Refuse a notification: it becomes a dead letter, or comes again after `delay` seconds."""
        self._handling.discard((id, notification))  # it is not acknowledged as handled
        self._do(_refuse(id, [notification], delay, reason))

    def dead_letters(self, id: str) -> Iterator[dict[str, Any]]:
        """Yield the dead letters of a subscription, oldest first."""
        after: int | None = 0
        while after is not None:
            page = self._do(_dead_page(id, after))
            yield from page["dead"]
            after = page.get("next")

    def revive(self, id: str, letters: Sequence[int] | None = None) -> int:
        """Have dead letters delivered again, all or those named; return how many."""
        return int((self._do(_revive(id, letters)))["revived"])

    def purge(self, id: str, letters: Sequence[int] | None = None) -> int:
        """Remove dead letters, all or those named; return how many."""
        return int((self._do(_purge(id, letters)))["purged"])

    def notifications(self, id: str) -> Iterator[Notification]:
        """Yield the notifications of a subscription for ever, across reconnections."""
        durable = self.subscription(id)["durable"]
        stream, tries = _Stream(), _Tries(self._retry)
        while True:
            try:
                with self._http.stream("GET", _one(id, "/stream"), timeout=_SILENCE) as response:
                    if response.status_code != 200:
                        response.read()
                        _answer(response)
                    for data in response.iter_raw():
                        tries = _Tries(self._retry)
                        found = stream.feed(data)
                        if durable and stream.again:
                            self._do(_acknowledge(id, stream.again))
                        for note in found:
                            self._handling.add((id, note.id))
                            yield note
                            if (id, note.id) not in self._handling:  # refused
                                continue
                            self._handling.discard((id, note.id))
                            stream.handle(note)
                            if durable:
                                self.acknowledge(id, note.id)
                error: Exception = UnavailableError("the stream ended")
            except (httpx.HTTPError, UnavailableError) as broken:
                error = broken
            except RefusedError as refused:
                if refused.status != 503:
                    raise
                error = refused
            stream.check_end()
            time.sleep(tries.pause(error))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """The same for coroutines."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retry_seconds: float = 10.0,
        verify: Any = True,
    ) -> None:
        self._http = httpx.AsyncClient(**_options(url, token, timeout, verify))
        self._retry = retry_seconds
        self._handling: set[tuple[str, int]] = set()

    async def _do(self, call: _Call) -> Any:
        tries = _Tries(self._retry)
        body = None if call.body is None else json_text.write(call.body)
        headers = call.headers()
        while True:
            try:
                response = await self._http.request(
                    call.method, call.path, content=body, params=call.query, headers=headers
                )
                if response.status_code != 503:
                    return _answer(response)
                await asyncio.sleep(tries.pause(UnavailableError(response.text[:200])))
            except _LOST as error:
                await asyncio.sleep(tries.pause(error))
            except httpx.HTTPError as error:
                if call.key is None:
                    raise UnavailableError(f"the broker did not answer: {error!r}") from None
                await asyncio.sleep(tries.pause_in_doubt(error))

    async def publish(
        self,
        events: Mapping[str, object] | Sequence[Mapping[str, object]],
        *,
        type: str | None = None,
        valid_until: object = None,
        ttl: float | None = None,
        key: str | int | None = None,
        key_of: str | None = None,
        merge: bool = False,
        retain: float | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Publish one event or several (all or none); as `Client.publish`."""
        terms = {
            "type": type, "valid_until": valid_until, "ttl": ttl, "key": key, "key_of": key_of,
            "merge": merge or None, "retain": retain,
        }  # fmt: skip
        return _to_receipt(await self._do(_publish(events, terms, idempotency_key)))

    async def retract(self, key: str | int, *, type: str | None = None) -> bool:
        """Take a publication back; whether there was one."""
        try:
            await self._do(_kept(key, type, "DELETE"))
        except RefusedError as error:
            _check_unknown(error)
            return False
        return True

    async def publication(
        self, key: str | int, *, type: str | None = None
    ) -> dict[str, Any] | None:
        """Return what a publication says now, under `event`; None where there is none."""
        try:
            found: dict[str, Any] = await self._do(_kept(key, type))
        except RefusedError as error:
            _check_unknown(error)
            return None
        return found

    async def subscribe(self, id: str | None, where: str, **options: object) -> str:
        """Make a subscription and return its id; options as for `Client.subscribe`."""
        return str((await self._do(_subscribe(id, where, options)))["id"])

    async def update(
        self, id: str, *, where: str | None = None, params: Mapping[str, object] | None = None
    ) -> None:
        """Change parameters or the condition of a subscription."""
        await self._do(_update(id, where, params))

    async def unsubscribe(self, id: str) -> None:
        """Remove a subscription."""
        await self._do(_Call("DELETE", _one(id)))

    async def subscription(self, id: str) -> dict[str, Any]:
        """Return what the broker knows of a subscription."""
        found: dict[str, Any] = await self._do(_Call("GET", _one(id)))
        return found

    async def acknowledge(self, id: str, notification: int) -> None:
        """Acknowledge one notification of a durable subscription."""
        await self._do(_acknowledge(id, [notification]))

    async def refuse(
        self,
        id: str,
        notification: int,
        *,
        delay: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Refuse a notification: it becomes a dead letter, or comes again after `delay` seconds."""
        self._handling.discard((id, notification))  # it is not acknowledged as handled
        await self._do(_refuse(id, [notification], delay, reason))

    async def dead_letters(self, id: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the dead letters of a subscription, oldest first."""
        after: int | None = 0
        while after is not None:
            page = await self._do(_dead_page(id, after))
            for letter in page["dead"]:
                yield letter
            after = page.get("next")

    async def revive(self, id: str, letters: Sequence[int] | None = None) -> int:
        """Have dead letters delivered again, all or those named; return how many."""
        return int((await self._do(_revive(id, letters)))["revived"])

    async def purge(self, id: str, letters: Sequence[int] | None = None) -> int:
        """Remove dead letters, all or those named; return how many."""
        return int((await self._do(_purge(id, letters)))["purged"])

    async def notifications(self, id: str) -> AsyncIterator[Notification]:
        """Yield the notifications of a subscription for ever, across reconnections."""
        durable = (await self.subscription(id))["durable"]
        stream, tries = _Stream(), _Tries(self._retry)
        while True:
            try:
                async with self._http.stream(
                    "GET", _one(id, "/stream"), timeout=_SILENCE
                ) as response:
                    if response.status_code != 200:
                        await response.aread()
                        _answer(response)
                    async for data in response.aiter_raw():
                        tries = _Tries(self._retry)
                        found = stream.feed(data)
                        if durable and stream.again:
                            await self._do(_acknowledge(id, stream.again))
                        for note in found:
                            self._handling.add((id, note.id))
                            yield note
                            if (id, note.id) not in self._handling:  # refused
                                continue
                            self._handling.discard((id, note.id))
                            stream.handle(note)
                            if durable:
                                await self.acknowledge(id, note.id)
                error: Exception = UnavailableError("the stream ended")
            except (httpx.HTTPError, UnavailableError) as broken:
                error = broken
            except RefusedError as refused:
                if refused.status != 503:
                    raise
                error = refused
            stream.check_end()
            await asyncio.sleep(tries.pause(error))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def connect(url: str = "http://127.0.0.1:8080", token: str | None = None, **more: Any) -> Client:
    """Return a client of the broker at a URL.

    >>> with connect("http://127.0.0.1:8080") as broker:      # doctest: +SKIP
    ...     broker.subscribe("cheap", "firm = 'IBM' AND price < 100", durable=True)
    ...     broker.publish({"firm": "IBM", "price": 89.5})
    ...     for note in broker.notifications("cheap"):
    ...         print(note.event)
    """
    return Client(url, token, **more)


def connect_async(
    url: str = "http://127.0.0.1:8080", token: str | None = None, **more: Any
) -> AsyncClient:
    """Return a client for coroutines of the broker at a URL."""
    return AsyncClient(url, token, **more)
