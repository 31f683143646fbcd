"""Opens links and reconnects them.

Enters: URLs of peers. Leaves: connections, kept up. After a failure the next attempt waits a
little, longer each time (at most `_LONGEST` seconds), with some chance in it, so that peers of
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

from tocsin.broker.config import Config
from tocsin.broker.overlay.hub import Hub
from tocsin.broker.overlay.wire import Wire, run_link
from tocsin.errors import ArgumentError

_FIRST, _LONGEST = 0.1, 10.0
_LONGEST_MESSAGE = 8 << 20
"""Bytes of a WebSocket message; brokers send parts of 256 KiB."""
log = logging.getLogger("tocsin.network")


def link_target(text: str) -> tuple[str, str]:
    """Return the name that a peer must have, or "", and its URL: of `NAME=URL` or `URL`."""
    name, equals, url = text.partition("=")
    return (name.strip(), url.strip()) if equals and "/" not in name else ("", text)


def link_url(url: str) -> str:
    """Return where the WebSocket of a peer is: of `http://HOST:PORT` or the like."""
    parts = urlsplit(url)
    schemes = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}
    if parts.scheme not in schemes or not parts.hostname or parts.query or parts.fragment:
        raise ArgumentError(f"a link is a URL like http://HOST:PORT, not {url!r}")
    path = parts.path.rstrip("/") + "/overlay/ws"
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, "", ""))


def link_tls(config: Config) -> ssl.SSLContext:
    """Return how links are secured: by the certificates of `link_ca`, or those of the system."""
    try:
        context = ssl.create_default_context(cafile=config.link_ca or None)
        if config.link_cert:
            context.load_cert_chain(config.link_cert, config.link_key or None)
    except (OSError, ssl.SSLError) as error:
        raise ArgumentError(f"link_ca, link_cert, link_key cannot be used: {error}") from None
    return context


class Dialer:
    """One link, kept up."""

    def __init__(self, hub: Hub, link: str, token: str) -> None:
        """`link` is a URL, or NAME=URL where the peer must be the broker of that name."""
        self.hub = hub
        self.name, self.shown = link_target(link)
        self.url = link_url(self.shown)
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._tls = link_tls(hub.broker.config) if self.url.startswith("wss") else None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._run(), name=f"link {self.shown}")

    async def stop(self) -> None:
        """Connect no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def find_problem(self) -> str | None:
        """Return what is wrong with the task that connects, or None; a link may be down."""
        return None if self._task is not None and not self._task.done() else "it has stopped"

    async def _run(self) -> None:
        wait = _FIRST
        while True:
            began = asyncio.get_running_loop().time()
            try:
                if await self._connect() is not None:  # it would say the same again
                    wait = max(wait, 1.0)
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

    async def _connect(self) -> str | None:
        """Serve one connection until it ends; return what was wrong, if anything was."""
        beat = self.hub.broker.config.heart_beat_ms / 1000
        async with connect(
            self.url,
            additional_headers=self._headers,
            max_size=_LONGEST_MESSAGE,
            ping_interval=beat,
            ping_timeout=2 * beat,
            ssl=self._tls,
            proxy=None,
        ) as socket:

            async def read() -> bytes | None:
                with contextlib.suppress(ConnectionClosed):
                    data = await socket.recv()
                    return data.encode() if isinstance(data, str) else data
                return None

            wire = Wire(self.hub, socket.send, is_dialer=True)
            wire.expected_name = self.name
            return await run_link(wire.run(read), self.shown)
