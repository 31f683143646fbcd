"""Predicates: equal conditions are one, equalities are known as such, nothing is left behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tocsin.encode.events import to_batch
from tocsin.language import parse
from tocsin.model import EventType
from tocsin.normalize import normalize
from tocsin.normalize.layout import from_forms
from tocsin.normalize.table import ConjunctionTable
from tocsin_lab.engines.clustering.index import PredicateIndex
from tocsin_lab.engines.clustering.predicates import NO_DIMENSION, PredicateBook

WHOLE = EventType("Whole", n=int)


def table(*texts: str, event_type: EventType | None = None) -> ConjunctionTable:
    return from_forms([normalize(parse(text), event_type) for text in texts])


def satisfied(index: PredicateIndex, *events: dict[str, Any]) -> list[list[int]]:
    index.flush()
    cells = index.encode(to_batch(list(events)))
    predicates, ends = index.satisfied(cells, 0, len(events))
    return [
        sorted(p for g in range(len(ends)) for p in predicates[ends[g, k] : ends[g, k + 1]])
        for k in range(len(events))
    ]


def test_equal_conditions_are_one_predicate_however_they_are_written() -> None:
    book = PredicateBook()
    first = book.intern(table("x = 1", "x = 1.0", "x >= 1 AND x <= 1", "x = 2", "y = 1"))
    assert first[0] == first[1] == first[2]
    assert len(set(first.tolist())) == 3
    assert book.uses[first[0]] == 3
    again = book.intern(table("y = 1", "x = 1"))
    assert again.tolist() == [first[4], first[0]]


def test_strings_of_different_loads_are_distinguished() -> None:
    book = PredicateBook()
    b = book.intern(table("s = 'b'"))
    a_and_b = book.intern(table("s = 'a'", "s = 'b'"))
    assert a_and_b[1] == b[0] != a_and_b[0]


@pytest.mark.parametrize(
    "text",
    ["x = 1", "x = 0.5", f"x = {2**60 + 1}", "s = 'a'", "s = ''", "b", "NOT b",
     "t = TIMESTAMP '2026-01-01'", "x >= 5 AND x < 6"],
)  # fmt: skip
def test_an_equality_is_known_as_one(text: str) -> None:
    book = PredicateBook()
    assert book.dimension[book.intern(table(text))][0] != NO_DIMENSION


@pytest.mark.parametrize(
    "text",
    ["x < 1", "x <> 1", "x IN (1, 2)", "x IS NULL", "x IS NOT NULL", "x = 1 OR x IS NULL",
     "s LIKE 'a%'", "x BETWEEN 5 AND 6", "x >= 5.5 AND x < 6.5", "b = TRUE OR b = FALSE"],
)  # fmt: skip
def test_anything_else_is_no_equality(text: str) -> None:
    book = PredicateBook()
    assert book.dimension[book.intern(table(text))][0] == NO_DIMENSION


def test_no_two_equalities_of_a_dimension_hold_together() -> None:
    book = PredicateBook()
    numbers = book.intern(table("x = 5", "x >= 5 AND x < 6", "x = 6"))
    one, unit, other = book.dimension[numbers].tolist()
    assert one == other != unit
    index = PredicateIndex(book)
    assert satisfied(index, {"x": 5}, {"x": 5.5}) == [sorted(numbers[:2]), [numbers[1]]]


def test_integers_of_a_declared_attribute_are_equalities_too() -> None:
    book = PredicateBook()
    numbers = book.intern(table("n = 5", "n = 6", "n > 5", event_type=WHOLE))
    dimensions = book.dimension[numbers].tolist()
    assert dimensions[0] == dimensions[1] != NO_DIMENSION
    assert dimensions[2] == NO_DIMENSION
    assert book.shares(numbers).tolist() == [0.5, 0.5, 0.5], "one of two values, and a guess"


def test_predicates_of_every_generation_are_found() -> None:
    book = PredicateBook()
    index = PredicateIndex(book)
    limits: dict[int, float] = {}
    for i in range(40):
        (p,) = book.intern(table(f"x < {i % 17 + 0.5}")).tolist()
        limits[p] = i % 17 + 0.5
        values = (-1, 3, 8.25, 16.5)
        expected = [sorted(p for p, limit in limits.items() if x < limit) for x in values]
        assert satisfied(index, *({"x": x} for x in values)) == expected
        index.check()


def test_an_unused_predicate_is_dropped_and_its_number_used_again() -> None:
    book = PredicateBook()
    index = PredicateIndex(book)
    for round in range(5):
        texts = [f"s = 'r{round}.{i}' OR x > {round}.{i}5" for i in range(600)]
        numbers = book.intern(table(*texts))
        index.flush()
        book.release(numbers)
        book.check(np.zeros(0, np.int64))
        index.check()
    index.flush()
    assert book.n_unused <= 1200
    assert book.room <= 4096, "numbers are used again"


def test_a_predicate_without_a_use_can_come_back() -> None:
    book = PredicateBook()
    index = PredicateIndex(book)
    first = book.intern(table("x = 1", "x = 2"))
    index.flush()
    book.release(first)
    again = book.intern(table("x = 2", "x = 2"))
    assert again.tolist() == [first[1], first[1]]
    assert book.n_unused == 1
    book.check(np.bincount(again))


def test_shares_are_measured_once_there_is_a_sample() -> None:
    book = PredicateBook()
    index = PredicateIndex(book)
    early = book.intern(table("x = 1"))
    index.profile(to_batch([{"x": 1}] * 30 + [{"x": 2}] * 10 + [{}] * 60))
    late = book.intern(table("x = 2", "x IS NULL"))
    index.flush()
    shares = book.shares(np.concatenate([early, late]))
    assert shares == pytest.approx([0.3, 0.1, 0.6], abs=0.01)
    assert index.presence("x") == pytest.approx(0.4)
    assert index.presence("y") == 1.0
