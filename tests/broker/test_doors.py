"""What strangers, other sites' pages and clients that do not read can do: little."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker.servers import RawStomp, Running, running, wait_for
from tests.broker.test_security import bearer, make
from websockets.sync.client import connect as connect_websocket

from tocsin.broker.admission import Admission, fit_to_descriptors
from tocsin.broker.config import Config, Limits
from tocsin.broker.outbox import Outbox
from tocsin.broker.protocol import stomp
from tocsin.errors import LimitError

pytestmark = pytest.mark.slow
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/605.1.15"
SMALL: dict[str, Any] = {"outbox_bytes": 100_000, "outbox_messages": 500}


def port_of(broker: Running) -> int:
    return int(broker.url.rpartition(":")[2])


@contextlib.contextmanager
def deaf(port: int) -> Iterator[socket.socket]:
    """Yield a connection that takes next to nothing unless it reads."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        found.settimeout(5)
        found.connect(("127.0.0.1", port))
        yield found


def send_all(connection: socket.socket, block: bytes, times: int) -> int:
    """Send a block again and again until the broker reads no more; return how many bytes went."""
    connection.settimeout(0.5)
    n = 0
    with contextlib.suppress(TimeoutError, ConnectionError):
        for _ in range(times):
            n += connection.send(block)
    return n


def open_socket(connection: socket.socket, port: int) -> None:
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade"
        f"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    assert connection.recv(1000).startswith(b"HTTP/1.1 101")


def masked(opcode: int, payload: bytes) -> bytes:
    n = len(payload)
    head = bytes([0x80 | n]) if n < 126 else bytes([0x80 | 126]) + struct.pack(">H", n)
    return bytes([0x80 | opcode]) + head + b"\0\0\0\0" + payload


# Pages of other sites.


def fetched(site: str | None, mode: str, dest: str = "empty", **more: str) -> dict[str, str]:
    found = {"user-agent": BROWSER, "sec-fetch-mode": mode, "sec-fetch-dest": dest, **more}
    return found if site is None else {**found, "sec-fetch-site": site}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(
    ("mode", "dest"),
    [("no-cors", "image"), ("no-cors", "script"), ("no-cors", "empty"), ("navigate", "document"),
     ("navigate", "iframe"), ("cors", "empty")],
)  # fmt: skip
def test_a_page_of_another_site_cannot_empty_a_durable_subscription(
    broker: Running, http: httpx.Client, site: str, mode: str, dest: str
) -> None:
    id = f"csrf-{site}-{mode}-{dest}"
    http.post("/subscriptions", json={"id": id, "where": "csrf = 1", "durable": True})
    http.post("/events", json=[{"csrf": 1}] * 3)
    for path in (f"/subscriptions/{id}/stream?ack=auto", f"/subscriptions/{id}/stream"):
        answer = http.get(path, headers=fetched(site, mode, dest))
        assert answer.status_code == 403, answer.text
    assert http.get(f"/subscriptions/{id}").json()["pending"] == 3


def test_a_window_or_an_image_cannot_read_what_changes_something(
    broker: Running, http: httpx.Client
) -> None:
    for headers in (
        fetched("none", "navigate", "document"),  # typed, or redirected from what was typed
        fetched("same-origin", "no-cors", "image"),
        {"user-agent": BROWSER},  # a browser that says nothing
    ):
        http.post("/subscriptions", json={"id": "win", "where": "win = 1", "durable": True})
        answer = http.get("/subscriptions/win/stream?ack=auto", headers=headers)
        assert answer.status_code == 403, headers
    assert http.post("/events", json={}, headers={"user-agent": BROWSER}).status_code == 403
    assert http.get("/healthz", headers=fetched("none", "navigate", "document")).is_success


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", fetched("same-origin", "cors")),  # EventSource of the console
        ("GET", {"user-agent": BROWSER, "tocsin-client": "1"}),
        ("GET", {"user-agent": BROWSER, "authorization": "Bearer x"}),
        ("GET", {}),  # a program
        ("POST", {}),
    ],
)
def test_whoever_means_it_reads_a_durable_subscription(
    broker: Running, http: httpx.Client, method: str, headers: dict[str, str]
) -> None:
    http.post("/subscriptions", json={"id": "meant", "where": "meant = 1", "durable": True})
    with http.stream(method, "/subscriptions/meant/stream", headers=headers) as stream:
        assert stream.status_code == 200


def test_links_to_the_console_work_and_its_own_files_load(tmp_path: Path) -> None:
    from tocsin import web

    with running(tmp_path, web.FOLDER) as broker, broker.client() as http:
        assert http.get("/", headers=fetched("cross-site", "navigate", "document")).is_success
        assert http.get("/", headers=fetched("cross-site", "navigate", "iframe")).is_error
        inner = http.get("/console.js", headers=fetched("same-origin", "no-cors", "script"))
        assert inner.headers["cache-control"] == "no-cache"
        assert http.get("/console.js", headers=fetched("cross-site", "no-cors", "script")).is_error


def test_no_answer_is_kept_or_guessed_at(http: httpx.Client) -> None:
    for path in ("/subscriptions", "/stats", "/nothing", "/healthz", "/publications/x"):
        headers = http.get(path).headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["cache-control"] == "no-store", path


def test_insecure_on_loopback_still_looks_at_the_host(tmp_path: Path) -> None:
    with running(tmp_path, insecure=True) as broker, broker.client() as http:
        assert http.get("/healthz", headers={"host": "evil.example"}).status_code == 403


# Clients that do not read.


def test_an_outbox_says_when_it_is_full_of_answers() -> None:
    outbox = Outbox(10, 1000)
    for _ in range(9):
        outbox.answer(b"x")
    assert not outbox.is_full_of_answers
    outbox.answer(b"x")
    assert outbox.is_full_of_answers
    assert not outbox.has_capacity
    assert len(outbox.take()) == 10
    assert not outbox.is_full_of_answers
    outbox.answer(b"x" * 1000)
    assert outbox.is_full_of_answers
    for _ in range(100):
        outbox.put(b"y" * 100, True)  # notifications are not held up, and not hoarded
    assert len(outbox) == 2


def test_a_stomp_client_that_never_reads_is_not_read_and_then_closed(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(request_seconds=0.5), **SMALL) as broker:
        for command in ("BEGIN", "SEND"):
            with deaf(broker.stomp_port) as client:
                client.sendall(stomp.encode("CONNECT", {"accept-version": "1.2"}))
                client.recv(1000)
                (connection,) = broker.server._stomp.connections
                headers = {"transaction": "t", "receipt": "r" * 5_000}
                pair = stomp.encode("BEGIN", headers) + stomp.encode("ABORT", headers)
                if command == "SEND":
                    pair = stomp.encode("SEND", {"destination": "/events", "receipt": "r" * 10_000})
                sent = send_all(client, pair * 20, 200)
                assert sent < 30_000_000  # of 40, with kernel buffers
                assert connection.outbox.n_bytes < 300_000
                assert connection.transport.get_write_buffer_size() < 1_000_000
                wait_for(lambda: not broker.server._stomp.connections)
        with RawStomp(broker.stomp_port) as other:
            assert other.call("SEND", {"destination": "/events"}).command == "RECEIPT"


def test_a_stomp_client_that_reads_late_gets_every_receipt(tmp_path: Path) -> None:
    with running(tmp_path, **SMALL) as broker, RawStomp(broker.stomp_port) as client:
        frames = [
            stomp.encode(command, {"transaction": "t", "receipt": f"{n}-{'r' * 3_000}"})
            for n in range(500)
            for command in ("BEGIN", "ABORT")
        ]
        client.socket.settimeout(20)
        import threading

        writer = threading.Thread(target=client.socket.sendall, args=(b"".join(frames),))
        writer.start()
        time.sleep(0.3)
        found = [int(client.next().headers["receipt-id"].partition("-")[0]) for _ in range(1000)]
        writer.join()
        assert found == [n for n in range(500) for _ in range(2)]


@pytest.mark.parametrize("kind", ["answers", "pings"])
def test_a_websocket_that_never_reads_is_not_read_and_then_closed(
    tmp_path: Path, kind: str
) -> None:
    with (
        running(tmp_path, limits=Limits(request_seconds=0.5), **SMALL) as broker,
        deaf(port_of(broker)) as client,
    ):
        open_socket(client, port_of(broker))
        wait_for(lambda: broker.broker.connections.streams)
        (session,) = broker.broker.connections.streams
        asked = json.dumps({"op": "x", "ref": "z" * 10_000}).encode()
        frame = masked(1, asked) if kind == "answers" else masked(9, b"p" * 125) * 80
        assert send_all(client, frame * 20, 200) < 30_000_000  # of 40, with kernel buffers
        transport = session.transport
        assert session.outbox.n_bytes < 300_000
        assert transport.get_write_buffer_size() < 1_000_000
        wait_for(lambda: not broker.broker.connections.streams)


def test_a_websocket_that_reads_late_gets_every_answer(tmp_path: Path) -> None:
    with (
        running(tmp_path, **SMALL) as broker,
        connect_websocket(broker.url.replace("http", "ws") + "/ws", max_queue=None) as web,
    ):
        for n in range(2_000):
            web.send(json.dumps({"op": "x", "ref": n, "more": "y" * 500}))
        assert [json.loads(web.recv(20))["ref"] for _ in range(2_000)] == list(range(2_000))


def test_a_stream_that_is_not_read_holds_no_more_than_its_outbox(tmp_path: Path) -> None:
    with running(tmp_path, **SMALL) as broker, broker.client() as http:
        for durable in (False, True):
            id = f"s{durable}"
            http.post("/subscriptions", json={"id": id, "where": "a = 1", "durable": durable})
            with deaf(port_of(broker)) as client:
                client.sendall(
                    f"GET /subscriptions/{id}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
                )
                wait_for(lambda: broker.broker.connections.streams)
                for _ in range(20):
                    http.post("/events", json=[{"a": 1, "x": "y" * 900}] * 500)
                (session,) = broker.broker.connections.streams
                assert session.outbox.n_bytes < 300_000
                transport = session.transport
                assert transport.get_write_buffer_size() < 1_000_000
            wait_for(lambda: not broker.broker.connections.streams)


def test_pipelined_requests_are_parsed_as_they_are_answered(tmp_path: Path) -> None:
    one = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with running(tmp_path, limits=Limits(request_seconds=3)) as broker:
        server = broker.server._http
        assert server is not None
        with deaf(port_of(broker)) as client:
            client.sendall(one)
            wait_for(lambda: server.server_state.connections)
            (connection,) = server.server_state.connections
            send_all(client, one * 100, 100)
            assert len(connection.pipeline) < 300
            assert connection.transport.get_write_buffer_size() < 1_000_000
            wait_for(lambda: not server.server_state.connections)
        small = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        last = small.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        with socket.create_connection(("127.0.0.1", port_of(broker)), timeout=20) as client:
            client.sendall(small * 999 + last)
            found = b"".join(iter(lambda: client.recv(65536), b""))
        assert found.count(b"HTTP/1.1 200") == 1000


# Strangers.


def test_strangers_do_not_use_up_the_connections_of_clients(tmp_path: Path) -> None:
    token = make(tmp_path, publish=("*",), subscribe=("*",))
    limits = Limits(max_connections=3, max_unauthenticated=4, max_unauthenticated_per_address=3)
    with (
        running(tmp_path, auth=True, limits=limits) as broker,
        broker.client(headers=bearer(token)) as http,
        contextlib.ExitStack() as stack,
    ):
        http.post("/subscriptions", json={"id": "s", "where": "a = 1"})
        for port in (broker.stomp_port, port_of(broker)):
            for _ in range(4):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        wait_for(lambda: broker.broker.admission.n_turned_away >= 5)
        assert broker.broker.admission.n_strangers <= 3
        time.sleep(1.05)  # the strangers are no longer a burst of clients
        with http.stream("GET", "/subscriptions/s/stream") as stream:
            assert stream.status_code == 200
            with RawStomp(broker.stomp_port, passcode=token) as client:
                assert client.call("SEND", {"destination": "/events"}).command == "RECEIPT"
                with RawStomp(broker.stomp_port, passcode=token):
                    full = RawStomp(broker.stomp_port, connect=False)
                    with full:
                        full.send("CONNECT", {"accept-version": "1.2", "passcode": token})
                        assert "too many connections" in full.next().headers["message"]


def test_a_token_has_only_so_many_connections(tmp_path: Path) -> None:
    token, other = (make(tmp_path, publish=("*",), subscribe=("*",)) for _ in range(2))
    with (
        running(tmp_path, auth=True, limits=Limits(max_token_connections=2)) as broker,
        RawStomp(broker.stomp_port, passcode=token),
        broker.client() as first,
        broker.client() as second,
    ):
        assert first.get("/subscriptions", headers=bearer(token)).is_success
        refused = second.get("/subscriptions", headers=bearer(token))
        assert (refused.status_code, refused.json()["limit"]) == (429, "max_token_connections")
        assert second.get("/subscriptions", headers=bearer(other)).is_success


def test_the_oldest_stranger_goes_first() -> None:
    admission = Admission(Limits(max_unauthenticated=3, max_unauthenticated_per_address=2))
    closed: list[str] = []
    for name, address in (("a", "1"), ("b", "1"), ("c", "2")):
        assert admission.enter(name, address, lambda name=name: closed.append(name))  # type: ignore[misc]
    assert not admission.enter("d", "1", lambda: None)  # a burst: the newcomer goes
    admission._strangers = {
        name: each._replace(since=each.since - 10) for name, each in admission._strangers.items()
    }
    assert admission.enter("d", "1", lambda: None)
    assert admission.enter("e", "3", lambda: None)
    assert closed == ["a", "b"]
    admission.admit("c", "token")
    assert admission.n_strangers == 2
    admission.leave("c")
    admission.leave("c")


def test_strangers_get_little_memory_before_connect(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        for sent in (
            b"SEND\ndestination:/events\ncontent-length:1048576\n\n" + b"x" * 100_000,
            b"CONNECT\nx:" + b"y" * 9_000,
        ):
            with RawStomp(broker.stomp_port, connect=False) as client:
                client.socket.sendall(sent)
                assert client.next().command == "ERROR"
        with RawStomp(broker.stomp_port, connect=False) as client:  # all at once is all right
            hello = stomp.encode("CONNECT", {"accept-version": "1.2"})
            body = b"x" * 100_000
            event = stomp.encode("SEND", {"destination": "/events", "receipt": "r"}, body)
            client.socket.sendall(hello + event)
            assert [client.next().command for _ in range(2)] == ["CONNECTED", "RECEIPT"]


@pytest.mark.parametrize("path", ["POST /events", "GET /healthz", "POST /subscriptions"])
def test_a_body_that_is_not_read_does_not_keep_a_connection_open(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.broker.http.guarded._UNREAD_SECONDS", 0.3)
    make(tmp_path, admin=True)
    limits = Limits(connect_seconds=0.5, request_seconds=0.5)
    with (
        running(tmp_path, auth=True, limits=limits) as broker,
        socket.create_connection(("127.0.0.1", port_of(broker)), timeout=20) as client,
    ):
        head = f"{path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n"
        client.sendall(head.encode())
        assert client.recv(4000).startswith(b"HTTP/1.1 ")
        with contextlib.suppress(ConnectionError):
            for _ in range(200):  # it goes on and on
                client.sendall(b"x")
                time.sleep(0.05)
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    if client.recv(10) == b"":
                        break
                client.setblocking(True)
            else:
                pytest.fail("the connection stays open")


def test_a_handshake_that_never_comes_ends_in_time(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    limits = Limits(connect_seconds=0.5)
    with running(tmp_path / "d", tls_cert=cert, tls_key=key, limits=limits) as broker:
        for port in (port_of(broker), broker.stomp_port):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
                wait_for(lambda: broker.broker.admission.n_strangers)
                with contextlib.suppress(ConnectionError):
                    assert client.recv(100) == b""
            wait_for(lambda: not broker.broker.admission.n_strangers)
        with httpx.Client(verify=False, base_url=broker.url) as http:
            assert http.post("/events", json=[{"a": "x" * 50}] * 2_000).json()["accepted"] == 2_000


def certificate(folder: Path) -> tuple[str, str]:
    import shutil
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("makes a certificate with openssl, which is not installed")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
               "-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return str(cert), str(key)


def test_a_broker_takes_no_more_connections_than_it_may_open_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1 << 20))
    config = Config()
    assert fit_to_descriptors(config) is config
    assert raised[0][0] > config.limits.max_connections + config.limits.max_unauthenticated
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    limits = fit_to_descriptors(config).limits
    assert 0 < limits.max_connections + limits.max_unauthenticated < 1024
    assert "max_connections is" in caplog.text or not caplog.handler


# Odd characters.


@pytest.mark.parametrize(
    "key", ["k\0ERROR", "a\nb", "a\rb", "\x7f", "\x85", "\u2028", ".", "..", ""]
)
def test_keys_that_some_protocol_cannot_carry_are_refused(
    broker: Running, http: httpx.Client, key: str
) -> None:
    assert http.post("/events", json={"a": 1}, params={"key": key}).status_code == 400
    assert http.post("/events", json={"a": key}, params={"key_of": "a"}).status_code == 400
    with connect_websocket(broker.url.replace("http", "ws") + "/ws") as web:
        web.send(json.dumps({"op": "publish", "event": {}, "key": key}))
        assert json.loads(web.recv(20))["error"] == "event"
    if "\0" not in key:
        with RawStomp(broker.stomp_port) as client:
            answer = client.call("SEND", {"destination": "/events", "key": key}, b"{}")
            assert answer.headers.get("code") == "event"


@pytest.mark.parametrize("id", [".", "..", "a\nb", "a\0b"])
def test_ids_that_no_path_can_name_are_refused(http: httpx.Client, id: str) -> None:
    assert http.post("/subscriptions", json={"id": id, "where": "TRUE"}).status_code == 400


@pytest.mark.parametrize("name", ["datacontenttype", "subject", "source", "myextension"])
def test_control_characters_in_context_attributes_are_refused(
    http: httpx.Client, name: str
) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "T", "data": "hello"}
    kind = {"content-type": "application/cloudevents+json"}
    for value in ("x\0ERROR", "a\nb"):
        answer = http.post("/events", content=json.dumps({**event, name: value}), headers=kind)
        assert answer.status_code == 400
        assert answer.json()["attribute"] == f"ce.{name}"
    binary = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "T"}
    answer = http.post("/events", content=b"x", headers={**binary, "ce-subject": "a%00b"})
    assert answer.status_code == 400


def test_control_characters_in_headers_are_refused(broker: Running) -> None:
    for headers in ({"a": "b\nc"}, {"a\nb": "c"}, {"content-type": "x\ny"}):
        for body in (b"", b"{}"):
            with RawStomp(broker.stomp_port) as client:
                answer = client.call("SEND", {"destination": "/events", **headers}, body)
                assert answer.headers.get("code") == "event", (headers, body)


def test_a_frame_cannot_be_ended_from_within_a_header() -> None:
    raw = stomp.encode("MESSAGE", {"key": "k\0ERROR\n", "a": "b"}, b"body")
    parser = stomp.Parser()
    (frame,) = parser.feed(raw)
    assert parser.error is None
    assert frame.headers["key"] == "k%00ERROR\n"


# Quotas.


def test_parameters_and_options_are_bounded_in_bytes(http: httpx.Client) -> None:
    long = "y" * 70_000
    for wanted in (
        {"where": "a = :x", "params": {"x": long}},
        {"filters": [{"exact": {"type": "t"}}], "config": {"x": long}},
    ):
        answer = http.post("/subscriptions", json=wanted)
        assert (answer.status_code, answer.json()["limit"]) == (413, "max_subscription_bytes")
    http.post("/subscriptions", json={"id": "quota", "where": "a = :x", "params": {"x": "1"}})
    answer = http.patch("/subscriptions/quota", json={"params": {"x": long}})
    assert answer.status_code == 413
    assert http.get("/subscriptions/quota").json()["params"] == {"x": "1"}


@pytest.mark.parametrize("secret", [5, {"a": 1}, "", "x" * 2_000, True])
def test_a_secret_is_a_short_text(http: httpx.Client, secret: Any) -> None:
    hook = {"url": "https://example.com/", "secret": secret}
    answer = http.post("/subscriptions", json={"where": "TRUE", "webhook": hook})
    assert answer.status_code == 400
    assert "secret" in answer.json()["detail"]


def test_what_would_be_ignored_of_a_sink_is_refused(http: httpx.Client) -> None:
    sink = {"sink": "https://example.com/", "sinkcredential": {"credentialtype": "PLAIN"}}
    answer = http.post("/subscriptions", json=sink)
    assert answer.status_code == 400
    assert "sinkcredential" in answer.json()["detail"]


def test_the_open_transactions_of_all_clients_are_bounded_together(tmp_path: Path) -> None:
    sent = {"destination": "/events", "transaction": "t"}
    with running(tmp_path, limits=Limits(max_all_transaction_bytes=30_000)) as broker:
        with RawStomp(broker.stomp_port) as one, RawStomp(broker.stomp_port) as two:
            for client in (one, two):
                client.call("BEGIN", {"transaction": "t"})
            assert one.call("SEND", sent, b"x" * 20_000).command == "RECEIPT"
            error = two.call("SEND", sent, b"x" * 20_000)
            assert "max_all_transaction_bytes" in error.headers["message"]
        wait_for(lambda: not broker.server._stomp.connections)
        with RawStomp(broker.stomp_port) as client:  # what is gone counts no more
            client.call("BEGIN", {"transaction": "t"})
            assert client.call("SEND", sent, b"x" * 20_000).command == "RECEIPT"


def test_a_limit_is_named_in_its_error() -> None:
    admission = Admission(Limits(max_token_connections=1))
    admission.admit("a", "token")
    with pytest.raises(LimitError, match="at most 1"):
        admission.admit("b", "token")
    for name in ("c", "d"):
        admission.admit(name, "")  # where no tokens are asked for, everybody is one


def test_too_many_events_are_refused_before_anything_is_made_of_them(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(max_events=5)) as broker, broker.client() as http:
        lines, batch = "application/x-ndjson", "application/cloudevents-batch+json"
        for kind, body in (
            ("application/json", b"[" + b"5," * 6 + b"5]"),  # not even events
            (lines, b"{\n" * 6),
            (batch, b"[" + b"5," * 6 + b"5]"),
        ):
            answer = http.post("/events", content=body, headers={"content-type": kind})
            assert (answer.status_code, answer.json().get("limit")) == (413, "max_events"), kind


def test_lists_come_in_pages_of_bytes(tmp_path: Path) -> None:
    limits = Limits(max_page_bytes=5_000)
    with running(tmp_path, limits=limits) as broker, broker.client() as http:
        for n in range(20):
            http.post("/events", json={"a": "x" * 900}, params={"key": f"k{n:02}"})
            http.post(
                "/subscriptions",
                json={"id": f"s{n:02}", "where": "a = :x", "params": {"x": "y" * 900}},
            )
        for path, name, key in (
            ("/publications", "publications", "key"),
            ("/subscriptions", "subscriptions", "id"),
        ):
            seen: list[str] = []
            while True:
                after = {"after": seen[-1]} if seen else {}
                found = http.get(path, params={"limit": "1000", **after}).json()
                assert 0 < len(found[name]) < 10
                seen += [each[key] for each in found[name]]
                if not found.get("more"):
                    break
            assert seen == sorted(seen)
            assert len(seen) == 20
        assert http.get("/publications/k01").json()["event"] == {"a": "x" * 900}


def test_no_more_than_so_many_are_acknowledged_at_once(tmp_path: Path) -> None:
    with (
        running(tmp_path, limits=Limits(max_acknowledged=3_000)) as broker,
        broker.client() as http,
        connect_websocket(broker.url.replace("http", "ws") + "/ws") as web,
    ):
        http.post("/subscriptions", json={"id": "s", "where": "a = 1", "durable": True})
        first = http.post("/events", json=[{"a": 1}] * 2_500).json()["first"]
        many = list(range(1, 3_002))
        answer = http.post("/subscriptions/s/ack", json={"ids": many})
        assert (answer.status_code, answer.json()["limit"]) == (413, "max_acknowledged")
        web.send(json.dumps({"op": "ack", "id": "s", "ids": many}))
        assert json.loads(web.recv(20))["error"] == "limit"
        web.send(json.dumps({"op": "ack", "id": "s", "ids": list(range(first, first + 2_500))}))
        assert json.loads(web.recv(20))["acknowledged"] == 2_500


def test_requests_that_cost_more_than_events_have_a_rate(tmp_path: Path) -> None:
    limits = Limits(requests_per_second=10)
    with running(tmp_path, limits=limits) as broker, broker.client() as http:
        answers = [http.post("/conditions", json={"where": "a = 1"}) for _ in range(4)]
        assert answers[0].status_code == 200
        assert answers[-1].status_code == 429
        assert answers[-1].json()["limit"] == "requests_per_second"
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert http.get("/subscriptions").status_code == 429
        assert http.post("/events", json={}).status_code == 200
        with RawStomp(broker.stomp_port) as client:  # slowed down, not refused
            asked = {"id": "1", "destination": "/events"}
            assert client.call("SUBSCRIBE", asked).command == "RECEIPT"


def test_a_disk_that_is_nearly_full_stores_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.broker.quota._LOOK_EVERY", 0.01)
    with running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "d", "where": "d = 1", "durable": True})
        http.post("/events", json={"d": 1})
        broker.broker.disk.min_free = 1 << 62
        wait_for(lambda: broker.broker.disk.is_low)
        for path, body in (
            ("/events", {"d": 1}),
            ("/events", [{"d": 2}, {"d": 1}]),
            ("/events?key=k", {}),
            ("/events?retain=60", {}),
            ("/subscriptions", {"where": "TRUE"}),
        ):
            answer = http.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (507, "disk-full"), path
        assert http.post("/events", json={"d": 2}).status_code == 200  # nothing of it is stored
        assert http.get("/readyz").text == "the disk is nearly full\n"
        with http.stream("GET", "/subscriptions/d/stream") as stream:  # what is there goes out
            assert next(line for line in stream.iter_lines() if line.startswith("data"))
        broker.broker.disk.min_free = 1
        wait_for(lambda: not broker.broker.disk.is_low)
        assert http.post("/events", json={"d": 1}).status_code == 200
        assert http.get("/readyz").status_code == 200
        assert http.get("/subscriptions/d").json()["pending"] == 2


@pytest.mark.parametrize("overflow", ["drop-oldest", "refuse"])
def test_a_backlog_is_bounded_in_bytes(tmp_path: Path, overflow: str) -> None:
    event = {"a": 1, "x": "y" * 900}
    with running(tmp_path, max_backlog_bytes=50_000) as broker, broker.client() as http:
        wanted = {"id": "s", "where": "a = 1", "durable": True, "overflow": overflow}
        http.post("/subscriptions", json=wanted)
        answers = [http.post("/events", json=event) for _ in range(100)]
        found = http.get("/subscriptions/s").json()
        assert 30 < found["pending"] < 55
        if overflow == "refuse":
            assert answers[-1].json()["limit"] == "max_backlog"
        else:
            assert found["missed"] == 100 - found["pending"]
    with running(tmp_path, max_backlog_bytes=20_000) as broker, broker.client() as http:
        if overflow != "refuse":  # the sizes of what was stored before count
            http.post("/events", json=event)
            wait_for(lambda: http.get("/subscriptions/s").json()["pending"] < 22)


def test_a_token_has_only_so_many_bytes_in_backlogs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.broker.core._BOUND_EVERY", 0.1)
    one, other = (make(tmp_path, publish=("*",), subscribe=("*",)) for _ in range(2))
    limits = Limits(max_durable_bytes=60_000)
    with running(tmp_path, auth=True, limits=limits) as broker, broker.client() as http:
        for token, names in ((one, "ab"), (other, "c")):
            for name in names:
                wanted = {"id": name, "where": "a = 1", "durable": True}
                http.post("/subscriptions", json=wanted, headers=bearer(token))
        http.post("/events", json=[{"a": 1, "x": "y" * 900}] * 50, headers=bearer(one))

        def pending(name: str) -> int:
            return broker.broker.subscriptions.by_id[name].pending

        wait_for(lambda: pending("a") + pending("b") < 65)
        assert pending("a") + pending("b") > 40
        assert pending("c") == 50


def test_a_prefix_streams_the_subscriptions_that_begin_so(broker: Running) -> None:
    with broker.client() as http:
        for n in range(3):
            http.post("/subscriptions", json={"id": f"pre-{n}", "where": f"pre = {n}"})
        with http.stream("GET", "/stream?prefix=pre-") as stream:
            assert stream.status_code == 200
            http.post("/events", json=[{"pre": 2}, {"pre": 0}])
            from tests.broker.servers import read_messages

            found = [each["subscription"] for each in read_messages(stream, 2)]
            assert found == ["pre-2", "pre-0"]
