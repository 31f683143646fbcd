"""Cells → matches, compiled: the conjunctions of a segment that events satisfy.

Enters: the flat arrays of a segment (see `arrays`), and events as codes and cells. Leaves: for each
event the numbers of the conjunctions that it satisfies, LIKE patterns apart. There are two ways
here, each for its own part of a segment and batch:

- `match`: event by event through the keys, entries and columns;
- `match_groups`: events ordered by the prefix of a family; where enough of them share one, 64 at a
  time against all its entries: a mask per code says which of the 64 have it or a lower one, so an
  entry is decided for all of them by a few loads.

The second writes pairs of an event and a number, as those of `member_kernels` and `bitmap_kernels`
do; `close_pairs` checks what theirs leave open.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import (
    IN_BLOCK,
    IS_OPEN,
    MANY,
    NUMBER,
    OPEN_AT_ENDS,
    OPEN_AT_ENDS2,
    Cells,
    Chains,
    Clusters,
    Codes,
    Coding,
    Columns,
    Flags,
    Integers,
    Keys,
    Numbers,
    Scalar,
    Slots,
    Stream,
    Words,
)
from tocsin.jit import LANES, emit_block, inlined, inner, kernel, lowest_bit, prefetch_row

_BLOCKS_AHEAD = 6
"""So many blocks of a chain are fetched ahead."""
_IN_BOUNDS = 4 * IN_BLOCK
"""How much of the bounds of a chain a block has."""
_SETTLED = 256
"""How many pairs of a batch that is ordered are checked at a time."""
SCAN_FROM = 8
"""From how many entries on a cluster is scanned by itself."""


@inlined
def _wide(words: Codes, n: Scalar) -> Scalar:
    return np.int64(words[n]) | (np.int64(words[n + 1]) << 16)


@inlined
def _holds(words: Codes, n: Scalar, cells: Cells) -> Scalar:
    """Whether an event's cells satisfy the conjunction that begins at a place of the stream."""
    n_left = np.int64(words[n])
    n += 1
    if n_left == MANY:
        n_left = _wide(words, n)
        n += 2
    for _ in range(n_left):
        form, attribute = np.int64(words[n] >> 14), np.int64(words[n] & 0x3FFF)
        n += 1
        if form < 2:
            cell = np.int64(cells[attribute])
            if cell < np.int64(words[n]) or cell >= np.int64(words[n + form]) + (1 - form):
                return False
            n += 1 + form
            continue
        if form == 2:
            cell = np.int64(cells[attribute])
            if cell < _wide(words, n) or cell >= _wide(words, n + 2):
                return False
            n += 4
            continue
        attribute, count = _wide(words, n), _wide(words, n + 2)
        n += 4
        cell = np.int64(cells[attribute])
        is_inside = False
        for r in range(count):
            if cell < _wide(words, n + 4 * r + 2):
                is_inside = cell >= _wide(words, n + 4 * r)
                break
        if not is_inside:
            return False
        n += 4 * count
    return True


@inlined
def _fill_row(codes: Codes, rows: Cells, event: Scalar, row: Cells) -> None:
    """Write the cells of an event; `rows` is empty where codes are cells."""
    for a in range(len(row)):
        row[a] = rows[event, a] if len(rows) > 0 else codes[event, a]


@inlined
def _prefix_key(coding: Coding, keys: Keys, f: Scalar, row: Codes) -> Scalar:
    """Return the number of a family's prefix that an event has, or -1."""
    key = np.int64(0)
    for p in range(keys.prefix_start[f], keys.prefix_start[f + 1]):
        attribute = keys.prefix[p]
        digit = np.int64(coding.digit[coding.first[attribute] + np.int64(row[attribute])])
        if digit < 0:
            return np.int64(-1)
        key = key * coding.n_digits[attribute] + digit
    return key


@inlined
def _find_members(
    coding: Coding,
    keys: Keys,
    entries: Words,
    f: Scalar,
    prefix: Scalar,
    row: Codes,
    clusters: Clusters,
    n: Scalar,
) -> Scalar:
    """Look an event up in the tables of a family; add the clusters found, return their number."""
    key = keys.base[f] + prefix * keys.stride[f]
    for m in range(keys.member_start[f], keys.member_start[f + 1]):
        attribute = keys.member_attribute[m]
        digit = np.int64(0)
        if attribute >= 0:
            digit = np.int64(coding.digit[keys.member_digit[m] + np.int64(row[attribute])])
            if digit < 0:
                continue
        place = key + keys.member_offset[m] + digit
        first = np.int64(keys.start[place])
        last = np.int64(keys.start[place + 1])
        clusters.start[n] = first
        clusters.end[n] = last
        clusters.member[n] = m
        n += first < last
        prefetch_row(entries, first)
    return n


@inlined
def _find_clusters(
    coding: Coding, keys: Keys, entries: Words, is_skipped: Flags, row: Codes, clusters: Clusters
) -> Scalar:
    """Look an event up in all families but some; return how many clusters it finds."""
    n = np.int64(0)
    for f in range(len(keys.base)):
        if not is_skipped[f]:
            prefix = _prefix_key(coding, keys, f, row)
            if prefix >= 0:
                n = _find_members(coding, keys, entries, f, prefix, row, clusters, n)
    return n


@inlined
def _check(word: Scalar, rest: Scalar, code: Scalar, code2: Scalar) -> Any:
    """Whether an entry's words hold for the codes of its attributes.

    And its number, marked when it is still open.
    """
    width, width2 = np.uint16(word >> np.uint64(32)), np.uint16(rest >> np.uint64(16))
    distance = np.uint16(code - np.uint16(word >> np.uint64(16)))
    distance2 = np.uint16(code2 - np.uint16(rest))
    number = np.uint32(rest >> np.uint64(32))
    at_end = ((distance == 0) | (distance == width)) & ((number & OPEN_AT_ENDS) != 0)
    at_end2 = ((distance2 == 0) | (distance2 == width2)) & ((number & OPEN_AT_ENDS2) != 0)
    is_open = (number >= IS_OPEN) | at_end | at_end2
    is_inside = (distance <= width) & (distance2 <= width2)
    return is_inside, (number & NUMBER) | (np.uint32(is_open) << np.uint32(31)), is_open


@inlined
def _scan_large(
    entries: Words, clusters: Clusters, n_clusters: Scalar, row: Codes, out: Any, n: Scalar
) -> Any:
    """Scan the large clusters; move the small ones up.

    Returns the number of small ones, where the next match goes, and how many are still open.
    """
    n_small, n_open = np.int64(0), np.int64(0)
    for k in range(n_clusters):
        first, last = clusters.start[k], clusters.end[k]
        clusters.start[n_small] = first
        clusters.end[n_small] = last
        if last - first < SCAN_FROM:
            n_small += 1
            continue
        for i in range(first, last):
            word, rest = entries[i, 0], entries[i, 1]
            code, code2 = row[word & np.uint64(0xFFFF)], row[word >> np.uint64(48)]
            is_inside, number, is_open = _check(word, rest, code, code2)
            out[n] = number
            n += is_inside
            n_open += is_inside & is_open
    return n_small, n, n_open


@inlined
def _scan_small(
    entries: Words, clusters: Clusters, n_clusters: Scalar, row: Codes, out: Any, n: Scalar
) -> Any:
    """Scan small clusters in rounds, an entry of each: no branch depends on their sizes.

    Returns where the next match goes, and how many are still open.
    """
    n_open = np.int64(0)
    while n_clusters > 0:
        n_left = np.int64(0)
        for k in range(n_clusters):
            i, last = clusters.start[k], clusters.end[k]
            word, rest = entries[i, 0], entries[i, 1]
            code, code2 = row[word & np.uint64(0xFFFF)], row[word >> np.uint64(48)]
            is_inside, number, is_open = _check(word, rest, code, code2)
            out[n] = number
            n += is_inside
            n_open += is_inside & is_open
            clusters.start[n_left] = i + 1
            clusters.end[n_left] = last
            n_left += i + 1 < last
        n_clusters = n_left
    return n, n_open


@inner
def _close(
    stream: Stream, cells: Cells, out: Numbers, first: Scalar, last: Scalar, base: Scalar
) -> Scalar:
    """Check the open ones among the conjunctions found for an event; keep those that hold."""
    n = first
    for i in range(first, last):
        number = out[i]
        holds = True
        if number >= IS_OPEN:
            number &= ~IS_OPEN
            holds = _holds(stream.words, np.int64(stream.start[number - base]), cells)
        out[n] = number
        n += holds
    return n


@inlined
def _window(columns: Columns, first: Scalar, last: Scalar, cell: Scalar) -> Any:
    """Return the run of a cluster's columns that may hold for a cell of its window attribute."""
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
def _find_windows(
    coding: Coding,
    keys: Keys,
    columns: Columns,
    entries: Words,
    codes: Codes,
    cells: Cells,
    clusters: Clusters,
) -> Any:
    """Look an event up in the tables with columns; return how many windows, and their length."""
    n, length = np.int64(0), np.int64(0)
    for f in range(len(keys.base)):
        prefix = _prefix_key(coding, keys, f, codes)
        if prefix < 0:
            continue
        found = _find_members(coding, keys, entries, f, prefix, codes, clusters, n)
        for k in range(n, found):
            cell = np.uint32(cells[columns.window[clusters.member[k]]])
            first, last = _window(columns, clusters.start[k], clusters.end[k], cell)
            clusters.start[k] = first
            clusters.end[k] = last
            length += last - first
        n = found
    return n, length


@inlined
def _scan_windows(
    columns: Columns, clusters: Clusters, n_windows: Scalar, row: Cells, base: Any, out: Any, n: Any
) -> Scalar:
    """Write what holds in the windows; return where the next match goes.

    There must be room for `LANES` more: a block may write something behind what it finds.
    """
    for k in range(n_windows):
        m = clusters.member[k]
        cell = np.uint32(row[columns.window[m]])
        other = np.uint32(0)
        if columns.other[m] >= 0:
            other = np.uint32(row[columns.other[m]])
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


@inlined
def _make_clusters(n: Scalar) -> Any:
    """Return room for n clusters."""
    return Clusters(np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64))


@kernel
def match(
    coding: Coding,
    stream: Stream,
    keys: Keys,
    entries: Words,
    is_skipped: Flags,
    column_keys: Keys,
    columns: Columns,
    codes: Codes,
    rows: Cells,
    first_event: int,
    base: int,
    out: Numbers,
    offsets: Integers,
) -> Any:
    """Write what events satisfy, each number plus a base; return how many events were done.

    `is_skipped` are families that are looked after elsewhere. Events are taken from `first_event`
    on; `offsets[first_event]` says where to write. An event is either done whole or not at all.
    `rows` is empty where codes are cells and there are no columns.
    """
    room = len(keys.member_attribute) + len(column_keys.member_attribute) + 1
    clusters = _make_clusters(room)
    windows = _make_clusters(room)
    row = np.empty(codes.shape[1], np.int32)
    start = np.uint32(base)
    n = offsets[first_event]
    has_columns = len(column_keys.base) > 0
    for event in range(first_event, len(codes)):
        found = codes[event]
        n_windows, length = np.int64(0), np.int64(LANES)
        n_clusters = _find_clusters(coding, keys, entries, is_skipped, found, clusters)
        if has_columns:
            _fill_row(codes, rows, event, row)
            n_windows, more = _find_windows(
                coding, column_keys, columns, entries, found, row, windows
            )
            length += more
        for k in range(n_clusters):
            length += clusters.end[k] - clusters.start[k]
        if n + length > len(out):
            return event
        n_small, n, n_open = _scan_large(entries, clusters, n_clusters, found, out, n)
        n, more_open = _scan_small(entries, clusters, n_small, found, out, n)
        if start:
            for i in range(offsets[event], n):
                out[i] += start
        if n_open + more_open:
            if not has_columns:
                _fill_row(codes, rows, event, row)
            n = _close(stream, row, out, offsets[event], n, start)
        n = _scan_windows(columns, windows, n_windows, row, start, out, n)
        offsets[event + 1] = n
    return len(codes)


@inlined
def _mark(codes: Codes, first: Scalar, last: Scalar, starts: Numbers, equal: Words) -> None:
    """Write for each code of each attribute which of up to 64 events have it.

    The codes of attribute a start at `starts[a]`, with one place more than there are codes.
    """
    for event in range(first, last):
        bit = np.uint64(1) << np.uint64(event - first)
        for a in range(len(starts) - 1):
            equal[starts[a] + np.uint32(codes[event, a])] |= bit


@inlined
def _unmark(codes: Codes, first: Scalar, last: Scalar, starts: Numbers, equal: Words) -> None:
    """Take back what `_mark` wrote."""
    for event in range(first, last):
        for a in range(len(starts) - 1):
            equal[starts[a] + np.uint32(codes[event, a])] = np.uint64(0)


@inlined
def _sum_up(starts: Numbers, equal: Words, below: Words) -> None:
    """Write for each code which events have a lower one, given which have it, and unmark these."""
    for a in range(len(starts) - 1):
        lower = np.uint64(0)
        for i in range(np.uint64(starts[a]), np.uint64(starts[a + 1])):
            below[i] = lower
            lower |= equal[i]
            equal[i] = np.uint64(0)


@inlined
def _scan_masks(
    stream: Stream,
    entries: Words,
    slots: Slots,
    places: Any,
    below: Words,
    at: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Meet the entries of a prefix with up to 64 events, from the one at `at` on.

    Returns where the next pair goes, or -1 when there is no room; see `_settle`.
    """
    first, last = places
    pair_event, pair_number = pairs
    starts = slots.first
    one = np.uint32(1)
    for i in range(np.uint64(first), np.uint64(last)):
        slot = slots.of_entry[i]
        mask = below[slots.high[slot]] ^ below[slots.low[slot]]
        word = entries[i, 0]
        low = starts[word & np.uint64(0xFFFF)] + np.uint32(np.uint16(word >> np.uint64(16)))
        width = np.uint32(np.uint16(word >> np.uint64(32)))
        mask &= below[low + width + one] ^ below[low]
        if mask == 0:
            continue
        rest = entries[i, 1]
        low = starts[word >> np.uint64(48)] + np.uint32(np.uint16(rest))
        width = np.uint32(np.uint16(rest >> np.uint64(16)))
        mask &= below[low + width + one] ^ below[low]
        number = np.uint32(rest >> np.uint64(32))
        if mask != 0 and number > NUMBER:
            prefetch_row(stream.start, np.int64(number & NUMBER))
        while mask:
            event = at + lowest_bit(mask)
            mask &= mask - np.uint64(1)
            if n == len(pair_event):
                return np.int64(-1)
            pair_event[n] = event
            pair_number[n] = number
            n += 1
    return n


@inlined
def _scan_entries(
    stream: Stream,
    entries: Words,
    clusters: Clusters,
    n_clusters: Scalar,
    codes: Codes,
    event: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Meet the entries of some clusters with one event.

    Returns where the next pair goes, or -1 when there is no room; see `_settle`.
    """
    pair_event, pair_number = pairs
    found = codes[event]
    for k in range(n_clusters):
        for i in range(clusters.start[k], clusters.end[k]):
            word, rest = entries[i, 0], entries[i, 1]
            code, code2 = found[word & np.uint64(0xFFFF)], found[word >> np.uint64(48)]
            is_inside, number, is_open = _check(word, rest, code, code2)
            if not is_inside:
                continue
            if is_open:
                prefetch_row(stream.start, np.int64(number & NUMBER))
            if n == len(pair_event):
                return np.int64(-1)
            pair_event[n] = event
            pair_number[n] = number
            n += 1
    return n


@inner
def _settle(
    stream: Stream,
    codes: Codes,
    rows: Cells,
    row: Cells,
    order: Cells,
    pairs: Any,
    first: Scalar,
    n: Scalar,
) -> Scalar:
    """Check the open ones among pairs of a row and a number, from the first to the n-th.

    What holds is kept, with the event in place of its row; returns where the next pair goes. What a
    check reads is asked for while others are checked.
    """
    pair_event, pair_number = pairs
    for i in range(first, n):
        if pair_number[i] > NUMBER:
            prefetch_row(stream.words, np.int64(stream.start[pair_number[i] & NUMBER]))
    kept = first
    for i in range(first, n):
        event, number = np.int64(pair_event[i]), pair_number[i]
        holds = True
        if number > NUMBER:
            number &= NUMBER
            _fill_row(codes, rows, event, row)
            holds = _holds(stream.words, np.int64(stream.start[number]), row)
        pair_event[kept] = order[event]
        pair_number[kept] = number
        kept += holds
    return kept


@inlined
def _end_of_run(numbers: Integers, start: Scalar) -> Scalar:
    """Return where the run of one number ends."""
    end = start + 1
    while end < len(numbers) and numbers[end] == numbers[start]:
        end += 1
    return end


@inlined
def _cost_of_masks(
    n_events: Scalar, n_entries: Scalar, n_codes: Scalar, n_attributes: Scalar, costs: Any
) -> Scalar:
    """Return what it costs to meet a group of events with entries by masks."""
    per_block = n_entries * costs[1] + n_codes * costs[2]
    return ((n_events + 63) // 64) * per_block + n_events * n_attributes * costs[3]


@kernel
def match_groups(
    coding: Coding,
    stream: Stream,
    keys: Keys,
    entries: Words,
    slots: Slots,
    f: int,
    costs: NDArray[np.float64],
    codes: Codes,
    rows: Cells,
    order: Cells,
    prefix_of: Integers,
    pair_event: Cells,
    pair_number: Numbers,
) -> Any:
    """Write pairs for a family whose prefix orders the events; return how many, -1 if too many.

    The k-th row of `codes` and `rows` is that of event `order[k]`, and `prefix_of[k]` its prefix.
    `costs`: of a probe, of an entry against a mask, of a code in a mask, of an attribute of an
    event there, and of an entry against an event. `slots` is empty where the codes are too many.
    """
    pairs = (pair_event, pair_number)
    n_members = keys.member_start[f + 1] - keys.member_start[f]
    probes, per_entry = n_members * costs[0], n_members / max(keys.stride[f], 1) * costs[4]
    clusters = _make_clusters(n_members + 1)
    n_codes = np.int64(0)
    if len(slots.of_entry):
        n_codes = np.int64(slots.first[len(slots.first) - 1])
    equal, below = np.zeros(n_codes + 1, np.uint64), np.zeros(n_codes + 1, np.uint64)
    row = np.empty(codes.shape[1], np.int32)
    n, settled, at = np.int64(0), np.int64(0), np.int64(0)
    while at < len(order):
        if n - settled >= _SETTLED:
            n = settled = _settle(stream, codes, rows, row, order, pairs, settled, n)
        prefix, end = prefix_of[at], _end_of_run(prefix_of, at)
        key = keys.base[f] + prefix * keys.stride[f]
        first, last = np.int64(0), np.int64(0)
        if prefix >= 0:
            first, last = np.int64(keys.start[key]), np.int64(keys.start[key + keys.stride[f]])
        masked = _cost_of_masks(end - at, last - first, n_codes, codes.shape[1], costs)
        if first == last:
            at = end
        elif n_codes > 0 and masked < (end - at) * (probes + (last - first) * per_entry):
            while at < end and n >= 0:
                stop = min(at + 64, end)
                _mark(codes, at, stop, slots.first, equal)
                _sum_up(slots.first, equal, below)
                n = _scan_masks(stream, entries, slots, (first, last), below, at, pairs, n)
                at = stop
        while at < end and n >= 0:
            n_clusters = _find_members(
                coding, keys, entries, np.int64(f), prefix, codes[at], clusters, np.int64(0)
            )
            n = _scan_entries(stream, entries, clusters, n_clusters, codes, at, pairs, n)
            at += 1
        if n < 0:
            return -1
    return _settle(stream, codes, rows, row, order, pairs, settled, n)


@inlined
def _fetch_chain(chains: Chains, chain: Scalar) -> None:
    """Ask for the first blocks of a chain."""
    _, following, bounds, _ = chains
    block = np.int64(chains.head[chain])
    for _ in range(_BLOCKS_AHEAD):
        if block < 0:
            return
        prefetch_row(bounds, _IN_BOUNDS * block)
        block = np.int64(following[block])


@inlined
def _block_ahead(chains: Chains, chain: Scalar) -> Scalar:
    """Return the first block of a chain that `_fetch_chain` does not ask for, or -1."""
    block = np.int64(chains.head[chain])
    for _ in range(_BLOCKS_AHEAD):
        if block >= 0:
            block = np.int64(chains.following[block])
    return block


@inlined
def _add_pairs(
    stream: Stream, number: Scalar, mask: Scalar, at: Scalar, pairs: Any, n: Scalar
) -> Scalar:
    """Add a pair for each event of a mask, of those from `at` on.

    Returns where the next pair goes, or -1 when there is no room; see `_settle`.
    """
    pair_event, pair_number = pairs
    prefetch_row(stream.start, np.int64(number & NUMBER))
    while mask:
        if n == len(pair_event):
            return np.int64(-1)
        pair_event[n] = at + lowest_bit(mask)
        pair_number[n] = number
        mask &= mask - np.uint64(1)
        n += 1
    return n


@inlined
def _scan_points(
    stream: Stream,
    chains: Chains,
    chain: Scalar,
    limit: Scalar,
    equal: Words,
    at: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Meet a chain of points with up to 64 events, from the one at `at` on; see `_add_pairs`."""
    head, following, bounds, numbers = chains
    block, ahead = np.int64(head[chain]), _block_ahead(chains, chain)
    while block >= 0 and n >= 0:
        if ahead >= 0:
            prefetch_row(bounds, _IN_BOUNDS * ahead)
            ahead = np.int64(following[ahead])
        first = np.uint64(_IN_BOUNDS * block)
        for i in range(np.uint64(IN_BLOCK)):
            place = first + i + i
            mask = equal[bounds[place]] & equal[bounds[place + np.uint64(1)]]
            if mask != 0:
                number = numbers[np.uint64(IN_BLOCK * block) + i]
                if number & NUMBER < limit and n >= 0:
                    n = _add_pairs(stream, number, mask, at, pairs, n)
        block = np.int64(following[block])
    return n


@inlined
def _scan_ranges(
    stream: Stream,
    chains: Chains,
    chain: Scalar,
    limit: Scalar,
    below: Words,
    at: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Meet a chain of ranges with up to 64 events, from the one at `at` on; see `_add_pairs`."""
    head, following, bounds, numbers = chains
    block, ahead = np.int64(head[chain]), _block_ahead(chains, chain)
    while block >= 0 and n >= 0:
        if ahead >= 0:
            prefetch_row(bounds, _IN_BOUNDS * ahead)
            prefetch_row(bounds, _IN_BOUNDS * ahead + _IN_BOUNDS // 2)
            ahead = np.int64(following[ahead])
        for i in range(np.uint64(block * IN_BLOCK), np.uint64((block + 1) * IN_BLOCK)):
            first = np.uint64(4) * i
            mask = below[bounds[first + np.uint64(1)]] ^ below[bounds[first]]
            mask &= below[bounds[first + np.uint64(3)]] ^ below[bounds[first + np.uint64(2)]]
            if mask != 0 and numbers[i] & NUMBER < limit and n >= 0:
                n = _add_pairs(stream, numbers[i], mask, at, pairs, n)
        block = np.int64(following[block])
    return n


@kernel
def match_chains(
    stream: Stream,
    chains: Chains,
    limit: int,
    code_start: Numbers,
    codes: Codes,
    rows: Cells,
    order: Cells,
    prefix_of: Integers,
    pair_event: Cells,
    pair_number: Numbers,
) -> Any:
    """Write pairs for what is recent, numbers below a limit; return how many, -1 if too many.

    Events are ordered by prefix as for `match_groups`; the codes of attribute a start at
    `code_start[a]`. Most of what is asked is one value: then it need only be known which events
    have a code, and not which have a lower one.
    """
    pairs = (pair_event, pair_number)
    n_codes = np.int64(code_start[len(code_start) - 1])
    equal, below = np.zeros(n_codes + 1, np.uint64), np.zeros(n_codes + 1, np.uint64)
    row = np.empty(codes.shape[1], np.int32)
    n, settled, at = np.int64(0), np.int64(0), np.int64(0)
    while at < len(order):
        if n - settled >= _SETTLED:
            n = settled = _settle(stream, codes, rows, row, order, pairs, settled, n)
        prefix, end = prefix_of[at], _end_of_run(prefix_of, at)
        if end < len(order) and prefix_of[end] >= 0:
            _fetch_chain(chains, 2 * prefix_of[end])
            _fetch_chain(chains, 2 * prefix_of[end] + 1)
        if prefix < 0 or max(chains.head[2 * prefix], chains.head[2 * prefix + 1]) < 0:
            at = end
        while at < end:
            stop = min(at + 64, end)
            _mark(codes, at, stop, code_start, equal)
            n = _scan_points(stream, chains, 2 * prefix, limit, equal, at, pairs, n)
            if chains.head[2 * prefix + 1] < 0:
                _unmark(codes, at, stop, code_start, equal)
            elif n >= 0:
                _sum_up(code_start, equal, below)
                n = _scan_ranges(stream, chains, 2 * prefix + 1, limit, below, at, pairs, n)
            if n < 0:
                return -1
            at = stop
    return _settle(stream, codes, rows, row, order, pairs, settled, n)


@kernel
def close_pairs(
    stream: Stream, rows: Cells, pair_event: Cells, pair_number: Numbers, n: int
) -> Any:
    """Check the open ones among n pairs; keep those that hold, return how many.

    `rows` are cells by event.
    """
    n_kept = np.int64(0)
    for i in range(n):
        event, number = pair_event[i], pair_number[i]
        holds = True
        if number >= IS_OPEN:
            number &= NUMBER
            holds = _holds(stream.words, np.int64(stream.start[number]), rows[event])
        pair_event[n_kept] = event
        pair_number[n_kept] = number
        n_kept += holds
    return n_kept
