"""Slow consumers, windows, backlogs, WebSockets, webhooks, storage."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker.hooks import hooked
from tests.broker.servers import RawStomp, Running, read_messages, running, wait_for
from websockets.sync.client import connect as connect_websocket

from tocsin.broker import schema
from tocsin.broker.addresses import check_address
from tocsin.broker.durable import Consumer
from tocsin.broker.sessions import StreamSession
from tocsin.broker.storage import Storage
from tocsin.errors import ArgumentError, StoreError, UnavailableError

pytestmark = pytest.mark.slow


def test_a_slow_transient_subscriber_loses_the_oldest_and_is_told(tmp_path: Path) -> None:
    with running(tmp_path, outbox_messages=10) as broker, broker.client() as http:
        with RawStomp(broker.stomp_port) as slow, RawStomp(broker.stomp_port) as quick:
            for client in (slow, quick):
                client.call("SUBSCRIBE", {"id": "1", "destination": "/topic/Slow"})
            body = {"pad": "x" * 150_000}
            for n in range(100):  # nobody reads: the kernel's buffers fill, then the outbox
                http.post("/events?type=Slow", json={**body, "n": n})
                assert json.loads(quick.next().body)["n"] == n
            assert broker.broker.metrics.dropped > 0
            got: list[int] = []
            missed = 0
            while not got or got[-1] < 100:
                frame = slow.next()
                got.append(json.loads(frame.body)["n"])
                missed = int(frame.headers.get("missed", 0))
                if got[-1] >= 99:
                    http.post("/events?type=Slow", json={**body, "n": got[-1] + 1})
        assert got == sorted(got)
        assert missed == broker.broker.metrics.dropped
        assert len(got) + missed == got[-1] + 1


def test_a_slow_stream_gets_what_it_does_not_lose_in_order(tmp_path: Path) -> None:
    with running(tmp_path, outbox_messages=10) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "s", "where": "n >= 0"})
        found = broker.broker.subscriptions.by_id["s"]
        with socket.create_connection(("127.0.0.1", broker.server.http_port), 20) as reader:
            reader.sendall(b"GET /subscriptions/s/stream HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            wait_for(lambda: found.listeners)
            n = 0
            while not broker.broker.metrics.dropped:  # nobody reads
                http.post("/events", json={"pad": "x" * 150_000, "n": n})
                n += 1
            raw = b""
            while raw.count(b'"n":') < n - broker.broker.metrics.dropped:
                raw += reader.recv(1 << 20)
            http.post("/events", json={"n": n})  # what was paused goes on
            while b'"n":%d}' % n not in raw:
                raw += reader.recv(1 << 20)
        body, text = raw.partition(b"\r\n\r\n")[2], b""
        while body:
            length, _, rest = body.partition(b"\r\n")
            text, body = text + rest[: int(length, 16)], rest[int(length, 16) + 2 :]
        got = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: {")]
        numbers = [each["event"]["n"] for each in got]
        assert numbers == sorted(numbers)
        assert got[-1]["missed"] == broker.broker.metrics.dropped == n + 1 - len(numbers)


def test_a_slow_transient_subscriber_is_closed_where_that_is_the_policy(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"outbox_messages": 10, "slow_consumer": "disconnect"}
    with (
        running(tmp_path, **settings) as broker,
        broker.client() as http,
        RawStomp(broker.stomp_port) as slow,
    ):
        slow.call("SUBSCRIBE", {"id": "1", "destination": "/topic/Slow"})
        for _ in range(100):
            http.post("/events?type=Slow", json={"pad": "x" * 150_000})
            if not broker.server._stomp.connections:
                break
        wait_for(lambda: not broker.broker.subscriptions.by_id)


def test_a_durable_subscriber_gets_no_more_than_its_window_at_once(
    broker: Running, http: httpx.Client
) -> None:
    wanted = {"id": "window", "where": "w1 = 1", "durable": True, "window": 3}
    assert http.post("/subscriptions", json=wanted).status_code == 201
    http.post("/events", json=[{"w1": 1, "n": n} for n in range(10)])
    with RawStomp(broker.stomp_port) as client:
        headers = {"id": "1", "destination": "/events", "selector": "w1 = 1", "ack": "client"}
        client.call("SUBSCRIBE", {**headers, "durable-subscription-name": "window"})
        for first in (0, 3, 6):
            frames = [client.next() for _ in range(3)]
            assert [json.loads(f.body)["n"] for f in frames] == [first, first + 1, first + 2]
            assert not client.frames
            client.call("ACK", {"id": frames[-1].headers["ack"]})
        assert json.loads(client.next().body)["n"] == 9


def test_a_backlog_is_bounded_and_says_what_it_lost(tmp_path: Path) -> None:
    with running(tmp_path, max_backlog=5) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "b", "where": "n >= 0", "durable": True})
        refusing = {"id": "r", "where": "n < 0", "durable": True, "overflow": "refuse"}
        http.post("/subscriptions", json=refusing)
        for n in range(8):
            http.post("/events", json={"n": n})
        with http.stream("GET", "/subscriptions/b/stream") as stream:
            found = read_messages(stream, 5)
        assert [each["event"]["n"] for each in found] == [3, 4, 5, 6, 7]
        assert found[0]["missed"] == 3
        assert http.get("/subscriptions/b").json()["missed"] == 3
        for _ in range(5):
            assert http.post("/events", json={"n": -1}).status_code == 200
        refused = http.post("/events", json=[{"n": 100}, {"n": -1}])
        assert refused.status_code == 429
        assert refused.json()["limit"] == "max_backlog"
        assert http.get("/subscriptions/b").json()["matched"] == 8  # nothing of it was published
        http.post("/subscriptions/r/ack", json={"upto": 1 << 60})
        assert http.post("/events", json={"n": -1}).status_code == 200


def test_a_websocket_publishes_subscribes_and_listens(broker: Running, http: httpx.Client) -> None:
    http.post("/subscriptions", json={"id": "ws", "where": "ws = 2", "durable": True})
    http.post("/events", json={"ws": 2})
    with connect_websocket(broker.url.replace("http", "ws") + "/ws") as web:

        def call(**asked: Any) -> Any:
            web.send(json.dumps({**asked, "ref": 7}))
            while (answer := json.loads(web.recv(20))).get("ref") != 7:
                notes.append(answer)
            return answer

        notes: list[Any] = []
        assert call(op="subscribe", id="own", where="ws = 1")["ok"] == "subscribe"
        assert call(op="listen", id="ws")["ok"] == "listen"
        assert call(op="publish", events=[{"ws": 1}, {"ws": 2}])["matches"] == 2
        while len(notes) < 3:
            notes.append(json.loads(web.recv(20)))
        assert sorted(note["subscription"] for note in notes) == ["own", "ws", "ws"]
        last = max(note["id"] for note in notes)
        assert call(op="ack", id="ws", upto=last)["acknowledged"] == 2
        assert call(op="publish", event=5)["error"] == "event"
        assert call(op="fly")["error"] == "argument"
        web.send("{")
        assert json.loads(web.recv(20))["error"] == "event"
        assert call(op="unsubscribe", id="own")["id"] == "own"
    assert http.get("/subscriptions/own").status_code == 404
    assert http.get("/subscriptions/ws").json()["pending"] == 0


def test_what_comes_while_a_stream_writes_is_not_acknowledged_with_it(broker: Running) -> None:
    with broker.client() as http:
        http.post("/subscriptions", json={"id": "au", "where": "au = 1", "durable": True})
        first = http.post("/events", json=[{"au": 1}, {"au": 1}]).json()["first"]
        found = broker.broker.subscriptions.by_id["au"]
        session = StreamSession(100, 1 << 20, as_sse=True)

        async def listen() -> Consumer:
            consumer = Consumer(broker.broker, found, session, lambda: None, window=10, auto=True)
            consumer.attach()
            return consumer

        async def take(consumer: Consumer) -> list[bytes]:
            messages = await session.take(20)
            consumer.taken()
            return messages

        async def written(consumer: Consumer) -> None:
            consumer.written()
            consumer.detach()

        consumer = broker.call(listen())
        wait_for(lambda: len(session.outbox) == 2)
        assert len(broker.call(take(consumer))) == 2
        http.post("/events", json={"au": 1})
        wait_for(lambda: len(session.outbox) == 1)  # it waits while the others are written
        broker.call(written(consumer))
        assert http.get("/subscriptions/au").json()["pending"] == 1
        assert http.post("/subscriptions/au/ack", json={"ids": [first + 2]}).json() == {
            "acknowledged": 1
        }


def test_what_a_reader_that_went_away_never_got_is_kept(tmp_path: Path) -> None:
    with running(tmp_path, window=1000, outbox_bytes=1 << 28) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "a", "where": "TRUE", "durable": True})
        found = broker.broker.subscriptions.by_id["a"]
        with socket.create_connection(("127.0.0.1", broker.server.http_port)) as reader:
            head = "GET /subscriptions/a/stream?ack=auto HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
            reader.sendall(head.encode())
            wait_for(lambda: found.consumer)
            for n in range(80):  # more than the kernel's buffers take
                http.post("/events", json={"pad": "x" * 250_000, "n": n})
        wait_for(lambda: found.consumer is None)
        assert http.get("/subscriptions/a").json()["pending"] > 0


@pytest.mark.parametrize(
    "more",
    [{"durable": True}, {"webhook": {"url": "http://1.1.1.1/"}}, {"sink": "http://1.1.1.1/"}],
)
def test_a_websocket_makes_no_durable_subscription(broker: Running, more: dict[str, Any]) -> None:
    with connect_websocket(broker.url.replace("http", "ws") + "/ws") as web:
        where = {"types": ["t"]} if "sink" in more else {"where": "wd = 1"}
        web.send(json.dumps({"op": "subscribe", "id": "wd", **where, **more}))
        answer = json.loads(web.recv(20))
    assert answer["error"] == "argument"
    assert "POST /subscriptions" in answer["detail"]
    assert "wd" not in broker.broker.subscriptions.by_id


def test_what_belongs_to_no_subscription_goes_to_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "old", "where": "s = 1", "durable": True})
        http.post("/events", json=[{"s": 1}, {"s": 1}])
    with sqlite3.connect(tmp_path / "broker.db") as connection:
        connection.execute("DELETE FROM subscriptions")
        connection.execute(
            "INSERT INTO dead (no, seq, reason, at, kind) "
            "SELECT no, seq, '', 0, kind FROM notifications LIMIT 1"
        )
        connection.execute("DELETE FROM notifications WHERE seq IN (SELECT seq FROM dead)")
    with running(tmp_path) as broker, broker.client() as http:
        http.post("/subscriptions", json={"id": "new", "where": "s = 2", "durable": True})
        assert http.get("/subscriptions/new/dead").json() == {"dead": []}
        http.post("/events", json={"s": 2})
        with http.stream("GET", "/subscriptions/new/stream") as stream:
            (first,) = read_messages(stream, 1)
        assert first["event"] == {"s": 2}
        with sqlite3.connect(tmp_path / "broker.db") as connection:
            assert connection.execute("SELECT count(*) FROM events").fetchone()[0] == 1


def test_a_webhook_gets_every_notification_again_until_it_takes_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "webhook_allow": ("127.0.0.0/8", "::1/128"), "webhook_attempts": 3,
        "webhook_back_off": 0.01,
    }  # fmt: skip
    with hooked() as hook, running(tmp_path, **settings) as broker, broker.client() as http:
        hook.answers = [500, 204, 500, 500, 500, 204]
        target = {"url": hook.url, "secret": "s3"}
        made = http.post("/subscriptions", json={"id": "hook", "where": "h = 1", "webhook": target})
        assert made.json()["durable"]
        assert "s3" not in made.text
        http.post("/events?type=Quote", json=[{"h": 1, "n": n} for n in range(3)])
        wait_for(lambda: http.get("/subscriptions/hook").json()["pending"] == 0)
        assert [json.loads(body)["n"] for _, body in hook.got] == [0, 0, 1, 1, 1, 2]
        assert ["tocsin-redelivered" in headers for headers, _ in hook.got][:2] == [False, True]
        headers, body = hook.got[0]
        assert headers["ce-type"] == "Quote"
        signed = f"{headers['tocsin-id']}.".encode() + body
        mac = hmac.new(b"s3", signed, hashlib.sha256).hexdigest()
        assert headers["tocsin-signature"] == f"sha256={mac}"
        (letter,) = http.get("/subscriptions/hook/dead").json()["dead"]
        assert (letter["event"]["n"], letter["reason"]) == (1, "status 500")
        assert http.post("/subscriptions/hook/revive").json() == {"revived": 1}
        wait_for(lambda: len(hook.got) == 7)
        assert json.loads(hook.got[-1][1])["n"] == 1


def test_a_webhook_is_told_of_transitions_also_of_those_that_were_dead(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"webhook_allow": ("127.0.0.0/8", "::1/128"), "webhook_attempts": 1}
    with hooked() as hook, running(tmp_path, **settings) as broker, broker.client() as http:
        hook.answers = [204, 500]
        wanted = {"id": "w", "where": "x = 1", "webhook": {"url": hook.url}, "notify": "both"}
        assert http.post("/subscriptions", json=wanted).status_code == 201
        http.post("/events?key=lorry é", json={"x": 1})
        http.delete("/publications/lorry é")
        wait_for(lambda: len(http.get("/subscriptions/w/dead").json()["dead"]) == 1)
        (letter,) = http.get("/subscriptions/w/dead").json()["dead"]
        assert (letter["kind"], letter["key"]) == ("LEAVE", "lorry é")
        http.post("/subscriptions/w/revive")
        wait_for(lambda: len(hook.got) == 3)
    told = [headers["tocsin-transition"] for headers, _ in hook.got]
    assert told == ["ENTER", "LEAVE", "LEAVE"]
    assert [headers["tocsin-key"] for headers, _ in hook.got] == ["lorry %C3%A9"] * 3
    assert hook.got[-1][0]["tocsin-gone"] == "retracted"


def test_a_name_that_leads_inside_is_not_called(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"webhook_attempts": 1}
    with hooked() as hook, running(tmp_path, **settings) as broker, broker.client() as http:
        outside = hook.url.replace("localhost", "localhost.")  # resolves to loopback
        wanted = {"id": "in", "where": "TRUE", "webhook": {"url": outside}}
        assert http.post("/subscriptions", json=wanted).status_code == 201
        http.post("/events", json={"a": 1})
        wait_for(lambda: broker.broker.metrics.dead == 1)
        assert not hook.got


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1%eth0",
     "::ffff:127.0.0.1", "fc00::1", "224.0.0.1", "100.64.0.1", "2002:7f00:1::"],
)  # fmt: skip
def test_webhooks_reach_public_addresses_only(address: str) -> None:
    with pytest.raises(ArgumentError, match="may not reach"):
        check_address(address, ())
    check_address("1.1.1.1", ())
    check_address("10.1.2.3", ("10.0.0.0/8",))


def test_a_change_that_fails_fails_alone(tmp_path: Path) -> None:
    def good(connection: sqlite3.Connection) -> int:
        return connection.execute("UPDATE meta SET value = value WHERE name='reserved'").rowcount

    def bad(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO nowhere VALUES (1)")

    async def use() -> list[Any]:
        storage = Storage(tmp_path)
        storage.start()
        storage.submit(schema.reserve, 5)
        changes = [storage.submit(change) for change in (good, bad, good)]
        found = await asyncio.gather(*changes, return_exceptions=True)
        with pytest.raises(StoreError, match="another broker"):
            Storage(tmp_path)
        storage.close()
        return list(found)

    first, error, last = asyncio.run(use())
    assert (first, last) == (1, 1)
    assert isinstance(error, UnavailableError)


def test_an_event_is_kept_as_long_as_somebody_needs_it(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        for id in ("k1", "k2"):
            http.post("/subscriptions", json={"id": id, "where": "k = 1", "durable": True})

        def stored() -> Any:
            with sqlite3.connect(tmp_path / "broker.db") as connection:
                return connection.execute("SELECT count(*) FROM events").fetchone()[0]

        seq = http.post("/events", json={"k": 1}).json()["last"]
        http.post("/events", json={"k": 2})
        assert stored() == 1
        http.post("/subscriptions/k1/ack", json={"ids": [seq, 999]})
        assert stored() == 1
        http.delete("/subscriptions/k2")
        assert stored() == 0


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "broker.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer version"):
        Storage(tmp_path)
