"""While kernels are missing: the same answers, nothing compiled by the caller, and an end to it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.property.samples import to_table
from tests.property.strategies import MIXED, Seeded, choose, event, expression, one_in
from tests.property.test_one_at_a_time import WORLDS_OF_RULES, act

import tocsin
from tocsin import compiling, kernel_cache
from tocsin.compiling import use_kernels
from tocsin.engines.auto import AutoEngine, write_buffer_kernels
from tocsin.jit import kernel
from tocsin.language import print_expression

ROOT = Path(__file__).parents[1]

NEWCOMER = """
import json, subprocess, sys, threading, warnings
import numba.core.dispatcher as dispatcher

def refuse(self, *args):
    raise AssertionError(f"{self.py_func} is compiled by {threading.current_thread().name}")

dispatcher._FunctionCompiler.compile = refuse
from tocsin import compiling
compiling._start_process = lambda: subprocess.Popen(["sleep", "60"])
warnings.simplefilter("ignore")
import tocsin

m = tocsin.Matcher()
m.subscribe("bob", "firm = :firm AND price < :limit", {"firm": "IBM", "limit": 90})
assert m.match({"firm": "IBM", "price": 89.5}) == ["bob"]
m.subscribe("pat", "title LIKE '%sale%' OR ANY(tags) = 'red' AND price > 3")
assert m.match({"title": "a sale"}) == ["pat"]
assert m.match_batch([{"tags": ["red"], "price": 4}, {"price": 4}])[0] == ["pat"]
n = 1_000
texts = [f"firm = 'F{i % 50}' AND price < {i / 10} OR NOT size <= {i}" for i in range(n)]
m.subscribe_many({"id": list(range(n)), "where": texts})
m.subscribe_many({"id": [f"t{i}" for i in range(n)], "v": list(range(n))}, "size = :v")
rows = {"id": ["r1", "r1", "r2"], "attribute": ["x", "y", "x"], "op": ["=", "<", ">"]}
m.subscribe_many({**rows, "value": [1, 2, 3]})
assert m.match({"firm": "F3", "price": 95.0}) == [953]
assert m.match({"x": 1, "y": 1}) == ["r1"]
counts = m.match_batch([{"firm": f"F{i % 50}", "price": i, "size": i} for i in range(200)])
assert counts.n_matches > 200
m.put_many({"id": [5, n], "where": ["x = 7", "x = 8"]})
m.update("bob", params={"limit": 100})
m.unsubscribe_many([f"t{i}" for i in range(n)])
assert m.match({"x": 7}) == ["r2", 5] and len(m) == n + 5 and len(list(m)) == n + 5
assert "until the kernels are compiled" in m.explain(7) and m.explain()
assert m.to_table().num_rows == n + 5
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    other = tocsin.Matcher()
    other.subscribe(1, "price < 3")
    other.match({"prise": 1})
assert "price" in str(caught[0].message)
assert compiling._state.process.poll() is None
print("done")
"""
"""What somebody does who has just installed Tocsin."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the variables of a user who has never run Tocsin."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name != "TOCSIN_COMPILE"}
    return kept | {"HOME": str(home), "NUMBA_CACHE_DIR": str(folder / "cache"), **more}


def test_a_newcomer_loads_and_matches_and_waits_for_no_kernel(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", NEWCOMER],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout == "done\n", found.stderr


class Switch:
    """Kernels that are compiled when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiling, "_state", self)
        self.is_ready = False

    def look(self) -> bool:
        return self.is_ready


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Switch:
    return Switch(monkeypatch)


@pytest.mark.parametrize("until", [10, 50])
@pytest.mark.parametrize("name", WORLDS_OF_RULES)
def test_without_kernels_and_once_they_are_there_answers_are_those_of_the_oracle(
    switch: Switch, name: str, until: int
) -> None:
    world, source, ids = WORLDS_OF_RULES[name], Seeded(len(name) + until), list[int]()
    matcher, oracle = tocsin.Matcher(), tocsin.Matcher(engine="oracle")
    n_matches = 0
    for step in range(40):
        switch.is_ready = step >= until
        for _ in range(1 + source.below(4)):
            act(source, world, (matcher, oracle), ids)
        rows: Any = [event(source, world) for _ in range(1 + source.below(9))]
        if world is not MIXED and one_in(source, 2):
            rows = to_table(rows, world, source)
        expected = [sorted(found) for found in oracle.match_batch(rows)]
        assert [sorted(found) for found in matcher.match_batch(rows)] == expected
        row = event(source, world)
        found = matcher.match(row)
        assert sorted(found) == sorted(oracle.match(row))
        n_matches += len(found)
    switch.is_ready = True
    matcher.check()
    assert n_matches > 20
    assert matcher.get(ids[0]) == oracle.get(ids[0])


def test_bulk_loads_without_kernels_leave_what_those_with_kernels_leave(switch: Switch) -> None:
    source, world = Seeded(5), WORLDS_OF_RULES["typed"]
    texts: list[str | None] = [f"NOT (a = {i} AND s LIKE 'x%{i}')" for i in range(40)]
    texts += [None, "a = ", "a = 1 AND a = 2", "ANY(tags) = 'x'", "s IN ('b', 'a', NULL)"]
    texts += [print_expression(expression(source, world, depth=2)) for _ in range(60)]
    ids = [f"id {i}" for i in range(len(texts))]
    ids[7] = ids[6]
    values = [None if i == 3 else i for i in range(len(texts))]
    kinds = ["=", "<>", "<", "LIKE", "IS NULL", "??"]
    rules = {
        "id": [i // 2 for i in range(90)],
        "attribute": [choose(source, ["x", "y", ""]) for _ in range(90)],
        "op": [choose(source, kinds) for _ in range(90)],
        "text": [choose(source, ["a", "b%", None]) for _ in range(90)],
    }
    made = []
    for switch.is_ready in (False, True):
        matcher = tocsin.Matcher()
        reports = [
            matcher.subscribe_many({"id": ids, "where": texts}, on_error="quarantine"),
            matcher.subscribe_many(
                {"id": list(range(900, 900 + len(values))), "v": values},
                "x > :v AND y IS NOT NULL",
                on_error="quarantine",
            ),
            matcher.subscribe_many(rules, on_error="quarantine"),
        ]
        switch.is_ready = True
        events = [event(source, world) for source in [Seeded(1)] for _ in range(200)]
        matches = [sorted(ids, key=str) for ids in matcher.match_batch(events)]
        made.append((reports, matcher.to_table().to_pylist(), matches))
    assert made[0] == made[1]
    assert len(made[0][0][0].bad) > 2


def test_many_new_strings_between_old_ones_fit_into_the_buffer(switch: Switch) -> None:
    matcher = tocsin.Matcher()
    matcher.subscribe_many({"id": [-1, -2], "v": ["a", "z"]}, "s = :v")
    matcher.subscribe_many(
        {"id": list(range(2_000)), "v": [f"k{i}" for i in range(2_000)]}, "s < :v"
    )
    assert len(matcher.match({"s": "k5"})) == sum(f"k{i}" > "k5" for i in range(2_000))
    assert "until the kernels" in matcher.explain()


def test_work_that_is_too_much_is_done_with_kernels(switch: Switch) -> None:
    assert not use_kernels(5, 5)
    assert use_kernels(6, 5)
    matcher = tocsin.Matcher()
    matcher.subscribe_many({"id": list(range(20_000)), "v": list(range(20_000))}, "x = :v")
    assert matcher.match({"x": 7}) == [7]
    assert "segment 1: 20000" in matcher.explain()


def test_a_process_that_cannot_start_or_fails_leaves_compiling_to_who_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TOCSIN_COMPILE")
    monkeypatch.setattr(compiling, "_stamp", lambda: tmp_path / "ready")
    monkeypatch.setattr(compiling, "_PAUSE", 0.0)

    def failing() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    def refused() -> subprocess.Popen[bytes]:
        raise OSError("no more processes")

    for start in (failing, refused, lambda: None):
        monkeypatch.setattr(compiling, "_start_process", start)
        state = compiling._State()
        monkeypatch.setattr(compiling, "_state", state)
        if state.process is None and start is failing:
            assert not use_kernels(1, 1)
            assert state.process is not None
            state.process.wait()
        assert use_kernels(1, 1)
    state = compiling._State()
    (tmp_path / "ready").touch()
    assert state.look(), "another process has compiled all"
    assert state.process is None


def test_workers_of_spark_and_programs_that_embed_python_start_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.worker", sys)
    assert compiling._start_process() is None
    monkeypatch.delitem(sys.modules, "pyspark.worker")
    monkeypatch.setattr(sys, "executable", "/usr/sbin/uwsgi")
    assert compiling._start_process() is None


STARTING = """
import time
from tocsin import compiling
assert not compiling.use_kernels(1, 1)
print(compiling._state.process.pid, flush=True)
{}
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes as Linux does")
@pytest.mark.parametrize("end", ["", "time.sleep(60)"])
def test_the_process_that_compiles_ends_with_the_one_that_started_it(
    tmp_path: Path, end: str
) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTING.format(end)],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    if end:
        assert is_running(pid)
        starter.send_signal(signal.SIGKILL)
    starter.wait(timeout=60)
    starter.stdout.close()
    give_up = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not is_running(pid)


def test_a_kernel_that_does_not_compile_holds_nobody_up() -> None:
    @kernel
    def wrong(x: Any) -> Any:
        return x.nothing

    with pytest.raises(Exception, match="nothing"):
        wrong(np.zeros(3))
    assert gc.isenabled()
    assert wrong._cache._compiling is None  # type: ignore[attr-defined]
    assert not kernel_cache._Compiling.n_current


def test_where_no_folder_can_be_written_kernels_are_cached_for_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    implementation = kernel_cache._KernelCacheImplementation
    monkeypatch.setattr(implementation, "_locator_classes", (implementation._locator_classes[-1],))
    function: Any = write_buffer_kernels.match_rows
    path = Path(kernel_cache.KernelCache(function.py_func).cache_path)
    assert kernel_cache.temporary_folder() in path.parents
    assert path.is_dir()


KERNEL = """
import sys, time
from pathlib import Path
from tocsin.jit import kernel
from tocsin.language import print_expression

@kernel
def run(x):
    return x + 1

Path(sys.argv[1], "here").touch()
run(1)
print(sum(run.stats.cache_hits.values()))
"""


def test_one_process_compiles_a_kernel_and_the_others_load_it(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(KERNEL)
    command = [sys.executable, "sample.py", str(tmp_path)]
    several = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    hits = [int(each.communicate(timeout=120)[0]) for each in several]
    assert sum(hits) == 2


def test_a_terminal_says_what_is_waited_for_and_a_pipe_does_not(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    (tmp_path / "sample.py").write_text(KERNEL)
    command = [sys.executable, "sample.py", str(tmp_path)]
    piped = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, check=True
    )
    assert piped.stderr == b""
    (tmp_path / "sample.py").write_text(KERNEL.replace("x + 1", "x + 2"))
    ours, theirs = pty.openpty()
    subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        check=True,
    )
    os.close(theirs)
    text = os.read(ours, 65_536).decode()
    os.close(ours)
    assert "compiling kernels for this processor, once (run)" in text
    assert text.endswith("\r\x1b[K")


def test_an_engine_that_was_matched_without_kernels_is_indexed_when_they_are_there(
    switch: Switch,
) -> None:
    matcher = tocsin.Matcher()
    matcher.subscribe_many({"id": list(range(3_000)), "v": list(range(3_000))}, "x = :v")
    assert matcher.match({"x": 5}) == [5]
    assert isinstance(matcher.index, AutoEngine)
    first = matcher.index.current(1)
    assert first is not None
    assert first.lacks_kernels
    switch.is_ready = True
    assert matcher.match({"x": 5}) == [5]
    second = matcher.index.current(1)
    assert second is not None
    assert not second.lacks_kernels
    assert second.segments
    assert first.match_one({"x": 5}) == [5], "a snapshot that is still used"
