"""The pipeline from source to sink, in one Spark session."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.pipeline.quotes import BAD, CONDITIONS, LATE, make_store, pairs, quotes

from tocsin.errors import DamagedStoreError, NoStoreError, PipelineError
from tocsin.spark.hadoop import HadoopPlace
from tocsin.spark.pipeline import Pipeline, batches, read_frame, read_metrics, read_table, sample
from tocsin.spark.pipeline.batches import make_passes
from tocsin.spark.pipeline.config import Config, from_mapping
from tocsin.spark.pipeline.folders import Folder, open_folder
from tocsin.spark.pipeline.metrics import BatchMetrics
from tocsin.spark.pipeline.status import status
from tocsin.store.subscription_store import SubscriptionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]
ATTRIBUTES = {"number": "integer", "firm": "string", "price": "float"}


class Place:
    """A folder with a store, events and the output of a pipeline."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.store = make_store(folder / "store")
        (folder / "events").mkdir()

    def configure(self, **changes: Any) -> Config:
        values = {
            "pipeline": {"subscriptions": "store", "output": "out", "trigger": "once"},
            "event": {"attributes": ATTRIBUTES},
            "source": {"format": "json", "path": "events", "batch_files": 1},
            "match": {"keep": ["number"], "unmatched": True},
            **changes,
        }
        return from_mapping({k: v for k, v in values.items() if v is not None}, self.folder)

    def put(self, name: str, content: bytes | str) -> None:
        """Put a file among the events at once."""
        draft = self.folder / f"{name}.draft"
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.rename(self.folder / "events" / name)

    def put_json(
        self, name: str, events: list[dict[str, Any]], bad: list[str] | None = None
    ) -> None:
        self.put(name, "\n".join([*map(json.dumps, events), *(bad or [])]))

    def run(self, config: Config | None = None, **of: Any) -> list[BatchMetrics]:
        """Run a pipeline over what is there; return its batches."""
        found: list[BatchMetrics] = []
        Pipeline(config or self.configure(), spark=self.spark, on_batch=found.append, **of).run()
        return found

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_table(str(self.folder / "out" / name)).to_pylist()
        return rows

    def found(self) -> list[tuple[int, str]]:
        return sorted((r["number"], r["subscription"]) for r in self.table("notifications"))


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_files_are_matched_once_and_new_subscriptions_from_the_next_batch_on(place: Place) -> None:
    place.put_json("0.json", quotes(0, 40), BAD)
    first = place.run()
    assert [(b.events, b.quarantined) for b in first] == [(43, 3)]
    place.store.subscribe(*LATE)
    place.put_json("1.json", quotes(40, 100))
    second = place.run()
    assert second[0].version > first[0].version
    assert second[0].subscriptions == len(CONDITIONS) + 1
    expected = [*pairs(quotes(0, 40)), *pairs(quotes(40, 100), {**CONDITIONS, LATE[0]: LATE[1]})]
    assert place.found() == sorted(expected)
    assert second[0].matches + first[0].matches == len(expected)
    lonely = {e["number"] for e in quotes(0, 100)} - {number for number, _ in expected}
    assert {row["number"] for row in place.table("unmatched")} == lonely
    assert sorted(row["original"] for row in place.table("quarantine")) == sorted(BAD)
    assert place.run() == []
    frame = read_frame(place.spark, str(place.folder / "out" / "notifications"))
    assert frame.count() == len(expected)
    _check_reports(place, first + second)


def _check_reports(place: Place, batches: list[BatchMetrics]) -> None:
    rows = read_metrics(str(place.folder / "out")).to_pylist()
    assert [row["events"] for row in rows] == [b.events for b in batches]
    assert all(row["lag"] > 0 and row["ms_parse"] > 0 for row in rows)
    said = status(place.configure())
    assert (said.batches, said.events, said.running) == (2, 103, False)
    assert said.newest_version == place.store.newest()
    kept = sample(str(place.folder / "out"))
    assert kept is not None
    assert set(kept.column_names) == set(ATTRIBUTES)


def test_a_replayed_batch_uses_its_pin_and_gives_the_same_rows(place: Place) -> None:
    place.put_json("0.json", quotes(0, 40), BAD)
    place.run()
    before = [place.found(), place.table("quarantine"), place.table("unmatched")]
    output = place.folder / "out"
    lost = [*(output / "checkpoint" / "commits").iterdir(), *(output / "metrics").iterdir()]
    lost += [output / "notifications" / "manifests", output / "unmatched" / "manifests"]
    for path in lost:  # as if the batch had been cut off after the quarantine was written
        path.rename(place.folder / f"lost-{path.name}-{len(path.parts)}-{path.parent.name}")
    place.store.subscribe("anything", "price >= 0")
    place.store.unsubscribe_many(["cheap"])
    again = place.run()
    assert [b.batch for b in again] == [0]
    assert [place.found(), place.table("quarantine"), place.table("unmatched")] == before
    assert again[0].version == 2


def test_a_new_checkpoint_is_a_new_query_whose_batches_are_not_taken_for_old_ones(
    place: Place,
) -> None:
    place.put_json("0.json", quotes(0, 10))
    place.run()
    (place.folder / "out" / "checkpoint").rename(place.folder / "forgotten")
    place.run()
    assert place.found() == sorted(2 * pairs(quotes(0, 10)))


def test_csv_files_may_differ_in_their_columns(place: Place) -> None:
    place.put("0.csv", "number,firm,price\n1,IBM,15\n2,SAP,high\n3,x\n\n")
    place.put("1.csv", "firm,number\r\nO'Neil,4\r\n")
    place.put("2.csv", "firm,firm\nIBM,IBM\n")
    source = {"format": "csv", "path": "events"}
    batches = place.run(place.configure(source=source))
    assert place.found() == [(1, "cheap"), (1, "ibm"), (4, "quoted")]
    codes = sorted((row["code"], row["original"]) for row in place.table("quarantine"))
    assert codes == sorted([("kind", "2,SAP,high"), ("syntax", "3,x"), ("file", None)], key=str)
    assert any("'price' is missing" in text for text in batches[0].drift)
    assert (batches[0].events, batches[0].quarantined) == (5, 3)


def test_parquet_files_whose_columns_drift_are_reported_and_bad_ones_set_aside(
    place: Place,
) -> None:
    tables = {
        "0": {"number": [1, 2], "firm": ["IBM", "SAP"], "price": [15.0, 90.0]},
        "1": {"number": [3.0, 3.5], "firm": ["IBM", "IBM"], "price": [15.0, 15.0]},
        "2": {"number": [5, 6], "price": ["cheap", None], "firm": ["O'Neil", "O'Neil"]},
        "3": {"number": [7], "firm": ["O'Neil"]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), place.folder / "draft")
        (place.folder / "draft").rename(place.folder / "events" / f"{name}.parquet")
    place.put("4.parquet", "this is no Parquet file")
    source = {"format": "parquet", "path": "events"}
    batches = place.run(place.configure(source=source))
    assert place.found() == [
        *((1, "cheap"), (1, "ibm"), (3, "cheap"), (3, "ibm"), (6, "quoted"), (7, "quoted")),
    ]
    rows = {
        row["code"] + (row["original"] or row["origin"])[-20:] for row in place.table("quarantine")
    }
    assert len(place.table("quarantine")) == 3, rows
    assert (batches[0].events, batches[0].quarantined) == (8, 3)
    said = " ".join(batches[0].drift)
    assert "'price' is missing" in said
    assert "'price' is string, but declared float" in said
    assert "'number' is double, but declared integer" in said


def test_a_frame_from_python_is_one_batch_and_is_delivered_once(place: Place) -> None:
    frame = place.spark.createDataFrame(
        [(e["number"], e["firm"], e["price"]) for e in quotes(0, 50)],
        "number bigint, firm string, price double",
    )
    config = place.configure(
        source={"format": "frame"},
        event=None,
        match={"output": "arrays"},
        sinks=[{"kind": "parquet"}],
    )
    batches = place.run(config, events=frame)
    assert place.run(config, events=frame) == []
    rows = place.table("notifications")
    found = sorted((row["number"], id) for row in rows for id in row["subscriptions"])
    assert found == pairs(quotes(0, 50))
    assert (batches[0].events, batches[0].matches) == (50, len(rows))


def test_what_no_event_carries_is_reported_with_the_predicates_it_silences(place: Place) -> None:
    frame = place.spark.createDataFrame([("IBM",)], "firm string")
    config = place.configure(source={"format": "frame"}, event=None, match=None)
    said = " ".join(place.run(config, events=frame)[0].drift)
    assert "price: there is no such column" in said
    assert "'cheap'" in said


def test_generated_events_end_when_they_should_and_go_to_all_sinks(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SubscriptionStore.create(place.folder / "market")
    store.subscribe_many({"id": [1, 2], "where": ["firm = 'F000'", "price < 0"]})
    config = place.configure(
        pipeline={"subscriptions": "market", "output": "out"},
        event=None,
        match={"keep": ["event", "firm"]},
        source={"format": "generated", "workload": "M", "events": 900, "batch_events": 400},
        sinks=[{"kind": "console", "rows": 2}, {"kind": "parquet"}],
    )
    batches = place.run(config)
    assert [batch.events for batch in batches] == [400, 400, 100]
    rows = place.table("notifications")
    assert {(row["firm"], row["subscription"]) for row in rows} == {("F000", 1)}
    assert len({row["event"] for row in rows}) == len(rows) > 50
    assert "only showing top 2 rows" in capsys.readouterr().out


def nothing(store: Path) -> None:
    store.rename(store.parent / "elsewhere")


def damaged(store: Path) -> None:
    for path in store.glob("*.tocsin"):
        path.write_bytes(path.read_bytes()[:-9] + b"#" * 9)


@pytest.mark.parametrize(("harm", "error"), [(nothing, NoStoreError), (damaged, DamagedStoreError)])
def test_a_store_that_cannot_be_used_stops_the_pipeline_before_any_output(
    place: Place, harm: Callable[[Path], None], error: type[Exception]
) -> None:
    place.put_json("0.json", quotes(0, 10))
    harm(place.folder / "store")
    with pytest.raises(error):
        place.run()
    assert not (place.folder / "out" / "notifications").exists()
    assert not (place.folder / "out" / "checkpoint").exists()


def test_a_declared_type_that_the_subscriptions_contradict_is_refused(place: Place) -> None:
    import tocsin

    SubscriptionStore.create(place.folder / "typed", tocsin.EventType("Quote", price=int))
    config = place.configure(pipeline={"subscriptions": "typed", "output": "out"})
    with pytest.raises(PipelineError, match=r"event\.attributes\.price is float"):
        place.run(config)


def test_what_fails_in_a_batch_is_told_and_the_next_run_goes_on(place: Place) -> None:
    place.put_json("0.json", quotes(0, 10))
    blocked = place.folder / "out" / "notifications"
    blocked.parent.mkdir()
    blocked.write_text("a file where a folder should be")
    with pytest.raises(PipelineError, match="notifications: cannot be read: Not a directory"):
        place.run()
    blocked.unlink()
    assert len(place.run()) == 1
    assert place.found() == pairs(quotes(0, 10))


def test_the_passes_of_a_micro_batch_are_those_of_the_documents(place: Place) -> None:
    config = place.configure()
    passes = make_passes(config, place.spark, open_folder(config.output))
    modules = [getattr(each, "__module__", "").rpartition(".")[2] for each in passes]
    assert modules == ["pin", "read", "parse", "validate", "match", "deliver", "record"]
    assert " → ".join(modules) in (ROOT / "docs" / "pipeline.md").read_text()
    assert " → ".join(modules) in (batches.__doc__ or "")


def test_folders_that_hadoop_reaches_behave_like_local_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    theirs = Folder(HadoopPlace(f"file:{tmp_path}", spark.sparkContext))
    ours = open_folder(str(tmp_path))
    assert theirs.create("inner/a.json", b"\x00one\xff")
    assert not theirs.create("inner/a.json", b"two")
    assert ours.read("inner/a.json") == theirs.read("inner/a.json") == b"\x00one\xff"
    theirs.replace("inner/a.json", b"three")
    assert ours.read("inner/a.json") == b"three"
    assert theirs.names("inner") == ["a.json"]
    assert theirs.sizes("inner") == ours.sizes("inner") == {"a.json": 5}
    assert theirs.read("nothing") is None
    assert theirs.names("nothing") == []
    theirs.remove("inner")
    assert not os.listdir(tmp_path)  # noqa: PTH208
