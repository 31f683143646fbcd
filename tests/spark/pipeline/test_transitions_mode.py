"""Pipelines that tell of transitions: what begins and ceases to match, each once."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tocsin.cli.pipeline import _facts, _summary_text
from tocsin.errors import PipelineError
from tocsin.spark.pipeline import Pipeline, read_frame, read_table
from tocsin.spark.pipeline.config import Config, from_mapping
from tocsin.spark.pipeline.folders import open_folder
from tocsin.spark.pipeline.metrics import BatchMetrics
from tocsin.spark.pipeline.publication_table import FOLDER
from tocsin.spark.pipeline.status import status
from tocsin.store.subscription_store import SubscriptionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTRIBUTES = {
    "vehicle": "string",
    "x": "integer",
    "y": "integer",
    "n": "integer",
    "gone": "boolean",
}
RULES = {"key": "vehicle", "order": "n", "retract": "gone", "buckets": 3}
Rows = list[tuple[Any, ...]]


class Fleet:
    """Positions as files, a store of zones, and a pipeline over both."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.store = SubscriptionStore.create(folder / "store")
        self.n_files = 0
        (folder / "events").mkdir()

    def configure(self, **changes: Any) -> Config:
        values = {
            "pipeline": {
                "subscriptions": "store",
                "output": "out",
                "trigger": "once",
                "mode": "transitions",
            },
            "event": {"attributes": ATTRIBUTES},
            "source": {"format": "json", "path": "events", "batch_files": 1},
            "transitions": RULES,
            **changes,
        }
        return from_mapping({k: v for k, v in values.items() if v is not None}, self.folder)

    def report(self, *rows: dict[str, Any] | str) -> None:
        """Put a file of positions among the events; texts are lines as they are."""
        draft = self.folder / "draft"
        draft.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
        moment = 1_700_000_000 + self.n_files  # Spark takes files in the order of these
        os.utime(draft, (moment, moment))
        draft.rename(self.folder / "events" / f"{self.n_files:04}.json")
        self.n_files += 1

    def run(self, config: Config | None = None, **of: Any) -> list[BatchMetrics]:
        found: list[BatchMetrics] = []
        config = config or self.configure()
        Pipeline(config, spark=self.spark, on_batch=found.append, **of).run()
        return found

    def told(self) -> Rows:
        rows = read_table(str(self.folder / "out" / "notifications")).to_pylist()
        return sorted((r["vehicle"], r["subscription"], r["kind"]) for r in rows)

    def relation(self) -> set[tuple[Any, ...]]:
        """Return what matches now, by what was told."""
        found: Counter[Any] = Counter()
        for vehicle, subscription, kind in self.told():
            found[vehicle, subscription] += 1 if kind == "ENTER" else -1
        assert set(found.values()) <= {0, 1}
        return {pair for pair, n in found.items() if n}

    @property
    def kept(self) -> Path:
        return self.folder / "out" / "checkpoint" / FOLDER


@pytest.fixture
def fleet(spark: SparkSession, tmp_path: Path) -> Fleet:
    return Fleet(spark, tmp_path)


def test_only_what_begins_and_ceases_is_told_while_subscriptions_change(fleet: Fleet) -> None:
    fleet.store.subscribe_many({"id": ["west", "north"], "where": ["x < 10", "y >= 5"]})
    fleet.report(
        {"vehicle": "a", "x": 1, "y": 0, "n": 1},
        {"vehicle": "a", "x": 3, "y": 0, "n": 3},
        {"vehicle": "a", "x": 12, "y": 0, "n": 2},
        {"vehicle": "b", "x": 20, "y": 9, "n": 1},
        {"x": 1, "n": 9},
        "{",
    )
    first = fleet.run()
    told = [
        ("a", "west", "ENTER"),
        ("a", "west", "ENTER"),
        ("a", "west", "LEAVE"),
        ("b", "north", "ENTER"),
    ]
    assert fleet.told() == told
    assert [(b.events, b.quarantined, b.entered, b.left) for b in first] == [(6, 2, 3, 1)]
    assert (first[0].publications, first[0].matches) == (2, 4)
    reasons = read_table(str(fleet.folder / "out" / "quarantine")).to_pylist()
    assert sorted(row["code"] for row in reasons) == ["missing", "syntax"]
    fleet.store.subscribe("far", "x >= 20")  # met by a publication that is there already
    fleet.store.unsubscribe_many(["north"])  # silently
    fleet.report("no event at all")
    fleet.run()
    told.append(("b", "far", "ENTER"))
    assert fleet.told() == sorted(told)
    fleet.store.update("west", where="x < 2")
    fleet.report({"vehicle": "b", "n": 5, "gone": True}, {"vehicle": "c", "x": 1, "n": 6})
    last = fleet.run()
    told += [("a", "west", "LEAVE"), ("b", "far", "LEAVE"), ("c", "west", "ENTER")]
    assert fleet.told() == sorted(told)
    assert last[0].publications == 2
    assert fleet.run() == []
    _check_reports(fleet, len(told))


def _check_reports(fleet: Fleet, n_told: int) -> None:
    said = status(fleet.configure())
    assert (said.mode, said.matches, said.publications) == ("transitions", n_told, 2)
    assert (said.entered, said.left) == (5, 3)
    facts = dict(_facts(said))
    assert facts["transitions"] == "5 ENTER, 3 LEAVE, 2 publications"
    assert "mode transitions" in facts["pipeline"]


def test_publications_end_in_time_and_values_that_are_not_given_stay(fleet: Fleet) -> None:
    fleet.store.subscribe_many({"id": [7, 8], "where": ["x < 10 AND y > 5", "y > 5"]})
    rules = {**RULES, "partial": True, "ttl": "1000 hours"}
    fleet.report({"vehicle": "a", "x": 1, "n": 1}, {"vehicle": "a", "y": 6, "n": 2})
    fleet.report({"vehicle": "b", "x": 30, "n": 3}, {"vehicle": "a", "x": 50, "n": 4})
    fleet.run(fleet.configure(transitions=rules))
    told = [("a", 7, "ENTER"), ("a", 7, "LEAVE"), ("a", 8, "ENTER")]
    assert fleet.told() == told
    fleet.report({"vehicle": "c", "y": 9, "n": 5})
    last = fleet.run(fleet.configure(transitions={**rules, "ttl": "1 ms"}))
    assert fleet.told() == sorted([*told, ("a", 8, "LEAVE"), ("c", 8, "ENTER")])
    assert last[0].publications == 1


def test_a_batch_that_was_cut_off_is_told_once(fleet: Fleet) -> None:
    """Cut off after all was done, before the metrics, before the sink, before anything counted."""
    fleet.store.subscribe_many({"id": ["west", "north"], "where": ["x < 10", "y >= 5"]})
    fleet.report({"vehicle": "a", "x": 1, "n": 1}, {"vehicle": "b", "y": 9, "n": 2})
    fleet.report({"vehicle": "a", "x": 11, "n": 3}, {"vehicle": "c", "x": 0, "y": 7, "n": 4})
    fleet.run()
    before = fleet.told()
    fleet.store.subscribe_many(
        {"id": ["all"], "where": ["n > 0"]}
    )  # not what the batch is pinned to
    output = fleet.folder / "out"
    kept = output / "checkpoint" / FOLDER
    lost: list[tuple[Path, str]] = []
    for folder, name in (
        (output / "checkpoint" / "commits", "*1*"),
        (output / "metrics", "*-000000001.json"),
        (output / "notifications" / "manifests", "*-000000001.json"),
        (kept, "*-000000001.json"),
    ):
        lost.append((folder, name))
        for each, pattern in lost:
            paths = list(each.glob(pattern))
            assert paths
            for path in paths:
                path.unlink()
        again = fleet.run()
        assert [b.batch for b in again] == ([] if len(lost) == 1 else [1])
        assert fleet.told() == before
    fleet.report({"vehicle": "b", "x": 1, "n": 5})
    fleet.run()
    assert fleet.relation() == {
        *(("a", "all"), ("b", "all"), ("b", "west"), ("c", "west"), ("c", "north"), ("c", "all")),
    }


def test_rules_that_publications_were_kept_by_do_not_change(fleet: Fleet) -> None:
    fleet.store.subscribe("west", "x < 10")
    fleet.report({"vehicle": "a", "x": 1, "n": 1})
    fleet.run()
    fleet.report({"vehicle": "a", "x": 2, "n": 2})
    with pytest.raises(PipelineError, match="buckets was 3 and is 5 now"):
        fleet.run(fleet.configure(transitions={**RULES, "buckets": 5}))
    for name in fleet.kept.glob("*.json"):
        name.unlink()
    with pytest.raises(PipelineError, match="needs a checkpoint of its own"):
        fleet.run()


def test_files_that_no_batch_needs_any_more_are_removed(fleet: Fleet) -> None:
    fleet.store.subscribe("west", "x < 10")
    fleet.report({"vehicle": "untouched", "x": 1, "n": 0})
    for n in range(1, 5):
        fleet.report({"vehicle": "a", "x": 20 * ((n + 1) % 2), "n": n})
    assert len(fleet.run()) == 5
    manifests = sorted(path.name for path in fleet.kept.glob("*.json"))
    assert [name[-6] for name in manifests] == ["2", "3", "4"]
    kept = [json.loads((fleet.kept / name).read_text()) for name in manifests]
    needed = {*(name for k in kept for name, *_ in k["states"].values())}
    needed |= {name for k in kept for name in k["found"]} | set(manifests)
    assert {path.name for path in fleet.kept.iterdir()} == needed
    assert fleet.relation() == {("untouched", "west")}


def test_a_valid_event_counts_beside_a_file_that_cannot_be_read(fleet: Fleet) -> None:
    fleet.store.subscribe("west", "x < 10")
    fleet.report("vehicle,vehicle", "b,1")
    fleet.report("vehicle,x", "a,1")
    source = {"format": "csv", "path": "events", "batch_files": 10}
    transitions = {"key": "vehicle"}
    batches = fleet.run(fleet.configure(source=source, transitions=transitions))
    assert [(b.events, b.quarantined, b.entered) for b in batches] == [(2, 1, 1)]
    assert fleet.told() == [("a", "west", "ENTER")]


def test_a_checkpoint_that_hadoop_reaches_needs_nothing_but_sparks_configuration(
    fleet: Fleet, hadoop_url: str, tmp_path: Path
) -> None:
    """Buckets and transitions go through Spark: tasks have no file system of their own there."""
    output = f"{hadoop_url}/out"
    values = {"subscriptions": "store", "output": output, "trigger": "once", "mode": "transitions"}
    config = fleet.configure(pipeline=values)
    fleet.store.subscribe_many({"id": ["west", "north"], "where": ["x < 10", "y >= 5"]})
    fleet.report({"vehicle": "a", "x": 1, "n": 1}, {"vehicle": "b", "y": 9, "n": 2})
    for n in range(3, 7):
        fleet.report({"vehicle": "a", "x": 20 * (n % 2), "n": n})
    batches = fleet.run(config)
    assert [batch.publications for batch in batches] == [2] * 5
    assert [(batch.entered, batch.left) for batch in batches] == [(2, 0), *[(0, 1), (1, 0)] * 2]
    rows = read_frame(fleet.spark, f"{output}/notifications").collect()
    assert sorted((r["vehicle"], r["subscription"], r["kind"]) for r in rows) == [
        *[("a", "west", "ENTER")] * 3,
        *[("a", "west", "LEAVE")] * 2,
        ("b", "north", "ENTER"),
    ]
    kept = tmp_path / "disk" / "out" / "checkpoint" / FOLDER
    manifests = sorted(kept.glob("*-00000000?.json"))
    assert [path.name[-6] for path in manifests] == ["2", "3", "4"]
    folder = open_folder(output, fleet.spark)
    query = manifests[-1].name.removesuffix("-000000004.json")
    for name in (f"checkpoint/{FOLDER}/{query}-000000004.json", f"metrics/{query}-000000004.json"):
        assert folder.read(name) is not None
        folder.remove(name)  # cut off before it took effect
    folder.remove("checkpoint/commits/4")
    again = fleet.run(config)
    assert [(batch.entered, batch.left) for batch in again] == [(1, 0)]
    assert read_frame(fleet.spark, f"{output}/notifications").count() == 6


def test_a_frame_from_python_has_keys_of_its_own_type(fleet: Fleet) -> None:
    fleet.store.subscribe_many({"id": [1, 2], "where": ["x < 10", "x < 0"]})
    frame = fleet.spark.createDataFrame([(5, 1), (6, 20), (None, 3)], "vehicle int, x long")
    config = fleet.configure(source={"format": "frame"}, event=None, transitions={"key": "vehicle"})
    batches = fleet.run(config, events=frame)
    assert fleet.told() == [(5, 1, "ENTER")]
    assert (batches[0].events, batches[0].quarantined) == (3, 1)
    elsewhere = {"subscriptions": "store", "output": "other", "mode": "transitions"}
    bare = fleet.configure(
        pipeline=elsewhere,
        source={"format": "frame"},
        event=None,
        transitions={"key": "vehicle", "order": "nothing"},
    )
    with pytest.raises(PipelineError, match="order names 'nothing'"):
        fleet.run(bare, events=frame)


def test_a_run_is_summed_up_in_transitions(fleet: Fleet) -> None:
    fleet.store.subscribe("west", "x < 10")
    fleet.report({"vehicle": "a", "x": 1, "n": 1})
    with Pipeline(fleet.configure(), spark=fleet.spark) as pipeline:
        said = _summary_text(pipeline.run(), "out")
    assert "1 events, 1 ENTER, 0 LEAVE, 1 publications" in said
