"""Values → cells, compiled.

Enters: the values of a column, and the bounds of an attribute. Leaves: their cells, written into a
column of the batch's matrix. Integers within a small span are looked up in a table; other numbers
are searched between two marks of an even grid. UTF-8 bytes are ordered as code points are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, inner, kernel, prefetch_row

_AHEAD = 64
"""How many values are searched for at a time."""


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
    values: NDArray[np.int64],
    here: NDArray[np.bool_],
    least: int,
    table: NDArray[np.int32],
    cells: NDArray[np.int32],
) -> None:
    """Write the cells of integers: `table[i]` for `least + i`, its ends for all beyond them.

    Those that `here` does not mark are left; where it is empty, all count.
    """
    last = len(table) - 1
    for i in range(len(values)):
        if len(here) > 0 and not here[i]:
            continue
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
    here: NDArray[np.bool_],
    bounds: NDArray[Any],
    least: float,
    scale: float,
    grid: NDArray[np.int32],
    base: int,
    cells: NDArray[np.int32],
) -> None:
    """Write the cells of numbers; `grid[g]` is how many bounds lie before the g-th mark.

    Those that `here` does not mark are left; where it is empty, all count. Some values are taken at
    a time, so that what they need of the grid and the bounds is on its way.
    """
    last = len(grid) - 2
    chosen, mark = np.empty(_AHEAD, np.int64), np.empty(_AHEAD, np.int64)
    i = np.int64(0)
    while i < len(values):
        n = np.int64(0)
        while i < len(values) and n < _AHEAD:
            value = values[i]
            if len(here) == 0 or here[i]:
                place = (np.float64(value) - least) * scale
                g = np.int64(0)
                if place >= 1.0:
                    g = np.int64(last) if place >= last else np.int64(place)
                chosen[n], mark[n] = i, g
                prefetch_row(grid, g)
                n += 1
            i += 1
        for k in range(n):
            prefetch_row(bounds, np.int64(grid[mark[k]]))
        for k in range(n):
            g = mark[k]
            low = np.int64(grid[g - 1]) if g > 0 else np.int64(0)
            high = np.int64(grid[g + 2]) if g + 2 < len(grid) else np.int64(len(bounds))
            cells[chosen[k]] = base + _count_before(bounds, values[chosen[k]], low, high)


@inlined
def _find_cut(keys: Any, tails: Any, first: Any, last: Any, key: Any, tail: Any) -> Any:
    """Return the place of a cut among sorted ones, or -1."""
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key or (keys[middle] == key and tails[middle] < tail):
            low = middle + 1
        else:
            high = middle
    if low < last and keys[low] == key and tails[low] == tail:
        return low
    return np.int64(-1)


@kernel
def find_bounds(
    group: NDArray[np.int64],
    piece_keys: NDArray[np.int64],
    piece_tails: NDArray[np.int16],
    end: tuple[int, int],
    keys: NDArray[np.int64],
    tails: NDArray[np.int16],
    start: NDArray[np.int64],
    base: NDArray[np.int32],
    is_high: bool,
    cells: NDArray[np.int32],
) -> Any:
    """Write the cell at which each bound lies; return whether all are cuts that are there.

    Bounds are by group, an attribute and a line of the space: its cuts are from `start[group]` to
    `start[group + 1]`, its cells begin at `base[group]`, or it has none where that is -1. A bound
    that equals `end` is the end of the line.
    """
    for i in range(len(group)):
        g = group[i]
        if base[g] < 0:
            return False
        if piece_keys[i] == end[0] and piece_tails[i] == end[1]:
            cells[i] = base[g] + (start[g + 1] - start[g] + 1 if is_high else 0)
            continue
        at = _find_cut(keys, tails, start[g], start[g + 1], piece_keys[i], piece_tails[i])
        if at < 0:
            return False
        cells[i] = base[g] + at - start[g] + 1
    return True
