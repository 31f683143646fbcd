"""`ts.match` on batch DataFrames: what matches, in which types, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import warnings
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tocsin
from tocsin import spark as ts
from tocsin.errors import (
    ArgumentError,
    BadRowsError,
    DamagedStoreError,
    NewerStoreError,
    NoStoreError,
)
from tocsin.workloads import workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def saved(path: Path, subscriptions: dict[str | int, str], **of) -> str:
    """Save a matcher of some conditions; return its path."""
    m = tocsin.Matcher(**of)
    for id, where in subscriptions.items():
        m.subscribe(id, where)
    m.save(path / "store")
    return str(path / "store")


@pytest.fixture
def quotes(spark: SparkSession) -> DataFrame:
    rows = [("IBM", 89.5, 10), ("SAP", 120.0, 20), ("IBM", 101.0, None), (None, 1.0, 5)]
    return spark.createDataFrame(rows, "firm string, price double, volume int")


def test_each_match_is_a_row_with_the_kept_columns(quotes: DataFrame, tmp_path: Path) -> None:
    store = saved(tmp_path, {"cheap": "price < 100", "ibm": "firm = 'IBM'", "none": "price < 0"})
    found = ts.match(quotes, store, keep=["firm", "price"])
    assert found.columns == ["firm", "price", "subscription"]
    assert found.schema["subscription"].dataType.simpleString() == "string"
    assert sorted(map(tuple, found.collect()), key=str) == [
        ("IBM", 101.0, "ibm"),
        ("IBM", 89.5, "cheap"),
        ("IBM", 89.5, "ibm"),
        (None, 1.0, "cheap"),
    ]


def test_arrays_have_a_row_for_each_event(quotes: DataFrame, tmp_path: Path) -> None:
    store = saved(tmp_path, {1: "price < 100", 2: "firm = 'IBM'"})
    found = ts.match(quotes, store, keep=["price"], output="arrays")
    assert found.schema["subscriptions"].dataType.simpleString() == "array<bigint>"
    assert {row["price"]: sorted(row["subscriptions"]) for row in found.collect()} == {
        89.5: [1, 2],
        120.0: [],
        101.0: [2],
        1.0: [1],
    }


def test_ids_are_longs_where_all_are_integers(quotes: DataFrame, tmp_path: Path) -> None:
    store = saved(tmp_path, {7: "price < 2", -8: "price < 2"})
    found = ts.match(quotes, store, keep=[])
    assert found.schema.simpleString() == "struct<subscription:bigint>"
    assert sorted(row[0] for row in found.collect()) == [-8, 7]
    texts = ts.match(quotes, store, keep=[], ids="string")
    assert sorted(row[0] for row in texts.collect()) == ["-8", "7"]


def test_matchers_and_frames_of_conditions_are_taken_too(
    spark: SparkSession, quotes: DataFrame
) -> None:
    m = tocsin.Matcher()
    m.subscribe(1, "price > 100")
    assert ts.match(quotes, m, keep=["firm"]).count() == 2
    frame = spark.createDataFrame(
        [("a", "price > 100"), ("b", "volume = 5")], "id string, where string"
    )
    found = ts.match(quotes, frame, keep=["volume"])
    assert sorted(map(tuple, found.collect()), key=str) == [(20, "a"), (5, "b"), (None, "a")]
    bad = spark.createDataFrame([("a", "price >")], "id string, where string")
    with pytest.raises(BadRowsError, match="row 0"):
        ts.match(quotes, bad)


def test_a_store_is_shipped_where_executors_cannot_read_it(
    quotes: DataFrame, tmp_path: Path
) -> None:
    store = saved(tmp_path, {1: "price < 100"})
    found = ts.match(quotes, store, keep=["price"], ship="files")
    assert sorted(row["price"] for row in found.collect()) == [1.0, 89.5]


def test_every_spark_type_keeps_its_value_and_matches(spark: SparkSession, tmp_path: Path) -> None:
    moment = dt.datetime(2026, 7, 1, 12, 30, 15, 250)
    row = (
        1, 2, 3, 2**53 + 1, 0.5, 2.5, Decimal("12.75"), "x", True,
        dt.date(2026, 7, 1), moment, moment, (5, "in"), [1, 2], {"k": 1}, b"bytes", None,
    )  # fmt: skip
    schema = (
        "b tinyint, s smallint, i int, l bigint, f float, d double, n decimal(10,2), t string, "
        "o boolean, day date, at timestamp, local timestamp_ntz, "
        "st struct<x: int, `in.ner`: string>, li array<int>, m map<string,int>, bi binary, u void"
    )
    frame = spark.createDataFrame([row], schema)
    conditions = [
        "b = 1", "s = 2", "i = 3", "l = 9007199254740993", "f = 0.5", "d = 2.5", "n = 12.75",
        "t = 'x'", "o = TRUE", "day = TIMESTAMP '2026-07-01'",
        "at = TIMESTAMP '2026-07-01 12:30:15.000250'",
        "local = TIMESTAMP '2026-07-01 12:30:15.000250'",
        "st.x = 5", "st.`in.ner` = 'in'", "li IS NOT NULL", "bi IS NOT NULL", "u IS NULL",
    ]  # fmt: skip
    store = saved(tmp_path, dict(enumerate(conditions)))
    found = ts.match(frame, store).collect()
    assert sorted(r["subscription"] for r in found) == list(range(len(conditions)))
    assert all(tuple(r)[:-1] == tuple(frame.collect()[0]) for r in found)


def test_a_generated_workload_matches_as_it_does_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    chosen = workload("M")
    m = tocsin.Matcher()
    m.subscribe_many(chosen.subscription_texts(3000))
    m.save(tmp_path / "store")
    table = chosen.events(2000)
    expected = sum(len(ids) for ids in m.match_batch(table))
    frame = spark.createDataFrame(table).repartition(3)
    assert ts.match(frame, str(tmp_path / "store")).count() == expected
    arrays = ts.match(frame, str(tmp_path / "store"), keep=[], output="arrays")
    assert sum(len(row[0]) for row in arrays.collect()) == expected


def test_no_events_and_no_subscriptions_give_no_rows(quotes: DataFrame, tmp_path: Path) -> None:
    store = saved(tmp_path, {})
    assert ts.match(quotes, store).count() == 0
    assert ts.match(quotes, store, output="arrays").count() == 4
    full = saved(tmp_path / "full", {1: "price > 0"})
    assert ts.match(quotes.filter("price < 0"), full).count() == 0


def test_what_has_ended_by_the_given_moment_is_gone(quotes: DataFrame, tmp_path: Path) -> None:
    m = tocsin.Matcher(clock=lambda: 0.0)
    m.subscribe("brief", "price > 0", valid_until=10_000_000)
    m.subscribe("long", "price > 0")
    m.save(tmp_path / "store")
    for now, n in ((9.0, 8), (11.0, 4), (9.0, 8)):
        assert ts.match(quotes, tmp_path / "store", now=now).count() == n


def test_a_store_that_was_made_anew_is_opened_anew(quotes: DataFrame, tmp_path: Path) -> None:
    for id in ("one", "two"):
        store = saved(tmp_path, {id: "price > 100"})
        matches = ts.match(quotes, store, keep=[]).collect()
        assert {row["subscription"] for row in matches} == {id}
        shutil.rmtree(store)


@pytest.mark.parametrize("what", ["missing", "cut off", "newer"])
def test_a_store_that_cannot_be_used_stops_before_there_is_a_query(
    quotes: DataFrame, tmp_path: Path, what: str
) -> None:
    if what == "missing":
        with pytest.raises(NoStoreError):
            ts.match(quotes, str(tmp_path / "nothing"))
        return
    store = Path(saved(tmp_path, {i: f"price = {i}" for i in range(100)}))
    if what == "cut off":
        largest = max((f for f in store.rglob("*.tocsin")), key=lambda f: f.stat().st_size)
        largest.write_bytes(largest.read_bytes()[:-100])
        with pytest.raises(DamagedStoreError):
            ts.match(quotes, str(store))
        return
    _write_as_newer(store)
    with pytest.raises(NewerStoreError):
        ts.match(quotes, str(store))


def _write_as_newer(store: Path) -> None:
    from tocsin.storage.manifests import _checksum

    manifest = next(store.glob("manifest-*.json"))
    said = json.loads(manifest.read_text())["manifest"]
    said["version"] = 99
    manifest.write_text(json.dumps({"checksum": _checksum(said), "manifest": said}))


def test_arguments_that_do_not_fit_are_refused(quotes: DataFrame, tmp_path: Path) -> None:
    store = saved(tmp_path, {1: "price < 100"})
    with pytest.raises(ArgumentError, match="keep names 'prize'"):
        ts.match(quotes, store, keep=["prize"])
    with pytest.raises(ArgumentError, match="rename it"):
        ts.match(quotes.withColumnRenamed("firm", "subscription"), store)
    with pytest.raises(ArgumentError, match="several columns price"):
        ts.match(quotes.select("price", "price"), store)
    with pytest.raises(ArgumentError, match="output must be"):
        ts.match(quotes, store, output="table")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="not int"):
        ts.match(quotes, 3)
    with pytest.raises(ArgumentError, match="can be partitioned"):
        ts.match(quotes, tocsin.Matcher(), placement="partitioned")


def test_what_the_columns_silence_is_reported(quotes: DataFrame, tmp_path: Path) -> None:
    store = saved(
        tmp_path,
        {
            "a": "price < 100 AND sector = 'tech'",
            "b": "sector IS NULL AND price > 1",
            "c": "firm = 7 OR price > 1",
            "d": "volume > 3",
            "e": "firm = 'IBM' OR firm = 8",
        },
    )
    with pytest.warns(ts.SchemaDriftWarning, match="sector: there is no such column"):
        ts.match(quotes, store)
    found = {each.attribute: each for each in ts.schema_issues(quotes, store)}
    assert set(found) == {"sector", "firm"}
    assert found["sector"].examples == ("a",)
    assert found["firm"].examples == ("c",)
    assert found["firm"].n_predicates == 1
    assert "string" in found["firm"].reason
    changed = quotes.selectExpr("firm", "CAST(price AS string) AS price", "volume")
    silenced = {each.attribute: each.n_subscriptions for each in ts.schema_issues(changed, store)}
    assert silenced == {"sector": 1, "firm": 1, "price": 3}


def test_nothing_is_reported_where_columns_and_subscriptions_agree(
    quotes: DataFrame, tmp_path: Path
) -> None:
    store = saved(tmp_path, {1: "price < 100 AND volume = 2.5", 2: "firm LIKE 'I%M'"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", ts.SchemaDriftWarning)
        ts.match(quotes, store)
    assert ts.schema_issues(quotes, store) == ()


def test_a_column_of_another_type_than_declared_counts_as_absent(
    spark: SparkSession, tmp_path: Path
) -> None:
    quote = tocsin.EventType("Quote", firm=str, price=float)
    store = saved(tmp_path, {1: "price < 100", 2: "firm = 'IBM'"}, event_type=quote)
    frame = spark.createDataFrame([("IBM", "89")], "firm string, price string")
    with pytest.warns(ts.SchemaDriftWarning, match="price"):
        found = ts.match(frame, store)
    assert [tuple(row) for row in found.collect()] == [("IBM", "89", 2)]


def test_columns_that_computed_values_and_lists_use_are_read_and_checked(
    spark: SparkSession, tmp_path: Path
) -> None:
    conditions: dict[str | int, str] = {
        1: "price * volume > 10",
        2: "lower(firm) = 'ibm'",
        3: "ANY(tags) = 'red'",
        4: "exists(items, i -> i.sku = 'x')",
        5: "coalesce(nothing, volume) = 3",
    }
    frame = spark.createDataFrame(
        [("IBM", 5.0, 3, ["red"], [("x",)])],
        "firm string, price double, volume bigint, tags array<string>, "
        "items array<struct<sku: string>>",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", ts.SchemaDriftWarning)
        found = ts.match(frame, saved(tmp_path, conditions), keep=["volume"])
    assert {row["subscription"] for row in found.collect()} == set(conditions)
    wrong: dict[str | int, str] = {
        1: "pirce * volume > 10",
        2: "lower(price) = 'a'",
        3: "ANY(firm) = 'I'",
        4: "ANY(tags) = 5",
        5: "exists(items, i -> i.skku = 'x')",
    }
    issues = ts.schema_issues(frame, saved(tmp_path / "wrong", wrong))
    expected = {"pirce": 1, "price": 2, "firm": 3, "ANY(tags)": 4, "items.skku": 5}
    assert {each.attribute: each.examples[0] for each in issues} == expected
