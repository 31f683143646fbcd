"""Transitions on Spark: what begins and ceases to match, each once, over restarts."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tocsin
from tocsin import spark as ts
from tocsin.errors import ArgumentError
from tocsin.store.subscription_store import SubscriptionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "vehicle string, x int, y int, n long, gone boolean, note array<int>"


class Fleet:
    """A stream of positions as files, a store, and transitions as Parquet."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        (folder / "input").mkdir()
        self.store = SubscriptionStore.create(folder / "store")
        self.n_files = 0

    def report(self, *rows: dict[str, Any]) -> None:
        lines = "\n".join(map(json.dumps, rows))
        file = self.folder / f"{self.n_files:04}.json"
        file.write_text(lines)
        moment = 1_700_000_000 + self.n_files  # Spark takes files in the order of these
        os.utime(file, (moment, moment))
        file.rename(self.folder / "input" / file.name)
        self.n_files += 1

    def run(self, **of: Any) -> list[tuple[Any, ...]]:
        """Process what is there; return the transitions of all runs."""
        self.spark.conf.set(PROVIDER, ROCKSDB)
        events = (
            self.spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .json(str(self.folder / "input"))
        )
        found = ts.transitions(
            events, self.folder / "store", "vehicle", order="n", retract="gone", buckets=3, **of
        )
        query = (
            found.writeStream.format("parquet")
            .option("path", str(self.folder / "output"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
        rows = self.spark.read.parquet(str(self.folder / "output")).collect()
        return sorted(tuple(row) for row in rows)


@pytest.fixture
def fleet(spark: SparkSession, tmp_path: Path) -> Fleet:
    return Fleet(spark, tmp_path)


def test_a_stream_tells_of_transitions_only_and_goes_on_after_a_restart(fleet: Fleet) -> None:
    fleet.store.subscribe("west", "x < 10")
    fleet.store.subscribe("north", "y >= 5")
    fleet.report(
        {"vehicle": "a", "x": 1, "y": 0, "n": 1},
        {"vehicle": "b", "x": 20, "y": 9, "n": 1},
        {"vehicle": None, "x": 1, "y": 9, "n": 2},  # of no publication
        {"vehicle": "a", "x": 12, "y": 0, "n": 2},
        {"vehicle": "a", "x": 3, "y": 0, "n": 3},
    )
    first = [
        ("a", "west", "ENTER"),
        ("a", "west", "ENTER"),
        ("a", "west", "LEAVE"),
        ("b", "north", "ENTER"),
    ]
    assert fleet.run() == first
    fleet.store.subscribe("far", "x >= 20")  # met by a publication that is there already
    fleet.store.unsubscribe_many(["north"])  # silently
    fleet.report({"vehicle": "a", "x": 4, "y": 7, "n": 4})
    assert fleet.run() == sorted([*first, ("b", "far", "ENTER")])
    fleet.report({"vehicle": "b", "n": 5, "gone": True}, {"vehicle": "c", "x": 1, "n": 6})
    expected = [*first, ("b", "far", "ENTER"), ("b", "far", "LEAVE"), ("c", "west", "ENTER")]
    assert fleet.run() == sorted(expected)
    fleet.store.compact(grace=0)
    fleet.store.update("west", where="x > 1")
    fleet.report({"vehicle": "d", "x": 0, "n": 7})
    assert fleet.run() == sorted([*expected, ("c", "west", "LEAVE")])
    relation: Counter[Any] = Counter()
    for key, subscription, kind in fleet.run():
        relation[key, subscription] += 1 if kind == "ENTER" else -1
    live = {pair for pair, n in relation.items() if n and pair[1] != "north"}  # gone silently
    assert live == {("a", "west")}


def test_values_that_are_not_given_stay_and_publications_end_in_time(fleet: Fleet) -> None:
    fleet.store.subscribe_many({"id": [7, 8], "where": ["x < 10 AND y > 5", "y > 5"]})
    fleet.report({"vehicle": "a", "x": 1, "n": 1}, {"vehicle": "a", "y": 6, "n": 2})
    fleet.report({"vehicle": "b", "x": 30, "n": 3}, {"vehicle": "a", "x": 50, "n": 4})
    first = [("a", 7, "ENTER"), ("a", 7, "LEAVE"), ("a", 8, "ENTER")]
    assert fleet.run(partial=True, ttl=1e9) == first
    fleet.report({"vehicle": "b", "y": 9, "n": 5})
    assert fleet.run(partial=True, ttl=1e-6) == sorted(
        [*first, ("a", 8, "LEAVE"), ("b", 8, "ENTER")]
    )


def test_what_cannot_work_is_refused_before_anything_runs(fleet: Fleet) -> None:
    spark, path = fleet.spark, str(fleet.folder / "store")
    spark.conf.set(PROVIDER, ROCKSDB)
    stream = spark.readStream.schema(SCHEMA).json(str(fleet.folder / "input"))
    with pytest.raises(ArgumentError, match="need a stream"):
        ts.transitions(spark.range(3), path, "id")
    with pytest.raises(ArgumentError, match="key names 'nothing'"):
        ts.transitions(stream, path, "nothing")
    with pytest.raises(ArgumentError, match="must be boolean"):
        ts.transitions(stream, path, "vehicle", retract="x")
    with pytest.raises(ArgumentError, match="ttl must be"):
        ts.transitions(stream, path, "vehicle", ttl=0)
    with pytest.raises(ArgumentError, match="a store or its path"):
        ts.transitions(stream, tocsin.Matcher(), "vehicle")
    spark.conf.unset(PROVIDER)
    with pytest.raises(ArgumentError, match="RocksDB"):
        ts.transitions(stream, path, "vehicle")
