"""Runs within flat arrays.

Enters: how long runs are, and where they start. Leaves: the places of all that is in them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def positions(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return 0, 1, … for each run, one run after another."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    result: NDArray[np.int64] = np.arange(total) - np.repeat(ends - counts, counts)
    return result


def places(starts: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return the places in runs that start somewhere, one run after another."""
    result: NDArray[np.int64] = np.repeat(starts.astype(np.int64), counts) + positions(counts)
    return result
