"""Strings → cells, compiled.

Enters: the distinct strings of a batch, and the bounds of an attribute as ranks in a sorted
vocabulary. Leaves: the cell of each string. UTF-8 bytes are ordered as code points are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inner, kernel


@inner
def _compare(
    a: NDArray[np.uint8], a_start: int, a_end: int, b: NDArray[np.uint8], b_start: int, b_end: int
) -> int:
    """Return a negative, zero or positive number as the first string is less, equal or greater."""
    shorter = min(a_end - a_start, b_end - b_start)
    for i in range(shorter):
        if a[a_start + i] != b[b_start + i]:
            return np.int64(a[a_start + i]) - np.int64(b[b_start + i])
    return (a_end - a_start) - (b_end - b_start)


@kernel
def search_strings(
    starts: NDArray[np.int64],
    data: NDArray[np.uint8],
    bound_starts: NDArray[np.int64],
    bound_data: NDArray[np.uint8],
    keys: NDArray[np.int64],
    tails: NDArray[np.int16],
    base: int,
    found: NDArray[np.int32],
) -> None:
    """Write the cell of each string: how many cuts are at or before it."""
    for i in range(len(starts) - 1):
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) >> 1
            bound = keys[middle]
            order = _compare(
                data,
                starts[i],
                starts[i + 1],
                bound_data,
                bound_starts[bound],
                bound_starts[bound + 1],
            )
            if order > 0 or (order == 0 and tails[middle] == 0):
                low = middle + 1
            else:
                high = middle
        found[i] = base + low
