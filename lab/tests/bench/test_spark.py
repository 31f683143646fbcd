"""`bench spark` and `bench transitions`: small runs give every figure, of all processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tocsin
from tocsin_lab.bench import processes, transitions
from tocsin_lab.bench.spark import render

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="measures by /proc, which only Linux has"
)


def test_time_and_memory_are_those_of_all_processes() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\ninput()"
    with processes.Meter() as meter:
        before = meter.seconds()
        child = subprocess.Popen(
            [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in processes.descendants()
        assert meter.seconds() - before >= 0.25
        assert 1 < processes.private_mb(child.pid) < 1000
        child.communicate(b"\n")
        assert child.pid not in processes.descendants()
        assert meter.seconds() - before >= 0.25


def on_spark(test: Callable[[], None]) -> Callable[[], None]:
    """Mark a test that starts Spark."""
    has_java = shutil.which("java") is not None
    for mark in (
        pytest.mark.slow,
        pytest.mark.timeout(900),
        pytest.mark.skipif(not has_java, reason="Spark needs a Java runtime"),
    ):
        test = mark(test)
    return test


def run_benchmark(name: str, options: str) -> dict[str, Any]:
    """Run a benchmark in a process of its own; return its figures."""
    source = str(Path(tocsin.__file__).parents[1])
    paths = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tocsin.cli", "bench", name, "--json", *options.split()],
        env=dict(os.environ, PYTHONPATH=paths),
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@on_spark
def test_a_small_run_gives_every_figure() -> None:
    figures = run_benchmark(
        "spark",
        "--subscriptions 3000 --events 6000 --join-events 3000 --memory-mb 1 --repeats 1",
    )
    assert figures["identity"]["cpu_s"] > 0
    assert figures["match_to_identity"] > 0
    assert figures["join"]["matches"] <= figures["matches"]
    assert figures["memory"]["workers"]
    assert "CPU-µs an event" in render(figures)


@on_spark
def test_a_small_run_of_updates_is_compared_with_one_key_a_group() -> None:
    figures = run_benchmark(
        "transitions",
        "--publications 301 --subscriptions 100 --batch 500 --batches 1 --warm-up 0 --baseline 20",
    )
    assert figures["updates_per_s"] > 0
    assert 0 < figures["jvm_us_per_update"] < figures["cpu_us_per_update"]
    assert {"baseline", "ratio", "state_commit_ms"} <= figures.keys()
    assert len(figures["runs"]) == 2
    assert "CPU-µs an update" in transitions.render(figures)
