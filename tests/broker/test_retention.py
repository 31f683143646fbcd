"""Events that are retained for a time, so that subscriptions which come later get them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.servers import RawStomp, Running, http_of, read_messages, running, wait_for

import tocsin
from tocsin.broker.client import Client


@pytest.fixture(scope="module")
def retaining(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("retaining")
    with running(data, retain_seconds=100.0, retain_events=200) as found:
        yield found


@pytest.fixture
def client(retaining: Running) -> Iterator[Client]:
    with tocsin.connect(retaining.url) as found:
        yield found


def numbers(client: Client, id: str, n: int, **headers: str) -> list[int]:
    """Return the field n of the first notifications in a stream of a subscription."""
    place = f"/subscriptions/{id}/stream"
    with http_of(client) as http, http.stream("GET", place, headers=headers) as stream:
        return [note["event"]["n"] for note in read_messages(stream, n)]


def test_a_new_durable_subscription_gets_what_is_retained_and_then_what_comes(
    client: Client,
) -> None:
    client.publish_many([{"a1": n % 2, "n": n} for n in range(6)])
    client.subscribe("a1", "a1 = 1", durable=True)
    client.publish({"a1": 1, "n": 7})
    assert numbers(client, "a1", 4) == [1, 3, 5, 7]
    assert client.get("a1")["pending"] == 4


def test_many_subscriptions_at_once_get_what_is_retained(client: Client) -> None:
    client.publish_many([{"a2": 1, "n": n} for n in range(3)])
    rows = [{"id": f"a2-{n}", "where": f"a2 = 1 AND n = {n}", "durable": True} for n in range(40)]
    assert client.subscribe_many(rows) == 40
    assert [client.get(f"a2-{n}")["pending"] for n in range(5)] == [1, 1, 1, 0, 0]


def test_a_stream_of_a_transient_subscription_begins_with_what_is_retained(client: Client) -> None:
    client.subscribe("a3", "a3 = 1")
    first = client.publish_many([{"a3": 1, "n": n} for n in range(3)]).first
    assert numbers(client, "a3", 3) == [0, 1, 2]
    # Who has some of it says so, and gets the rest.
    assert numbers(client, "a3", 1, **{"last-event-id": str(first + 1)}) == [2]


def test_a_header_that_is_a_number_and_a_text_is_both_for_later_subscriptions(
    retaining: Running,
) -> None:
    with RawStomp(retaining.stomp_port) as stomp:
        stomp.call("SEND", {"destination": "/topic/R4", "size": "5"})
        for at, where in enumerate(["size > 4", "size = '5'"]):
            ask = {"id": str(at), "destination": "/topic/R4", "selector": where}
            stomp.call("SUBSCRIBE", ask)
            assert stomp.next().headers["subscription"] == str(at)


def test_an_event_is_not_retained_beyond_its_own_end(client: Client) -> None:
    client.publish({"a5": 1}, valid_until=(time.time_ns() // 1000) + 300_000)
    client.publish({"a5": 2}, retain=0.3)
    client.publish({"a5": 3})
    time.sleep(0.35)
    client.subscribe("a5", "a5 > 0", durable=True)
    assert client.get("a5")["pending"] == 1


def test_what_is_retained_is_bounded_in_count_and_in_bytes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "retain_seconds": 100.0,
        "retain_events": 10,
        "retain_bytes": 1000,
        "stomp": "",
    }
    with running(tmp_path, **settings) as found, tocsin.connect(found.url) as client:
        client.publish_many([{"n": n} for n in range(25)])
        client.subscribe("few", "n >= 0", durable=True)
        assert numbers(client, "few", 10) == list(range(15, 25))
        client.publish_many([{"n": n, "x": "y" * 400} for n in range(5)])
        assert found.broker.publications.n_retained_bytes <= 1000
        assert client.stats()["retained"] == 2
        client.unsubscribe("few")
        assert stored(tmp_path) == (2, 2)


def stored(data: Path) -> tuple[int, int]:
    """Return how many events a database has, and how many of them are retained."""
    connection = sqlite3.connect(data / "broker.db")
    try:
        (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
        (retained,) = connection.execute("SELECT count(*) FROM retained").fetchone()
    finally:
        connection.close()
    return events, retained


@pytest.mark.slow
def test_what_is_retained_outlives_the_broker_and_goes_in_its_time(tmp_path: Path) -> None:
    with running(tmp_path) as found, tocsin.connect(found.url) as client:
        client.publish_many([{"n": 1}, {"n": 2}], retain=1000)
        client.publish({"n": 3}, retain=1.5)
        client.publish({"n": 4})
        with RawStomp(found.stomp_port) as stomp:
            stomp.call("SEND", {"destination": "/events", "n": "5", "retain": "1000"})
    with running(tmp_path) as found, tocsin.connect(found.url) as client:
        client.subscribe("late", "n < 10", durable=True)
        assert client.get("late")["pending"] in (3, 4)
        wait_for(lambda: client.stats()["retained"] == 3)
        client.unsubscribe("late")
        wait_for(lambda: stored(tmp_path) == (3, 3))
