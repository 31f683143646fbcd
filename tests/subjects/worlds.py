"""Random publications, subscriptions and operations on them, on small domains."""

from __future__ import annotations

import datetime as dt
from random import Random
from typing import Any

from tocsin.model import EventType
from tocsin.subjects.model import (
    AtLeast,
    Filter,
    Interest,
    InterestRegion,
    ObjectRegion,
    Publication,
    Range,
)

PLACE = EventType("Place", x=float, n=int, s=str, t=dt.datetime, b=bool)
NEWS = EventType("News", x=float, s=str)

STRINGS = ["", "a", "ab", "abc", "b", "ba", "z"]
NUMBERS = [0, 1, 2, 3, 2.5, -1, 4, float("inf"), 2**53, 2**53 + 1]
MOMENTS = [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3, 4)]


def value(r: Random, attribute: str) -> Any:
    """Return a value, a range or nothing."""
    if r.random() < 0.15:
        return None
    if attribute == "b":
        return r.choice([True, False, Range()])
    if attribute == "u":
        attribute = r.choice("xst")
    if r.random() < 0.35:
        return a_range(r, attribute)
    return single(r, attribute)


def single(r: Random, attribute: str) -> Any:
    if attribute == "s":
        return r.choice(STRINGS)
    if attribute == "t":
        return r.choice(MOMENTS)
    if attribute == "n":
        return r.choice([n for n in NUMBERS if isinstance(n, int)])
    return float("nan") if r.random() < 0.05 else r.choice(NUMBERS)


def a_range(r: Random, attribute: str) -> Range:
    if attribute == "s":
        low, high = sorted(r.sample(STRINGS, 2))
    elif attribute == "t":
        low, high = sorted(r.sample(MOMENTS, 2))  # type: ignore[assignment]
    elif attribute == "n":
        low, high = sorted(r.sample(range(6), 2))  # type: ignore[assignment]
        if r.random() < 0.5:
            return Range(low - 0.5, high, high_open=r.random() < 0.5)  # type: ignore[operator]
        return Range(low, high, low_open=r.random() < 0.3)
    else:
        low, high = sorted(r.sample(NUMBERS, 2))  # type: ignore[assignment]
        if low == high:
            return Range(low, high)
    ends = r.random()
    if ends < 0.15:
        return Range(None, high, high_open=r.random() < 0.5 and high != "")
    if ends < 0.3:
        return Range(low, None, low_open=r.random() < 0.5 and repr(low) != "inf")
    if ends < 0.35:
        return Range()
    return Range(low, high, low_open=r.random() < 0.5, high_open=r.random() < 0.3)


def values(r: Random, space: str) -> dict[str, Any]:
    names = "xnstbu" if space == "Place" else "xsu"
    return {name: value(r, name) for name in names if r.random() < 0.7}


def literal(r: Random, attribute: str) -> str:
    if attribute == "s":
        return f"'{r.choice(STRINGS)}'"
    if attribute == "t":
        return f"TIMESTAMP '{r.choice(MOMENTS):%Y-%m-%d %H:%M:%S}'"
    if attribute == "n":
        return str(r.choice([n for n in NUMBERS if isinstance(n, int)]))
    return str(r.choice([n for n in NUMBERS if n != float("inf")]))


def predicate(r: Random, space: str) -> str:
    name = r.choice("xnstbu" if space == "Place" else "xsu")
    if name == "b":
        return r.choice(["b", "NOT b", "b IS NULL", "b IS NOT NULL"])
    kind = r.choice("xst") if name == "u" else name
    chance = r.random()
    if chance < 0.1:
        return f"{name} IS {r.choice(['', 'NOT '])}NULL"
    if chance < 0.25:
        low, high = literal(r, kind), literal(r, kind)
        return f"{name} BETWEEN {low} AND {high}"
    if chance < 0.35:
        return f"{name} IN ({literal(r, kind)}, {literal(r, kind)})"
    if chance < 0.5 and kind == "s":
        return f"{name} {r.choice(['', 'NOT '])}LIKE '{r.choice(['%b', 'a%', '_', '%a%', 'a_%'])}'"
    return f"{name} {r.choice(['=', '<>', '<', '<=', '>', '>='])} {literal(r, kind)}"


def condition(r: Random, space: str = "Place") -> str:
    text = predicate(r, space)
    for _ in range(r.randrange(3)):
        text = f"{text} {r.choice(['AND', 'AND', 'OR'])} {predicate(r, space)}"
    return f"NOT ({text})" if r.random() < 0.1 else text


FILTERS: dict[int, list[Filter]] = {
    1: ["all", "any", AtLeast(1)],
    2: ["all", "any", AtLeast(2), "a AND NOT b", "a OR b", "(a OR b) AND NOT (a AND b)"],
    3: ["all", "any", AtLeast(2), "a AND (b OR NOT c)", "c AND NOT a", "(a AND b) OR (b AND c)"],
}


def publication(r: Random) -> Any:
    if r.random() < 0.7:
        return values(r, "Place")
    n = r.choice([1, 2, 2, 3])
    spaces = [r.choice(["Place", "Place", "News"]) for _ in range(n)]
    regions = {
        name: ObjectRegion(values(r, space), space)
        for name, space in zip("abc", spaces, strict=False)
    }
    return Publication(regions, r.choice(FILTERS[n]))


def subscription(r: Random) -> Any:
    if r.random() < 0.6:
        return condition(r)
    n = r.choice([1, 2, 2, 3])
    spaces = [r.choice(["Place", "Place", "News"]) for _ in range(n)]
    regions = {
        name: InterestRegion(condition(r, space), {}, space)
        for name, space in zip("abc", spaces, strict=False)
    }
    return Interest(regions, r.choice(FILTERS[n]))
