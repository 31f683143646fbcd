"""The server: listeners around a broker, from start to drained stop.

Enters: settings. Leaves: a process that serves HTTP and STOMP until it is told to stop: then it
takes no more publishes, settles those it has, tells the clients, writes and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from tocsin.broker.config import Config, split_address
from tocsin.broker.core import Broker
from tocsin.broker.http.app import build_app
from tocsin.broker.http.guarded import guarded
from tocsin.broker.overlay.dialing import Dialer
from tocsin.broker.overlay.hub import Hub
from tocsin.broker.registry import Registry
from tocsin.broker.stomp import StompServer
from tocsin.broker.storage import connect
from tocsin.broker.tokens import Tokens
from tocsin.broker.webhooks import Webhooks
from tocsin.errors import ArgumentError, UnavailableError
from tocsin.warm import warm_up

log = logging.getLogger("tocsin.server")
_CHECK = 0.5


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["trace"] = self.formatException(record.exc_info)
        return json.dumps(found)


def set_up_logs(level: str, as_json: bool) -> None:
    """Write logs to standard error, as text or as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if as_json else plain)
    root = logging.getLogger("tocsin")
    root.handlers[:] = [handler]
    try:
        root.setLevel(level.upper())
    except ValueError:
        raise ArgumentError(f"log is debug, info, warning or error, not {level!r}") from None
    root.propagate = False


class _Http(uvicorn.Server):
    """An HTTP server that leaves the signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


class Server:
    """A broker and its listeners within one event loop."""

    def __init__(self, config: Config, console: Path | None = None) -> None:
        config.check_safety()
        self.config = config
        self.broker = Broker(config)
        opened = (lambda: connect(self.broker.storage.path)) if config.needs_tokens else None
        self.tokens = Tokens(opened, config.limits.events_per_second)
        self.webhooks = Webhooks(self.broker)
        self.hub: Hub | None = None
        self._dialers: list[Dialer] = []
        if config.is_networked:
            self.hub = self.broker.network = Hub(self.broker)
            self._dialers = [Dialer(self.hub, url, config.link_token) for url in config.links]
        self.console = console
        self.http_port = self.stomp_port = 0
        self._http: _Http | None = None
        self._checking: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stomp: StompServer | None = None

    async def start(self) -> None:
        """Load, then listen."""
        sys.setswitchinterval(0.001)  # the matching thread waits less for the interpreter
        context = self._tls()
        if self.config.warm:
            log.info("compiling kernels; the first time this takes a minute")
            await asyncio.get_running_loop().run_in_executor(None, warm_up)
        await self.broker.start()
        if self.hub is not None:
            self.hub.start()
        self.webhooks.start()
        if self.config.stomp:
            self._stomp = StompServer(self.broker, self.tokens)
            host, port = split_address(self.config.stomp)
            self.stomp_port = await self._stomp.listen(_bind(host, port), context)
        if self.config.http:
            host, port = split_address(self.config.http)
            listening = _bind(host, port)
            self.http_port = listening.getsockname()[1]
            await self._serve_http(listening)
        if self.tokens.are_needed:
            self._checking = asyncio.create_task(self._check_tokens())
        for dialer in self._dialers:
            dialer.start()
        log.info("listening: http port %d, stomp port %d", self.http_port, self.stomp_port)

    async def _check_tokens(self) -> None:
        """End the connections of whoever has been revoked since."""
        while True:
            await asyncio.sleep(_CHECK)
            stomp = self._stomp.connections if self._stomp is not None else ()
            for each in [*self.broker.streams, *stomp]:
                who = each.principal
                if who is not None and not each.is_revoked and not self.tokens.is_valid(who):
                    log.info("a connection of %s is closed: its token counts no more", who.name)
                    each.revoke()

    def _tls(self) -> ssl.SSLContext | None:
        if not self.config.tls_cert:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.config.tls_cert, self.config.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ArgumentError(f"tls_cert and tls_key cannot be used: {error}") from None
        return context

    async def _serve_http(self, listening: socket.socket) -> None:
        limits = self.config.limits
        settings = uvicorn.Config(
            build_app(self.broker, self.tokens, self.console),
            http=guarded(4 * limits.max_header_bytes, limits.connect_seconds),
            ws="websockets-sansio",
            ws_max_size=limits.max_body,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
            limit_concurrency=limits.max_connections + 1000,
            ssl_certfile=self.config.tls_cert or None,
            ssl_keyfile=self.config.tls_key or None,
        )
        self._http = _Http(settings)
        self._serving = asyncio.create_task(self._http.serve([listening]))
        while not self._http.started:
            if self._serving.done():
                self._serving.result()
                raise UnavailableError("the HTTP listener did not start")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Drain and end."""
        began = time.monotonic()
        self.broker.is_draining = True
        await self.broker.drain()
        for dialer in self._dialers:
            await dialer.stop()
        for stream in list(self.broker.streams):
            stream.close("stopping")
        await self.webhooks.stop()
        if self._stomp is not None:
            await self._stomp.stop()
        if self._http is not None and self._serving is not None:
            self._http.should_exit = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.drain_seconds):
                    await self._serving
        if self._checking is not None:
            self._checking.cancel()
        await self.broker.stop()
        self.tokens.close()
        log.info("stopped after %.1f s", time.monotonic() - began)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ArgumentError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listening.setblocking(False)
    return listening


def spare_collector(registry: Registry) -> None:
    """Keep the collector of cycles away from what lives long.

    Looking through a hundred thousand subscriptions takes a quarter of a second, in which nobody
    gets anything; and they are no garbage. For a process that does nothing else.
    """
    gc.set_threshold(10_000, 10, 10)

    def freeze() -> None:
        gc.freeze()
        gc.collect()  # finds little, but counts anew what is left: later passes come in time

    freeze()
    registry.on_many = freeze


async def _run(config: Config, console: Path | None, on_ready: Callable[[Server], None]) -> None:
    server = Server(config, console)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await server.start()
    spare_collector(server.broker.registry)
    on_ready(server)
    await stopping.wait()
    log.info("draining")
    await server.stop()


def serve(
    config: Config,
    console: Path | None = None,
    on_ready: Callable[[Server], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT."""
    import uvloop

    set_up_logs(config.log, config.log_json)
    uvloop.run(_run(config, console, on_ready))
