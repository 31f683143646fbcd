"""Dead letters, redelivery, and readers whose disk fails for a moment."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker.formats import to_second_format
from tests.broker.hooks import hooked
from tests.broker.servers import RawStomp, Running, read_messages, running, wait_for
from websockets.sync.client import connect as connect_websocket

import tocsin


def subscribe(http: httpx.Client, id: str, **more: Any) -> str:
    """Make a durable subscription to the events that name it; return its path."""
    wanted = {"id": id, "where": f"to = '{id}'", "durable": True, **more}
    assert http.post("/subscriptions", json=wanted).status_code == 201
    return f"/subscriptions/{id}"


def publish(http: httpx.Client, id: str, n: int) -> list[int]:
    """Publish n events for a subscription; return their numbers."""
    found = http.post("/events", json=[{"to": id, "n": at} for at in range(n)]).json()
    return list(range(found["first"], found["last"] + 1))


def listen(client: RawStomp, id: str, ack: str = "client-individual", **more: str) -> None:
    where = {"id": "1", "destination": "/events", "selector": f"to = '{id}'"}
    named = {name.replace("_", "-"): value for name, value in more.items()}
    frame = {**where, "durable-subscription-name": id, "ack": ack, **named}
    assert client.call("SUBSCRIBE", frame).command == "RECEIPT"


# What is revived.


def bury_first(broker: Running, http: httpx.Client, id: str) -> tuple[int, int]:
    """Have two notifications, the first a dead letter, the second acknowledged."""
    first, second = publish(http, id, 2)
    with RawStomp(broker.stomp_port) as client:
        listen(client, id)
        frames = [client.next() for _ in range(2)]
        client.call("NACK", {"id": frames[0].headers["ack"]})
        client.call("ACK", {"id": frames[1].headers["ack"]})
    return first, second


@pytest.mark.parametrize("way", ["last-event-id", "upto", "cumulative"])
def test_a_revived_letter_is_not_covered_by_what_was_acknowledged_before(
    broker: Running, http: httpx.Client, way: str
) -> None:
    path = subscribe(http, f"revived-{way}")
    id = path.rpartition("/")[2]
    _, second = bury_first(broker, http, id)
    assert http.post(path + "/revive").json() == {"revived": 1}
    if way == "upto":
        assert http.post(path + "/ack", json={"upto": second}).json() == {"acknowledged": 0}
    if way == "cumulative":
        with RawStomp(broker.stomp_port) as client:
            listen(client, id, "client")
            no = broker.broker.subscriptions.by_id[id].no
            assert json.loads(client.next().body)["n"] == 0
            client.call("ACK", {"id": f"{no}-{second}"})
    else:
        last = {"last-event-id": str(second)} if way == "last-event-id" else {}
        with http.stream("GET", path + "/stream", headers=last) as stream:
            (note,) = read_messages(stream, 1)
        assert (note["event"]["n"], note["redelivered"]) == (0, True)
        assert note["id"] > second
    assert http.get(path).json()["pending"] == 1


def test_letters_are_revived_and_purged_one_by_one_or_all(
    broker: Running, http: httpx.Client
) -> None:
    path = subscribe(http, "rd-singly")
    seqs = publish(http, "rd-singly", 5)
    assert http.post(path + "/nack", json={"ids": seqs, "reason": "no"}).json() == {"refused": 5}
    assert http.get(path).json()["dead"] == 5
    assert http.post(path + "/revive", json={"ids": [seqs[1], 999]}).json() == {"revived": 1}
    assert http.delete(path + "/dead", params={"id": [seqs[0]]}).json() == {"purged": 1}
    left = http.get(path + "/dead").json()["dead"]
    assert [(each["event"]["n"], each["reason"]) for each in left] == [(n, "no") for n in (2, 3, 4)]
    assert http.delete(path + "/dead").json() == {"purged": 3}
    shown = http.get(path).json()
    assert (shown["dead"], shown["dead_bytes"], shown["pending"]) == (0, 0, 1)
    assert http.post(path + "/revive", content=b"[]").status_code == 400


# Bounds.


def test_dead_letters_are_bounded_by_number_and_by_bytes(tmp_path: Path) -> None:
    with running(tmp_path, max_dead=10, max_dead_bytes=2_000) as broker, broker.client() as http:
        many, large = subscribe(http, "many"), subscribe(http, "large")
        for _ in range(3):
            seqs = publish(http, "many", 9)
            http.post(many + "/nack", json={"ids": seqs})
        wait_for(lambda: http.get(many).json()["dead"] == 10)
        kept = http.get(many + "/dead").json()["dead"]
        assert [each["id"] for each in kept][-9:] == seqs
        for n in range(4):
            event = {"to": "large", "n": n, "pad": "x" * 900}
            (seq,) = {http.post("/events", json=event).json()["first"]}
            http.post(large + "/nack", json={"ids": [seq]})
        wait_for(lambda: http.get(large).json()["dead_bytes"] <= 2_000)
        kept = http.get(large + "/dead").json()["dead"]
        assert [each["event"]["n"] for each in kept] == [2, 3]
        figures = http.get("/stats").json()
        assert (figures["dead_letters"], figures["dead_dropped"]) == (12, 19)
    with running(tmp_path, max_dead=3) as broker, broker.client() as http:
        wait_for(lambda: http.get("/subscriptions/many").json()["dead"] == 3)
        with sqlite3.connect(tmp_path / "broker.db") as connection:
            assert connection.execute("SELECT count(*) FROM events").fetchone() == (5,)


def test_old_dead_letters_go(tmp_path: Path) -> None:
    with running(tmp_path, dead_seconds=0.2) as broker, broker.client() as http:
        path = subscribe(http, "old")
        http.post(path + "/nack", json={"ids": publish(http, "old", 3)})
        wait_for(lambda: http.get(path).json()["dead"] == 0)
        assert http.get(path + "/dead").json() == {"dead": []}
        with sqlite3.connect(tmp_path / "broker.db") as connection:
            assert connection.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_dead_letters_are_listed_by_pages(broker: Running, http: httpx.Client) -> None:
    path = subscribe(http, "rd-pages")
    seqs = publish(http, "rd-pages", 7)
    http.post(path + "/nack", json={"ids": seqs})
    pages, after = [], 0
    while True:
        page = http.get(path + "/dead", params={"after": after, "limit": 3}).json()
        pages.append([each["id"] for each in page["dead"]])
        if "next" not in page:
            break
        after = page["next"]
    assert pages == [seqs[:3], seqs[3:6], seqs[6:]]
    with tocsin.connect(broker.url) as client:
        assert [each["id"] for each in client.dead_letters("rd-pages")] == seqs
        assert client.revive("rd-pages", seqs[:2]) == 2
        assert client.purge("rd-pages") == 5


def test_letters_of_the_second_format_are_kept_and_counted(tmp_path: Path) -> None:
    with running(tmp_path, stomp="") as broker, broker.client() as http:
        path = subscribe(http, "old")
        http.post(path + "/nack", json={"ids": publish(http, "old", 2)[:1]})
        size = http.get(path).json()["dead_bytes"]
    with sqlite3.connect(tmp_path / "broker.db") as connection:
        connection.executescript(to_second_format())
    connection.close()
    with running(tmp_path, stomp="") as broker, broker.client() as http:
        shown = http.get(path).json()
        assert (shown["dead"], shown["dead_bytes"], shown["pending"]) == (1, size, 1)
        assert http.post(path + "/revive").json() == {"revived": 1}
        with http.stream("GET", path + "/stream") as stream:
            assert [each["event"]["n"] for each in read_messages(stream, 2)] == [1, 0]


# A disk that fails for a moment.


def failing_once(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reading function that fails the first time."""
    failures = [sqlite3.OperationalError("disk I/O error")]

    async def read(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(*args)

    return read


def test_a_reader_goes_on_after_a_failed_read(tmp_path: Path) -> None:
    with running(tmp_path, heart_beat_ms=600_000) as broker, broker.client() as http:
        subscribe(http, "flaky")
        publish(http, "flaky", 2)
        storage = broker.broker.storage
        storage.read = failing_once(storage.read)
        with RawStomp(broker.stomp_port) as client:
            listen(client, "flaky")
            assert [json.loads(client.next().body)["n"] for _ in range(2)] == [0, 1]
        assert http.get("/stats").json()["read_failures"] == 1


# Redelivery.


def test_what_is_not_acknowledged_in_time_comes_again_and_then_is_dead(
    broker: Running, http: httpx.Client
) -> None:
    path = subscribe(http, "rd-late", ack_seconds=0.2, max_deliveries=3)
    (seq,) = publish(http, "rd-late", 1)
    with RawStomp(broker.stomp_port) as client:
        listen(client, "rd-late")
        frames = [client.next() for _ in range(3)]
        assert [each.headers["delivery-count"] for each in frames] == ["1", "2", "3"]
        assert [each.headers.get("redelivered") for each in frames] == [None, "true", "true"]
        wait_for(lambda: http.get(path).json()["dead"] == 1)
    (letter,) = http.get(path + "/dead").json()["dead"]
    assert letter["reason"] == "not acknowledged after 3 deliveries"
    assert (letter["id"], letter["deliveries"]) == (seq, 3)
    http.post(path + "/revive")
    with http.stream("GET", path + "/stream") as stream:  # it has three deliveries again
        counts = [each["delivery_count"] for each in read_messages(stream, 3)]
    assert counts == [4, 5, 6]


def test_an_acknowledgement_in_time_stops_the_timer(broker: Running, http: httpx.Client) -> None:
    path = subscribe(http, "rd-timely", ack_seconds=0.3)
    publish(http, "rd-timely", 3)
    with RawStomp(broker.stomp_port) as client:
        listen(client, "rd-timely", "client")
        frames = [client.next() for _ in range(3)]
        client.call("ACK", {"id": frames[1].headers["ack"]})
        again = client.next()
        assert (json.loads(again.body)["n"], again.headers["delivery-count"]) == (2, "2")
        client.call("ACK", {"id": again.headers["ack"]})
        assert http.get(path).json()["pending"] == 0


def test_an_acknowledgement_of_what_came_again_covers_nothing_sent_after_it(
    broker: Running, http: httpx.Client
) -> None:
    path = subscribe(http, "rd-order", ack_seconds=0.3)
    publish(http, "rd-order", 3)
    with RawStomp(broker.stomp_port) as client:
        listen(client, "rd-order", "client")
        frames = [client.next() for _ in range(6)]  # each of them twice
        assert [json.loads(each.body)["n"] for each in frames] == [0, 1, 2, 0, 1, 2]
        client.call("ACK", {"id": frames[3].headers["ack"]})
        assert http.get(path).json()["pending"] == 2


def test_deliveries_are_counted_across_reconnections_and_restarts(tmp_path: Path) -> None:
    counts: list[int] = []

    def read(http: httpx.Client, path: str) -> None:
        with http.stream("GET", path + "/stream") as stream:
            counts.extend(each["delivery_count"] for each in read_messages(stream, 1))

    with running(tmp_path) as broker, broker.client() as http:
        path = subscribe(http, "counted", max_deliveries=3)
        publish(http, "counted", 1)
        read(http, path)
        read(http, path)
    with running(tmp_path) as broker, broker.client() as http:
        read(http, path)
        with http.stream("GET", path + "/stream"):
            wait_for(lambda: http.get(path).json()["dead"] == 1)
    assert counts == [1, 2, 3]


def test_where_nothing_is_counted_a_delivery_writes_nothing(
    broker: Running, http: httpx.Client
) -> None:
    path = subscribe(http, "rd-plain")
    with http.stream("GET", path + "/stream") as stream:
        publish(http, "rd-plain", 1)
        before = broker.broker.storage.n_changes
        (note,) = read_messages(stream, 1)
        assert "delivery_count" not in note
        assert broker.broker.storage.n_changes == before


def test_what_is_put_off_comes_again_and_is_not_acknowledged_with_others(
    broker: Running, http: httpx.Client
) -> None:
    path = subscribe(http, "rd-put-off")
    first, second = publish(http, "rd-put-off", 2)
    with connect_websocket(broker.url.replace("http", "ws") + "/ws") as web:

        def next_note() -> Any:
            while "event" not in (found := json.loads(web.recv(20))):
                pass
            return found

        web.send(json.dumps({"op": "listen", "id": "rd-put-off"}))
        assert [next_note()["id"] for _ in range(2)] == [first, second]
        web.send(json.dumps({"op": "nack", "id": "rd-put-off", "ids": [first], "delay": 0.3}))
        web.send(json.dumps({"op": "ack", "id": "rd-put-off", "upto": second}))
        again = next_note()
    assert (again["id"], again["redelivered"], again["delivery_count"]) == (first, True, 2)
    assert http.get(path).json()["pending"] == 1
    assert http.post(path + "/ack", json={"upto": second}).json() == {"acknowledged": 1}


def test_what_is_put_off_waits_across_reconnections(broker: Running, http: httpx.Client) -> None:
    path = subscribe(http, "rd-waits")
    publish(http, "rd-waits", 2)
    with RawStomp(broker.stomp_port) as client:
        listen(client, "rd-waits")
        first = client.next()
        client.call("NACK", {"id": first.headers["ack"], "delay": "1.5"})
    with http.stream("GET", path + "/stream") as stream:
        assert [each["event"]["n"] for each in read_messages(stream, 2)] == [1, 0]


def test_a_webhook_is_counted_across_restarts(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "webhook_allow": ("127.0.0.0/8", "::1/128"), "webhook_back_off": 0.3, "stomp": "",
    }  # fmt: skip
    with hooked() as hook:
        hook.answers = [500] * 10
        with running(tmp_path, **settings) as broker, broker.client() as http:
            target = {"webhook": {"url": hook.url}, "max_deliveries": 3}
            path = subscribe(http, "hook", **target)
            publish(http, "hook", 1)
            wait_for(lambda: len(hook.got) == 2)
        with running(tmp_path, **settings) as broker, broker.client() as http:
            wait_for(lambda: http.get(path).json()["dead"] == 1)
        counts = [headers["tocsin-delivery-count"] for headers, _ in hook.got]
    assert counts == ["1", "2", "3"]


def test_terms_of_redelivery_are_checked_and_changed(broker: Running, http: httpx.Client) -> None:
    path = subscribe(http, "rd-terms")
    for bad in ({"ack_seconds": -1}, {"ack_seconds": "1"}, {"max_deliveries": 1.5}):
        assert http.patch(path, json=bad).status_code == 400
    publish(http, "rd-terms", 1)
    with http.stream("GET", path + "/stream") as stream:
        lines = read_messages(stream, 1)
        assert "delivery_count" not in lines[0]
    shown = http.patch(path, json={"ack_seconds": 0.2, "max_deliveries": 5}).json()
    assert (shown["ack_seconds"], shown["max_deliveries"]) == (0.2, 5)
    with http.stream("GET", path + "/stream") as stream:
        assert [each["delivery_count"] for each in read_messages(stream, 2)] == [1, 2]


# STOMP: what is on disk when.


def test_the_receipt_of_an_acknowledgement_comes_when_it_is_on_disk(
    broker: Running, http: httpx.Client
) -> None:
    subscribe(http, "rd-receipt")
    publish(http, "rd-receipt", 1)
    held, storage = threading.Event(), broker.broker.storage

    async def hold() -> None:
        storage.forget(lambda _: held.wait(20))

    with RawStomp(broker.stomp_port) as client:
        listen(client, "rd-receipt")
        message = client.next()
        broker.call(hold())
        client.send("ACK", {"id": message.headers["ack"], "receipt": "acked"})
        client.send("BEGIN", {"transaction": "t", "receipt": "begun"})
        assert client.next().headers["receipt-id"] == "begun"
        held.set()
        assert client.next().headers["receipt-id"] == "acked"


def refuse_writes(broker: Running) -> None:
    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    broker.broker.storage._transact = refuse


def test_a_transaction_publishes_and_acknowledges_both_or_neither(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as http:
        path, other = subscribe(http, "in"), subscribe(http, "out")
        publish(http, "in", 3)
        real = broker.broker.storage._transact
        with RawStomp(broker.stomp_port) as client:
            listen(client, "in")
            frames = [client.next() for _ in range(3)]
            client.call("BEGIN", {"transaction": "t"})
            client.call("SEND", {"destination": "/events", "transaction": "t", "to": "out"}, b"{}")
            client.call("ACK", {"id": frames[0].headers["ack"], "transaction": "t"})
            client.call("NACK", {"id": frames[1].headers["ack"], "transaction": "t"})
            refuse_writes(broker)
            assert client.call("COMMIT", {"transaction": "t"}).command == "ERROR"
        broker.broker.storage._transact = real
        assert http.get(other).json()["pending"] == 0
        shown = http.get(path).json()
        assert (shown["pending"], shown["dead"]) == (3, 0)
        with RawStomp(broker.stomp_port) as client:
            listen(client, "in")
            frames = [client.next() for _ in range(3)]
            client.call("BEGIN", {"transaction": "t"})
            client.call("SEND", {"destination": "/events", "transaction": "t", "to": "out"}, b"{}")
            client.call("ACK", {"id": frames[0].headers["ack"], "transaction": "t"})
            client.call("NACK", {"id": frames[1].headers["ack"], "transaction": "t"})
            before = broker.broker.storage.n_commits
            assert client.call("COMMIT", {"transaction": "t"}).command == "RECEIPT"
            assert broker.broker.storage.n_commits == before + 1
        assert http.get(other).json()["pending"] == 1
        shown = http.get(path).json()
        assert (shown["pending"], shown["dead"]) == (1, 1)
