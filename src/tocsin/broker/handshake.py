"""A listener with TLS, whose handshakes count and end in time.

Enters: a listening socket. Leaves: encrypted connections with their protocols. The event loop has
listeners of its own, but these report no connection before its handshake is done: strangers
could have any number of them open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

from tocsin.broker.admission import Admission, network_of

log = logging.getLogger("tocsin.connections")
_PAUSE = 0.5


class TlsListener:
    """Accepts connections and encrypts them; each is a stranger's meanwhile."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        seconds: float,
        admission: Admission,
        protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._listening = listening
        self._context = context
        self._seconds = seconds
        self._admission = admission
        self._protocol = protocol
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to accept."""
        self._listening.listen(1024)
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self) -> None:
        """Accept no more, and end the handshakes that are going on."""
        tasks = [*self._handshakes, *([] if self._accepting is None else [self._accepting])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listening)
            except OSError as error:  # no file descriptors left, or the client has gone already
                log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(_PAUSE)
                continue
            self._begin(connection, network_of(str(peer[0])))

    def _begin(self, connection: socket.socket, address: str) -> None:
        task: asyncio.Task[None] | None = None

        def end() -> None:
            if task is not None:
                task.cancel()

        if not self._admission.enter(connection, address, end):
            connection.close()
            return
        task = asyncio.create_task(self._encrypt(connection))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _encrypt(self, connection: socket.socket) -> None:
        """Do the handshake; the event loop closes the connection where it fails."""
        try:
            with contextlib.suppress(OSError):  # no TLS, none in time, or gone
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._protocol,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=self._seconds,
                )
        finally:
            self._admission.leave(connection)
