"""STOMP 1.2, 1.1 and 1.0 over TCP: the listener, and the clock of its connections.

Enters: a listening socket. Leaves: connections (`connection.py`), each on its socket (`link.py`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time

from tocsin.broker.core import Broker
from tocsin.broker.handshake import TlsListener
from tocsin.broker.stomp.connection import Connection
from tocsin.broker.stomp.link import TICK
from tocsin.broker.stomp.transactions import TransactionBudget
from tocsin.broker.tokens import Tokens
from tocsin.errors import UnavailableError


class StompServer:
    """The listener, and the clock of its connections."""

    def __init__(self, broker: Broker, tokens: Tokens) -> None:
        self.broker = broker
        self.tokens = tokens
        self.connections: set[Connection] = set()
        self.transactions = TransactionBudget(broker.config.limits)
        self._server: asyncio.Server | None = None
        self._tls: TlsListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def listen(self, listening: socket.socket, tls: ssl.SSLContext | None) -> int:
        """Accept connections; return the port."""
        loop = asyncio.get_running_loop()
        if tls is None:
            self._server = await loop.create_server(
                lambda: Connection(self), sock=listening, backlog=1024
            )
        else:
            seconds, admission = self.broker.config.limits.connect_seconds, self.broker.admission
            self._tls = TlsListener(listening, tls, seconds, admission, lambda: Connection(self))
            self._tls.start()
        self.broker.supervisor.keep("stomp clock", self._tick)
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
        await self.broker.supervisor.stop("stomp clock")
        if self._server is not None:
            self._server.close()
        if self._tls is not None:
            await self._tls.stop()
        for connection in list(self.connections):
            connection.flush()
            connection.fail(UnavailableError("the broker is stopping"))
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.05)
        for connection in list(self.connections):
            connection.transport.abort()
