"""What is sent to Kafka is read from no shuffle, so that no stage that sends is run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tocsin.spark.pipeline.kafka import guarded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


def plan_of(frame: DataFrame) -> str:
    whole: Any = frame
    return str(whole._jdf.queryExecution().executedPlan().toString())


def test_records_are_sent_from_where_they_are_kept_and_not_from_a_shuffle(
    spark: SparkSession,
) -> None:
    from pyspark.sql import functions as f

    headers = f.array(
        f.struct(f.lit("name").alias("key"), f.encode(f.lit("v"), "UTF-8").alias("value"))
    )
    records = spark.range(20).select(
        f.col("id").cast("string").alias("key"),
        f.lit("{}").alias("value"),
        headers.alias("headers"),
    )
    rest = records.exceptAll(records.limit(5)).repartition(3)
    assert "Exchange" in plan_of(rest)
    sent = guarded(rest)
    assert "Exchange" not in plan_of(sent)
    assert len({row["key"] for row in sent.collect()}) == 15
