"""Rooms: large arrays that are used again once nobody holds them.

Memory that a process touches for the first time costs more than what we write into it. A batch may
have a hundred million matches, so their array is taken from here; it is free again when the caller
has dropped the matches.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALL = 1 << 20
"""Smaller arrays are not kept: the allocator sees to those."""
_LARGE = 1 << 30
"""Nor are larger ones: they would hold what others need."""
_KEPT = 16


class Rooms:
    """Hands out arrays; safe to use from several threads."""

    def __init__(self) -> None:
        self._kept: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def take(self, n: int, dtype: Any) -> NDArray[Any]:
        """Return an array of at least n elements, with anything in it."""
        kind = np.dtype(dtype)
        n_bytes = n * kind.itemsize
        if not _SMALL <= n_bytes <= _LARGE:
            return np.empty(n, kind)
        with self._lock:
            free = [r for r in range(len(self._kept)) if self._is_free(r)]
            large = [r for r in free if len(self._kept[r]) >= n_bytes]
            if large:
                best = min(large, key=lambda r: len(self._kept[r]))
                return self._kept[best].view(kind)
            for r in reversed(free if len(self._kept) >= _KEPT else []):
                del self._kept[r]  # too small: make place for a larger one
            room = np.empty(-(-n_bytes // 64) * 64, np.uint8)
            if len(self._kept) < _KEPT:
                self._kept.append(room)
        return room.view(kind)

    def _is_free(self, r: int) -> bool:
        """Whether nobody but the list holds a room: an array made from it would count."""
        return sys.getrefcount(self._kept[r]) <= 2
