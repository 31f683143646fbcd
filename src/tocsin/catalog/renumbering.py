"""Renumbering: old dense ids → new ones.

Enters: the dense ids that are kept, in order. Leaves: for any of them its place in that order,
which is its dense id from then on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MOST_SPARSE = 32
"""A table has up to this many places for each id that is kept."""


class Renumbering:
    """From kept dense ids to their places, by a table where that is not much larger than they."""

    def __init__(self, kept: NDArray[np.int64]) -> None:
        self._kept = kept
        self._first = int(kept[0]) if len(kept) else 0
        self._places: NDArray[np.int32] | None = None
        span = int(kept[-1]) - self._first + 1 if len(kept) else 0
        if span <= _MOST_SPARSE * len(kept):
            self._places = np.zeros(span, np.int32)
            self._places[kept - self._first] = np.arange(len(kept), dtype=np.int32)

    def __call__(self, dense: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the new numbers of dense ids, all of which are kept."""
        if self._places is None:
            return np.searchsorted(self._kept, dense)
        return self._places[dense - self._first].astype(np.int64)
