"""The benchmark of placements: what it compares, at a size that a test can bear."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tocsin_lab.bench import placements
from tocsin_lab.bench.settings import PlacementSetting
from tocsin_lab.bench.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_both_placements_find_the_same_and_each_part_is_held_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    setting = PlacementSetting(subscriptions=3_000, events=200, parts=4)
    result = placements._measure(spark, setting, str(tmp_path / "store"), Steps(None, 5))
    assert result["same"]
    assert result["partitioned"]["matches"] > 0
    assert 0.5 < result["partitions_per_event"] <= 1.3
    memory = result["worker_memory"]
    assert sum(said["subscriptions"] for said in memory["partitioned"]) == 3_000
    assert sum(said["matchers"] for said in memory["partitioned"]) == 4  # each part in one place
    whole = [said["subscriptions"] for said in memory["replicated"] if said["matchers"]]
    assert whole
    assert not any(n % 3_000 for n in whole)
    assert "both found the same" in placements.render(
        {**result, "subscriptions": 3_000, "events": 200, "parts": 4, "workers": 2, "workload": "M"}
    )
