"""HTTP connections that cannot be held open or made to hoard by a hostile client.

Enters: bytes of a connection. Leaves: requests, by uvicorn's own protocol. Added here: a limit on
the length of a request's head, and a time within which a head must come; a connection that sends
nothing is closed after the same time. A request's state has its transport, so that one whose client
does not read can be ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Chunks:
    """Writes the body of an answer that is sent in chunks, past the layers of the application."""

    __slots__ = ("_flow", "_transport", "on_room")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow
        self.on_room: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        """Whether the client takes something now."""
        return not self._flow.write_paused and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Write a chunk; `data` is not empty."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class _HeadTooLongError(Exception):
    pass


def guarded(max_head: int, seconds: float) -> type[asyncio.Protocol]:
    """Return a protocol class with these limits."""

    class Guarded(HttpToolsProtocol):
        _n_head = 0
        _timer: asyncio.TimerHandle | None = None
        _chunks: Chunks | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            self._n_head = 0
            self._start()
            super().on_message_begin()
            self.scope["state"] |= {"transport": self.transport, "chunks": self._to_chunks}

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._stop()
            super().on_headers_complete()

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._chunks is not None:
                self._chunks.on_room()

        def _to_chunks(self) -> Chunks:
            self._chunks = Chunks(self.transport, self.flow)
            return self._chunks

        def _count(self, n: int) -> None:
            self._n_head += n
            if self._n_head > max_head:
                raise _HeadTooLongError

        def _start(self) -> None:
            self._stop()
            self._timer = self.loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Guarded
