"""A broker in a thread of this process, for tests that speak to it over loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tocsin.broker.client import Client
from tocsin.broker.config import Config
from tocsin.broker.server import Server


class Running:
    """A server, and the loop it runs in."""

    def __init__(self, config: Config, console: Path | None = None) -> None:
        self.config = config
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = self.call(self._make(console))
        scheme = "https" if config.tls_cert else "http"
        self.url = f"{scheme}://127.0.0.1:{self.server.http_port}"
        self.stomp_port = self.server.stomp_port
        self.broker = self.server.broker

    async def _make(self, console: Path | None) -> Server:
        server = Server(self.config, console)
        await server.start()
        return server

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, **more)

    def stop(self) -> None:
        self.call(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextmanager
def running(data: Path, console: Path | None = None, **settings: Any) -> Iterator[Running]:
    settings = {
        "http": "127.0.0.1:0",
        "stomp": "127.0.0.1:0",
        "drain_seconds": 2.0,
        "warm": False,
        **settings,
    }
    found = Running(Config(data=data, **settings), console)
    try:
        yield found
    finally:
        found.stop()


def http_of(client: Client) -> httpx.Client:
    """Return plain HTTP to the broker of a client, for calls that it does not have."""
    return httpx.Client(base_url=client.url, timeout=120)


def wait_for(what: Callable[[], object], seconds: float = 20) -> None:
    """Wait until something is true; fail when it never is."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def read_messages(response: httpx.Response, n: int) -> list[dict[str, Any]]:
    """Return the first n notifications of a stream."""
    import json

    found = []
    for line in response.iter_lines():
        if line.startswith("data: ") and '"event"' in line:
            found.append(json.loads(line[6:]))
            if len(found) == n:
                break
    return found


class RawStomp:
    """A STOMP client that sends what it is told and shows what it gets."""

    def __init__(self, port: int, connect: bool = True, **headers: str) -> None:
        from tocsin.broker.protocol.stomp import Parser

        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.parser = Parser(max_body=64 << 20)
        self.frames: list[Any] = []
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if connect:
            try:
                self.send("CONNECT", {"accept-version": "1.2", "host": "x", **named})
                assert self.next().command == "CONNECTED"
            except BaseException:
                self.socket.close()
                raise

    def send(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        from tocsin.broker.protocol.stomp import encode

        self.socket.sendall(encode(command, headers, body))

    def next(self) -> Any:
        while not self.frames:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.frames += self.parser.feed(data)
        return self.frames.pop(0)

    def call(self, command: str, headers: dict[str, str], body: bytes = b"") -> Any:
        """Send a frame and wait for its receipt (or error)."""
        self.send(command, {**headers, "receipt": "r"}, body)
        before = []
        while (frame := self.next()).command not in ("RECEIPT", "ERROR"):
            before.append(frame)
        self.frames[:0] = before
        return frame

    def __enter__(self) -> RawStomp:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
