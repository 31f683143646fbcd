"""Links between real brokers, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker.servers import Running, read_messages, running, wait_for

from tocsin.broker.overlay.dialer import link_url
from tocsin.errors import ArgumentError


@contextlib.contextmanager
def network(tmp_path: Path, *names: str, **settings: Any) -> Iterator[dict[str, Running]]:
    """Run brokers in a row, each linked to the one before."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Running] = {}
        before: list[str] = []
        for name in names:
            found[name] = stack.enter_context(
                running(tmp_path / name, name=name, links=tuple(before), **settings)
            )
            before = [found[name].url]
        for name in names[1:]:
            wait_for(lambda b=found[name]: linked(b))  # type: ignore[misc]
        yield found


def linked(broker: Running) -> list[str]:
    hub = broker.server.hub
    assert hub is not None
    return [name for name, each in hub.router.links.items() if each.is_active]


def wants(broker: Running) -> str:
    """Return what the last neighbour wants, as a text."""
    hub = broker.server.hub
    assert hub is not None
    return str(hub.describe()["links"][-1]["wants"])


def durable(broker: Running, id: str, where: str, **more: Any) -> None:
    with broker.client() as http:
        body = {"id": id, "where": where, "durable": True, **more}
        assert http.post("/subscriptions", json=body).status_code == 201


def publish(broker: Running, *events: dict[str, Any], type: str = "Quote") -> None:
    with broker.client() as http:
        answer = http.post("/events", json=list(events), params={"type": type})
        assert answer.status_code == 200, answer.text


def pending(broker: Running, id: str) -> int:
    return int(broker.broker.subscriptions.by_id[id].pending)


def test_an_event_finds_subscribers_of_other_brokers_and_no_others(tmp_path: Path) -> None:
    with network(tmp_path, "a", "b", "c", link_grade="exact") as brokers:
        durable(brokers["c"], "cheap", "price < :p", type="Quote", params={"p": 10})
        durable(brokers["b"], "dear", "price > 100", type="Quote")
        publish(brokers["a"], {"price": 5}, {"price": 50}, {"price": 500})
        wait_for(lambda: pending(brokers["c"], "cheap") == 1)
        wait_for(lambda: pending(brokers["b"], "dear") == 1)
        hub = brokers["a"].server.hub
        assert hub is not None
        wait_for(lambda: not hub.router.links["b"].pending)
        publish(brokers["a"], {"price": 51}, {"price": 7})
        wait_for(lambda: pending(brokers["c"], "cheap") == 2)
        with brokers["c"].client() as http:
            assert http.patch("/subscriptions/cheap", json={"params": {"p": 60}}).status_code == 200
        wait_for(lambda: "60" in str(hub.describe()["links"][0]["wants"]))
        publish(brokers["a"], {"price": 51})
        wait_for(lambda: pending(brokers["c"], "cheap") == 3)
        with brokers["c"].client() as http, http.stream("GET", "/subscriptions/cheap/stream") as it:
            got = [each["event"]["price"] for each in read_messages(it, 3)]
        assert got == [5, 7, 51]


@pytest.mark.slow
def test_what_was_published_while_a_broker_was_away_comes_when_it_is_back(tmp_path: Path) -> None:
    with network(tmp_path, "a", "b") as brokers:
        a = brokers["a"]
        with running(tmp_path / "c", name="c", links=(a.url,)) as c:
            durable(c, "s", "price > 0", type="Quote")
            wait_for(lambda: linked(c))
            publish(brokers["b"], {"price": 1})
            wait_for(lambda: pending(c, "s") == 1)
        publish(brokers["b"], {"price": 2}, {"price": 3})
        hub = a.server.hub
        assert hub is not None
        wait_for(lambda: hub.peers["c"].durable.pending >= 2)  # the first may come again
        with running(tmp_path / "c", name="c", links=(a.url,)) as c:
            wait_for(lambda: pending(c, "s") == 3)
            wait_for(lambda: hub.peers["c"].durable.pending == 0)


@pytest.mark.slow
def test_a_link_needs_a_token_made_for_it(tmp_path: Path) -> None:
    from tocsin.broker import tokens

    with running(tmp_path / "a", name="a", auth=True) as a:
        connection = a.broker.storage._writer
        good = tokens.create(connection, "b", tokens.Rights(link="b"))
        poor = tokens.create(connection, "c", tokens.Rights(("*",), ("*",)))
        with running(tmp_path / "b", name="b", links=(a.url,), link_token=good) as b:
            wait_for(lambda: linked(b))
        for token in (poor, good, ""):  # one for no link, one for another broker, none
            with running(tmp_path / "c", name="c", links=(a.url,), link_token=token) as c:
                with a.client(headers={"authorization": f"Bearer {poor}"}) as http:
                    assert http.get("/overlay").status_code == 403
                assert linked(c) == []
        hub = a.server.hub
        assert hub is not None
        assert set(hub.peers) == {"b"}


@pytest.mark.slow
def test_a_link_to_a_named_broker_is_to_no_other(tmp_path: Path) -> None:
    with running(tmp_path / "a", name="a") as a:
        for name, is_linked in (("other", False), ("a", True)):
            with running(tmp_path / "b", name="b", links=(f"{name}={a.url}",)) as b:
                if is_linked:
                    wait_for(lambda b=b: linked(b))  # type: ignore[misc]
                else:
                    with pytest.raises(AssertionError, match="never came true"):
                        wait_for(lambda b=b: linked(b), 0.7)  # type: ignore[misc]


@pytest.mark.slow
def test_brokers_with_one_name_or_other_types_are_not_linked(tmp_path: Path) -> None:
    from tocsin.model import EventType

    declared = {"Quote": EventType("Quote", price=float)}
    other = {"Quote": EventType("Quote", price=str)}
    with running(tmp_path / "a", name="a", types=declared) as a:
        for name, types in (("a", declared), ("b", other)):
            with running(tmp_path / name / "x", name=name, links=(a.url,), types=types) as b:
                with pytest.raises(AssertionError, match="never came true"):
                    wait_for(lambda b=b: linked(b), 0.7)  # type: ignore[misc]
                assert a.server.hub is not None
                assert not linked(a)


@pytest.mark.slow
def test_an_operator_sees_links_and_forgets_one(tmp_path: Path) -> None:
    with network(tmp_path, "a", "b") as brokers:
        durable(brokers["b"], "s", "price BETWEEN 3 AND 5", type="Quote")
        publish(brokers["a"], {"price": 4})
        wait_for(lambda: pending(brokers["b"], "s") == 1)
        with brokers["a"].client() as http:
            wait_for(lambda: "3" in str(http.get("/overlay").json()["links"][0]["wants"]))
            shown = http.get("/overlay").json()
            assert shown["brokers"] == ["a", "b"]
            assert shown["links"][0]["state"] == "active"
            assert "tocsin_links_up 1" in http.get("/metrics").text
            assert http.delete("/overlay/links/b").status_code == 204
            assert http.delete("/overlay/links/nobody").status_code == 404
        with running(tmp_path / "alone") as alone, alone.client() as http:
            assert http.get("/overlay").json()["links"] == []
            assert http.delete("/overlay/links/b").status_code == 503


def test_a_link_is_a_plain_url() -> None:
    assert link_url("http://x:1") == "ws://x:1/overlay/ws"
    assert link_url("https://x/tocsin/") == "wss://x/tocsin/overlay/ws"
    for wrong in ("x:1", "ftp://x", "http://", "http://x?y"):
        with pytest.raises(ArgumentError):
            link_url(wrong)


@pytest.mark.slow
def test_a_stomp_message_and_a_cloudevent_cross_a_link_whole(tmp_path: Path) -> None:
    from tests.broker.servers import RawStomp

    with network(tmp_path, "a", "b") as brokers:
        durable(brokers["b"], "all", "TRUE")
        publish(brokers["a"], {"first": 1})
        wait_for(lambda: pending(brokers["b"], "all") == 1)
        with RawStomp(brokers["a"].stomp_port) as client:
            client.call("SEND", {"destination": "/topic/T", "n": "5"}, b"plain text")
        cloud = {"specversion": "1.0", "id": "1", "source": "/s", "type": "C", "data": {"x": 1}}
        httpx.post(
            f"{brokers['a'].url}/events",
            json=cloud,
            headers={"content-type": "application/cloudevents+json"},
        ).raise_for_status()
        wait_for(lambda: pending(brokers["b"], "all") == 3)
        with brokers["b"].client() as http, http.stream("GET", "/subscriptions/all/stream") as it:
            first, second, third = read_messages(it, 3)
        assert first["event"] == {"first": 1}
        assert second["event"]["n"] == "5"
        assert third["event"]["ce"]["source"] == "/s"
        assert third["type"] == "C"


@pytest.mark.slow
def test_transitions_are_right_at_another_broker(tmp_path: Path) -> None:
    with network(tmp_path, "a", "b") as brokers:
        with brokers["a"].client() as http:
            for key, price in (("k1", 5), ("k2", 50)):
                http.put(f"/publications/{key}", json={"price": price}).raise_for_status()
        durable(brokers["b"], "plain", "price = 6")
        durable(brokers["b"], "cheap", "price < 10", notify="both")
        wait_for(lambda: pending(brokers["b"], "cheap") == 1)  # of what was there before
        with brokers["a"].client() as http:
            http.put("/publications/k2", json={"price": 6}).raise_for_status()
            http.put("/publications/k1", json={"price": 60}).raise_for_status()
            http.delete("/publications/k2").raise_for_status()
        wait_for(lambda: pending(brokers["b"], "cheap") == 4)
        with brokers["b"].client() as http, http.stream("GET", "/subscriptions/cheap/stream") as it:
            got = [(each["key"], each["kind"]) for each in read_messages(it, 4)]
        assert got == [("k1", "ENTER"), ("k2", "ENTER"), ("k1", "LEAVE"), ("k2", "LEAVE")]
        assert pending(brokers["b"], "plain") == 1
        assert len(brokers["b"].broker.publications.by_address) == 1
        with brokers["b"].client() as http:
            http.delete("/subscriptions/cheap").raise_for_status()
        wait_for(lambda: not brokers["b"].broker.publications.by_address)
        with brokers["a"].client() as http:
            http.delete("/publications/k1").raise_for_status()
            http.put("/publications/k3", json={"price": 1}).raise_for_status()
        durable(brokers["b"], "again", "price < 100", notify="both")
        wait_for(lambda: pending(brokers["b"], "again") == 1)
        assert list(brokers["b"].broker.publications.by_address) == [(None, "k3")]


@pytest.mark.slow
def test_the_past_is_told_to_those_that_watch_and_to_nobody_twice(tmp_path: Path) -> None:
    with network(tmp_path, "a", "b", "c") as brokers:
        for name in "bc":
            durable(brokers[name], "plain", "price < 10")
        with brokers["a"].client() as http:
            http.post("/events", json={"price": 99}).raise_for_status()
            for name in "ab":  # until the news has come
                wait_for(lambda name=name: "price < 10" in wants(brokers[name]))  # type: ignore[misc]
            http.put("/publications/k1", json={"price": 5}).raise_for_status()
        for name in "bc":
            wait_for(lambda name=name: pending(brokers[name], "plain") == 1)  # type: ignore[misc]
        for name in "cb":
            durable(brokers[name], "cheap", "price < 10", notify="both")
            wait_for(lambda name=name: pending(brokers[name], "cheap") == 1)  # type: ignore[misc]
        with brokers["a"].client() as http:
            http.put("/publications/k1", json={"price": 50}).raise_for_status()
            http.put("/publications/k2", json={"price": 6}).raise_for_status()
        for name in "bc":
            wait_for(lambda name=name: pending(brokers[name], "cheap") == 3)  # type: ignore[misc]
            assert pending(brokers[name], "plain") == 2


@pytest.mark.slow
def test_two_brokers_that_both_open_a_link_have_one(tmp_path: Path) -> None:
    from tests.broker.processes import free_port

    ports = {name: free_port() for name in "ab"}
    with contextlib.ExitStack() as stack:
        brokers = {}
        for name, other in (("a", "b"), ("b", "a")):
            http, link = f"127.0.0.1:{ports[name]}", f"http://127.0.0.1:{ports[other]}"
            brokers[name] = stack.enter_context(
                running(tmp_path / name, name=name, http=http, links=(link,))
            )
        durable(brokers["b"], "s", "n > 0", type="Quote")
        wait_for(lambda: linked(brokers["a"]) and linked(brokers["b"]))
        for n in range(1, 6):
            publish(brokers["a"], {"n": n})
        wait_for(lambda: pending(brokers["b"], "s") == 5)
        hub = brokers["a"].server.hub
        assert hub is not None
        neighbours = hub.peers
        wait_for(lambda: neighbours["b"].opened_by == "a")  # it may have found nobody at first
        publish(brokers["a"], {"n": 6})
        wait_for(lambda: pending(brokers["b"], "s") == 6)
