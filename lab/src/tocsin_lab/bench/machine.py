"""Facts about the machine and the software that a figure was measured on.

Enters: nothing. Leaves: dictionaries ready for JSON. They hold no host name, user or path.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyarrow as pa

import tocsin

_PACKAGES = ("numpy", "pyarrow", "numba")


def machine() -> dict[str, object]:
    """Return the processor, the cores this process may use, and the memory."""
    return {
        "cpu": _cpu_model(),
        "cores": _usable_cores(),
        "memory_gb": _memory_gb(),
        "system": platform.system(),
        "architecture": platform.machine(),
    }


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, of Tocsin and of the packages that do its work."""
    facts = {"python": platform.python_version(), "tocsin": tocsin.__version__}
    for package in (*_PACKAGES, *more):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    return facts


def stolen_seconds() -> float:
    """Return how long the host let this machine's cores wait so far, all together; 0: unknown."""
    stat = Path("/proc/stat")
    fields = stat.read_text().splitlines()[0].split() if stat.exists() else []
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def rss_mb() -> float:
    """Return the memory this process holds now; where the system does not tell, the most so far."""
    return _from_status("VmRSS") or peak_rss_mb()


def peak_rss_mb() -> float:
    """Return the most memory this process has held so far.

    What `getrusage` says is only the second choice: on Linux it begins with the memory of the
    process that started this one.
    """
    return _from_status("VmHWM") or _from_usage()


def _from_status(name: str) -> float | None:
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        key, _, value = line.partition(":")
        if key == name:
            return round(int(value.split()[0]) / 2**10, 1)
    return None


def _from_usage() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


@contextmanager
def one_core() -> Iterator[None]:
    """Keep Arrow and Numba from using more than one thread meanwhile."""
    import numba

    arrow_threads, numba_threads = pa.cpu_count(), numba.get_num_threads()
    pa.set_cpu_count(1)
    numba.set_num_threads(1)
    try:
        yield
    finally:
        pa.set_cpu_count(arrow_threads)
        numba.set_num_threads(numba_threads)


def _cpu_model() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _usable_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gb() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
