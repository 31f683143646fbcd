"""Text → expression: what is read, what is refused, and where the caret stands."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.property.strategies import TYPED, expressions

from tocsin.errors import ConditionSyntaxError, UnsupportedSyntaxError
from tocsin.language import parse, parse_shape, print_expression
from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Constant,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Parameter,
    Truth,
    map_operands,
    operands,
    predicates,
)
from tocsin.language.parser import MAX_DEPTH
from tocsin.language.tokens import KEYWORDS
from tocsin.model import Kind

ONE = Literal(1, Kind.INTEGER)
JULY = Literal(dt.datetime(2026, 7, 1, tzinfo=dt.UTC), Kind.TIMESTAMP)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", Comparison("x", "=", ONE)),
        ("x == 1", Comparison("x", "=", ONE)),
        ("x != 1", Comparison("x", "<>", ONE)),
        ("1 < x", Comparison("x", ">", ONE)),
        ("x = 1.0", Comparison("x", "=", Literal(1.0, Kind.FLOAT))),
        ("x = TRUE", Comparison("x", "=", Literal(True, Kind.BOOLEAN))),
        ("x = 'it''s'", Comparison("x", "=", Literal("it's", Kind.STRING))),
        ("x = NULL", Comparison("x", "=", Literal(None, None))),
        ("x = :p", Comparison("x", "=", Parameter("p"))),
        ("x < TIMESTAMP '2026-07-01T02:00+02:00'", Comparison("x", "<", JULY)),
        ("x BETWEEN 1 AND :p", Between("x", ONE, Parameter("p"))),
        ("x NOT BETWEEN 1 AND 1", Between("x", ONE, ONE, negated=True)),
        ("x IN (1, NULL)", In("x", (ONE, Literal(None, None)))),
        ("x NOT IN (1)", In("x", (ONE,), negated=True)),
        ("x LIKE '%\\%'", Like("x", Literal("%\\%", Kind.STRING))),
        ("x NOT LIKE 'a!%' ESCAPE '!'", Like("x", Literal("a!%", Kind.STRING), "!", negated=True)),
        ("x IS NULL", IsNull("x")),
        ("x IS NOT NULL", IsNull("x", negated=True)),
        ("x", Truth("x")),
        ("TRUE", Constant(True)),
        ("1 = 1", Constant(True)),
        ("NOT x", Not(Truth("x"))),
        ("a AND b AND (c AND d)", And((Truth("a"), Truth("b"), Truth("c"), Truth("d")))),
        ("a OR b AND c", Or((Truth("a"), And((Truth("b"), Truth("c")))))),
        ("NOT a AND b", And((Not(Truth("a")), Truth("b")))),
    ],
)
def test_a_condition_is_read_as_this_expression(text: str, expected: Any) -> None:
    assert parse(text) == expected


def test_an_integer_a_float_and_a_boolean_of_one_value_are_different_literals() -> None:
    assert len({parse("x = 1"), parse("x = 1.0"), parse("x = TRUE")}) == 3


# Errors.


@pytest.mark.parametrize("text", ["", " ", "\n", "\t \r\n "])
def test_an_empty_condition_is_refused(text: str) -> None:
    with pytest.raises(ConditionSyntaxError, match="ends too early") as caught:
        parse(text)
    assert caught.value.position == len(text)
    assert caught.value.expected == "an attribute, a literal, NOT or ("


def test_a_syntax_error_carries_its_facts() -> None:
    text = "firm = 'IBM'\n  AND price <\n  AND volume > 5"
    with pytest.raises(ConditionSyntaxError) as caught:
        parse(text)
    error = caught.value
    assert error.code == "syntax"
    assert error.text == text
    assert error.position == text.index("AND volume")
    assert (error.line, error.column) == (3, 3)
    assert error.message == "unexpected AND"
    assert error.expected == "an attribute, a literal or a parameter"
    assert str(error) == (
        "unexpected AND; expected an attribute, a literal or a parameter (line 3, column 3)\n"
        "  AND volume > 5\n"
        "  ^"
    )


def test_an_unsupported_feature_is_named() -> None:
    with pytest.raises(UnsupportedSyntaxError) as caught:
        parse("price < 5 AND firm GLOB 'ibm*'")
    assert caught.value.code == "unsupported"
    assert caught.value.feature == "GLOB"
    assert caught.value.hint == "write LIKE"
    assert caught.value.column == 20


def test_a_tab_before_the_caret_is_one_column() -> None:
    with pytest.raises(ConditionSyntaxError) as caught:
        parse("\tx\t<\t<")
    assert caught.value.highlight() == " x < <\n     ^"


@pytest.mark.parametrize("text", ["x <", "x GLOB 'a'", "x = 'open", "\ud800"])
def test_a_syntax_error_survives_pickling(text: str) -> None:
    with pytest.raises(ConditionSyntaxError) as caught:
        parse(text)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert vars(copy) == vars(caught.value)
    assert str(copy) == str(caught.value)


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(ConditionSyntaxError, match="not valid Unicode") as caught:
        parse("x = '\ud800'")
    assert caught.value.position == 5


# Depth and size.


@pytest.mark.parametrize(
    ("opening", "closing"), [("(", ")"), ("NOT ", ""), ("NOT (", ")"), ("(NOT ", ")")]
)
def test_nesting_is_allowed_to_the_limit_and_refused_beyond_it(opening: str, closing: str) -> None:
    cost = opening.count("NOT") + opening.count("(")
    deepest = MAX_DEPTH // cost
    parse(opening * deepest + "x = 1" + closing * deepest)
    for depth in (deepest + 1, 1_000, 20_000):
        with pytest.raises(ConditionSyntaxError, match="nested more than 100 deep") as caught:
            parse(opening * depth + "x = 1" + closing * depth)
        assert caught.value.position == len((opening * depth)[: deepest * len(opening)])


def test_open_parentheses_without_end_are_refused() -> None:
    with pytest.raises(ConditionSyntaxError):
        parse("(" * 200_000)


def test_alternating_levels_within_the_limit_are_printed_and_read_again() -> None:
    text = "x = 1"
    for level in range(MAX_DEPTH):
        text = f"({text}) {'AND' if level % 2 else 'OR'} a{level} = {level}"
    expression = parse(text)
    assert parse(print_expression(expression)) == expression


def test_a_parenthesis_that_closed_does_not_count_for_the_next() -> None:
    assert isinstance(parse(" AND ".join(["(NOT (x = 1))"] * 1_000)), And)


@pytest.mark.parametrize("word", ["AND", "OR"])
def test_length_is_not_depth(word: str) -> None:
    expression = parse(f" {word} ".join(f"x{i} = {i}" for i in range(20_000)))
    assert isinstance(expression, And | Or)
    assert len(expression.operands) == 20_000


def test_a_long_list_is_read() -> None:
    expression = parse(f"x IN ({', '.join(map(str, range(50_000)))})")
    assert isinstance(expression, In)
    assert len(expression.operands) == 50_000


@pytest.mark.parametrize(
    "text",
    [
        "x = '" + "a" * 1_000_000,
        "x = '" + "''" * 500_000,
        '"' + '""' * 500_000,
        "x = " + "9" * 1_000_000,
        "x = 1e" + "9" * 1_000_000,
        "x = 0." + "9" * 100_000 + "e999999999",
        " " * 1_000_000,
        "x " + " " * 1_000_000 + "?",
        "-" * 1_000_000,
        "- " * 200_000,
        "." * 300_000,
        "x = 1 AND " * 20_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_long_hostile_text_is_refused_soon(text: str) -> None:
    with pytest.raises(ConditionSyntaxError):
        parse(text)


PIECES = [
    *sorted(KEYWORDS),
    *("x", "order.total", '"odd name"', "`y`", "timestamp", "TIMESTAMP '2026-07-01'", "select"),
    *("1", "-1", "1.5", "1e5", "9223372036854775808", "1e999", "'a'", "''", "'it''s'", ":p"),
    *"= == <> != < <= > >= ( ) , . + - * / % || :: ; ? [ ] { } ~ ^ & | -> ->> <=> -- /* */".split(),
    *("'", '"', "`", ":", "$", "\\", "\0", "\n", "ILIKE", "CASE", "CAST", "f(", "\u2028", "ı", "²"),
]
soups = st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)


@given(st.text() | soups | st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example("x = \ud800")
@example("\0")
@example("x.")
@example("TIMESTAMP ")
@example("x = TIMESTAMP '\0'")
@example("NOT" * 50)
def test_any_text_is_read_or_refused_with_a_caret_in_it(text: str) -> None:
    check_read_or_refused(text)


def check_read_or_refused(text: str) -> None:
    try:
        expression = parse(text)
    except ConditionSyntaxError as caught:
        error = caught
    else:
        assert parse(print_expression(expression)) == expression
        return
    assert 0 <= error.position <= len(text)
    assert text[: error.position].count("\n") + 1 == error.line
    line = text.split("\n")[error.line - 1]
    assert 1 <= error.column <= len(line) + 1
    shown, caret = error.highlight().split("\n")
    assert caret.strip() == "^"
    assert len(caret) <= len(shown) + 1
    if error.column <= len(line) and line[error.column - 1] != "\t":
        assert shown[len(caret) - 1] == line[error.column - 1]
    assert str(error)


@given(expressions(), st.data())
def test_a_damaged_condition_is_read_or_refused(expression: Any, data: st.DataObject) -> None:
    text = print_expression(expression)
    place = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 5))
    damaged = text[:place] + data.draw(st.sampled_from(["", *PIECES])) + text[place + length :]
    check_read_or_refused(damaged)


# Shapes.


@given(expressions(TYPED))
def test_lifting_the_literals_and_putting_them_back_changes_nothing(expression: Any) -> None:
    literals = [
        operand
        for predicate in predicates(expression)
        for operand in operands(predicate)
        if isinstance(operand, Literal) and operand.kind not in (None, Kind.BOOLEAN)
    ]
    shape, n_literals, fixed = parse_shape(print_expression(expression))
    assert not fixed
    assert n_literals == len(literals)

    def put_back(operand: Literal | Parameter) -> Literal | Parameter:
        if isinstance(operand, Literal):
            return operand
        assert isinstance(operand.name, int)
        return literals[operand.name]

    assert map_operands(shape, put_back) == expression


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("1 = 1", (0, 1)),
        ("x = 1 AND 'a' < 'b'", (1, 2)),
        ("1 = NULL OR x", (0,)),
        ("x * 2 > 5 AND y = 3", (0,)),
        ("substring(x, 1, 2) = 'ab'", (0, 1)),
        ("(x = 1) = y", (0,)),
        ("CASE WHEN x = 1 THEN 2 ELSE 'a' END = 5 OR y BETWEEN 6 AND 7", (0, 1, 2)),
        ("exists(items, i -> i.price < 5) AND x IN (1, 2)", (0,)),
        ("x - 1 = 5", (0,)),
        ("t > now() - INTERVAL '1 day'", (0,)),
        ("u < INTERVAL 2 HOUR + TIMESTAMP '2026-07-01'", (0, 1)),
    ],
)
def test_literals_within_terms_are_not_lifted_out(text: str, fixed: tuple[int, ...]) -> None:
    assert parse_shape(text).fixed == fixed


@pytest.mark.parametrize("name", ["\0", "\0=1 + 1", "\0any tags"])
def test_a_name_cannot_pose_as_a_computed_value(name: str) -> None:
    for quote in '"`':
        with pytest.raises(ConditionSyntaxError, match="begins with NUL"):
            parse(f"{quote}{name}{quote} = 1")
