"""A disk that fails: the n-th call of the file layer, once or from then on.

`FaultyDisk` stands in for `os` in `tocsin.storage.disk` and where locks are taken. It counts the
calls that touch the disk; the n-th one fails with an error of the system, or is a write that is
lost (it is said to be done and is not) or short (a part of it is done). Nothing else of the system
changes, so that real files show what a caller left behind.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from tocsin.storage import disk
from tocsin.subjects import log

Fault = Literal["ENOSPC", "EIO", "lost", "short"]

CHANGING = frozenset({"write", "fsync", "link", "replace", "unlink", "mkdir", "ftruncate"})
"""Calls that change the disk, or have it changed."""
LOOKING = frozenset({"open", "read", "listdir", "stat"})
"""Calls that need not change it; `open` may."""
CALLS = CHANGING | LOOKING


class FaultyDisk:
    """The module `os`, with one call that fails."""

    def __init__(self, n: int, fault: Fault = "EIO", forever: bool = False) -> None:
        self.n = n
        self.fault = fault
        self.forever = forever
        self.count = 0
        self.has_failed = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **of: Any) -> Any:
            at, self.count = self.count, self.count + 1
            self.calls.append(name)
            is_due = at == self.n or (self.forever and at > self.n)
            return self._fail(name, real, args, of) if is_due else real(*args, **of)

        return call

    def _fail(self, name: str, real: Any, args: Any, of: Any) -> Any:
        if self.fault in ("lost", "short"):
            if name != "write":
                return real(*args, **of)
            self.has_failed = True
            number, octets = args
            if self.fault == "short":
                return real(number, octets[: max(1, len(octets) // 2)])
            os.lseek(number, len(octets), os.SEEK_CUR)
            return len(octets)
        if self.fault == "ENOSPC" and name in ("read", "listdir", "stat", "unlink"):
            return real(*args, **of)  # a full disk can be read, and emptied
        self.has_failed = True
        number = getattr(errno, self.fault)
        raise OSError(number, os.strerror(number))


@contextmanager
def failing(n: int, fault: Fault = "EIO", forever: bool = False) -> Iterator[FaultyDisk]:
    """Have the n-th call of the file layer fail; a negative n counts calls only."""
    faulty = FaultyDisk(n, fault, forever)
    modules: list[Any] = [disk, log]
    for module in modules:
        module.os = faulty
    try:
        yield faulty
    finally:
        for module in modules:
            module.os = os


def count_calls(action: Any) -> int:
    """Return how many calls of the file layer an action takes when none fails."""
    with failing(-1) as counting:
        action()
    return counting.count
