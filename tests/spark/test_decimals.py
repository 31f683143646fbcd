"""Decimals of Spark: the same numbers as everywhere."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import tocsin
import tocsin.spark as ts


def test_every_equality_matches_the_row_of_its_own_amount(
    spark: SparkSession, tmp_path: Path
) -> None:
    n = 20_000
    m = tocsin.Matcher()
    conditions = [f"price = {Decimal(i).scaleb(-2)}" for i in range(n)]
    m.subscribe_many(pa.table({"id": range(n), "where": conditions}))
    m.save(tmp_path / "amounts")
    frame = spark.range(n).selectExpr("id", "CAST(id AS DECIMAL(12, 2)) / 100 AS price")
    frame = frame.selectExpr("id", "CAST(price AS DECIMAL(10, 2)) AS price")
    rows = ts.match(frame, tmp_path / "amounts", keep=["id"]).collect()
    assert sorted((row["id"], row["subscription"]) for row in rows) == [(i, i) for i in range(n)]
