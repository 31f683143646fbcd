"""Random conditions with computed values and lists, as we write them and as DuckDB does.

The two texts differ where DuckDB raises an error and we have an absent value (`TRY`), and for
lists. Values stay where both mean the same: `docs/language.md` lists where they do not.

`python -m tests.property.terms --pairs 1000000` tries as many pairs of a condition and an event,
half of them against DuckDB, half against the oracle engine (`wild`).
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import warnings
from random import Random
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
from tests.property.wild import differences_from_oracle

from tocsin import Matcher

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("j", pa.int64()),
        ("f", pa.float64()),
        ("g", pa.float64()),
        ("s", pa.string()),
        ("u", pa.string()),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us")),
        ("v", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("sizes", pa.list_(pa.int64())),
    ]
)
INTEGERS = [None, 0, 1, -1, 2, 3, 5, 7, -7, 100, 2**31, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [None, 0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 5.0, 100.25, 1e15]
STRINGS = [
    None,
    "",
    "a",
    "ab",
    "AB",
    "abc",
    " a b ",
    "b",
    "aab",
    "5",
    "-7",
    "2.5",
    "true",
    "éa",
    "Éa",
]
MOMENTS = [
    None,
    dt.datetime(2026, 1, 1),
    dt.datetime(2026, 1, 31, 12, 30, 15, 250_000),
    dt.datetime(2024, 2, 29, 23, 59, 59, 999_999),
    dt.datetime(1969, 12, 31, 23, 0, 0),
    dt.datetime(2026, 11, 19, 8, 0, 0),
]


class Text(NamedTuple):
    """A term or a condition, as we write it and as DuckDB does."""

    ours: str
    theirs: str


def same(text: str) -> Text:
    """Both write this."""
    return Text(text, text)


def tried(form: str, *parts: Text) -> Text:
    """An expression that DuckDB may fail on, where ours is absent."""
    return Text(
        form.format(*(part.ours for part in parts)),
        f"TRY({form.format(*(part.theirs for part in parts))})",
    )


def joined(form: str, *parts: Text) -> Text:
    """An expression of parts."""
    return Text(
        form.format(*(part.ours for part in parts)), form.format(*(part.theirs for part in parts))
    )


class Terms:
    """Draws terms of a kind, and conditions."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def integer(self, depth: int) -> Text:
        pick, random = self.random.choice, self.random
        if depth <= 0 or random.random() < 0.3:
            return same(pick(["i", "j", "i", "j", "0", "1", "3", "7", "-2", "100"]))
        form = pick(["{} + {}", "{} - {}", "{} * {}", "{} % {}", "-({})", "abs({})", "length",
                     "case", "coalesce({}, {})", "least({}, {})", "greatest({}, {})",
                     "nullif({}, {})", "field", "position", "cardinality", "cast"])  # fmt: skip
        if form == "length":
            return joined("length({})", self.string(depth - 1))
        if form == "case":
            return joined(
                "CASE WHEN {} THEN {} ELSE {} END",
                self.condition(depth - 1), self.integer(depth - 1), self.integer(depth - 1),
            )  # fmt: skip
        if form == "field":
            field = pick(["year", "quarter", "month", "week", "day", "dow", "isodow", "doy", "hour",
                          "minute", "second", "millisecond", "microsecond"])  # fmt: skip
            return joined(f"extract({field} FROM {{}})", self.moment(depth - 1))
        if form == "position":
            return joined("position({} IN {})", self.string(depth - 1), self.string(depth - 1))
        if form == "cardinality":
            name = pick(["tags", "sizes"])
            return Text(f"cardinality({name})", f"len({name})")
        if form == "cast":
            inner = self.float(depth - 1)
            return Text(f"CAST({inner.ours} AS INTEGER)", f"TRY_CAST({inner.theirs} AS BIGINT)")
        parts = [self.integer(depth - 1) for _ in range(form.count("{}"))]
        return tried(f"({form})", *parts)

    def float(self, depth: int) -> Text:
        pick = self.random.choice
        if depth <= 0 or self.random.random() < 0.3:
            name = pick(["f", "g", "0.5", "2.5", "-1.5"])
            return Text(name, name if name.isalpha() else f"{name}::DOUBLE")
        form = pick(["{} + {}", "{} - {}", "{} * {}", "{} / {}", "-({})", "abs({})", "floor({})",
                     "ceil({})", "round({})", "sqrt({})", "coalesce({}, {})", "whole",
                     "least({}, {})", "greatest({}, {})", "nullif({}, {})"])  # fmt: skip
        if form == "whole":
            inner = self.integer(depth - 1)
            return Text(f"CAST({inner.ours} AS FLOAT)", f"TRY_CAST({inner.theirs} AS DOUBLE)")
        parts = [self.float(depth - 1) for _ in range(form.count("{}"))]
        return tried(f"({form})", *parts)

    def string(self, depth: int) -> Text:
        pick = self.random.choice
        if depth <= 0 or self.random.random() < 0.4:
            return same(pick(["s", "u", "s", "u", "'a'", "'ab'", "''", "'é'"]))
        form = pick(["({} || {})", "lower({})", "upper({})", "trim({})", "ltrim({})", "rtrim({})",
                     "reverse({})", "replace({}, {}, {})", "substring", "coalesce({}, {})",
                     "nullif({}, {})", "cast", "case"])  # fmt: skip
        if form == "substring":
            start = pick([1, 2, 3, 0, -1, -2])
            length = pick(["", ", 1", ", 2", ", 0", ", 10"])
            return joined(f"substring({{}}, {start}{length})", self.string(depth - 1))
        if form == "cast":
            inner = self.integer(depth - 1)
            return joined("CAST({} AS VARCHAR)", inner)
        if form == "case":
            return joined(
                "CASE WHEN {} THEN {} END", self.condition(depth - 1), self.string(depth - 1)
            )
        return joined(form, *(self.string(depth - 1) for _ in range(form.count("{}"))))

    def moment(self, depth: int) -> Text:
        pick = self.random.choice
        if depth <= 0 or self.random.random() < 0.5:
            return same(pick(["t", "v", "TIMESTAMP '2026-01-01 12:00:00'"]))
        form = pick(["interval", "trunc", "coalesce({}, {})", "greatest({}, {})"])
        if form == "interval":
            amount = pick(["1 day", "90 minutes", "1 month", "1 year", "36 hours", "3 months"])
            return tried(f"({{}} {pick('+-')} INTERVAL '{amount}')", self.moment(depth - 1))
        if form == "trunc":
            unit = pick(["year", "quarter", "month", "week", "day", "hour", "minute", "second"])
            return joined(f"date_trunc('{unit}', {{}})", self.moment(depth - 1))
        return joined(form, self.moment(depth - 1), self.moment(depth - 1))

    def predicate(self, depth: int) -> Text:
        pick, op = self.random.choice, self.random.choice(["=", "<>", "<", "<=", ">", ">="])
        term = pick([self.integer, self.integer, self.float, self.string, self.string, self.moment])
        form = pick(["compare", "compare", "compare", "between", "in", "null", "distinct", "like",
                     "text", "boolean", "difference", "list", "list"])  # fmt: skip
        if form == "compare":
            return joined(f"{{}} {op} {{}}", term(depth), term(depth))
        negated = pick(["", "NOT "])
        if form == "between":
            return joined(f"{{}} {negated}BETWEEN {{}} AND {{}}", *(term(depth) for _ in range(3)))
        if form == "in":
            return joined(f"{{}} {negated}IN ({{}}, {{}})", *(term(depth) for _ in range(3)))
        if form == "null":
            return joined(f"{{}} IS {negated}NULL", term(depth))
        if form == "distinct":
            return joined(f"{{}} IS {negated}DISTINCT FROM {{}}", term(depth), term(depth))
        if form == "like":
            pattern = pick(
                ["'a%'", "'%b'", "'%a%'", "'_b'", "'%A_'", "'a'", "s", "'é%'", "u || '%'"]
            )
            return joined(f"{{}} {negated}{pick(['LIKE', 'ILIKE'])} {pattern}", self.string(depth))
        if form == "text":
            name = pick(["starts_with", "ends_with", "contains"])
            return joined(f"{name}({{}}, {{}})", self.string(depth), self.string(depth))
        if form == "boolean":
            return same(pick(["b", "NOT b", "b IS TRUE", "b IS NOT FALSE", "b IS NULL",
                              "b = (i < j)", "(i = j) IS NOT TRUE",
                              "regexp_matches(s, 'a+b')"]))  # fmt: skip
        if form == "difference":
            amount = pick(["1 day", "0 hours", "400 days"])
            return tried(f"(t - v) {op} INTERVAL '{amount}'")
        return self.on_list()

    def on_list(self) -> Text:
        pick = self.random.choice
        name, tests = pick(
            [
                (
                    "tags",
                    [
                        "= 'a'",
                        "<> 'a'",
                        "LIKE 'a%'",
                        "IN ('a', 'b')",
                        "> 'a'",
                        "IS NULL",
                        "= s",
                        "BETWEEN u AND s",
                        "NOT IN (s, u)",
                        "IS DISTINCT FROM s",
                    ],
                ),
                (
                    "sizes",
                    [
                        "= 1",
                        "BETWEEN 2 AND 5",
                        "> 3",
                        "NOT IN (1, 2)",
                        "IS NOT NULL",
                        "< i",
                        "BETWEEN i AND j",
                        "IN (i, 4)",
                        "NOT BETWEEN 1 AND j",
                        "IS NOT DISTINCT FROM i",
                    ],
                ),
            ]
        )
        test, quantifier = pick(tests), pick(["ANY", "ALL", "exists", "forall"])
        is_any = quantifier in ("ANY", "exists")
        if quantifier.isupper():
            ours = f"{quantifier}({name}) {test}"
        else:
            ours = f"{quantifier}({name}, e -> e {test})"
        decisive = f"len(list_filter({name}, lambda e: {'' if is_any else 'NOT '}(e {test}))) > 0"
        unknown = f"len(list_filter({name}, lambda e: (e {test}) IS NULL)) > 0"
        theirs = (
            f"(CASE WHEN {name} IS NULL THEN NULL WHEN {decisive} THEN {str(is_any).upper()} "
            f"WHEN {unknown} THEN NULL ELSE {str(not is_any).upper()} END)"
        )
        return Text(ours, theirs)

    def condition(self, depth: int) -> Text:
        chance = self.random.random()
        if depth <= 0 or chance < 0.5:
            return self.predicate(max(depth - 1, 0))
        if chance < 0.6:
            return joined("NOT ({})", self.condition(depth - 1))
        word = "AND" if chance < 0.8 else "OR"
        return joined(f"({{}}) {word} ({{}})", self.condition(depth - 1), self.condition(depth - 1))


def draw_events(random: Random, n: int) -> list[dict[str, Any]]:
    """Return random rows of the schema."""
    values: dict[str, Any] = {
        "i": INTEGERS, "j": INTEGERS, "f": FLOATS, "g": FLOATS, "s": STRINGS, "u": STRINGS,
        "b": [None, True, False], "t": MOMENTS, "v": MOMENTS,
    }  # fmt: skip
    rows = []
    for _ in range(n):
        row: dict[str, Any] = {name: random.choice(options) for name, options in values.items()}
        row["tags"] = random.choice(
            [None, random.choices(["a", "b", "ab", None], k=random.randrange(4))]
        )
        row["sizes"] = random.choice(
            [None, random.choices([1, 2, 4, 9, None], k=random.randrange(4))]
        )
        rows.append(row)
    return rows


def ask_duckdb(rows: list[dict[str, Any]], conditions: list[Text]) -> list[list[int]]:
    """Return for each condition the rows of which it is true."""
    connection = duckdb.connect()
    try:
        connection.execute("SET ieee_floating_point_ops = false; SET threads = 1")
        events = pa.Table.from_pylist(rows, SCHEMA).append_column("n", pa.array(range(len(rows))))
        connection.register("source", events)
        connection.execute("CREATE TABLE events AS SELECT * FROM source")
        return [
            [
                n
                for (n,) in connection.execute(
                    f"SELECT n FROM events WHERE {c.theirs} ORDER BY n"
                ).fetchall()
            ]
            for c in conditions
        ]
    finally:
        connection.close()


def matches_of(
    engine: str, conditions: list[Text], rows: list[dict[str, object]], how: str
) -> list[list[int]]:
    """Return for each condition the rows that match."""
    matcher = Matcher(engine=engine)
    for number, condition in enumerate(conditions):
        matcher.subscribe(number, condition.ours)
    if how == "one":
        by_row = [matcher.match(row) for row in rows]
    elif how == "mappings":
        by_row = list(matcher.match_batch(rows))
    else:
        by_row = list(matcher.match_batch(pa.Table.from_pylist(rows, SCHEMA)))
    lists: list[list[int]] = [[] for _ in conditions]
    for row, ids in enumerate(by_row):
        for id in ids:
            lists[int(id)].append(row)
    return lists


def differences(seed: int, n_conditions: int, n_events: int) -> list[str]:
    """Return where we differ from DuckDB, or two of our ways from each other."""
    random = Random(seed)
    terms = Terms(random)
    conditions = [terms.condition(3) for _ in range(n_conditions)]
    rows = draw_events(random, n_events)
    expected = ask_duckdb(rows, conditions)
    problems = []
    for engine, how in (
        ("auto", "table"),
        ("auto", "mappings"),
        ("auto", "one"),
        ("oracle", "one"),
    ):
        lists = matches_of(engine, conditions, rows, how)
        for condition, ours, theirs in zip(conditions, lists, expected, strict=True):
            if ours != theirs:
                row = rows[min(set(ours) ^ set(theirs))]
                problems.append(
                    f"{engine} {how}: {condition.ours}\n    {condition.theirs}\n    {row}"
                )
    return problems


def main(arguments: list[str]) -> int:
    """Try many pairs, half of them against DuckDB, and print those that differ."""
    options = argparse.ArgumentParser(prog="python -m tests.property.terms")
    options.add_argument("--pairs", type=int, default=1_000_000, help="conditions times events")
    options.add_argument("--seed", type=int, default=0, help="the first seed")
    chosen = options.parse_args(arguments)
    warnings.simplefilter("ignore")
    n_done = n_wrong = 0
    seed = chosen.seed
    while n_done < chosen.pairs:
        problems = differences(seed, 100, 200) + differences_from_oracle(seed, 50, 200)
        n_done += 100 * 200 + 2 * 50 * 200
        n_wrong += len(problems)
        seed += 1
        print(*problems[:3], sep="\n", end="\n" * bool(problems), flush=True)
    print(f"{n_done:,} pairs, {n_wrong} differ")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
