"""Matching: many events at once match what each of them matches alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tocsin.broker.config import Config
from tocsin.broker.events import Event, from_stomp
from tocsin.broker.matching import BatchMatcher
from tocsin.broker.publications import PublicationTable
from tocsin.broker.subscription import SubscriptionSpec
from tocsin.errors import KindClashError
from tocsin.model import EventType


def new_matcher(types: dict[str, EventType] | None = None) -> BatchMatcher:
    return BatchMatcher(types or {}, time.time, PublicationTable(Config(), time.time))


def spec(where: str, params: dict[str, object] | None = None, type: str | None = None) -> Any:
    return SubscriptionSpec("s", where, type, params or {})


CONDITIONS = (
    "k = 3", "k < 10 AND p > 0.5", "name = 'a' OR k = 7", "flag", "p IS NULL",
    "big > 5", "name < 'b'",
)  # fmt: skip


def plain(n: int) -> dict[str, Any]:
    return {"k": n % 20, "p": n / 40, "name": "abc"[n % 3], "flag": n % 2 == 0}


SHAPES: dict[str, Callable[[int], dict[str, Any]]] = {
    "alike": plain,
    "none of them matches": lambda n: {"k": 100 + n, "p": 0.1, "name": "z", "flag": False},
    "integers among floats": lambda n: plain(n) | {"p": n if n % 2 else n / 40},
    "nulls": lambda n: plain(n) | {"p": None if n % 5 == 0 else 0.7},
    "other attributes": lambda n: plain(n) if n % 2 else {"k": n},
    "another order": lambda n: dict(sorted(plain(n).items(), reverse=n % 2 == 0)),
    "nested": lambda n: plain(n) | {"inner": {"x": n}},
    "large": lambda n: plain(n) | {"big": (1 << 63) - 1 - n},
    "no attributes": lambda n: {},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_many_events_match_what_each_matches_alone(shape: str) -> None:
    matcher = new_matcher()
    for no, condition in enumerate(CONDITIONS):
        matcher.subscribe(no, spec(condition))
    events = [Event(None, SHAPES[shape](n), b"") for n in range(100)]
    together = matcher.match_events(events)
    alone = [matcher.match_events([event])[0] for event in events]
    assert [sorted(found) for found in together] == [sorted(found) for found in alone]  # type: ignore[arg-type]
    assert any(together) is (shape != "none of them matches")


def test_an_event_that_cannot_be_matched_leaves_the_others_alone() -> None:
    matcher = new_matcher()
    matcher.subscribe(1, spec("k = 1"))
    events = [Event(None, {"k": 1 << 80 if n == 50 else 1}, b"") for n in range(100)]
    found = matcher.match_events(events)
    assert isinstance(found[50], Exception)
    assert all(each == [1] for at, each in enumerate(found) if at != 50)


# Headers that read as numbers.

HEADERS = [f"h{i}" for i in range(12)]


def message(values: dict[str, str]) -> Event:
    event = from_stomp(values, b"", "text/plain", None, None)
    assert set(event.numbers or {}) == {name for name, text in values.items() if text.isdigit()}
    return event


@pytest.mark.parametrize("n", [1, 4, 12])
@pytest.mark.parametrize("first", ["numbers", "texts"])
def test_any_number_of_headers_compares_with_both_numbers_and_texts(n: int, first: str) -> None:
    matcher = new_matcher()
    names = HEADERS[:n]
    numbers = [(f"{name} = {at}", True) for at, name in enumerate(names)]
    texts = [(f"{name} = '{at}'", True) for at, name in enumerate(names)]
    every = numbers + texts if first == "numbers" else texts + numbers
    every += [
        (" AND ".join(f"{name} >= {at}" for at, name in enumerate(names)), True),
        (" AND ".join(f"{name} LIKE '{at}'" for at, name in enumerate(names)), True),
        (" AND ".join(f"h{i} = " + (f"'{i}'" if i % 2 else str(i)) for i in range(n)), True),
        ("h0 = 0 AND h0 = '0'", True),
        ("h0 IN (5, '0')", True),
        ("h0 IN (5, '5')", False),
        ("h0 NOT IN (5, '5')", True),
        ("h0 NOT IN (0, '5')", False),
        ("h0 BETWEEN -1 AND '1'", True),
        ("NOT h0 BETWEEN -1 AND '1'", False),
        ("h0 <> '0' OR h0 <> 0", False),
        ("NOT (h0 = '1') AND h0 IS NOT NULL", True),
        ("h0 = TRUE OR h0 IS NULL", False),
    ]
    for no, (condition, _) in enumerate(every):
        matcher.subscribe(no, spec(condition))
    event = message({name: str(at) for at, name in enumerate(names)})
    expected = [no for no, (_, holds) in enumerate(every) if holds]
    assert sorted(matcher.match_events([event])[0]) == expected  # type: ignore[arg-type]
    assert [sorted(each) for each in matcher.match_events([event] * 60)] == [expected] * 60  # type: ignore[arg-type]


def test_values_of_json_have_one_kind_whatever_headers_have() -> None:
    matcher = new_matcher()
    conditions = ["x = 5", "x = '5'", "x NOT IN (1, '1')", "o.y = 1", "o.y = '1'"]
    matcher.load(None, [(no, condition, None) for no, condition in enumerate(conditions)])
    events: list[dict[str, Any]] = [
        {"x": 5},
        {"x": "5"},
        {"x": 5.0},
        {"o": {"y": 1}},
        {"o": {"y": "1"}},
        {},
    ]
    found = matcher.match_events([Event(None, event, b"") for event in events])
    assert found == [[0], [1], [0], [3], [4], []]
    assert matcher.match_events([message({"x": "5"})]) != found[:1]


def test_a_condition_keeps_its_faces_through_updates_and_removal() -> None:
    matcher = new_matcher()
    matcher.subscribe(1, spec("x = 5"))
    matcher.subscribe(2, spec("x = :p", {"p": "5"}))
    event = message({"x": "5"})
    assert sorted(matcher.match_events([event])[0]) == [1, 2]  # type: ignore[arg-type]
    matcher.update(2, spec("x = :p", {"p": "5"}), spec("x = :p", {"p": "6"}))
    assert matcher.match_events([event])[0] == [1]
    matcher.update(2, spec("x = :p", {"p": "6"}), spec("x = :p", {"p": 5}))
    assert sorted(matcher.match_events([event])[0]) == [1, 2]  # type: ignore[arg-type]
    matcher.update(2, spec("x = :p", {"p": 5}), spec("x LIKE '_'"))
    assert sorted(matcher.match_events([event])[0]) == [1, 2]  # type: ignore[arg-type]
    matcher.update(2, spec("x LIKE '_'"), spec("x > 5"))
    assert matcher.match_events([event])[0] == [1]
    matcher.unsubscribe(None, [1, 2, 3])
    assert matcher.match_events([event])[0] == []


def test_a_declared_attribute_has_one_face() -> None:
    matcher = new_matcher({"T": EventType("T", x=int)})
    matcher.subscribe(1, spec("x = 5", type="T"))
    with pytest.raises(KindClashError):
        matcher.subscribe(2, spec("x = '5'", type="T"))
