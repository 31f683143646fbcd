"""Columns, compiled: clusters in the order of one attribute's lower bounds.

See `columns`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    Cells,
    Clusters,
    Codes,
    Coding,
    ColumnArrays,
    Conditions,
    Flags,
    Integers,
    Keys,
    Numbers,
    Scalar,
)
from tocsin.engines.auto.table_kernels import find_clusters_of_family, make_clusters, prefix_key
from tocsin.jit import LANES, emit_block, inlined, kernel


@kernel
def find_fitting(
    coding: Coding,
    conditions: Conditions,
    key: Integers,
    window: int,
    other: int,
    selected: Numbers,
    fits: Flags,
) -> None:
    """Mark the conjunctions that a key and single ranges of one or two attributes decide.

    The range of the window attribute is required, the other one is not.
    """
    for at in range(len(selected)):
        c = np.int64(selected[at])
        fits[at] = False
        for i in range(conditions.start[c], conditions.start[c + 1]):
            attribute = conditions.attribute[i]
            is_single = conditions.range_start[i + 1] - conditions.range_start[i] == 1
            says_all = coding.is_point[attribute] and coding.is_exact[attribute]
            in_key = False
            for a in key:
                in_key |= a == attribute
            if is_single and attribute == window:
                fits[at] = True
            elif not (is_single and attribute == other) and not (in_key and says_all):
                fits[at] = False
                break


@kernel
def fill_columns(
    conditions: Conditions, member_of: Cells, order: Numbers, columns: ColumnArrays
) -> None:
    """Write the columns of each row; `order` are the conjunctions by row."""
    for at in range(len(order)):
        c = np.int64(order[at])
        m = np.int64(member_of[c])
        columns.number[at] = c
        columns.other_low[at], columns.other_width[at] = 0, 0xFFFFFFFF
        for i in range(conditions.start[c], conditions.start[c + 1]):
            attribute = conditions.attribute[i]
            low = np.uint32(conditions.low[conditions.range_start[i]])
            high = np.uint32(conditions.high[conditions.range_start[i]])
            if attribute == columns.window[m]:
                columns.low[at], columns.high[at] = low, high
            elif attribute == columns.other[m]:
                columns.other_low[at], columns.other_width[at] = low, high - low - np.uint32(1)


@kernel
def fill_reach(start: Numbers, high: Numbers, reach: Numbers) -> None:
    """Write for each row the greatest upper bound up to it in its cluster.

    In a cluster that is sorted by lower bounds, the rows that a cell may satisfy are then a run.
    """
    for key in range(len(start) - 1):
        greatest = np.uint32(0)
        for i in range(np.int64(start[key]), np.int64(start[key + 1])):
            greatest = max(greatest, high[i])
            reach[i] = greatest


@inlined
def _window(columns: ColumnArrays, first: Scalar, last: Scalar, cell: Scalar) -> Any:
    """Return the run of a cluster's rows that a cell of the window attribute may satisfy."""
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if columns.low[middle] <= cell:
            low = middle + 1
        else:
            high = middle
    end = low
    low, high = first, end
    while low < high:
        middle = (low + high) >> 1
        if columns.reach[middle] <= cell:
            low = middle + 1
        else:
            high = middle
    return low, end


@inlined
def _cell(codes: Codes, cells: Cells, event: Scalar, attribute: Scalar) -> Scalar:
    """Return a cell of an event; `cells` is empty where codes are cells."""
    if len(cells) > 0:
        return np.uint32(cells[event, attribute])
    return np.uint32(codes[event, attribute])


@inlined
def _find_windows(
    coding: Coding,
    keys: Keys,
    columns: ColumnArrays,
    codes: Codes,
    cells: Cells,
    event: Scalar,
    clusters: Clusters,
) -> Any:
    """Find the windows of an event in all tables; return their number and their total length."""
    n, length = np.int64(0), np.int64(0)
    row = codes[event]
    for f in range(len(keys.base)):
        prefix = prefix_key(coding, keys, f, row)
        if prefix < 0:
            continue
        end = find_clusters_of_family(coding, keys, columns.low, f, prefix, row, clusters, n)
        for k in range(n, end):
            cell = _cell(codes, cells, event, columns.window[clusters.member[k]])
            first, last = _window(columns, clusters.start[k], clusters.end[k], cell)
            clusters.start[k] = first
            clusters.end[k] = last
            length += last - first
        n = end
    return n, length


@inlined
def _scan_windows(
    columns: ColumnArrays,
    clusters: Clusters,
    n_windows: Scalar,
    codes: Codes,
    cells: Cells,
    event: Scalar,
    base: Any,
    out: Any,
    n: Any,
) -> Scalar:
    """Write the conjunctions of the windows that an event satisfies; return the end of them.

    `out` needs `LANES` more elements, since a block may write behind its matches.
    """
    for k in range(n_windows):
        m = clusters.member[k]
        cell = _cell(codes, cells, event, columns.window[m])
        other = np.uint32(0)
        if columns.other[m] >= 0:
            other = _cell(codes, cells, event, columns.other[m])
        i, last = clusters.start[k], clusters.end[k]
        while i + LANES <= last:
            n = emit_block(
                columns.high,
                columns.other_low,
                columns.other_width,
                columns.number,
                i,
                cell,
                other,
                base,
                out,
                n,
            )
            i += LANES
        while i < last:
            distance = np.uint32(other - columns.other_low[i])
            out[n] = columns.number[i] + base
            n += (columns.high[i] > cell) & (distance <= columns.other_width[i])
            i += 1
    return n


@kernel
def match_columns(
    coding: Coding,
    keys: Keys,
    columns: ColumnArrays,
    codes: Codes,
    cells: Cells,
    base: int,
    earlier_offsets: Integers,
    earlier: Numbers,
    first_event: int,
    out: Numbers,
    offsets: Integers,
) -> Any:
    """Write the conjunctions that events satisfy, each number plus a base, see `output.by_event`.

    `cells` is empty where codes are cells. `earlier` are conjunctions of other parts, by event,
    which are copied: there are few, and to join them with many later takes longer.
    """
    windows = make_clusters(len(keys.member_attribute))
    start, n = np.uint32(base), offsets[first_event]
    for event in range(first_event, len(codes)):
        n_windows, length = _find_windows(coding, keys, columns, codes, cells, event, windows)
        length += earlier_offsets[event + 1] - earlier_offsets[event]
        if n + length + LANES > len(out):
            return event
        for i in range(earlier_offsets[event], earlier_offsets[event + 1]):
            out[n] = earlier[i]
            n += 1
        n = _scan_windows(columns, windows, n_windows, codes, cells, event, start, out, n)
        offsets[event + 1] = n
    return len(codes)
