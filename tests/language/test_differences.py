"""Where we differ from DuckDB: each row of the table in docs/language.md, on both sides."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tocsin.errors import ConditionSyntaxError, KindClashError
from tocsin.language import parse
from tocsin.language.evaluate import evaluate
from tocsin.model import EventType, to_plain
from tocsin.normalize import normalize

DOCS = Path(__file__).parent.parent.parent / "docs" / "language.md"
ERROR = "error"
JULY = dt.datetime(2026, 7, 1, 12)


@dataclass(frozen=True)
class Case:
    """A condition and an event; what DuckDB says of them (ours is another answer)."""

    difference: str
    condition: str
    event: dict[str, Any]
    duckdb: bool | str
    ours: bool | str
    declared: dict[str, object] = field(default_factory=dict)


CASES = [
    Case("NaN", "f <> 5", {"f": math.nan}, True, False),
    Case("NaN", "f > 1e308", {"f": math.nan}, True, False),
    Case("NaN", "NOT f < 5", {"f": math.nan}, True, False),
    Case("integer against float", "i = 9007199254740992e0", {"i": 2**53 + 1}, True, False),
    Case("integer against float", "i > 9007199254740992e0", {"i": 2**53 + 1}, False, True),
    Case("float against integer", "f = 9007199254740993", {"f": 2.0**53}, True, False),
    Case("float against integer", "f < 9007199254740993", {"f": 2.0**53}, False, True),
    Case("a number with a point", "i = 9007199254740993.0", {"i": 2**53 + 1}, True, False),
    Case("a number with a point", "i = 9007199254740993.0", {"i": 2**53}, False, True),
    Case(
        "a decimal beyond 17 digits", "d = 0.1", {"d": Decimal("0.1" + "0" * 17 + "1")}, False, True
    ),
    Case("a string against a number", "s = 5", {"s": "5"}, True, False),
    Case("a string against a number", "s = 5", {"s": "abc"}, ERROR, False),
    Case("a timestamp against a string", "t > '2026-06-30'", {"t": JULY}, True, False),
    Case(
        "a timestamp against a string",
        "t > '2026-06-30'",
        {"t": JULY},
        True,
        ERROR,
        {"t": dt.datetime},
    ),
    Case("a boolean against a number", "b = 1", {"b": True}, True, False),
    Case("a boolean against a number", "b < 2", {"b": True}, True, False),
    Case("a string against a boolean", "s = TRUE", {"s": "true"}, True, False),
    Case("constants of two kinds", "NOT 1 = 'a'", {"i": 5}, ERROR, False),
    Case("a list of mixed kinds", "i IN (1, '2')", {"i": 2}, True, False),
    Case("a list of mixed kinds", "i NOT IN (1, 'x')", {"i": 2}, ERROR, False),
    Case("a list of mixed kinds", "s IN (1, 'a')", {"s": "a"}, ERROR, True),
    Case("`LIKE` on a number", "i LIKE '5%'", {"i": 5}, ERROR, False),
    Case("a bare attribute that is no boolean", "i", {"i": 5}, True, False),
    Case("a bare attribute that is no boolean", "s", {"s": "true"}, True, False),
    Case("case of names", "I = 5", {"i": 5}, True, False),
    Case("an attribute that is not there", "nobody IS NULL", {"i": 5}, ERROR, True),
    Case("a quoted name with a dot", '"a.b" = 1', {"a": {"b": 1}}, ERROR, True),
    Case("a word of SQL as a name", "select IS NULL", {"i": 5}, ERROR, True),
    Case(
        "the zone of a timestamp",
        "t = TIMESTAMP '2026-07-01 14:00:00+02:00'",
        {"t": JULY},
        False,
        True,
    ),
    Case("ways to write a timestamp", "t > TIMESTAMP '2026-7-1'", {"t": JULY}, True, ERROR),
    Case("ways to write a timestamp", "t < TIMESTAMP 'infinity'", {"t": JULY}, True, ERROR),
    Case("ways to write a timestamp", "t > TIMESTAMP '2026-06-30 24:00'", {"t": JULY}, True, ERROR),
    Case("escape before other characters", "s LIKE '!a' ESCAPE '!'", {"s": "a"}, True, ERROR),
    Case("an empty escape", "s LIKE 'a' ESCAPE ''", {"s": "a"}, True, ERROR),
    Case("an escape beyond ASCII", "s LIKE 'é%' ESCAPE 'é'", {"s": "%"}, ERROR, True),
    Case("integers beyond 64 bits", "i < 99999999999999999999", {"i": 5}, True, ERROR),
    Case("numbers beyond floats", "f < 1e999", {"f": 5.0}, True, ERROR),
    Case("underscores in numbers", "i = 1_000", {"i": 1000}, True, ERROR),
    Case("white space beyond ASCII", "i\u00a0= 5", {"i": 5}, True, ERROR),
    Case("white space beyond ASCII", "i =\u30005", {"i": 5}, True, ERROR),
    Case("a result beyond 64 bits", "abs(i) IS NULL", {"i": -(2**63)}, False, True),
    Case("a result beyond 64 bits", "i + 1 IS NULL", {"i": 2**63 - 1}, False, True),
    Case("a division by zero", "i / 0 IS NULL", {"i": 1}, False, True),
    Case("a division by zero", "i % 0 IS NULL", {"i": 1}, ERROR, True),
    Case("no real result", "sqrt(f) IS NULL", {"f": -1.0}, False, True),
    Case("no real result", "power(f, 0.5) IS NULL", {"f": -8.0}, False, True),
    Case("a cast that fails", "CAST(s AS INTEGER) IS NULL", {"s": "abc"}, ERROR, True),
    Case("a cast that fails", "CAST(i AS TIMESTAMP) IS NULL", {"i": 5}, ERROR, True),
    Case("what a cast takes", "CAST(s AS BOOLEAN)", {"s": "yes"}, True, False),
    Case("what a cast takes", "CAST(s AS INTEGER) = 16", {"s": "0x10"}, True, False),
    Case("what a cast takes", "CAST(s AS INTEGER) = 10", {"s": "1_0"}, True, False),
    Case("what a cast takes", "CAST(s AS FLOAT) > 5", {"s": "inf"}, True, False),
    Case("what a cast takes", "s::TIMESTAMP IS NULL", {"s": "2026-1-1"}, False, True),
    Case("an absent text in `concat`", "concat(s, 'x') = 'x'", {"i": 1}, True, False),
    Case("a term of two kinds", "s || 5 = 'a5'", {"s": "a"}, True, False),
    Case("a term of two kinds", "b + 1 IS NULL", {"b": True}, ERROR, True),
    Case("a term of two kinds", "lower(i) IS NULL", {"i": 5}, ERROR, True),
    Case("a comparison of two kinds", "i BETWEEN 1 AND '9'", {"i": 5}, True, False),
    Case("a comparison of two kinds", "i IS DISTINCT FROM 'a'", {"i": 5}, ERROR, True),
    Case("NaN among others", "greatest(f, 1.0) > 100", {"f": math.nan}, True, False),
    Case("a NaN and itself", "f IS DISTINCT FROM f", {"f": math.nan}, False, True),
    Case(
        "a text that grows",
        "length(replace(s, 'a', 'bbbbbbbbbb')) > 5",
        {"s": "a" * 30_000},
        True,
        False,
    ),
    Case(
        "an interval of months",
        "t - TIMESTAMP '2026-01-01' > INTERVAL '1 month'",
        {"t": JULY},
        True,
        False,
    ),
    Case("functions of our own", "in_network(s, '10.0.0.0/8')", {"s": "10.1.1.1"}, ERROR, True),
    Case("functions of our own", "matches(s, 'rate hike')", {"s": "Hike rate"}, ERROR, True),
    Case("parameters", "i = $p", {"i": 5}, True, ERROR),
    Case("depth", "NOT " * 200 + "i = 5", {"i": 5}, True, ERROR),
    Case("the rest of SQL", "i // 2 = 2", {"i": 5}, True, ERROR),
    Case("the rest of SQL", "i ** 2 = 25", {"i": 5}, True, ERROR),
    Case("the rest of SQL", "EXISTS (SELECT 1)", {"i": 5}, True, ERROR),
    Case("the rest of SQL", "bit_count(i) = 2", {"i": 5}, True, ERROR),
]


def ask_duckdb(case: Case) -> bool | str:
    connection = duckdb.connect()
    try:
        connection.execute(
            "CREATE TABLE events (i BIGINT, f DOUBLE, s VARCHAR, b BOOLEAN, t TIMESTAMP, "
            "a STRUCT(b INTEGER), d DECIMAL(30, 20))"
        )
        columns = ", ".join(case.event)
        connection.execute(
            f"INSERT INTO events ({columns}) VALUES ({', '.join('?' for _ in case.event)})",
            [*case.event.values()],
        )
        params = {"p": 5} if "$p" in case.condition else None
        query = f"SELECT 1 FROM events WHERE {case.condition}"
        return bool(connection.execute(query, params).fetchall())
    except duckdb.Error:
        return ERROR
    finally:
        connection.close()


def ask_us(case: Case) -> bool | str:
    event = {"a.b": case.event["a"]["b"]} if "a" in case.event else case.event
    event = {name: to_plain(value) for name, value in event.items()}
    try:
        expression = parse(case.condition)
        form = normalize(expression, EventType("T", case.declared))
    except (ConditionSyntaxError, KindClashError):
        return ERROR
    found = evaluate(expression, event.get) is True
    assert form.holds(event) is found
    return found


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.difference}: {case.condition[:40]}" for case in CASES]
)
def test_we_differ_from_duckdb_as_the_specification_says(case: Case) -> None:
    assert ask_duckdb(case) == case.duckdb
    assert ask_us(case) == case.ours
    assert case.duckdb != case.ours


def test_the_specification_lists_the_differences_that_are_tested() -> None:
    table = DOCS.read_text(encoding="utf-8").split("## Where we differ from DuckDB")[1]
    table = table.split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    listed = [row.split("|")[1].strip() for row in rows]
    assert listed == list(dict.fromkeys(case.difference for case in CASES))


@pytest.mark.parametrize(
    ("condition", "event", "expected"),
    [
        ("f = -0.0", {"f": 0.0}, True),
        ("d = 0.35", {"d": Decimal("0.35")}, True),
        ("d <= 0.35 AND d >= 0.35", {"d": Decimal("0.35")}, True),
        ("d > 0.35 OR d < 0.35", {"d": Decimal("0.35")}, False),
        ("s LIKE 'a\\%'", {"s": "a\\b"}, True),
        ("s LIKE 'a\\%'", {"s": "a%"}, False),
        ("s = 'a\\nb'", {"s": "a\\nb"}, True),
        ("s = 'it''s'", {"s": "it's"}, True),
        ("s < 'b'", {"s": "B"}, True),
        ("s = 'a '", {"s": "a"}, False),
        ("s LIKE '_'", {"s": "😀"}, True),
        ("i NOT IN (1, NULL)", {"i": 2}, False),
        ("i IN (1, NULL)", {"i": 1}, True),
        ("i BETWEEN 5 AND 1", {"i": 3}, False),
        ("i NOT BETWEEN 5 AND 1", {"i": 3}, True),
        ("NOT i = 5", {"s": "a"}, False),
        ("i = 5 OR s = 'a'", {"s": "a"}, True),
        ("NOT s IS NULL", {"s": ""}, True),
        ("i == 5 AND i != 6", {"i": 5}, True),
        ("`i` = 5", {"i": 5}, True),
        ("i = - 5", {"i": -5}, True),
        ("f = 5. AND f > .5", {"f": 5.0}, True),
        ("a.b = 1", {"a": {"b": 1}}, True),
        ("s LIKE s || '%'", {"s": "aaa"}, True),
        ("mod(f, 2) = 1.5 AND -7 % 3 = -1", {"f": 3.5}, True),
        ("substring(s, 0, 2) = 'a' AND position('b' IN s) = 2", {"s": "abc"}, True),
        ("CAST(f AS INTEGER) = 2 AND round(f) = 3", {"f": 2.5}, True),
        ("CAST(s AS INTEGER) = 100", {"s": " 1e2 "}, True),
        ("trim(s) = 'a'", {"s": "\ta"}, False),
        ("s ILIKE 'STRASSE'", {"s": "straße"}, False),
        ("extract(epoch FROM t) / 2 = 891453600", {"t": JULY}, True),
        ("b AND NOT i < 5", {"b": True, "i": 5}, True),
        ("i > 0.1", {"i": 1}, True),
        ("t = TIMESTAMP '2026-07-01T12:00:00.0000009'", {"t": JULY}, True),
    ],
)
def test_where_people_might_expect_a_difference_there_is_none(
    condition: str, event: dict[str, Any], expected: bool
) -> None:
    case = Case("none", condition, event, expected, expected)
    assert ask_duckdb(case) is expected
    assert ask_us(case) is expected
