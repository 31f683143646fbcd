"""covers(a, b): whether every event that matches b matches a."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.strategies import (
    AGREEING,
    ANY,
    MIXED,
    NUMERIC,
    STRINGY,
    TYPED,
    Seeded,
    World,
    conjunction,
    conjunctions,
    event,
    expression,
    expressions,
)

from tocsin.language import parse, print_expression
from tocsin.language.computed import attribute_names
from tocsin.language.evaluate import evaluate
from tocsin.language.expression import And, Expression, Literal, Not, Or, operands, predicates
from tocsin.model import INT64_MAX, INT64_MIN, EventType, Kind
from tocsin.normalize import covers, normalize

DECLARED = EventType("Typed", dict(AGREEING.kinds))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x < 10", "x < 5"),
        ("x < 10", "x <= 5"),
        ("x <= 5", "x < 5"),
        ("x < 10", "x = 3 AND y = 4"),
        ("x <> 1", "x = 2"),
        ("x <> 1", "x > 1"),
        ("x IN (1, 2, 3)", "x IN (1, 3)"),
        ("x NOT IN (1, 2)", "x NOT IN (1, 2, 3)"),
        ("x IS NOT NULL", "x = 5"),
        ("x IS NOT NULL", "x LIKE '%a%'"),
        ("x IS NULL", "x IS NULL AND y = 1"),
        ("TRUE", "x = 1"),
        ("TRUE", "FALSE"),
        ("FALSE", "FALSE"),
        ("FALSE", "x < 1 AND x > 2"),
        ("x LIKE 'a%'", "x LIKE 'ab%'"),
        ("x LIKE 'a%'", "x = 'abc'"),
        ("x LIKE '%b%'", "x = 'abc'"),
        ("x LIKE '%b%'", "x IN ('abc', 'b')"),
        ("x LIKE 'a%'", "x LIKE 'a%c'"),
        ("x LIKE '%b%'", "x LIKE '%b%' AND x > 'c'"),
        ("x >= 'a' AND x < 'b'", "x LIKE 'a_'"),
        ("x NOT LIKE 'a%'", "x LIKE 'b%'"),
        ("x < 10 OR y = 1", "x < 5"),
        ("x < 10 OR y = 1", "x < 5 OR y = 1"),
        ("x < 10", "x < 5 OR x BETWEEN 6 AND 9"),
        ("x", "x AND y"),
        ("x >= 1", "x >= 1.0"),
        (f"x > {2**53}", f"x >= {2**53 + 1}"),
        ("t > TIMESTAMP '2026-07-01'", "t >= TIMESTAMP '2026-07-01 00:00:00.000001'"),
        ("x > 'a'", "x >= 'a\0'"),
        ("x IN (TRUE, FALSE)", "x <= TRUE"),
    ],
)
def test_a_wider_condition_covers_a_narrower_one(a: str, b: str) -> None:
    assert covers(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x < 5", "x < 10"),
        ("x < 5", "x <= 5"),
        ("x < 10 AND y = 1", "x < 5"),
        ("x <> 1", "x < 2"),
        ("x < 5", "TRUE"),
        ("x IS NOT NULL", "y = 1"),
        ("x IS NULL", "x = 1"),
        ("x = 1 OR x <> 1", "x IS NOT NULL"),  # a string is not a number, NaN is neither
        ("FALSE", "x = 1"),
        ("x = 1", "x = '1'"),
        ("x = 1", "x = TRUE"),
        ("x LIKE 'ab%'", "x LIKE 'a%'"),
        ("x LIKE '%b%'", "x IN ('abc', 'c')"),
        ("x LIKE 'a%c'", "x LIKE 'a%'"),
        ("x < 5 OR y = 1", "x < 10"),
        (f"x > {2**53}", f"x >= {2**53}"),
        ("x >= 1", "x > 0"),
        ("x >= 4", "x > 3"),
    ],
)
def test_a_narrower_condition_does_not_cover_a_wider_one(a: str, b: str) -> None:
    assert not covers(a, b)


def test_what_is_declared_is_used() -> None:
    declared = EventType("T", n=int, b=bool, s=str)
    assert covers("n >= 4", "n > 3", declared)
    assert covers("n = 4", "n > 3 AND n < 5", declared)
    assert covers("n <= 3 OR n > 3", "n IS NOT NULL", declared)
    assert covers("b OR NOT b", "b IS NOT NULL", declared)
    assert covers("s LIKE '%'", "s IS NOT NULL", declared)
    assert not covers("n >= 5", "n > 3", declared)


def test_covers_takes_texts_expressions_and_normal_forms() -> None:
    assert covers(parse("x < 10"), "x < 5")
    assert covers(normalize(parse("x < 10")), parse("x < 5"))


def test_covers_is_sound_but_not_complete_for_disjunctions() -> None:
    a = "x = 1 AND y < 5 OR x <> 1 AND y < 6"
    assert covers(a, "x = 1 AND y < 5")
    assert not covers(a, "x < 9 AND y < 5")  # true, but it takes both conjunctions of a


# Soundness.


@pytest.mark.parametrize(
    "world", [TYPED, MIXED, NUMERIC, STRINGY], ids=["typed", "mixed", "numeric", "stringy"]
)
def test_an_event_that_matches_a_covered_condition_matches_the_covering_one(world: World) -> None:
    source = Seeded(11)
    conditions = [conjunction(source, world) for _ in range(60)]
    conditions += [expression(source, world, depth=2) for _ in range(60)]
    rows = [event(source, world) for _ in range(60)]
    forms = [normalize(condition) for condition in conditions]
    matches = [{i for i, row in enumerate(rows) if form.holds(row)} for form in forms]
    n_covering = 0
    for i, j in itertools.permutations(range(len(forms)), 2):
        if covers(forms[i], forms[j]):
            n_covering += not forms[j].is_never and not forms[i].is_always
            assert matches[j] <= matches[i], (
                f"{print_expression(conditions[i])}  covers  {print_expression(conditions[j])}"
            )
    assert n_covering > 50


@given(expressions(MIXED, depth=2), expressions(MIXED, depth=2))
def test_a_disjunction_covers_its_parts(a: Expression, b: Expression) -> None:
    either = Or((a, b))
    assert covers(either, a)
    assert covers(either, b)
    assert covers(a, a)


@given(conjunctions(MIXED), expressions(MIXED, depth=2))
def test_a_conjunction_is_covered_by_its_parts(a: Expression, b: Expression) -> None:
    if len(normalize(a)) <= 1:
        assert covers(a, And((a, b)))


@given(conjunctions(NUMERIC), conjunctions(NUMERIC), conjunctions(NUMERIC))
def test_covering_is_transitive_for_conjunctions(
    a: Expression, b: Expression, c: Expression
) -> None:
    forms = [normalize(e) for e in (a, Or((a, b)), And((a, c)))]
    for p, q, r in itertools.permutations(forms, 3):
        if covers(p, q) and covers(q, r) and max(map(len, (p, q, r))) <= 1:
            assert covers(p, r)


# Exactness: for single conjunctions a "no" has a witness.

APART: Mapping[Kind, Any] = {
    Kind.INTEGER: (0, 1, 2, 3, 5, 10, -1, -7, 2**53, 2**53 + 2, INT64_MIN, INT64_MAX),
    Kind.FLOAT: (0.0, -0.0, 0.5, 1.5, 2.5, -0.5, 3.0, 1e18, 2.0**53, 1e300, -1e300),
    Kind.STRING: ("", "a", "b", "ab", "\0", "a\0", "é", "\U0010ffff", "\ud7ff", "\ue000"),
    Kind.BOOLEAN: (False, True),
    Kind.TIMESTAMP: tuple(
        dt.datetime(2026, 7, day, 0, 0, 0, micro, tzinfo=dt.UTC)
        for day in (1, 2)
        for micro in (0, 1, 2)
    ),
}
"""Values between which others lie: `covers` counts the number line as dense."""
APART_MIXED = World({"x": ANY, "y": ANY, "z": ANY}, pools=APART)
APART_TYPED = World(
    {"i": Kind.INTEGER, "f": Kind.FLOAT, "s": Kind.STRING, "b": Kind.BOOLEAN, "t": Kind.TIMESTAMP},
    ghosts=(),
    unmentioned=(),
    clashes=False,
    pools=APART,
)


def candidates(conditions: Iterable[Expression], kind: Kind | None) -> list[Any]:
    """Return values of which one lies in every set that the conditions' literals can cut out."""
    found: dict[Kind, set[Any]] = {k: set() for k in Kind}
    for condition in conditions:
        for predicate in predicates(condition):
            for operand in operands(predicate):
                if isinstance(operand, Literal) and operand.kind is not None:
                    found[operand.kind].add(operand.value)
    numbers = sorted(found[Kind.INTEGER] | found[Kind.FLOAT] | {0})
    integers = {math.floor(n) + d for n in numbers for d in (-1, 0, 1, 2)}
    floats = {float(n) for n in numbers} | {math.inf, -math.inf, math.nan}
    floats |= {float(a) + (float(b) - float(a)) / 2 for a, b in itertools.pairwise(numbers)}
    strings = found[Kind.STRING] | {""} | {s + "\0" for s in found[Kind.STRING]}
    strings |= {s + "\0\0" for s in found[Kind.STRING]} | {"\U0010ffff" * 9}
    moment = dt.timedelta(microseconds=1)
    times = {t + d * moment for t in found[Kind.TIMESTAMP] or {TIME} for d in (-1, 0, 1)}
    fitting = [n for n in integers if INT64_MIN <= n <= INT64_MAX]
    values: dict[Kind | None, list[Any]] = {
        Kind.INTEGER: fitting,
        Kind.FLOAT: [*floats, *fitting],  # an attribute declared float may hold an integer
        Kind.STRING: list(strings),
        Kind.BOOLEAN: [False, True],
        Kind.TIMESTAMP: list(times),
    }
    if kind is not ANY:
        return [None, *values[kind]]
    return [None, [], *itertools.chain.from_iterable(values.values())]


TIME = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def parts_by_attribute(condition: Expression) -> dict[str, list[Expression]]:
    parts = condition.operands if isinstance(condition, And) else (condition,)
    found: dict[str, list[Expression]] = {}
    for part in parts:
        (name,) = attribute_names(part)
        found.setdefault(name, []).append(part)
    return found


def satisfied(parts: list[Expression], name: str, value: Any) -> bool:
    return all(evaluate(part, {name: value}.get) is True for part in parts)


def covers_by_search(a: Expression, b: Expression, world: World) -> bool:
    """Decide covering of conjunctions by trying values, one attribute at a time."""
    of_a, of_b = parts_by_attribute(a), parts_by_attribute(b)
    witness = False
    for name in of_a.keys() | of_b.keys():
        values = candidates((a, b), world.kinds.get(name, ANY))
        in_b = [v for v in values if satisfied(of_b.get(name, []), name, v)]
        if not in_b:
            return True  # nothing matches b
        witness |= any(not satisfied(of_a.get(name, []), name, v) for v in in_b)
    return not witness


@pytest.mark.parametrize(
    ("world", "declared"),
    [
        (APART_MIXED, None),
        (APART_TYPED, EventType("Apart", dict(APART_TYPED.kinds))),
    ],
    ids=["mixed", "typed"],
)
def test_covers_is_exact_for_conjunctions(world: World, declared: EventType | None) -> None:
    source = Seeded(13)
    n_covering = n_not = 0
    for _ in range(700):
        a, b = conjunction(source, world), conjunction(source, world)
        if source.below(2):
            b = And((*_operands(a), *_operands(b)))
        if source.below(3) == 0:
            a = And((*_operands(a), *_operands(conjunction(source, world))))
        found = covers(normalize(a, declared), normalize(b, declared))
        expected = covers_by_search(a, b, world)
        assert found is expected, f"{print_expression(a)}  covers  {print_expression(b)}"
        n_covering += found
        n_not += not found
    assert n_covering > 100
    assert n_not > 100


def _operands(condition: Expression) -> tuple[Expression, ...]:
    return condition.operands if isinstance(condition, And) else (condition,)


@settings(max_examples=150)
@given(conjunctions(APART_MIXED), conjunctions(APART_MIXED), st.booleans())
def test_covers_is_exact_for_conjunctions_as_hypothesis_finds_them(
    a: Expression, b: Expression, narrowed: bool
) -> None:
    if narrowed:
        b = And((*_operands(a), *_operands(b)))
    assert covers(a, b) is covers_by_search(a, b, APART_MIXED)


def test_a_negated_conjunction_of_one_attribute_is_exact_too() -> None:
    assert covers("NOT (x > 1 AND x < 5)", "x <= 1")
    assert covers("NOT (x > 1 AND x < 5)", "x >= 5 AND y = 1")
    assert not covers("NOT (x > 1 AND x < 5)", "x <= 2")


def test_a_negation_is_covered_like_anything_else() -> None:
    assert covers(Not(parse("x = 1")), "x = 2")
