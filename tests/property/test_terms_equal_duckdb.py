"""Conditions with computed values, functions and lists match the rows that DuckDB selects.

`python -m tests.property.test_terms_equal_duckdb 1000000` tries as many pairs of a condition and an
event, and prints those that differ.
"""

from __future__ import annotations

import sys
from random import Random

import pyarrow as pa
import pytest
from tests.property.terms import SCHEMA, Terms, Text, ask_duckdb, draw_events

from tocsin import Matcher
from tocsin.language import parse, print_expression


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


@pytest.mark.parametrize("seed", range(6))
def test_terms_and_lists_mean_what_duckdb_says(seed: int) -> None:
    assert differences(seed, 40, 60) == []


@pytest.mark.parametrize("seed", range(6))
def test_terms_are_printed_so_that_they_are_read_again(seed: int) -> None:
    terms = Terms(Random(100 + seed))
    for _ in range(200):
        expression = parse(terms.condition(3).ours)
        assert parse(print_expression(expression)) == expression


def main() -> None:
    n_pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    n_wrong = n_done = seed = 0
    while n_done < n_pairs:
        problems = differences(seed, 100, 200)
        n_wrong += len(problems)
        n_done += 100 * 200
        seed += 1
        for problem in problems[:3]:
            print(problem)
    print(f"{n_done:,} pairs, {n_wrong} conditions that differ")


if __name__ == "__main__":
    main()
