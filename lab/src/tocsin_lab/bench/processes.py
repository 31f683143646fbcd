"""Processor time and memory of this process and of all that it started.

Enters: nothing but /proc. Leaves: seconds, and megabytes. Spark's JVM and its Python workers are
processes below this one. Spark ends workers that are idle for a minute, and their time is then
lost; so a `Meter` reads the counters of all processes twice a second and remembers them.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY = 0.5
"""Seconds between two looks at all processes."""


def _stat(pid: int) -> list[str] | None:
    """Return the fields of a process's stat after its name, or None where it is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descendants(root: int | None = None) -> list[int]:
    """Return all live processes below one, by default below this one, without itself."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    pids: list[int] = []
    waiting = [os.getpid() if root is None else root]
    while waiting:
        below = children.get(waiting.pop(), [])
        pids += below
        waiting += below
    return pids


class Meter:
    """Adds up the processor time of this process and all below it, also of ended processes."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, str], int] = {}
        self._java: set[tuple[int, str]] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(_EVERY):
            self.seconds()

    def seconds(self) -> float:
        """Return the time used so far by all processes that were ever seen."""
        with self._lock:
            for pid in (os.getpid(), *descendants()):
                fields = _stat(pid)
                if fields is not None:  # a number is used again, but not with the same start
                    key = (pid, fields[19])
                    if key not in self._ticks and _name(pid) == "java":
                        self._java.add(key)
                    self._ticks[key] = int(fields[11]) + int(fields[12])
            return sum(self._ticks.values()) / _TICKS

    def java_seconds(self) -> float:
        """Return the part of the time that Java's processes used, as of the last look."""
        with self._lock:
            return sum(self._ticks[key] for key in self._java) / _TICKS


def private_mb(pid: int | None = None) -> float:
    """Return the memory that a process shares with no other."""
    text = (_PROC / (str(pid) if pid else "self") / "smaps_rollup").read_text()
    sizes = [line.split() for line in text.splitlines()]
    kilobytes = sum(int(f[1]) for f in sizes if f[0] in ("Private_Clean:", "Private_Dirty:"))
    return kilobytes / 1024
