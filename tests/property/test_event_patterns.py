"""Event patterns on random events, against a small evaluator that searches for a match.

The evaluator shares nothing with the package: it flattens an event to its values with the elements
of lists that they are in, and tries for the fields of a pattern, in the order of their names, all
values that go together.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin import Matcher
from tocsin.language.dialects import write

TEXTS = ["", "a", "ab", "aB", "b", "10.0.0.1", "10.0.1.9", "2001:db8::1", "a*b", "%", "_", "null"]
NUMBERS = [0, 1, -1, 2.5, 5, 300, 1e10]
NAMES = "abc"


class Draw:
    """Random patterns and events from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        return self.random.choice(TEXTS)

    def number(self) -> float:
        return self.random.choice(NUMBERS)

    def scalar(self) -> Any:
        return self.random.choice([self.text(), self.text(), self.number(), None, True, False])

    def event(self) -> dict[str, Any]:
        return {name: self.value(1) for name in NAMES if self.random.random() < 0.8}

    def value(self, depth: int) -> Any:
        kind = self.random.random()
        if kind < 0.45 or depth > 3:
            return self.scalar()
        if kind < 0.7:
            names = self.random.sample(NAMES, self.random.randint(0, 3))
            return {name: self.value(depth + 1) for name in names}
        return [self.value(depth + 1) for _ in range(self.random.choice([0, 1, 2, 2, 3]))]

    def pattern(self, depth: int = 0) -> dict[str, Any]:
        names = self.random.sample(NAMES, self.random.choice([1, 1, 2, 3]))
        nested = depth < 2
        pattern: dict[str, Any] = {
            name: self.pattern(depth + 1) if nested and self.random.random() < 0.4 else self.field()
            for name in names
        }
        if depth < 2 and self.random.random() < 0.15:
            pattern["$or"] = [self.pattern(2), self.pattern(2)]
        return pattern

    def field(self) -> list[Any]:
        n = self.random.choice([1, 1, 2, 3])
        return [self.random.choice([self.scalar, self.test, self.test])() for _ in range(n)]

    def test(self) -> dict[str, Any]:
        low, high = sorted(self.random.sample(NUMBERS, 2))
        texts = [self.text() or "x" for _ in range(2)]
        wildcard = self.random.choice(["a*", "*b", "*", "1*.*", "a\\*b"])
        return self.random.choice(
            [
                {"prefix": self.text()},
                {"suffix": self.text()},
                {"prefix": {"equals-ignore-case": self.text()}},
                {"suffix": {"equals-ignore-case": self.text()}},
                {"equals-ignore-case": self.text()},
                {"wildcard": wildcard},
                {"numeric": [">", low, "<=", high]},
                {"numeric": [self.random.choice("<>="), low]},
                {"anything-but": self.random.choice([texts, texts[0], [low, high], low])},
                {"anything-but": {"prefix": texts}},
                {"anything-but": {"suffix": texts[0]}},
                {"anything-but": {"equals-ignore-case": texts}},
                {"anything-but": {"wildcard": [wildcard, "b*"]}},
                {"exists": True},
                {"exists": False},
                {"cidr": self.random.choice(["10.0.0.0/24", "10.0.0.0/8", "2001:db8::/32"])},
            ]
        )


# The evaluator.


def alternatives(pattern: dict[str, Any], path: str = "") -> list[dict[str, list[Any]]]:
    """Return the fields of a pattern, for each way to choose within `$or`."""
    ways: list[dict[str, list[Any]]] = [{}]
    for name, inner in pattern.items():
        if name == "$or":
            more = [way for each in inner for way in alternatives(each, path)]
        elif isinstance(inner, dict):
            more = alternatives(inner, f"{path}{name}.")
        else:
            more = [{path + name: inner}]
        ways = [{**way, **each} for way in ways for each in more]
    return ways


def flatten(
    value: Any, path: str, within: dict[int, int], lists: list[int]
) -> Iterator[tuple[str, Any, dict[int, int]]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flatten(inner, f"{path}.{name}" if path else name, within, lists)
    elif isinstance(value, list):
        lists.append(0)
        number = len(lists)
        for at, inner in enumerate(value):
            chosen = {number: at} if isinstance(inner, dict | list) else {}
            yield from flatten(inner, path, within | chosen, lists)
    else:
        yield path, value, within


def go_together(one: dict[int, int], other: dict[int, int]) -> bool:
    return all(other.get(number, at) == at for number, at in one.items())


def fits(pattern: dict[str, Any], event: dict[str, Any]) -> bool:
    leaves = list(flatten(event, "", {}, []))
    return any(search(sorted(way.items()), leaves, {}) for way in alternatives(pattern))


def search(fields: list[tuple[str, list[Any]]], leaves: list[Any], within: dict[int, int]) -> bool:
    if not fields:
        return True
    (path, tests), *rest = fields
    usable = [(value, own) for at, value, own in leaves if at == path and go_together(within, own)]
    if {"exists": False} in tests and not usable and search(rest, leaves, within):
        return True
    return any(
        any(holds(test, value) for test in tests) and search(rest, leaves, within | own)
        for value, own in usable
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    return (type(one) is type(other) is str and one == other) or (
        not isinstance(one, str) and not isinstance(other, str) and one == other
    )


def holds(test: Any, value: Any) -> bool:
    if not isinstance(test, dict):
        if isinstance(test, str) and ":" in test:
            return isinstance(value, str) and address(value) == address(test)
        return same(test, value)
    ((name, of),) = test.items()
    if name == "exists":
        return bool(of)
    if name == "anything-but":
        if isinstance(of, dict):
            ((name, of),) = of.items()
            return not any(holds({name: each}, value) for each in listed(of))
        return not any(same(each, value) for each in listed(of))
    if name == "numeric":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        pairs = zip(of[::2], of[1::2], strict=True)
        return all(COMPARE[op](value, number) for op, number in pairs)
    if not isinstance(value, str):
        return False
    if isinstance(of, dict):
        of, value = of["equals-ignore-case"].lower(), value.lower()
    if name == "cidr":
        return address(value) is not None and address(value) in ip_network(of)
    if name == "prefix":
        return value.startswith(of)
    if name == "suffix":
        return value.endswith(of)
    if name == "equals-ignore-case":
        return value.lower() == of.lower()
    pieces = [re.escape(piece.replace("\0", "*")) for piece in of.replace("\\*", "\0").split("*")]
    return re.fullmatch(".*".join(pieces), value, re.DOTALL) is not None


COMPARE = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def address(text: str) -> Any:
    try:
        return ip_address(text)
    except ValueError:
        return None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_matches_are_those_that_a_search_finds(seed: int) -> None:
    draw = Draw(seed)
    patterns = [draw.pattern() for _ in range(30)]
    events = [draw.event() for _ in range(15)]
    written = [write(json.dumps(pattern), "eventbridge") for pattern in patterns]
    one_by_one, bulk = Matcher(), Matcher()
    for number, text in enumerate(written):
        one_by_one.subscribe(number, text)
    bulk.subscribe_many(pa.table({"id": range(len(written)), "where": written}))
    expected = [{n for n, p in enumerate(patterns) if fits(p, event)} for event in events]
    for m in (one_by_one, bulk):
        found = [set(ids) for ids in m.match_batch(events)]
        for event, ids, right in zip(events, found, expected, strict=True):
            wrong = [patterns[n] for n in range(30) if (n in ids) != (n in right)]
            assert not wrong, (event, wrong)
    assert [set(one_by_one.match(event)) for event in events] == expected
