"""Events before matching and matches after it, compiled.

Enters: cells by attribute; or pairs and conjunctions by event. Leaves: codes and cells by event, an
order of events; or ids by event.
"""

from __future__ import annotations

import numpy as np

from tocsin.engines.auto.arrays import (
    Cells,
    Codes,
    Coding,
    Integers,
    Keys,
    Numbers,
)
from tocsin.engines.auto.code_kernels import code_of
from tocsin.jit import kernel

_BLOCK = 64
"""How many events are transposed at a time."""


@kernel
def to_rows(coding: Coding, cells: Cells, place: Cells, codes: Codes, rows: Cells) -> None:
    """Transpose cells by attribute into codes by event, and into `rows`, unless that is empty.

    Event e becomes row `place[e]`, or row e where `place` is empty.
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
                cell = np.int64(cells[a, event])
                block[event - first, a] = code_of(cell, n_cells, is_exact)
        for event in range(first, last):
            row = place[event] if has_place else event
            for a in range(n_attributes):
                codes[row, a] = block[event - first, a]


@kernel
def fill_rows(start: Integers, event: Cells, cell: Cells, row_of: Cells, rows: Cells) -> None:
    """Write the cells of some events by row; `row_of[e]` is the row of event e, or -1.

    The present values come by attribute; the rows are zeros.
    """
    for a in range(len(start) - 1):
        for i in range(start[a], start[a + 1]):
            row = row_of[event[i]]
            if row >= 0:
                rows[row, a] = cell[i]


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
    """Sort events by their prefix in a family; those without one come first.

    `order[k]` is the k-th event, `place` the inverse of `order`, and `prefix_of[k]` the prefix of
    the k-th event, or -1.
    """
    n_events = cells.shape[1]
    prefixes = np.zeros(n_events, np.int64)
    n_prefixes = np.int64(1)
    for p in range(keys.prefix_start[f], keys.prefix_start[f + 1]):
        a = keys.prefix[p]
        n_cells, is_exact = coding.n_cells[a], coding.is_exact[a]
        n_prefixes *= coding.n_digits[a]
        for event in range(n_events):
            code = code_of(np.int64(cells[a, event]), n_cells, is_exact)
            digit = np.int64(coding.digit[coding.first[a] + code])
            if digit < 0 or prefixes[event] < 0:
                prefixes[event] = -1
            else:
                prefixes[event] = prefixes[event] * coding.n_digits[a] + digit
    counts = np.zeros(n_prefixes + 2, np.int64)
    for event in range(n_events):
        counts[prefixes[event] + 2] += 1
    for k in range(n_prefixes + 1):
        counts[k + 1] += counts[k]
    for event in range(n_events):
        k = counts[prefixes[event] + 1]
        counts[prefixes[event] + 1] += 1
        order[k] = event
        place[event] = k
        prefix_of[k] = prefixes[event]


@kernel
def pairs_to_ragged(
    pair_event: Cells,
    pair_number: Numbers,
    n_pairs: int,
    first_event: int,
    last_event: int,
    base: int,
    offsets: Integers,
    out: Numbers,
) -> None:
    """Sort the pairs of some events by event, into `out[offsets[e] : offsets[e + 1]]`.

    A base is added to each number. `offsets[first_event]` is set by the caller, the offsets up to
    `last_event` are written. `out` is large enough.
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
    numbers: Numbers,
    ids: Cells,
    deletion_times: Numbers,
    first_id: int,
    alive_below: int,
    last_event: Integers,
    stamp: int,
    has_siblings: bool,
    ends: Integers,
) -> None:
    """Replace conjunctions by the ids of live subscriptions, each once per event, in place.

    A subscription is live if its deletion time is below `alive_below` (times count back, and are 0
    for live ones). `ends[k]` is the number of ids of the first k + 1 events. `last_event[id]` is
    the last event in which an id was seen; values below `stamp` are of earlier calls. Deletion
    times and last events are by id, from `first_id` on.
    """
    n = 0
    for event in range(len(offsets) - 1):
        for i in range(offsets[event], offsets[event + 1]):
            dense = ids[numbers[i]]
            place = np.int64(dense) - first_id
            is_match = deletion_times[place] < alive_below
            if has_siblings:
                is_match &= last_event[place] != stamp + event
                last_event[place] = stamp + event
            numbers[n] = np.uint32(dense)
            n += is_match
        ends[event] = n


@kernel
def join(
    offsets: Integers,
    a_offsets: Integers,
    a: Numbers,
    b_offsets: Integers,
    b: Numbers,
    out: Numbers,
) -> None:
    """Join two ragged arrays event by event; writes `offsets` and `out`."""
    n = np.int64(0)
    for event in range(len(offsets) - 1):
        for i in range(a_offsets[event], a_offsets[event + 1]):
            out[n] = a[i]
            n += 1
        for i in range(b_offsets[event], b_offsets[event + 1]):
            out[n] = b[i]
            n += 1
        offsets[event + 1] = n
