"""Kernels: one signature each, and no index out of bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tocsin.engines import names
from tocsin.language import text_kernels
from tocsin.normalize import fold_kernels

ROOT = Path(__file__).parents[2]
EVERY_ENGINE = os.environ.get("TOCSIN_BOUNDS") == "all"

SEVERAL = {
    f"tocsin.encode.cell_kernels.{name}": 2
    for name in ("fill_marks", "search_numbers", "search_present")
}
"""Kernels that are compiled more than once on purpose: for integers and for floats."""


def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        timeout=840,
        cwd=ROOT,
        env=os.environ | variables,
    )


@pytest.mark.parametrize("engine", [name for name in names() if name != "oracle"])
def test_each_kernel_has_one_signature(engine: str) -> None:
    """Another dtype, layout or read-only flag is another compilation, which costs seconds."""
    result = run("-m", "tests.engines.representative", engine)
    assert result.returncode == 0, result.stderr
    signatures = json.loads(result.stdout)
    compiled = {name: found for name, found in signatures.items() if found}
    assert len(compiled) >= 10, "the run reaches the kernels"
    too_many = {n: found for n, found in compiled.items() if len(found) > SEVERAL.get(n, 1)}
    assert not too_many, json.dumps(too_many, indent=2)


@pytest.mark.slow
@pytest.mark.timeout(900)  # it compiles every kernel again
def test_no_kernel_reads_or_writes_out_of_bounds() -> None:
    """All that `auto` and subject spaces use; `TOCSIN_BOUNDS=all` has the published engines too."""
    core = [
        "tests/engines/test_merged.py",
        "tests/engines/test_protocol.py",
        "tests/engines/test_delta.py",
        *(["tests/engines/clustering"] if EVERY_ENGINE else []),
        "tests/engines/test_ways.py",
        "tests/matcher/test_bulk_loads.py",
        "tests/normalize/test_bulk.py",
        "tests/stress",
    ]
    pytest_ = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
    for tests in (["-m", "not slow", *core], ["tests/subjects/test_space.py"]):
        # With less optimisation, kernels compile in two thirds of the time.
        result = run(*pytest_, *tests, NUMBA_BOUNDSCHECK="1", NUMBA_OPT="1")
        assert result.returncode == 0, result.stdout[-5_000:] + result.stderr[-2_000:]


def test_operators_have_the_same_numbers_wherever_kernels_read_or_fold_them() -> None:
    names = "EQ NE LT LE GT GE BETWEEN NOT_BETWEEN IN NOT_IN LIKE NOT_LIKE IS_NULL NOT_NULL IS_TRUE"
    for name in names.split():
        assert getattr(text_kernels, name) == getattr(fold_kernels, name)
