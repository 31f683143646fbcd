"""Members, compiled: a family of many tables, of which an event has few attributes.

See `members`. The loops are exchanged: one table after the other, with all events of a block that
have its attribute. Most entries are ruled out because an event lacks an attribute, so that is
compared first, for sixteen entries at a time; the entries that are left are checked in groups, when
the cache lines for them have been prefetched.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    NEEDS_CHECK,
    NUMBER,
    Block,
    Cells,
    Clusters,
    Coding,
    Integers,
    Keys,
    Numbers,
    Scalar,
    Words,
)
from tocsin.engines.auto.code_kernels import code_of
from tocsin.jit import (
    LANES,
    SHORT,
    find_pairs,
    find_pairs_in_short,
    inlined,
    kernel,
    lowest_bit,
    prefetch_row,
)

_RUNS = 256
"""How many runs of entries are filtered at a time."""

_CANDIDATES = 256
"""From how many candidates on they are checked."""

_LOW = np.uint64(0xFFFF0000)
"""The bits of the first word of an entry that hold the low of its first condition."""


@kernel
def find_required(entries: Words, n_attributes: int, required: Numbers) -> None:
    """Write the two attributes that each entry requires an event to have, 16 bits each.

    Where an entry admits absence, that is the number after the last attribute, which all events
    have.
    """
    none = np.uint64(min(n_attributes, 0xFFFF))
    for i in range(len(entries)):
        word, rest = entries[i, 0], entries[i, 1]
        a = word & np.uint64(0xFFFF) if word & _LOW else none
        b = word >> np.uint64(48) if np.uint16(rest) > 0 else none
        required[i] = np.uint32(a | (b << np.uint64(16)))


@inlined
def _fill_block(
    coding: Coding,
    block: Block,
    start: Integers,
    event: Cells,
    cell: Cells,
    first: Scalar,
    last: Scalar,
) -> None:
    """Write the codes of the events of a block, and a bit mask of the attributes of each."""
    bits, codes, begin, end = block
    n_attributes, n_words = len(end), block_words(len(end))
    size = len(codes) // max(n_attributes, 1)
    none = min(n_attributes, 0xFFFF)
    for i in range(len(bits)):
        bits[i] = 0
    for row in range(last - first):
        bits[row * n_words + (none >> 5)] |= np.uint32(1) << np.uint32(none & 31)
    for a in range(n_attributes):
        at = _bit_of(a)
        word, bit = at >> 5, np.uint32(1) << np.uint32(at & 31)
        i, stop = end[a], start[a + 1]
        begin[a] = i
        n_cells, is_exact = coding.n_cells[a], coding.is_exact[a]
        while i < stop and event[i] < last:
            row = np.int64(event[i]) - first
            codes[a * size + row] = code_of(np.int64(cell[i]), n_cells, is_exact)
            bits[row * n_words + word] |= bit
            i += 1
        end[a] = i


@inlined
def block_words(n_attributes: Scalar) -> Scalar:
    """Return the number of 32-bit words in the bit mask of an event."""
    return max((n_attributes >> 5) + 1, SHORT)


@inlined
def _bit_of(attribute: Scalar) -> Scalar:
    """Return the bit of an attribute in the mask of an event.

    It is the attribute itself, except for attributes that 16 bits cannot tell from the bit that
    all events have (see `find_required`).
    """
    return attribute + (attribute >= 0xFFFF)


@inlined
def _find_clusters(
    coding: Coding,
    keys: Keys,
    f: Scalar,
    m: Scalar,
    block: Block,
    event: Cells,
    cell: Cells,
    rows: Any,
    clusters: Clusters,
) -> Scalar:
    """Find the clusters of the events of a block in one table; return their number.

    `rows` are the first event and the one after the last; `clusters.member` gets the row in the
    block.
    """
    bits, codes, begin, end = block
    cluster_start, cluster_end, cluster_row = clusters
    first, last = rows
    attribute = keys.member_attribute[m]
    key = keys.base[f] + keys.member_offset[m]
    start, digits, place = keys.start, coding.digit, keys.member_digit[m]
    size, n_words = len(codes) // max(len(end), 1), block_words(len(end))
    n_cells: Scalar = np.int64(0)
    shift: Scalar = np.int64(0)
    is_exact: Scalar = True
    is_point: Scalar = True
    is_sparse, n_rows = False, last - first
    if attribute >= 0:
        n_cells, is_exact = coding.n_cells[attribute], coding.is_exact[attribute]
        is_point, shift = coding.is_point[attribute], coding.shift[attribute]
        if digits[place] < 0:  # absent values have no digit
            is_sparse, n_rows = True, end[attribute] - begin[attribute]
    n = np.int64(0)
    for at in range(n_rows):
        row, digit = at, np.int64(0)
        if attribute >= 0:
            if is_sparse:
                of = begin[attribute] + at
                row = np.int64(event[of]) - first
                code = code_of(np.int64(cell[of]), n_cells, is_exact)
            else:
                bit = _bit_of(attribute)
                word = bits[row * n_words + (bit >> 5)]
                code = np.int64(codes[attribute * size + row])
                code *= np.int64((word >> np.uint32(bit & 31)) & np.uint32(1))
            digit = (code - 2) >> shift
            if is_point:
                digit = np.int64(digits[place + code])
            if digit < 0:
                continue
        i, stop = np.int64(start[key + digit]), np.int64(start[key + digit + 1])
        cluster_row[n] = row
        cluster_start[n] = i
        cluster_end[n] = stop
        n += i < stop
    return n


@inlined
def _cut_runs(
    clusters: Clusters, n_clusters: Scalar, k: Scalar, i: Scalar, runs: Any, required: Numbers
) -> Any:
    """Cut clusters into runs of `LANES` entries, from entry i of the k-th on, as many as fit.

    Returns the number of runs, and the k and i to go on from. Their words are prefetched.
    """
    run_start, run_end, run_row = runs
    starts, ends, rows = clusters
    n = np.int64(0)
    while k < n_clusters and n < len(run_start):
        i = max(i, starts[k])
        last, row = ends[k], rows[k]
        while i < last and n < len(run_start):
            run_start[n], run_end[n], run_row[n] = i, last, row
            prefetch_row(required, i)
            n += 1
            i += LANES
        if i >= last:
            k += 1
            i = np.int64(0)
    return n, k, i


@inlined
def _filter_runs(
    required: Numbers,
    entries: Words,
    block: Block,
    runs: Any,
    n_runs: Scalar,
    masks: Words,
    candidates: Any,
    n: Scalar,
) -> Scalar:
    """Add the entries of runs whose required attributes the events have to the n candidates.

    Returns the new number of candidates. What their checks read is prefetched.
    """
    run_start, run_end, run_row = runs
    bits, codes, _, end = block
    entry, row_of = candidates
    size, n_words = np.int64(len(codes) // max(len(end), 1)), block_words(len(end))
    n_hit, is_short = np.int64(0), n_words == SHORT
    for r in range(n_runs):  # without branches on the result
        i, row = run_start[r], run_row[r]
        mask = np.uint64(0)
        if is_short:
            mask = find_pairs_in_short(required, i, run_end[r] - i, bits, row * n_words)
        else:
            mask = find_pairs(required, i, run_end[r] - i, bits, row * n_words)
        masks[n_hit] = mask
        run_start[n_hit], run_row[n_hit] = i, row
        n_hit += mask != np.uint64(0)
    for r in range(n_hit):
        mask, row = masks[r], run_row[r]
        while mask:
            at = run_start[r] + lowest_bit(mask)
            mask &= mask - np.uint64(1)
            entry[n], row_of[n] = at, row
            n += 1
            pair = np.int64(required[at])
            prefetch_row(entries, at)
            prefetch_row(codes, (pair & 0xFFFF) * size + row)
            prefetch_row(codes, (pair >> 16) * size + row)
    return n


@inlined
def _check_candidates(
    entries: Words,
    block: Block,
    candidates: Any,
    n_candidates: Scalar,
    first: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Add the pairs that hold; return the end of the pairs, or -1 where they do not fit."""
    entry, row_of = candidates
    bits, codes, _, end = block
    pair_event, pair_number = pairs
    size, n_words = len(codes) // max(len(end), 1), block_words(len(end))
    if n + n_candidates > len(pair_event):
        return np.int64(-1)
    for at in range(n_candidates):
        word, rest, event = entries[entry[at], 0], entries[entry[at], 1], row_of[at]
        a, b = np.int64(word & np.uint64(0xFFFF)), np.int64(word >> np.uint64(48))
        code, code2 = np.uint16(0), np.uint16(0)
        bit, bit2 = _bit_of(a), _bit_of(b)
        if (bits[event * n_words + (bit >> 5)] >> np.uint32(bit & 31)) & np.uint32(1):
            code = codes[a * size + event]
        if (bits[event * n_words + (bit2 >> 5)] >> np.uint32(bit2 & 31)) & np.uint32(1):
            code2 = codes[b * size + event]
        distance = np.uint16(code - np.uint16(word >> np.uint64(16)))
        distance2 = np.uint16(code2 - np.uint16(rest))
        number = np.uint32(rest >> np.uint64(32))
        pair_event[n] = first + event
        pair_number[n] = (number & NUMBER) | (NEEDS_CHECK if number > NUMBER else np.uint32(0))
        is_inside = distance <= np.uint16(word >> np.uint64(32))
        n += is_inside & (distance2 <= np.uint16(rest >> np.uint64(16)))
    return n


@inlined
def _make_block(size: Scalar, start: Integers) -> Any:
    """Return the arrays for a block of events."""
    n_attributes = len(start) - 1
    return Block(
        np.empty(size * block_words(n_attributes), np.uint32),
        np.zeros(size * max(n_attributes, 1), np.uint16),
        np.empty(n_attributes, np.int64),
        start[:-1].copy(),
    )


@kernel
def match_members(
    coding: Coding,
    keys: Keys,
    entries: Words,
    required: Numbers,
    f: int,
    start: Integers,
    event: Cells,
    cell: Cells,
    n_events: int,
    size: int,
    pair_event: Cells,
    pair_number: Numbers,
) -> Any:
    """Write the pairs of a family without a prefix; return their number, or -1 if they do not fit.

    `required` is of `find_required`, `LANES` elements longer; `start`, `event` and `cell` are the
    present values by attribute. Pairs may need a check. Events are taken `size` at a time, so that
    their bit masks stay in the cache while all members pass.
    """
    pairs = (pair_event, pair_number)
    clusters = Clusters(
        np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    )
    block = _make_block(size, start)
    runs = (np.empty(_RUNS, np.int64), np.empty(_RUNS, np.int64), np.empty(_RUNS, np.int64))
    masks = np.empty(_RUNS, np.uint64)
    most = _CANDIDATES + _RUNS * LANES
    candidates = (np.empty(most, np.int64), np.empty(most, np.int64))
    n = np.int64(0)
    for first in range(0, n_events, size):
        rows = (first, min(first + size, n_events))
        _fill_block(coding, block, start, event, cell, rows[0], rows[1])
        n_candidates = np.int64(0)
        last_member = keys.member_start[f + 1] - 1
        for m in range(keys.member_start[f], last_member + 1):
            n_clusters = _find_clusters(coding, keys, f, m, block, event, cell, rows, clusters)
            k, i = np.int64(0), np.int64(0)
            while k < n_clusters or (m == last_member and n_candidates > 0):
                n_runs, k, i = _cut_runs(clusters, n_clusters, k, i, runs, required)
                n_candidates = _filter_runs(
                    required, entries, block, runs, n_runs, masks, candidates, n_candidates
                )
                if n_candidates >= _CANDIDATES or (m == last_member and k == n_clusters):
                    n = _check_candidates(entries, block, candidates, n_candidates, first, pairs, n)
                    n_candidates = np.int64(0)
                if n < 0:
                    return -1
    return n
