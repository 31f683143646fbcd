"""STOMP 1.2 over TCP: the listener, and the clock of its connections.

Enters: a listening socket. Leaves: connections (`connection.py`), each on its socket (`link.py`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time

from tocsin.broker.core import Broker
from tocsin.broker.stomp.connection import Connection
from tocsin.broker.stomp.link import TICK
from tocsin.broker.tokens import Tokens
from tocsin.errors import UnavailableError


class StompServer:
    """The listener, and the clock of its connections."""

    def __init__(self, broker: Broker, tokens: Tokens) -> None:
        self.broker = broker
        self.tokens = tokens
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def listen(self, listening: socket.socket, tls: ssl.SSLContext | None) -> int:
        """Accept connections; return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), sock=listening, ssl=tls, backlog=1024
        )
        self._ticking = asyncio.create_task(self._tick())
        port: int = listening.getsockname()[1]
        return port

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            for connection in list(self.connections):
                connection.tick(now)

    async def stop(self) -> None:
        """Close the listener and all connections."""
        if self._ticking is not None:
            self._ticking.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.flush()
            connection.fail(UnavailableError("the broker is stopping"))
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.05)
        for connection in list(self.connections):
            connection.transport.abort()
