"""Findings about conditions, and normal forms in words and JSON."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
from typing import Any

import pytest

from tocsin.language import parse
from tocsin.model import EventType
from tocsin.normalize import bind, normalize
from tocsin.normalize.describe import describe, to_json
from tocsin.normalize.diagnose import Finding, diagnose

QUOTE = EventType("Quote", firm=str, price=float, volume=int, live=bool, at=dt.datetime)


def codes(text: str, event_type: EventType | None = None) -> list[tuple[str, tuple[str, ...]]]:
    return [(found.code, found.parts) for found in diagnose(parse(text), event_type)]


def words(text: str, event_type: EventType | None = None) -> list[str]:
    return describe(normalize(parse(text), event_type), event_type)


# --- Findings ---


def test_a_sound_condition_has_no_findings() -> None:
    assert codes("firm = 'A' AND price < 10 OR volume > 3 AND NOT firm = 'B'", QUOTE) == []


def test_only_the_parts_that_contradict_each_other_are_named() -> None:
    text = "firm = 'A' AND price < 10 AND volume > 3 AND price > 20"
    assert codes(text) == [("never", ()), ("contradiction", ("price < 10", "price > 20"))]


def test_three_parts_may_contradict_each_other_only_together() -> None:
    text = "y = 1 AND x IN (1, 2) AND x IN (2, 3) AND z = 2 AND x IN (1, 3)"
    parts = ("x IN (1, 2)", "x IN (2, 3)", "x IN (1, 3)")
    assert codes(text) == [("never", ()), ("contradiction", parts)]


def test_every_contradiction_is_named() -> None:
    text = "a = 1 AND b = 1 AND a = 2 AND b = 2"
    assert codes(text)[1:] == [
        ("contradiction", ("a = 1", "a = 2")),
        ("contradiction", ("b = 1", "b = 2")),
    ]


def test_a_contradiction_is_found_among_hundreds_of_parts() -> None:
    parts = [f"a{i} = {i}" for i in range(400)]
    text = " AND ".join([*parts[:200], "x < 1", *parts[200:], "x > 2"])
    assert codes(text) == [("never", ()), ("contradiction", ("x < 1", "x > 2"))]


def test_a_contradiction_in_one_disjunct_leaves_the_condition_alive() -> None:
    assert codes("x < 1 AND x > 2 OR y = 1") == [("contradiction", ("x < 1", "x > 2"))]


def test_contradictions_are_found_under_not() -> None:
    assert codes("NOT (x < 5 OR x > 2)") == [
        ("never", ()),
        ("contradiction", ("NOT x < 5", "NOT x > 2")),
    ]


def test_an_or_that_contradicts_a_sibling_is_shown_in_parentheses() -> None:
    (_, found) = diagnose(parse("x = 1 AND (x = 2 OR x = 3)"))
    assert found.message == "x = 1 AND (x = 2 OR x = 3) can never be true together"


@pytest.mark.parametrize("part", ["x = NULL", "x BETWEEN 2 AND 1", "x NOT IN (1, NULL)", "FALSE"])
def test_a_part_that_is_never_true_is_named(part: str) -> None:
    assert codes(f"{part} OR y = 1") == [("never-part", (part,))]
    assert codes(f"{part} AND y = 1")[:2] == [("never", ()), ("never-part", (part,))]


def test_what_the_declared_kind_rules_out_is_found() -> None:
    assert codes("volume > 3.2 AND volume < 3.9", QUOTE)[0] == ("never", ())
    assert codes("volume > 3.2 AND volume < 3.9") == []


def test_a_condition_that_always_holds_is_named() -> None:
    assert codes("x IS NULL OR x IS NOT NULL") == [("always", ())]
    assert codes("TRUE") == [("always", ())]
    assert codes("y = 1 OR TRUE") == [("always", ()), ("always-part", ("TRUE",))]
    assert codes("y = 1 AND TRUE") == [("always-part", ("TRUE",))]


def test_a_part_that_makes_no_difference_is_named() -> None:
    assert codes("x < 10 AND x < 5") == [("covered", ("x < 10", "x < 5"))]
    assert codes("x < 10 OR x < 5") == [("covered", ("x < 5", "x < 10"))]
    assert codes("x = 1 OR y = 2 OR x = 1") == [("covered", ("x = 1", "x = 1"))]
    assert codes("a = 1 AND b = 2 OR a = 1") == [("covered", ("a = 1 AND b = 2", "a = 1"))]


def test_of_equal_parts_one_is_kept() -> None:
    text = "x = 1 OR x IN (1) OR x BETWEEN 1 AND 1"
    assert codes(text) == [
        ("covered", ("x IN (1)", "x = 1")),
        ("covered", ("x BETWEEN 1 AND 1", "x = 1")),
    ]


def test_undeclared_attributes_are_named_with_a_near_one() -> None:
    assert diagnose(parse("prize < 3 AND colour = 'red'"), QUOTE) == [
        Finding(
            "undeclared",
            "attribute 'prize' is not declared by Quote; did you mean 'price'?",
            ("prize",),
        ),
        Finding("undeclared", "attribute 'colour' is not declared by Quote", ("colour",)),
    ]


def test_wide_disjunctions_are_diagnosed_in_little_time() -> None:
    text = " OR ".join(f"a{i % 50} = {i} AND b = {i}" for i in range(3000))
    assert codes(text) == []


# --- Words ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price < 10", "price < 10"),
        ("price >= 5 AND price < 10", "price in [5, 10)"),
        ("price > 5 AND price <= 7.5", "price in (5, 7.5]"),
        ("volume > 3", "volume >= 4"),
        ("volume > 3 AND volume < 9.5", "volume in [4, 9]"),
        ("volume = 3", "volume = 3"),
        ("volume IN (3, 4, 7)", "volume in {3, 4, 7}"),
        ("volume NOT IN (3, 4)", "volume not in {3, 4}"),
        ("volume < 2 OR volume = 5 OR volume > 9", "volume <= 1 or volume = 5 or volume >= 10"),
        ("firm IN ('B', 'A')", "firm in {'A', 'B'}"),
        ("firm <> 'X'", "firm not in {'X'}"),
        ("firm = 'it''s'", "firm = 'it''s'"),
        ("firm LIKE 'foo%'", "firm like 'foo%'"),
        ("firm NOT LIKE 'foo%'", "firm not like 'foo%'"),
        ("firm LIKE '%foo%'", "firm like '%foo%'"),
        ("firm LIKE 'a!%%b' ESCAPE '!'", r"firm like 'a\%%b' escape '\'"),
        ("firm NOT LIKE '%a' AND firm > 'b'", "firm not like '%a' and firm > 'b'"),
        ("live", "live = TRUE"),
        ("NOT live", "live = FALSE"),
        ("at < TIMESTAMP '2024-01-01'", "at < TIMESTAMP '2024-01-01 00:00:00+00:00'"),
        ("at <= TIMESTAMP '2024-01-01'", "at <= TIMESTAMP '2024-01-01 00:00:00+00:00'"),
        ("at = TIMESTAMP '2024-01-01'", "at = TIMESTAMP '2024-01-01 00:00:00+00:00'"),
        ("x IS NULL", "x absent"),
        ("x IS NOT NULL", "x present"),
        ("volume < 3 OR volume >= 3", "volume present"),
        ("x < 3 OR x >= 3", "x is a number"),
        ("x < 5 OR x IS NULL", "x < 5 or x absent"),
        ("y = 1 AND (x < 5 OR x = 'a')", "(x < 5 or x = 'a') and y = 1"),
        ('"odd name" = 1', '"odd name" = 1'),
        ("price < 10 AND price > 20", "never: no event can match"),
        ("TRUE", "always: every event matches"),
    ],
)
def test_a_normal_form_in_words(text: str, expected: str) -> None:
    assert words(text, QUOTE) == [expected]


def test_equal_conditions_have_equal_words_however_they_are_written() -> None:
    same = ["a = 1 AND b > 2", "NOT (b <= 2 OR a <> 1)", "b > 2 AND a IN (1) AND a < 7"]
    assert {tuple(words(text)) for text in same} == {("a = 1 and b > 2",)}


def test_the_last_moment_of_the_calendar_has_words() -> None:
    text = "at > TIMESTAMP '9999-12-31 23:59:59.999999'"
    assert words(text) == ["at > TIMESTAMP '9999-12-31 23:59:59.999999+00:00'"]


# --- JSON ---

_VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 0.5, 2.5, -0.0, math.inf, -math.inf, 2**53 + 1),
    *("", "a", "a\0", "b", "ab", "ba%", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
]
_PARTS = [
    "x < 1",
    "x >= 0.5",
    "x <> 2",
    "x NOT IN (0, 1, 2)",
    "x > 'a'",
    "x = 'a\0'",
    "x LIKE 'b%'",
    "x LIKE '%!%' ESCAPE '!'",
    "x NOT LIKE '_'",
    "x = TRUE",
    "x <> FALSE",
    "x > TIMESTAMP '2024-01-01'",
    "x <= TIMESTAMP '2024-01-01'",
    "x IS NULL",
    "x IS NOT NULL",
    "x < :infinity",
]


@pytest.mark.parametrize("declared", [None, "integer"])
def test_json_holds_all_that_the_normal_form_says(declared: str | None) -> None:
    for first, second in itertools.product(_PARTS, repeat=2):
        for word in ("AND", "OR"):
            text = f"{first} {word} {second}"
            expression = parse(text)
            if "infinity" in text:
                expression = bind(expression, {"infinity": math.inf})
            event_type = EventType("E", x=declared) if declared and _numeric(text) else None
            form = normalize(expression, event_type)
            found = json.loads(json.dumps(to_json(form, event_type), allow_nan=False))
            for value in _VALUES:
                if event_type and not (value is None or type(value) is int):
                    continue
                assert _holds(found, value) == form.holds({"x": value}), (text, value)


def _numeric(text: str) -> bool:
    return not any(word in text for word in ("'", "TRUE", "FALSE", "TIMESTAMP"))


def _holds(found: dict[str, Any], value: Any) -> bool:
    return any(
        all(_fits(condition, value) for condition in conjunction.values())
        for conjunction in found["conjunctions"]
    )


def _fits(condition: dict[str, Any], value: Any) -> bool:
    if value is None:
        return bool(condition.get("absent"))
    if isinstance(value, bool):
        return value in condition.get("booleans", [])
    if isinstance(value, str):
        inside = any(_inside(i, value) for i in condition.get("strings", []))
        return inside and all(_like(p, value) for p in condition.get("patterns", []))
    if isinstance(value, dt.datetime):
        intervals = [
            {**i, **{k: i[k] and dt.datetime.fromisoformat(i[k]) for k in ("low", "high")}}
            for i in condition.get("timestamps", [])
        ]
        return any(_inside(i, value) for i in intervals)
    return any(_inside(i, value) for i in condition.get("numbers", []))


def _inside(interval: dict[str, Any], value: Any) -> bool:
    low, high = (
        float(interval[k]) if interval[k] in ("inf", "-inf") else interval[k]
        for k in ("low", "high")
    )
    above = low is None or value > low or (value == low and interval["low_closed"])
    below = high is None or value < high or (value == high and interval["high_closed"])
    return bool(above and below)


def _like(pattern: dict[str, Any], value: str) -> bool:
    form = normalize(
        bind(
            parse(f"x LIKE :p{' ESCAPE ' + chr(39) + '!' + chr(39) if pattern['escape'] else ''}"),
            {"p": pattern["like"].replace("\\", "!")},
        )
    )
    return form.holds({"x": value}) is not pattern["negated"]
