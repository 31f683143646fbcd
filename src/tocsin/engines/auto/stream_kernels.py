"""Conditions ↔ the stream, compiled: all conditions of a segment in few bytes.

Enters: conditions as ranges of cells. Leaves: the stream (see `arrays.Stream`), which parts verify
candidates against, and which a merge reads conditions back from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    COUNT_ESCAPE,
    Cells,
    Codes,
    Conditions,
    Integers,
    Numbers,
    Scalar,
    Stream,
)
from tocsin.jit import inlined, kernel

_SHORT_ATTRIBUTES = 0x3FFF
"""Attributes below this number fit into the word that holds the form."""


@inlined
def _form_of(conditions: Conditions, i: Scalar) -> Scalar:
    """Return the form of a condition in the stream."""
    first, last = conditions.range_start[i], conditions.range_start[i + 1]
    if last - first != 1 or conditions.attribute[i] >= _SHORT_ATTRIBUTES:
        return 3
    if conditions.high[first] > 0xFFFF:
        return 2
    return 0 if conditions.high[first] - conditions.low[first] == 1 else 1


@kernel
def measure_stream(conditions: Conditions, order: Numbers, start: Numbers) -> Any:
    """Write where each conjunction will begin in the stream; return the number of words."""
    n = np.int64(0)
    for at in range(len(order)):
        c = np.int64(order[at])
        start[c] = n
        n += 1 if conditions.start[c + 1] - conditions.start[c] < COUNT_ESCAPE else 3
        for i in range(conditions.start[c], conditions.start[c + 1]):
            form = _form_of(conditions, i)
            n += 2 + form if form < 2 else 5
            if form == 3:
                n += 4 * (conditions.range_start[i + 1] - conditions.range_start[i])
    return n


@inlined
def _write_long(words: Codes, n: Scalar, value: Scalar) -> Scalar:
    """Write a number in two words; return the position after them."""
    words[n] = np.uint16(value & 0xFFFF)
    words[n + 1] = np.uint16(value >> 16)
    return n + 2


@kernel
def write_stream(conditions: Conditions, stream: Stream) -> None:
    """Write the conditions into the stream, whose arrays are large enough."""
    words = stream.words
    for c in range(len(conditions.start) - 1):
        n = np.int64(stream.start[c])
        n_conditions = conditions.start[c + 1] - conditions.start[c]
        words[n] = np.uint16(min(n_conditions, COUNT_ESCAPE))
        n += 1
        if n_conditions >= COUNT_ESCAPE:
            n = _write_long(words, n, n_conditions)
        for i in range(conditions.start[c], conditions.start[c + 1]):
            form = _form_of(conditions, i)
            attribute = np.int64(conditions.attribute[i])
            first, last = conditions.range_start[i], conditions.range_start[i + 1]
            words[n] = np.uint16((form << 14) | (attribute if form < 3 else 0))
            n += 1
            if form == 3:
                n = _write_long(words, n, attribute)
                n = _write_long(words, n, last - first)
            for r in range(first, last):
                low, high = np.int64(conditions.low[r]), np.int64(conditions.high[r])
                if form < 2:
                    words[n] = np.uint16(low)
                    if form == 1:
                        words[n + 1] = np.uint16(high)
                    n += 1 + form
                else:
                    n = _write_long(words, n, low)
                    n = _write_long(words, n, high)


@inlined
def _read_long(words: Codes, n: Scalar) -> Scalar:
    """Return the 32-bit number in two words."""
    return np.int64(words[n]) | (np.int64(words[n + 1]) << 16)


@kernel
def read_stream(stream: Stream, selected: Numbers, conditions: Conditions) -> Any:
    """Read the conditions of selected conjunctions; return the numbers of conditions and ranges.

    With empty arrays in `conditions` they are only counted.
    """
    words = stream.words
    is_written = len(conditions.attribute) > 0
    n_conditions, n_ranges = np.int64(0), np.int64(0)
    for at in range(len(selected)):
        c = np.int64(selected[at])
        n = np.int64(stream.start[c])
        n_left = np.int64(words[n])
        n += 1
        if n_left == COUNT_ESCAPE:
            n_left = _read_long(words, n)
            n += 2
        for _ in range(n_left):
            form, attribute = np.int64(words[n] >> 14), np.int64(words[n] & _SHORT_ATTRIBUTES)
            n += 1
            count = np.int64(1)
            if form == 3:
                attribute, count = _read_long(words, n), _read_long(words, n + 2)
                n += 4
            if is_written:
                conditions.attribute[n_conditions] = attribute
            for r in range(n_ranges, n_ranges + count):
                if form < 2:
                    low, high = np.int64(words[n]), np.int64(words[n + form]) + (1 - form)
                    n += 1 + form
                else:
                    low, high = _read_long(words, n), _read_long(words, n + 2)
                    n += 4
                if is_written:
                    conditions.low[r], conditions.high[r] = low, high
            n_conditions += 1
            n_ranges += count
            if is_written:
                conditions.range_start[n_conditions] = n_ranges
        if is_written:
            conditions.start[at + 1] = n_conditions
    return n_conditions, n_ranges


@kernel
def move_cells(
    conditions: Conditions, attribute: Cells, first: Integers, low: Cells, high: Cells, end: Cells
) -> None:
    """Renumber the attributes and cells of conditions in place, see `encode.joined`."""
    for i in range(len(conditions.attribute)):
        a = conditions.attribute[i]
        for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
            is_present = conditions.low[r] == 1
            conditions.high[r] = end[a] if is_present else high[first[a] + conditions.high[r]]
            conditions.low[r] = low[first[a] + conditions.low[r]]
        conditions.attribute[i] = attribute[a]


@inlined
def conjunction_holds(words: Codes, n: Scalar, cells: Cells) -> Scalar:
    """Whether the cells of an event satisfy the conjunction whose words begin at `words[n]`."""
    n_left = np.int64(words[n])
    n += 1
    if n_left == COUNT_ESCAPE:
        n_left = _read_long(words, n)
        n += 2
    for _ in range(n_left):
        form, attribute = np.int64(words[n] >> 14), np.int64(words[n] & _SHORT_ATTRIBUTES)
        n += 1
        if form < 2:
            cell = np.int64(cells[attribute])
            if cell < np.int64(words[n]) or cell >= np.int64(words[n + form]) + (1 - form):
                return False
            n += 1 + form
            continue
        if form == 2:
            cell = np.int64(cells[attribute])
            if cell < _read_long(words, n) or cell >= _read_long(words, n + 2):
                return False
            n += 4
            continue
        attribute, count = _read_long(words, n), _read_long(words, n + 2)
        n += 4
        cell = np.int64(cells[attribute])
        is_inside = False
        for r in range(count):
            if cell < _read_long(words, n + 4 * r + 2):
                is_inside = cell >= _read_long(words, n + 4 * r)
                break
        if not is_inside:
            return False
        n += 4 * count
    return True
