"""Set up before anything of Tocsin is imported: a clean Numba cache, and Hypothesis profiles.

Numba's cache does not notice an edit in a helper that a cached kernel calls, so each run compiles
afresh: a second process does so while the tests run that need no kernels, which come first.

Most tests of an engine are marked slow but for the engines `auto` and `oracle`: the others have few
users, and their kernels are compiled meanwhile, so their tests come last.
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
    "tests/bench/test_plot",
    "tests/bench/test_probes",
    "tests/bench/test_timing",
    "tests/normalize/test_normal",
    "tests/normalize/test_covers",
    "tests/normalize/test_diagnose",
    "tests/normalize/test_keys",
    "tests/normalize/test_patterns",
    "tests/property/test_engines_equal_duckdb.py::test_the_",
    "tests/subjects/test_model",
    "tests/subjects/test_records",
    "tests/subjects/test_reference",
)


_COMMON_ENGINES = {"auto", "oracle"}
_FAST_FOR_EVERY_ENGINE = ("tests/engines/test_protocol.py",)
_NEED_OTHER_ENGINES = ("tests/engines/clustering/",)


def _asks_for_another_engine(item: pytest.Item) -> bool:
    """Whether a test is one that runs for each engine, and this is none of the common ones."""
    from tocsin.engines import names

    given = getattr(item, "callspec", None)
    asked = [v for v in given.params.values() if isinstance(v, str)] if given else []
    return not {*names()}.difference(_COMMON_ENGINES).isdisjoint(asked)


def _place(item: pytest.Item) -> int:
    """Return when a test comes: 0 where it needs no kernels, 2 where it needs rare ones."""
    if _asks_for_another_engine(item) or item.nodeid.startswith(_NEED_OTHER_ENGINES):
        return 2
    return 0 if item.nodeid.startswith(_NEED_NO_KERNELS) else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order and mark the tests as said above, and compile meanwhile when many are to run."""
    items.sort(key=_place)
    for item in items:
        if _asks_for_another_engine(item) and not item.nodeid.startswith(_FAST_FOR_EVERY_ENGINE):
            item.add_marker(pytest.mark.slow)
    if len(items) > 1000:
        compiling = subprocess.Popen([sys.executable, "-m", "tests.compile"])
        atexit.register(compiling.kill)
