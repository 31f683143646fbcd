"""A pool of large buffers, reused once no array refers to them any more.

Memory that a process touches for the first time costs more than what we write into it. A batch may
have a hundred million matches, so their array comes from here; its buffer is free again when the
caller has dropped the matches.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MIN_BYTES = 1 << 20
"""Smaller arrays are left to the allocator."""
_MAX_BYTES = 1 << 30
"""Larger ones are not pooled: they would keep memory that others need."""
_MAX_BUFFERS = 16


class BufferPool:
    """Hands out arrays; thread-safe."""

    def __init__(self) -> None:
        self._buffers: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def acquire(self, n: int, dtype: Any) -> NDArray[Any]:
        """Return an uninitialized array of at least n elements."""
        kind = np.dtype(dtype)
        n_bytes = n * kind.itemsize
        if not _MIN_BYTES <= n_bytes <= _MAX_BYTES:
            return np.empty(n, kind)
        with self._lock:
            free = [at for at in range(len(self._buffers)) if self._is_free(at)]
            large = [at for at in free if len(self._buffers[at]) >= n_bytes]
            if large:
                best = min(large, key=lambda at: len(self._buffers[at]))
                return self._buffers[best].view(kind)
            for at in reversed(free if len(self._buffers) >= _MAX_BUFFERS else []):
                del self._buffers[at]  # too small: a larger one takes its place
            buffer = np.empty(-(-n_bytes // 64) * 64, np.uint8)
            if len(self._buffers) < _MAX_BUFFERS:
                self._buffers.append(buffer)
        return buffer.view(kind)

    def _is_free(self, at: int) -> bool:
        """Whether only the list refers to a buffer: an array made from it would count."""
        return sys.getrefcount(self._buffers[at]) <= 2
