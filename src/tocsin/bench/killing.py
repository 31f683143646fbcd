"""The processes of a Spark driver: which there are, and ending one without warning.

Enters: the process that was started. Leaves: its descendants by what they are. Uses `ps`, which
Linux and macOS have.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    """A process and what it was started with."""

    pid: int
    parent: int
    command: str

    @property
    def role(self) -> str:
        """What the process is to Spark: driver, jvm, executor, worker, or other."""
        if "CoarseGrainedExecutorBackend" in self.command:
            return "executor"
        if "org.apache.spark.deploy.SparkSubmit" in self.command:
            return "jvm"
        if "spark.daemon" in self.command:
            return "worker"
        return "driver" if "tocsin" in self.command else "other"


def descendants(pid: int) -> list[Process]:
    """Return the processes that descend from one, itself not among them."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    by_parent: dict[int, list[Process]] = {}
    for line in listed.stdout.splitlines():
        fields = line.split(None, 2)
        if len(fields) == 3:
            found = Process(int(fields[0]), int(fields[1]), fields[2])
            by_parent.setdefault(found.parent, []).append(found)
    wanted, waiting = [], [pid]
    while waiting:
        for child in by_parent.get(waiting.pop(), ()):
            wanted.append(child)
            waiting.append(child.pid)
    return wanted


def kill(pids: Iterable[int]) -> None:
    """End processes as a power cut would; those that are gone already are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_gone(pids: Iterable[int], seconds: float) -> list[int]:
    """Wait until processes are gone; return those that are still there."""
    left = list(pids)
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        left = [pid for pid in left if _is_there(pid)]
        time.sleep(0.05)
    return left


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
    ).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")
