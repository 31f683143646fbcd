"""The kernels of subject spaces have one signature each, and so have those that they lead to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.test_kernels import SEVERAL


@pytest.mark.slow
def test_each_kernel_of_a_subject_space_has_one_signature() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.subjects.representative"],
        capture_output=True,
        text=True,
        timeout=420,
        cwd=Path(__file__).parents[2],
    )
    assert result.returncode == 0, result.stderr
    compiled = {name: found for name, found in json.loads(result.stdout).items() if found}
    assert (
        sum(name.startswith(("tocsin.subjects.", "tocsin.transitions.")) for name in compiled) >= 12
    )
    too_many = {n: found for n, found in compiled.items() if len(found) > SEVERAL.get(n, 1)}
    assert not too_many, json.dumps(too_many, indent=2)
