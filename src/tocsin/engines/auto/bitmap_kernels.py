"""Bitmaps, compiled: 64 conjunctions at a time.

See `bitmaps`. A word is compared with many events before the next one, so that its bitmaps stay in
the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import (
    N_BANDS,
    NEEDS_CHECK,
    BitmapArrays,
    Cells,
    Conditions,
    Integers,
    Numbers,
    Scalar,
    Words,
)
from tocsin.engines.auto.code_kernels import band_of
from tocsin.jit import RANGES, all_within, inlined, kernel, lowest_bit

_BLOCK = 256
"""How many events are looked up in the bitmaps of a word at a time."""


@inlined
def _intersect_bands(
    bitmaps: BitmapArrays,
    slot: Scalar,
    n_slots: Scalar,
    bands: NDArray[np.uint8],
    first: Scalar,
    last: Scalar,
    admitted: Words,
) -> None:
    """Write for each event which conjunctions of a word the bands of all its attributes admit."""
    table, attribute = bitmaps.admitted, bitmaps.attribute
    for i in range(last - first):
        admitted[i] = ~np.uint64(0)
    at, end = slot, slot + n_slots
    while at < end:
        # three attributes at a time; to repeat one changes nothing
        b, c = min(at + 1, end - 1), min(at + 2, end - 1)
        table_a, table_b, table_c = at * N_BANDS, b * N_BANDS, c * N_BANDS
        bands_a, bands_b, bands_c = bands[attribute[at]], bands[attribute[b]], bands[attribute[c]]
        for i in range(last - first):
            event = np.uint64(first + i)
            admitted[i] &= (
                table[np.uint64(table_a + bands_a[event])]
                & table[np.uint64(table_b + bands_b[event])]
                & table[np.uint64(table_c + bands_c[event])]
            )
        at += 3


@kernel
def match_bitmaps(
    bitmaps: BitmapArrays,
    bands: NDArray[np.uint8],
    rows: Cells,
    first_event: int,
    last_event: int,
    pair_event: Cells,
    pair_number: Numbers,
) -> Any:
    """Write the pairs of some events; return their number, or -1 where they do not fit.

    `bands` are by attribute, `rows` are cells by event. Pairs may need a check.
    """
    n = np.int64(0)
    admitted = np.empty(_BLOCK, np.uint64)
    hit = np.empty(_BLOCK, np.int64)
    values, n_attributes = rows.reshape(-1), rows.shape[1]
    selected, low, width = bitmaps.first, bitmaps.low, bitmaps.width
    for word in range(len(bitmaps.start) - 1):
        slot = bitmaps.start[word]
        n_slots = bitmaps.start[word + 1] - slot
        ranges = word * RANGES
        for first in range(first_event, last_event, _BLOCK):
            last = min(first + _BLOCK, last_event)
            _intersect_bands(bitmaps, slot, n_slots, bands, first, last, admitted)
            n_hit = np.int64(0)
            for i in range(last - first):
                hit[n_hit] = i
                n_hit += admitted[i] != 0
            if n + 64 * n_hit > len(pair_event):
                return -1
            for k in range(n_hit):
                mask = admitted[hit[k]]
                event = first + hit[k]
                start = event * n_attributes
                while mask:
                    place = 64 * word + lowest_bit(mask)
                    mask &= mask - np.uint64(1)
                    pair_event[n] = event
                    pair_number[n] = bitmaps.number[place]
                    n += all_within(values, start, selected, ranges, low, width, place * RANGES)
    return n


@kernel
def attribute_signatures(conditions: Conditions, selected: Numbers, signatures: Words) -> None:
    """Write the eight lowest attributes of each conjunction, 16 bits each, lowest first."""
    for at in range(len(selected)):
        c = np.int64(selected[at])
        least = np.int64(-1)
        for half in range(2):
            signature = np.uint64(0)
            for _ in range(4):
                following = np.int64(0xFFFF)
                for i in range(conditions.start[c], conditions.start[c + 1]):
                    attribute = np.int64(conditions.attribute[i])
                    if least < attribute < following:
                        following = attribute
                least = following
                signature = (signature << np.uint64(16)) | np.uint64(following)
            signatures[half, at] = signature


@kernel
def find_word_attributes(
    conditions: Conditions,
    selected: Numbers,
    last_word: Integers,
    start: Integers,
    attributes: Integers,
) -> Any:
    """Write the distinct attributes of each word of 64 conjunctions; return their number in all.

    With an empty `attributes` they are only counted."""
    n = np.int64(0)
    for word in range(len(start) - 1):
        start[word] = n
        for at in range(64 * word, min(64 * word + 64, len(selected))):
            c = np.int64(selected[at])
            for i in range(conditions.start[c], conditions.start[c + 1]):
                attribute = np.int64(conditions.attribute[i])
                if last_word[attribute] != word:
                    last_word[attribute] = word
                    if len(attributes):
                        attributes[n] = attribute
                    n += 1
    start[len(start) - 1] = n
    return n


@kernel
def fill_bitmaps(
    conditions: Conditions, n_cells: Integers, selected: Numbers, bitmaps: BitmapArrays
) -> None:
    """Write which conjunctions each band admits, and the exact ranges."""
    slot_of = np.empty(len(n_cells), np.int64)
    for word in range(len(bitmaps.start) - 1):
        first, last = bitmaps.start[word], bitmaps.start[word + 1]
        n_here = min(64, len(selected) - 64 * word)
        full = ~np.uint64(0) >> np.uint64(64 - n_here)
        for slot in range(first, last):
            slot_of[bitmaps.attribute[slot]] = slot
            if slot - first < RANGES:
                bitmaps.first[RANGES * word + slot - first] = bitmaps.attribute[slot]
            for band in range(N_BANDS):
                bitmaps.admitted[slot * N_BANDS + band] = full
        for b in range(n_here):
            place = 64 * word + b
            c = np.int64(selected[place])
            number = np.uint32(c)
            bit = np.uint64(1) << np.uint64(b)
            for j in range(RANGES):
                bitmaps.low[place * RANGES + j], bitmaps.width[place * RANGES + j] = 0, 0xFFFFFFFF
            for i in range(conditions.start[c], conditions.start[c + 1]):
                attribute = conditions.attribute[i]
                slot = slot_of[attribute]
                r0, r1 = conditions.range_start[i], conditions.range_start[i + 1]
                for band in range(N_BANDS):
                    bitmaps.admitted[slot * N_BANDS + band] &= ~bit
                for r in range(r0, r1):
                    low = band_of(np.int64(conditions.low[r]), n_cells[attribute])
                    high = band_of(np.int64(conditions.high[r]) - 1, n_cells[attribute])
                    for band in range(low, high + 1):
                        bitmaps.admitted[slot * N_BANDS + band] |= bit
                if r1 - r0 > 1 or slot - first >= RANGES:
                    number |= NEEDS_CHECK
                else:
                    at = place * RANGES + slot - first
                    bitmaps.low[at] = conditions.low[r0]
                    bitmaps.width[at] = conditions.high[r0] - 1 - conditions.low[r0]
            bitmaps.number[place] = number


@kernel
def to_bands(n_cells: Integers, cells: Cells, bands: NDArray[np.uint8]) -> None:
    """Write the band of each cell."""
    n_attributes, n_events = cells.shape
    for a in range(n_attributes):
        n = np.int64(n_cells[a])
        for event in range(n_events):
            bands[a, event] = band_of(np.int64(cells[a, event]), n)
