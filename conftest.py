"""Set up before anything of Tocsin is imported: a sound Numba cache, and Hypothesis profiles.

Numba's cache does not notice an edit in a helper that a cached kernel calls, so there is a cache
for each state of all kernels, in `.cache`. Where it is empty, two processes compile while the tests
run that need no kernels, which come first; the others wait for them. Another process archives the
classes of Spark, once for each version.

Tests of an engine are marked slow but for the engines `auto` and `oracle`: the others have few
users, and their kernels are compiled last, so their tests come last.
`HYPOTHESIS_PROFILE=explore` looks for new counterexamples instead of the same every time.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_ROOT = Path(__file__).parent
_CACHES_KEPT = 6


def _numba_cache() -> Path:
    """Return the folder for kernels compiled from the sources as they are now."""
    checks = os.environ.get("NUMBA_BOUNDSCHECK", "") + os.environ.get("NUMBA_OPT", "")
    state = hashlib.sha256((version("numba") + checks).encode())
    sources = (_ROOT / "src", _ROOT / "lab" / "src")
    names = ("*kernels*.py", "arrays.py", "jit.py")
    for path in sorted(path for each in sources for name in names for path in each.rglob(name)):
        state.update(path.read_bytes())
    caches = _ROOT / ".cache" / "numba"
    cache = caches / state.hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    cache.touch()
    oldest_first = sorted(caches.iterdir(), key=lambda path: path.stat().st_mtime)
    for old in oldest_first[:-_CACHES_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return cache


def _java_archive() -> Path:
    """Return where the classes of this Spark are archived for this Java."""
    java = Path(shutil.which("java") or "java").resolve()
    state = hashlib.sha256(f"{version('pyspark')} {java}".encode()).hexdigest()
    return _ROOT / ".cache" / f"spark-{state[:16]}.jsa"


os.environ["NUMBA_CACHE_DIR"] = str(_numba_cache())
# Java that runs for a minute spends a third of it on making itself fast.
# Where its classes are in an archive, it starts in half the time.
_ARCHIVE = _java_archive()
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable -Xlog:all=error:stderr "
    f'-XX:SharedArchiveFile="{_ARCHIVE}"',
)
LOADING, MATCHING = "loading", "matching"
_WAITING = pytest.StashKey[list[str]]()


def _stamp(part: str) -> Path:
    """Return the file that is there when a part of the kernels is compiled."""
    return Path(os.environ["NUMBA_CACHE_DIR"]) / f"{part}.done"


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
    "lab/tests/workloads/",
    "tests/test_structure",
    "tests/encode/test_readers",
    "tests/broker/test_stomp_codec",
    "tests/engines/test_evaluate",
    "tests/cli/test_check",
    "tests/cli/test_subscription_files",
    "lab/tests/bench/test_machine",
    "lab/tests/bench/test_plot",
    "lab/tests/bench/test_probes",
    "lab/tests/bench/test_timing",
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


_TOGETHER = {
    "tests/spark/pipeline/test_kafka": "kafka",
    "tests/spark/pipeline/test_recovery": "recovery",
    "tests/spark/test_connect": "connect",
    "tests/spark/": "spark",
    "lab/tests/bench/test_adapt": "bench adapt",
    "lab/tests/bench/test_churn": "bench churn",
    "lab/tests/bench/test_parse": "bench parse",
}
"""Tests that share something costly, and run one after the other in one process."""
_COMPILES_APART = "tests/engines/test_kernels.py::test_no_kernel_reads"
_LONG = ("tests/spark/", _COMPILES_APART)
_COMMON_ENGINES = {"auto", "oracle"}
_NEED_OTHER_ENGINES = (
    "lab/tests/engines/clustering/",
    "lab/tests/engines/fastint/",
    "lab/tests/engines/tama/",
    "lab/tests/engines/test_tree",
)
_BOUNDS_OF_EVERY_ENGINE = (
    "lab/tests/engines/test_conformance.py",
    "lab/tests/engines/clustering/",
)
"""Tests of rare engines that a run which checks the bounds of all does not leave out as slow."""
_SLOW_TO_COMPILE = {"fastint", "tama"}
_COMPILED_WITHIN = 200.0
"""Seconds that a test waits for the processes that compile."""


def _asked(item: pytest.Item) -> set[str]:
    """Return the names that a test runs with: its parameters, the engine of its class."""
    callspec = getattr(item, "callspec", None)
    values = [*callspec.params.values()] if callspec else []
    values.append(getattr(getattr(item, "cls", None), "engine", None))
    return {value for value in values if isinstance(value, str)}


def _asks_for_another_engine(item: pytest.Item) -> bool:
    """Whether a test is one that runs for each engine, and this is none of the common ones."""
    from tocsin.engines import names

    return not {*names()}.difference(_COMMON_ENGINES).isdisjoint(_asked(item))


def _place(item: pytest.Item) -> int:
    """Return when a test comes: 0 where it needs no kernels, 2 where it needs rare ones.

    What takes minutes comes first, so that other processes do all the rest meanwhile.
    """
    if item.nodeid.startswith(_LONG):
        return -1
    if _needs_rare_kernels(item):
        return 2
    return 0 if item.nodeid.startswith(_NEED_NO_KERNELS) else 1


def _needs_rare_kernels(item: pytest.Item) -> bool:
    return _asks_for_another_engine(item) or item.nodeid.startswith(_NEED_OTHER_ENGINES)


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hand out tests one by one, but for those of a group of `_TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        groups = (group for path, group in _TOGETHER.items() if nodeid.startswith(path))
        return next(groups, nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a scope that is done: all those kept are counted after each test."""
        nodeid = self.registered_collections[node][item_index]
        scopes = self.assigned_work[node]
        scope = self._split_scope(nodeid)
        scopes[scope][nodeid] = True
        if all(scopes[scope].values()):
            del scopes[scope]
        self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Keep tests together that share something costly."""
    return _Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order and mark the tests as said above, and compile meanwhile when many are to run."""
    items.sort(key=_place)
    checks_every_engine = (
        bool(os.environ.get("NUMBA_BOUNDSCHECK")) and os.environ.get("TOCSIN_BOUNDS") == "all"
    )
    for item in items:
        is_wanted = checks_every_engine and item.nodeid.startswith(_BOUNDS_OF_EVERY_ENGINE)
        is_wanted = is_wanted and _SLOW_TO_COMPILE.isdisjoint(_asked(item))
        if _needs_rare_kernels(item) and not is_wanted:
            item.add_marker(pytest.mark.slow)
    if len(items) > 1000:
        parts = [part for part in (LOADING, MATCHING) if not _stamp(part).exists()]
        config.stash[_WAITING] = parts
        if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
            rare = "common" if config.getoption("markexpr") == "not slow" else "rare"
            for part in parts:
                _start("tests.compile", part, rare)
            if rare == "rare" and not _ARCHIVE.exists() and shutil.which("java"):
                _start("tests.spark.archive", str(_ARCHIVE))


def _start(module: str, *arguments: str) -> None:
    """Run a module in a process of its own, which ends with this one."""
    command = [sys.executable, "-m", module, *arguments]
    atexit.register(subprocess.Popen(command, stdout=subprocess.DEVNULL).kill)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take the thousands of tests out of the collector's sight: benchmarks collect very often."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the collector see everything again, so that nothing seems to be left at the end."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test that needs kernels wait until they are compiled.

    That of Spark would have each of Spark's workers compile them again.
    """
    waiting = item.config.stash.get(_WAITING, [])
    if waiting and _place(item) != 0 and not item.nodeid.startswith(_COMPILES_APART):
        give_up = time.monotonic() + _COMPILED_WITHIN
        while not all(_stamp(part).exists() for part in waiting) and time.monotonic() < give_up:
            time.sleep(0.05)
        waiting.clear()
