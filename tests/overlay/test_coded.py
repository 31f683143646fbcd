"""Subscriptions cross links between real brokers as coded cells, and events find them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker.servers import running, wait_for
from tests.overlay.fig1 import Linked
from tests.overlay.test_links import durable, linked, network, pending, publish

from tocsin.broker.client import Client
from tocsin.broker.overlay.wire import Wire
from tocsin.errors import ProtocolError


def link(url: str, peer: str) -> dict[str, Any]:
    """Return what a broker shows of a neighbour."""
    with contextlib.suppress(httpx.HTTPError):
        for each in httpx.get(f"{url}/overlay", timeout=5).json()["links"]:
            if each["name"] == peer:
                return dict(each)
    return {}


def knows(url: str, peer: str, what: str) -> bool:
    shown = link(url, peer)
    return shown.get("state") == "active" and what in str(shown["wants"])


def received(url: str, id: str, round: int) -> list[float]:
    """Return the first three prices of a round that a subscriber gets."""
    got = []
    with Client(url, retry_seconds=60) as client:
        for note in client.notifications(id):
            if note.event.get("round") == round:
                got.append(note.event["price"])
            if len(got) == 3:
                break
    return got


@pytest.mark.slow
def test_coded_subscriptions_cross_three_processes_and_events_come_back(tmp_path: Path) -> None:
    core = Linked(tmp_path / "core", "core", levels=4)
    feed = Linked(tmp_path / "feed", "feed", core.url, levels=4)
    edge = Linked(tmp_path / "edge", "edge", core.url, levels=4)
    plain = Linked(tmp_path / "plain", "plain", core.url)
    with contextlib.ExitStack() as stack:
        for broker in (core, feed, edge, plain):
            stack.enter_context(broker)
        for broker, id in ((edge, "coded"), (plain, "plain")):
            with Client(broker.url, timeout=60) as client:
                client.subscribe(id, "price BETWEEN 10.3 AND 20.7", type="Quote", durable=True)
        prices = [5, 10.3, 15, 20.7, 500]
        httpx.post(f"{feed.url}/events", json=[{"price": 0}], params={"type": "Quote"})
        for round in range(2):  # the second time after the broker in the middle was killed
            wait_for(lambda: knows(core.url, "edge", "price") and knows(feed.url, "core", "price"))
            shown = link(core.url, "edge"), link(feed.url, "core"), link(core.url, "plain")
            assert [(each["levels"], each["coded_in"] > 0) for each in shown] == [
                (4, True), (4, True), (0, False),
            ]  # fmt: skip
            events = [{"price": price, "round": round} for price in prices]
            answer = httpx.post(f"{feed.url}/events", json=events, params={"type": "Quote"})
            assert answer.status_code == 200
            for broker, id in ((edge, "coded"), (plain, "plain")):
                assert received(broker.url, id, round) == [10.3, 15, 20.7]
            if round == 0:
                core.kill()
                core.start()


def test_a_neighbour_that_matches_exactly_is_told_exactly(tmp_path: Path) -> None:
    with network(tmp_path, "a", "b", link_levels=4) as brokers, contextlib.ExitStack() as stack:
        c = stack.enter_context(running(tmp_path / "c", name="c", links=(brokers["a"].url,)))
        wait_for(lambda: linked(c))
        for id, broker in (("s", brokers["b"]), ("t", c)):
            durable(broker, id, "price BETWEEN 10.3 AND 20.7", type="Quote")
        hub = brokers["a"].server.hub
        assert hub is not None
        publish(brokers["a"], {"price": 15})
        wait_for(lambda: not any(each.pending for each in hub.router.links.values()))
        rounded, exact = (hub.router.links[name].interests["Quote"].slots[0] for name in "bc")
        assert rounded != exact
        assert rounded["price"].holds(10.3)
        assert rounded["price"].holds(20.7)
        assert not rounded["price"].holds(22)
        publish(brokers["a"], {"price": 10.3}, {"price": 20.7}, {"price": 22})
        for id, broker in (("s", brokers["b"]), ("t", c)):
            wait_for(lambda id=id, broker=broker: pending(broker, id) == 3)  # type: ignore[misc]


async def _nothing(data: bytes) -> None:
    """Send nothing."""


def test_levels_are_offered_where_older_brokers_pass_over_them(tmp_path: Path) -> None:
    with running(tmp_path / "a", name="a", link_levels=4) as a:
        hub = a.server.hub
        assert hub is not None
        wire = Wire(hub, _nothing, is_dialer=False)
        hello = json.loads(wire.hello())
        assert len(hello) == 5  # as many parts as ever
        assert hello[4] == {"": {"levels": 4}}  # among the types, where no type is
        head = ["HELLO", 1, "b", "life"]
        assert wire._check([*head, {"": {"levels": 7}}]) == ("b", "life", 7)
        assert wire._check([*head, {}]) == ("b", "life", 0)
        wrong: Any
        for wrong in ([], {"": {"levels": -1}}, {"": {"levels": 31}}, {"": {"levels": "4"}}):
            with pytest.raises(ProtocolError):
                wire._check([*head, wrong])
