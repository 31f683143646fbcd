"""Streams: each micro-batch takes the newest version of the store, and a replay takes the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import tocsin
from tocsin import spark as ts
from tocsin.errors import NoStoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Stream:
    """A stream of files: events in `input`, a store, matches as Parquet in `output`."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        (folder / "input").mkdir()
        self.store = tocsin.SubscriptionStore.create(folder / "store")
        self.store.subscribe("cheap", "price < 100")

    def add(self, number: int, *prices: float) -> None:
        lines = [json.dumps({"price": price}) for price in prices]
        (self.folder / "input" / f"{number}.json").write_text("\n".join(lines))

    def matched(self, **of: Any) -> DataFrame:
        events = (
            self.spark.readStream.schema("price double")
            .option("maxFilesPerTrigger", 1)
            .json(str(self.folder / "input"))
        )
        return ts.match(events, str(self.folder / "store"), **of)

    def start(self, output: str = "output", **of: Any) -> Any:
        return (
            self.matched(**of).writeStream.format("parquet")
            .option("path", str(self.folder / output))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .start()
        )  # fmt: skip

    def found(self, output: str = "output") -> list[tuple[Any, ...]]:
        tables = [pq.read_table(file) for file in (self.folder / output).glob("*.parquet")]
        return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def test_a_subscription_added_to_the_store_matches_from_the_next_micro_batch_on(
    stream: Stream,
) -> None:
    stream.add(1, 50.0, 150.0)
    query = stream.start()
    try:
        query.processAllAvailable()
        assert stream.found() == [(50.0, "cheap")]
        stream.store.subscribe("dear", "price > 100")
        stream.store.unsubscribe_many(["cheap"])
        stream.add(2, 51.0, 151.0)
        query.processAllAvailable()
        assert stream.found() == [(50.0, "cheap"), (151.0, "dear")]
    finally:
        query.stop()


def test_a_replayed_micro_batch_uses_the_version_that_it_used_before(stream: Stream) -> None:
    stream.add(1, 50.0)
    stream.add(2, 60.0)
    query = stream.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert stream.found() == [(50.0, "cheap"), (60.0, "cheap")]
    (name,) = [each.name for each in (stream.folder / "store" / "pins").iterdir()]
    assert sorted(stream.store.pins(name)) == [0, 1]
    stream.store.subscribe("all", "price > 0")
    stream.store.compact(grace=0)
    # As after a crash: the second micro-batch was planned, but not committed.
    for file in ("1", ".1.crc"):
        (stream.folder / "checkpoint" / "commits" / file).unlink(missing_ok=True)
    stream.add(3, 70.0)
    query = stream.start("again")
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert stream.found("again") == [(60.0, "cheap"), (70.0, "all"), (70.0, "cheap")]


def test_a_partitioned_stream_sees_changes_too(stream: Stream, spark: SparkSession) -> None:
    texts = [(str(i), f"price BETWEEN {i} AND {i + 1}") for i in range(200)]
    frame = spark.createDataFrame(texts, "id string, where string")
    assert ts.compile(frame, stream.folder / "store", parts=3).n_parts == 3
    stream.add(1, 50.5)
    query = stream.start(placement="partitioned")
    try:
        query.processAllAvailable()
        assert stream.found() == [(50.5, "50")]
        stream.store.subscribe("new", "price > 100")
        stream.store.unsubscribe_many(["150"])
        stream.store.update("3", where="price = 150.5")
        stream.add(2, 150.5, 3.5)
        query.processAllAvailable()
        assert stream.found() == [(50.5, "50"), (150.5, "3"), (150.5, "new")]
    finally:
        query.stop()


def test_a_store_that_is_missing_stops_a_stream_before_it_starts(
    stream: Stream, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(NoStoreError):
        stream.matched()
