"""How often a store's folder is listed and its manifests are read, on the driver and in tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tocsin
from tocsin import spark as ts
from tocsin.spark import worker
from tocsin.spark.match_task import MatchSpec, MatchTask
from tocsin.spark.worker import Moment, Source
from tocsin.storage.local import LocalPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CountingPlace(LocalPlace):
    """A local place that records which folders are listed and which small files are read."""

    listed: list[str]
    opened: list[str]

    def names(self, under: str = "") -> list[str]:
        self.listed.append(under)
        return super().names(under)

    def read(self, name: str) -> bytes:
        self.opened.append(name)
        return super().read(name)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingPlace:
    """A store of a base and two changes, whose calls are counted from now on."""
    store = tocsin.SubscriptionStore.create(tmp_path / "store")
    store.subscribe("cheap", "price < 100")
    store.subscribe("ibm", "firm = 'IBM'")
    counting = CountingPlace(tmp_path / "store")
    monkeypatch.setattr(counting, "listed", [], raising=False)
    monkeypatch.setattr(counting, "opened", [], raising=False)
    worker.close_all()
    return counting


def events() -> list[pa.RecordBatch]:
    return [pa.record_batch({"firm": ["IBM", "SAP"], "price": [50.0, 50.0]})]


def test_a_cold_match_on_the_driver_lists_the_store_once_and_reads_each_manifest_once(
    spark: SparkSession, place: CountingPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.createDataFrame([("IBM", 50.0)], "firm string, price double")
    monkeypatch.setattr("tocsin.spark.subscription_source.to_place", lambda _: place)
    matches = ts.match(frame, place.path)
    assert place.listed == [""]
    assert sorted(place.opened) == [f"manifest-{number:08d}.json" for number in (1, 2, 3)]
    assert matches.columns == ["firm", "price", "subscription"]


def test_a_task_with_an_open_matcher_neither_lists_nor_reads(place: CountingPlace) -> None:
    moment = Moment.read(place, 3, 1.0)
    task = MatchTask(MatchSpec(Source(place, moment), ("firm",), "rows", False))
    first = pa.Table.from_batches(task(events())).to_pylist()
    assert place.listed == [], "a task that opens a given version lists nothing either"
    assert len(first) == 3
    place.opened.clear()
    assert pa.Table.from_batches(task(events())).to_pylist() == first
    assert (place.listed, place.opened) == ([], [])


def test_a_task_of_a_micro_batch_reads_its_pin_and_one_manifest(
    place: CountingPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_micro_batch", lambda: ("query", 7))
    task = MatchTask(MatchSpec(Source(place), ("firm",), "rows", False))
    assert len(list(task(events()))) == 1
    place.listed.clear()
    place.opened.clear()
    assert len(list(task(events()))) == 1
    assert place.listed == []
    assert place.opened == ["pins/query/000000000007.json", "manifest-00000003.json"]
