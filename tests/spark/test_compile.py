"""Stores compiled by Spark's tasks, and matched whole or part by part."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tocsin
from tocsin import spark as ts
from tocsin.errors import ArgumentError, BadRowsError
from tocsin.spark.routes import EVENT, PIECES, MergeTask
from tocsin.workloads import workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def found(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()))


def test_a_store_in_parts_matches_as_one_matcher_does(spark: SparkSession, tmp_path: Path) -> None:
    n, chosen = 4000, workload("M")
    frame = ts.generate_subscriptions(spark, "M", n, partitions=3)
    events = ts.generate_events(spark, "M", 800, number="event")
    profile = ts.profile(events)
    report = ts.compile(frame, tmp_path / "store", parts=4, profile=profile)
    assert (report.n_subscriptions, report.n_parts, report.bad) == (n, 4, ())
    assert report.replication is not None
    assert report.replication <= 1.3
    m = tocsin.Matcher()
    m.subscribe_many(chosen.subscription_texts(n))
    expected = sorted(
        (event, id) for event, ids in enumerate(m.match_batch(chosen.events(800))) for id in ids
    )
    store = tocsin.SubscriptionStore(tmp_path / "store")
    assert len(store.matcher()) == n
    for mode in ("replicated", "partitioned"):
        matches = ts.match(events, store, keep=["event"], placement=mode)
        assert found(matches) == expected, mode
    arrays = ts.match(events, store, keep=["event"], placement="partitioned", output="arrays")
    rows = arrays.collect()
    assert sorted(row["event"] for row in rows) == list(range(800))
    assert sorted((row["event"], id) for row in rows for id in row["subscriptions"]) == expected


def test_dialects_are_compiled_from_a_column_or_one_for_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [(1, "sequence > 5", None), (2, "n NOT IN ('a')", "jms"), (3, "n = 5", "sql")]
    frame = spark.createDataFrame(rows, "id long, where string, dialect string")
    ts.compile(frame, tmp_path / "store", parts=2, dialect="cesql")
    store = tocsin.SubscriptionStore(tmp_path / "store")
    assert [store.get(at).dialect for at in (1, 2, 3)] == ["cesql", "jms", "sql"]
    assert store.get(1).where == "sequence > 5"
    events = spark.createDataFrame([(0, "6", 5)], "event long, sequence string, n long")
    assert found(ts.match(events, store, keep=["event"])) == [(0, 1), (0, 2), (0, 3)]


def test_changes_since_the_parts_were_made_count_in_both_placements(
    spark: SparkSession, tmp_path: Path
) -> None:
    texts = [(i, f"x BETWEEN {i} AND {i + 2}") for i in range(100)]
    frame = spark.createDataFrame(texts, "id long, where string")
    path = tmp_path / "store"
    ts.compile(frame, path, parts=3)
    store = tocsin.SubscriptionStore(path)
    store.unsubscribe_many([10, 50])
    store.update(20, where="x = 90")
    store.subscribe_many({"id": [1000], "where": ["x = 50"]})
    events = spark.createDataFrame([(10,), (50,), (90,), (90,), (500,)], "x int")
    expected = [(10, 8), (10, 9), (50, 48), (50, 49), (50, 1000)]
    expected += 2 * [(90, 20), (90, 88), (90, 89), (90, 90)]
    for mode in ("replicated", "partitioned"):
        assert found(ts.match(events, store, placement=mode)) == sorted(expected), mode
        whole = ts.match(events, store, placement=mode, output="arrays")
        assert sorted((row["x"], *sorted(row["subscriptions"])) for row in whole.collect()) == [
            *((10, 8, 9), (50, 48, 49, 1000), (90, 20, 88, 89, 90), (90, 20, 88, 89, 90), (500,)),
        ]
    assert whole.schema == ts.match(events, store, placement="replicated", output="arrays").schema


def test_an_event_whose_pieces_do_not_all_come_is_no_result() -> None:
    ids = pa.array([[1], [2, 3], [4]], pa.list_(pa.field("element", pa.int64(), False)))
    pieces = pa.record_batch(
        {"x": [7, 7, 8], EVENT: [5, 5, 6], PIECES: [2, 2, 1], "subscriptions": ids}
    )
    merged = pa.Table.from_batches(MergeTask()([pieces.slice(1), pieces.slice(0, 1)]))
    assert merged.to_pylist() == [
        {"x": 8, "subscriptions": [4]},
        {"x": 7, "subscriptions": [2, 3, 1]},
    ]
    with pytest.raises(RuntimeError, match="pieces of an event are missing"):
        list(MergeTask()([pieces.slice(1)]))


def test_ids_that_stand_twice_anywhere_are_found(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(i % 90, f"x = {i}") for i in range(100)]
    frame = spark.createDataFrame(rows, "id long, where string").repartition(4)
    order = [row["where"] for row in frame.collect()]
    with pytest.raises(BadRowsError) as caught:
        ts.compile(frame, tmp_path / "store", parts=3)
    bad = caught.value.rows
    assert sorted(b.id for b in bad if isinstance(b.id, int)) == list(range(10))
    assert {b.code for b in bad} == {"duplicate-id"}
    seen = {b.row: order[b.row] for b in bad}
    firsts = [order.index(f"x = {i}") for i in range(10)]
    seconds = [order.index(f"x = {i + 90}") for i in range(10)]
    assert sorted(seen) == sorted(map(max, firsts, seconds))
    assert tocsin.SubscriptionStore(tmp_path / "store").describe().n_subscriptions == 0
    left = [file.name for file in (tmp_path / "store").glob("segment-*")]
    assert left == []


@pytest.mark.parametrize("parts", [1, 2])
def test_bad_rows_are_set_aside_and_the_others_taken(
    spark: SparkSession, tmp_path: Path, parts: int
) -> None:
    rows = [("a", "x = 1"), ("b", "x ="), (None, "x = 2"), ("c", "x = 3"), ("a", "x = 4")]
    frame = spark.createDataFrame(rows, "id string, where string").coalesce(1)
    report = ts.compile(frame, tmp_path / "store", parts=parts, on_error="quarantine")
    assert report.n_subscriptions == 2
    assert [(b.row, b.id, b.code) for b in report.bad] == [
        (1, "b", "syntax"),
        (2, None, "invalid-id"),
        (4, "a", "duplicate-id"),
    ]
    assert tocsin.SubscriptionStore(tmp_path / "store").matcher().match({"x": 3}) == ["c"]


def test_parameters_an_event_type_and_ends_are_compiled(
    spark: SparkSession, tmp_path: Path
) -> None:
    quote = tocsin.EventType("Quote", firm=str, price=float)
    frame = spark.createDataFrame(
        [(1, "IBM", 100.0, None), (2, "SAP", 50.0, "2090-01-01 00:00:00")],
        "id int, firm string, limit double, valid_until string",
    ).selectExpr("id", "firm", "limit", "CAST(valid_until AS timestamp) AS valid_until")
    report = ts.compile(
        frame, tmp_path / "store", where="firm = :firm AND price < :limit", event_type=quote
    )
    assert report.n_parts == 1
    events = spark.createDataFrame([("IBM", 99.0), ("SAP", 1.0)], "firm string, price double")
    assert found(ts.match(events, tmp_path / "store")) == [("IBM", 99.0, 1), ("SAP", 1.0, 2)]
    late = ts.match(events, tmp_path / "store", now=4e9)
    assert found(late) == [("IBM", 99.0, 1)]
    with pytest.raises(ArgumentError, match="no column limit"):
        ts.compile(frame.drop("limit"), tmp_path / "store", where="price < :limit")


def test_compiling_replaces_what_was_there_but_not_what_comes_meanwhile(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tocsin.SubscriptionStore.create(tmp_path / "store")
    store.subscribe("old", "x = 1")
    frame = spark.createDataFrame([("new", "x = 1")], "id string, where string")
    report = ts.compile(frame, tmp_path / "store")
    assert report.version == store.newest()
    assert store.matcher().match({"x": 1}) == ["new"]
    empty = ts.compile(frame.filter("id IS NULL"), tmp_path / "store", parts=2)
    assert empty.n_subscriptions == 0
    assert store.matcher().match({"x": 1}) == []


def test_the_placement_is_chosen_by_size_and_replication_and_says_why(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = ts.generate_events(spark, "M", 500)
    frame = ts.generate_subscriptions(spark, "M", 1000)
    path = tmp_path / "store"
    ts.compile(frame, path, parts=3, profile=ts.profile(events))
    small = ts.placement(path)
    assert small.kind == "replicated"
    assert "no more than the limit" in small.why
    spark.conf.set("spark.tocsin.replicated.limit", "1000")
    try:
        large = ts.placement(path, spark=spark)
        assert large.kind == "partitioned"
        assert "of 3 parts on average" in str(large)
        assert "repartition" in _plan(ts.match(events, path)).lower()
        assert "repartition" not in _plan(ts.match(events, path, placement="replicated")).lower()
        wide = ts.generate_subscriptions(spark, "TW", 500)
        profile = ts.profile(ts.generate_events(spark, "TW", 300))
        ts.compile(wide, tmp_path / "wide", parts=3, profile=profile)
        spread = ts.placement(tmp_path / "wide", spark=spark)
        assert spread.kind == "replicated"
        assert "but an event goes to" in spread.why
    finally:
        spark.conf.unset("spark.tocsin.replicated.limit")
    tocsin.Matcher().save(tmp_path / "plain")
    with pytest.raises(ArgumentError, match="no summaries"):
        ts.match(events, tmp_path / "plain", placement="partitioned")


def _plan(frame: DataFrame) -> str:
    text: str = frame._jdf.queryExecution().toString()
    return text


def test_a_store_made_anew_at_the_same_path_is_not_routed_by_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = spark.createDataFrame([(1,), (5,)], "x long")
    for value in (1, 5):
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        rules = spark.createDataFrame([("a", f"x = {value}")], "id string, where string")
        ts.compile(rules, tmp_path / "store", parts=1)
        matches = ts.match(events, tmp_path / "store", keep=["x"], placement="partitioned")
        assert found(matches) == [(value, "a")]
