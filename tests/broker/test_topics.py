"""Topics: many events at once match what each of them does alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tocsin.broker.events import Event
from tocsin.broker.topics import Topics

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
    topics = Topics({}, time.time)
    for no, condition in enumerate(CONDITIONS):
        topics.subscribe(no, None, condition, {}, None)
    events = [Event(None, SHAPES[shape](n), b"") for n in range(100)]
    together = topics.match(events)
    alone = [topics.match([event])[0] for event in events]
    assert [sorted(found) for found in together] == [sorted(found) for found in alone]  # type: ignore[arg-type]
    assert any(together) is (shape != "none of them matches")


def test_an_event_that_cannot_be_matched_leaves_the_others_alone() -> None:
    topics = Topics({}, time.time)
    topics.subscribe(1, None, "k = 1", {}, None)
    events = [Event(None, {"k": 1 << 80 if n == 50 else 1}, b"") for n in range(100)]
    found = topics.match(events)
    assert isinstance(found[50], Exception)
    assert all(each == [1] for at, each in enumerate(found) if at != 50)
