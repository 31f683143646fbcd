"""Killed without warning, a pipeline loses nothing and doubles nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.spark.conftest import SOURCE

import tocsin
from tocsin.spark.pipeline.tables import read_table
from tocsin_lab.bench import recovery, recovery_check
from tocsin_lab.bench.cluster import cluster
from tocsin_lab.bench.killing import descendants, kill
from tocsin_lab.bench.settings import RecoverySetting


@pytest.mark.timeout(900)
def test_after_kills_of_driver_and_workers_each_batch_equals_its_recomputation() -> None:
    result = recovery.run(
        RecoverySetting(kills=2, events=120, subscriptions=300, seed=3, clusters=0)
    )
    assert result["differences"] == []
    assert result["verified"]
    assert sum(result["killed"].values()) == 2
    assert result["found"] > 0
    assert result["versions"] > 1
    assert "row for row" in recovery.render(result)


@pytest.mark.timeout(900)
def test_after_kills_transitions_add_up_to_what_matches_and_each_was_told_once() -> None:
    setting = RecoverySetting(
        kills=1, events=120, subscriptions=300, seed=4, clusters=0, mode="transitions"
    )
    result = recovery.run(setting)
    assert result["differences"] == []
    assert result["verified"]
    assert sum(result["killed"].values()) == 1
    assert result["found"] > 0
    assert result["relation"] > 0
    assert "ENTER minus LEAVE" in recovery.render(result)


def test_a_transition_that_is_lost_or_doubled_does_not_pass() -> None:
    """The check finds by itself that transitions do not add up."""
    matcher = tocsin.Matcher()
    matcher.subscribe(1, "price < 10")
    matcher.subscribe(2, "price < 20")
    events = [
        {"event": 1, "publication": 7, "price": 5.0},
        {"event": 2, "publication": 7, "price": 15.0},
    ]
    right = Counter({(7, 1, "ENTER"): 1, (7, 2, "ENTER"): 1, (7, 1, "LEAVE"): 1})
    for written, n_wrong in (
        (right, 0),
        (right - Counter({(7, 1, "LEAVE"): 1}), 1),  # lost: 1 seems to match
        (right - Counter({(7, 2, "ENTER"): 1}), 1),  # lost: 2 seems not to
        (right + Counter({(7, 2, "ENTER"): 1}), 1),  # doubled
    ):
        expected = recovery_check.Transitions(ttl=100.0)
        assert expected.of(matcher, 1.0, events)["notifications"] == right
        expected.add(matcher, written)
        assert len(expected.differences()) == n_wrong, written
    assert expected.of(matcher, 200.0, [])["notifications"] == Counter({(7, 2, "LEAVE"): 1})


def test_a_wrong_output_does_not_pass(tmp_path: Path) -> None:
    """The check itself finds a row too many, one missing, and a batch that should not be there."""
    differences: list[str] = []
    recovery_check._compare(differences, 3, "rows", Counter("aab"), Counter("abc"))
    assert differences == ["batch 3: rows: 1 missing, 1 too many"]


def test_a_file_logged_before_a_kill_belongs_to_the_batch_whose_offsets_reach_it(
    tmp_path: Path,
) -> None:
    for number in range(4):
        entry = {"path": f"file:///events/{number}.json", "timestamp": 0, "batchId": number}
        _write(tmp_path / "sources" / "0" / str(number), "v1", entry)
    for batch, end in enumerate((0, 2, 3)):  # killed after the entry 1, before its offsets
        _write(tmp_path / "offsets" / str(batch), "v1", {"batchTimestampMs": 0}, {"logOffset": end})
    _write(tmp_path / "offsets" / ".0.crc", "v1")
    found = recovery_check.files_by_batch(tmp_path)
    assert {batch: [path.stem for path in paths] for batch, paths in found.items()} == {
        0: ["0"],
        1: ["1", "2"],
        2: ["3"],
    }


def _write(path: Path, version: str, *lines: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([version, *map(json.dumps, lines)]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = recovery.Run(
        RecoverySetting(events=2_000, subscriptions=500), tmp_path, random.Random(0)
    )
    recovery._prepare(state)
    recovery._write_file(state, 1)
    return tmp_path


@pytest.mark.timeout(900)
def test_on_a_cluster_an_executor_killed_in_mid_batch_changes_nothing(folder: Path) -> None:
    """A standalone master with two workers, started by PySpark's own scripts."""
    with cluster(folder) as (url, workers):
        config = (folder / "cluster.toml").read_text().replace(recovery._CLUSTER, url)
        (folder / "cluster.toml").write_text(config)
        command = [sys.executable, "-m", "tocsin.cli", "pipeline", "run", "cluster.toml", "--once"]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "SPARK_LOCAL_IP": "127.0.0.1"}
        with (folder / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                [*command, "--json"], cwd=folder, stdout=log, stderr=log, env=environment
            )
        try:
            _await_pin(folder, driver)
            executors = [
                each.pid
                for worker in workers
                for each in descendants(worker)
                if each.role == "executor"
            ]
            assert len(executors) == 2
            kill(executors[:1])
            assert driver.wait(600) == 1, "bad lines were set aside"
        finally:
            kill([driver.pid, *(each.pid for each in descendants(driver.pid))])
            driver.wait()
    result = recovery_check.check(folder)
    assert result["verified"], result["differences"]
    assert result["batches"] == 2
    hosts = read_table(str(folder / "output" / "notifications"))
    assert hosts.num_rows == result["found"] > 0


def _await_pin(folder: Path, driver: subprocess.Popen[bytes]) -> None:
    """Wait until the first batch has begun: its version is pinned then."""
    end = time.monotonic() + 400
    while not list((folder / "store" / "pins").glob("*/*.json")):
        log = (folder / "driver.log").read_text(errors="replace")
        assert driver.poll() is None, log[-3000:]
        assert time.monotonic() < end, log[-3000:]
        time.sleep(0.02)


def test_status_tells_of_a_pipeline_that_was_killed(tmp_path: Path) -> None:
    from tocsin.spark.pipeline.config import from_mapping
    from tocsin.spark.pipeline.status import status

    values = {
        "pipeline": {"subscriptions": "s", "output": "out"},
        "source": {"format": "frame"},
    }
    config = from_mapping(values, tmp_path)
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True
    )
    said = {"pid": int(gone.stdout), "host": os.uname().nodename, "since": 0.0}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "running.json").write_text(json.dumps(said))
    found = status(config)
    assert not found.running
    assert found.problem is not None
    said["pid"] = os.getpid()
    (tmp_path / "out" / "running.json").write_text(json.dumps(said))
    assert status(config).running
