"""Set up before anything of Tocsin is imported: a clean Numba cache, and Hypothesis profiles.

Numba's cache does not notice an edit in a helper that a cached kernel calls, so each run compiles
afresh: a second process does so while the tests run that need no kernels, which come first.
`HYPOTHESIS_PROFILE=explore` looks for new counterexamples instead of the same every time.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, settings

_numba_cache = tempfile.mkdtemp(prefix="tocsin-numba-")
os.environ["NUMBA_CACHE_DIR"] = _numba_cache
atexit.register(shutil.rmtree, _numba_cache, ignore_errors=True)

_patient = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "steady",
    max_examples=60,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=_patient,
)
settings.register_profile(
    "explore", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=_patient
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

_NEED_NO_KERNELS = (
    "tests/language/",
    "tests/workloads/",
    "tests/test_structure",
    "tests/encode/test_readers",
    "tests/engines/test_evaluate",
    "tests/cli/test_check",
    "tests/cli/test_subscription_files",
    "tests/bench/test_machine",
    "tests/bench/test_probes",
    "tests/bench/test_timing",
    "tests/normalize/test_normal",
    "tests/normalize/test_covers",
    "tests/normalize/test_diagnose",
    "tests/normalize/test_keys",
    "tests/normalize/test_patterns",
    "tests/property/test_engines_equal_duckdb.py::test_the_",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that need no kernels first, and compile meanwhile when many are to run."""
    items.sort(key=lambda item: not item.nodeid.startswith(_NEED_NO_KERNELS))
    if len(items) > 1000:
        warm = "import tocsin; tocsin.warm_up(); from tests.engines import trees; trees.warm_up()"
        compiling = subprocess.Popen([sys.executable, "-c", warm])
        atexit.register(compiling.kill)
