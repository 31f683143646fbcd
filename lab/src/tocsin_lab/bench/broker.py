"""A broker under load: events in over a few connections, notifications out over many.

Enters: a setting. Leaves: rates, latencies, memory. The broker is a process of its own; publishers
and subscribers are coroutines of this one, so on two cores the load costs one of them. Each event
has a key that a few subscriptions ask for, each with a threshold of its own; expected are
`FAN_OUT` notifications for an event. Where other work disturbs the machine, the processor time for
an event says more than the rate. Latency is measured from before an event is sent until its
notification has been read by the subscriber, for one notification of each chunk that is read.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from tocsin.errors import ArgumentError, UnavailableError
from tocsin_lab.bench.machine import machine, versions
from tocsin_lab.bench.settings import ActiveMQSetting, BrokerSetting

FAN_OUT = 2.5
_PER_KEY = 5
_BULK = 20_000
_MOST_TIMED = 50_000
Show = Callable[[str, int, int], None]


class _Reader(asyncio.Protocol):
    """A subscriber: counts notifications and times some of them."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.n = 0
        self.latencies: list[float] = []
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if not self.ready.done():
            self.ready.set_result(None)
        data = self._rest + data
        self._rest = data[-12:]  # a mark may be cut in two
        n = data.count(b'"t":', 0, len(data) - 8)
        self.n += n
        if n:
            at = data.rfind(b'"t":', 0, len(data) - 24)
            if at >= 0:
                sent = data[at + 4 : at + 23].split(b",")[0].split(b"}")[0]
                if len(sent) >= 16 and sent.isdigit() and len(self.latencies) < _MOST_TIMED:
                    self.latencies.append(time.time() - int(sent) / 1e6)
        if n and self._rest.count(b'"t":'):
            self._rest = self._rest[self._rest.rfind(b'"t":') + 1 :]


def run(load: BrokerSetting, progress: Show = lambda *_: None) -> dict[str, Any]:
    """Start a broker, load it, and return the figures."""
    if load.against is not None:
        return _run_against(load, progress)
    import uvloop  # as the broker does

    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        process, ports = start_broker(Path(folder))
        try:
            progress("subscriptions", 0, 3)
            _subscribe(load, ports["http"])
            progress("full load", 1, 3)
            full = uvloop.run(_measure(load, load.rate, ports, process.pid))
            progress("half load", 2, 3)
            half = uvloop.run(_measure(load, load.rate // 2, ports, process.pid))
            soaked = uvloop.run(_soak(load, ports, process.pid, progress)) if load.soak else None
            memory = _rss_mb(process.pid)
        finally:
            stop_broker(process)
    return {
        "load": asdict(load),
        "full": full,
        "half": half,
        "soak": soaked,
        "broker_rss_mb": memory,
        "machine": machine(),
        "versions": versions("uvicorn", "uvloop", "starlette", "orjson"),
    }


def _run_against(load: BrokerSetting, progress: Show) -> dict[str, Any]:
    """Load this broker and another one in the same way."""
    from tocsin_lab.bench import activemq

    if load.against != "activemq":
        raise ArgumentError(f"--against takes activemq, not {load.against!r}")
    setting = ActiveMQSetting(
        publishers=load.publishers, batch=load.batch, seconds=load.seconds, seed=load.seed
    )
    return activemq.run(setting, progress)


async def _soak(
    load: BrokerSetting, ports: Mapping[str, int], pid: int, progress: Show
) -> dict[str, Any]:
    """Go on at half load for a long time, and look at the memory up to twenty times."""
    looks = max(4, min(20, int(load.soak // 5)))
    memory: list[float] = []

    async def look() -> None:
        for at in range(looks):
            progress("soak", at, looks)
            await asyncio.sleep(load.soak / looks)
            memory.append(_rss_mb(pid) or 0.0)

    loaded = replace(load, seconds=load.soak)
    figures, _ = await asyncio.gather(_measure(loaded, load.rate // 2, ports, pid), look())
    quarter = looks // 4
    grown = (sum(memory[-quarter:]) - sum(memory[quarter : 2 * quarter])) / quarter
    return {**figures, "rss_mb": memory, "grown_mb": round(grown, 1)}


def stop_broker(process: subprocess.Popen[str]) -> None:
    """Drain a broker and wait for its end."""
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    if process.stdout is not None:
        process.stdout.close()


def start_broker(folder: Path) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """Start a broker of its own and return it with its ports."""
    command = [
        sys.executable, "-m", "tocsin.cli", "serve", "--data", str(folder / "data"),
        "--http", "127.0.0.1:0", "--stomp", "127.0.0.1:0",
    ]  # fmt: skip
    environment = {**os.environ, "TOCSIN_BROKER_LIMITS_MAX_SUBSCRIPTIONS": "10000000"}
    environment["TOCSIN_BROKER_LOG"] = "error"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise UnavailableError("the broker did not start")
    return process, json.loads(line)


def _subscribe(load: BrokerSetting, port: int) -> None:
    """Register subscriptions in bulk; those of a subscriber share a prefix."""
    keys = max(1, load.subscriptions // _PER_KEY)
    rows = [
        {
            "id": f"s{at % load.subscribers}/{at}",
            "where": f"k = {at % keys} AND p < {(at // keys) * 20 + 10}",
        }
        for at in range(load.subscriptions)
    ]
    for first in range(0, len(rows), _BULK):
        _post(port, "subscriptions", rows[first : first + _BULK])
    for _ in range(20):  # the index is built, and large merges are under way
        _post(port, "events", [{"k": -1, "p": 0}] * 100)


def _post(port: int, path: str, body: object) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()


async def _measure(
    load: BrokerSetting, rate: int, ports: Mapping[str, int], broker: int
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    readers = []
    for number in range(load.subscribers):
        request = f"GET /stream?prefix=s{number}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        _, reader = await loop.create_connection(
            lambda r=request: _Reader(r),  # type: ignore[misc]
            "127.0.0.1",
            ports["http"],
        )
        readers.append(reader)
    await asyncio.gather(*(reader.ready for reader in readers))
    publish = _publish_http if load.protocol == "http" else _publish_stomp
    port = ports["http" if load.protocol == "http" else "stomp"]
    began, used, own = time.perf_counter(), _cpu_seconds(broker), time.process_time()
    counts = await asyncio.gather(
        *(publish(load, rate / load.publishers, port, n) for n in range(load.publishers))
    )
    seconds = time.perf_counter() - began
    await _settle(readers)
    used, own = _cpu_seconds(broker) - used, time.process_time() - own
    events, expected = (sum(column) for column in zip(*counts, strict=True))
    got = sum(reader.n for reader in readers)
    latencies = np.array([each for reader in readers for each in reader.latencies]) * 1000
    for reader in readers:
        reader.transport.abort()
    return {
        "asked_per_second": rate,
        "events_per_second": round(events / seconds),
        "notifications_per_second": round(got / seconds),
        "delivered_share": round(got / max(1, expected), 4),
        "latency_ms": {
            name: round(float(np.percentile(latencies, share)), 2)
            for name, share in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100))
        }
        if len(latencies)
        else None,
        "seconds": round(seconds, 1),
        "broker_cpu_us_per_event": round(used / max(1, events) * 1e6, 1),
        "load_cpu_us_per_event": round(own / max(1, events) * 1e6, 1),
    }


async def _settle(readers: list[_Reader]) -> None:
    """Wait until nothing more comes."""
    before = -1
    while (now := sum(reader.n for reader in readers)) != before:
        before = now
        await asyncio.sleep(0.5)


class _Events:
    """Draws events; knows how many notifications they must cause."""

    def __init__(self, load: BrokerSetting, number: int) -> None:
        self.random = random.Random(load.seed * 1000 + number)
        self.keys = max(1, load.subscriptions // _PER_KEY)
        self.last = load.subscriptions - 1
        self.expected = 0

    def draw(self, n: int) -> list[bytes]:
        """Return events as JSON; the moment they carry is before the first of them is made."""
        random, keys, last, expected, drawn = self.random.random, self.keys, self.last, 0, []
        now = time.time_ns() // 1000
        for _ in range(n):
            key, price = int(random() * keys), int(random() * 100)
            # Thresholds are 10, 30, 50, …: which of them the key has, and which are above.
            above = (last - key) // keys + 1 - max(0, (price - 10) // 20 + 1)
            expected += max(0, above)
            drawn.append(b'{"k":%d,"p":%d,"t":%d}' % (key, price, now))
        self.expected += expected
        return drawn


async def _pace(load: BrokerSetting, rate: float, send: Callable[[], Any]) -> int:
    """Send batches when they are due; who is late does not wait."""
    began, sent = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < load.seconds:
        ahead = sent / rate - elapsed
        if ahead > 0:
            await asyncio.sleep(ahead)
        await send()
        sent += load.batch
    return sent


async def _publish_http(
    load: BrokerSetting, rate: float, port: int, number: int
) -> tuple[int, int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    events = _Events(load, number)

    async def send() -> None:
        body = b"[" + b",".join(events.draw(load.batch)) + b"]"
        head = f"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise UnavailableError(f"the broker answered {answer[:60]!r}")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)

    sent = await _pace(load, rate, send)
    writer.close()
    return sent, events.expected


async def _publish_stomp(
    load: BrokerSetting, rate: float, port: int, number: int
) -> tuple[int, int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
    await reader.readuntil(b"\0")
    events = _Events(load, number)

    async def send() -> None:
        drawn = events.draw(load.batch)
        frames = [b"SEND\ndestination:/events\n\n" + each + b"\0" for each in drawn]
        frames[-1] = frames[-1].replace(b"\n\n", b"\nreceipt:r\n\n", 1)
        writer.write(b"".join(frames))
        await reader.readuntil(b"\0")

    sent = await _pace(load, rate, send)
    writer.close()
    return sent, events.expected


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used; 0 where the system does not tell."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float | None:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    for line in status.read_text().splitlines():
        if line.startswith("VmRSS"):
            return round(int(line.split()[1]) / 1024, 1)
    return None


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    if "activemq" in result:
        from tocsin_lab.bench import activemq

        return activemq.render(result)
    load = result["load"]
    lines = [
        f"{load['subscriptions']:,} subscriptions, {load['subscribers']} subscribers, "
        f"{load['publishers']} publishers over {load['protocol']}, batches of {load['batch']}"
    ]
    for name in ("full", "half", "soak"):
        figures = result[name]
        if figures is None:
            continue
        late = figures["latency_ms"] or {}
        shown = ", ".join(f"{key} {value} ms" for key, value in late.items())
        lines.append(
            f"{name}: asked {figures['asked_per_second']:,}/s, "
            f"{figures['events_per_second']:,} events/s, "
            f"{figures['notifications_per_second']:,} notifications/s, "
            f"{figures['delivered_share']:.2%} delivered in {figures['seconds']} s; {shown}; "
            f"processor {figures['broker_cpu_us_per_event']} µs an event in the broker, "
            f"{figures['load_cpu_us_per_event']} µs in the load"
        )
    if result["soak"] is not None:
        memory, grown = result["soak"]["rss_mb"], result["soak"]["grown_mb"]
        lines.append(
            f"memory during the soak: {memory[0]} MB at first, {memory[-1]} MB at last; "
            f"the last quarter is {grown:+} MB against the second"
        )
    lines.append(f"broker memory: {result['broker_rss_mb']} MB")
    return "\n".join(lines)
