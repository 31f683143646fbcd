"""Computed values and lists: what was wrong once, and what a condition of them may cost."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import ConditionCostError, ConditionSyntaxError
from tocsin.language import functions, parse, print_expression
from tocsin.matcher import Matcher

ENGINES = ("auto", "oracle")


def matched(engine: str, conditions: list[str], event: dict[str, Any]) -> list[str]:
    """Return the conditions that an event satisfies, which must not depend on the road."""
    m = Matcher(engine=engine)
    for condition in conditions:
        m.subscribe(condition, condition)
    found = sorted(str(id) for id in m.match(event))
    for events in ([event], pa.Table.from_pylist([event])):
        assert sorted(map(str, m.match_batch(events)[0])) == found
    for condition in conditions:
        assert m.explain(condition, event).startswith("match") == (condition in found)
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("condition", "is_true"),
    [
        ("ANY(a) BETWEEN x AND y", False),  # 1 <= y, and 9 >= x, are two elements
        ("ANY(a) NOT IN (x, 9)", True),
        ("ALL(a) IN (1, x, 9)", True),
        ("ALL(a) NOT IN (x, y)", True),
        ("ANY(names) LIKE prefix", True),
        ("ALL(names) ILIKE prefix", False),
        ("ANY(names) RLIKE '^b'", True),
        ("ANY(names) IS DISTINCT FROM name", True),
        ("ANY(a) IS UNKNOWN", True),
        ("ALL(a) IS UNKNOWN", True),
        ("NOT ANY(a) IS NOT DISTINCT FROM 1", False),
        ("NOT ALL(a) IS DISTINCT FROM 2", False),
        ("NOT ANY(empty) IS NOT FALSE", True),
        ("ANY(a) = element", True),
        ("exists(items, element -> ANY(element.parts) = element.sku)", True),
    ],
)
def test_a_predicate_on_any_is_about_one_element(
    engine: str, condition: str, is_true: bool
) -> None:
    event = {
        "a": [1, 9], "x": 3, "y": 5, "element": 9, "names": ["Ab", "b"], "prefix": "A%",
        "name": "b", "empty": [], "items": [{"sku": "a", "parts": ["b", "a"]}],
    }  # fmt: skip
    assert matched(engine, [condition], event) == [condition] * is_true


@pytest.mark.parametrize("engine", ENGINES)
def test_an_absent_list_on_a_path_counts_as_an_absent_element(engine: str) -> None:
    kind = pa.list_(pa.struct([("parts", pa.list_(pa.string()))]))
    rows = [[{"parts": None}], [{"parts": []}], [None, {"parts": ["a"]}], [{"parts": ["a"]}]]
    m = Matcher(engine=engine)
    m.subscribe("some", "ANY(items.parts) IS NULL")
    m.subscribe("all", "ALL(items.parts) = 'a'")
    for events in ([{"items": row} for row in rows], pa.table({"items": pa.array(rows, kind)})):
        assert list(m.match_batch(events)) == [["some"], ["all"], ["some"], ["all"]]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_text_means_in_a_computed_value_does_not_depend_on_other_conditions(
    engine: str,
) -> None:
    event = {"s": "2026-01-31", "n": 1, "list": [1]}
    true = [
        "length(s) = 10", "s || 'x' = '2026-01-31x'", "matches(s, '2026 01')",
        "NOT matches(s, 'x')", "extract(year FROM s) = 2026", "s - TIMESTAMP '2026-01-30' = "
        "INTERVAL '1 day'", "CASE WHEN s > TIMESTAMP '2026-01-01' THEN 1 END = 1",
        "exists(list, e -> s > TIMESTAMP '2026-01-01')",
        "greatest(s, TIMESTAMP '2020-01-01') = TIMESTAMP '2026-01-31'",
    ]  # fmt: skip
    false = [
        "length(s) IS NULL", "coalesce(length(s), 0) = 0", "s IS DISTINCT FROM '2026-01-31'",
        "CASE WHEN s LIKE '2026%' THEN 1 ELSE 2 END = 2", "extract(year FROM s) IS NULL",
    ]  # fmt: skip
    others = ["s > TIMESTAMP '2026-01-01'", "s LIKE '2026%'"]
    for conditions in ([*true, *false], [*true, *false, *others], *([each] for each in true)):
        expected = sorted(each for each in conditions if each not in false)
        assert matched(engine, conditions, event) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_decimal_in_a_computed_value_is_the_same_in_columns_and_mappings(engine: str) -> None:
    m = Matcher(engine=engine)
    m.subscribe(1, "i < i + d")
    m.subscribe(2, "CAST(d AS STRING) = '3.0'")
    table = pa.table({"i": [2**62], "d": pa.array([Decimal(3)], pa.decimal128(9, 2))})
    assert list(m.match_batch(table)) == [m.match({"i": 2**62, "d": Decimal(3)})] == [[2]]


def test_the_last_moment_is_a_bound_of_elements() -> None:
    m = Matcher()
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
    m.subscribe(1, "ANY(t) > TIMESTAMP '9999-12-31 23:59:59.999999'")
    m.subscribe(2, "ANY(t) >= TIMESTAMP '9999-12-31 23:59:59.999999'")
    assert m.match({"t": [last]}) == [2]


def test_now_is_the_clock_of_the_matcher() -> None:
    moments = [dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC)]
    m = Matcher(clock=lambda: moments[0].timestamp())
    m.subscribe("past", "t < now()")
    m.subscribe("soon", "exists(l, e -> e > now() - INTERVAL '1 hour')")
    at = dt.datetime(2026, 1, 1, 2, tzinfo=dt.UTC)
    event = {"t": at, "l": [at]}
    assert m.match(event) == list(m.match_batch([event])[0]) == ["soon"]
    moments[0] = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert m.match(event) == list(m.match_batch([event])[0]) == ["past"]


@pytest.mark.parametrize(
    "text",
    [
        "extract(year FROM (a < b)) = 1",
        "(TRUE - 1) < INTERVAL '1 hour'",
        "NOT ('a' - 'b') <> INTERVAL '1 day' AND x = 1",
        "ANY(a) BETWEEN x AND y",
        " + ".join(["x"] * 100) + " > 3",
        "- " * 45 + "x > 3",
    ],
)
def test_what_is_printed_is_read_again(text: str) -> None:
    assert parse(print_expression(parse(text))) == parse(text)


# What it may cost.


@pytest.mark.parametrize(
    "text",
    [
        " + ".join(["x"] * 102) + " > 3",
        " || ".join(["x"] * 1_000) + " = 'a'",
        "x" + "::STRING" * 1_000 + " = 'a'",
    ],
)
def test_a_term_of_too_many_operators_in_a_row_is_refused(text: str) -> None:
    with pytest.raises(ConditionSyntaxError, match="more than 100 operators"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("(" * 60 + "x" + " IS UNKNOWN)" * 60, "copies"),
        ("(" * 60 + "x" + " BETWEEN y AND z)" * 60, "copies"),
        ("CASE " * 50 + "x" + " WHEN 1 THEN 2 WHEN 2 THEN 3 END" * 50 + " = 5", "copies"),
        (f"x + 1 IN ({', '.join(f'y + {n}' for n in range(9_000))})", "copies"),
        (" AND ".join(f"x{n} * y > {n}" for n in range(2_500)), "functions"),
        (f"CASE WHEN s LIKE '%{'a_' * 600}b%' THEN 1 END = 1", "piece"),
    ],
)
def test_what_would_cost_too_much_is_refused(text: str, limit: str) -> None:
    with pytest.raises(ConditionCostError) as caught:
        Matcher().subscribe(1, text)
    assert caught.value.limit == limit
    assert str(caught.value)


@pytest.mark.parametrize("old", ["a", "b", "ab", ""])
@pytest.mark.parametrize("new", ["", "aa", "é" * 100])
def test_a_text_that_replace_makes_too_long_is_absent(old: str, new: str) -> None:
    most = functions.MAX_MADE
    texts = ["", "a", "ab" * 400, "a" * (most // 2), "a" * (most // 2 + 1), "b" * most + "a"]
    literals = {"old": old, "new": new}
    m = Matcher()
    m.subscribe("here", "replace(s, :old, :new) IS NOT NULL", literals)
    for text, ids in zip(texts, m.match_batch([{"s": text} for text in texts]), strict=True):
        grown = text.replace(old, new) if old else text
        is_short = len(grown) <= most
        assert (ids == ["here"]) == is_short == (m.match({"s": text}) == ["here"])


def test_a_pattern_that_is_no_constant_is_tried_in_linear_time() -> None:
    assert functions.like("a" * 10**6, "%" + "a" * 500_000 + "b%", None) is False
    assert functions.like("ab" * 10_000, "%" + "a_" * 2_000 + "c%", None) is None
    assert functions.like("xaybz", "x_y%", None) is True
    assert functions.like("a%b", "a!%%", "!") is True


def test_a_subject_space_refuses_computed_values() -> None:
    space = tocsin.SubjectSpace()
    for condition in ("price * volume > 10", "ANY(tags) = 'x'", "lower(firm) = 'ibm'"):
        with pytest.raises(tocsin.errors.ComputedValueError, match="attributes only"):
            space.subscribe("a", condition)
