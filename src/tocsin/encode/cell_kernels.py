"""Values → cells, compiled.

Enters: the values of a column, and the bounds of an attribute. Leaves: their cells, written into a
column of the batch's matrix. Integers within a small span are looked up in a table; other numbers
are searched between two marks of an even grid, by how far they are on the way from one to the next,
in 16 bits; only where that is equal are the numbers themselves compared. UTF-8 bytes are ordered as
code points are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import (
    LANES,
    count_below,
    inlined,
    inner,
    kernel,
    load_integer,
    load_short,
    lowest_bit,
    prefetch_row,
)

_AHEAD = 64
"""How many values are searched for at a time."""
_VALUES_AHEAD = 512
"""How far ahead values are fetched where many are absent: what is skipped puts prefetchers off."""


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
    cells: NDArray[np.int32],
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
        cells[i] = base + low


@kernel
def look_up_integers(
    values: NDArray[np.int64],
    here: NDArray[np.bool_],
    least: int,
    table: NDArray[np.int32],
    cells: NDArray[np.int32],
) -> None:
    """Write the cells of integers: `table[i]` for `least + i`, its ends for all beyond them.

    Values that `here` does not mark are skipped; where it is empty, all count.
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


@kernel
def look_up_columns(columns: NDArray[np.int64], cells: NDArray[np.int32]) -> None:
    """Do what `look_up_integers` does for many columns, in which nothing is absent.

    A column is its row among the cells, where its values are in memory, as many as a row has, the
    first integer of its table, where that is in memory, and its length.
    """
    for c in range(len(columns)):
        at, values, least = columns[c, 0], columns[c, 1], columns[c, 2]
        table, last = columns[c, 3], columns[c, 4] - 1
        for i in range(cells.shape[1]):
            place = np.int64(0)
            value = load_integer(values, i)
            if value >= least + last:
                place = last
            elif value > least:
                place = value - least
            cells[at, i] = load_short(table, place)


@inlined
def _mark_of(value: Any, least: Any, scale: Any, n_marks: Any) -> Any:
    """Return the last mark at or before a value, and how far it is on the way to the next.

    Neither ever falls while values rise, the way within a mark. Where `scale` is zero they say
    nothing.
    """
    place = (np.float64(value) - least) * scale
    mark, fraction = np.int64(0), np.uint16(0)
    if place >= n_marks:
        mark, fraction = np.int64(n_marks - 1), np.uint16(0xFFFF)
    elif place > 0.0:
        mark = np.int64(place)
        fraction = np.uint16((place - mark) * 65536.0)
    return mark, fraction


@kernel
def fill_marks(
    bounds: NDArray[Any],
    least: float,
    scale: float,
    grid: NDArray[np.int32],
    fractions: NDArray[np.uint16],
) -> None:
    """Write how many bounds lie before each mark, and the fraction of its slot at which each lies.

    `fractions` has `LANES` extra entries.
    """
    n_marks = len(grid) - 1
    for i in range(len(bounds)):
        mark, fraction = _mark_of(bounds[i], least, scale, n_marks)
        fractions[i] = fraction
        grid[mark + 1] += 1
    for mark in range(n_marks):
        grid[mark + 1] += grid[mark]


@inlined
def _count_bounds(
    values: Any,
    rows: Any,
    marks: Any,
    n: Any,
    bounds: Any,
    grid: Any,
    fractions: Any,
    counts: Any,
) -> None:
    """Count the bounds at or before each of the n values at `rows`, which have these marks."""
    at_mark, at_value = marks
    for k in range(n):
        prefetch_row(fractions, np.int64(grid[at_mark[k]]))
    for k in range(n):
        mark, fraction = at_mark[k], at_value[k]
        low, end = np.int64(grid[mark]), np.int64(grid[mark + 1])
        high = end
        while high - low > LANES:
            middle = (low + high) >> 1
            if fractions[middle] < fraction:
                low = middle + 1
            else:
                high = middle
        low += count_below(fractions, low, high - low, fraction)
        if low < end and fractions[low] == fraction:
            value, high = values[rows[k]], end
            while low < high:
                middle = (low + high) >> 1
                if bounds[middle] <= value:
                    low = middle + 1
                else:
                    high = middle
        counts[k] = low


@kernel
def search_numbers(
    values: NDArray[Any],
    here: NDArray[np.bool_],
    bounds: NDArray[Any],
    least: float,
    scale: float,
    grid: NDArray[np.int32],
    fractions: NDArray[np.uint16],
    base: int,
    cells: NDArray[np.int32],
) -> None:
    """Write the cells of numbers, see `fill_marks`.

    Values that `here` does not mark are skipped; if it is empty, none is. Values are handled in
    groups, so that their marks can be prefetched.
    """
    n_marks = len(grid) - 1
    rows, counts = np.empty(_AHEAD, np.int64), np.empty(_AHEAD, np.int64)
    marks = (np.empty(_AHEAD, np.int64), np.empty(_AHEAD, np.uint16))
    at_mark, at_value = marks
    i = np.int64(0)
    while i < len(values):
        n = np.int64(0)
        while i < len(values) and n < _AHEAD:
            if len(here) == 0 or here[i]:
                mark, fraction = _mark_of(values[i], least, scale, n_marks)
                rows[n], at_mark[n], at_value[n] = i, mark, fraction
                prefetch_row(grid, mark)
                n += 1
            i += 1
        _count_bounds(values, rows, marks, n, bounds, grid, fractions, counts)
        for k in range(n):
            cells[rows[k]] = base + counts[k]


@inlined
def _prefetch_marks(grid: Any, fractions: Any) -> None:
    """Prefetch all marks: if most are needed, sequential reads are faster."""
    for at in range(0, len(grid), 16):
        prefetch_row(grid, at)
    for at in range(0, len(fractions), 32):
        prefetch_row(fractions, at)


@kernel
def search_present(
    values: NDArray[Any],
    bits: NDArray[np.uint8],
    offset: int,
    bounds: NDArray[Any],
    least: float,
    scale: float,
    grid: NDArray[np.int32],
    fractions: NDArray[np.uint16],
    base: int,
    other: int,
    n_found: int,
    events: NDArray[np.int32],
    cells: NDArray[np.int32],
) -> Any:
    """Write rows and cells of the present numbers, from `n_found` on; return where they end.

    Value i is present if bit `offset + i` is set, or if there are no bits. The cell of a NaN is
    `other`. See `search_numbers`.
    """
    n_marks = len(grid) - 1
    rows, counts = np.empty(_AHEAD + 64, np.int64), np.empty(_AHEAD + 64, np.int64)
    marks = (np.empty(_AHEAD + 64, np.int64), np.empty(_AHEAD + 64, np.uint16))
    at_mark, at_value = marks
    n_values = np.int64(len(values))
    if n_values >= len(bounds) >> 1:
        _prefetch_marks(grid, fractions)
    i = np.int64(-(offset & 7))
    n_out = np.int64(n_found)
    while i < n_values:
        n = np.int64(0)
        while i < n_values and n < _AHEAD:
            first, word = (offset + i) >> 3, ~np.uint64(0)
            for line in range(0, 64, 8):
                prefetch_row(values, i + _VALUES_AHEAD + line)
            if len(bits) > 0:
                word = np.uint64(0)
                n_bytes: Any = min(len(bits) - first, 8)
                for b in range(n_bytes):
                    word |= np.uint64(bits[first + b]) << np.uint64(8 * b)
            if n_values - i < 64:
                word &= (np.uint64(1) << np.uint64(n_values - i)) - np.uint64(1)
            if i < 0:
                word &= ~np.uint64(0) << np.uint64(-i)
            while word:
                at = i + lowest_bit(word)
                word &= word - np.uint64(1)
                mark, fraction = _mark_of(values[at], least, scale, n_marks)
                rows[n], at_mark[n], at_value[n] = at, mark, fraction
                prefetch_row(grid, mark)
                n += 1
            i += 64
        _count_bounds(values, rows, marks, n, bounds, grid, fractions, counts)
        for k in range(n):
            value = values[rows[k]]
            events[n_out] = rows[k]
            cells[n_out] = base + counts[k] if value == value else other
            n_out += 1
    return n_out


@kernel
def keep_present(
    row: NDArray[np.int32],
    n_found: int,
    events: NDArray[np.int32],
    cells: NDArray[np.int32],
) -> Any:
    """Write events and cells of those in a row that are not absent; return where it ends."""
    n = np.int64(n_found)
    for event in range(len(row)):
        if row[event] > 0:
            events[n] = event
            cells[n] = row[event]
            n += 1
    return n


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
