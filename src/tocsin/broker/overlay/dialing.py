"""Links that this broker opens: connects, and connects again.

Enters: URLs of neighbours. Leaves: connections, kept up. After a failure the next attempt waits a
little, longer each time (at most `_LONGEST` seconds), with some chance in it, so that neighbours of
a broker that comes back do not all come at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from tocsin.broker.overlay.hub import Hub
from tocsin.broker.overlay.wire import Wire, quietly
from tocsin.errors import ArgumentError

_FIRST, _LONGEST = 0.1, 10.0
log = logging.getLogger("tocsin.network")


def link_url(url: str) -> str:
    """Return where the WebSocket of a neighbour is: of `http://HOST:PORT` or the like."""
    parts = urlsplit(url)
    schemes = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}
    if parts.scheme not in schemes or not parts.hostname or parts.query or parts.fragment:
        raise ArgumentError(f"a link is a URL like http://HOST:PORT, not {url!r}")
    path = parts.path.rstrip("/") + "/overlay/ws"
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, "", ""))


class Dialer:
    """One link, kept up."""

    def __init__(self, hub: Hub, url: str, token: str) -> None:
        self.hub = hub
        self.url = link_url(url)
        self.shown = url
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._run(), name=f"link {self.shown}")

    async def stop(self) -> None:
        """Connect no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        wait = _FIRST
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._connect()
            except InvalidStatus as error:
                log.warning("link %s: refused: %s", self.shown, error)
                wait = max(wait, 1.0)
            except (OSError, WebSocketException, TimeoutError) as error:
                log.info("link %s: %s", self.shown, error)
            except Exception:
                log.exception("link %s failed", self.shown)
            if asyncio.get_running_loop().time() - began > _LONGEST:
                wait = _FIRST
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST)

    async def _connect(self) -> None:
        beat = self.hub.broker.config.heart_beat_ms / 1000
        secure = ssl.create_default_context() if self.url.startswith("wss") else None
        async with connect(
            self.url,
            additional_headers=self._headers,
            max_size=None,
            ping_interval=beat,
            ping_timeout=2 * beat,
            ssl=secure,
            proxy=None,
        ) as socket:

            async def read() -> bytes | None:
                with contextlib.suppress(ConnectionClosed):
                    data = await socket.recv()
                    return data.encode() if isinstance(data, str) else data
                return None

            await quietly(Wire(self.hub, socket.send, is_dialer=True).run(read), self.shown)
