"""Events from Spark through Arrow: what matches is what Spark's own filter keeps."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

import tocsin
from tocsin.engines import names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRMS = ["IBM", "SAP", "", "O'Neil", "Ångström", "a_b", "a%b", None]
PRICES = [1.5, 89.5, 100.0, -0.0, 2.0**53, 1e300, None]
VOLUMES = [0, 1, 7, -5, 2**53 + 1, 2**63 - 1, -(2**63), None]


def rows() -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for i in range(168):
        moment = dt.datetime(2026, 7, 1, 12, 30, 15, i) if i % 5 else None
        found.append(
            (
                i,
                FIRMS[i % len(FIRMS)],
                PRICES[i % len(PRICES)],
                VOLUMES[(i // 3) % len(VOLUMES)],
                i % 300 - 100 if i % 4 else None,
                [True, False, None][i % 3],
                moment,
                dt.date(2026, 7, 1 + i % 28) if i % 6 else None,
                Decimal(i % 11) / 4,
                i % 9 if i % 7 else None,
                ["a", "b"][: i % 3],
            )
        )
    return found


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    schema = (
        "row int, firm string, price double, volume bigint, small smallint, urgent boolean, "
        "at timestamp, day date, quota decimal(10, 2), total int, tags array<string>"
    )
    frame = spark.createDataFrame(rows(), schema)
    return (
        frame.selectExpr(
            "*",
            "if(total IS NULL, NULL, named_struct('total', total, 'firm', firm)) AS `order`",
            "CAST(price AS float) AS single",
            "CAST(small AS tinyint) AS tiny",
        )
        .repartition(3)
        .cache()
    )


CONDITIONS = [
    "firm = 'IBM'",
    "firm <> 'IBM'",
    "firm > 'O' AND firm <= 'a_b'",
    "firm = 'O''Neil' OR firm = ''",
    "firm IN ('SAP', 'Ångström')",
    "firm NOT IN ('SAP', 'IBM')",
    "firm NOT IN ('SAP', NULL)",
    "firm LIKE 'a%'",
    "firm LIKE '%ngstr%'",
    "firm NOT LIKE '_b%'",
    "firm LIKE 'a!%b' ESCAPE '!'",
    "firm IS NULL",
    "firm IS NOT NULL AND price IS NULL",
    "price < 100",
    "price >= 100.0 AND price < 1e20",
    "price = 0",
    "price BETWEEN 1.5 AND 89.5",
    "price NOT BETWEEN 1.5 AND 89.5",
    "NOT (price < 100 AND firm = 'IBM')",
    "volume = 9007199254740993",
    "volume > 9007199254740992",
    "volume = 9223372036854775807 OR volume < -9223372036854775807",
    "volume BETWEEN -5 AND 7",
    "volume <> 0",
    "small < -50 OR small > 50",
    "tiny = 100",
    "single = 89.5",
    "urgent",
    "NOT urgent",
    "urgent = TRUE AND volume IS NOT NULL",
    "at >= TIMESTAMP '2026-07-01 12:30:15.000100'",
    "at = TIMESTAMP '2026-07-01 12:30:15.000007'",
    "at IS NULL",
    "quota > 1.5",
    "quota = 2.25",
    "`order`.total > 4",
    "`order`.firm = 'IBM' AND `order`.total IS NOT NULL",
    "`order`.total IS NULL",
    "tags IS NOT NULL",
    "firm = 'IBM' AND (price < 2 OR volume > 5 OR NOT urgent) AND small IS NOT NULL",
    "price < 2 AND price > 3",
    "TRUE",
]


@pytest.fixture(scope="module")
def kept(events: DataFrame) -> list[set[int]]:
    """Return the rows that Spark's filter keeps, for each condition."""
    numbered = events.coalesce(1)
    return [
        {row["row"] for row in numbered.filter(condition).select("row").collect()}
        for condition in CONDITIONS
    ]


@pytest.mark.parametrize("engine", names())
def test_what_matches_is_what_spark_keeps(
    events: DataFrame, kept: list[set[int]], engine: str
) -> None:
    table = events.toArrow()
    numbers = table["row"].to_pylist()
    assert sorted(numbers) == list(range(168))
    m = tocsin.Matcher(engine=engine)
    m.subscribe_many({"id": range(len(CONDITIONS)), "where": CONDITIONS})
    found: list[set[int]] = [set() for _ in CONDITIONS]
    for number, ids in zip(numbers, m.match_batch(table), strict=True):
        for id in ids:
            found[int(id)].add(number)
    for condition, mine, theirs in zip(CONDITIONS, found, kept, strict=True):
        assert mine == theirs, condition


def test_record_batches_from_spark_match_one_by_one(events: DataFrame) -> None:
    m = tocsin.Matcher()
    m.subscribe("cheap", "price < 100")
    table = events.toArrow()
    whole = [bool(ids) for ids in m.match_batch(table)]
    parts = [bool(ids) for batch in table.to_batches(50) for ids in m.match_batch(batch)]
    assert parts == whole
    assert any(whole)


def test_conditions_from_spark_are_subscribed(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("a", "price < 100"), ("b", "price <")], "id string, where string"
    )
    m = tocsin.Matcher()
    report = m.subscribe_many(frame.toArrow(), on_error="quarantine")
    assert report.loaded == 1
    assert [bad.id for bad in report.bad] == ["b"]
    limits = spark.range(50).selectExpr("id", "CAST(id AS double) AS v").toArrow()
    m.subscribe_many(limits, where="price > :v")
    assert len(m.match({"price": 10.5})) == 12


def test_dates_are_midnights_and_nan_matches_nothing(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(dt.date(2026, 7, 1), math.nan), (dt.date(2026, 7, 2), 1.0)], "day date, x double"
    )
    m = tocsin.Matcher()
    m.subscribe("day", "day = TIMESTAMP '2026-07-01'")
    m.subscribe("x", "x > 0 OR x <= 0")
    assert list(m.match_batch(frame.toArrow())) == [["day"], ["x"]]
