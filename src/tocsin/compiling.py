"""Whether the kernels are compiled, and a process that compiles them while small work goes on.

Enters: the size of some work. Leaves: whether to do it with kernels. Where none are compiled, as on
a machine that is new to Tocsin, small work is done by code that needs none, with the same answers,
and a process of low priority fills the cache of kernels meanwhile. Large work uses kernels in any
case: both processes compile then, and neither compiles what the other does (see `kernel_cache`).

The process ends with the one that started it. Where it cannot be started, or ends before it is
done, kernels are compiled by the process that calls them; so they are by the workers of Spark, and
where `TOCSIN_COMPILE=now` is set.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from tocsin import kernel_cache

_PAUSE = 0.05
"""Seconds between two looks at whether the kernels are compiled."""
_PATIENCE = 10
"""The niceness of the process."""


@cache
def _stamp() -> Path:
    """Return the file that is there when all kernels are compiled for this processor."""
    return kernel_cache.folder() / f"ready-{kernel_cache.target()}"


class _State:
    """What this process knows of the kernels."""

    def __init__(self) -> None:
        self.is_ready = os.environ.get("TOCSIN_COMPILE") == "now"
        self.process: subprocess.Popen[bytes] | None = None
        self._next_look = 0.0
        self._lock = threading.Lock()

    def look(self) -> bool:
        """Find out whether kernels are to be used; start the process where they are missing."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        with self._lock:
            if not self.is_ready:
                self.is_ready = self._is_over() or _stamp().exists() or not self._start()
                self._next_look = now + _PAUSE
        return self.is_ready

    def _is_over(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def _start(self) -> bool:
        """Start the process unless it runs; return whether it does."""
        if self.process is None:
            with suppress(OSError):
                self.process = _start_process()
                atexit.register(self.stop)
        return self.process is not None

    def stop(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()


_state = _State()


def use_kernels(size: int, most: int) -> bool:
    """Whether to use kernels for work of a size, of which at most so much is done without."""
    return _state.is_ready or size > most or _state.look()


def use_from_now_on() -> None:
    """Use kernels for all work, compiled or not."""
    _state.is_ready = True


def set_ready() -> None:
    """Note, for other processes too, that all kernels are compiled."""
    use_from_now_on()
    with suppress(OSError):
        _stamp().touch()


def _start_process() -> subprocess.Popen[bytes] | None:
    """Start a process that compiles all kernels; None where this one is no plain interpreter."""
    executable = sys.executable or ""
    is_plain = Path(executable).name.startswith("python") and not getattr(sys, "frozen", False)
    if not is_plain or "pyspark.worker" in sys.modules:
        return None
    root = str(Path(__file__).parent.parent)
    places = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    if kernel_cache.is_temporary():
        environment["NUMBA_CACHE_DIR"] = str(kernel_cache.temporary_folder())
    return subprocess.Popen(
        [executable, "-P", "-m", "tocsin.warm", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def _forget_process() -> None:
    """A process that was forked has no part in what its parent started."""
    if _state.process is not None:
        _state.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget_process)


def compile_for(parent: int, warm_up: Callable[[], None]) -> None:
    """Compile all kernels, unless another process does: then wait until it is done.

    This process gives way to others from now on, and ends when its parent does.
    """
    _run_for(parent)
    with _stamp().with_suffix(".lock").open("wb") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not _stamp().exists():
            warm_up()


def _run_for(parent: int) -> None:

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the parent, which may go on
    with suppress(OSError):
        os.nice(_PATIENCE)
    threading.Thread(target=watch, daemon=True).start()
