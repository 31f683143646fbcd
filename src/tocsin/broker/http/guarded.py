"""HTTP and WebSocket connections whose time and memory a hostile client cannot exhaust.

Enters: bytes of a connection. Leaves: requests and messages, by uvicorn's protocols. Added here:

- a limit on the length of a request's head, and a time within which it must come; a connection that
  sends nothing is closed after the same time;
- a time within which a body must come, whether or not anything reads it; shorter once the answer
  is sent, so that an unread body does not keep the connection open;
- bytes are parsed in slices, and not while answers wait: neither thousands of small requests nor
  pings block the event loop or fill the memory;
- a client that reads nothing of an answer for long is cut off (streams have their own rules);
- a connection counts as unauthenticated until a request has authenticated it (`admission.py`).

A request's state has its transport, so that one whose client does not read can be ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tocsin.broker.admission import Admission, address_of

_SLICE = 8_192
_SOCKET_SLICE = 2_048
_MOST_FRAGMENTS = 10_000
_UNREAD_SECONDS = 2.0


class Chunks:
    """Writes the body of an answer that is sent in chunks, past the layers of the application."""

    __slots__ = ("_flow", "_transport", "on_resumed")

    def __init__(
        self, transport: asyncio.Transport, flow: FlowControl, on_resumed: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._flow = flow
        self.on_resumed = on_resumed

    @property
    def is_open(self) -> bool:
        """Whether the client keeps up."""
        return not self._flow.write_paused and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Write a chunk; `data` is not empty."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


@dataclass(frozen=True)
class Guards:
    """The limits of connections: bytes of a head, seconds for it, seconds for a body."""

    max_head: int
    head_seconds: float
    body_seconds: float
    admission: Admission


class _HeadTooLongError(Exception):
    pass


class Guarded(HttpToolsProtocol):
    """An HTTP connection within limits, which `guarded` sets."""

    guards: Guards
    _n_head = 0
    _timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _chunks: Chunks | None = None
    _is_in_body = _is_stream = False

    def connection_made(self, transport: Any) -> None:
        """Begin as an unauthenticated connection."""
        super().connection_made(transport)
        self._rest = bytearray()
        self._is_feeding = False
        if not self.guards.admission.enter(transport, address_of(transport), transport.abort):
            transport.abort()
            return
        self._start(self.guards.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop()
        self._stop_stall()
        self._rest.clear()
        self.guards.admission.leave(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse in slices, and not while requests wait for earlier answers."""
        if len(data) <= _SLICE and not self._rest and not self.pipeline:
            super().data_received(data)
            return
        self._rest += data
        self._feed()

    def _feed(self) -> None:
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._rest and not self.pipeline and not self.transport.is_closing():
                if self.transport.get_protocol() is not self:
                    self._rest.clear()  # a WebSocket now; its client must wait
                    return
                part = bytes(self._rest[:_SLICE])
                del self._rest[:_SLICE]
                super().data_received(part)
        finally:
            self._is_feeding = False
        if self._rest:
            self.flow.pause_reading()

    def on_message_begin(self) -> None:
        """Give a head its time."""
        self._n_head = 0
        self._is_in_body = False
        self._start(self.guards.head_seconds)
        super().on_message_begin()
        self.scope["state"] |= {
            "transport": self.transport,
            "chunks": self._to_chunks,
            "stream": self._become_stream,
            "admit": self._admit,
        }

    def on_url(self, url: bytes) -> None:
        """Count the bytes of a head."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a head."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Give a body its time, and the application a moment more to refuse it."""
        self._is_in_body = True
        self._start(self.guards.body_seconds + _UNREAD_SECONDS)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait no longer: the request is here."""
        self._is_in_body = False
        self._stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Parse bytes that came meanwhile; give the rest of a body little time."""
        is_unread = self._is_in_body and not self.pipeline
        super().on_response_complete()
        if is_unread:
            self._unset_keepalive_if_required()
            self._start(min(_UNREAD_SECONDS, self.guards.head_seconds))
        if self._rest:
            self._feed()

    def pause_writing(self) -> None:
        """Watch a client that does not keep up."""
        super().pause_writing()
        if not self._is_stream:
            self._watch(-1)

    def resume_writing(self) -> None:
        """Write on."""
        self._stop_stall()
        super().resume_writing()
        if self._chunks is not None:
            self._chunks.on_resumed()

    def _admit(self, owner: str) -> None:
        self.guards.admission.admit(self.transport, owner)

    def _become_stream(self) -> None:
        self._is_stream = True
        self._stop_stall()

    def _watch(self, before: int) -> None:
        """Cut off a client that read nothing of an answer in the time for a body."""
        n_bytes = self.transport.get_write_buffer_size()
        if n_bytes == before:
            self.transport.abort()
            return
        self._stall_timer = self.loop.call_later(self.guards.body_seconds, self._watch, n_bytes)

    def _stop_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _to_chunks(self, on_resumed: Callable[[], None]) -> Chunks:
        self._chunks = Chunks(self.transport, self.flow, on_resumed)
        return self._chunks

    def _count(self, n: int) -> None:
        self._n_head += n
        if self._n_head > self.guards.max_head:
            raise _HeadTooLongError

    def _start(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.transport.close()
        self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)  # where nothing is taken

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class GuardedSocket(WebSocketsSansIOProtocol):
    """A WebSocket within limits, which `guarded` sets."""

    guards: Guards

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self._rest = bytearray()
        self._is_waiting = self._owes_pongs = False
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._rest.clear()
        self.guards.admission.leave(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse in slices, and not while messages or pongs wait."""
        if len(data) <= _SOCKET_SLICE and not self._rest:
            super().data_received(data)
        else:
            self._rest += data
            self._step()
        self._steer()

    def _step(self) -> None:
        self._is_waiting = False
        part = bytes(self._rest[:_SOCKET_SLICE])
        del self._rest[:_SOCKET_SLICE]
        if part and not self.transport.is_closing():
            super().data_received(part)

    def _step_on(self) -> None:
        self._step()
        self._steer()

    def _steer(self) -> None:
        """Go on parsing and reading, or stop."""
        if self.transport.is_closing():
            return
        must_wait = not self.close_sent and (not self.queue.empty() or self._owes_pongs)
        if self._rest and not must_wait and not self._is_waiting:
            self._is_waiting = True
            self.loop.call_soon(self._step_on)
        stop = must_wait or bool(self._rest)
        if stop != self.read_paused:
            self.read_paused = stop
            (self.transport.pause_reading if stop else self.transport.resume_reading)()

    def handle_connect(self, event: Any) -> None:
        """Begin a conversation; its state has the transport, to abort it."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["state"] |= {"transport": self.transport, "admit": self._admit}

    def _admit(self, owner: str) -> None:
        self.guards.admission.admit(self.transport, owner)

    def handle_cont(self, event: Any) -> None:
        """Gather a message of a bounded number of fragments."""
        if len(self.frames) > _MOST_FRAGMENTS:
            self.transport.abort()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer; read no more from a client that pings and does not read the answers."""
        super().handle_ping()
        if not self.writable.is_set() and not self._owes_pongs:
            self._owes_pongs = True
            self._watch(-1)

    def _watch(self, before: int) -> None:
        n_bytes = self.transport.get_write_buffer_size()
        if n_bytes == before:
            self.transport.abort()
        elif self._owes_pongs and not self.transport.is_closing():
            self.loop.call_later(self.guards.body_seconds, self._watch, n_bytes)

    def resume_writing(self) -> None:
        """Write on, and read on."""
        super().resume_writing()
        self._owes_pongs = False
        self._steer()

    async def receive(self) -> Any:
        """Return the next message."""
        message = await self.queue.get()
        self._steer()
        return message


def guarded(guards: Guards) -> tuple[type[Guarded], type[GuardedSocket]]:
    """Return protocol classes with these limits."""
    http = type("GuardedHttp", (Guarded,), {"guards": guards})
    socket = type("GuardedWebSocket", (GuardedSocket,), {"guards": guards})
    return http, socket
