"""The evaluator: SQL's three-valued logic, spelled out in truth tables."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from typing import Any

import pytest

from tocsin.language import parse
from tocsin.language.evaluate import evaluate
from tocsin.language.expression import And, Constant, Not, Or
from tocsin.language.functions import compare, like
from tocsin.model import INT64_MAX

TRUTHS = (True, False, None)


def nothing(_: str) -> object:
    return None


def truth(text: str, **values: Any) -> bool | None:
    return evaluate(parse(text), values.get)


@pytest.mark.parametrize(("a", "b"), [*itertools.product(TRUTHS, TRUTHS)])
def test_and_and_or_are_kleenes(a: bool | None, b: bool | None) -> None:
    rank = {False: 0, None: 1, True: 2}
    both, either = And((Constant(a), Constant(b))), Or((Constant(a), Constant(b)))
    assert evaluate(both, nothing) is min((a, b), key=rank.__getitem__)
    assert evaluate(either, nothing) is max((a, b), key=rank.__getitem__)


@pytest.mark.parametrize("a", TRUTHS)
def test_not_leaves_the_unknown_unknown(a: bool | None) -> None:
    assert evaluate(Not(Constant(a)), nothing) is (None if a is None else not a)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("x = 1", 1, True),
        ("x = 1", 1.0, True),
        ("x = 1", 2, False),
        ("x = 1", None, None),
        ("x = NULL", 1, None),
        ("x = 1", "1", None),
        ("x <> 1", "1", None),
        ("x = 1", True, None),
        ("x <> 1", math.nan, None),
        ("x IS NULL", None, True),
        ("x IS NULL", math.nan, False),
        ("x IS NOT NULL", None, False),
        ("x BETWEEN 1 AND 3", 2, True),
        ("x BETWEEN 3 AND 1", 2, False),
        ("x BETWEEN 3 AND NULL", 2, False),
        ("x BETWEEN 1 AND NULL", 2, None),
        ("x NOT BETWEEN 3 AND NULL", 2, True),
        ("x IN (1, 2)", 2, True),
        ("x IN (1, NULL)", 2, None),
        ("x IN (2, NULL)", 2, True),
        ("x NOT IN (1, NULL)", 2, None),
        ("x NOT IN (2, NULL)", 2, False),
        ("x NOT IN (1, 'a')", 2, None),
        ("x LIKE 'a%'", "ab", True),
        ("x LIKE 'a%'", 5, None),
        ("x LIKE NULL", "a", None),
        ("x NOT LIKE 'a%'", "b", True),
        ("x", True, True),
        ("x", False, False),
        ("x", 1, None),
        ("NOT x", None, None),
    ],
)
def test_predicates_are_true_false_or_unknown(text: str, value: Any, expected: bool | None) -> None:
    assert truth(text, x=value) is expected


def test_numbers_compare_by_their_mathematical_values() -> None:
    assert compare("=", 2**53 + 1, 2.0**53) is False
    assert compare(">", 2**53 + 1, 2.0**53) is True
    assert compare("<", INT64_MAX, 2.0**63) is True
    assert compare("=", 0.0, -0.0) is True
    assert compare("<", 1, math.inf) is True


def test_moments_compare_as_moments() -> None:
    east = dt.timezone(dt.timedelta(hours=2))
    assert compare("=", dt.datetime(2026, 7, 1, 12), dt.datetime(2026, 7, 1, 14, tzinfo=east))
    assert compare("<", dt.datetime(2026, 7, 1), dt.datetime(2026, 7, 1, 0, 0, 0, 1))
    assert compare("=", dt.datetime(1970, 1, 1), 0) is None


def test_strings_compare_by_code_point() -> None:
    assert compare("<", "\uffff", "😀") is True
    assert compare("<", "Z", "a") is True
    assert compare("<", "a", "a\0") is True


@pytest.mark.parametrize(
    ("text", "pattern", "escape", "expected"),
    [
        ("", "", None, True),
        ("", "%", None, True),
        ("", "_", None, False),
        ("a\nb", "a_b", None, True),
        ("a.b", "a.b", None, True),
        ("axb", "a.b", None, False),
        ("a%b", "a!%b", "!", True),
        ("axb", "a!%b", "!", False),
        ("a!b", "a!!b", "!", True),
        ("a\\b", "a\\b", None, True),
        ("😀", "_", None, True),
        ("é", "_", None, True),
        ("a" * 50, "%" * 50 + "b", None, False),
        ("(a)", "(_)", None, True),
    ],
)
def test_patterns_are_sql_patterns(
    text: str, pattern: str, escape: str | None, expected: bool
) -> None:
    assert like(text, pattern, escape) is expected


def test_a_pattern_on_anything_else_is_unknown() -> None:
    assert like(5, "%", None) is None
    assert like(None, "%", None) is None
    assert like("a", None, None) is None
