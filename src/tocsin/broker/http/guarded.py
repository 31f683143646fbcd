"""HTTP connections that cannot be held open or made to hoard by a hostile client.

Enters: bytes of a connection. Leaves: requests, by uvicorn's own protocol. Added here: a limit on
the length of a request's head, and a time within which a head must come; a connection that sends
nothing is closed after the same time. A request's state has its transport, so that one whose client
does not read can be ended.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class _HeadTooLongError(Exception):
    pass


def guarded(max_head: int, seconds: float) -> type[asyncio.Protocol]:
    """Return a protocol class with these limits."""

    class Guarded(HttpToolsProtocol):
        _n_head = 0
        _timer: asyncio.TimerHandle | None = None

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
            self.scope["state"]["transport"] = self.transport

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._stop()
            super().on_headers_complete()

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
