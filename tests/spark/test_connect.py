"""The same through Spark Connect, where there is no JVM in the client's process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tocsin


@pytest.mark.timeout(900)
def test_everything_works_through_spark_connect(tmp_path: Path) -> None:
    source = str(Path(tocsin.__file__).parents[1])
    environment = dict(os.environ, PYSPARK_PYTHON=sys.executable)
    environment["PYTHONPATH"] = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    script = Path(__file__).parent / "connect_run.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert "connect" in found["session"]
    expected = [["IBM", 89.5, "cheap"], ["IBM", 89.5, "ibm"], ["IBM", 101.0, "ibm"]]
    assert found["bad"] == [[2, "bad"]]
    assert found["replicated"] == expected
    assert found["partitioned"] == expected
    assert found["shipped"] == [[101.0, 1], [120.0, 1]]
    assert found["generated"] == 100
    assert found["stream"] == [[89.5, "cheap"], [89.5, "ibm"], [101.0, "ibm"]]
