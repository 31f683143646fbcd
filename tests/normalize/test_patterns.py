"""LIKE patterns: canonical forms, the intervals that some of them are, and matching."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.property.strategies import FRAGMENTS, STRINGS, Drawn, pattern

from tocsin.errors import ConditionCostError, ParameterError
from tocsin.language.functions import MAX_PATTERN, MAX_PIECE, like
from tocsin.normalize import domains, patterns
from tocsin.normalize.domains import TOP, Domain
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


def _holds(interval: domains.Interval, value: str) -> bool:
    return domains.holds((interval,), value)


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
def test_a_prefix_ends_before_the_next_prefix(prefix: str, end: domains.Cut) -> None:
    assert prefix_end(prefix) == end


def test_an_empty_pattern_is_the_empty_string_alone() -> None:
    interval = interval_of(Pattern(()))
    assert interval is not None
    assert domains.point_value(interval) == ""


def test_a_lone_percent_is_every_string() -> None:
    interval = interval_of(parse_pattern("%", None))
    assert interval is not None
    assert (interval,) == domains.FULL[Domain.STRING]


@pytest.mark.parametrize("text", ["%a" * 200 + "%b", "%" * 1_000 + "b", "%a_" * 100 + "b"])
def test_a_hostile_pattern_takes_no_exponential_time(text: str) -> None:
    assert parse_pattern(text, None).matches("a" * 5_000) is False


def hostile_pattern(draw: random.Random) -> str:
    """Return a pattern of few letters with wildcards in any order, some wider than 64 or 128."""
    parts = draw.choices(["a", "b", "é", "😀", "_", "%", "a_", "_a", "ab"], k=draw.randrange(1, 12))
    unit = draw.choice(["", "a_", "_a", "aa", "ab_", "_é"])
    parts.insert(draw.randrange(len(parts)), unit * draw.choice([0, 1, 30, 33, 64, 70]))
    return draw.choice(["", "%"]) + "".join(parts) + draw.choice(["", "%", "b%"])


def fitting_text(draw: random.Random, pattern: str) -> str:
    """Return a text that fits a pattern, or that differs from one in a character or two."""
    filled = "".join(
        draw.choice("abé😀") if char == "_" else "ab" * draw.randrange(20) if char == "%" else char
        for char in pattern
    )
    for _ in range(draw.randrange(3)):
        at = draw.randrange(len(filled) + 1)
        filled = filled[:at] + draw.choice(["", "a", "b", "é"]) + filled[at + 1 :]
    return draw.choice([filled, "a" * draw.randrange(300), "ab" * draw.randrange(100), ""])


@pytest.mark.parametrize("tries", [0, 1, 32])
def test_hostile_patterns_fit_what_duckdb_says_they_fit(
    tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no tries the kernel looks for every piece that has `_` among its characters."""
    monkeypatch.setattr(patterns, "_MAX_TRIES", tries)
    draw = random.Random(tries)
    texts = [hostile_pattern(draw) for _ in range(2_000)]
    values = [fitting_text(draw, text) for text in texts]
    table = pa.table({"value": values, "pattern": texts})
    relation = duckdb.connect().from_arrow(table)
    expected = [row[0] for row in relation.project("value LIKE pattern").fetchall()]
    assert 200 < sum(expected) < 1_800
    found = [parse_pattern(text, None).matches(v) for text, v in zip(texts, values, strict=True)]
    assert found == expected


@given(st.data(), st.sampled_from("\\!é"), small_strings | edge_strings)
def test_the_kernel_agrees_with_the_evaluator(data: st.DataObject, escape: str, value: str) -> None:
    text = pattern(Drawn(data.draw), escape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns, "_MAX_TRIES", 0)
        assert parse_pattern(text, escape).matches(value) is like(value, text, escape)


def test_a_long_pattern_is_found_in_a_long_text() -> None:
    """Character by character this took seconds."""
    made = parse_pattern("%" + "a_" * 150 + "b%", None)
    assert not made.matches("a" * 100_000)
    assert made.matches("a" * 100_000 + "b")
    wide = parse_pattern("%" + "a_" * (MAX_PIECE // 2 - 1) + "b%", None)
    assert not wide.matches("é" + "a" * (1 << 20))
    assert wide.matches("é" + "a" * (1 << 20) + "b" + "a" * 1_000)


def test_a_piece_with_wildcards_that_is_too_wide_is_refused() -> None:
    widest = "a_" * (MAX_PIECE // 2 - 1) + "ab"
    assert parse_pattern(f"%{widest}%{widest}%", None)
    with pytest.raises(ConditionCostError, match="divide it by %") as caught:
        parse_pattern(f"%{widest}b%", None)
    assert (caught.value.limit, caught.value.most) == ("piece", MAX_PIECE)
    assert parse_pattern(f"%{widest}b%", None, is_bounded=False).matches(widest + "b") is True


def test_pieces_that_have_their_places_may_be_as_wide_as_the_pattern() -> None:
    wide = "a_" * MAX_PIECE
    assert parse_pattern(f"{wide}%{'b' * 2 * MAX_PIECE}%{wide}", None)


def test_a_pattern_that_is_too_long_is_refused() -> None:
    assert parse_pattern("a" * MAX_PATTERN, None)
    with pytest.raises(ConditionCostError) as caught:
        parse_pattern("a" * MAX_PATTERN + "%b", None)
    assert (caught.value.limit, caught.value.most) == ("pattern", MAX_PATTERN)
