"""Conditions in dialects are taken, kept and given back by matchers, stores and subject spaces."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tocsin import EventType, Matcher, SubjectSpace, SubscriptionStore
from tocsin.errors import (
    ArgumentError,
    BadRowsError,
    ConditionCostError,
    ConditionSyntaxError,
    ParameterError,
)
from tocsin.language import parse

CESQL = "sequence > 5 AND EXISTS subject"
JMS = "weight BETWEEN 1 AND 5 AND NOT sold"
EVENT = {"sequence": "7", "subject": "s", "weight": 3, "sold": False}


def test_a_subscription_has_its_text_and_its_dialect() -> None:
    matcher = Matcher()
    matcher.subscribe("cesql", CESQL, dialect="cesql")
    matcher.put("jms", JMS, dialect="jms")
    matcher.subscribe("sql", "weight > 1")
    assert sorted(map(str, matcher.match(EVENT))) == ["cesql", "jms", "sql"]
    assert (matcher.get("cesql").where, matcher.get("cesql").dialect) == (CESQL, "cesql")
    assert (matcher.get("jms").where, matcher.get("jms").dialect) == (JMS, "jms")
    assert matcher.get("sql").dialect == "sql"


def test_an_update_without_a_condition_keeps_text_and_dialect() -> None:
    matcher = Matcher()
    matcher.subscribe("a", CESQL, dialect="cesql")
    matcher.update("a", valid_until=None)
    assert (matcher.get("a").where, matcher.get("a").dialect) == (CESQL, "cesql")
    matcher.update("a", JMS, dialect="jms")
    assert (matcher.get("a").where, matcher.get("a").dialect) == (JMS, "jms")
    matcher.update("a", "weight = 3")
    assert (matcher.get("a").where, matcher.get("a").dialect) == ("weight = 3", "sql")
    assert matcher.match(EVENT) == ["a"]


def test_a_table_has_one_dialect_or_a_column_of_them() -> None:
    matcher = Matcher()
    table = {"id": [1, 2, 3], "where": [CESQL, JMS, "weight = 3"], "dialect": [None, "jms", "sql"]}
    assert matcher.subscribe_many(table, dialect="cesql").loaded == 3
    matcher.subscribe_many({"id": [4], "where": ["sold = FALSE"]}, dialect="jms")
    assert sorted(map(int, matcher.match(EVENT))) == [1, 2, 3, 4]
    listed = matcher.to_table()
    assert listed.column("where").to_pylist() == [CESQL, JMS, "weight = 3", "sold = FALSE"]
    assert listed.column("dialect").to_pylist() == ["cesql", "jms", "sql", "jms"]
    again = Matcher()
    again.subscribe_many(listed)
    assert again.to_table().equals(listed)
    assert again.match(EVENT) == matcher.match(EVENT)
    again.update_many({"id": [1], "where": ["sold"]}, dialect="jms")
    again.put_many({"id": [2], "where": ["EXISTS subject"]}, dialect="cesql")
    assert [again.get(at).dialect for at in (1, 2)] == ["jms", "cesql"]


def test_a_table_of_our_own_conditions_has_no_column_of_dialects() -> None:
    matcher = Matcher()
    matcher.subscribe_many({"id": [1], "where": ["a = 1"], "dialect": ["sql"]})
    assert matcher.to_table().column_names == ["id", "where", "params", "valid_until"]


def test_bad_rows_of_a_dialect_are_named() -> None:
    matcher = Matcher()
    table = {"id": [1, 2, 3], "where": ["a = 1", "a ==", "a = 1"], "dialect": ["jms", "jms", "x"]}
    with pytest.raises(BadRowsError) as caught:
        matcher.subscribe_many(table)
    assert [row.row for row in caught.value.rows] == [1, 2]
    assert "no dialect 'x'" in str(caught.value)
    assert matcher.subscribe_many(table, on_error="quarantine").loaded == 1


def test_what_no_dialect_has_is_refused() -> None:
    matcher = Matcher()
    with pytest.raises(ArgumentError, match="dialect must be one of"):
        matcher.subscribe("a", "a = 1", dialect="mysql")
    with pytest.raises(ArgumentError, match="must be a text"):
        matcher.subscribe("a", parse("a = 1"), dialect="jms")
    with pytest.raises(ParameterError):
        matcher.subscribe("a", "a = 1", {"x": 1}, dialect="jms")
    with pytest.raises(ConditionSyntaxError) as caught:
        matcher.subscribe("a", "a = ", dialect="jms")
    assert caught.value.text == "a = "
    assert len(matcher) == 0


@pytest.mark.parametrize(
    "text",
    [
        " XOR ".join(f"a{i} = b" for i in range(30)),
        "(" * 30 + "a" + " = b)" * 30,
        "SUBSTRING(" * 30 + "a" + ", b)" * 30 + " = 'x'",
        " OR ".join(f"a{i} = 'x'" for i in range(3000)),
    ],
)
def test_a_condition_that_doubles_with_every_operator_is_refused(text: str) -> None:
    with pytest.raises(ConditionCostError):
        Matcher().subscribe("a", text, dialect="cesql")


@pytest.mark.parametrize("dialect", ["cesql", "jms"])
def test_a_condition_that_is_nested_too_deep_is_refused(dialect: str) -> None:
    for text in ("(" * 60 + "a = 1" + ")" * 60, "NOT " * 60 + "a", " + ".join("a" * 99) + " = 1"):
        with pytest.raises(ConditionSyntaxError, match="nested more than 50 deep"):
            Matcher().subscribe("a", text, dialect=dialect)


def test_long_conditions_are_taken() -> None:
    matcher = Matcher()
    matcher.subscribe(1, " OR ".join(f"a = 'x{i}'" for i in range(2000)), dialect="cesql")
    matcher.subscribe(2, f"a IN ({', '.join(repr(str(i)) for i in range(3000))})", dialect="cesql")
    matcher.subscribe(3, " AND ".join(f"a <> 'x{i}'" for i in range(2000)), dialect="jms")
    assert matcher.match({"a": "x7"}) == [1]
    assert sorted(map(int, matcher.match({"a": "7"}))) == [2, 3]


def test_a_declared_attribute_is_compared_with_other_kinds_as_the_dialect_says() -> None:
    matcher = Matcher(EventType("Order", {"n": "integer", "s": "string", "b": "boolean"}))
    matcher.subscribe("cast", "n = '5' AND b = 'true' AND s = 7 AND s LIKE '7'", dialect="cesql")
    matcher.subscribe("not", "NOT (n = 6 OR s = 'x' OR b)", dialect="jms")
    assert matcher.match({"n": 5, "s": "7", "b": True}) == ["cast"]
    assert matcher.match({"n": 5, "s": "7", "b": False}) == ["not"]


def test_dialects_are_saved_and_opened(tmp_path: Path) -> None:
    matcher = Matcher()
    matcher.subscribe("a", CESQL, dialect="cesql")
    matcher.save(tmp_path / "store")
    opened = Matcher.open(tmp_path / "store")
    assert opened.get("a") == matcher.get("a")
    assert opened.match(EVENT) == ["a"]


def test_a_store_keeps_dialects_in_every_change(tmp_path: Path) -> None:
    with SubscriptionStore.create(tmp_path / "store", None) as store:
        store.subscribe("a", CESQL, dialect="cesql")
        store.put("b", JMS, dialect="jms")
        store.subscribe_many({"id": ["c", "d"], "where": [JMS, CESQL], "dialect": ["jms", "cesql"]})
        store.put_many({"id": ["d"], "where": ["sold = FALSE"]}, dialect="jms")
        store.update("a", valid_until=None)
        store.update("c", "EXISTS subject", dialect="cesql")
        store.update_many({"id": ["b"], "where": ["weight = 3"]}, dialect="jms")
        expected = {
            "a": (CESQL, "cesql"),
            "b": ("weight = 3", "jms"),
            "c": ("EXISTS subject", "cesql"),
            "d": ("sold = FALSE", "jms"),
        }
        for _ in range(2):
            table = store.to_table()
            columns = [table.column(name).to_pylist() for name in ("id", "where", "dialect")]
            assert {id: (where, of) for id, where, of in zip(*columns, strict=True)} == expected
            assert (store.get("c").where, store.get("c").dialect) == expected["c"]
            with store.matcher() as matcher:
                assert sorted(map(str, matcher.match(EVENT))) == ["a", "b", "c", "d"]
            store.compact()


def test_a_subject_space_keeps_dialects_in_its_log(tmp_path: Path) -> None:
    with SubjectSpace.open(tmp_path / "space", EventType("Truck")) as space:
        space.publish("p", EVENT)
        space.subscribe("a", "EXISTS subject", dialect="cesql")
        space.subscribe_many({"id": ["b"], "where": [JMS]}, dialect="jms")
        space.put("c", "weight = 9", dialect="jms")
        space.update("c", "weight = 3", dialect="jms")
        space.update_many({"id": ["b"], "where": ["sold = FALSE"]}, dialect="jms")
        before = space.to_table()
        assert space.get("a").dialect == "cesql"
    with SubjectSpace.open(tmp_path / "space") as space:
        assert space.to_table().equals(before)
        assert before.column("dialect").to_pylist() == ["cesql", "jms", "jms"]


def test_a_column_named_dialect_is_a_parameter_where_a_template_has_it() -> None:
    matcher = Matcher()
    matcher.subscribe_many(pa.table({"id": [1], "dialect": ["jms"]}), "d = :dialect")
    assert matcher.match({"d": "jms"}) == [1]
