"""Events before and after matching, compiled.

Enters: cells by attribute; or pairs of events and numbers, or the conjunctions found. Leaves: codes
and cells by event, bands, an order of events; or numbers and ids in the order of events.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import (
    N_BANDS,
    Cells,
    Codes,
    Coding,
    Integers,
    Keys,
    Numbers,
    Scalar,
)
from tocsin.jit import inlined, kernel

_BLOCK = 64
"""How many events are turned round at a time."""


@inlined
def _cell_code(coding: Coding, a: Scalar, cell: Scalar) -> Scalar:
    """Return the code of a cell."""
    if coding.is_exact[a] or cell < 2:
        return cell
    return 2 + (cell - 2) * 65533 // (coding.n_cells[a] - 2)


@kernel
def to_rows(coding: Coding, cells: Cells, place: Cells, codes: Codes, rows: Cells) -> None:
    """Turn cells by attribute into codes by event, and into cells by event if there is room.

    Event e becomes row `place[e]`, or where that is empty row e.
    """
    n_attributes, n_events = cells.shape
    has_rows, has_place = len(rows) > 0, len(place) > 0
    block = np.zeros((_BLOCK, n_attributes), np.uint16)
    for first in range(0, n_events, _BLOCK):
        last = min(first + _BLOCK, n_events)
        for a in range(n_attributes):
            n_cells, is_exact = coding.n_cells[a], coding.is_exact[a]
            if has_rows:
                for event in range(first, last):
                    rows[place[event] if has_place else event, a] = cells[a, event]
            for event in range(first, last):
                code = np.int64(cells[a, event])
                if not is_exact and code >= 2:
                    code = 2 + (code - 2) * 65533 // (n_cells - 2)
                block[event - first, a] = code
        for event in range(first, last):
            row = place[event] if has_place else event
            for a in range(n_attributes):
                codes[row, a] = block[event - first, a]


@kernel
def fill_rows(start: Integers, event: Cells, cell: Cells, row_of: Cells, rows: Cells) -> None:
    """Write the cells of some events by row; `row_of[e]` is the row of event e, or -1.

    The values that are present are given by attribute; the rows are of zeros.
    """
    for a in range(len(start) - 1):
        for i in range(start[a], start[a + 1]):
            row = row_of[event[i]]
            if row >= 0:
                rows[row, a] = cell[i]


@kernel
def to_bands(n_cells: Integers, cells: Cells, bands: NDArray[np.uint8]) -> None:
    """Turn cells into bands."""
    n_attributes, n_events = cells.shape
    for a in range(n_attributes):
        n = np.int64(n_cells[a])
        for event in range(n_events):
            cell = np.int64(cells[a, event])
            band = cell
            if n > N_BANDS and cell >= 2:
                band = 2 + (cell - 2) * (N_BANDS - 2) // (n - 2)
            bands[a, event] = band


@kernel
def sort_events(
    coding: Coding,
    keys: Keys,
    f: int,
    cells: Cells,
    order: Cells,
    place: Cells,
    prefix_of: Integers,
) -> None:
    """Order events by their prefix in a family, those that have none first.

    Event `order[k]` is the k-th, `place` says it the other way round, and `prefix_of[k]` is the
    prefix of the k-th, or -1.
    """
    n_events = cells.shape[1]
    found = np.zeros(n_events, np.int64)
    n_prefixes = np.int64(1)
    for p in range(keys.prefix_start[f], keys.prefix_start[f + 1]):
        a = keys.prefix[p]
        n_prefixes *= coding.n_digits[a]
        for event in range(n_events):
            code = _cell_code(coding, a, np.int64(cells[a, event]))
            digit = np.int64(coding.digit[coding.first[a] + code])
            if digit < 0 or found[event] < 0:
                found[event] = -1
            else:
                found[event] = found[event] * coding.n_digits[a] + digit
    counts = np.zeros(n_prefixes + 2, np.int64)
    for event in range(n_events):
        counts[found[event] + 2] += 1
    for k in range(n_prefixes + 1):
        counts[k + 1] += counts[k]
    for event in range(n_events):
        k = counts[found[event] + 1]
        counts[found[event] + 1] += 1
        order[k] = event
        place[event] = k
        prefix_of[k] = found[event]


@kernel
def spread(
    pair_event: Cells,
    pair_number: Numbers,
    n_pairs: int,
    first_event: int,
    last_event: int,
    base: int,
    offsets: Integers,
    out: Numbers,
) -> None:
    """Put the pairs of some events in their order: those of event e from `offsets[e]` on.

    Each number is written plus a base. `offsets[first_event]` is given; those up to and with
    `last_event` are written. There is room.
    """
    start = offsets[first_event]
    for event in range(first_event + 1, last_event + 1):
        offsets[event] = 0
    for i in range(n_pairs):
        offsets[pair_event[i] + 1] += 1
    for event in range(first_event + 1, last_event + 1):
        offsets[event] += offsets[event - 1]
    for i in range(n_pairs):  # offsets[e] moves up to where e ends
        event = pair_event[i]
        out[offsets[event]] = pair_number[i] + np.uint32(base)
        offsets[event] += 1
    for event in range(last_event, first_event, -1):
        offsets[event] = offsets[event - 1]
    offsets[first_event] = start


@kernel
def to_ids(
    offsets: Integers,
    found: Numbers,
    ids: Cells,
    deaths: Numbers,
    first_id: int,
    alive_below: int,
    last_event: Integers,
    stamp: int,
    has_siblings: bool,
    ends: Integers,
) -> None:
    """Turn conjunctions into ids of the subscriptions that are alive, each once per event.

    Those are alive whose deaths are below a number: deaths count back, and what lives has 0.
    They are written over the conjunctions; `ends[k]` becomes the number of ids up to and with the
    k-th event. `last_event[id]` holds a number of the event that an id was last seen in; numbers
    below `stamp` are of earlier calls. Deaths and last events are those of ids from `first_id` on.
    """
    n = 0
    for event in range(len(offsets) - 1):
        for i in range(offsets[event], offsets[event + 1]):
            dense = ids[found[i]]
            place = np.int64(dense) - first_id
            is_wanted = deaths[place] < alive_below
            if has_siblings:
                is_wanted &= last_event[place] != stamp + event
                last_event[place] = stamp + event
            found[n] = np.uint32(dense)
            n += is_wanted
        ends[event] = n
