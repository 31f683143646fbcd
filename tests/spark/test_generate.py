"""Workloads generated on Spark, and profiles of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tocsin
from tocsin import spark as ts
from tocsin.errors import ArgumentError
from tocsin.workloads import workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_the_data_are_the_same_on_any_number_of_partitions(
    spark: SparkSession, partitions: int
) -> None:
    events = ts.generate_events(spark, "M", 120_001, 7, partitions=partitions, number="row")
    assert events.rdd.getNumPartitions() == partitions
    found = events.toArrow().sort_by("row")
    expected = workload("M").events(120_001, 7)
    assert found.column("row").to_pylist() == list(range(120_001))
    for name in expected.column_names:
        there = found.column(name).cast(expected.schema.field(name).type)
        assert there.combine_chunks() == expected.column(name).combine_chunks(), name


def test_subscriptions_are_those_that_are_generated_without_spark(spark: SparkSession) -> None:
    found = ts.generate_subscriptions(spark, "W1", 60_000, 3, partitions=2).toArrow().sort_by("id")
    expected = workload("W1").subscription_texts(60_000, 3)
    assert found.column("id").to_pylist() == expected.column("id").to_pylist()
    assert found.column("where").to_pylist() == expected.column("where").to_pylist()


def test_no_rows_still_have_columns(spark: SparkSession) -> None:
    assert ts.generate_events(spark, "W0", 0).toArrow().num_rows == 0
    assert ts.generate_events(spark, "W0", 0).columns[:2] == ["a0", "a1"]
    with pytest.raises(ArgumentError, match="cannot generate"):
        ts.generate_events(spark, "W0", -1)
    with pytest.raises(ArgumentError, match="no workload"):
        ts.generate_subscriptions(spark, "W9", 1)
    with pytest.raises(ArgumentError, match="has an attribute 'a0'"):
        ts.generate_events(spark, "W0", 1, number="a0")


def test_a_profile_has_an_even_sample_and_facts_of_each_attribute(spark: SparkSession) -> None:
    frame = spark.range(0, 50_000, 1, 5).selectExpr(
        "id", "IF(id % 4 = 0, id % 10, NULL) AS tenth", "CAST(id % 7 AS string) AS text",
        "array(id) AS no_attribute", "named_struct('x', id) AS inside",
    )  # fmt: skip
    found = ts.profile(frame, sample=2000)
    assert found.n_events == 50_000
    assert set(found.attributes) == {"id", "tenth", "text"}
    assert found.attributes["tenth"].presence == 0.25
    assert found.attributes["id"].high == 49_999
    assert 6 <= found.attributes["text"].n_distinct <= 8
    assert found.sample.column_names == ["id", "tenth", "text", "no_attribute", "inside"]
    ids = found.sample.column("id").to_pylist()
    assert len(set(ids)) == 2000
    by_fifth = [sum(at * 10_000 <= i < (at + 1) * 10_000 for i in ids) for at in range(5)]
    assert all(300 < n < 500 for n in by_fifth)
    m = tocsin.Matcher()
    m.profile(found.sample)
    small = ts.profile(frame.limit(3))
    assert small.sample.num_rows == 3
    assert isinstance(small.sample, pa.Table)
