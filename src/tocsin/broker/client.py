"""A Python client: `tocsin.connect(url)`, and `tocsin.connect_async(url)` for coroutines.

Enters: calls (`calls.py`). Leaves: requests to a broker, notifications. Both clients run the same
coroutines over a transport of their own; those of the synchronous transport never suspend.

A call that the broker certainly did not take (nothing listens, or it answers 503) is repeated for
`retry_seconds`. So is a publish that gets no answer: it has an idempotency key, under which the
broker takes it once. Other calls that the broker may have taken are not repeated. A stream that
breaks is opened again. A notification of a durable subscription is acknowledged when the next one
is asked for; one that comes again although it was handled is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import random
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, fields
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from tocsin.errors import ArgumentError, ProtocolError, RefusedError, UnavailableError
from tocsin.extras import explain_missing

try:
    import httpx
    import pyarrow as pa

    from tocsin.broker import calls
    from tocsin.broker.calls import Call, Keep, Pages, Receipt
    from tocsin.broker.protocol import json_text, sse
except ModuleNotFoundError as error:
    raise explain_missing(error, "tocsin.broker.client") from None

__all__ = [
    "AsyncClient",
    "Client",
    "Keep",
    "Notification",
    "Receipt",
    "connect",
    "connect_async",
]

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_Item = dict[str, Any]
_MAX_REMEMBERED = 10_000
_LONGEST_PAUSE = 5.0
_JITTER = random.Random()  # our own, so that an application's seeded one is left alone
_SILENCE = 35.0  # a broker sends a heartbeat every ten seconds, unless it is configured otherwise
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout)


@dataclass(frozen=True)
class Notification:
    """An event that a subscription matches, or a publication that began or ceased to match.

    `kind` is ENTER or LEAVE, or None for a match; `key` is the publication's. `gone` is `retracted`
    or `expired` where that is why it ceased to match. `missed` counts the notifications that the
    subscription has lost so far. `delivery_count` says which delivery this is, where the
    subscription counts them (`ack_seconds`, `max_deliveries`).
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


def _to_notification(data: str) -> Notification:
    """Return a notification; fields that newer brokers may add are left out."""
    known = {each.name for each in fields(Notification)}
    values = json_text.read(data.encode())
    return Notification(**{name: value for name, value in values.items() if name in known})


def _read_answer(response: httpx.Response) -> Any:
    if response.status_code >= 400:
        try:
            problem = json_text.read(response.content)
            code, detail = str(problem["code"]), str(problem["detail"])
        except Exception:  # the answer of a proxy
            code, detail = "http", response.text[:200] or response.reason_phrase
        raise RefusedError(response.status_code, code, detail)
    return json_text.read(response.content) if response.content else None


class _Retries:
    """How long to wait before the next attempt, for `seconds` in all."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._pause = 0.05
        self._is_in_doubt = False

    def pause_in_doubt(self, error: Exception) -> float:
        """Do as `pause` where an answer never came, which may have taken long."""
        if not self._is_in_doubt:
            self._is_in_doubt = True
            self._end = time.monotonic() + self._seconds
        return self.pause(error)

    def pause(self, error: Exception) -> float:
        """Return how long to wait before the next attempt, or raise UnavailableError."""
        pause = self._pause * _JITTER.uniform(0.5, 1.0)
        if time.monotonic() + pause > self._end:
            raise UnavailableError(f"the broker cannot be reached: {error}") from None
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return pause


class _Stream:
    """The state of a stream across reconnections: which notifications were handled."""

    def __init__(self) -> None:
        self.parser = sse.Parser()
        self.handled: OrderedDict[int, None] = OrderedDict()
        self.repeated: list[int] = []
        self.reason: str | None = None

    def feed(self, data: bytes) -> list[Notification]:
        """Return new notifications; `repeated` has the ids of repeated ones."""
        new = []
        self.repeated = []
        for message in self.parser.feed(data):
            if message.event == "closed":
                self.reason = str(json_text.read(message.data.encode())["reason"])
            elif message.event == "notification":
                note = _to_notification(message.data)
                if note.id in self.handled:
                    self.repeated.append(note.id)
                else:
                    new.append(note)
        return new

    def handle(self, note: Notification) -> None:
        """Remember a notification."""
        self.handled[note.id] = None
        if len(self.handled) > _MAX_REMEMBERED:
            self.handled.popitem(last=False)

    def reopen(self) -> None:
        """Begin with a new connection; raise where the broker ended the stream for good."""
        if self.reason in ("replaced", "unsubscribed"):
            raise UnavailableError(f"the broker closed the stream: {self.reason}")
        self.parser, self.reason = sse.Parser(), None


# Transports.


class _Chunks(Protocol):
    """The body of an open stream."""

    async def next(self, seconds: float | None) -> bytes | None:
        """Return the next bytes, None at the end; raise TimeoutError after some seconds."""

    async def close(self) -> None:
        """Close the stream."""


class _Transport(Protocol):
    """What a client needs of HTTP."""

    async def request(
        self, call: Call[Any], content: bytes | None, headers: Mapping[str, str]
    ) -> httpx.Response: ...

    async def open(self, path: str) -> _Chunks: ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class _SyncTransport:
    """HTTP in the calling thread; its coroutines never suspend."""

    def __init__(self, **options: Any) -> None:
        self._http = httpx.Client(**options)

    async def request(
        self, call: Call[Any], content: bytes | None, headers: Mapping[str, str]
    ) -> httpx.Response:
        return self._http.request(
            call.method, call.path, content=content, params=call.query, headers=headers
        )

    async def open(self, path: str) -> _Chunks:
        request = self._http.build_request("GET", path, timeout=_SILENCE)
        response = self._http.send(request, stream=True)
        if response.status_code != 200:
            response.read()
            _read_answer(response)
        return _SyncChunks(response)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self._http.close()


class _SyncChunks:
    """A stream that a thread reads; a timer shuts its socket down at a deadline."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.iter_raw()

    async def next(self, seconds: float | None) -> bytes | None:
        if seconds is None:
            return next(self._chunks, None)
        end = time.monotonic() + seconds
        timer = threading.Timer(seconds, self._shut_down)
        timer.start()
        try:
            chunk = next(self._chunks, None)
        except httpx.HTTPError:
            chunk = None
        finally:
            timer.cancel()
        if chunk is None and time.monotonic() >= end:
            raise TimeoutError
        return chunk

    def _shut_down(self) -> None:
        opened = self._response.extensions["network_stream"].get_extra_info("socket")
        if opened is not None:
            socket.socket.shutdown(opened, socket.SHUT_RDWR)

    async def close(self) -> None:
        self._response.close()


class _AsyncTransport:
    """HTTP in an event loop."""

    def __init__(self, **options: Any) -> None:
        self._http = httpx.AsyncClient(**options)

    async def request(
        self, call: Call[Any], content: bytes | None, headers: Mapping[str, str]
    ) -> httpx.Response:
        return await self._http.request(
            call.method, call.path, content=content, params=call.query, headers=headers
        )

    async def open(self, path: str) -> _Chunks:
        request = self._http.build_request("GET", path, timeout=_SILENCE)
        response = await self._http.send(request, stream=True)
        if response.status_code != 200:
            await response.aread()
            _read_answer(response)
        return _AsyncChunks(response)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()


class _AsyncChunks:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.aiter_raw()

    async def next(self, seconds: float | None) -> bytes | None:
        async with asyncio.timeout(seconds):
            return await anext(self._chunks, None)

    async def close(self) -> None:
        await self._response.aclose()


# What both clients do.


class _Session:
    """A connection to a broker, over either transport."""

    def __init__(self, transport: _Transport, retry_seconds: float) -> None:
        self.transport = transport
        self._retry_seconds = retry_seconds
        self._handling: set[tuple[str, int]] = set()

    async def do(self, call: Call[T]) -> T:
        """Make a call, as often as that is safe; return its result."""
        if call.refuses is not None:
            self._handling.discard(call.refuses)
        try:
            answer = _read_answer(await self._request(call))
        except RefusedError as error:
            if call.absent_code and error.code == call.absent_code:
                return call.absent  # type: ignore[no-any-return]
            raise
        try:
            return call.result(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"this is not the answer of a broker: {error!r}") from None

    async def _request(self, call: Call[Any]) -> httpx.Response:
        content, headers = call.content(), call.headers()
        retries = _Retries(self._retry_seconds)
        while True:
            try:
                response = await self.transport.request(call, content, headers)
                if response.status_code != 503:
                    return response
                pause = retries.pause(UnavailableError(response.text[:200]))
            except _NOT_CONNECTED as error:
                pause = retries.pause(error)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise ArgumentError(f"the broker's URL cannot be used: {error}") from None
            except httpx.HTTPError as error:
                if call.key is None:
                    raise UnavailableError(f"the broker did not answer: {error!r}") from None
                pause = retries.pause_in_doubt(error)
            await self.transport.sleep(pause)

    async def pages(self, pages: Pages) -> AsyncGenerator[_Item, None]:
        """Yield the items of all pages."""
        after: object = None
        while True:
            answer = await self.do(pages.page(after))
            for item in answer[pages.items]:
                yield item
            after = pages.next_of(answer)
            if after is None:
                return

    async def notifications(
        self, id: str, timeout: float | None
    ) -> AsyncGenerator[Notification, None]:
        """Yield the notifications of a subscription, across reconnections."""
        durable = (await self.do(calls.get(id)))["durable"]
        stream, retries = _Stream(), _Retries(self._retry_seconds)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            chunks: _Chunks | None = None
            try:
                chunks = await self.transport.open(calls.subscription_path(id, "/stream"))
                while (data := await self._next(chunks, deadline)) is not None:
                    retries = _Retries(self._retry_seconds)
                    new = stream.feed(data)
                    if durable and stream.repeated:
                        await self.do(calls.acknowledge_many(id, stream.repeated))
                    for note in new:
                        self._handling.add((id, note.id))
                        yield note
                        if timeout is not None:
                            deadline = time.monotonic() + timeout
                        if (id, note.id) not in self._handling:  # refused
                            continue
                        self._handling.discard((id, note.id))
                        stream.handle(note)
                        if durable:
                            await self.do(calls.acknowledge(id, note.id))
                error: Exception = UnavailableError("the stream ended")
            except TimeoutError:
                return
            except (httpx.HTTPError, UnavailableError) as broken:
                error = broken
            except RefusedError as refused:
                if refused.status != 503:
                    raise
                error = refused
            finally:
                if chunks is not None:
                    await chunks.close()
            stream.reopen()
            pause = retries.pause(error)
            if deadline is not None and time.monotonic() + pause >= deadline:
                return
            await self.transport.sleep(pause)

    async def _next(self, chunks: _Chunks, deadline: float | None) -> bytes | None:
        if deadline is None:
            return await chunks.next(None)
        return await chunks.next(max(0.001, deadline - time.monotonic()))


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over the synchronous transport, which never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("a synchronous call has suspended")


class _Iteration(Generic[T], Generator[T, None, None]):
    """The items of an asynchronous generator over the synchronous transport."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items

    def send(self, value: None) -> T:
        """Return the next item."""
        try:
            return _run(self._items.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def throw(self, *args: Any) -> T:
        """Close the generator and raise an exception."""
        self.close()
        error = args[1] if len(args) > 1 and args[1] is not None else args[0]
        raise error

    def close(self) -> None:
        """Close the connection."""
        _run(self._items.aclose())

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _described(method: F, make: Callable[..., object]) -> F:
    """Give a method the name, the documentation and the signature of its call."""
    functools.update_wrapper(method, make)
    own = inspect.signature(make)
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = own.replace(parameters=[self, *own.parameters.values()])
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def _sync(make: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """Return the method of `Client` for a call."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _run(self._session.do(make(*args, **kwargs)))

    return _described(method, make)


def _async(
    make: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return the method of `AsyncClient` for a call."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._session.do(make(*args, **kwargs))

    return _described(method, make)


def _sync_pages(
    make: Callable[P, Pages],
) -> Callable[Concatenate[Client, P], Iterator[_Item]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[_Item]:
        return _Iteration(self._session.pages(make(*args, **kwargs)))

    return _described(method, make)


def _async_pages(
    make: Callable[P, Pages],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[_Item]]:
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[_Item]:
        return self._session.pages(make(*args, **kwargs))

    return _described(method, make)


def _options(url: str, token: str | None, timeout: float, verify: Any) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ArgumentError(f"a broker's URL begins with http:// or https://, not {url!r}")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return {"base_url": url, "headers": headers, "timeout": timeout, "verify": verify}


def _open(make: Callable[..., T], options: Mapping[str, Any]) -> T:
    try:
        return make(**options)
    except (httpx.InvalidURL, OSError, ValueError) as error:
        raise ArgumentError(f"these options of a connection cannot be used: {error}") from None


class Client:
    """A connection to a broker. Use it from one thread at a time, or make one for each.

    `token` is the bearer token. A request may take `timeout` seconds, and is repeated for
    `retry_seconds` where that is safe. `verify` is as httpx takes it: False, or an SSLContext.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retry_seconds: float = 10.0,
        verify: Any = True,
    ) -> None:
        self.url = url
        transport = _open(_SyncTransport, _options(url, token, timeout, verify))
        self._session = _Session(transport, retry_seconds)

    publish = _sync(calls.publish)
    publish_many = _sync(calls.publish_many)
    retract = _sync(calls.retract)
    publication = _sync(calls.publication)
    subscribe = _sync(calls.subscribe)
    put = _sync(calls.put)
    update = _sync(calls.update)
    unsubscribe = _sync(calls.unsubscribe)
    subscribe_many = _sync(calls.subscribe_many)
    put_many = _sync(calls.put_many)
    update_many = _sync(calls.update_many)
    unsubscribe_many = _sync(calls.unsubscribe_many)
    get = _sync(calls.get)
    subscriptions = _sync_pages(calls.subscriptions)
    acknowledge = _sync(calls.acknowledge)
    refuse = _sync(calls.refuse)
    dead_letters = _sync_pages(calls.dead_letters)
    revive = _sync(calls.revive)
    purge = _sync(calls.purge)
    stats = _sync(calls.stats)

    def to_table(self, *, search: str | None = None, owner: str | None = None) -> pa.Table:
        """Return subscriptions as columns `id`, `where`, `params` and `valid_until`.

        The arguments are those of `subscriptions`; `Matcher.subscribe_many` loads the table.
        """
        return calls.to_table(list(self.subscriptions(search=search, owner=owner)))

    def notifications(
        self, id: str, timeout: float | None = None
    ) -> Generator[Notification, None, None]:
        """Yield the notifications of a subscription, across reconnections.

        Ends when none comes for `timeout` seconds; without a timeout, never. Raises RefusedError
        where there is no such subscription, UnavailableError where the broker closes the stream for
        good or cannot be reached for `retry_seconds`.
        """
        return _Iteration(self._session.notifications(id, timeout))

    def close(self) -> None:
        """Close the connections."""
        _run(self._session.transport.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """A connection to a broker for coroutines; arguments as for `Client`."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retry_seconds: float = 10.0,
        verify: Any = True,
    ) -> None:
        self.url = url
        transport = _open(_AsyncTransport, _options(url, token, timeout, verify))
        self._session = _Session(transport, retry_seconds)

    publish = _async(calls.publish)
    publish_many = _async(calls.publish_many)
    retract = _async(calls.retract)
    publication = _async(calls.publication)
    subscribe = _async(calls.subscribe)
    put = _async(calls.put)
    update = _async(calls.update)
    unsubscribe = _async(calls.unsubscribe)
    subscribe_many = _async(calls.subscribe_many)
    put_many = _async(calls.put_many)
    update_many = _async(calls.update_many)
    unsubscribe_many = _async(calls.unsubscribe_many)
    get = _async(calls.get)
    subscriptions = _async_pages(calls.subscriptions)
    acknowledge = _async(calls.acknowledge)
    refuse = _async(calls.refuse)
    dead_letters = _async_pages(calls.dead_letters)
    revive = _async(calls.revive)
    purge = _async(calls.purge)
    stats = _async(calls.stats)

    async def to_table(self, *, search: str | None = None, owner: str | None = None) -> pa.Table:
        """Return subscriptions as columns `id`, `where`, `params` and `valid_until`.

        The arguments are those of `subscriptions`; `Matcher.subscribe_many` loads the table.
        """
        return calls.to_table(
            [each async for each in self.subscriptions(search=search, owner=owner)]
        )

    def notifications(
        self, id: str, timeout: float | None = None
    ) -> AsyncGenerator[Notification, None]:
        """Yield the notifications of a subscription; as `Client.notifications`."""
        return self._session.notifications(id, timeout)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def connect(
    url: str = "http://127.0.0.1:8080",
    token: str | None = None,
    *,
    timeout: float = 30.0,
    retry_seconds: float = 10.0,
    verify: Any = True,
) -> Client:
    """Return a client of the broker at a URL; arguments as for `Client`.

    >>> with connect("http://127.0.0.1:8080") as broker:      # doctest: +SKIP
    ...     broker.subscribe("cheap", "firm = 'IBM' AND price < 100", durable=True)
    ...     broker.publish({"firm": "IBM", "price": 89.5})
    ...     for note in broker.notifications("cheap"):
    ...         print(note.event)
    """
    return Client(url, token, timeout=timeout, retry_seconds=retry_seconds, verify=verify)


def connect_async(
    url: str = "http://127.0.0.1:8080",
    token: str | None = None,
    *,
    timeout: float = 30.0,
    retry_seconds: float = 10.0,
    verify: Any = True,
) -> AsyncClient:
    """Return a client for coroutines of the broker at a URL; arguments as for `Client`."""
    return AsyncClient(url, token, timeout=timeout, retry_seconds=retry_seconds, verify=verify)
