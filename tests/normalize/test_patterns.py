"""LIKE patterns: canonical forms, the intervals that some of them are, and matching."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.property.strategies import FRAGMENTS, STRINGS, Drawn, pattern

from tocsin.engines.evaluate import like
from tocsin.errors import ParameterError
from tocsin.normalize import lines
from tocsin.normalize.lines import TOP, Line
from tocsin.normalize.patterns import (
    MANY,
    ONE,
    Pattern,
    interval_of,
    parse_pattern,
    prefix_end,
    prefix_interval,
)

small_patterns = st.text("ab%_", max_size=8)
small_strings = st.text("ab", max_size=10)
edge_patterns = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join)
edge_strings = st.sampled_from(STRINGS) | st.lists(st.sampled_from(STRINGS), max_size=3).map(
    "".join
)


@given(small_patterns | edge_patterns, small_strings | edge_strings)
@example("%", "")
@example("_", "")
@example("%_%", "")
@example("a%a", "a")
@example("%ab%b", "ab")
@example("%_b%", "bb")
@example("_%_", "😀")
@example("a\nb", "a\nb")
@example("%", "\n")
def test_a_pattern_fits_what_the_evaluator_says_it_fits(text: str, value: str) -> None:
    assert parse_pattern(text, None).matches(value) is like(value, text, None)


@given(st.data(), st.sampled_from("\\!%_'aé😀"), small_strings | edge_strings)
def test_an_escaped_pattern_fits_what_the_evaluator_says_it_fits(
    data: st.DataObject, escape: str, value: str
) -> None:
    text = pattern(Drawn(data.draw), escape)
    assert parse_pattern(text, escape).matches(value) is like(value, text, escape)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("abc", ("abc",)),
        ("%", (MANY,)),
        ("%%%", (MANY,)),
        ("%_", (ONE, MANY)),
        ("_%_%", (ONE, ONE, MANY)),
        ("a%_%b", ("a", ONE, MANY, "b")),
        ("a_b", ("a", ONE, "b")),
    ],
)
def test_a_pattern_has_one_form(text: str, parts: tuple[object, ...]) -> None:
    assert parse_pattern(text, None).parts == parts


def test_an_escaped_wildcard_joins_its_neighbours() -> None:
    assert parse_pattern("a!%b!!c", "!").parts == ("a%b!c",)


@given(small_patterns | edge_patterns)
def test_the_text_of_a_pattern_is_read_as_the_same_pattern(text: str) -> None:
    made = parse_pattern(text, None)
    assert parse_pattern(made.text, "\\" if made.needs_escape else None) == made
    assert parse_pattern(made.text, "\\") == made


@pytest.mark.parametrize("text", ["!", "a!", "!a", "a!bc", "!!!"])
def test_an_escape_character_before_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="must stand before"):
        parse_pattern(text, "!")


def _holds(interval: lines.Interval, value: str) -> bool:
    return lines.holds((interval,), value)


@given(edge_patterns | st.text("ab\0\U0010ffff", max_size=4), edge_strings)
@example("\U0010ffff%", "\U0010ffff\U0010ffff")
@example("\U0010ffff", "\U0010ffff")
@example("\ud7ff%", "\ud7ff\U0010ffff")
@example("a\0%", "a\0")
@example("a\0", "a")
@example("\0%", "")
def test_a_pattern_that_is_an_interval_holds_the_strings_that_fit(text: str, value: str) -> None:
    for suffix in ("", "%"):
        made = parse_pattern(text + suffix, None)
        interval = interval_of(made)
        if interval is None:
            assert len(made.parts) > 1 or isinstance(made.parts[0], int)
            continue
        for candidate in (value, text, text + value, text[:-1], text + "\0"):
            assert _holds(interval, candidate) is made.matches(candidate)


@given(edge_patterns, edge_strings)
def test_every_string_that_fits_lies_in_the_interval_of_the_prefix(text: str, value: str) -> None:
    made = parse_pattern(text, None)
    for candidate in (value, text, text.replace("%", value).replace("_", "x")):
        if made.matches(candidate):
            assert _holds(prefix_interval(made), candidate)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("a", ("b", 0)),
        ("az", ("a{", 0)),
        ("\ud7ff", ("\ue000", 0)),
        ("a\U0010ffff", ("b", 0)),
        ("\U0010ffff", (TOP, 0)),
        ("\U0010ffff\U0010ffff", (TOP, 0)),
    ],
)
def test_a_prefix_ends_before_the_next_prefix(prefix: str, end: lines.Cut) -> None:
    assert prefix_end(prefix) == end


def test_an_empty_pattern_is_the_empty_string_alone() -> None:
    interval = interval_of(Pattern(()))
    assert interval is not None
    assert lines.point_value(interval) == ""


def test_a_lone_percent_is_every_string() -> None:
    interval = interval_of(parse_pattern("%", None))
    assert interval is not None
    assert (interval,) == lines.FULL[Line.STRING]


@pytest.mark.parametrize("text", ["%a" * 200 + "%b", "%" * 1_000 + "b", "%a_" * 100 + "b"])
def test_a_hostile_pattern_takes_no_exponential_time(text: str) -> None:
    assert parse_pattern(text, None).matches("a" * 5_000) is False
