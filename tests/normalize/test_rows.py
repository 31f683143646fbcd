"""Rule tables: rows grouped by id and disjunct, read as the expression they stand for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.strategies import (
    COMPARISONS,
    FLOATS,
    INTEGERS,
    STRINGS,
    Seeded,
    choose,
    one_in,
)

from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.language.expression import (
    Comparison,
    Expression,
    IsNull,
    Like,
    Literal,
    conjoin,
    disjoin,
)
from tocsin.model import EventType, kind_of
from tocsin.normalize import normalize
from tocsin.normalize.rows import RuleTable, normalize_rows, read_rows

Rule = dict[str, Any]


def table_of(rules: list[Rule]) -> pa.Table:
    types = {"number": pa.float64(), "text": pa.string(), "disjunct": pa.int64()}
    names = list(dict.fromkeys(name for rule in rules for name in rule))
    columns = {n: pa.array([rule.get(n) for rule in rules], types.get(n)) for n in names}
    return pa.table(columns)


def rule(id: Any, attribute: str, op: str, value: Any, disjunct: int = 0) -> Rule:
    is_text = isinstance(value, str)
    return {
        "id": id,
        "attribute": attribute,
        "op": op,
        "number": None if is_text else value,
        "text": value if is_text else None,
        "disjunct": disjunct,
    }


def expected_of(rules: list[Rule]) -> dict[Any, Expression]:
    """Put the rules together by plain Python."""
    found: dict[Any, dict[int, list[Expression]]] = {}
    for r in rules:
        value = r["text"] if r["number"] is None else r["number"]
        predicate: Expression
        if r["op"] in ("IS NULL", "IS NOT NULL"):
            predicate = IsNull(r["attribute"], r["op"] == "IS NOT NULL")
        elif r["op"] in ("LIKE", "NOT LIKE"):
            literal = Literal(value, kind_of(value))
            predicate = Like(r["attribute"], literal, None, r["op"] == "NOT LIKE")
        else:
            predicate = Comparison(r["attribute"], r["op"], Literal(value, kind_of(value)))
        found.setdefault(r["id"], {}).setdefault(r["disjunct"], []).append(predicate)
    return {id: disjoin([conjoin(ps) for ps in ds.values()]) for id, ds in found.items()}


def random_rules(seed: int, n: int, n_ids: int) -> list[Rule]:
    source = Seeded(seed)
    found = []
    for _ in range(n):
        id = source.below(n_ids)
        attribute = choose(source, ("x", "y", "z"))
        op: str = choose(source, COMPARISONS)
        value: Any = float(choose(source, (*INTEGERS, *FLOATS)))
        if one_in(source, 3):
            value = choose(source, STRINGS)
            op = choose(source, (*COMPARISONS, "LIKE", "NOT LIKE"))
        if one_in(source, 8):
            op, value = choose(source, ("IS NULL", "IS NOT NULL")), None
        found.append(rule(id, attribute, op, value, source.below(3)))
    return found


def check(rules: list[Rule], event_type: EventType | None = None) -> RuleTable:
    read = read_rows(table_of(rules))
    bulk = normalize_rows(read, event_type)
    assert bulk.bad == ()
    expected = expected_of(rules)
    assert read.ids.to_pylist() == [*expected], "ids stand in the order of their first rows"
    probes: list[Any] = [None, 0, 1, 2.5, "", "a", "ab", "a\0", True]
    for i, (id, condition) in enumerate(expected.items()):
        form = normalize(condition, event_type)
        found = bulk.table.form(i)
        told = normalize(read.expression(i), event_type)
        if len(form) == 1 and len(found) == 1:
            assert found == form, id
        for value in probes:
            row = {"x": value, "y": 1, "z": None}
            assert found.holds(row) is form.holds(row) is told.holds(row), (id, row)
    return read


@pytest.mark.parametrize("seed", range(6))
def test_rows_mean_what_the_expression_put_together_from_them_means(seed: int) -> None:
    check(random_rules(seed, 200, 60))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5))
def test_any_rows_mean_what_they_mean_put_together(seed: int, n: int, n_ids: int) -> None:
    check(random_rules(seed, n, n_ids))


def test_rows_in_order_are_equal_to_the_text_put_together_from_them() -> None:
    rules = [rule(i // 2, "xy"[i % 2], ">", i) for i in range(20)]
    read = check(rules)
    assert read.row.tolist() == list(range(20))
    bulk = normalize_rows(read)
    for i in range(10):
        assert bulk.table.form(i) == normalize(parse(f"x > {2 * i} AND y > {2 * i + 1}"))


def test_rows_that_stand_apart_are_brought_together() -> None:
    rules = [rule(i % 3, "xyz"[i // 3], "=", i) for i in range(9)]
    read = check(rules)
    assert read.row.tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    assert read.first_row.tolist() == [0, 1, 2]
    assert read.expression(1) == parse("x = 1.0 AND y = 4.0 AND z = 7.0")


def test_disjuncts_stand_in_the_order_of_their_first_rows() -> None:
    rules = [rule("a", "x", "=", 1, 7), rule("a", "y", "=", 2, 3), rule("a", "z", "=", 3, 7)]
    read = check(rules)
    assert read.expression(0) == parse("x = 1.0 AND z = 3.0 OR y = 2.0")


def test_without_disjuncts_all_rows_of_an_id_are_one_conjunction() -> None:
    table = table_of([rule(1, "x", ">", 1), rule(1, "x", "<", 5)]).drop_columns(["disjunct"])
    bulk = normalize_rows(read_rows(table))
    assert bulk.table.form(0) == normalize(parse("x > 1 AND x < 5"))


def test_contradictions_have_no_conjunctions() -> None:
    table = table_of([rule(1, "x", ">", 5), rule(1, "x", "<", 1), rule(2, "x", "=", 1)])
    bulk = normalize_rows(read_rows(table))
    assert bulk.table.form(0).is_never
    assert len(bulk.table.form(1)) == 1


def test_declared_integers_are_tightened() -> None:
    typed = EventType("T", x=int)
    bulk = normalize_rows(read_rows(table_of([rule(1, "x", ">", 3.5)])), typed)
    assert bulk.table.form(0) == normalize(parse("x >= 4"), typed)


def test_clashes_are_refused_by_subscription() -> None:
    typed = EventType("T", x=int, y=str)
    rules = [rule(1, "x", ">", 3), rule(1, "y", ">", 3), rule(2, "y", "=", "a")]
    bulk = normalize_rows(read_rows(table_of(rules)), typed)
    assert [(bad.row, bad.error.code) for bad in bulk.bad] == [(0, "kind-clash")]
    assert bulk.table.form(0).is_never
    assert bulk.table.form(1) == normalize(parse("y = 'a'"), typed)


def test_a_bad_row_spoils_its_subscription_only() -> None:
    rules = [rule(1, "x", "=", 1), rule(1, "x", "??", 1, 1), rule(2, "x", "=", 1)]
    bulk = normalize_rows(read_rows(table_of(rules)))
    assert [bad.row for bad in bulk.bad] == [0]
    assert "unknown operator '??'; expected one of =" in str(bulk.bad[0].error)
    assert bulk.table.form(0).is_never
    assert bulk.table.form(1) == normalize(parse("x = 1"))


def test_an_operator_may_be_missing() -> None:
    rules = [{**rule(1, "x", "=", 1), "op": None}, rule(2, "x", "=", 1)]
    bulk = normalize_rows(read_rows(table_of(rules)))
    assert "row 0: unknown operator None" in str(bulk.bad[0].error)


def test_columns_without_values_are_told_apart_from_columns_of_another_type() -> None:
    table = pa.table({"id": [1], "attribute": pa.nulls(1), "op": ["="], "value": [1]})
    assert len(normalize_rows(read_rows(table)).bad) == 1
    with pytest.raises(ArgumentError, match="attribute must hold strings, not int64"):
        read_rows(pa.table({"id": [1], "attribute": [1], "op": ["="], "value": [1]}))


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_names_and_operators_may_be_of_any_string_type(kind: pa.DataType) -> None:
    def column(texts: list[str]) -> pa.Array:
        array = pa.array(texts)
        return (
            array.dictionary_encode().cast(kind) if "dictionary" in str(kind) else array.cast(kind)
        )

    table = pa.table(
        {
            "id": column(["a", "b"]),
            "attribute": column(["x", "y"]),
            "op": column(["=", "<"]),
            "value": column(["p", "q"]),
        }
    )
    bulk = normalize_rows(read_rows(table))
    assert bulk.table.form(0) == normalize(parse("x = 'p'"))
    assert bulk.table.form(1) == normalize(parse("y < 'q'"))


def test_tables_may_be_chunked_and_cut() -> None:
    rules = [rule(i // 3, "xyz"[i % 3], ">=", float(i)) for i in range(30)]
    whole = table_of(rules)
    expected = normalize_rows(read_rows(whole))
    chunked = pa.concat_tables([whole.slice(0, 7), whole.slice(7, 0), whole.slice(7)])
    for table in (chunked, pa.concat_tables([whole, whole]).slice(0, 30)):
        found = normalize_rows(read_rows(table))
        assert [found.table.form(i) for i in range(10)] == [
            expected.table.form(i) for i in range(10)
        ]
