"""Publications that stay, and subscribers that are told when a match begins or ends."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from tests.broker.formats import to_second_format
from tests.broker.servers import RawStomp, Running, http_of, read_messages, running, wait_for

import tocsin
from tocsin.broker.client import Client
from tocsin.broker.config import Config
from tocsin.broker.events import Event
from tocsin.broker.matching import BatchMatcher
from tocsin.broker.publications import PublicationTable
from tocsin.broker.terms import to_publication
from tocsin.errors import RefusedError


@pytest.fixture
def client(broker: Running) -> Iterator[Client]:
    with tocsin.connect(broker.url) as found:
        yield found


def told(client: Client, id: str, n: int) -> list[tuple[str | None, str, Any]]:
    """Return the next n notifications of a durable subscription, and acknowledge them."""
    if not n:
        return []
    place = f"/subscriptions/{id}"
    with http_of(client) as http:
        with http.stream("GET", place + "/stream") as stream:
            notes = read_messages(stream, n)
        assert http.post(place + "/ack", json={"upto": notes[-1]["id"]}).status_code == 200
    return [(note.get("kind"), note.get("key", ""), note["event"]) for note in notes]


def pending(client: Client, id: str) -> int:
    return int(client.get(id)["pending"])


def test_a_subscriber_is_told_when_a_match_begins_and_when_it_ends(client: Client) -> None:
    client.subscribe("t1", "t1 = 1 AND x > 10", durable=True, notify="both")
    assert client.publish({"t1": 1, "x": 5}, key="a").matches == 0
    assert client.publish({"t1": 1, "x": 11}, key="a").matches == 1
    assert client.publish({"t1": 1, "x": 12}, key="a").matches == 0
    assert client.publish({"t1": 1, "x": 20}).matches == 0  # no key: an event like any other
    assert client.publish({"t1": 1, "x": 9}, key="a").matches == 1
    assert told(client, "t1", 2) == [
        ("ENTER", "a", {"t1": 1, "x": 11}),
        ("LEAVE", "a", {"t1": 1, "x": 9}),
    ]
    assert pending(client, "t1") == 0


def test_who_asks_for_one_kind_of_transition_gets_no_other(client: Client) -> None:
    client.subscribe("t2e", "t2 > 0", durable=True, notify="enter")
    client.subscribe("t2l", "t2 > 0", durable=True, notify="leave")
    assert client.get("t2l")["notify"] == "leave"
    client.publish({"t2": 1}, key="t2")
    assert client.retract("t2")
    assert not client.retract("t2")
    assert told(client, "t2e", 1) == [("ENTER", "t2", {"t2": 1})]
    assert told(client, "t2l", 1) == [("LEAVE", "t2", {"t2": 1})]
    assert pending(client, "t2e") == pending(client, "t2l") == 0
    with pytest.raises(RefusedError, match="notify is"):
        client.subscribe("t2x", "t2 > 0", notify="ENTER")  # type: ignore[arg-type]


def test_an_update_changes_only_what_it_names(client: Client) -> None:
    client.subscribe("t3", "t3.zone = 'b' AND n = 1", durable=True, notify="both")
    client.subscribe("t3p", "n = 1 AND t3.zone = 'b'", durable=True)
    client.publish({"t3": {"zone": "a", "w": 1}, "n": 1, "z": 0}, key="t3", ttl=1000)
    end = (client.publication("t3") or {})["valid_until"]
    client.publish({"t3": {"zone": "b"}, "z": None}, key="t3", merge=True)
    assert client.publication("t3") == {
        "key": "t3", "type": None, "valid_until": end,
        "event": {"t3": {"zone": "b", "w": 1}, "n": 1},
        **{name: (client.publication("t3") or {})[name] for name in ("id", "published")},
    }  # fmt: skip
    client.publish({"n": 2}, key="t3", merge=True)
    client.publish({"n": 2}, key="t3")
    assert (client.publication("t3") or {})["event"] == {"n": 2}
    whole = {"t3": {"zone": "b", "w": 1}, "n": 1}
    assert [kind for kind, _, _ in told(client, "t3", 2)] == ["ENTER", "LEAVE"]
    # A plain subscription gets what the publication says then, whole.
    assert told(client, "t3p", 1) == [(None, "t3", whole)]


def test_a_new_subscription_is_told_what_matches_already(client: Client) -> None:
    client.publish_many([{"t4": n, "id": f"k{n}"} for n in range(5)], key_of="id")
    client.subscribe("t4", "t4 >= :low", params={"low": 3}, durable=True, notify="both")
    assert pending(client, "t4") == 2
    client.update("t4", params={"low": 4})
    client.update("t4", params={"low": 2})
    found = [(kind, key) for kind, key, _ in told(client, "t4", 5)]
    assert found[:3] == [("ENTER", "k3"), ("ENTER", "k4"), ("LEAVE", "k3")]
    assert sorted(found[3:]) == [("ENTER", "k2"), ("ENTER", "k3")]
    assert pending(client, "t4") == 0


def test_a_publication_that_expires_leaves(client: Client) -> None:
    client.subscribe("t5", "t5 = 1", durable=True, notify="both")
    client.publish({"t5": 1}, key="t5", ttl=0.2)
    notes = client.notifications("t5")
    entered, left = next(notes), next(notes)
    assert (entered.kind, left.kind, left.gone) == ("ENTER", "LEAVE", "expired")
    assert left.event == {"t5": 1}
    assert client.publication("t5") is None
    # One that is over before it comes takes away what is there.
    client.publish({"t5": 1}, key="t5")
    client.publish({"t5": 1}, key="t5", valid_until="2020-01-01")
    assert [next(notes).kind for _ in range(2)] == ["ENTER", "LEAVE"]
    with pytest.raises(RefusedError, match="ttl or valid_until"):
        client.publish({"t5": 1}, ttl=1, valid_until=1)


def test_publications_with_and_without_a_type_may_end_at_one_moment(tmp_path: Path) -> None:
    end = "2030-01-01T00:00:00Z"
    with running(tmp_path, stomp="") as found, found.client() as http:
        for query in ("key=x", "key=y&type=T", "key=x"):
            answer = http.post(f"/events?{query}&valid_until={end}", json={}, timeout=10)
            assert answer.status_code == 200, answer.text
    with running(tmp_path, stomp="") as found, found.client() as http:
        assert http.post(f"/events?key=z&type=S&valid_until={end}", json={}).status_code == 200
        assert len(http.get("/publications").json()["publications"]) == 3


def put(matcher: BatchMatcher, n: int, end: int, type: str | None = None) -> None:
    matcher.match([[to_publication(Event(type, {}, b"{}", valid_until=end), n, None)]])


def test_ends_that_are_over_or_changed_do_not_pile_up(tmp_path: Path) -> None:
    publications = PublicationTable(Config(data=tmp_path), lambda: 0.0)
    matcher = BatchMatcher({}, time.time, publications)
    for n in range(10_000):
        put(matcher, n % 10, 1_000_000 + n)
    assert len(publications._ends) <= 1_100
    assert publications.next_end is not None
    n_ends = len(publications._ends)
    for n in range(10):
        put(matcher, n, 1_000_000 + 9_990 + n)  # the same end again
    assert len(publications._ends) == n_ends


def test_what_ended_and_is_put_back_ends_again(tmp_path: Path) -> None:
    now = [0.0]
    publications = PublicationTable(Config(data=tmp_path), lambda: now[0])
    matcher = BatchMatcher({}, time.time, publications)
    put(matcher, 1, 5_000_000)
    put(matcher, 2, 5_000_000, "T")
    now[0] = 6.0
    for _ in range(2):
        assert {told.key for told in matcher.match([]).expired} == {"1", "2"}
        assert not publications.by_address
        publications.undo(with_expired=True)
        assert len(publications.by_address) == 2
    matcher.match([])
    assert matcher.match([]).expired == []


def test_keys_of_different_types_are_different(client: Client, http: httpx.Client) -> None:
    client.subscribe("t6", "price > 5", type="Quote", durable=True, notify="both")
    client.subscribe("t6a", "price > 5 AND firm = 't6'", durable=True, notify="both")
    client.publish({"price": 9.0, "firm": "t6"}, type="Quote", key="t6")
    client.publish({"price": 9.0, "firm": "t6"}, type="Other6", key="t6")
    assert pending(client, "t6") == 1
    assert pending(client, "t6a") == 2
    client.retract("t6", type="Quote")
    assert pending(client, "t6") == 2
    assert pending(client, "t6a") == 3
    assert client.publication("t6", type="Quote") is None
    assert client.publication("t6", type="Other6") is not None
    listed = http.get("/publications", params={"type": "Other6"}).json()
    assert [each["key"] for each in listed["publications"]] == ["t6"]
    refused = http.post("/events?type=Quote&key=bad&merge=true", json={"price": "much"})
    assert (refused.status_code, refused.json()["attribute"]) == (400, "price")


def test_a_request_with_a_bad_event_leaves_all_publications_as_they_were(
    client: Client, http: httpx.Client
) -> None:
    client.subscribe("t7", "t7 > 0", durable=True, notify="both")
    client.publish({"t7": 1, "k": "t7"}, key="t7")
    bad = http.post("/events?key_of=k", json=[{"t7": -1, "k": "t7"}, {"t7": 5}])
    assert (bad.status_code, bad.json()["row"], bad.json()["attribute"]) == (400, 1, "k")
    assert (client.publication("t7") or {})["event"] == {"t7": 1, "k": "t7"}
    assert pending(client, "t7") == 1
    for query in ("merge=true", "key=a&key_of=b", "key=a&ttl=0", "key=a&merge=perhaps", "ttl=x"):
        assert http.post(f"/events?{query}", json={}).status_code == 400


def test_publications_are_put_changed_and_taken_back_by_http(http: httpx.Client) -> None:
    place = "/publications/depot%2F7%20north?type=T8"
    assert http.put(place, json={"a": 1, "b": 2}).status_code == 200
    assert http.patch(place, json={"b": None, "c": 3}).status_code == 200
    assert http.get(place).json()["event"] == {"a": 1, "c": 3}
    assert http.get(place).json()["key"] == "depot/7 north"
    assert http.delete(place).json()["accepted"] == 1
    for method in ("GET", "DELETE"):
        gone = http.request(method, place)
        assert (gone.status_code, gone.json()["code"]) == (404, "unknown-key")
    assert http.put(place, json=[{}, {}]).status_code == 400
    assert http.put("/publications/" + "x" * 501, json={}).status_code == 400


def test_the_subject_of_a_cloudevent_may_be_the_key(client: Client, http: httpx.Client) -> None:
    client.subscribe("t9", "ce.type = 'T9' AND speed > 3", durable=True, notify="both")
    for speed in (5, 6, 1):
        context = {"specversion": "1.0", "id": str(speed), "source": "/s", "type": "T9"}
        body = {**context, "subject": "truck 7", "data": {"speed": speed}}
        answer = http.post(
            "/events?key_of=ce.subject",
            content=json.dumps(body),
            headers={"content-type": "application/cloudevents+json"},
        )
        assert answer.status_code == 200
    (kind, key, first), (last_kind, _, last) = told(client, "t9", 2)
    assert (kind, key, first["speed"], first["ce"]["id"]) == ("ENTER", "truck 7", 5, "5")
    assert (last_kind, last["speed"]) == ("LEAVE", 1)


def test_stomp_publishes_under_keys_and_is_told_of_transitions(broker: Running) -> None:
    with RawStomp(broker.stomp_port) as reader, RawStomp(broker.stomp_port) as writer:
        send = {"destination": "/topic/S9", "key": "bus"}
        writer.call("SEND", {**send, "speed": "30", "line": "7"})
        ask = {"id": "1", "destination": "/topic/S9", "selector": "speed > 20"}
        reader.call("SUBSCRIBE", {**ask, "notify": "both"})
        frame = reader.next()
        assert (frame.headers["transition"], frame.headers["key"]) == ("ENTER", "bus")
        writer.call("SEND", {**send, "merge": "true"}, b'{"speed": 25}')
        writer.call("SEND", {**send, "merge": "true"}, b'{"speed": 10}')
        frame = reader.next()
        assert frame.headers["transition"] == "LEAVE"
        assert json.loads(frame.body) == {"speed": 10, "line": 7}
        writer.call("SEND", {**send, "merge": "true", "ttl": "0.2", "speed": "99"})
        assert reader.next().headers["transition"] == "ENTER"
        assert reader.next().headers["gone"] == "expired"
        writer.call("SEND", {**send, "speed": "99"})
        writer.call("SEND", {**send, "retract": "true"})
        assert reader.next().headers["transition"] == "ENTER"
        assert reader.next().headers["gone"] == "retracted"
        bad = reader.call("SUBSCRIBE", {**ask, "id": "2", "notify": "sometimes"})
        assert bad.command == "ERROR"


def test_a_durable_stomp_subscription_keeps_its_transitions(broker: Running) -> None:
    ask = {
        "id": "1", "destination": "/topic/S10", "selector": "x = 1", "notify": "enter",
        "durable-subscription-name": "s10", "ack": "client-individual",
    }  # fmt: skip
    with RawStomp(broker.stomp_port) as client:
        client.call("SUBSCRIBE", ask)
    with RawStomp(broker.stomp_port) as writer:
        for x in (1, 2, 1):
            writer.call("SEND", {"destination": "/topic/S10", "key": "k"}, b'{"x": %d}' % x)
    with RawStomp(broker.stomp_port) as client:
        client.call("SUBSCRIBE", ask)
        frames = [client.next() for _ in range(2)]
        assert [frame.headers["transition"] for frame in frames] == ["ENTER", "ENTER"]
        for frame in frames:
            client.send("ACK", {"id": frame.headers["ack"]})
        other = client.call("SUBSCRIBE", {**ask, "id": "2", "notify": "both"})
        assert other.headers["code"] == "duplicate-id"


def test_a_stream_of_a_transient_subscription_begins_with_what_matches(
    client: Client, http: httpx.Client
) -> None:
    client.publish_many([{"t11": 1, "n": n} for n in range(3)], key_of="n")
    client.subscribe("t11", "t11 = 1", notify="both")
    with http.stream("GET", "/subscriptions/t11/stream") as stream:
        first = read_messages(stream, 3)
        assert [(note["kind"], note["key"]) for note in first] == [
            ("ENTER", "0"), ("ENTER", "1"), ("ENTER", "2"),
        ]  # fmt: skip
    client.unsubscribe("t11")


def test_a_websocket_publishes_retracts_and_is_told(broker: Running) -> None:
    async def use() -> list[Any]:
        found: list[Any] = []
        async with websockets.connect(broker.url.replace("http", "ws") + "/ws") as socket:

            async def ask(**asked: Any) -> None:
                await socket.send(json.dumps(asked))

            await ask(op="publish", event={"w12": 1}, key="w12")
            await ask(op="subscribe", id="w12", where="w12 = 1", notify="both")
            await ask(op="publish", event={"w12": 2}, key="w12", merge=True)
            await ask(op="publish", event={"w12": 1}, key="w12", merge=True)
            await ask(op="retract", key="w12")
            await ask(op="retract", key="w12")
            await ask(op="retract", key={})
            while not found or "error" not in found[-1]:
                found.append(json.loads(await socket.recv()))
        return found

    found = asyncio.run(use())
    moves = [each["kind"] for each in found if "kind" in each]
    assert moves == ["ENTER", "LEAVE", "ENTER", "LEAVE"]
    assert found[-1]["error"] == "event"


def test_publications_are_bounded(tmp_path: Path) -> None:
    from tocsin.broker.config import Limits

    limits = Limits(max_publications=3, max_body=200)
    with running(tmp_path, limits=limits, stomp="") as found, tocsin.connect(found.url) as client:
        with pytest.raises(RefusedError, match="too many publications"):
            client.publish_many([{"k": n} for n in range(4)], key_of="k")
        client.publish_many([{"k": n} for n in range(3)], key_of="k")
        client.publish_many([{"k": n, "x": 1} for n in range(3)], key_of="k")
        client.retract(0)
        client.publish({"k": 9}, key=9)
        client.publish({"a": "x" * 150}, key=9, merge=True)
        with pytest.raises(RefusedError, match="at most 200 bytes"):
            client.publish({"b": "x" * 150}, key=9, merge=True)
        assert client.stats()["publications"] == 3


def test_a_publish_that_a_full_backlog_refuses_changes_no_publication(tmp_path: Path) -> None:
    with (
        running(tmp_path, max_backlog=2, stomp="") as found,
        tocsin.connect(found.url) as client,
    ):
        client.subscribe("full", "x > 0", durable=True, notify="both", overflow="refuse")
        client.publish_many([{"x": 1, "k": 1}, {"x": 1, "k": 2}], key_of="k")
        with pytest.raises(RefusedError, match="backlog"):
            client.publish({"x": -1}, key=1)
        assert (client.publication(1) or {})["event"] == {"x": 1, "k": 1}
        told(client, "full", 2)
        client.publish({"x": -1}, key=1)
        assert told(client, "full", 1) == [("LEAVE", "1", {"x": -1})]


@pytest.mark.slow
def test_transitions_are_the_differences_between_what_matches(client: Client) -> None:
    draw = random.Random(5)
    n_watching, relation = 30, set()
    low = [draw.randrange(10) for _ in range(n_watching)]
    wheres = [f"v > {low[n]} AND r = {n % 3} OR v = 0" for n in range(n_watching)]
    for n, where in enumerate(wheres):
        client.subscribe(f"r{n}", where, type="R13", durable=True, notify="both")
    held: dict[str, dict[str, Any]] = {}
    for _ in range(40):
        several = {f"k{draw.randrange(6)}": None for _ in range(draw.randrange(1, 4))}
        if draw.random() < 0.2:
            for key in several:
                assert client.retract(key, type="R13") is (held.pop(key, None) is not None)
            continue
        rows: list[dict[str, Any]] = [
            {
                "k": key,
                **{a: draw.randrange(11 if a == "v" else 3) for a in draw.choice(["v", "rv"])},
            }
            for key in several
        ]
        client.publish_many(rows, type="R13", key_of="k", merge=True)
        for row in rows:
            held[row["k"]] = {**held.get(row["k"], {}), **row}
    for n in range(n_watching):
        moves = [(kind, key) for kind, key, _ in told(client, f"r{n}", pending(client, f"r{n}"))]
        now: set[str] = set()
        for kind, key in moves:
            assert (key in now) is (kind == "LEAVE")
            (now.add if kind == "ENTER" else now.discard)(key)
        relation |= {(n, key) for key in now}
    assert relation == {
        (n, key)
        for n in range(n_watching)
        for key, row in held.items()
        if row.get("v") == 0 or (row.get("v", -1) > low[n] and row.get("r") == n % 3)
    }


@pytest.mark.slow
def test_a_publish_that_the_disk_refuses_changes_no_publication(tmp_path: Path) -> None:
    with running(tmp_path, stomp="") as found, tocsin.connect(found.url, retry_seconds=0) as client:
        client.subscribe("d", "x > 0", durable=True, notify="both")
        client.publish({"x": 1}, key="k", ttl=1000)
        blocker = sqlite3.connect(tmp_path / "broker.db", isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Exception, match=r"cannot (write|be reached)"):
            client.publish({"x": -1}, key="k")
        blocker.execute("ROLLBACK")
        blocker.close()
        assert (client.publication("k") or {})["event"] == {"x": 1}
        client.publish({"x": -1}, key="k")
        assert [kind for kind, _, _ in told(client, "d", 2)] == ["ENTER", "LEAVE"]


@pytest.mark.slow
def test_publications_and_transitions_outlive_the_broker(tmp_path: Path) -> None:
    with running(tmp_path, stomp="") as found, tocsin.connect(found.url) as client:
        client.subscribe("r", "x > 0", durable=True, notify="both")
        client.subscribe("p", "x > :low", params={"low": 0}, notify="leave", durable=True)
        client.publish({"x": 1, "at": "now"}, key="stays")
        client.publish({"x": 1}, key="ends", ttl=0.5)
        client.publish({"x": 1}, key="goes")
        client.retract("goes")
    time.sleep(0.5)
    with running(tmp_path, stomp="") as found, tocsin.connect(found.url) as client:
        assert (client.publication("stays") or {})["event"] == {"x": 1, "at": "now"}
        assert client.publication("goes") is None
        wait_for(lambda: client.publication("ends") is None)
        client.publish({"x": 0}, key="stays", merge=True)
        moves = [(kind, key) for kind, key, _ in told(client, "r", 6)]
        assert moves == [
            ("ENTER", "stays"), ("ENTER", "ends"), ("ENTER", "goes"), ("LEAVE", "goes"),
            ("LEAVE", "ends"), ("LEAVE", "stays"),
        ]  # fmt: skip
        assert [key for _, key, _ in told(client, "p", 3)] == ["goes", "ends", "stays"]


@pytest.mark.slow
def test_a_database_of_the_first_format_is_changed(tmp_path: Path) -> None:
    with running(tmp_path, stomp="") as found, tocsin.connect(found.url) as client:
        client.subscribe("old", "x = 1", durable=True)
        client.publish({"x": 1})
    with sqlite3.connect(tmp_path / "broker.db") as connection:
        connection.executescript(
            f"{to_second_format()}"
            "ALTER TABLE notifications DROP COLUMN kind; ALTER TABLE dead DROP COLUMN kind;"
            "DROP TABLE publications; DROP TABLE retained; PRAGMA user_version = 1;"
        )
    connection.close()
    with running(tmp_path, stomp="") as found, tocsin.connect(found.url) as client:
        client.publish({"x": 1}, key="new")
        assert [kind for kind, _, _ in told(client, "old", 2)] == [None, None]
