"""Neighbours that are wrong or lie: they are refused, and nobody else suffers."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.servers import Running, wait_for
from tests.overlay import liar
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tocsin.broker.config import Config
from tocsin.broker.overlay import graph, messages, wire
from tocsin.broker.overlay.event_lines import of_line
from tocsin.broker.overlay.graph import Graph
from tocsin.broker.overlay.messages import State, Sub, Types, of_plain
from tocsin.broker.overlay.router import Router
from tocsin.errors import ArgumentError, EventError, ProtocolError


@pytest.mark.slow
def test_a_neighbour_that_lies_harms_nobody_else(tmp_path: Path) -> None:
    liar.check(tmp_path, range(25))


def say(socket: ClientConnection, *lines: Any) -> None:
    for line in lines:
        socket.send(json.dumps(line) + "\n")


def heard(socket: ClientConnection, seconds: float = 0.5) -> list[Any]:
    """Return the messages that come until there is a pause, or the link is closed."""
    text = ""
    with contextlib.suppress(TimeoutError, ConnectionClosed):
        while True:
            data = socket.recv(timeout=seconds)
            text += data if isinstance(data, str) else data.decode()
    return [json.loads(line) for line in text.split("\n") if line]


@contextlib.contextmanager
def linked(core: Running, token: str, name: str) -> Iterator[ClientConnection]:
    url = core.url.replace("http", "ws") + "/overlay/ws"
    with connect(url, additional_headers={"authorization": f"Bearer {token}"}) as socket:
        say(socket, ["HELLO", 1, name, f"instance of {name}", {}])
        yield socket


@pytest.mark.slow
def test_an_impostor_gets_nothing_and_the_real_neighbour_everything(tmp_path: Path) -> None:
    with liar.honest_network(tmp_path) as (core, edge, token), core.client() as http:
        http.headers.update(core.headers)  # type: ignore[attr-defined]
        hub = core.server.hub
        assert hub is not None
        wait_for(lambda: "edge" in hub.peers and hub.peers["edge"].connection)
        connection = hub.peers["edge"].connection
        with linked(core, token, "edge") as socket:
            assert [line[0] for line in heard(socket)] == ["HELLO"]
        assert hub.peers["edge"].connection is connection
        http.post("/events", json={"n": 1}).raise_for_status()
        wait_for(lambda: liar.pending(edge) == 1)


@pytest.mark.slow
def test_an_event_that_cannot_be_taken_is_refused_once_and_fails_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with liar.honest_network(tmp_path) as (core, _, token), core.client() as http:
        http.headers.update(core.headers)  # type: ignore[attr-defined]
        with linked(core, token, "liar") as socket, caplog.at_level(logging.WARNING):
            say(socket, ["PUB", 1, "o", 1, None, "abc", None, {"a": 1}])
            say(socket, ["PUB", 2, "o", 2, None, None, {"h": {"content-length": "1"}}, {}])
            say(socket, ["PUB", 3, "o", 3, None, None, None, {"a": 1}])
            answers = [http.post("/events", json={"x": 1}).status_code for _ in range(20)]
            assert answers == [200] * 20
            assert ["ACK", 3] in heard(socket)
            say(socket, ["PUB", 4, "o", 4, None, "abc", None, {"a": 1}])
            assert ["ACK", 4] in heard(socket)
        hub = core.server.hub
        assert hub is not None
        assert hub.peers["liar"].counts["refused"] == 3
        assert "is refused" in caplog.text


@pytest.mark.slow
def test_a_version_that_leaps_is_not_believed_and_not_stored(tmp_path: Path) -> None:
    with liar.honest_network(tmp_path) as (core, _, token):
        hub = core.server.hub
        assert hub is not None
        wait_for(lambda: "edge" in hub.peers)
        with linked(core, token, "liar") as socket:
            say(socket, ["STATE", "core", (1 << 53) - 1, []], ["STATE", "edge", 1 << 52, []])
            wait_for(lambda: hub.router.graph.ignored == 1)
            say(socket, ["STATE", "core", (1 << 63) - 1, []])
            heard(socket)
        assert hub.router.graph.version < 1000
        wait_for(lambda: "edge" in hub.router.graph.members())


def test_a_version_of_a_far_broker_that_leaps_is_not_believed() -> None:
    core = Graph("core", 5)
    core.link_up("edge")
    assert core.receive(State("far", 3, ("edge",)), "edge")
    assert not core.receive(State("far", 3 + graph.MAX_JUMP + 1, ()), "edge")
    assert core.ignored == 1
    assert core.receive(State("far", 4, ()), "edge")


@pytest.mark.slow
def test_many_slots_are_taken_in_in_parts(tmp_path: Path) -> None:
    with liar.honest_network(tmp_path) as (core, _, token), core.client() as http:
        http.headers.update(core.headers)  # type: ignore[attr-defined]
        http.post("/events?type=Quote", json={"n": 0}).raise_for_status()
        hub = core.server.hub
        assert hub is not None
        with linked(core, token, "liar") as socket:
            wait_for(lambda: "liar" in hub.router.links and hub.router.links["liar"].pending)
            number = [[n, {"n": {"numbers": [[[n, 0], [n, 1]]]}}] for n in range(1_000)]
            say(socket, ["SUB", "Quote", number, 1], ["UNSUB", None])
            link = hub.router.links["liar"]
            wait_for(lambda: "Quote" in link.interests and not link.pending)
            assert len(link.interests["Quote"].slots) == 1_000
            heard(socket, 0.2)
            http.post("/events?type=Quote", json=[{"n": 500}, {"n": 5000}]).raise_for_status()
            events = [line[7]["n"] for line in heard(socket) if line[0] == "PUB"]
            assert events == [500]


@pytest.mark.parametrize(
    "line",
    [
        ["STATE", "a\nb", 1, []],
        ["STATE", "a" * 101, 1, []],
        ["STATE", "a", -1, []],
        ["STATE", "a", (1 << 53) + 1, []],
        ["STATE", "a", True, []],
        ["STATE", "a", 1, [1]],
        ["STATE", "a", 1, ["b"] * 1_001],
        ["ADV", "*"],
        ["ADV", "x" * 201],
        ["ADV", "a\0b"],
        ["TYPES", ["T"] * 10_001],
        ["SUB", "T", [], 2],
        ["SUB", "T", [[1 << 63, {}]], 1],
        ["UPD", "T", {"changed": [[0, {"free": [7]}]]}, 1],
    ],
)
def test_fields_are_checked(line: list[Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        of_plain(line)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "line",
    [
        ["PUB", 1, "o"],
        ["PUB", 1, "o\n", 1, None, None, None, {}],
        ["PUB", 1, "o", -1, None, None, None, {}],
        ["PUB", 1, "o", 1, "a\0", None, None, {}],
        ["PUB", 1, "o", 1, None, "abc", None, {}],
        ["PUB", 1, "o", 1, None, None, {"k": "k", "g": "lost"}, {}],
        ["PUB", 1, "o", 1, None, None, {"h": {"destination": "/x"}, "c": ""}, {}],
        ["PUB", 1, "o", 1, None, None, {"h": {"a": 1}, "c": ""}, {}],
        ["PUB", 1, "o", 1, None, None, {"h": {"a": "x\0"}, "c": ""}, {}],
        ["PUB", 1, "o", 1, None, None, {"h": {"ce": {"id": "1"}}, "c": ""}, {}],
        ["PUB", 1, "o", 1, None, None, {"h": {}, "b": "!", "c": ""}, {}],
        ["PUB", 1, "o", 1, None, None, {"other": 1}, {}],
        ["PUB", 1, "o", 1, None, None, None, [1]],
    ],
)
def test_events_of_neighbours_are_checked(line: list[Any]) -> None:
    with pytest.raises(EventError):
        of_line(line, {})


def test_nobody_talks_the_links_of_a_neighbour_away() -> None:
    known = Graph("core")
    for peer in ("a", "b", "liar"):
        known.link_up(peer)
    for peer in ("a", "b"):
        assert known.receive(State(peer, 1, ("core",)), peer)
    assert not known.receive(State("a", 5, ("b", "core")), "liar")
    assert not known.receive(State("b", 5, ("a", "core")), "liar")
    assert known.active() == {"a", "b", "liar"}
    # What they say themselves counts: now one of three links in a circle stands by.
    known.receive(State("a", 2, ("b", "core")), "a")
    known.receive(State("b", 2, ("a", "core")), "b")
    assert known.active() == {"a", "liar"}


def test_a_neighbour_that_lost_its_version_is_believed_about_itself() -> None:
    known = Graph("core")
    known.link_up("a")
    known.receive(State("a", 50, ("core", "x")), "a")
    assert known.receive(State("a", 1, ("core",)), "a")
    assert known.states()[1] == State("a", 1, ("core",))


def test_invented_brokers_do_not_fill_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAX_BROKERS", 10)
    known = Graph("core")
    known.link_up("liar")
    for n in range(100):
        known.receive(State(f"no{n}", 1, ("nowhere",)), "liar")
    assert len(known.states()) <= 11
    names = tuple(f"b{n}" for n in range(100))
    known.receive(State("liar", 1, ("core", *names)), "liar")
    for name in names:
        known.receive(State(name, 1, ("liar",)), "liar")
    assert len(known.states()) <= 12
    assert known.ignored > 80


def test_after_a_crash_neighbours_get_everything_until_they_speak() -> None:
    router = Router("a")
    router.advertise("Quote")
    router.link_up("b")
    router.receive("b", Types(()))
    router.receive(
        "b", of_plain(["SUB", "Quote", [[0, {"n": {"numbers": [[[5, 0], [5, 1]]]}}]], 1])
    )
    router.receive("b", of_plain(["UNSUB", None]))
    assert not router.route("Quote", {"n": 7})
    for is_clean, peers in ((True, []), (False, ["b"])):
        again = Router("a")
        again.restore(json.loads(json.dumps(router.to_state(is_clean=is_clean))))
        assert [each.peer for each in again.route("Quote", {"n": 7})] == peers
        assert [each.peer for each in again.route("Quote", {"n": 5})] == ["b"]


def test_a_stored_version_that_was_poisoned_is_given_up() -> None:
    router = Router("a")
    state = {**router.to_state(), "version": 1 << 63, "links": {"b": {"wants": 7}}}
    router.restore(state)
    assert router.graph.version < 10
    assert set(router.links) == {"b"}


def test_a_line_without_an_end_is_refused_and_gathered_once() -> None:
    gathering = wire.Lines(1_000)
    assert gathering.feed(b'["A"]\n["B"') == [b'["A"]']
    assert gathering.feed(b",1]\n") == [b'["B",1]']
    assert gathering.feed(b"x" * 600) == []
    with pytest.raises(ProtocolError, match="more than 1000 bytes"):
        gathering.feed(b"x" * 600)
    with pytest.raises(ProtocolError, match="more than 1000 bytes"):
        wire.Lines(1_000).feed(b"x" * 1_001 + b"\n")


def test_a_link_token_is_not_sent_in_the_clear() -> None:
    for link in ("http://10.0.0.3:8080", "core=http://10.0.0.3:8080", "ws://broker.example"):
        with pytest.raises(ArgumentError, match="in the clear"):
            Config(links=(link,), link_token="t").check_safety()
        Config(links=(link,), link_token="t", insecure=True).check_safety()
        Config(links=(link,)).check_safety()
    for link in ("https://10.0.0.3:8080", "core=http://127.0.0.1:8080", "http://localhost:1"):
        Config(links=(link,), link_token="t").check_safety()


def test_growing_keeps_what_was_wanted_until_the_message_is_whole() -> None:
    router = Router("a")
    router.advertise("Quote")
    router.link_up("b")
    router.receive("b", of_plain(["UNSUB", None]))

    def slots(*values: int) -> dict[int, Any]:
        plain = [[i, {"n": {"numbers": [[[n, 0], [n, 1]]]}}] for i, n in enumerate(values)]
        message = of_plain(["SUB", "Quote", plain, 1])
        assert isinstance(message, Sub)
        return dict(message.slots)

    router.receive("b", Sub("Quote", slots(1, 2), True))
    assert not router.route("Quote", {"n": 9})
    new = slots(9, 1)
    router.grow("b", "Quote", {0: new[0]}, True)
    for n in (1, 2, 7, 9):
        assert router.route("Quote", {"n": n}), "in between nothing is ruled out"
    router.receive("b", Sub("Quote", new, True))
    routed = {n: bool(router.route("Quote", {"n": n})) for n in (1, 2, 7, 9)}
    assert routed == {1: True, 2: False, 7: False, 9: True}


def test_grids_of_a_topic_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_ATTRIBUTES", 5)
    speech = messages.Codebook()
    for n in range(5):
        of_plain(["CELLS", "T", {f"a{n}": [0, 0, 0, 8]}], speech)
    with pytest.raises(ProtocolError, match="grids of one topic"):
        of_plain(["CELLS", "T", {"a5": [0, 0, 0, 8]}], speech)
