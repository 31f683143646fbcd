"""Computed values and lists on Spark: they mean what Spark SQL says, and now() is pinned."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import tocsin
from tocsin import spark as ts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "n int, i bigint, j bigint, f double, g double, s string, u string, b boolean, t timestamp, "
    "tags array<string>, items array<struct<sku: string, price: double>>"
)
MOMENTS = [None, dt.datetime(2026, 1, 31, 12, 30, 15), dt.datetime(2024, 2, 29, 23, 59, 59)]


class Shared:
    """Draws conditions that Tocsin and Spark SQL write alike."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def number(self, depth: int) -> str:
        pick = self.random.choice
        if depth <= 0 or self.random.random() < 0.3:
            return pick(["i", "j", "f", "g", "0", "1", "7", "-2", "0.5D", "2.5D"])
        form = pick(["{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} % {}", "-({})", "abs({})",
                     "floor({})", "ceil({})", "round({})", "sqrt(abs({}))", "coalesce({}, {})",
                     "greatest({}, {})", "least({}, {})", "nullif({}, {})", "if(b, {}, {})",
                     "length", "position", "year", "case"])  # fmt: skip
        if form == "length":
            return f"length({self.text(depth - 1)})"
        if form == "position":
            return f"instr({self.text(depth - 1)}, {self.text(depth - 1)})"
        if form == "year":
            field = pick(["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DOY", "HOUR", "MINUTE"])
            return f"extract({field} FROM t)"
        if form == "case":
            parts = self.condition(depth - 1), self.number(depth - 1), self.number(depth - 1)
            return "CASE WHEN {} THEN {} ELSE {} END".format(*parts)
        return "(" + form.format(*(self.number(depth - 1) for _ in range(form.count("{}")))) + ")"

    def text(self, depth: int) -> str:
        pick = self.random.choice
        if depth <= 0 or self.random.random() < 0.4:
            return pick(["s", "u", "'a'", "'ab'", "'B'"])
        form = pick(["({} || {})", "concat({}, {})", "lower({})", "upper({})", "trim({})",
                     "ltrim({})", "rtrim({})", "reverse({})", "replace({}, 'a', {})",
                     "coalesce({}, {})", "substring({}, 2)", "substring({}, -2, 1)"])  # fmt: skip
        return form.format(*(self.text(depth - 1) for _ in range(form.count("{}"))))

    def condition(self, depth: int) -> str:
        pick = self.random.choice
        op, of = pick(["=", "<>", "<", "<=", ">", ">="]), pick([self.number, self.text])
        if depth > 1 and self.random.random() < 0.4:
            word = pick(["AND", "OR"])
            return f"(({self.condition(depth - 1)}) {word} NOT ({self.condition(depth - 1)}))"
        form = pick(["compare"] * 4 + ["between", "in", "null", "like", "function", "list", "time"])
        if form == "compare":
            return f"{of(depth)} {op} {of(depth)}"
        if form == "between":
            return f"{of(depth)} {pick(['', 'NOT '])}BETWEEN {of(0)} AND {of(0)}"
        if form == "in":
            return f"{of(depth)} {pick(['', 'NOT '])}IN ({of(0)}, {of(0)})"
        if form == "null":
            return f"{of(depth)} IS {pick(['', 'NOT '])}NULL"
        if form == "like":
            tests = ["LIKE 'a%'", "LIKE '%b'", "NOT LIKE '_b'", "ILIKE 'A%'", "RLIKE '^a.?b'"]
            return f"{self.text(depth)} {pick(tests)}"
        if form == "function":
            name = pick(["startswith", "endswith", "contains"])
            return f"{name}({self.text(depth)}, {self.text(0)})"
        if form == "list":
            return pick(["array_contains(tags, 'a')", "exists(tags, x -> x LIKE 'a%')",
                         "forall(tags, x -> x <> 'b')", "array_contains(items.sku, 'a')",
                         "exists(items, x -> x.sku = 'a' AND x.price > 1)",
                         "exists(items, x -> x.price > f)"])  # fmt: skip
        amount = pick(["1 day", "3 hours", "1 month"])
        return f"t {pick('+-')} INTERVAL '{amount}' {op} TIMESTAMP '2026-01-30 12:30:15'"


def rows_of(random: Random, n: int) -> list[tuple[Any, ...]]:
    pick = random.choice
    texts = [None, "", "a", "ab", "AB", " a ", "b", "aab"]
    return [
        (
            number, *(pick([None, 0, 1, -1, 2, 7, -7, 100]) for _ in range(2)),
            *(pick([None, 0.0, 0.5, -1.5, 2.5, 100.25]) for _ in range(2)),
            pick(texts), pick(texts), pick([None, True, False]), pick(MOMENTS),
            pick([None, [], ["a"], ["b", None], ["ab", "a"]]),
            pick([None, [], [("a", 5.0)], [("b", 2.0), ("a", None)], [None, ("a", 0.5)]]),
        )
        for number in range(n)
    ]  # fmt: skip


def test_functions_mean_what_spark_sql_says(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(5)
    shared = Shared(random)
    conditions = [shared.condition(2) for _ in range(250)]
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    try:
        events = spark.createDataFrame(rows_of(random, 60), SCHEMA).coalesce(1)
        columns = [f"coalesce({c}, false) AS c{at}" for at, c in enumerate(conditions)]
        expected = [
            {at for at in range(len(conditions)) if row[f"c{at}"]}
            for row in events.selectExpr("n", *columns).orderBy("n").collect()
        ]
        m = tocsin.Matcher()
        for at, condition in enumerate(conditions):
            m.subscribe(at, _without_suffix(condition))
        m.save(tmp_path / "store")
        found: list[set[int]] = [set() for _ in expected]
        for row in ts.match(events, str(tmp_path / "store"), keep=["n"]).collect():
            found[row["n"]].add(row["subscription"])
    finally:
        spark.conf.unset("spark.sql.codegen.wholeStage")
    differ = {conditions[at] for a, b in zip(expected, found, strict=True) for at in a ^ b}
    assert not differ


def _without_suffix(condition: str) -> str:
    """Write floats as we do."""
    return condition.replace("0.5D", "0.5").replace("2.5D", "2.5")


def moments(spark: SparkSession) -> DataFrame:
    rows = [(hour, dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC)) for hour in range(4)]
    return spark.createDataFrame(rows, "hour int, t timestamp")


def test_now_is_the_moment_of_the_match_in_all_placements(
    spark: SparkSession, tmp_path: Path
) -> None:
    rules = [
        (id, f"t < now() - INTERVAL '{id % 2} hours' AND hour + {id % 3} < 100") for id in range(40)
    ]
    frame = spark.createDataFrame(rules, "id long, where string")
    ts.compile(frame, str(tmp_path / "store"), parts=2)
    now = dt.datetime(2026, 1, 1, 2, 30, tzinfo=dt.UTC).timestamp()
    expected = [(hour, id) for hour in range(3) for id in range(40) if hour + id % 2 < 2.5]
    for placement in ("replicated", "partitioned"):
        matches = ts.match(
            moments(spark), str(tmp_path / "store"), keep=["hour"], now=now, placement=placement
        )
        assert sorted(map(tuple, matches.collect())) == sorted(expected)


def test_we_differ_from_spark_sql_as_the_specification_says(spark: SparkSession) -> None:
    differences = {
        "position(s, 'b') = 2": (False, True),
        "sqrt(g) IS NULL": (False, True),
        "upper(u) = 'SS'": (True, False),
        "'a%' LIKE 'a\\\\%'": (True, False),
        "substring(s, 0, 2) = 'ab'": (True, False),
    }
    event = spark.createDataFrame([("ab", "ß", -1.0)], "s string, u string, g double")
    (theirs,) = event.selectExpr(*[f"coalesce({c}, false)" for c in differences]).collect()
    m = tocsin.Matcher()
    for condition in differences:
        m.subscribe(condition, condition.replace("\\\\", "\\"))
    matches = ts.match(event, m, keep=[]).collect()
    ours = [condition in {row[0] for row in matches} for condition in differences]
    assert list(zip(theirs, ours, strict=True)) == list(differences.values())
