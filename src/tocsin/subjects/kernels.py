"""Compiled: which boxes a row overlaps, which an updated row crosses, which rows a box overlaps.

Enters: rows of cells (publications), pieces of boxes (subscriptions) and sorted lists of their
bounds, as `positions` and `arrays` describe them. Leaves: pairs of a row and a subscription, with
their kind, in buffers of the caller; when one is full, a kernel returns the row it stopped at.

A cell and a piece are three words: the upper parts of the lower and the upper bound, and their
lower parts in one word, 16 bits each (a piece has its dimension above them). A bound is a cut, so
two ranges overlap where each begins before the other ends.

`cross` is `findNewlyMatchedInterestRegions` of Leung and Jacobsen (figure 9), and also finds the
matches that end; `match` replaces `findAllMatchedInterestRegions` (figure 7): it does not collect
mismatches, but examines candidate boxes, each under one of its dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, inner, kernel, prefetch_row
from tocsin.subjects.arrays import (
    AccessLists,
    BoundLists,
    Boxes,
    PairBuffer,
    RowOrder,
    RowUpdates,
    Subscriptions,
)

ENTER = 1
LEAVE = -1
SIMPLE = 1
"""State of a subscription that is one box."""
NEEDS_CHECK = 2
"""Kind of a candidate pair that needs verification by `relate`."""
_NONE = -1
_MAX_CANDIDATES = 64
"""Number of boxes that are verified together."""
_AHEAD = 4
"""Number of lists by which the search for crossed bounds runs ahead."""
_LOW = 0xFFFF
_WHOLE = 0x10000
"""Set on a bound whose two pieces are the whole box."""

Cells = NDArray[np.uint64]
Number = Any
"""An integer of any width."""


@inlined
def is_before(high: Number, low: Number, other_high: Number, other_low: Number) -> bool:
    """Whether one position is before another."""
    return bool(high < other_high or (high == other_high and low < other_low))


@inlined
def overlaps(piece: Cells, p: Number, rows: Cells, r: Number, d: Number) -> bool:
    """Whether a piece and a cell of a row overlap."""
    ends, of = rows[r, d, 2], piece[p, 2]
    if not is_before(rows[r, d, 0], ends >> np.uint64(16), piece[p, 1], of & np.uint64(_LOW)):
        return False
    return is_before(
        piece[p, 0],
        (of >> np.uint64(16)) & np.uint64(_LOW),
        rows[r, d, 1],
        ends & np.uint64(_LOW),
    )


@inlined
def dimension(pieces: Cells, p: Number) -> Number:
    """Return the dimension of a piece."""
    return np.int64(pieces[p, 2] >> np.uint64(32))


@inlined
def box_overlaps(pieces: Cells, first: Number, last: Number, rows: Cells, r: Number) -> bool:
    """Whether a box overlaps a row: in each of its dimensions with some piece."""
    p = first
    while p < last:
        d = dimension(pieces, p)
        is_overlapping = False
        while p < last and dimension(pieces, p) == d:
            if not is_overlapping and overlaps(pieces, p, rows, r, d):
                is_overlapping = True
            p += 1
        if not is_overlapping:
            return False
    return True


@inlined
def box_changes(
    pieces: Cells, first: Number, last: Number, old: Cells, r: Number, new: Cells, s: Number
) -> tuple[int, Number]:
    """Return whether a box begins (1) or ceases (-1) to overlap an updated row, and by which piece.

    The piece is the first one of the first dimension that changes, so that a box reached by several
    of its bounds is counted for one of them only.
    """
    matched = True
    matches = True
    by = np.int64(_NONE)
    p = first
    while p < last:
        d = dimension(pieces, p)
        before = np.int64(_NONE)
        after = np.int64(_NONE)
        while p < last and dimension(pieces, p) == d:
            if before == _NONE and overlaps(pieces, p, old, r, d):
                before = np.int64(p)
            if after == _NONE and overlaps(pieces, p, new, s, d):
                after = np.int64(p)
            p += 1
        matched = matched and before != _NONE
        matches = matches and after != _NONE
        if not (matched or matches):
            return 0, by
        if by == _NONE and (before == _NONE) != (after == _NONE):
            by = max(before, after)
    if matched == matches:
        return 0, by
    return (ENTER if matches else LEAVE), by


@inner
def satisfies(hits: Number, least: Number, terms: Cells, first: Number, last: Number) -> bool:
    """Whether a bit mask of regions satisfies a filter: enough of them, or one of its terms."""
    if least > 0:
        count = 0
        while hits != np.uint64(0):
            hits &= hits - np.uint64(1)
            count += 1
        return bool(count >= least)
    for t in range(first, last):
        must, must_not = terms[t, 0], terms[t, 1]
        if hits & must == must and hits & must_not == np.uint64(0):
            return True
    return False


@inner
def relate(
    boxes: Boxes,
    subs: Subscriptions,
    sub: Number,
    rows: Cells,
    first: Number,
    last: Number,
    least: Number,
    terms: Cells,
) -> bool:
    """Whether a publication of the rows first … last − 1 and a subscription are in relation M.

    Each region that overlaps one of the other side is hit; the hits must satisfy both filters.
    `least` and `terms` are the publication's filter.
    """
    box_index = np.uint64(0)
    object_rows = np.uint64(0)
    start = np.int64(subs.first[sub])
    for b in range(start, start + np.int64(subs.n_boxes[sub])):
        bit = np.uint64(1) << np.uint64(boxes.region[b])
        for r in range(first, last):
            if box_overlaps(boxes.pieces, boxes.start[b], boxes.start[b + 1], rows, r):
                box_index |= bit
                object_rows |= np.uint64(1) << np.uint64(r - first)
    if object_rows == np.uint64(0):
        return False
    if not satisfies(object_rows, least, terms, 0, len(terms)):
        return False
    begin = np.int64(subs.term_start[sub])
    end = begin + np.int64(subs.n_terms[sub])
    return satisfies(box_index, np.int64(subs.least[sub]), subs.terms, begin, end)


@kernel
def relate_all(
    boxes: Boxes,
    subs: Subscriptions,
    selection: NDArray[np.int32],
    rows: Cells,
    least: Number,
    terms: Cells,
    out: NDArray[np.bool_],
) -> None:
    """Write for each of some subscriptions whether it is in relation M with one publication."""
    for i in range(len(selection)):
        sub = np.int64(selection[i])
        out[i] = relate(boxes, subs, sub, rows, 0, rows.shape[0], least, terms)


@kernel
def relate_rows(
    boxes: Boxes,
    subs: Subscriptions,
    sub: Number,
    rows: Cells,
    selection: NDArray[np.int32],
    none: Cells,
    out: NDArray[np.bool_],
) -> None:
    """Write for each of some rows, each a publication, whether it is in relation M."""
    for i in range(len(selection)):
        r = np.int64(selection[i])
        out[i] = relate(boxes, subs, sub, rows, r, r + 1, np.int64(1), none)


@inlined
def position_in(
    highs: NDArray[np.uint64],
    lows: NDArray[np.uint16],
    first: Number,
    last: Number,
    high: Number,
    low: Number,
) -> Number:
    """Return how many entries of a sorted list precede a position."""
    a, b = first, last
    while a < b:
        middle = (a + b) >> 1
        if is_before(highs[middle], np.uint64(lows[middle]), high, low):
            a = middle + 1
        else:
            b = middle
    return a


@inlined
def write_updated(
    rows: Cells, row: Number, updates: RowUpdates, i: Number, moved: Cells, s: Number
) -> None:
    """Write a row as it is after an update."""
    for d in range(rows.shape[1]):
        for k in range(3):
            moved[s, d, k] = rows[row, d, k]
    for j in range(len(updates.dims)):
        if len(updates.unchanged) == 0 or updates.unchanged[j, i] == 0:
            for k in range(3):
                moved[s, updates.dims[j], k] = updates.cells[j, i, k]


@inlined
def crossing_end(cells: Cells, r: Number, d: Number, side: Number) -> tuple[Number, Number]:
    """Return the end of a cell that crosses bounds: its upper end crosses lower bounds (side 0).

    An upper bound is compared with the position after the lower end.
    """
    if side == 0:
        return cells[r, d, 1], cells[r, d, 2] & np.uint64(_LOW)
    return cells[r, d, 0], ((cells[r, d, 2] >> np.uint64(16)) & np.uint64(_LOW)) + np.uint64(1)


@inlined
def crossed(both: Cells, r: Number, k: Number, lists: BoundLists) -> tuple[Number, Number]:
    """Return the range of positions in a list that an update crosses."""
    first, last = lists.start[k], lists.start[k + 1]
    a_high, a_low = crossing_end(both, r, k >> 1, k & 1)
    b_high, b_low = crossing_end(both, r + 1, k >> 1, k & 1)
    if first == last or (a_high == b_high and a_low == b_low):
        return first, first
    if is_before(b_high, b_low, a_high, a_low):
        a_high, b_high = b_high, a_high
        a_low, b_low = b_low, a_low
    at = position_in(lists.high, lists.low, first, last, a_high, a_low)
    step = 2
    to = at
    while to + step < last and is_before(
        lists.high[to + step], np.uint64(lists.low[to + step]), b_high, b_low
    ):
        to += step
        step *= 2
    return at, position_in(lists.high, lists.low, to, min(last, to + step), b_high, b_low)


@inlined
def run_of(k: Number, lists: BoundLists, both: Cells, r: Number) -> tuple[Number, Number]:
    """Return the bounds of a list that a row crosses, and prefetch them."""
    if k + 1 >= len(lists.start):
        return np.int64(0), np.int64(0)
    at, to = crossed(both, r, k, lists)
    if at == to:
        return np.int64(0), np.int64(0)
    first, last = np.int64(lists.first[at]), np.int64(lists.first[to])
    for e in range(first, last):
        prefetch_row(lists.bounds, e)
    return first, last


@inlined
def begins(both: Cells, r: Number, k: Number) -> bool:
    """Whether a row begins (else ceases) to overlap the pieces whose bounds it crosses."""
    a_high, a_low = crossing_end(both, r, k >> 1, k & 1)
    b_high, b_low = crossing_end(both, r + 1, k >> 1, k & 1)
    return bool(is_before(a_high, a_low, b_high, b_low) == (k & 1 == 0))


@inlined
def may_change(bounds: Cells, e: Number, both: Cells, r: Number, s: Number, k: Number) -> bool:
    """Whether a box may change, by the words stored with a bound that a row crosses.

    Row r of `both`, before or after the update, is the one that may overlap the piece at that
    bound; s is the other. The box must overlap r in the other dimension too; if it does not overlap
    s in an earlier dimension, it is reported there.
    """
    d = dimension(bounds, e)
    if not overlaps(bounds, e, both, r, d):
        return False
    if d < k >> 1 and not overlaps(bounds, e, both, s, d):
        return False
    far_high, far_low = bounds[e, 3], bounds[e, 4] & np.uint64(_LOW)
    ends = both[r, k >> 1, 2]
    if k & 1 == 0:
        return is_before(both[r, k >> 1, 0], ends >> np.uint64(16), far_high, far_low)
    return is_before(far_high, far_low, both[r, k >> 1, 1], ends & np.uint64(_LOW))


@inlined
def is_whole(bounds: Cells, e: Number) -> bool:
    """Whether the two pieces at a bound are the whole box."""
    return bool(bounds[e, 4] & np.uint64(_WHOLE) != 0)


@inlined
def owner_of(bounds: Cells, e: Number) -> Number:
    """Return the owner of a bound: a subscription if `is_whole`, else a box."""
    return np.int64(bounds[e, 4] >> np.uint64(32))


@inlined
def is_of(pieces: Cells, p: Number, bounds: Cells, e: Number, k: Number) -> bool:
    """Whether a bound belongs to a piece of the same box."""
    ends = pieces[p, 2] if k & 1 == 0 else pieces[p, 2] >> np.uint64(16)
    return bool(
        dimension(pieces, p) == k >> 1
        and pieces[p, 1 - (k & 1)] == bounds[e, 3]
        and (ends ^ bounds[e, 4]) & np.uint64(_LOW) == 0
    )


@inlined
def write(
    out: PairBuffer, n: Number, i: Number, sub: Number, kind: Number, state: Any, collect: bool
) -> Number:
    """Write a pair unless its subscription is deleted; return the number written, or -1 if full."""
    if state[sub] == 0:
        return n
    if n == len(out.row):
        return np.int64(-1)
    out.row[n], out.sub[n] = i, sub
    out.kind[n] = NEEDS_CHECK if collect or state[sub] != SIMPLE else kind
    return n + 1


@inlined
def prefetch_box(boxes: Boxes, box: Number) -> None:
    """Prefetch the data of a box except its pieces."""
    prefetch_row(boxes.start, box)
    prefetch_row(boxes.sub, box)


@inlined
def prefetch_pieces(candidates: NDArray[Any], n_cand: Number, bounds: Cells, boxes: Boxes) -> None:
    """Prefetch the first pieces of the boxes of some bounds."""
    for h in range(n_cand):
        prefetch_row(boxes.pieces, boxes.start[owner_of(bounds, candidates[h])])


@inlined
def verify_changes(
    candidates: NDArray[np.int32],
    n_cand: Number,
    bounds: Cells,
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    both: Cells,
    block: Number,
    out: PairBuffer,
    n: Number,
) -> Number:
    """Write the candidate boxes that change; return the number written, or -1 if full."""
    pieces, start = boxes.pieces, boxes.start
    prefetch_pieces(candidates[:, 2], n_cand, bounds, boxes)
    for h in range(n_cand):
        s, k, e = np.int64(candidates[h, 0]), np.int64(candidates[h, 1]), np.int64(candidates[h, 2])
        x = owner_of(bounds, e)
        kind, by = box_changes(pieces, start[x], start[x + 1], both, 2 * s, both, 2 * s + 1)
        if kind != 0 and is_of(pieces, by, bounds, e, k):
            n = write(out, n, block + s, np.int64(boxes.sub[x]), kind, state, collect)
            if n < 0:
                return n
    return np.int64(n)


@inner
def cross_block(
    dims: NDArray[np.int32],
    lists: BoundLists,
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    both: Cells,
    out: PairBuffer,
    block: Number,
    size: Number,
    n: Number,
) -> Number:
    """Do `cross` for a block of rows; return the number of pairs written, or -1 if full."""
    bounds = lists.bounds
    candidates = np.empty((_MAX_CANDIDATES, 3), np.int32)
    ahead = np.zeros((_AHEAD, 2), np.int64)
    n_cand, n_runs = 0, 2 * len(dims) * size
    for t in range(n_runs + _AHEAD):
        first, last = ahead[t % _AHEAD, 0], ahead[t % _AHEAD, 1]
        if t < n_runs:
            j, s = t // size, t % size
            at, to = run_of(2 * np.int64(dims[j >> 1]) + (j & 1), lists, both, 2 * s)
            ahead[t % _AHEAD, 0], ahead[t % _AHEAD, 1] = at, to
        if t < _AHEAD or first == last:
            continue
        j, s = (t - _AHEAD) // size, (t - _AHEAD) % size
        k = 2 * np.int64(dims[j >> 1]) + (j & 1)
        is_begin = begins(both, 2 * s, k)
        kind = ENTER if is_begin else LEAVE
        r = 2 * s + 1 if is_begin else 2 * s
        for e in range(first, last):
            if not may_change(bounds, e, both, r, 4 * s + 1 - r, k):
                continue
            owner = owner_of(bounds, e)
            if is_whole(bounds, e):
                n = write(out, n, block + s, owner, kind, state, collect)
            else:
                prefetch_box(boxes, owner)
                (
                    candidates[n_cand, 0],
                    candidates[n_cand, 1],
                    candidates[n_cand, 2],
                ) = s, k, e
                n_cand += 1
                if n_cand == _MAX_CANDIDATES:
                    n = verify_changes(
                        candidates, n_cand, bounds, boxes, state, collect, both, block, out, n
                    )
                    n_cand = 0
            if n < 0:
                return n
    return verify_changes(candidates, n_cand, bounds, boxes, state, collect, both, block, out, n)


@kernel
def cross(
    rows: Cells,
    updates: RowUpdates,
    lists: BoundLists,
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    both: Cells,
    out: PairBuffer,
    begin: Number,
    n: Number,
) -> tuple[int, int]:
    """Find what begins or ceases to match when rows are updated, by the bounds that they cross.

    Nothing is updated. `both` has the capacity of a block of rows, each before and after; a block
    goes through the lists of one dimension after another, so that these stay in the cache. Crossed
    bounds are searched some lists ahead and boxes are verified in groups, so that both can be
    prefetched. A subscription of several boxes, or with `collect` any, is written as NEEDS_CHECK.
    Returns the row that it stopped at and the number of pairs written, in no order.
    """
    dims, n_rows = updates.dims, len(updates.rows)
    for block in range(begin, n_rows, len(both) // 2):
        size = min(n_rows - block, len(both) // 2)
        for s in range(size):
            row = np.int64(updates.rows[block + s])
            both[2 * s] = rows[row]
            write_updated(rows, row, updates, block + s, both, 2 * s + 1)
        n_pairs = cross_block(dims, lists, boxes, state, collect, both, out, block, size, n)
        if n_pairs < 0:
            return block, n
        n = n_pairs
    return n_rows, n


@kernel
def cross_unindexed(
    rows: Cells,
    updates: RowUpdates,
    span: tuple[int, int],
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    moved: Cells,
    out: PairBuffer,
    begin: Number,
    n: Number,
) -> tuple[int, int]:
    """Do `cross` for boxes that are in no list, by scanning them."""
    pieces, start = boxes.pieces, boxes.start
    for i in range(begin, len(updates.rows)):
        row = np.int64(updates.rows[i])
        before = n
        write_updated(rows, row, updates, i, moved, 0)
        for b in range(span[0], span[1]):
            kind, _ = box_changes(pieces, start[b], start[b + 1], rows, row, moved, 0)
            if kind != 0:
                n = write(out, n, i, np.int64(boxes.sub[b]), kind, state, collect)
                if n < 0:
                    return i, before
    return len(updates.rows), n


@kernel
def verify_updates(
    rows: Cells,
    updates: RowUpdates,
    boxes: Boxes,
    subs: Subscriptions,
    stamp: Number,
    moved: Cells,
    none: Cells,
    out: PairBuffer,
    n: Number,
) -> int:
    """Verify the candidates of updated rows, before and after; keep the changes."""
    n_out = 0
    last = np.int64(-1)
    for at in range(n):
        i, sub, kind = np.int64(out.row[at]), np.int64(out.sub[at]), out.kind[at]
        if kind == NEEDS_CHECK:
            if subs.stamp[sub] == stamp + i:
                continue
            subs.stamp[sub] = stamp + i
            row = np.int64(updates.rows[i])
            if i != last:
                write_updated(rows, row, updates, i, moved, 0)
                last = i
            matched = relate(boxes, subs, sub, rows, row, row + 1, np.int64(1), none)
            matches = relate(boxes, subs, sub, moved, 0, 1, np.int64(1), none)
            if matched == matches:
                continue
            kind = np.int8(ENTER if matches else LEAVE)
        out.row[n_out], out.sub[n_out], out.kind[n_out] = i, sub, kind
        n_out += 1
    return n_out


@kernel
def verify_rows(
    rows: Cells,
    row_of: NDArray[np.int32],
    boxes: Boxes,
    subs: Subscriptions,
    stamp: Number,
    none: Cells,
    out: PairBuffer,
    n: Number,
) -> int:
    """Verify the candidates of rows; keep the matches."""
    n_out = 0
    for at in range(n):
        i, sub = np.int64(out.row[at]), np.int64(out.sub[at])
        if out.kind[at] == NEEDS_CHECK:
            if subs.stamp[sub] == stamp + i:
                continue
            subs.stamp[sub] = stamp + i
            r = np.int64(row_of[i])
            if not relate(boxes, subs, sub, rows, r, r + 1, np.int64(1), none):
                continue
        out.row[n_out], out.sub[n_out], out.kind[n_out] = i, sub, ENTER
        n_out += 1
    return n_out


@kernel
def update_rows(
    rows: Cells, updates: RowUpdates, order_of: NDArray[np.int32], dirty: NDArray[np.uint8]
) -> None:
    """Update rows, and mark them dirty in the sorted dimensions.

    `order_of` is the row of `dirty` of each dimension, or -1.
    """
    for i in range(len(updates.rows)):
        row = np.int64(updates.rows[i])
        for j in range(len(updates.dims)):
            if len(updates.unchanged) > 0 and updates.unchanged[j, i] != 0:
                continue
            d = np.int64(updates.dims[j])
            for k in range(3):
                rows[row, d, k] = updates.cells[j, i, k]
            if order_of[d] >= 0:
                dirty[order_of[d], row] = 1


@inlined
def next_block(most: Any, level: Any, e: Number, low: Number) -> Number:
    """Return the next entry whose upper bound may be after a position, from a multiple of 16."""
    if e & 4095 == 0 and most[level[2] + (e >> 12)] < low:
        return e + 4096
    if e & 255 == 0 and most[level[1] + (e >> 8)] < low:
        return e + 256
    if most[level[0] + (e >> 4)] < low:
        return e + 16
    return e


@inlined
def is_first(pieces: Cells, first: Number, p: Number, rows: Cells, r: Number, d: Number) -> bool:
    """Whether no earlier piece of the same box and dimension overlaps a row."""
    q = p - 1
    while q >= first and dimension(pieces, q) == d:
        if overlaps(pieces, q, rows, r, d):
            return False
        q -= 1
    return True


@inlined
def may_overlap(
    bounds: Cells, e: Number, rows: Cells, r: Number, low_high: Number, low_low: Number
) -> bool:
    """Whether a row may overlap a box, by the words stored with a lower bound."""
    if not is_before(low_high, low_low, bounds[e, 3], bounds[e, 4] & np.uint64(_LOW)):
        return False
    return overlaps(bounds, e, rows, r, dimension(bounds, e))


@inlined
def is_match_at(bounds: Cells, e: Number, boxes: Boxes, rows: Cells, r: Number, d: Number) -> bool:
    """Whether a row overlaps a box, and the piece at a bound is the first that it overlaps."""
    x = owner_of(bounds, e)
    pieces, first, last = boxes.pieces, boxes.start[x], boxes.start[x + 1]
    if not box_overlaps(pieces, first, last, rows, r):
        return False
    p = first
    while dimension(pieces, p) != d or not overlaps(pieces, p, rows, r, d):
        p += 1
    return is_of(pieces, p, bounds, e, 2 * d)


@inlined
def verify_matches(
    candidates: NDArray[np.int64],
    n_cand: Number,
    bounds: Cells,
    boxes: Boxes,
    rows: Cells,
    r: Number,
    i: Number,
    state: NDArray[np.uint8],
    collect: bool,
    out: PairBuffer,
    n: Number,
) -> Number:
    """Write the candidate boxes that a row overlaps; return as `write` does."""
    prefetch_pieces(candidates[:, 0], n_cand, bounds, boxes)
    for h in range(n_cand):
        e, d = candidates[h, 0], candidates[h, 1]
        if is_match_at(bounds, e, boxes, rows, r, d):
            sub = np.int64(boxes.sub[owner_of(bounds, e)])
            n = write(out, n, i, sub, ENTER, state, collect)
            if n < 0:
                return n
    return np.int64(n)


@inlined
def next_candidate(
    access: AccessLists, e: Number, last: Number, rows: Cells, r: Number, d: Number
) -> Number:
    """Return the next entry of a dimension whose box a row may overlap, or `last`."""
    low, ends = rows[r, d, 0], rows[r, d, 2] >> np.uint64(16)
    while e < last:
        if e & 15 == 0:
            to = next_block(access.most, access.level, e, low)
            if to != e:
                e = to
                continue
        if access.upper[e] >= low and may_overlap(access.bounds, e, rows, r, low, ends):
            return e
        e += 1
    return last


@kernel
def match(
    rows: Cells,
    row_of: NDArray[np.int32],
    access: AccessLists,
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    out: PairBuffer,
    begin: Number,
    n: Number,
) -> tuple[int, int]:
    """Find the subscriptions that match rows, each row a publication.

    A subscription of several boxes, or with `collect` any, is written as NEEDS_CHECK. Returns the
    row that it stopped at and the number of pairs written.
    """
    bounds, candidates = access.bounds, np.empty((_MAX_CANDIDATES, 2), np.int64)
    for i in range(begin, len(row_of)):
        r, before, n_cand = np.int64(row_of[i]), n, 0
        for d in range(len(access.start) - 1):
            high, ends = rows[r, d, 1], rows[r, d, 2] & np.uint64(_LOW)
            e, last = access.start[d], access.start[d + 1]
            last = position_in(access.high, access.low, e, last, high, ends)
            e = next_candidate(access, e, last, rows, r, d)
            while e < last and n >= 0:
                owner = owner_of(bounds, e)
                if is_whole(bounds, e):
                    n = write(out, n, i, owner, ENTER, state, collect)
                else:
                    prefetch_box(boxes, owner)
                    candidates[n_cand, 0], candidates[n_cand, 1] = e, d
                    n_cand += 1
                if n_cand == _MAX_CANDIDATES:
                    n = verify_matches(
                        candidates, n_cand, bounds, boxes, rows, r, i, state, collect, out, n
                    )
                    n_cand = 0
                e = next_candidate(access, e + 1, last, rows, r, d)
        if n >= 0:
            n = verify_matches(
                candidates, n_cand, bounds, boxes, rows, r, i, state, collect, out, n
            )
        if n < 0:
            return i, before
    return len(row_of), n


@kernel
def match_unindexed(
    rows: Cells,
    row_of: NDArray[np.int32],
    span: tuple[int, int],
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    out: PairBuffer,
    begin: Number,
    n: Number,
) -> tuple[int, int]:
    """Do `match` for boxes that are in no list, by scanning them."""
    pieces, start = boxes.pieces, boxes.start
    for i in range(begin, len(row_of)):
        r = np.int64(row_of[i])
        before = n
        for b in range(span[0], span[1]):
            if box_overlaps(pieces, start[b], start[b + 1], rows, r):
                n = write(out, n, i, np.int64(boxes.sub[b]), ENTER, state, collect)
                if n < 0:
                    return i, before
    return len(row_of), n


@kernel
def overlapping_rows(
    rows: Cells,
    boxes: Boxes,
    box: Number,
    candidates: NDArray[np.int32],
    out: NDArray[np.int32],
    n: Number,
) -> int:
    """Write the candidates that a box overlaps; a deleted row overlaps nothing."""
    pieces = boxes.pieces
    first, last = boxes.start[box], boxes.start[box + 1]
    for i in range(len(candidates)):
        if box_overlaps(pieces, first, last, rows, np.int64(candidates[i])):
            out[n] = candidates[i]
            n += 1
    return int(n)


@kernel
def rows_in_window(
    rows: Cells,
    boxes: Boxes,
    box: Number,
    piece: Number,
    ordered: RowOrder,
    dirty: NDArray[np.uint8],
    out: NDArray[np.int32],
    n: Number,
) -> int:
    """Write the rows that a box overlaps, searching the sorted rows that overlap one of its pieces.

    Dirty rows, updated since the sort, are skipped.
    """
    pieces, row_of, upper = boxes.pieces, ordered.low_row, ordered.low_upper
    first, last = boxes.start[box], boxes.start[box + 1]
    d = dimension(pieces, piece)
    ends, low = pieces[piece, 2] & np.uint64(_LOW), pieces[piece, 0]
    to = position_in(ordered.low_high, ordered.low_low, 0, len(row_of), pieces[piece, 1], ends)
    e = 0
    while e < to:
        if e & 15 == 0:
            after = next_block(ordered.most, ordered.level, e, low)
            if after != e:
                e = after
                continue
        r = np.int64(row_of[e])
        if (
            upper[e] >= low
            and dirty[r] == 0
            and box_overlaps(pieces, first, last, rows, r)
            and overlaps(pieces, piece, rows, r, d)
            and is_first(pieces, first, piece, rows, r, d)
        ):
            out[n] = r
            n += 1
        e += 1
    return int(n)
