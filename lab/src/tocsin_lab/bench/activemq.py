"""Our broker and ActiveMQ under the same load: one STOMP client, the same selectors, in turn.

Enters: a setting, and ActiveMQ where it is installed. Leaves: events and notifications a second of
both, as fast as each takes them: publishers send a batch, wait for its receipt, and send the next.
The clock runs until the last notification has been read. Each broker is warmed up by the same load
before. Selectors are of the kind that JMS knows, over headers, which are texts there::

    k = 'k17' AND s IN ('a', 'b')

ActiveMQ keeps nothing on disk here, as our broker does not for transient subscriptions.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tocsin.errors import UnavailableError
from tocsin_lab.bench.broker import Show, start_broker, stop_broker
from tocsin_lab.bench.machine import machine, versions
from tocsin_lab.bench.settings import ActiveMQSetting

_JARS = (os.environ.get("ACTIVEMQ_JAR", ""), "/usr/share/activemq/bin/activemq.jar")
_PER_KEY = 5
_LETTERS = "abcde"
_MARK = b"\nsubscription:"


class _Reader(asyncio.Protocol):
    """A connection with many subscriptions: counts what it gets."""

    def __init__(self, frames: bytes) -> None:
        self.frames = frames
        self.n = 0
        self.last = 0.0
        self.error: bytes | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0" + self.frames)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        n = data.count(_MARK)
        if n:
            self.n += n
            self.last = time.perf_counter()
        elif not self.ready.done() and b"RECEIPT" in data:
            self.ready.set_result(None)
        elif b"ERROR\n" in data:
            self.error = data[:300]
        self._rest = data[1 - len(_MARK) :]  # a mark may be cut in two


def run(load: ActiveMQSetting, progress: Show = lambda *_: None) -> dict[str, Any]:
    """Measure ActiveMQ and our broker, in this order."""
    jar = next((each for each in _JARS if each and Path(each).exists()), None)
    if jar is None or shutil.which("java") is None:
        raise UnavailableError("ActiveMQ is not installed (apt-get install activemq)")
    result: dict[str, Any] = {"load": asdict(load), "machine": machine()}
    with tempfile.TemporaryDirectory(prefix="tocsin-activemq-") as folder:
        progress("activemq", 0, 2)
        with _activemq(jar, Path(folder)) as port:
            result["activemq"] = asyncio.run(_measure(load, port))
        progress("tocsin", 1, 2)
        process, ports = start_broker(Path(folder))
        try:
            result["tocsin"] = asyncio.run(_measure(load, ports["stomp"]))
        finally:
            stop_broker(process)
    rates = [result[name]["events_per_second"] for name in ("tocsin", "activemq")]
    result["times"] = round(rates[0] / max(1, rates[1]), 2)
    return result | {"versions": versions("uvloop")}


@contextmanager
def _activemq(jar: str, folder: Path) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    home = Path(jar).parent.parent
    places = [f"-Dactivemq.{name}={folder}" for name in ("base", "data", "conf")]
    command = [
        "java", "-Xmx2g", f"-Dactivemq.home={home}", *places, "-jar", jar, "start",
        f"broker:(stomp://127.0.0.1:{port})?persistent=false&useJmx=false",
    ]  # fmt: skip
    with (folder / "activemq.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for(port, lambda: process.poll() is None)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, is_alive: Callable[[], bool]) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if not is_alive():
                break
            time.sleep(0.1)
    raise UnavailableError("ActiveMQ did not start")


def _selector(at: int, keys: int) -> str:
    letters = ", ".join(f"'{letter}'" for letter in _LETTERS[: at // keys + 1])
    return f"k = 'k{at % keys}' AND s IN ({letters})"


def _frames(load: ActiveMQSetting, number: int) -> bytes:
    """Return the SUBSCRIBE frames of a connection; the last asks for a receipt."""
    keys = max(1, load.subscriptions // _PER_KEY)
    mine = range(number, load.subscriptions, load.connections)
    frames = [
        f"SUBSCRIBE\nid:{at}\ndestination:/topic/bench\nselector:{_selector(at, keys)}\n"
        f"{'receipt:all' + chr(10) if at == mine[-1] else ''}\n\0"
        for at in mine
    ]
    return "".join(frames).encode()


async def _measure(load: ActiveMQSetting, port: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    readers = []
    for number in range(min(load.connections, load.subscriptions)):
        frames = _frames(load, number)
        _, reader = await loop.create_connection(
            lambda f=frames: _Reader(f),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        readers.append(reader)
    async with asyncio.timeout(120):
        await asyncio.gather(*(reader.ready for reader in readers))
    await _round(load, port, readers, load.seconds / 2, load.seed + 1)
    figures = await _round(load, port, readers, load.seconds, load.seed)
    for reader in readers:
        reader.transport.abort()
    return figures


async def _round(
    load: ActiveMQSetting, port: int, readers: list[_Reader], seconds: float, seed: int
) -> dict[str, Any]:
    for reader in readers:
        reader.n = 0
    began = time.perf_counter()
    counts = await asyncio.gather(
        *(_publish(load, port, seconds, seed * 1000 + n) for n in range(load.publishers))
    )
    events, expected = (sum(column) for column in zip(*counts, strict=True))
    before, still = -1, 0
    while (got := sum(reader.n for reader in readers)) < expected and still < 50:
        still = still + 1 if got == before else 0
        before = got
        await asyncio.sleep(0.1)
    wrong = next((reader.error for reader in readers if reader.error), None)
    if wrong is not None:
        raise UnavailableError(f"a subscriber was refused: {wrong!r}")
    took = max(time.perf_counter() - began if not got else 0, *(r.last - began for r in readers))
    return {
        "events_per_second": round(events / took),
        "notifications_per_second": round(got / took),
        "delivered_share": round(got / max(1, expected), 4),
        "seconds": round(took, 1),
    }


async def _publish(load: ActiveMQSetting, port: int, seconds: float, seed: int) -> tuple[int, int]:
    """Publish as fast as receipts come; return how many events, and their notifications."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
    await reader.readuntil(b"\0")
    draw = random.Random(seed)
    keys = max(1, load.subscriptions // _PER_KEY)
    n = expected = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        frames = []
        for at in range(load.batch):
            letter = draw.randrange(_PER_KEY)
            expected += _PER_KEY - letter
            receipt = "receipt:r\n" if at == load.batch - 1 else ""
            head = f"k:k{draw.randrange(keys)}\ns:{_LETTERS[letter]}\n{receipt}"
            frames.append(f"SEND\ndestination:/topic/bench\n{head}\nhello\0")
        writer.write("".join(frames).encode())
        answer = await reader.readuntil(b"\0")
        if b"RECEIPT" not in answer:
            raise UnavailableError(f"the broker answered {answer[:100]!r}")
        n += load.batch
    writer.close()
    return n, expected


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    load = result["load"]
    lines = [
        f"{load['subscriptions']:,} selectors over {load['connections']} STOMP connections, "
        f"{load['publishers']} publishers, a receipt for every {load['batch']} events"
    ]
    for name in ("activemq", "tocsin"):
        figures = result[name]
        lines.append(
            f"{name}: {figures['events_per_second']:,} events/s, "
            f"{figures['notifications_per_second']:,} notifications/s, "
            f"{figures['delivered_share']:.2%} delivered in {figures['seconds']} s"
        )
    return "\n".join([*lines, f"tocsin takes {result['times']} times as many events"])
