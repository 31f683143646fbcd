"""Expression → text → the same expression."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.property.strategies import (
    MIXED,
    STRINGY,
    TYPED,
    Drawn,
    Seeded,
    expression,
    expressions,
    with_parameters,
)

from tocsin.errors import ConditionSyntaxError
from tocsin.language import parse, print_expression
from tocsin.language.expression import Comparison, Like, Literal, Parameter, Truth
from tocsin.language.parser import escapes_are_sound
from tocsin.language.printer import print_attribute, print_operand, print_string
from tocsin.model import INT64_MAX, INT64_MIN, Kind

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: not name.startswith("\0")
)
strings = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=150)
@given(expressions(TYPED) | expressions(MIXED) | expressions(STRINGY))
def test_printing_and_parsing_gives_the_same_expression(given_expression: Any) -> None:
    text = print_expression(given_expression)
    found = parse(text)
    assert found == given_expression
    assert print_expression(found) == text


def test_printing_and_parsing_gives_the_same_expression_thousands_of_times() -> None:
    source = Seeded(20260701)
    for world in (TYPED, MIXED, STRINGY):
        for _ in range(700):
            made = expression(source, world, depth=4)
            assert parse(print_expression(made)) == made


@given(st.data())
def test_parameters_are_printed_and_read_by_name(data: st.DataObject) -> None:
    source = Drawn(data.draw)
    made, params = with_parameters(source, expression(source, TYPED))
    text = print_expression(made)
    assert parse(text) == made
    assert all(f":{name}" in text for name in params)


@given(names)
@example("and")
@example("TRUE")
@example("a.b")
@example(".")
@example("a..b")
@example("a.")
@example("timestamp")
@example("select")
@example("1a")
@example("a b")
@example('"')
@example("`")
@example("x.and")
@example("and.x")
@example("ıs")
@example("a\0b")
@example("a\nb")
@example("²")
@example("$a")
@example(":p")
def test_any_name_is_printed_so_that_it_is_read_again(name: str) -> None:
    assert parse(print_attribute(name)) == Truth(name)
    made = Comparison(name, "=", Literal(1, Kind.INTEGER))
    assert parse(print_expression(made)) == made


@given(strings)
@example("\0")
@example("'")
@example("\\'")
@example("\r\n")
def test_any_string_is_printed_so_that_it_is_read_again(value: str) -> None:
    made = Comparison("x", "=", Literal(value, Kind.STRING))
    assert parse(print_expression(made)) == made


@given(strings, st.none() | st.characters(exclude_categories=["Cs"]))
def test_any_pattern_is_printed_so_that_it_is_read_again(pattern: str, escape: str | None) -> None:
    made = Like("x", Literal(pattern, Kind.STRING), escape)
    text = print_expression(made)
    if escape is None or escapes_are_sound(pattern, escape):
        assert parse(text) == made
    else:
        with pytest.raises(ConditionSyntaxError, match="the escape character"):
            parse(text)


@given(st.integers(INT64_MIN, INT64_MAX))
@example(INT64_MIN)
@example(INT64_MAX)
def test_any_integer_is_printed_so_that_it_is_read_again(value: int) -> None:
    made = Comparison("x", "<", Literal(value, Kind.INTEGER))
    assert parse(print_expression(made)) == made


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
@example(5e-324)
@example(1e16)
@example(1e22)
def test_any_finite_float_is_printed_so_that_it_is_read_again(value: float) -> None:
    made = Comparison("x", "<", Literal(value, Kind.FLOAT))
    found = parse(print_expression(made))
    assert found == made
    assert isinstance(found, Comparison)
    assert isinstance(found.operand, Literal)
    assert repr(found.operand.value) == repr(value)  # the sign of zero too


@given(st.datetimes(timezones=st.just(dt.UTC)))
@example(dt.datetime.min.replace(tzinfo=dt.UTC))
@example(dt.datetime.max.replace(tzinfo=dt.UTC))
def test_any_timestamp_is_printed_so_that_it_is_read_again(value: dt.datetime) -> None:
    made = Comparison("x", "<", Literal(value, Kind.TIMESTAMP))
    assert parse(print_expression(made)) == made


@pytest.mark.parametrize(
    ("operand", "text"),
    [
        (Literal(None, None), "NULL"),
        (Literal(True, Kind.BOOLEAN), "TRUE"),
        (Literal(1, Kind.INTEGER), "1"),
        (Literal(1.0, Kind.FLOAT), "1.0"),
        (Literal(float("inf"), Kind.FLOAT), "(1e308 * 10)"),
        (Literal(float("-inf"), Kind.FLOAT), "(-1e308 * 10)"),
        (Literal("it's", Kind.STRING), "'it''s'"),
        (Parameter("p"), ":p"),
    ],
)
def test_an_operand_is_printed_like_this(operand: Literal | Parameter, text: str) -> None:
    assert print_operand(operand) == text


def test_a_string_is_printed_with_its_quotes_doubled_and_nothing_else_changed() -> None:
    assert print_string("a'b\\c\nd") == "'a''b\\c\nd'"


@pytest.mark.parametrize(
    "text", ["(a OR b) AND c", "NOT (a AND b)", "a OR b AND NOT c", "NOT NOT a", "NOT x = 1 AND y"]
)
def test_parentheses_are_printed_only_where_they_matter(text: str) -> None:
    assert print_expression(parse(text)) == text
