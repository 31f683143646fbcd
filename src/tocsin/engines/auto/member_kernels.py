"""Present values → candidates, compiled: a family of many tables, of which an event has few.

Enters: the entries and keys of a family without a prefix (see `arrays`), and the values of a batch
that are present, by attribute. Leaves: pairs of an event and the number of a conjunction, open
where the two conditions of its entry do not say all.

The loops are exchanged: one table after the other, with all events of a block that have its
attribute. What rules out most entries is that an event lacks an attribute; so this is asked first,
of sixteen entries at a time, and what is left is checked some time later, when what that takes has
come from memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    IS_OPEN,
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
"""How many runs of entries are looked at before what is likely among them."""
_SETTLED = 256
"""How many likely entries are then checked at a time."""
_LOW = np.uint64(0xFFFF0000)
"""The bits of an entry's first word that hold the low of its first condition."""


@inlined
def _code(cell: Scalar, n_cells: Scalar, is_exact: Scalar) -> Scalar:
    """Return the code of a cell."""
    if is_exact or cell < 2:
        return cell
    return 2 + (cell - 2) * 65533 // (n_cells - 2)


@kernel
def find_asked(entries: Words, n_attributes: int, asked: Numbers) -> None:
    """Write for each entry the two attributes that an event must have, 16 bits each.

    Where an entry lets one be absent, it is that after the last, which all events have.
    """
    none = np.uint64(min(n_attributes, 0xFFFF))
    for i in range(len(entries)):
        word, rest = entries[i, 0], entries[i, 1]
        a = word & np.uint64(0xFFFF) if word & _LOW else none
        b = word >> np.uint64(48) if np.uint16(rest) > 0 else none
        asked[i] = np.uint32(a | (b << np.uint64(16)))


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
    """Write the codes of the events of a block, and as bits which attributes they have."""
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
            codes[a * size + row] = _code(np.int64(cell[i]), n_cells, is_exact)
            bits[row * n_words + word] |= bit
            i += 1
        end[a] = i


@inlined
def block_words(n_attributes: Scalar) -> Scalar:
    """Return how many words of 32 bits say which attributes an event has."""
    return max((n_attributes >> 5) + 1, SHORT)


@inlined
def _bit_of(attribute: Scalar) -> Scalar:
    """Return the bit that says whether an event has an attribute.

    It is the attribute's number, but for those that 16 bits cannot tell from the bit that all
    events have (see `find_asked`).
    """
    return attribute + (attribute >= 0xFFFF)


@inlined
def _find_member(
    coding: Coding,
    keys: Keys,
    f: Scalar,
    m: Scalar,
    block: Block,
    event: Cells,
    cell: Cells,
    rows: Any,
    found: Clusters,
) -> Scalar:
    """Look the events of a block up in one table; write their clusters, return how many.

    `rows` are the first event and the one after the last; `found.member` are rows of the block.
    """
    bits, codes, begin, end = block
    found_start, found_end, found_row = found
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
                code = _code(np.int64(cell[of]), n_cells, is_exact)
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
        found_row[n] = row
        found_start[n] = i
        found_end[n] = stop
        n += i < stop
    return n


@inlined
def _cut(found: Clusters, n_found: Scalar, k: Scalar, i: Scalar, runs: Any, asked: Numbers) -> Any:
    """Cut clusters into runs of `LANES` entries, from place i of the k-th on, while there is room.

    Returns how many runs there are, and where to go on. What they need is on its way.
    """
    run_start, run_end, run_row = runs
    starts, ends, rows = found
    n = np.int64(0)
    while k < n_found and n < len(run_start):
        i = max(i, starts[k])
        last, row = ends[k], rows[k]
        while i < last and n < len(run_start):
            run_start[n], run_end[n], run_row[n] = i, last, row
            prefetch_row(asked, i)
            n += 1
            i += LANES
        if i >= last:
            k += 1
            i = np.int64(0)
    return n, k, i


@inlined
def _sift(
    asked: Numbers,
    entries: Words,
    block: Block,
    runs: Any,
    n_runs: Scalar,
    masks: Words,
    likely: Any,
    n: Scalar,
) -> Scalar:
    """Find the entries of runs that ask for no attribute that their events lack.

    `likely` are entries and rows, n of them there already; returns how many there are then. What
    their checks will need is on its way.
    """
    run_start, run_end, run_row = runs
    bits, codes, _, end = block
    entry, name = likely
    size, n_words = np.int64(len(codes) // max(len(end), 1)), block_words(len(end))
    n_hit, is_short = np.int64(0), n_words == SHORT
    for r in range(n_runs):  # no branch depends on what is found
        i, row = run_start[r], run_row[r]
        mask = np.uint64(0)
        if is_short:
            mask = find_pairs_in_short(asked, i, run_end[r] - i, bits, row * n_words)
        else:
            mask = find_pairs(asked, i, run_end[r] - i, bits, row * n_words)
        masks[n_hit] = mask
        run_start[n_hit], run_row[n_hit] = i, row
        n_hit += mask != np.uint64(0)
    for r in range(n_hit):
        mask, row = masks[r], run_row[r]
        while mask:
            at = run_start[r] + lowest_bit(mask)
            mask &= mask - np.uint64(1)
            entry[n], name[n] = at, row
            n += 1
            pair = np.int64(asked[at])
            prefetch_row(entries, at)
            prefetch_row(codes, (pair & 0xFFFF) * size + row)
            prefetch_row(codes, (pair >> 16) * size + row)
    return n


@inlined
def _settle(
    entries: Words,
    block: Block,
    likely: Any,
    n_likely: Scalar,
    first: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Check what is likely; return where the next pair goes, or -1 when there is no room."""
    entry, name = likely
    bits, codes, _, end = block
    pair_event, pair_number = pairs
    size, n_words = len(codes) // max(len(end), 1), block_words(len(end))
    if n + n_likely > len(pair_event):
        return np.int64(-1)
    for at in range(n_likely):
        word, rest, event = entries[entry[at], 0], entries[entry[at], 1], name[at]
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
        pair_number[n] = (number & NUMBER) | (IS_OPEN if number > NUMBER else np.uint32(0))
        is_inside = distance <= np.uint16(word >> np.uint64(32))
        n += is_inside & (distance2 <= np.uint16(rest >> np.uint64(16)))
    return n


@inlined
def _make_block(size: Scalar, start: Integers) -> Any:
    """Return room for the events of a block."""
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
    asked: Numbers,
    f: int,
    start: Integers,
    event: Cells,
    cell: Cells,
    n_events: int,
    size: int,
    pair_event: Cells,
    pair_number: Numbers,
) -> Any:
    """Write pairs for a family without a prefix, member by member; return how many, or -1.

    `asked` is of `find_asked`, with `LANES` places to spare; `start`, `event` and `cell` are the
    values that are present, by attribute. Numbers may be open. Events are taken `size` at a time,
    so that what is asked of them first, which attributes they have, stays in the cache while all
    members pass.
    """
    pairs = (pair_event, pair_number)
    found = Clusters(np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64))
    block = _make_block(size, start)
    runs = (np.empty(_RUNS, np.int64), np.empty(_RUNS, np.int64), np.empty(_RUNS, np.int64))
    masks = np.empty(_RUNS, np.uint64)
    room = _SETTLED + _RUNS * LANES
    likely = (np.empty(room, np.int64), np.empty(room, np.int64))
    n = np.int64(0)
    for first in range(0, n_events, size):
        rows = (first, min(first + size, n_events))
        _fill_block(coding, block, start, event, cell, rows[0], rows[1])
        n_likely = np.int64(0)
        last_member = keys.member_start[f + 1] - 1
        for m in range(keys.member_start[f], last_member + 1):
            n_found = _find_member(coding, keys, f, m, block, event, cell, rows, found)
            k, i = np.int64(0), np.int64(0)
            while k < n_found or (m == last_member and n_likely > 0):
                n_runs, k, i = _cut(found, n_found, k, i, runs, asked)
                n_likely = _sift(asked, entries, block, runs, n_runs, masks, likely, n_likely)
                if n_likely >= _SETTLED or (m == last_member and k == n_found):
                    n = _settle(entries, block, likely, n_likely, first, pairs, n)
                    n_likely = np.int64(0)
                if n < 0:
                    return -1
    return n
