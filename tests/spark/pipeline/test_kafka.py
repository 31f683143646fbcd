"""Kafka → match → Kafka, with a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import SOURCE
from tests.spark.pipeline import jars, servers
from tests.spark.pipeline.quotes import CONDITIONS, LATE, make_store, pairs, quotes

from tocsin.spark.pipeline import read_table


@pytest.fixture(scope="module")
def connector() -> list[Path]:
    try:
        return jars.kafka_connector()
    except (jars.Unresolved, subprocess.TimeoutExpired) as error:
        jars.give_up(f"Spark's Kafka connector cannot be had: {error}")
        raise AssertionError from None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        found = jars.resolve(jars.KAFKA_SERVER)
    except (jars.Unresolved, subprocess.TimeoutExpired) as error:
        jars.give_up(f"a Kafka server cannot be had: {error}")
        raise AssertionError from None
    with servers.kafka(tmp_path_factory.mktemp("kafka"), found) as address:
        yield address


@pytest.fixture(scope="module")
def folder(broker: str, connector: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the pipeline three times, the second time into a failure; return its folder."""
    folder = tmp_path_factory.mktemp("pipeline")
    make_store(folder / "store")
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.spark.pipeline.kafka_run"),
            *(str(folder), broker, ",".join(map(str, connector))),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(root)])},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def records(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "found.json").read_text())["records"]
    return found


@pytest.mark.timeout(900)  # the first test waits for the broker and the runs
def test_each_notification_is_in_the_topic_once_although_a_batch_broke_off(
    records: list[dict[str, Any]],
) -> None:
    found = sorted((each["value"]["number"], each["value"]["subscription"]) for each in records)
    later = {**CONDITIONS, LATE[0]: LATE[1]}
    assert found == sorted([*pairs(quotes(0, 60)), *pairs(quotes(60, 90), later)])
    assert any(id == "late" for _, id in found)
    assert not any(id == "later" for _, id in found), "the version was pinned before it came"


def test_records_say_whom_they_are_for_and_where_they_come_from(
    records: list[dict[str, Any]],
) -> None:
    origins = set()
    for each in records:
        assert each["key"] == each["value"]["subscription"]
        headers = each["headers"]
        assert set(headers) == {"tocsin-query", "tocsin-batch", "tocsin-version", "tocsin-event"}
        assert headers["tocsin-event"].startswith("quotes/")
        origins.add((headers["tocsin-event"], each["key"]))
    assert len(origins) == len(records)
    assert {each["headers"]["tocsin-batch"] for each in records} == {"0", "1"}


def test_records_that_are_no_events_are_in_the_quarantine_with_their_offsets(folder: Path) -> None:
    rows = read_table(str(folder / "out" / "quarantine")).to_pylist()
    assert sorted(row["original"] for row in rows) == ["[]", "{", '{"price": "high"}']
    assert {row["code"] for row in rows} == {"syntax", "kind"}
    assert all(row["origin"].startswith("quotes/") for row in rows)


def test_spark_reports_the_batches_to_the_listener(folder: Path) -> None:
    assert 0 in json.loads((folder / "found.json").read_text())["reported"]
