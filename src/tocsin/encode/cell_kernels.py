"""Values → cells, compiled.

Enters: the values of a column, and the bounds of an attribute. Leaves: their cells, written into a
column of the batch's matrix. Integers within a small span are looked up in a table; other numbers
are searched between two marks of an even grid. UTF-8 bytes are ordered as code points are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, inner, kernel


@inner
def _compare(
    a: NDArray[np.uint8], a_start: int, a_end: int, b: NDArray[np.uint8], b_start: int, b_end: int
) -> Any:
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


@kernel
def look_up_integers(
    values: NDArray[np.int64], least: int, table: NDArray[np.int32], cells: NDArray[np.int32]
) -> None:
    """Write the cells of integers: `table[i]` for `least + i`, its ends for all beyond them."""
    last = len(table) - 1
    for i in range(len(values)):
        value = values[i]
        if value <= least:
            cells[i] = table[0]
        elif value >= least + last:
            cells[i] = table[last]
        else:
            cells[i] = table[value - least]


@inlined
def _count_before(bounds: Any, value: Any, low: Any, high: Any) -> Any:
    """Return how many bounds are at or before a value; they are between low and high."""
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def search_numbers(
    values: NDArray[Any],
    bounds: NDArray[Any],
    least: float,
    scale: float,
    grid: NDArray[np.int32],
    base: int,
    cells: NDArray[np.int32],
) -> None:
    """Write the cells of numbers; `grid[g]` is how many bounds lie before the g-th mark."""
    last = len(grid) - 2
    for i in range(len(values)):
        value = values[i]
        place = (np.float64(value) - least) * scale
        g = 0
        if place >= 1.0:
            g = last if place >= last else int(place)
        low = grid[g - 1] if g > 0 else 0
        high = grid[g + 2] if g + 2 < len(grid) else len(bounds)
        cells[i] = base + _count_before(bounds, value, np.int64(low), np.int64(high))
