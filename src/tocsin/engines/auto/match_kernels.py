"""Cells → matches, compiled: the conjunctions of a segment that events satisfy, one by one.

Enters: the flat arrays of a segment (see `arrays`), and events as codes and cells. Leaves: for each
event the numbers of the conjunctions that it satisfies, LIKE patterns apart. `match` goes event by
event through the keys, entries and columns. The other ways are those of `group_kernels`,
`member_kernels` and `bitmap_kernels`, which write pairs of an event and a number: `match_rows` adds
those of the events that the first leaves, `settle_pairs` checks what it leaves open, and
`close_pairs` what the others do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    IS_OPEN,
    MANY,
    NUMBER,
    OPEN_AT_ENDS,
    OPEN_AT_ENDS2,
    Cells,
    Clusters,
    Codes,
    Coding,
    Columns,
    Flags,
    Integers,
    Keys,
    Numbers,
    Scalar,
    Stream,
    Words,
)
from tocsin.jit import LANES, emit_block, inlined, inner, kernel, prefetch_row

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
def _scan_entries(
    entries: Words,
    clusters: Clusters,
    n_clusters: Scalar,
    found: Codes,
    place: Scalar,
    event: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Meet the entries of some clusters with one event, given its codes.

    Returns where the next pair goes, or -1 when there is no room.
    """
    pair_event, pair_number = pairs
    for k in range(n_clusters):
        for i in range(clusters.start[k], clusters.end[k]):
            word, rest = entries[i, 0], entries[i, 1]
            code, code2 = found[word & np.uint64(0xFFFF)], found[word >> np.uint64(48)]
            is_inside, number, is_open = _check(word, rest, code, code2)
            if not is_inside:
                continue
            if n == len(pair_event):
                return np.int64(-1)
            pair_event[n] = place if is_open else event
            pair_number[n] = number
            n += 1
    return n


@kernel
def match_rows(
    coding: Coding,
    keys: Keys,
    entries: Words,
    f: int,
    codes: Codes,
    order: Cells,
    prefix_of: Integers,
    is_met: Flags,
    at: int,
    enough: int,
    pair_event: Cells,
    pair_number: Numbers,
    n: int,
) -> Any:
    """Write pairs of one family and of events that have not been met, in the order of its prefix.

    See `pairs` and `group_kernels`.
    """
    pairs = (pair_event, pair_number)
    clusters = _make_clusters(keys.member_start[f + 1] - keys.member_start[f] + 1)
    while at < len(order) and n < enough:
        if not is_met[at] and prefix_of[at] >= 0:
            row, n_clusters = codes[at], np.int64(0)
            n_clusters = _find_members(
                coding, keys, entries, np.int64(f), prefix_of[at], row, clusters, n_clusters
            )
            following = _scan_entries(entries, clusters, n_clusters, row, at, order[at], pairs, n)
            if following < 0:
                break
            n = following
        at += 1
    return n, at


@kernel
def settle_pairs(
    stream: Stream,
    codes: Codes,
    rows: Cells,
    order: Cells,
    pair_event: Cells,
    pair_number: Numbers,
    settled: int,
    n: int,
) -> Any:
    """Check the open ones of n pairs, which have places in the order; return how many are left.

    The first ones are `settled`. What holds is kept, with the event. What a check reads is asked
    for while others are checked.
    """
    row = np.empty(codes.shape[1], np.int32)
    kept = np.int64(settled)
    for first in range(settled, n, _SETTLED):
        last = min(first + _SETTLED, n)
        for i in range(first if first == settled else last, min(last + _SETTLED, n)):
            if pair_number[i] > NUMBER:
                prefetch_row(stream.start, np.int64(pair_number[i] & NUMBER))
        for i in range(first, last):
            if pair_number[i] > NUMBER:
                prefetch_row(stream.words, np.int64(stream.start[pair_number[i] & NUMBER]))
        for i in range(first, last):
            event, number = pair_event[i], pair_number[i]
            holds = True
            if number > NUMBER:
                number &= NUMBER
                _fill_row(codes, rows, np.int64(event), row)
                holds = _holds(stream.words, np.int64(stream.start[number]), row)
                event = order[event]
            pair_event[kept] = event
            pair_number[kept] = number
            kept += holds
    return kept


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
