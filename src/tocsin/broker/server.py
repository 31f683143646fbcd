"""The server: listeners around a broker, from start to drained stop.

Enters: settings. Leaves: a process that serves HTTP and STOMP until it gets a signal: then it
refuses new publishes, settles those it has, ends its connections, writes and exits.
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

from tocsin import compiling
from tocsin.broker.admission import Closable, fit_to_descriptors
from tocsin.broker.config import Config, split_address
from tocsin.broker.core import Broker
from tocsin.broker.handshake import TlsListener
from tocsin.broker.http.app import build_app
from tocsin.broker.http.guarded import Guards, guarded
from tocsin.broker.overlay.dialer import Dialer
from tocsin.broker.overlay.hub import Hub
from tocsin.broker.ownership import Ownership
from tocsin.broker.stomp import StompServer
from tocsin.broker.storage import connect
from tocsin.broker.tokens import Tokens
from tocsin.errors import ArgumentError, StoreError, UnavailableError
from tocsin.warm import warm_up

log = logging.getLogger("tocsin.server")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


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
    """An HTTP server that does not handle signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield

    def new_protocol(self) -> asyncio.Protocol:
        """Return a protocol for a connection that another listener has accepted."""
        return self.config.http_protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )  # type: ignore[call-arg]


class Server:
    """A broker and its listeners within one event loop."""

    def __init__(
        self,
        config: Config,
        console: Path | None = None,
        *,
        on_bulk_load: Callable[[], None] = lambda: None,
        on_fatal: Callable[[str], None] = lambda _: None,
    ) -> None:
        config.check_safety()
        self.config = config = fit_to_descriptors(config)
        self.broker = Broker(
            config,
            network=Hub if config.is_networked else None,
            on_bulk_load=on_bulk_load,
            on_fatal=on_fatal,
        )
        network = self.broker.network
        self.hub = network if isinstance(network, Hub) else None
        opened = (lambda: connect(self.broker.storage.path)) if config.needs_tokens else None
        self.tokens = Tokens(opened, config.limits.events_per_second, self.broker.audit.refuse)
        self.ownership = Ownership(
            self.broker, self.tokens, self.broker.webhooks, self._connections
        )
        self._dialers: list[Dialer] = []
        if self.hub is not None:
            self._dialers = [Dialer(self.hub, url, config.link_token) for url in config.links]
        self.console = console
        self.http_port = self.stomp_port = 0
        self._http: _Http | None = None
        self._tls_listener: TlsListener | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stomp: StompServer | None = None

    async def start(self) -> None:
        """Load, then listen."""
        sys.setswitchinterval(0.001)  # the matching thread waits less for the interpreter
        context = self._tls()
        if self.config.warm:
            if compiling.use_kernels(0, 0):
                await asyncio.get_running_loop().run_in_executor(None, warm_up)
            else:
                log.info("kernels are being compiled; until then matching is slower")
        await self.broker.start()
        await self.ownership.check()  # before anything is sent
        if self.hub is not None:
            self.hub.start()
        self.broker.webhooks.start()
        if self.config.stomp:
            self._stomp = StompServer(self.broker, self.tokens)
            host, port = split_address(self.config.stomp)
            self.stomp_port = await self._stomp.listen(_bind(host, port), context)
        if self.config.http:
            host, port = split_address(self.config.http)
            listening = _bind(host, port)
            self.http_port = listening.getsockname()[1]
            await self._serve_http(listening, context)
        self.broker.supervisor.keep("tokens", self.ownership.watch)
        for at, dialer in enumerate(self._dialers, 1):
            dialer.start()
            self.broker.supervisor.check(f"link {at}", dialer.find_problem)
        log.info("listening: http port %d, stomp port %d", self.http_port, self.stomp_port)

    def _connections(self) -> list[Closable]:
        stomp = self._stomp.connections if self._stomp is not None else ()
        return [*self.broker.connections.streams, *stomp]

    async def run_until(self, stopping: asyncio.Event) -> bool:
        """Serve until an event is set; return whether the HTTP listener ended before that."""
        waiting = asyncio.create_task(stopping.wait())
        serving = () if self._serving is None else (self._serving,)
        await asyncio.wait([waiting, *serving], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return not stopping.is_set()

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

    async def _serve_http(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        limits, admission = self.config.limits, self.broker.admission
        http, websocket = guarded(
            Guards(
                4 * limits.max_header_bytes,
                limits.connect_seconds,
                limits.request_seconds,
                admission,
            )
        )
        settings = uvicorn.Config(
            build_app(self.broker, self.tokens, self.console),
            http=http,
            ws=websocket,
            ws_max_size=limits.max_body,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
            limit_concurrency=limits.max_connections + limits.max_unauthenticated + 1000,
        )
        self._http = _Http(settings)
        self._serving = asyncio.create_task(self._http.serve([listening] if tls is None else []))
        while not self._http.started:
            if self._serving.done():
                self._serving.result()
                raise UnavailableError("the HTTP listener did not start")
            await asyncio.sleep(0.01)
        if tls is not None:
            self._tls_listener = TlsListener(
                listening, tls, limits.connect_seconds, admission, self._http.new_protocol
            )
            self._tls_listener.start()

    async def stop(self) -> None:
        """Drain and end."""
        began = time.monotonic()
        await self.broker.ingest.drain()
        for dialer in self._dialers:
            await dialer.stop()
        for stream in list(self.broker.connections.streams):
            stream.close("stopping")
        if self.hub is not None:
            await self.hub.stop()
        await self.broker.webhooks.stop()
        if self._stomp is not None:
            await self._stomp.stop()
        if self._tls_listener is not None:
            await self._tls_listener.stop()
        if self._http is not None and self._serving is not None:
            self._http.should_exit = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.drain_seconds):
                    await self._serving
            for connection in list(self._http.server_state.connections):
                connection.transport.abort()  # clients that do not read the rest
        await self.broker.stop()
        self.tokens.close()
        log.info("stopped after %.1f s", time.monotonic() - began)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit it. Without it the body of an answer waits 40 ms until its head is
    # acknowledged: uvloop sets it, asyncio does not for a socket made like this.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ArgumentError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listening.setblocking(False)
    return listening


def tune_garbage_collector() -> None:
    """Run the garbage collector less often, and freeze what has been loaded.

    For a process that does nothing else.
    """
    gc.set_threshold(10_000, 10, 10)
    freeze_objects()


def freeze_objects() -> None:
    """Freeze long-lived objects out of the garbage collector.

    A full pass over 100,000 subscriptions pauses the event loop for a quarter of a second.
    """
    gc.freeze()
    gc.collect()  # resets the counts of the generations


async def _run(config: Config, console: Path | None, on_ready: Callable[[Server], None]) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    server = Server(config, console, on_bulk_load=freeze_objects, on_fatal=lambda _: stopping.set())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await server.start()
    tune_garbage_collector()
    on_ready(server)
    has_failed = await server.run_until(stopping)
    log.info("draining")
    await server.stop()
    fatal = server.broker.storage.fatal
    if fatal is not None:
        raise StoreError(str(server.broker.storage.path), fatal)
    if has_failed:
        raise UnavailableError("the HTTP listener has stopped")


def serve(
    config: Config,
    console: Path | None = None,
    on_ready: Callable[[Server], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT."""
    import uvloop

    set_up_logs(config.log, config.log_json)
    uvloop.run(_run(config, console, on_ready))
