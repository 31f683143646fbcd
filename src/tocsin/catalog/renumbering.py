"""Renumbering: old dense ids → new ones.

Enters: the remaining dense ids, in order. Leaves: for each its place in that order, which is its
new dense id.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MOST_SPARSE = 32
"""The most places of a table for each remaining id."""


class Renumbering:
    """From the remaining dense ids to their places; uses a table where that is not too sparse."""

    def __init__(self, dense: NDArray[np.int64]) -> None:
        self._dense = dense
        self._first = int(dense[0]) if len(dense) else 0
        self._places: NDArray[np.int32] | None = None
        span = int(dense[-1]) - self._first + 1 if len(dense) else 0
        if span <= _MOST_SPARSE * len(dense):
            self._places = np.zeros(span, np.int32)
            self._places[dense - self._first] = np.arange(len(dense), dtype=np.int32)

    def __call__(self, dense: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the new numbers of dense ids, all of which remain."""
        if self._places is None:
            return np.searchsorted(self._dense, dense)
        return self._places[dense - self._first].astype(np.int64)
