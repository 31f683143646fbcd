"""The cost of requests: inputs at the limits of every route, and how long others wait.

`python -m tests.broker.cost` sends all of them to a broker of its own and prints, for each, the
status, how long it took, and the longest pause of the event loop meanwhile. The suite runs a sample
with a generous bound (`test_cost.py`).
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.broker.servers import RawStomp, Running, running
from websockets.sync.client import connect as connect_websocket

from tocsin.broker.protocol import stomp
from tocsin.broker.server import tune_garbage_collector

BODY = 1 << 20
"""The default of `limits.max_body`."""


class Cost(NamedTuple):
    """What one input did."""

    name: str
    outcome: str
    seconds: float
    pause: float


class Pauses:
    """The longest time that the event loop of a broker did not come round."""

    def __init__(self, broker: Running) -> None:
        self._broker = broker
        self._last = 0.0
        self.longest = 0.0
        self._is_over = threading.Event()

    def _beat(self) -> None:
        now = time.perf_counter()
        self.longest = max(self.longest, now - self._last - 0.001)
        self._last = now
        if not self._is_over.is_set():
            self._broker.loop.call_later(0.001, self._beat)

    def __enter__(self) -> Pauses:
        self._last = time.perf_counter()
        self._broker.loop.call_soon_threadsafe(self._beat)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        time.sleep(0.005)


def _filled(one: bytes, start: bytes = b"[", end: bytes = b"]", size: int = BODY) -> bytes:
    """Return a JSON array of as many of one text as fit."""
    n = (size - len(start) - len(end) + 1) // (len(one) + 1)
    return start + b",".join([one] * n) + end


def bodies(size: int = BODY) -> dict[str, bytes]:
    """Return JSON texts of about a size, each hard in another way."""
    return {
        "small numbers": b'{"a":' + _filled(b"1", size=size - 6) + b"}",
        "long numbers": b'{"a":' + _filled(b"9" * 25, size=size - 6) + b"}",
        "exact numbers": b'{"b":1e100,"a":' + _filled(b"1", size=size - 16) + b"}",
        "names": _filled_object(size),
        "escapes": b'{"a":"' + b"\\ud83d\\ude00" * ((size - 8) // 12) + b'"}',
        "text": b'{"a":"' + b"x" * (size - 8) + b'"}',
        "deep": b'{"a":' + b"[" * 400_000 + b"]" * 400_000 + b"}",
        "deep objects": b'{"a":' * 900 + b"1" + b"}" * 900,
        "spaces": b" " * (size - 2) + b"{}",
        "not JSON": b"[" + b"1," * 500_000,
        "empty events": _filled(b"{}", size=size),
        "10,000 events": _filled(b'{"a":1,"b":"x","c":2.5}', size=240_000),
        "lines": b"{}\n" * (size // 3),
    }


def _filled_object(size: int) -> bytes:
    names, n, at = [], 2, 0
    while n < size - 20:
        names.append(b'"%d":1' % at)
        n += len(names[-1]) + 1
        at += 1
    return b"{" + b",".join(names) + b"}"


def http_inputs() -> Iterator[tuple[str, str, str, bytes, dict[str, str]]]:
    """Yield name, method, path, body and headers of hostile requests."""
    json_kind = {"content-type": "application/json"}
    lines = {"content-type": "application/x-ndjson"}
    batch = {"content-type": "application/cloudevents-batch+json"}
    one = b'{"specversion":"1.0","id":"1","source":"s","type":"T","data":{"a":1}}'
    for name, body in bodies().items():
        yield f"POST /events, {name}", "POST", "/events", body, json_kind
        if name in ("lines", "text", "exact numbers"):
            yield f"POST /events as lines, {name}", "POST", "/events", body, lines
        if name in ("long numbers", "deep", "names"):
            yield f"POST /subscriptions, {name}", "POST", "/subscriptions", body, json_kind
            yield f"POST /conditions, {name}", "POST", "/conditions", body, json_kind
            yield f"PUT /publications, {name}", "PUT", "/publications/k", body, json_kind
    yield "CloudEvents", "POST", "/events", _filled(one), batch
    yield "10,000 CloudEvents", "POST", "/events", _filled(one, size=700_000), batch
    wanted = _filled(b'{"where":"z=1"}')
    yield "POST /subscriptions, many", "POST", "/subscriptions", wanted, json_kind
    few = _filled(b'{"where":"z=1"}', size=150_000)
    yield "POST /subscriptions, 10,000", "POST", "/subscriptions", few, json_kind
    for path in (
        "/subscriptions?search=nothing&limit=1000",
        "/subscriptions?order=matched&limit=1000",
        "/publications?limit=1000",
        "/publications?search=x",
        "/stream?prefix=none",
        "/metrics",
        "/stats",
        "/recent",
        "/openapi.json",
    ):
        yield f"GET {path}", "GET", path, b"", {}
    ids = json.dumps({"ids": list(range(100_000))}).encode()
    yield "POST ack, 100,000 ids", "POST", "/subscriptions/durable/ack", ids, json_kind
    too_many = b'{"ids":' + _filled(b"1", size=BODY - 10) + b"}"
    yield "POST ack, too many ids", "POST", "/subscriptions/durable/ack", too_many, json_kind
    heads = {f"x-{n}": "y" * 400 for n in range(100)}
    yield "a long head", "GET", "/healthz", b"", heads


def socket_inputs() -> Iterator[tuple[str, bytes]]:
    """Yield names and texts of hostile operations of a WebSocket."""
    for name, body in bodies(BODY - 100).items():
        if name == "lines":
            continue
        start = b'{"op":"publish","event":' if body[:1] == b"{" else b'{"op":"publish","events":'
        yield f"WebSocket publish, {name}", start + body + b"}"
    yield "WebSocket ack", b'{"op":"ack","id":"durable","ids":' + _filled(b"1", size=900_000) + b"}"
    yield "WebSocket ref", b'{"op":"x","ref":"' + b"r" * 1_000_000 + b'"}'


def stomp_inputs() -> Iterator[tuple[str, list[bytes]]]:
    """Yield names and parts of hostile conversations in STOMP; each part is answered at its end."""
    last = stomp.encode("BEGIN", {"transaction": "end", "receipt": "end"})
    for name, body in bodies(BODY - 100).items():
        if body[:1] == b"{":
            sent = stomp.encode("SEND", {"destination": "/events"}, body)
            yield f"STOMP SEND, {name}", [sent, last]
    pair = stomp.encode("BEGIN", {"transaction": "t"}) + stomp.encode("ABORT", {"transaction": "t"})
    yield "STOMP small frames", [pair * 20_000, last]
    yield "STOMP heart-beats", [b"\n" * BODY, last]
    headers = {f"h{n}": "v" * 90 for n in range(120)}
    many = stomp.encode("SEND", {"destination": "/events", **headers}) * 300
    yield "STOMP headers", [many, last]
    begin = stomp.encode("BEGIN", {"transaction": "t"})
    inner = stomp.encode("SEND", {"destination": "/events", "transaction": "t", "a": "1"}, b"{}")
    end = stomp.encode("COMMIT", {"transaction": "t"})
    yield "STOMP transaction", [begin + inner * 10_000 + end, last]
    yield "STOMP acks", [stomp.encode("ACK", {"id": "1-1"}) * 20_000, last]


@contextmanager
def hosting(folder: Path, n_subscriptions: int, n_publications: int) -> Iterator[Running]:
    """Yield a broker with subscriptions, publications and a durable backlog."""
    with running(folder) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "durable", "where": "d = 1", "durable": True})
        for first in range(0, n_subscriptions, 10_000):
            n = min(10_000, n_subscriptions - first)
            wanted = [{"id": f"s{first + at}", "where": f"s = {first + at}"} for at in range(n)]
            assert http.post("/subscriptions", json=wanted).is_success
        for first in range(0, n_publications, 5_000):
            n = min(5_000, n_publications - first)
            events = [{"k": first + at, "x": "y" * 40} for at in range(n)]
            assert http.post("/events?key_of=k", json=events).is_success
        for _ in range(10 if n_subscriptions > 1_000 else 1):
            http.post("/events", json=[{"d": 1}] * 10_000)
        http.post("/events", json={"warm": 1})
        yield broker


def measure(broker: Running, name: str, work: Callable[[], str]) -> Cost:
    """Return what an input did, and the longest pause of the event loop until it was answered."""
    time.sleep(0.02)
    began = time.perf_counter()
    with Pauses(broker) as pauses:
        outcome = work()
    return Cost(name, outcome, time.perf_counter() - began, pauses.longest)


def costs(broker: Running, is_chosen: Callable[[str], bool] = lambda _: True) -> Iterator[Cost]:
    """Yield what each chosen input did."""
    with broker.client() as http:
        for name, method, path, body, headers in http_inputs():
            if is_chosen(name):
                yield measure(
                    broker,
                    name,
                    lambda: str(
                        http.request(method, path, content=body, headers=headers).status_code  # noqa: B023
                    ),
                )
    url = broker.url.replace("http", "ws") + "/ws"
    for name, text in socket_inputs():
        if is_chosen(name):
            with connect_websocket(url, max_size=None) as web:

                def ask() -> str:
                    web.send(text.decode())  # noqa: B023
                    found: dict[str, Any] = json.loads(web.recv(20))
                    return str(found.get("ok") or found.get("error"))

                yield measure(broker, name, ask)
    for name, parts in stomp_inputs():
        if is_chosen(name):
            with RawStomp(broker.stomp_port) as client:
                client.socket.settimeout(60)

                def say() -> str:
                    client.socket.sendall(b"".join(parts))  # noqa: B023
                    return str(client.next().command)

                yield measure(broker, name, say)


def main() -> None:
    """Measure everything, at 50,000 subscriptions and publications, the longest pauses last."""
    with (
        tempfile.TemporaryDirectory() as folder,
        hosting(Path(folder) / "data", 50_000, 50_000) as broker,
    ):
        tune_garbage_collector()  # as `tocsin serve` does
        found = sorted(costs(broker), key=lambda cost: cost.pause)
    for cost in found:
        took = f"{cost.seconds * 1e3:9.1f} ms  longest pause {cost.pause * 1e3:8.1f} ms"
        sys.stdout.write(f"{cost.name:45} {cost.outcome:10} {took}\n")


if __name__ == "__main__":
    main()
