"""Hostile input: whatever is sent, the broker answers rightly or closes, and others go on.

`TOCSIN_FUZZ_CASES` sets how many cases each surface gets (rude clients: a tenth of it);
the default keeps the suite short.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import socket
import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.servers import RawStomp, Running, running, wait_for
from websockets.sync.client import connect as connect_websocket

from tocsin.broker.config import Limits
from tocsin.broker.protocol.stomp import Parser
from tocsin.broker.storage import open_folder
from tocsin.broker.tokens import ALL, create
from tocsin_lab.bench.machine import rss_mb

CASES = int(os.environ.get("TOCSIN_FUZZ_CASES", "1000"))
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
STOMP = [
    CONNECT,
    b"SEND\ndestination:/events\nprice:5\n\nbody\0",
    b'SEND\ndestination:/topic/Q\ncontent-type:application/json\n\n{"a":1}\0',
    b"SUBSCRIBE\nid:1\ndestination:/events\nselector:a = 1 AND b < 'x'\nack:client\n\n\0",
    b"SUBSCRIBE\nid:2\ndestination:/events\ndurable-subscription-name:fuzz\n\n\0",
    b"SUBSCRIBE\nid:3\ndestination:/events\nselector:a > 0\nnotify:both\n\n\0",
    b'SEND\ndestination:/events\nkey:k1\nttl:0.5\nmerge:true\n\n{"a":{"b":1}}\0',
    b"SEND\ndestination:/topic/Q\nkey:k2\nretain:1\na:5\n\ntext\0",
    b"SEND\ndestination:/events\nkey:k1\nretract:true\n\n\0",
    b"UNSUBSCRIBE\nid:1\n\n\0",
    b"ACK\nid:1-1\n\n\0",
    b"NACK\nid:1-1\n\n\0",
    b"BEGIN\ntransaction:t\n\n\0",
    b"SEND\ndestination:/events\ntransaction:t\n\n{}\0",
    b"COMMIT\ntransaction:t\n\n\0",
    b"ABORT\ntransaction:t\nreceipt:1\n\n\0",
    b"DISCONNECT\nreceipt:9\n\n\0",
    b"\n\n\r\n",
]
EVENT = b'{"a":1,"b":"x","c":{"d":[1,2.5,null,true]}}'
CLOUD = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1}}'


def request(
    method: str, path: str, body: bytes = b"", kind: str = "application/json", more: str = ""
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


HTTP = [
    request("POST", "/events", EVENT),
    request("POST", "/events?type=Q&valid_until=2030-01-01", b"[" + EVENT + b"]"),
    request("POST", "/events", CLOUD, "application/cloudevents+json"),
    request("POST", "/events", b"[" + CLOUD + b"]", "application/cloudevents-batch+json"),
    request("POST", "/events", EVENT, more="ce-specversion: 1.0\r\nce-id: 1\r\nce-type: t\r\n"),
    request("POST", "/subscriptions", b'{"id":"f","where":"a = :x","params":{"x":1}}'),
    request("POST", "/subscriptions", b'{"filters":[{"any":[{"exact":{"type":"t"}}]}]}'),
    request("POST", "/subscriptions", b'{"where":"a=1","webhook":{"url":"http://example.com/"}}'),
    request("POST", "/subscriptions", b'{"id":"t","where":"a > 0","notify":"enter"}'),
    request("POST", "/events?key_of=b&merge=true&ttl=5&retain=2", b"[" + EVENT + b"]"),
    request("POST", "/events?key_of=ce.subject", CLOUD, "application/cloudevents+json"),
    request("PUT", "/publications/p%2F1?type=Q", EVENT),
    request("PATCH", "/publications/p%2F1?type=Q", b'{"a":null,"c":{"d":2}}'),
    request("DELETE", "/publications/p%2F1?type=Q"),
    request("GET", "/publications?type=Q&search=p&limit=3"),
    request("GET", "/subscriptions/t%2Fstream/dead"),
    request("PATCH", "/subscriptions/f", b'{"params":{"x":2}}'),
    request("POST", "/subscriptions/f/ack", b'{"upto":5}'),
    request("DELETE", "/subscriptions/f"),
    request("GET", "/subscriptions?search=a&limit=5&after=x"),
    request("POST", "/conditions", b'{"where":"a BETWEEN 1 AND 2 OR b LIKE \'x%\'"}'),
    request("GET", "/metrics"),
    request("GET", "/openapi.json", more="Authorization: Bearer x.y\r\n"),
]
SOCKET = [
    b'{"op":"publish","event":{"a":1,"b":"x"},"type":"Q","key":"w","merge":true,"ref":1}',
    b'{"op":"publish","events":[{"a":1},{"a":{"b":[2]}}],"valid_until":"2030-01-01"}',
    b'{"op":"retract","key":"w","type":"Q","ref":"r"}',
    b'{"op":"subscribe","id":"ws","where":"a = :x","params":{"x":1},"notify":"enter"}',
    b'{"op":"subscribe","where":"a > 0 OR b LIKE \'x%\'","ref":{"deep":[1]}}',
    b'{"op":"listen","id":"ws","auto":true}',
    b'{"op":"unsubscribe","id":"ws"}',
    b'{"op":"ack","id":"ws","ids":[1,2],"upto":3}',
]
ODD = [
    b'{"a":' * 300, b'{"a":' * 300 + b"1" + b"}" * 300, b"[" * 300 + b"]" * 300,
    b"\0", b"\n", b"\r\n\r\n", b"\xff\xfe", b"\\", b":", b"{", b"}" * 9, b"[" * 500, b"9" * 400,
    b"1e999", b'"\\ud800"', b"content-length:99999999999\n", b"Transfer-Encoding: chunked\r\n",
    b"a:" + b"x" * 40_000, b"(" * 300, b" OR a=1" * 400, b"'", b"%00", b"../" * 20, b"-1", b"null",
]  # fmt: skip


def mutate(draw: random.Random, case: bytes) -> bytes:
    """Change a message in a few places."""
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(case) + 1)
        what = draw.randrange(6)
        if what == 0:
            case = case[:at] + draw.choice(ODD) + case[at:]
        elif what == 1:
            case = case[:at] + case[at + draw.randrange(1, 12) :]
        elif what == 2:
            case = case[:at] + bytes([draw.randrange(256)]) + case[at + 1 :]
        elif what == 3:
            case = case[:at]
        elif what == 4:
            case = case[:at] + case[max(0, at - 20) : at] * draw.randrange(1, 5) + case[at:]
        else:
            case = case[:at] + draw.randbytes(draw.randrange(1, 30)) + case[at:]
    return case


def exchange(port: int, sent: bytes) -> bytes:
    """Send bytes, end, and return all that comes back."""
    got = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        while data := client.recv(65536):
            got += data
            if got.startswith(b"HTTP/1.1 200") and b"text/event-stream" in got[:400]:
                break
    return got


class Watch(logging.Handler):
    """Keeps what was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


def check_others(broker: Running, bystander: RawStomp, n: int) -> None:
    with broker.client() as http:
        assert http.post("/events?type=Calm", json={"n": n}).json()["matches"] >= 1
    while (frame := bystander.next()).body != b'{"n":%d}' % n:
        assert frame.command == "MESSAGE"


def check_stomp(got: bytes) -> None:
    parser = Parser(max_body=1 << 24, max_header_bytes=1 << 20)
    frames = parser.feed(got)
    assert parser.error is None, got[:300]
    assert {frame.command for frame in frames} <= {"CONNECTED", "RECEIPT", "MESSAGE", "ERROR"}
    for frame in frames:
        if frame.command == "ERROR":
            assert frame is frames[-1]
            assert frame.headers["message"]


def check_http(got: bytes) -> None:
    if got:
        assert got.startswith(b"HTTP/1.1 "), got[:100]
        assert not got.startswith(b"HTTP/1.1 5"), got[:500]


@contextlib.contextmanager
def no_errors() -> Iterator[None]:
    """Fail where something is logged as an error."""
    watch = Watch()
    logs = [logging.getLogger(name) for name in ("tocsin", "uvicorn.error", "asyncio")]
    for log in logs:
        log.addHandler(watch)
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(watch)
    assert not watch.found, watch.found[:3]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("surface", ["stomp", "http", "websocket"])
def test_whatever_is_sent_the_broker_goes_on(tmp_path: Path, surface: str) -> None:
    limits = Limits(max_body=100_000, max_header_bytes=8_000, max_subscriptions=2_000)
    draw = random.Random(8)
    with (
        no_errors(),
        running(tmp_path, limits=limits) as broker,
        RawStomp(broker.stomp_port) as bystander,
    ):
        bystander.call("SUBSCRIBE", {"id": "calm", "destination": "/topic/Calm"})
        check_others(broker, bystander, -1)
        before = rss_mb()
        for n in range(CASES // 10 if surface == "websocket" else CASES):
            if surface == "websocket":  # ten operations over each
                check_socket(broker, draw)
            elif surface == "stomp":
                frames = [draw.choice(STOMP) for _ in range(draw.randrange(1, 5))]
                sent = CONNECT * (draw.random() < 0.9) + mutate(draw, b"".join(frames))
                check_stomp(exchange(broker.stomp_port, sent))
            else:
                port = int(broker.url.rpartition(":")[2])
                check_http(exchange(port, mutate(draw, draw.choice(HTTP))))
            if n % 250 == 0:
                check_others(broker, bystander, n)
        check_others(broker, bystander, CASES)
        assert rss_mb() - before < 200


def check_socket(broker: Running, draw: random.Random) -> None:
    """Send broken operations; each has its answer, and the last one a right one."""
    with connect_websocket(broker.url.replace("http", "ws") + "/ws") as socket:
        for _ in range(10):
            case = mutate(draw, draw.choice(SOCKET))
            try:
                socket.send(case.decode())
            except UnicodeDecodeError:
                socket.send(case)
        socket.send('{"op": "unsubscribe", "id": "none", "ref": "end"}')
        n = 0
        while (found := json.loads(socket.recv(60))).get("ref") != "end":
            n += "ok" in found or "error" in found
        assert n == 10
        assert found["error"] == "unknown-id"


class Rude:
    """Clients that do what no client should."""

    def __init__(self, broker: Running, token: str, draw: random.Random) -> None:
        self.broker = broker
        self.draw = draw
        self.ports = (broker.stomp_port, int(broker.url.rpartition(":")[2]))
        self.open: deque[socket.socket] = deque()
        self.http = broker.client(headers={"authorization": f"Bearer {token}"})

    def act(self) -> None:
        kinds = (self.hang, self.vanish, self.dribble, self.guess_http, self.guess_stomp, self.bomb)
        self.draw.choice(kinds)()
        while len(self.open) > 100:
            self.open.popleft().close()

    def connect(self, at: int) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[at]), timeout=60)

    def hang(self) -> None:
        """Send a part of something, and stay."""
        at = self.draw.randrange(2)
        client = self.connect(at)
        message = self.draw.choice((STOMP, HTTP)[at])
        client.sendall(message[: self.draw.randrange(len(message))])
        self.open.append(client)

    def vanish(self) -> None:
        """Go without a word in the middle of something."""
        at = self.draw.randrange(2)
        with self.connect(at) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            message = self.draw.choice((STOMP, HTTP)[at])
            client.sendall(message[: self.draw.randrange(len(message))])

    def dribble(self) -> None:
        """Let a client that hangs send a byte more."""
        for client in list(self.open)[:3]:
            with contextlib.suppress(OSError):
                client.send(b"x")

    def guess_http(self) -> None:
        token = self.draw.choice(
            ["-", "x", "tocsin_1.2", "tocsin_" + self.draw.randbytes(20).hex()]
        )
        headers = {"authorization": f"Bearer {token}"}
        answer = self.http.post("/events?key=x", json={}, headers=headers)
        assert answer.status_code == 401

    def guess_stomp(self) -> None:
        frame = b"CONNECT\naccept-version:1.2\npasscode:" + self.draw.randbytes(9).hex().encode()
        got = exchange(self.ports[0], frame + b"\n\n\0" + self.draw.choice(STOMP))
        (error,) = Parser().feed(got)
        assert (error.command, error.headers["code"]) == ("ERROR", "not-allowed")

    def bomb(self) -> None:
        """Ask for what is costly."""
        n = self.draw.choice([3, 30, 300, 3000])
        where = self.draw.choice([
            " OR ".join(f"a = {at} AND b > {at}" for at in range(n)),
            " AND ".join(f"(a{at} = 1 OR b{at} = 2)" for at in range(n)),
            "(" * n + "a = 1" + ")" * n,
            "NOT " * n + "a = 1",
            "a IN (" + ", ".join(map(str, range(n))) + ")",
            "a LIKE '" + "%a" * n + "'",
            "a LIKE '" + "_" * n + "%'",
        ])  # fmt: skip
        wanted = {
            "id": "bomb",
            "where": where,
            "notify": "both" if self.draw.random() < 0.3 else None,
        }
        answer = self.http.post("/subscriptions", json=wanted)
        assert answer.status_code in (201, 400, 413, 429), answer.text
        if answer.status_code == 201:
            self.http.post("/events?type=Calm&key=b", json={"a": "a" * 300, "b0": 2})
            assert self.http.delete("/subscriptions/bomb").status_code == 204


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_whatever_clients_do_the_broker_goes_on(tmp_path: Path) -> None:
    limits = Limits(max_body=100_000, connect_seconds=1.0, request_seconds=1.0)
    with contextlib.closing(open_folder(tmp_path)) as connection:
        token = create(connection, "test", ALL)
    with (
        no_errors(),
        running(tmp_path, limits=limits, auth=True) as broker,
        RawStomp(broker.stomp_port, passcode=token) as bystander,
    ):
        rude = Rude(broker, token, random.Random(9))
        bystander.call(
            "SUBSCRIBE", {"id": "calm", "destination": "/topic/Calm", "selector": "n<>0"}
        )
        before = rss_mb()
        for n in range(1, CASES // 10):
            rude.act()
            if n % 100 == 1:
                assert rude.http.post("/events?type=Calm", json={"n": n}).json()["matches"] >= 1
                assert bystander.next().body == b'{"n":%d}' % n
        wait_for(lambda: broker.broker.connections.n == 1)  # who hangs is closed in time
        wait_for(lambda: broker.broker.admission.n_strangers == 0)
        rude.http.close()
        for client in rude.open:
            client.close()
        assert rss_mb() - before < 200
