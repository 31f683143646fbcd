"""Tokens, rights, limits, TLS, settings."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker.servers import RawStomp, Running, read_messages, running, wait_for
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect as connect_websocket

import tocsin
from tocsin.broker.config import Config, Limits, load_config
from tocsin.broker.storage import open_folder
from tocsin.broker.tokens import Bucket, Rights, create, listing, revoke
from tocsin.errors import ArgumentError, LimitError

pytestmark = pytest.mark.slow


def make(data: Path, **rights: Any) -> str:
    with contextlib.closing(open_folder(data)) as connection:
        return create(connection, "test", Rights(**rights))


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_tokens_allow_what_their_rights_say(tmp_path: Path) -> None:
    publisher = make(tmp_path, publish=("Quote",))
    subscriber = make(tmp_path, subscribe=("Quote",))
    admin = make(tmp_path, publish=("*",), subscribe=("*",), admin=True)
    with running(tmp_path, auth=True) as broker, broker.client() as http:
        wanted = {"id": "s", "where": "TRUE", "type": "Quote", "durable": True}
        everything = {"id": "t", "where": "TRUE"}
        expected = [
            ("POST", "/events?type=Quote", {}, {publisher: 200, subscriber: 403, admin: 200}),
            ("POST", "/events?type=Other", {}, {publisher: 403, subscriber: 403, admin: 200}),
            ("POST", "/events", {}, {publisher: 403, subscriber: 403, admin: 200}),
            ("POST", "/subscriptions", wanted, {publisher: 403, subscriber: 201}),
            ("POST", "/subscriptions", everything, {subscriber: 403}),
            ("GET", "/subscriptions/s", None, {publisher: 404, subscriber: 200, admin: 200}),
            ("GET", "/stats", None, {publisher: 403, admin: 200}),
            ("GET", "/metrics", None, {subscriber: 403, admin: 200}),
            ("DELETE", "/subscriptions/s", None, {publisher: 404, subscriber: 204}),
        ]
        for method, path, body, statuses in expected:
            for token in ("", "tocsin_x.y", publisher[:-1], publisher + "x", "é"):
                shown = {b"authorization": b"Bearer " + token.encode()} if token else {}
                answer = http.request(method, path, json=body, headers=shown)
                assert answer.status_code == 401, (path, token)
            for token, status in statuses.items():
                answer = http.request(method, path, json=body, headers=bearer(token))
                assert answer.status_code == status, (path, answer.text)
        assert http.get("/healthz").status_code == 200


def test_stomp_and_websockets_ask_for_tokens_too(tmp_path: Path) -> None:
    token = make(tmp_path, publish=("A",), subscribe=("A",))
    with running(tmp_path, auth=True) as broker:
        with RawStomp(broker.stomp_port, connect=False) as client:
            client.send("CONNECT", {"accept-version": "1.2", "passcode": "wrong"})
            assert client.next().headers["code"] == "not-allowed"
        with RawStomp(broker.stomp_port, login="x", passcode=token) as client:
            assert client.call("SEND", {"destination": "/topic/A"}).command == "RECEIPT"
            refused = client.call("SUBSCRIBE", {"id": "1", "destination": "/events"})
            assert refused.headers["code"] == "not-allowed"
        url = broker.url.replace("http", "ws") + "/ws"
        with pytest.raises(WebSocketException), connect_websocket(url):
            pass
        asked = '{"op": "publish", "type": "A", "event": {"a": 1}}'
        names = ["tocsin", f"bearer.{token}"]
        for more in ({"additional_headers": bearer(token)}, {"subprotocols": names}):
            with connect_websocket(url, **more) as socket_:
                socket_.send(asked)
                assert '"ok":"publish"' in str(socket_.recv(20))
        with tocsin.connect(broker.url, token) as client_:
            assert client_.publish({"a": 1}, type="A").accepted == 1


def test_connections_of_a_revoked_token_are_closed(tmp_path: Path) -> None:
    kept, token = (make(tmp_path, subscribe=("*",), publish=("*",)) for _ in range(2))
    with (
        running(tmp_path, auth=True) as broker,
        broker.client(headers=bearer(token)) as http,
        RawStomp(broker.stomp_port, passcode=kept) as other,
        RawStomp(broker.stomp_port, passcode=token) as stomp,
        connect_websocket(
            broker.url.replace("http", "ws") + "/ws", additional_headers=bearer(token)
        ) as ws,
        broker.client(headers=bearer(kept)) as keeper,
    ):
        http.post("/subscriptions", json={"id": "s", "where": "a = 1"})
        keeper.post("/subscriptions", json={"id": "k", "where": "a = 1"})
        other.call("SUBSCRIBE", {"id": "1", "destination": "/events"})
        with (
            http.stream("GET", "/subscriptions/s/stream") as stream,
            keeper.stream("GET", "/subscriptions/k/stream") as staying,
        ):
            with contextlib.closing(open_folder(tmp_path)) as opened:
                id = token.removeprefix("tocsin_").partition(".")[0]
                assert revoke(opened, id)
            assert "revoked" in "".join(stream.iter_lines())
            assert stomp.next().headers["code"] == "not-allowed"
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv(timeout=20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.reason == "revoked"
            keeper.post("/events", json={"a": 1})
            assert read_messages(staying, 1)[0]["event"] == {"a": 1}
            assert other.next().command == "MESSAGE"


def test_a_revoked_reader_that_does_not_read_is_closed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.broker.sessions._GRACE", 0.1)
    kept, token = make(tmp_path, publish=("*",)), make(tmp_path, subscribe=("*",))
    with running(tmp_path, auth=True) as broker, broker.client(headers=bearer(kept)) as http:
        http.post("/subscriptions", json={"id": "s", "where": "a = 1"}, headers=bearer(token))
        with socket.create_connection(("127.0.0.1", int(broker.url.rpartition(":")[2]))) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
            deaf.sendall(b"GET /subscriptions/s/stream HTTP/1.1\r\n" + head)
            wait_for(lambda: broker.broker.subscriptions.by_id["s"].listeners)
            for _ in range(20):
                http.post("/events", json=[{"a": 1, "x": "y" * 900}] * 500)
            with contextlib.closing(open_folder(tmp_path)) as opened:
                assert revoke(opened, token.removeprefix("tocsin_").partition(".")[0])
            wait_for(lambda: not broker.broker.connections.streams)
            wait_for(lambda: not broker.broker.subscriptions.by_id["s"].listeners)


def test_tokens_are_stored_hashed_and_revoked_while_the_broker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.broker.tokens._FRESH", 0.0)
    token = make(tmp_path, admin=True)
    with running(tmp_path, auth=True) as broker, broker.client(headers=bearer(token)) as http:
        assert http.get("/stats").status_code == 200
        with contextlib.closing(open_folder(tmp_path)) as connection:
            (found,) = listing(connection)
            assert revoke(connection, found["id"])
            assert not revoke(connection, found["id"])
        assert http.get("/stats").status_code == 401
    secret = token.partition(".")[2].encode()
    assert not any(secret in file.read_bytes() for file in tmp_path.iterdir())


def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(open_folder(tmp_path)) as connection:
        token = create(connection, "old", Rights(admin=True), time.time_ns() // 1000 - 1)
    with running(tmp_path, auth=True) as broker, broker.client(headers=bearer(token)) as http:
        assert http.get("/stats").status_code == 401


def test_limits_are_kept(tmp_path: Path) -> None:
    limits = Limits(
        max_body=2000, max_events=5, max_subscriptions=3, max_conjunctions=4, max_transaction=2,
        max_match_share=0.5,
    )  # fmt: skip
    with running(tmp_path, limits=limits) as broker, broker.client() as http:

        def refused(path: str, body: Any) -> tuple[int, str]:
            answer = http.post(path, json=body)
            return answer.status_code, answer.json().get("limit")

        assert refused("/events", [{}] * 6) == (413, "max_events")
        assert refused("/events", {"a": "x" * 3000}) == (413, "max_body")

        def stream() -> Any:
            for _ in range(100):
                yield b"x" * 100

        assert http.post("/events", content=stream()).status_code == 413
        branches = " OR ".join(f"a{n} = {n}" for n in range(6))
        assert refused("/subscriptions", {"where": branches}) == (429, "max_conjunctions")
        for n in range(30):
            http.post("/events", json=[{"a": 1}, {"a": 2}, {"a": 3}, {"a": n}])
        assert refused("/subscriptions", {"where": "a > 0"}) == (429, "max_match_share")
        for n in range(3):
            assert http.post("/subscriptions", json={"where": f"a = {n}"}).status_code == 201
        assert refused("/subscriptions", {"where": "a = 9"}) == (429, "max_subscriptions")
        with RawStomp(broker.stomp_port) as client:
            client.call("BEGIN", {"transaction": "t"})
            sent = {"destination": "/events", "transaction": "t"}
            answers = [client.call("SEND", sent).command for _ in range(3)]
            assert answers == ["RECEIPT", "RECEIPT", "ERROR"]


def test_a_publisher_that_is_too_fast_is_told_or_slowed_down(tmp_path: Path) -> None:
    limits = Limits(events_per_second=20)
    with running(tmp_path, limits=limits) as broker, broker.client() as http:
        answers = [http.post("/events", json=[{}] * 15) for _ in range(3)]
        assert answers[-1].status_code == 429
        assert int(answers[-1].headers["retry-after"]) >= 1
        with RawStomp(broker.stomp_port) as client:
            for _ in range(3):
                assert client.call("SEND", {"destination": "/events"}).command == "RECEIPT"


def test_a_transaction_counts_as_what_it_sends(tmp_path: Path) -> None:
    limits = Limits(events_per_second=2)
    with running(tmp_path, limits=limits) as broker, broker.client() as http:
        with RawStomp(broker.stomp_port) as client:
            client.send("BEGIN", {"transaction": "t"})
            for _ in range(200):
                client.send("SEND", {"destination": "/events", "transaction": "t"})
            assert client.call("COMMIT", {"transaction": "t"}).command == "RECEIPT"
        assert http.post("/events", json={}).status_code == 429


def test_open_transactions_hold_no_more_bytes_than_they_may(tmp_path: Path) -> None:
    limits = Limits(max_transaction_bytes=20_000)
    sent = {"destination": "/events", "transaction": "t"}
    with running(tmp_path, limits=limits) as broker:
        with RawStomp(broker.stomp_port) as greedy, RawStomp(broker.stomp_port) as other:
            for client in (greedy, other):
                for end in ("ABORT", "COMMIT"):  # what has ended counts no more
                    client.call("BEGIN", {"transaction": "t"})
                    assert client.call("SEND", sent, b"x" * 15_000).command == "RECEIPT"
                    assert client.call(end, {"transaction": "t"}).command == "RECEIPT"
                client.call("BEGIN", {"transaction": "t"})
                client.call("SEND", sent, b"x" * 10_000)
                client.call("BEGIN", {"transaction": "u"})
            error = greedy.call("SEND", {**sent, "transaction": "u"}, b"x" * 10_000)
            assert (error.command, error.headers["code"]) == ("ERROR", "limit")
            assert "max_transaction_bytes" in error.headers["message"]
            with pytest.raises(EOFError):
                greedy.next()
            assert other.call("SEND", sent, b"x" * 5_000).command == "RECEIPT"
            assert other.call("COMMIT", {"transaction": "t"}).command == "RECEIPT"
        with RawStomp(broker.stomp_port) as client:  # headers count as bodies do
            client.call("BEGIN", {"transaction": "t"})
            error = client.call("SEND", sent | {f"h{n}": "x" * 110 for n in range(120)})
            assert error.command == "ERROR"


def test_a_websocket_publishes_no_more_at_once_than_a_request_may(tmp_path: Path) -> None:
    with (
        running(tmp_path, limits=Limits(max_events=5)) as broker,
        connect_websocket(broker.url.replace("http", "ws") + "/ws") as web,
    ):
        web.send(json.dumps({"op": "publish", "events": [{}] * 6}))
        assert "too many events" in json.loads(web.recv(20))["detail"]
        web.send(json.dumps({"op": "publish", "events": [{}] * 5}))
        assert json.loads(web.recv(20))["ok"] == "publish"


def test_a_bucket_refills() -> None:
    bucket = Bucket(1000)
    bucket.take(1010)
    with pytest.raises(LimitError) as found:
        bucket.take(1)
    assert found.value.retry_after is not None
    time.sleep(0.02)
    bucket.take(1)


def test_connections_that_send_nothing_or_half_a_head_are_closed(tmp_path: Path) -> None:
    limits = Limits(connect_seconds=0.3, request_seconds=0.3, max_header_bytes=1000)
    with running(tmp_path, limits=limits) as broker:
        http = int(broker.url.rpartition(":")[2])
        for port, sent in (
            (http, b""),
            (http, b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"),
            (http, b"POST /events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\n{"),
            (http, b"GET / HTTP/1.1\r\n" + b"a: " + b"x" * 100_000),
            (broker.stomp_port, b""),
            (broker.stomp_port, b"CONNECT\naccept-version:1.2\n\n\0SEND\nx:"),
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
                client.sendall(sent)
                with contextlib.suppress(ConnectionError):
                    while client.recv(1000):
                        pass
        wait_for(lambda: broker.broker.connections.n == 0)
        with broker.client() as client_:
            assert client_.get("/healthz").status_code == 200


@pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="makes a certificate with openssl, which is not installed",
)
def test_everything_speaks_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
               "-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost",
               "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(cafile=str(cert))
    with running(tmp_path / "data", tls_cert=str(cert), tls_key=str(key)) as broker:
        with tocsin.connect(broker.url, verify=context) as client:
            assert client.publish({"a": 1}).accepted == 1
        with (
            socket.create_connection(("127.0.0.1", broker.stomp_port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
            assert secure.recv(1000).startswith(b"CONNECTED")
        with pytest.raises(httpx.HTTPError):
            httpx.get(broker.url.replace("https", "http") + "/healthz")


def test_the_world_is_listened_to_with_tokens_and_tls_only() -> None:
    Config(http="127.0.0.1:1", stomp="[::1]:2").check_safety()
    for auth in (False, None, True):
        with pytest.raises(ArgumentError):
            Config(http="0.0.0.0:1", auth=auth).check_safety()
    Config(http="0.0.0.0:1", tls_cert="c", tls_key="k").check_safety()
    Config(http="0.0.0.0:1", insecure=True).check_safety()
    assert Config(http="0.0.0.0:1").needs_tokens
    assert not Config().needs_tokens


def test_settings_come_from_a_file_the_environment_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "tocsin.toml"
    file.write_text(
        'http = "127.0.0.1:1"\nwindow = 5\nlog = "debug"\n'
        "[limits]\nmax_events = 7\nmax_body = 8\n[types.Quote]\nfirm = 'string'\n"
    )
    environment = {
        "TOCSIN_BROKER_WINDOW": "6",
        "TOCSIN_BROKER_LIMITS_MAX_BODY": "9",
        "TOCSIN_TOKEN": "x",
    }
    found = load_config(file, environment, {"log": "error", "stomp": None})
    assert (found.http, found.window, found.log) == ("127.0.0.1:1", 6, "error")
    assert (found.limits.max_events, found.limits.max_body) == (7, 9)
    assert found.types["Quote"].kind_of("firm") is tocsin.Kind.STRING


@pytest.mark.parametrize(
    "text",
    [
        "windw = 5", "window = 'x'", "window = -1", "window = 1.5", "http = 5", "http = 'x'",
        "[limits]\nmax = 1", "[types]\nQuote = 1", "[types.Q]\na = 'colour'", "auth = 5",
        "slow_consumer = 'cry'", "tls_cert = 'x'", "webhook_allow = ['x']", "not toml",
    ],
)  # fmt: skip
def test_a_wrong_setting_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tocsin.toml"
    file.write_text(text)
    with pytest.raises(ArgumentError):
        load_config(file, {}, {})


def test_variables_of_others_do_not_stop_a_broker() -> None:
    platform = {
        f"{service}_{name}": value
        for service in ("TOCSIN", "TOCSIN_BROKER", "TOCSIN_BROKER_HTTP")
        for name, value in {
            "SERVICE_HOST": "10.0.0.1",
            "SERVICE_PORT": "8080",
            "SERVICE_PORT_HTTP": "8080",
            "PORT": "tcp://10.0.0.1:8080",
            "PORT_8080_TCP": "tcp://10.0.0.1:8080",
            "PORT_8080_TCP_PROTO": "tcp",
            "PORT_8080_TCP_ADDR": "10.0.0.1",
        }.items()
    }
    ours = {"TOCSIN_CACHE": "/var/cache", "TOCSIN_URL": "http://x", "TOCSIN_TOKEN": "x"}
    warnings: list[str] = []
    assert load_config(None, {**platform, **ours}, {}, warnings.append) == Config()
    assert warnings == []


def test_settings_under_their_old_names_are_taken_with_a_warning() -> None:
    warnings: list[str] = []
    environment = {
        "TOCSIN_WINDOW": "6",
        "TOCSIN_LIMITS_MAX_BODY": "9",
        "TOCSIN_TLS_CERT": "c",
        "TOCSIN_TLS_KEY": "k",
        "TOCSIN_LOG": "debug",
        "TOCSIN_BROKER_LOG": "error",
        "TOCSIN_BATCH_EVENTS": "tcp://10.0.0.1",
        "TOCSIN_WINDO": "7",
    }
    found = load_config(None, environment, {}, warnings.append)
    assert (found.window, found.limits.max_body, found.log) == (6, 9, "error")
    assert (found.tls_cert, found.tls_key) == ("c", "k")
    assert found.batch_events == Config().batch_events
    said = "\n".join(warnings)
    for text in (
        "TOCSIN_WINDOW is the old name of a setting: call it TOCSIN_BROKER_WINDOW",
        "TOCSIN_BATCH_EVENTS is not taken as a setting",
        "TOCSIN_WINDO is no setting",
    ):
        assert text in said
    assert len(warnings) == 6


def test_a_misspelt_setting_of_the_environment_is_an_error() -> None:
    for name in ("TOCSIN_BROKER_WINDO", "TOCSIN_BROKER_LIMITS_MAX", "TOCSIN_BROKER_TYPES"):
        with pytest.raises(ArgumentError, match="there is no setting"):
            load_config(None, {name: "5"}, {})
    with pytest.raises(ArgumentError, match="does not fit"):
        load_config(None, {"TOCSIN_BROKER_WINDOW": "five"}, {})


def test_two_brokers_do_not_share_a_folder(broker: Running) -> None:
    from tocsin.errors import StoreError

    with pytest.raises(StoreError), running(broker.config.data):
        pass


def test_a_token_has_few_conditions_that_no_index_helps(tmp_path: Path) -> None:
    unindexed = [{"id": f"u{n}", "where": f"a < b + {n}"} for n in range(3)]
    with running(tmp_path, limits=Limits(max_unindexed=2)) as broker, broker.client() as http:

        def answer(id: str, where: str, **more: Any) -> tuple[int, str | None]:
            body = {"id": id, "where": where, "durable": True, **more}
            sent = http.post("/subscriptions", json=body)
            return sent.status_code, sent.json().get("limit")

        refused = (429, "max_unindexed")
        assert http.post("/subscriptions", json=unindexed).status_code == 429
        assert answer("one", "a < b") == (201, None)
        assert answer("two", "a < b - :n", params={"n": 1}) == (201, None)
        assert answer("three", "regexp_matches(s, 'x')") == refused
        assert answer("three", "a < b AND c = 1") == (201, None)
        changed = http.patch("/subscriptions/three", json={"where": "a < b"})
        assert changed.json()["limit"] == "max_unindexed"
    with running(tmp_path, limits=Limits(max_unindexed=2)) as broker, broker.client() as http:
        changed = http.patch("/subscriptions/three", json={"where": "a < b"})
        assert changed.json()["limit"] == "max_unindexed"
        assert http.patch("/subscriptions/one", json={"where": "a < c"}).status_code == 200
        assert http.delete("/subscriptions/one").status_code in (200, 204)
        assert http.patch("/subscriptions/three", json={"where": "a < b"}).status_code == 200
