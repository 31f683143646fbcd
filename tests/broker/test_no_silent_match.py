"""Ways in which nothing matches at the broker by mistake: each is said, or refused.

`tests/matcher/test_no_silent_match.py` has those of the library.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.broker.servers import RawStomp, Running, running

import tocsin
from tocsin.errors import ConditionWarning, RefusedError
from tocsin.model import EventType

pytestmark = pytest.mark.slow
Answer = Callable[[httpx.Client, Running], object]
_ids = itertools.count()


@pytest.fixture(scope="module")
def quoted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker with declared types, and some events."""
    types = {
        "Quote": EventType("Quote", firm=str, price=float, at="timestamp"),
        "Strict": EventType("Strict", price=float, strict=True),
    }
    with running(tmp_path_factory.mktemp("quoted"), types=types) as broker:
        with broker.client() as http:
            event = {"price": 5.5, "firm": "IBM", "open": True, "order": {"total": 3}}
            http.post("/events", params={"type": "Trade"}, json=[event] * 5).raise_for_status()
            http.post("/subscriptions", json={"where": "x = 1", "type": "Order"})
        yield broker


def post(where: str, **more: Any) -> Answer:
    return lambda http, _: http.post("/subscriptions", json={"where": where, **more}).json()


def trial(where: str, **more: Any) -> Answer:
    return lambda http, _: http.post("/conditions", json={"where": where, **more}).json()


def put(where: str, **more: Any) -> Answer:
    body = {"where": where, **more}
    return lambda http, _: http.put(f"/subscriptions/p{next(_ids)}", json=body).json()


def several(*wheres: str, method: str = "POST") -> Answer:
    rows = [{"id": f"s{next(_ids)}", "where": each, "type": "Trade"} for each in wheres]
    return lambda http, _: http.request(method, "/subscriptions", json=rows).json()


def publish(event: dict[str, Any], type: str) -> Answer:
    return lambda http, _: http.post("/events", params={"type": type}, json=event).json()


def by_client(act: Callable[[tocsin.Client], object]) -> Answer:
    def answer(_: httpx.Client, broker: Running) -> object:
        with tocsin.connect(broker.url) as client, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                act(client)
            except RefusedError as error:
                return str(error)
        return [str(each.message) for each in caught if each.category is ConditionWarning]

    return answer


def by_stomp(http: httpx.Client, broker: Running) -> object:
    with RawStomp(broker.stomp_port) as stomp:
        headers = {"destination": "/topic/Trade", "id": "1", "selector": "pirce < 10"}
        return stomp.call("SUBSCRIBE", headers).headers


def by_websocket(http: httpx.Client, broker: Running) -> object:
    from websockets.sync.client import connect

    with connect(broker.url.replace("http", "ws") + "/ws") as socket:
        socket.send(json.dumps({"op": "subscribe", "where": "pirce < 10", "type": "Trade"}))
        return socket.recv(timeout=20)


CASES: dict[str, tuple[Answer, str]] = {
    "a rule misspells an attribute": (post("pirce < 10", type="Trade"), "did you mean 'price'?"),
    "a rule names what no event has": (post("volume < 10", type="Trade"), "has attribute 'volume'"),
    "a rule of all types misspells an attribute": (post("pirce < 10"), "did you mean 'price'?"),
    "a rule misspells a path": (post("order.totl = 3", type="Trade"), "mean 'order.total'?"),
    "a literal is a text": (post("price < '10'", type="Trade"), "do not compare with strings"),
    "a literal is a number": (post("firm = 5", type="Trade"), "do not compare with numbers"),
    "a boolean is a text": (post("open = 'true'", type="Trade"), "recent events are booleans"),
    "a rule compares with NULL": (post("price = NULL"), "can never match"),
    "the ends of BETWEEN are exchanged": (post("price BETWEEN 9 AND 5"), "can never match"),
    "a parameter is null": (post("price < :p", params={"p": None}), "can never match"),
    "a part of a rule is impossible": (post("x = 1 OR y > 5 AND y < 1"), "can never be true"),
    "a rule misspells a declared attribute": (post("pirce < 1", type="Quote"), "mean 'price'?"),
    "a literal does not fit the declared kind": (post("at > 5", type="Quote"), "kind-clash"),
    "a rule is of a misspelt type": (post("price < 1", type="Qoute"), "did you mean 'Quote'?"),
    "a rule names what a strict type does not declare": (
        post("pirce < 1", type="Strict"), "undeclared-attribute",
    ),
    "an event misspells what a strict type declares": (
        publish({"pirce": 1}, "Strict"), "not declared by Strict; did you mean 'price'?",
    ),
    "a text of a declared timestamp is none": (publish({"at": "soon"}, "Quote"), "no moment"),
    "a declared number comes as a text": (publish({"price": "5"}, "Quote"), "declared float"),
    "an event is published to a misspelt type": (publish({}, "Quoet"), "did you mean 'Quote'?"),
    "an event is published to nearly a type that is subscribed to": (
        publish({}, "Odrer"), "did you mean 'Order'?",
    ),
    "a computed value misspells an attribute": (
        post("pirce * 2 < 10", type="Trade"), "has attribute 'pirce'; did you mean 'price'?",
    ),
    "a computed value is made of another kind": (
        post("lower(price) = 'a'", type="Trade"), "they do not compare with strings",
    ),
    "a list is a text": (post("ANY(firm) = 'IBM'", type="Trade"), "with conditions on elements"),
    "a text in lower case is compared with capitals": (
        post("lower(firm) = 'IBM'", type="Trade"), "can never match",
    ),
    "a trial misspells an attribute": (trial("pirce < 1", type="Trade"), "did you mean 'price'?"),
    "a trial compares other kinds": (trial("price = '1'", type="Trade"), "do not compare with"),
    "a trial is of a misspelt type": (trial("price < 1", type="Quotte"), "did you mean 'Quote'?"),
    "a rule that is put misspells an attribute": (put("prize < 1", type="Trade"), "mean 'price'?"),
    "one of several rules misspells an attribute": (
        several("price < 1", "pirce < 1"), "did you mean 'price'?",
    ),
    "one of several rules that are put is impossible": (
        several("price < 1", "price = NULL", method="PUT"), "can never match",
    ),
    "a rule of the client misspells an attribute": (
        by_client(lambda c: c.subscribe(None, "pirce < 10", type="Trade")), "mean 'price'?",
    ),
    "one of many rules of the client is impossible": (
        by_client(lambda c: c.subscribe_many([{"where": "x = NULL"}])), "can never match",
    ),
    "the client publishes to a misspelt type": (
        by_client(lambda c: c.publish({"price": 1}, type="Quotez")), "did you mean 'Quote'?",
    ),
    "the client asks for an unknown id": (by_client(lambda c: c.get("p")), "no subscription with"),
    "a rule of a WebSocket misspells an attribute": (by_websocket, "did you mean 'price'?"),
    "a rule of STOMP misspells an attribute": (by_stomp, "did you mean 'price'?"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", CASES)
def test_nothing_matches_and_it_is_said(quoted: Running, sentence: str) -> None:
    answer, says = CASES[sentence]
    with quoted.client() as http:
        said = answer(http, quoted)
    assert says in (said if isinstance(said, str) else json.dumps(said, ensure_ascii=False))


def test_right_rules_and_events_are_not_warned_of(quoted: Running) -> None:
    with quoted.client() as http:
        for where in ("price < 10 AND firm = 'IBM'", "order.total > 1", "volume IS NULL", "open"):
            where = "open = TRUE" if where == "open" else where
            assert post(where, type="Trade")(http, quoted)["warnings"] == []  # type: ignore[index]
        answer = publish({"price": 5}, "Trade")(http, quoted)
        assert "warnings" not in answer  # type: ignore[operator]


def test_types_of_a_configuration_may_be_strict(tmp_path: Path) -> None:
    from tocsin.broker.config import load_config

    path = tmp_path / "broker.toml"
    path.write_text("[types.Quote]\nprice = 'float'\nstrict = true\n[types.T]\nstrict = 'string'\n")
    types = load_config(path, {}, {}).types
    assert types["Quote"].is_strict
    assert types["T"] == EventType("T", {"strict": "string"})
