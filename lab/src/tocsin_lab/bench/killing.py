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
    """Return the processes that descend from one, itself not among them.

    Of one that leads a session, also those of the session whose parents are gone: Python workers
    go on serving when the process that forked them is killed.
    """
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    fields = [line.split(None, 2) for line in listed.stdout.splitlines()]
    processes = [
        Process(int(of[0]), int(of[1]), of[2])
        for of in fields
        if len(of) == 3 and not of[2].endswith("<defunct>")
    ]
    by_parent: dict[int, list[Process]] = {}
    for each in processes:
        by_parent.setdefault(each.parent, []).append(each)
    below = {each.pid: each for each in processes if each.pid != pid and _session(each.pid) == pid}
    waiting = [pid, *below]
    while waiting:
        children = by_parent.get(waiting.pop(), ())
        waiting += [child.pid for child in children if child.pid not in below]
        below |= {child.pid: child for child in children}
    return list(below.values())


def _session(pid: int) -> int:
    """Return the process that leads the session of another, or -1 where that is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def kill(pids: Iterable[int]) -> None:
    """End processes as a power cut would; ignore processes that have ended already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_gone(pids: Iterable[int], seconds: float) -> list[int]:
    """Wait until processes have ended; return the survivors."""
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
