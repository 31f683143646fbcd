"""Bands → matches, compiled: 64 conjunctions at a time.

Enters: bitmaps (see `arrays`), and events as bands and cells. Leaves: pairs of an event and the
number of a conjunction that it satisfies. A word is met with many events before the next one, so
that its bitmaps stay in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import N_BANDS, Bitmaps, Cells, Numbers, Scalar, Words
from tocsin.jit import RANGES, all_within, inlined, kernel, lowest_bit

_BLOCK = 256
"""How many events are looked up in the bitmaps of a word at a time."""


@inlined
def _meet_bands(
    bitmaps: Bitmaps,
    slot: Scalar,
    n_slots: Scalar,
    bands: NDArray[np.uint8],
    first: Scalar,
    last: Scalar,
    admitted: Words,
) -> None:
    """Intersect what the bands of events admit in a word: `admitted[i]` for the i-th of them."""
    table, attribute = bitmaps.admitted, bitmaps.attribute
    for i in range(last - first):
        admitted[i] = ~np.uint64(0)
    at, end = slot, slot + n_slots
    while at < end:
        # three attributes at a time; an attribute met twice changes nothing
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
    bitmaps: Bitmaps,
    bands: NDArray[np.uint8],
    rows: Cells,
    first_event: int,
    last_event: int,
    pair_event: Cells,
    pair_number: Numbers,
) -> Any:
    """Write pairs for the words of bitmaps and some events; return how many, -1 if too many.

    `bands` are by attribute, `rows` are cells by event. The numbers of pairs may be open.
    """
    n = np.int64(0)
    admitted = np.empty(_BLOCK, np.uint64)
    hit = np.empty(_BLOCK, np.int64)
    values, n_attributes = rows.reshape(-1), rows.shape[1]
    chosen, low, width = bitmaps.first, bitmaps.low, bitmaps.width
    for word in range(len(bitmaps.start) - 1):
        slot = bitmaps.start[word]
        n_slots = bitmaps.start[word + 1] - slot
        ranges = word * RANGES
        for first in range(first_event, last_event, _BLOCK):
            last = min(first + _BLOCK, last_event)
            _meet_bands(bitmaps, slot, n_slots, bands, first, last, admitted)
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
                    n += all_within(values, start, chosen, ranges, low, width, place * RANGES)
    return n
