"""A plugin for pytest: which tests take the processor's time.

Run `python -m pytest -p tests.processor_time …`, with or without processes of xdist. At the end it
prints what each file took and what the costliest tests took, in seconds of processor time with all
processes that they started, and writes everything to `.cache/processor-time.tsv`. A fixture is
counted in the test that sets it up; what is compiled meanwhile, in the tests of the first process.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

_RESULT = Path(__file__).parents[1] / ".cache" / "processor-time.tsv"
_TICKS = os.sysconf("SC_CLK_TCK")
_SHOWN = 40
_START = "(start and collection)"

_seconds: dict[str, float] = defaultdict(float)


def _descendants(pid: int) -> Iterator[int]:
    """Yield a process and all that it and its children started."""
    yield pid
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has ended
        return
    for child in " ".join(lists).split():
        yield from _descendants(int(child))


def _now() -> float:
    """Return the processor time of this process and its descendants until now, also the ended."""
    if not Path("/proc/self/task").exists():
        return sum(os.times()[:4])
    ticks = 0
    for pid in _descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def pytest_collection_finish() -> None:
    _seconds[_START] = _now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    before = _now()
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] += _now() - before


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor_time"] = dict(_seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for name, seconds in node.workeroutput.get("processor_time", {}).items():
        _seconds[name] += seconds


def _costliest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    files: dict[str, float] = defaultdict(float)
    for nodeid, seconds in _seconds.items():
        files[nodeid.partition("::")[0]] += seconds
    _RESULT.parent.mkdir(exist_ok=True)
    _RESULT.write_text("".join(f"{s:.2f}\t{name}\n" for name, s in _costliest(_seconds)))
    terminalreporter.section("processor time")
    terminalreporter.line(f"{sum(files.values()):.0f} s in all; every test in {_RESULT}")
    for each in (files, _seconds):
        for name, seconds in _costliest(each)[:_SHOWN]:
            terminalreporter.line(f"{seconds:8.2f} s  {name}")
        terminalreporter.line("")
