"""Streams: each micro-batch takes the newest version of the store, and a replay takes the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        self.matcher = tocsin.Matcher()
        self.matcher.subscribe("cheap", "price < 100")
        self.save()

    def save(self) -> None:
        self.matcher.save(self.folder / "store")

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

    def start(self, **of: Any) -> Any:
        return (
            self.matched(**of).writeStream.format("parquet")
            .option("path", str(self.folder / "output"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .start()
        )  # fmt: skip

    def found(self) -> list[tuple[Any, ...]]:
        frame = self.spark.read.parquet(str(self.folder / "output"))
        return sorted(tuple(row) for row in frame.collect())


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
        stream.matcher.subscribe("dear", "price > 100")
        stream.matcher.unsubscribe("cheap")
        stream.save()
        stream.add(2, 51.0, 151.0)
        query.processAllAvailable()
        assert stream.found() == [(50.0, "cheap"), (151.0, "dear")]
    finally:
        query.stop()


def test_a_store_that_is_missing_stops_a_stream_before_it_starts(
    stream: Stream, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(NoStoreError):
        stream.matched()
