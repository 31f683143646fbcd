"""Where compiled kernels are cached: in a folder named after a digest of all kernel sources.

Enters: a kernel. Leaves: the cache that Numba loads it from and saves it to. Numba's own cache sees
an edit in the file of a kernel, but not in a helper that it imports from elsewhere, and would go on
using the old helper. Here every edit of a kernel's source creates a new folder in Numba's cache
folder (`NUMBA_CACHE_DIR`, that of the package, or that of the user); the oldest folders are then
deleted.

A kernel that is not cached is compiled by one process at a time; others that need it wait, and load
it. While it is compiled, the garbage collector rests: a sixth of the time would go to it. On a
terminal a line says what is waited for.

Where no folder can be written, kernels are cached in a temporary one, for this process.

Numba fills the tables of its compiler (some 270 modules) before it loads a kernel, which takes
longer than loading. A kernel that is cached is loaded without; where one has to be compiled, the
compiler fills its tables itself.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import hashlib
import shutil
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding  # type: ignore[import-untyped]
from numba import config
from numba.core import caching
from numba.core.runtime.nrt import rtsys

_PREFIX = "kernels-"
_MAX_FOLDERS = 3
"""Folders of earlier sources are kept up to this number: one may go back to another branch."""


def is_kernel_source(path: Path) -> bool:
    """Whether a file holds kernels, helpers of kernels, or constants that they compile in."""
    return path.suffix == ".py" and ("kernels" in path.stem or path.stem in ("arrays", "jit"))


def digest_of(*roots: Path) -> str:
    """Return a digest of all kernel sources in some folders, and of what else changes the code."""
    options: Any = config
    digest = hashlib.blake2b(repr((options.BOUNDSCHECK, options.OPT)).encode(), digest_size=8)
    for root in roots:
        for path in sorted(filter(is_kernel_source, root.rglob("*.py"))):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _digest(package: str) -> str:
    """Return the digest of a package whose kernels may use those of this one; once a process."""
    packages = dict.fromkeys((__name__.partition(".")[0], package))
    modules = (sys.modules.get(name) for name in packages)
    return digest_of(*(Path(root) for m in modules for root in getattr(m, "__path__", ())))


class _InFolder:
    """Makes a locator of Numba's add a folder for the sources as they are."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)  # type: ignore[call-arg]
        self._folder = _PREFIX + _digest(function.__module__.partition(".")[0])

    def get_cache_path(self) -> str:
        return str(Path(super().get_cache_path()) / self._folder)  # type: ignore[misc]

    def ensure_cache_path(self) -> None:
        path = Path(self.get_cache_path())
        is_new = not path.exists()
        super().ensure_cache_path()  # type: ignore[misc]
        if is_new:
            _delete_old(path)


@cache
def temporary_folder() -> Path:
    """Return the folder for kernels of this process where no other can be written."""
    folder = tempfile.mkdtemp(prefix="tocsin-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


class _Temporary(caching.UserProvidedCacheLocator):
    """Locates the cache in a folder that goes when the process ends."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)  # type: ignore[no-untyped-call]
        subfolder = self.get_suitable_cache_subpath(file)  # type: ignore[no-untyped-call]
        self._cache_path = str(temporary_folder() / subfolder)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        return super(caching.UserProvidedCacheLocator, cls).from_function(py_func, py_file)  # type: ignore[no-untyped-call]


def _delete_old(path: Path) -> None:
    """Delete the oldest folders of earlier sources, but not the new one."""
    others = [other for other in path.parent.glob(f"{_PREFIX}*") if other != path]
    others.sort(key=lambda other: other.stat().st_mtime, reverse=True)
    for other in others[_MAX_FOLDERS - 1 :]:
        shutil.rmtree(other, ignore_errors=True)


_HASH_SYMBOL = b"_numba_hashsecret"
"""What kernels that hash texts refer to; it is defined with the tables of the compiler."""

_Implementation: Any = caching.CompileResultCacheImpl


class _KernelCacheImplementation(_Implementation):  # type: ignore[misc]
    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """Make the kernel of what was cached; the linker must know every symbol that it names."""
        if any(isinstance(part, bytes) and _HASH_SYMBOL in part for part in payload[0][2]):
            target_context.refresh()
        return super().rebuild(target_context, payload)

    _locator_classes = tuple(
        type(locator.__name__, (_InFolder, locator), {})
        for locator in (*_Implementation._locator_classes, _Temporary)
    )


class KernelCache(caching.FunctionCache):
    """The cache of one kernel."""

    _impl_class = _KernelCacheImplementation

    def __init__(self, function: Any) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._compiling: _Compiling | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel compiled for a signature, or None where it is to be compiled now."""
        rtsys.initialize(target_context)  # the symbols of Numba's memory management
        compiled = self._load(sig, target_context)
        if compiled is None and self._compiling is None:
            index = Path(self.cache_path, self._impl.filename_base)
            self._compiling = _Compiling(index, self._py_func.__name__)
            compiled = self._load(sig, target_context)  # another process may have compiled it
        return compiled

    def _load(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """Note that nothing is compiled any more, whether that has failed or not."""
        compiling, self._compiling = self._compiling, None
        if compiling is not None:
            compiling.end()


class _Compiling:
    """The time in which a process compiles a kernel, after others that compile the same."""

    n_current = 0
    pauses_collector = False

    def __init__(self, index: Path, name: str) -> None:
        _show(f"tocsin: compiling kernels for this processor, once ({name})")
        self._lock: Any = None
        with suppress(OSError):  # a file system without locks: two may compile the same
            self._lock = index.with_name(f"{index.name}.lock").open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        if not _Compiling.n_current:
            _Compiling.pauses_collector = gc.isenabled()
            gc.disable()
        _Compiling.n_current += 1

    def end(self) -> None:
        """Let others go on."""
        _Compiling.n_current -= 1
        if not _Compiling.n_current and _Compiling.pauses_collector:
            gc.enable()
        if self._lock is not None:
            self._lock.close()
        _show("")


def _show(text: str) -> None:
    """Replace the last line of a terminal; elsewhere nothing is written."""
    with suppress(AttributeError, OSError, ValueError):  # no such stream, or a closed one
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


@cache
def _own_folder() -> Any:
    return _KernelCacheImplementation(is_kernel_source).locator


def folder() -> Path:
    """Return the folder in which something about all kernels of this package can be noted."""
    return Path(_own_folder().get_cache_path())


def target() -> str:
    """Return a digest of what kernels are compiled with, and of the processor."""
    options: Any = config
    processor = options.CPU_NAME or binding.get_host_cpu_name()
    features = options.CPU_FEATURES or binding.get_host_cpu_features().flatten()
    code = sys.implementation.cache_tag, numba.__version__, processor, features
    return hashlib.blake2b(repr(code).encode(), digest_size=8).hexdigest()


def is_temporary() -> bool:
    """Whether kernels are cached for this process only."""
    return isinstance(_own_folder(), _Temporary)
