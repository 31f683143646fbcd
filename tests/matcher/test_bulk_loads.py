"""Many subscriptions at once: texts, templates and rows; bad rows and what becomes of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tocsin
from tocsin.engines import names
from tocsin.errors import ArgumentError, BadRowsError, ConditionSyntaxError, ParameterError
from tocsin.matcher import LoadReport, Matcher

QUOTE = tocsin.EventType("Quote", firm=str, price=float, volume=int)


@pytest.fixture(params=names())
def m(request: pytest.FixtureRequest) -> Matcher:
    return tocsin.Matcher(engine=request.param)


@pytest.fixture(params=names())
def typed(request: pytest.FixtureRequest) -> Matcher:
    return tocsin.Matcher(QUOTE, engine=request.param)


def found(matcher: Matcher, **event: Any) -> set[Any]:
    matcher.check()
    ids = matcher.match(event)
    assert len(set(ids)) == len(ids)
    return set(ids)


# Texts.


def test_texts_come_with_their_ids(m: Matcher) -> None:
    report = m.subscribe_many(
        pa.table({"id": ["a", "b", "c"], "where": ["x > 1", "x > 2 OR y = 'b'", "NOT x > 2"]})
    )
    assert report == LoadReport(3, ())
    assert found(m, x=2) == {"a", "c"}
    assert found(m, x=3, y="b") == {"a", "b"}


@pytest.mark.parametrize(
    "make",
    [
        lambda columns: columns,
        pa.table,
        lambda columns: pa.table(columns).to_batches()[0],
        lambda columns: pa.table(columns).to_reader(),
        pd.DataFrame,
        pl.DataFrame,
    ],
    ids=["dict", "Table", "RecordBatch", "RecordBatchReader", "pandas", "polars"],
)
def test_anything_arrow_is_a_table(m: Matcher, make: Callable[[Any], Any]) -> None:
    assert m.subscribe_many(make({"id": [1, 2], "where": ["x > 1", "x > 2"]})).loaded == 2
    assert m.subscribe_many(make({"id": [3], "limit": [1.5]}), where="x > :limit").loaded == 1
    rows = {"id": [4], "attribute": ["x"], "op": [">"], "value": [1]}
    assert m.subscribe_many(make(rows)).loaded == 1
    assert found(m, x=2) == {1, 3, 4}


@pytest.mark.parametrize(
    "texts",
    [
        pa.array(["x > 1", "x > 2"], pa.large_string()),
        pa.array(["x > 1", "x > 2"], pa.string_view()),
        pa.array(["x > 1", "x > 2"]).dictionary_encode(),
        pa.chunked_array([["x > 1"], [], ["x > 2"]]),
        pa.array(["bad", "x > 1", "x > 2", "bad"]).slice(1, 2),
    ],
    ids=["large_string", "string_view", "dictionary", "chunks", "slice"],
)
def test_texts_may_be_of_any_string_type(m: Matcher, texts: Any) -> None:
    m.subscribe_many(pa.table({"id": [1, 2], "where": texts}))
    assert found(m, x=2) == {1}
    assert found(m, x=3) == {1, 2}


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int64(), pa.uint64()], ids=str)
def test_ids_may_be_of_any_integer_type(m: Matcher, kind: pa.DataType) -> None:
    m.subscribe_many({"id": pa.array([1, 2], kind), "where": ["x = 1", "x = 1"]})
    m.subscribe_many({"id": pa.array([3], kind).dictionary_encode(), "where": pa.array(["x = 1"])})
    assert found(m, x=1) == {1, 2, 3}
    assert all(type(id) is int for id in m.match({"x": 1}))


def test_an_empty_table_loads_nothing(m: Matcher) -> None:
    none = pa.array([], pa.string())
    assert m.subscribe_many({"id": none, "where": none}) == LoadReport(0, ())
    assert m.subscribe_many({"id": none, "v": none}, where="x = :v") == LoadReport(0, ())
    rows = {"id": none, "attribute": none, "op": none, "value": none}
    assert m.subscribe_many(rows) == LoadReport(0, ())
    assert len(m) == 0


def test_other_columns_are_ignored(m: Matcher) -> None:
    m.subscribe_many({"id": [1], "where": ["x = 1"], "note": [[1, 2]], "x": [b"a"]})
    m.subscribe_many({"id": [2], "v": [1], "note": [[1, 2]]}, where="x = :v")
    rows = {"id": [3], "attribute": ["x"], "op": ["="], "value": [1], "note": [[1, 2]]}
    m.subscribe_many(rows)
    assert found(m, x=1) == {1, 2, 3}


def test_progress_is_told_in_rows(m: Matcher) -> None:
    told: list[int] = []
    n = 20_000
    m.subscribe_many({"id": range(n), "where": ["x = 1"] * n}, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == n
    assert len(m) == n


def test_an_interrupted_load_changes_nothing(m: Matcher) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        m.subscribe_many({"id": [1], "where": ["x = 1"]}, progress=stop)
    assert len(m) == 0
    assert found(m, x=1) == set()


# Templates.


def test_a_template_takes_its_parameters_from_columns(m: Matcher) -> None:
    table = {"id": ["a", "b", "c"], "firm": ["IBM", "SAP", "IBM"], "limit": [100, 50, 10]}
    assert m.subscribe_many(table, where="firm = :firm AND price < :limit").loaded == 3
    assert found(m, firm="IBM", price=9) == {"a", "c"}
    assert found(m, firm="IBM", price=99.5) == {"a"}
    assert found(m, firm="SAP", price=49) == {"b"}


@pytest.mark.parametrize(
    ("values", "equal"),
    [
        (pa.array([1, 2], pa.uint8()), 1),
        (pa.array([1, 2]).dictionary_encode(), 1),
        (pa.array([1.5, 2.0], pa.float32()), 1.5),
        (pa.array(np.array([1.5, 2], np.float16)), 1.5),
        (pa.array([Decimal("1.5"), Decimal("2.0")]), 1.5),
        (pa.array(["a", "b"]), "a"),
        (pa.array(["a", "b"]).dictionary_encode(), "a"),
        (pa.array(["a", "b"], pa.string_view()), "a"),
        (pa.array([True, False]), True),
        (pa.array([dt.datetime(2026, 7, 1), dt.datetime(2026, 7, 2)]), dt.datetime(2026, 7, 1)),
        (pa.array([dt.date(2026, 7, 1), dt.date(2026, 7, 2)]), dt.datetime(2026, 7, 1)),
        (pa.array([1_000, 2_000], pa.timestamp("ns")), dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
        (pa.chunked_array([[1], [2]]), 1),
        (pa.array([0, 1, 2, 3]).slice(1, 2), 1),
    ],
    ids=lambda given: str(given.type) if hasattr(given, "type") else "",
)
def test_parameters_may_be_of_any_type_of_a_kind(m: Matcher, values: Any, equal: Any) -> None:
    m.subscribe_many(pa.table({"id": [1, 2], "v": values}), where="x = :v")
    m.subscribe_many(
        pa.table({"id": [3, 4], "attribute": ["x"] * 2, "op": ["="] * 2, "value": values})
    )
    assert found(m, x=equal) == {1, 3}
    for id in (1, 3):
        assert m.explain(id, {"x": equal}).startswith("match")


def test_a_null_parameter_compares_with_nothing(m: Matcher) -> None:
    table = {"id": [1, 2, 3], "v": [1, None, 2]}
    m.subscribe_many(table, where="x = :v OR x <> :v")
    m.subscribe_many({"id": [4], "v": pa.nulls(1)}, where="x = :v")
    assert found(m, x=1) == {1, 3}
    assert found(m) == set()


def test_a_template_may_use_a_parameter_twice_or_have_none(m: Matcher) -> None:
    m.subscribe_many({"id": [1, 2], "v": [1, 2]}, where="x = :v OR y = :v")
    m.subscribe_many({"id": [3, 4]}, where="x IS NOT NULL")
    m.subscribe_many({"id": [5]}, where="x > 1 AND y IN (2, 3)")
    m.subscribe_many({"id": [6]}, where="TRUE")
    assert found(m, x=2, y=1) == {1, 2, 3, 4, 6}
    assert found(m, x=2, y=2) == {2, 3, 4, 5, 6}


def test_a_template_must_be_sound_and_have_its_columns(m: Matcher) -> None:
    with pytest.raises(ConditionSyntaxError):
        m.subscribe_many({"id": [1], "v": [1]}, where="x = ")
    with pytest.raises(ParameterError) as caught:
        m.subscribe_many({"id": [1], "v": [1]}, where="x = :w AND y = :v AND z = :u")
    assert caught.value.missing == ("w", "u")
    with pytest.raises(ArgumentError, match="condition"):
        m.subscribe_many({"id": [1]}, where=5)  # type: ignore[arg-type]
    assert len(m) == 0


def test_in_a_template_with_patterns_only_bad_patterns_are_refused(m: Matcher) -> None:
    report = m.subscribe_many(
        {"id": [1, 2, 3], "p": ["a!", "a!%", "!a"]},
        where="x LIKE :p ESCAPE '!'",
        on_error="quarantine",
    )
    assert report.loaded == 1
    assert [(bad.row, bad.id, bad.code) for bad in report.bad] == [
        (0, 1, "parameter"),
        (2, 3, "parameter"),
    ]
    assert found(m, x="a%") == {2}


# Rows.


def test_rows_of_one_id_are_anded(m: Matcher) -> None:
    report = m.subscribe_many(
        {
            "id": ["a", "a", "b"],
            "attribute": ["x", "y", "x"],
            "op": [">", "<=", "<>"],
            "value": [1, 5, 2],
        }
    )
    assert report == LoadReport(2, ())
    assert found(m, x=2, y=5) == {"a"}
    assert found(m, x=3, y=6) == {"b"}


def test_disjuncts_of_one_id_are_ored(m: Matcher) -> None:
    m.subscribe_many(
        {
            "id": [1, 1, 1, 2, 2],
            "disjunct": [0, 0, 1, 0, 0],
            "attribute": ["x", "y", "z", "x", "z"],
            "op": ["="] * 5,
            "value": [1, 2, 3, 1, 3],
        }
    )
    assert found(m, x=1, y=2) == {1}
    assert found(m, z=3) == {1}
    assert found(m, x=1, z=3) == {1, 2}
    assert found(m, x=1) == set()


@pytest.mark.parametrize(
    "disjunct",
    [["p", "q", None, "p"], [7, -1, None, 7], pa.array(["p", "q", None, "p"]).dictionary_encode()],
    ids=["strings", "integers", "dictionary"],
)
def test_disjuncts_are_told_apart_by_any_value(m: Matcher, disjunct: Any) -> None:
    m.subscribe_many(
        {
            "id": [1] * 4,
            "disjunct": disjunct,
            "attribute": ["x", "y", "z", "w"],
            "op": ["="] * 4,
            "value": [1] * 4,
        }
    )
    assert found(m, x=1) == set()
    assert found(m, x=1, w=1) == {1}
    assert found(m, y=1) == {1}
    assert found(m, z=1) == {1}


def test_rows_of_one_id_may_stand_apart(m: Matcher) -> None:
    m.subscribe_many(
        {
            "id": ["b", "a", "b", "c", "a", "b"],
            "disjunct": [0, 0, 1, 0, 0, 0],
            "attribute": ["x", "x", "y", "x", "y", "z"],
            "op": ["="] * 6,
            "value": [1, 1, 9, 1, 2, 3],
        }
    )
    assert found(m, x=1, z=3) == {"b", "c"}
    assert found(m, y=9) == {"b"}
    assert found(m, x=1, y=2) == {"a", "c"}
    m.update("a", where="y = 100")
    m.unsubscribe("b")
    assert found(m, x=1, y=100, z=3) == {"a", "c"}


def test_numbers_and_texts_may_stand_in_two_columns(m: Matcher) -> None:
    m.subscribe_many(
        {
            "id": [1, 1, 2, 3],
            "attribute": ["firm", "price", "firm", "firm"],
            "op": ["=", "<", "LIKE", "IS NULL"],
            "number": [None, 100.0, None, None],
            "text": ["IBM", None, "I%", None],
        }
    )
    assert found(m, firm="IBM", price=99) == {1, 2}
    assert found(m, firm="IBM", price=101) == {2}
    assert found(m, price=3) == {3}


@pytest.mark.parametrize("column", ["value", "number", "text"])
def test_one_column_of_values_is_enough(m: Matcher, column: str) -> None:
    m.subscribe_many({"id": [1], "attribute": ["x"], "op": ["="], column: ["a"]})
    assert found(m, x="a") == {1}


@pytest.mark.parametrize(
    ("op", "holds", "fails"),
    [
        ("=", [3], [2, 4]),
        ("==", [3], [2, 4]),
        ("<>", [2, 4], [3]),
        ("!=", [2, 4], [3]),
        ("<", [2], [3]),
        ("<=", [2, 3], [4]),
        (">", [4], [3]),
        (">=", [3, 4], [2]),
        ("is null", [None], [3]),
        ("Is  Not Null", [3, "a"], [None]),
    ],
)
def test_every_operator_is_known_in_any_case(
    m: Matcher, op: str, holds: list[Any], fails: list[Any]
) -> None:
    m.subscribe_many({"id": [1], "attribute": ["x"], "op": [op], "value": [3]})
    assert all(m.match({"x": value}) == [1] for value in holds)
    assert all(m.match({"x": value}) == [] for value in fails)


@pytest.mark.parametrize(("op", "expected"), [("like", ["ab"]), ("NOT LIKE", ["b"])])
def test_patterns_are_known_too(m: Matcher, op: str, expected: list[str]) -> None:
    m.subscribe_many({"id": [1], "attribute": ["x"], "op": [op], "value": ["a%"]})
    assert [text for text in ("ab", "b") if m.match({"x": text})] == expected


def test_ids_of_rows_may_be_a_dictionary_with_ids_that_nobody_has(m: Matcher) -> None:
    ids = pa.DictionaryArray.from_arrays(pa.array([2, 1, 2]), pa.array(["a", "b", "c", "d"]))
    names = pa.DictionaryArray.from_arrays(pa.array([1, 1, 2]), pa.array(["w", "x", "y"]))
    m.subscribe_many({"id": ids, "attribute": names, "op": ["="] * 3, "value": [1, 2, 3]})
    assert len(m) == 2
    assert found(m, x=1, y=3) == {"c"}
    assert found(m, x=2) == {"b"}
    assert "x = 1 AND y = 3" in m.explain("c")


def test_values_may_be_a_dictionary(m: Matcher) -> None:
    values = pa.array(["a", "b", None, "a"]).dictionary_encode()
    m.subscribe_many(
        {"id": range(4), "attribute": ["x"] * 4, "op": ["=", "=", "IS NULL", "="], "value": values}
    )
    assert found(m, x="a") == {0, 3}
    assert found(m) == {2}


# Bad rows.

BAD_TEXTS = {
    "id": ["a", "b", "c", None, "e", "a", "g"],
    "where": ["x = 1", "x =", "x = 1 AND x(1)", "x = 1", None, "x = 1", "x = :p"],
}
CODES = [
    (1, "b", "syntax"),
    (2, "c", "unsupported"),
    (3, None, "invalid-id"),
    (4, "e", "subscription"),
    (5, "a", "duplicate-id"),
    (6, "g", "parameter"),
]


def test_bad_texts_are_all_reported_and_nothing_is_loaded(m: Matcher) -> None:
    m.subscribe("old", "x = 1")
    with pytest.raises(BadRowsError, match=r"6 bad row\(s\); nothing was loaded") as caught:
        m.subscribe_many(BAD_TEXTS)
    assert [(bad.row, bad.id, bad.code) for bad in caught.value.rows] == CODES
    reasons = {bad.row: bad.reason for bad in caught.value.rows}
    assert "the text ends too early" in reasons[1]
    assert "^" in reasons[1]
    assert "the function x(…)" in reasons[2]
    assert "the condition is missing" in reasons[4]
    assert "'a' exists already" in reasons[5]
    assert ":p" in reasons[6]
    assert len(m) == 1
    assert found(m, x=1) == {"old"}


def test_in_quarantine_bad_texts_are_returned_and_the_others_loaded(m: Matcher) -> None:
    report = m.subscribe_many(BAD_TEXTS, on_error="quarantine")
    assert report.loaded == 1
    assert [(bad.row, bad.id, bad.code) for bad in report.bad] == CODES
    assert found(m, x=1) == {"a"}


def test_ids_that_are_taken_are_bad_rows(m: Matcher) -> None:
    m.subscribe(2, "x = 0")
    table = {"id": [1, 2, 3], "where": ["x = 1"] * 3}
    with pytest.raises(BadRowsError) as caught:
        m.subscribe_many(table)
    (bad,) = caught.value.rows
    assert (bad.row, bad.id, bad.code) == (1, 2, "duplicate-id")
    assert len(m) == 1
    assert m.subscribe_many(table, on_error="quarantine").loaded == 2
    assert found(m, x=1) == {1, 3}
    assert found(m, x=0) == {2}


def test_a_load_of_nothing_but_bad_rows_loads_nothing(m: Matcher) -> None:
    report = m.subscribe_many({"id": [1, 2], "where": ["x", "y ="]}, on_error="quarantine")
    assert report.loaded == 1
    report = m.subscribe_many({"id": [3], "where": ["y ="]}, on_error="quarantine")
    assert report.loaded == 0
    assert len(report.bad) == 1
    assert len(m) == 1


def test_texts_that_clash_with_the_event_type_are_bad_rows(typed: Matcher) -> None:
    table = {
        "id": [1, 2, 3, 4, 5],
        "where": ["price < 1", "firm < 1", "price < 1 OR volume = 'a'", "firm", "volume LIKE 'a'"],
    }
    report = typed.subscribe_many(table, on_error="quarantine")
    assert [(bad.row, bad.code) for bad in report.bad] == [(i, "kind-clash") for i in (1, 2, 3, 4)]
    assert "attribute 'firm' is declared string, not integer" in report.bad[0].reason
    assert found(typed, price=0.5) == {1}


def test_a_contradiction_does_not_excuse_a_clash(typed: Matcher) -> None:
    texts = ["price < 1 AND price > 2 AND firm = 3", "FALSE AND firm = 3", "firm = 3 AND firm = 4"]
    report = typed.subscribe_many({"id": [1, 2, 3], "where": texts}, on_error="quarantine")
    assert [bad.code for bad in report.bad] == ["kind-clash"] * 3


def test_parameters_that_clash_with_the_event_type_are_bad_rows(typed: Matcher) -> None:
    table = {"id": [1, 2], "v": ["a", "b"]}
    with pytest.raises(BadRowsError) as caught:
        typed.subscribe_many(table, where="price < :v")
    assert [(bad.row, bad.id, bad.code) for bad in caught.value.rows] == [
        (0, 1, "kind-clash"),
        (1, 2, "kind-clash"),
    ]
    assert typed.subscribe_many(table, where="firm < :v").loaded == 2


def test_too_many_conjunctions_are_a_bad_row(m: Matcher) -> None:
    sides = [" OR ".join(f"{letter}{i} = 1" for i in range(130)) for letter in "ab"]
    wide = f"({sides[0]}) AND ({sides[1]})"
    report = m.subscribe_many({"id": [1, 2], "where": [wide, "x = 1"]}, on_error="quarantine")
    assert [(bad.row, bad.code) for bad in report.bad] == [(0, "too-many-conjunctions")]
    assert found(m, x=1) == {2}


BAD_ROWS = {
    "id": [1, 1, 2, 3, 4, 5, 6, 6],
    "attribute": ["x", "y", None, "x", "x", "", "x", "x"],
    "op": ["=", "~", "=", "=", "=", "=", ">", "<"],
    "number": [1.0, 1.0, 1.0, None, 1.0, 1.0, 1.0, 5.0],
    "text": [None, None, None, None, "a", None, None, None],
}


def test_bad_rows_of_rules_are_reported_with_their_reason(m: Matcher) -> None:
    with pytest.raises(BadRowsError) as caught:
        m.subscribe_many(BAD_ROWS)
    reasons = {bad.id: bad.reason for bad in caught.value.rows}
    assert list(reasons) == [1, 2, 3, 4, 5]
    assert "row 1: unknown operator '~'" in reasons[1]
    assert "row 2: the attribute is missing" in reasons[2]
    assert "row 3: the value is missing" in reasons[3]
    assert "row 4: both number and text are given" in reasons[4]
    assert "row 5: the attribute is missing" in reasons[5]
    assert {bad.code for bad in caught.value.rows} == {"subscription"}
    assert [bad.row for bad in caught.value.rows] == [0, 2, 3, 4, 5]
    assert len(m) == 0


def test_in_quarantine_the_other_rules_are_loaded(m: Matcher) -> None:
    report = m.subscribe_many(BAD_ROWS, on_error="quarantine")
    assert report.loaded == 1
    assert len(report.bad) == 5
    assert found(m, x=2) == {6}


def test_rules_with_taken_ids_are_bad(m: Matcher) -> None:
    m.subscribe(1, "x = 0")
    rows = {"id": [2, 1, 1], "attribute": ["x"] * 3, "op": ["="] * 3, "value": [1, 2, 3]}
    with pytest.raises(BadRowsError) as caught:
        m.subscribe_many(rows)
    assert [(bad.row, bad.id, bad.code) for bad in caught.value.rows] == [(1, 1, "duplicate-id")]
    assert m.subscribe_many(rows, on_error="quarantine").loaded == 1
    assert found(m, x=1) == {2}


def test_rules_that_clash_with_the_event_type_are_bad(typed: Matcher) -> None:
    report = typed.subscribe_many(
        {
            "id": [1, 2, 2, 3],
            "attribute": ["price", "price", "firm", "volume"],
            "op": ["<", "<", "=", "LIKE"],
            "number": [1.0, 1.0, 5.0, 6.0],
            "text": pa.nulls(4),
        },
        on_error="quarantine",
    )
    assert [(bad.id, bad.code) for bad in report.bad] == [(2, "kind-clash"), (3, "kind-clash")]
    assert found(typed, price=0.5, volume=6) == {1}


# Tables that are no tables of subscriptions.

FAR = pa.array([2**62], pa.timestamp("us"))
HUGE = pa.array([2**63], pa.uint64())


@pytest.mark.parametrize(
    ("table", "options", "why"),
    [
        (5, {}, "not a table"),
        ([5], {}, "not a table"),
        ({"where": ["x = 1"]}, {}, "no column id"),
        ({"id": [1]}, {}, "no column where"),
        ({"id": [1.5], "where": ["x = 1"]}, {}, "id must hold strings or integers"),
        ({"id": [True], "where": ["x = 1"]}, {}, "id must hold strings or integers"),
        ({"id": HUGE, "where": ["x = 1"]}, {}, "beyond 64 bits"),
        ({"id": [1], "where": [5]}, {}, "where must hold texts"),
        ({"id": [1], "where": ["x = 1"]}, {"on_error": "ignore"}, "on_error"),
        ({"id": [1], "where": ["x = 1"], "valid_until": ["now"]}, {}, "valid_until"),
        ({"id": [1], "where": ["x = 1"], "valid_until": HUGE}, {}, "valid_until"),
        ({"id": [1], "v": HUGE}, {"where": "x = :v"}, "beyond 64 bits"),
        ({"id": [1], "v": FAR}, {"where": "x = :v"}, "years 1 to 9999"),
    ],
)
def test_a_table_that_cannot_be_one_is_refused(
    m: Matcher, table: Any, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ArgumentError, match=why):
        m.subscribe_many(table, **options)
    assert len(m) == 0


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"id": None}, "needs the column id"),
        ({"attribute": None}, "needs the column attribute"),
        ({"op": None}, "needs the column op"),
        ({"value": None}, "needs the column value"),
        ({"id": [1, None]}, "row 1: the id is missing"),
        ({"id": [1.5, 2.5]}, "id must hold strings or integers"),
        ({"attribute": [1, 2]}, "attribute must hold strings"),
        ({"op": [1, 2]}, "op must hold strings"),
        ({"value": [[1], [2]]}, "no known kind"),
        ({"value": pa.array([1, 2**63], pa.uint64())}, "beyond 64 bits"),
        ({"value": pa.array([1, 2**62], pa.timestamp("us"))}, "years 1 to 9999"),
        ({"disjunct": [[1], [2]]}, "cannot tell rows apart"),
    ],
)
def test_a_rule_table_that_cannot_be_one_is_refused(
    m: Matcher, changed: dict[str, Any], why: str
) -> None:
    columns = {"id": [1, 2], "attribute": ["x", "x"], "op": ["=", "="], "value": [1, 2]} | changed
    with pytest.raises(ArgumentError, match=why):
        m.subscribe_many({name: held for name, held in columns.items() if held is not None})
    assert len(m) == 0


def test_a_table_with_two_columns_of_one_name_is_refused(m: Matcher) -> None:
    twice = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["id", "where", "where"])
    with pytest.raises(ArgumentError, match="several columns where"):
        m.subscribe_many(twice)
    with pytest.raises(ArgumentError, match="several columns where"):
        m.subscribe_many(twice)
