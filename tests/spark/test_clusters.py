"""Clusters of subscriptions: like ones sit together, and each is in one part."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tocsin.encode.events import to_batch
from tocsin.loading import load_table
from tocsin.normalize.table import ConjunctionTable, take
from tocsin.spark import clusters
from tocsin.summary import Summary
from tocsin.workloads import workload


def table_of(texts: list[str]) -> ConjunctionTable:
    return load_table({"id": range(len(texts)), "where": texts}, None, None, None).conjunctions


@pytest.mark.parametrize(("name", "most"), [("M", 1.05), ("W0", 1.05), ("W2", 1.3)])
def test_an_event_goes_to_few_parts(name: str, most: float) -> None:
    chosen, n, n_parts = workload(name), 8000, 5
    table = load_table(chosen.subscription_texts(n), None, None, None).conjunctions
    sample = load_table(chosen.subscription_texts(2000, first=n), None, None, None).conjunctions
    events = to_batch(chosen.events(1000))
    parts = clusters.assign_parts(clusters.learn(sample, n_parts, events), table, n)
    counts = np.bincount(parts, minlength=n_parts)
    assert counts.min() > n / n_parts / 3
    assert counts.max() < n / n_parts * 2
    admitted = 0.0
    for part in range(n_parts):
        mine = take(table, np.flatnonzero(parts[table.subscription] == part))
        admitted += Summary.of_table(mine).admits(events).mean()
    assert admitted <= most


def test_subscriptions_that_nothing_divides_are_dealt_out_in_turns() -> None:
    table = table_of(["x = 1"] * 10)
    tree = clusters.learn(table, 3)
    assert tree == clusters.Rotation(0, 3)
    assert clusters.assign_parts(tree, table, 10).tolist() == [0, 1, 2] * 3 + [0]
    empty = table_of([])
    assert clusters.assign_parts(clusters.learn(empty, 2), empty, 0).tolist() == []


def test_a_subscription_goes_below_a_cut_if_it_admits_anything_before_it() -> None:
    sample = table_of([f"s = '{letter}'" for letter in "abcdefgh"])
    tree = clusters.learn(sample, 2)
    assert isinstance(tree, clusters.Split)
    assert clusters.describe(tree)[0] == "s below 'e':"
    texts = [
        "s = 'd'", "s = 'e'", "s = 'f'", "s IN ('d', 'z')", "s < 'z'", "s > 'e'", "s IS NULL",
        "s IS NOT NULL", "t = 1", "s = 'z' OR t = 1", "s = 7", "s = 'dz'", "FALSE",
    ]  # fmt: skip
    parts = clusters.assign_parts(tree, table_of(texts), len(texts)).tolist()
    below = {text for text, part in zip(texts, parts, strict=True) if part == 0}
    assert below == {
        "s = 'd'", "s IN ('d', 'z')", "s < 'z'", "s IS NULL", "s IS NOT NULL", "t = 1",
        "s = 'z' OR t = 1", "s = 7", "s = 'dz'",
    }  # fmt: skip


def test_the_guess_without_events_divides_too() -> None:
    chosen = workload("W0")
    table = load_table(chosen.subscription_texts(3000), None, None, None).conjunctions
    counts = np.bincount(clusters.assign_parts(clusters.learn(table, 4), table, 3000), minlength=4)
    assert counts.min() > 300
    assert isinstance(pa.array(counts), pa.Array)
