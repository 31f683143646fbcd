"""Processor time and memory of this process and of all that it started.

Enters: nothing but /proc. Leaves: seconds, and megabytes. Spark's JVM and its Python workers are
processes below this one; the time of those that ended is with their parents.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str] | None:
    """Return the fields of a process's stat after its name, or None where it is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(root: int | None = None) -> list[int]:
    """Return all live processes below one, by default below this one, without itself."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [os.getpid() if root is None else root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def cpu_seconds() -> float:
    """Return the processor time of this process and all below it, also of those that ended."""
    ticks = 0
    for pid in (os.getpid(), *descendants()):
        fields = _stat(pid)
        if fields is not None:
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def private_mb(pid: int | None = None) -> float:
    """Return the memory that a process shares with no other."""
    text = (_PROC / (str(pid) if pid else "self") / "smaps_rollup").read_text()
    sizes = [line.split() for line in text.splitlines()]
    kilobytes = sum(int(f[1]) for f in sizes if f[0] in ("Private_Clean:", "Private_Dirty:"))
    return kilobytes / 1024
