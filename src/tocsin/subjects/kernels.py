"""Compiled: which boxes a row meets, which a moving row crosses, and which rows a box meets.

Enters: rows of cells (publications), pieces of boxes (subscriptions) and ordered lists of their
bounds, as `places` and `arrays` describe them. Leaves: pairs of a row and a subscription, with
their kind, in buffers of the caller; when one is full, a kernel returns the row it stopped at.

A cell and a piece are three words: the upper parts of the lower and the upper bound, and their
lower parts in one word, 16 bits each (a piece has its dimension above them). A bound is a cut, so
two ranges overlap where each begins before the other ends.

`cross` is `findNewlyMatchedInterestRegions` of Leung and Jacobsen (figure 9), which here finds what
ceases to match as well; `meet` takes the place of `findAllMatchedInterestRegions` (figure 7): it
does not collect what fails, but looks at the boxes that may hold, each under one of its dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, inner, kernel, prefetch_row
from tocsin.subjects.arrays import Boxes, Homes, Lists, Moves, Pairs, Rows, Subscriptions

ENTER = 1
LEAVE = -1
SIMPLE = 1
"""State of a subscription that is one box."""
TOUCHED = 2
"""Kind of a pair that has to be looked at as a whole."""
_NONE = -1
_HELD = 64
"""How many boxes are looked at together."""
_AHEAD = 4
"""How many lists ahead the bounds that are crossed are looked for."""
_LOW = 0xFFFF
_WHOLE = 0x10000
"""The bit of a bound whose two pieces are all of a box."""

Cells = NDArray[np.uint64]
Number = Any
"""An integer of the kernels, of whatever width."""


@inlined
def is_before(high: Number, low: Number, other_high: Number, other_low: Number) -> bool:
    """Whether one place is before another."""
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
def box_meets(pieces: Cells, first: Number, last: Number, rows: Cells, r: Number) -> bool:
    """Whether a box overlaps a row: in each of its dimensions with some piece."""
    p = first
    while p < last:
        d = dimension(pieces, p)
        is_met = False
        while p < last and dimension(pieces, p) == d:
            if not is_met and overlaps(pieces, p, rows, r, d):
                is_met = True
            p += 1
        if not is_met:
            return False
    return True


@inlined
def box_changes(
    pieces: Cells, first: Number, last: Number, old: Cells, r: Number, new: Cells, s: Number
) -> tuple[int, Number]:
    """Return whether a box begins (1) or ceases (-1) to overlap a row that moves, and by what.

    Of the pieces that tell, the first of the first dimension is named: a box that is found by
    several of its bounds counts for one of them only.
    """
    held = True
    holds = True
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
        held = held and before != _NONE
        holds = holds and after != _NONE
        if not (held or holds):
            return 0, by
        if by == _NONE and (before == _NONE) != (after == _NONE):
            by = max(before, after)
    if held == holds:
        return 0, by
    return (ENTER if holds else LEAVE), by


@inner
def satisfies(hits: Number, least: Number, terms: Cells, first: Number, last: Number) -> bool:
    """Whether a set of regions satisfies a filter: enough of them, or one of its terms."""
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

    Each region of either that overlaps one of the other counts as hit; both filters must be
    satisfied by what is hit. `least` and `terms` are the publication's filter.
    """
    interests = np.uint64(0)
    objects = np.uint64(0)
    start = np.int64(subs.first[sub])
    for b in range(start, start + np.int64(subs.n_boxes[sub])):
        bit = np.uint64(1) << np.uint64(boxes.region[b])
        for r in range(first, last):
            if box_meets(boxes.pieces, boxes.start[b], boxes.start[b + 1], rows, r):
                interests |= bit
                objects |= np.uint64(1) << np.uint64(r - first)
    if objects == np.uint64(0):
        return False
    if not satisfies(objects, least, terms, 0, len(terms)):
        return False
    begin = np.int64(subs.term_start[sub])
    end = begin + np.int64(subs.n_terms[sub])
    return satisfies(interests, np.int64(subs.least[sub]), subs.terms, begin, end)


@kernel
def relate_all(
    boxes: Boxes,
    subs: Subscriptions,
    chosen: NDArray[np.int32],
    rows: Cells,
    least: Number,
    terms: Cells,
    out: NDArray[np.bool_],
) -> None:
    """Write for each chosen subscription whether it is in relation M with one publication."""
    for i in range(len(chosen)):
        sub = np.int64(chosen[i])
        out[i] = relate(boxes, subs, sub, rows, 0, rows.shape[0], least, terms)


@kernel
def relate_rows(
    boxes: Boxes,
    subs: Subscriptions,
    sub: Number,
    rows: Cells,
    chosen: NDArray[np.int32],
    none: Cells,
    out: NDArray[np.bool_],
) -> None:
    """Write for each chosen row, a publication of its own, whether it is in relation M."""
    for i in range(len(chosen)):
        r = np.int64(chosen[i])
        out[i] = relate(boxes, subs, sub, rows, r, r + 1, np.int64(1), none)


@inlined
def place_in(
    highs: NDArray[np.uint64],
    lows: NDArray[np.uint16],
    first: Number,
    last: Number,
    high: Number,
    low: Number,
) -> Number:
    """Return how far an ordered list lies before a place."""
    a, b = first, last
    while a < b:
        middle = (a + b) >> 1
        if is_before(highs[middle], np.uint64(lows[middle]), high, low):
            a = middle + 1
        else:
            b = middle
    return a


@inlined
def renew(rows: Cells, row: Number, moves: Moves, i: Number, moved: Cells, s: Number) -> None:
    """Write a row as it will be."""
    for d in range(rows.shape[1]):
        for k in range(3):
            moved[s, d, k] = rows[row, d, k]
    for j in range(len(moves.dims)):
        if len(moves.keep) == 0 or moves.keep[j, i] == 0:
            for k in range(3):
                moved[s, moves.dims[j], k] = moves.fresh[j, i, k]


@inlined
def crossing_end(cells: Cells, r: Number, d: Number, side: Number) -> tuple[Number, Number]:
    """Return the end of a cell that crosses bounds: the upper one those of side 0, lower ones.

    What an upper bound is compared with is the place behind the lower end.
    """
    if side == 0:
        return cells[r, d, 1], cells[r, d, 2] & np.uint64(_LOW)
    return cells[r, d, 0], ((cells[r, d, 2] >> np.uint64(16)) & np.uint64(_LOW)) + np.uint64(1)


@inlined
def crossed(both: Cells, r: Number, k: Number, lists: Lists) -> tuple[Number, Number]:
    """Return which places of a list are crossed: lower bounds by upper ends, and the reverse."""
    first, last = lists.start[k], lists.start[k + 1]
    a_high, a_low = crossing_end(both, r, k >> 1, k & 1)
    b_high, b_low = crossing_end(both, r + 1, k >> 1, k & 1)
    if first == last or (a_high == b_high and a_low == b_low):
        return first, first
    if is_before(b_high, b_low, a_high, a_low):
        a_high, b_high = b_high, a_high
        a_low, b_low = b_low, a_low
    at = place_in(lists.high, lists.low, first, last, a_high, a_low)
    step = 2
    to = at
    while to + step < last and is_before(
        lists.high[to + step], np.uint64(lists.low[to + step]), b_high, b_low
    ):
        to += step
        step *= 2
    return at, place_in(lists.high, lists.low, to, min(last, to + step), b_high, b_low)


@inlined
def run_of(k: Number, lists: Lists, both: Cells, r: Number) -> tuple[Number, Number]:
    """Return which bounds of a list a row crosses, and ask for them."""
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
    """Whether a row begins to overlap pieces by their bounds that it crosses, or ceases to."""
    a_high, a_low = crossing_end(both, r, k >> 1, k & 1)
    b_high, b_low = crossing_end(both, r + 1, k >> 1, k & 1)
    return bool(is_before(a_high, a_low, b_high, b_low) == (k & 1 == 0))


@inlined
def may_change(bounds: Cells, e: Number, both: Cells, r: Number, s: Number, k: Number) -> bool:
    """Whether a box changes as far as one sees by a bound that a row crosses.

    Row r of `both` is the one that overlaps the piece at that bound, if any does, and s the other:
    it is before or after the move. The box must overlap r elsewhere, too; and where it does not
    overlap s in an earlier dimension, it is found there.
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
    """Whether the two pieces at a bound are all of a box."""
    return bool(bounds[e, 4] & np.uint64(_WHOLE) != 0)


@inlined
def owner_of(bounds: Cells, e: Number) -> Number:
    """Return whose a bound is: a subscription where `is_whole` holds, a box where not."""
    return np.int64(bounds[e, 4] >> np.uint64(32))


@inlined
def is_of(pieces: Cells, p: Number, bounds: Cells, e: Number, k: Number) -> bool:
    """Whether a bound is that of a piece of the same box."""
    ends = pieces[p, 2] if k & 1 == 0 else pieces[p, 2] >> np.uint64(16)
    return bool(
        dimension(pieces, p) == k >> 1
        and pieces[p, 1 - (k & 1)] == bounds[e, 3]
        and (ends ^ bounds[e, 4]) & np.uint64(_LOW) == 0
    )


@inlined
def write(
    out: Pairs, n: Number, i: Number, sub: Number, kind: Number, state: Any, collect: bool
) -> Number:
    """Write a pair, if its subscription is there; return how many are written, or -1 if full."""
    if state[sub] == 0:
        return n
    if n == len(out.row):
        return np.int64(-1)
    out.row[n], out.sub[n] = i, sub
    out.kind[n] = TOUCHED if collect or state[sub] != SIMPLE else kind
    return n + 1


@inlined
def ask_for_box(boxes: Boxes, box: Number) -> None:
    """Ask for what is known of a box besides its pieces."""
    prefetch_row(boxes.start, box)
    prefetch_row(boxes.sub, box)


@inlined
def ask_for_pieces(held: NDArray[Any], n_held: Number, bounds: Cells, boxes: Boxes) -> None:
    """Ask for the first pieces of the boxes of some bounds."""
    for h in range(n_held):
        prefetch_row(boxes.pieces, boxes.start[owner_of(bounds, held[h])])


@inlined
def judge(
    held: NDArray[np.int32],
    n_held: Number,
    bounds: Cells,
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    both: Cells,
    block: Number,
    out: Pairs,
    n: Number,
) -> Number:
    """Write which of the boxes that may change do; return how many are written, or -1 if full."""
    pieces, start = boxes.pieces, boxes.start
    ask_for_pieces(held[:, 2], n_held, bounds, boxes)
    for h in range(n_held):
        s, k, e = np.int64(held[h, 0]), np.int64(held[h, 1]), np.int64(held[h, 2])
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
    lists: Lists,
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    both: Cells,
    out: Pairs,
    block: Number,
    size: Number,
    n: Number,
) -> Number:
    """Do what `cross` does for some rows; return how many pairs are written, or -1 if full."""
    bounds = lists.bounds
    held = np.empty((_HELD, 3), np.int32)
    ahead = np.zeros((_AHEAD, 2), np.int64)
    n_held, n_runs = 0, 2 * len(dims) * size
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
                ask_for_box(boxes, owner)
                held[n_held, 0], held[n_held, 1], held[n_held, 2] = s, k, e
                n_held += 1
                if n_held == _HELD:
                    n = judge(held, n_held, bounds, boxes, state, collect, both, block, out, n)
                    n_held = 0
            if n < 0:
                return n
    return judge(held, n_held, bounds, boxes, state, collect, both, block, out, n)


@kernel
def cross(
    rows: Cells,
    moves: Moves,
    lists: Lists,
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    both: Cells,
    out: Pairs,
    begin: Number,
    n: Number,
) -> tuple[int, int]:
    """Find what begins or ceases to match when rows move, by the bounds that they cross.

    Nothing is moved. As many rows as `both` has room for, each as it is and as it will be, go
    through the lists of one dimension after another, which stay in the cache meanwhile. The bounds
    that are crossed are found some lists ahead, and boxes are looked at some at a time, so that
    memory is asked for both before they are needed. A subscription of several boxes, or with
    `collect` any, is written as touched. Returns the row that it stopped at, and how many pairs are
    written, in no order.
    """
    chosen, dims, n_rows = moves.chosen, moves.dims, len(moves.chosen)
    for block in range(begin, n_rows, len(both) // 2):
        size = min(n_rows - block, len(both) // 2)
        for s in range(size):
            row = np.int64(chosen[block + s])
            both[2 * s] = rows[row]
            renew(rows, row, moves, block + s, both, 2 * s + 1)
        found = cross_block(dims, lists, boxes, state, collect, both, out, block, size, n)
        if found < 0:
            return block, n
        n = found
    return n_rows, n


@kernel
def cross_recent(
    rows: Cells,
    moves: Moves,
    span: tuple[int, int],
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    moved: Cells,
    out: Pairs,
    begin: Number,
    n: Number,
) -> tuple[int, int]:
    """Do what `cross` does for boxes that stand in no list, by looking at each."""
    pieces, start = boxes.pieces, boxes.start
    for i in range(begin, len(moves.chosen)):
        row = np.int64(moves.chosen[i])
        before = n
        renew(rows, row, moves, i, moved, 0)
        for b in range(span[0], span[1]):
            kind, _ = box_changes(pieces, start[b], start[b + 1], rows, row, moved, 0)
            if kind != 0:
                n = write(out, n, i, np.int64(boxes.sub[b]), kind, state, collect)
                if n < 0:
                    return i, before
    return len(moves.chosen), n


@kernel
def settle_moves(
    rows: Cells,
    moves: Moves,
    boxes: Boxes,
    subs: Subscriptions,
    stamp: Number,
    moved: Cells,
    none: Cells,
    out: Pairs,
    n: Number,
) -> int:
    """Put subscriptions that moving rows touched into relation, before and after; keep changes."""
    kept = 0
    last = np.int64(-1)
    for at in range(n):
        i, sub, kind = np.int64(out.row[at]), np.int64(out.sub[at]), out.kind[at]
        if kind == TOUCHED:
            if subs.stamp[sub] == stamp + i:
                continue
            subs.stamp[sub] = stamp + i
            row = np.int64(moves.chosen[i])
            if i != last:
                renew(rows, row, moves, i, moved, 0)
                last = i
            held = relate(boxes, subs, sub, rows, row, row + 1, np.int64(1), none)
            holds = relate(boxes, subs, sub, moved, 0, 1, np.int64(1), none)
            if held == holds:
                continue
            kind = np.int8(ENTER if holds else LEAVE)
        out.row[kept], out.sub[kept], out.kind[kept] = i, sub, kind
        kept += 1
    return kept


@kernel
def settle_rows(
    rows: Cells,
    chosen: NDArray[np.int32],
    boxes: Boxes,
    subs: Subscriptions,
    stamp: Number,
    none: Cells,
    out: Pairs,
    n: Number,
) -> int:
    """Put subscriptions that rows touched into relation; keep those that are."""
    kept = 0
    for at in range(n):
        i, sub = np.int64(out.row[at]), np.int64(out.sub[at])
        if out.kind[at] == TOUCHED:
            if subs.stamp[sub] == stamp + i:
                continue
            subs.stamp[sub] = stamp + i
            r = np.int64(chosen[i])
            if not relate(boxes, subs, sub, rows, r, r + 1, np.int64(1), none):
                continue
        out.row[kept], out.sub[kept], out.kind[kept] = i, sub, ENTER
        kept += 1
    return kept


@kernel
def move(rows: Cells, moves: Moves, order_of: NDArray[np.int32], dirty: NDArray[np.uint8]) -> None:
    """Move rows, and mark them in the dimensions whose rows are kept in order.

    `order_of` says which row of `dirty` is that of a dimension, or -1.
    """
    for i in range(len(moves.chosen)):
        row = np.int64(moves.chosen[i])
        for j in range(len(moves.dims)):
            if len(moves.keep) > 0 and moves.keep[j, i] != 0:
                continue
            d = np.int64(moves.dims[j])
            for k in range(3):
                rows[row, d, k] = moves.fresh[j, i, k]
            if order_of[d] >= 0:
                dirty[order_of[d], row] = 1


@inlined
def next_block(most: Any, level: Any, e: Number, low: Number) -> Number:
    """Return the next entry whose upper bound may be after a place, from a multiple of 16 on."""
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
def may_meet(
    bounds: Cells, e: Number, rows: Cells, r: Number, low_high: Number, low_low: Number
) -> bool:
    """Whether a row overlaps a box as far as one sees by a lower bound that it ends after."""
    if not is_before(low_high, low_low, bounds[e, 3], bounds[e, 4] & np.uint64(_LOW)):
        return False
    return overlaps(bounds, e, rows, r, dimension(bounds, e))


@inlined
def is_met_at(bounds: Cells, e: Number, boxes: Boxes, rows: Cells, r: Number, d: Number) -> bool:
    """Whether a row overlaps a box, and of its pieces in a dimension first the one at a bound."""
    x = owner_of(bounds, e)
    pieces, first, last = boxes.pieces, boxes.start[x], boxes.start[x + 1]
    if not box_meets(pieces, first, last, rows, r):
        return False
    p = first
    while dimension(pieces, p) != d or not overlaps(pieces, p, rows, r, d):
        p += 1
    return is_of(pieces, p, bounds, e, 2 * d)


@inlined
def meet_held(
    held: NDArray[np.int64],
    n_held: Number,
    bounds: Cells,
    boxes: Boxes,
    rows: Cells,
    r: Number,
    i: Number,
    state: NDArray[np.uint8],
    collect: bool,
    out: Pairs,
    n: Number,
) -> Number:
    """Write which of the boxes that a row may meet it does; return as `write` does."""
    ask_for_pieces(held[:, 0], n_held, bounds, boxes)
    for h in range(n_held):
        e, d = held[h, 0], held[h, 1]
        if is_met_at(bounds, e, boxes, rows, r, d):
            sub = np.int64(boxes.sub[owner_of(bounds, e)])
            n = write(out, n, i, sub, ENTER, state, collect)
            if n < 0:
                return n
    return np.int64(n)


@inlined
def next_met(homes: Homes, e: Number, last: Number, rows: Cells, r: Number, d: Number) -> Number:
    """Return the next entry of a dimension whose box a row may meet, or the last one."""
    low, ends = rows[r, d, 0], rows[r, d, 2] >> np.uint64(16)
    while e < last:
        if e & 15 == 0:
            to = next_block(homes.most, homes.level, e, low)
            if to != e:
                e = to
                continue
        if homes.upper[e] >= low and may_meet(homes.bounds, e, rows, r, low, ends):
            return e
        e += 1
    return last


@kernel
def meet(
    rows: Cells,
    chosen: NDArray[np.int32],
    homes: Homes,
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    out: Pairs,
    begin: Number,
    n: Number,
) -> tuple[int, int]:
    """Find the subscriptions that rows match, as publications of their own.

    A subscription of several boxes, or with `collect` any, is written as touched. Returns the row
    that it stopped at, and how many pairs are written.
    """
    bounds, held = homes.bounds, np.empty((_HELD, 2), np.int64)
    for i in range(begin, len(chosen)):
        r, before, n_held = np.int64(chosen[i]), n, 0
        for d in range(len(homes.start) - 1):
            high, ends = rows[r, d, 1], rows[r, d, 2] & np.uint64(_LOW)
            e, last = homes.start[d], homes.start[d + 1]
            last = place_in(homes.high, homes.low, e, last, high, ends)
            e = next_met(homes, e, last, rows, r, d)
            while e < last and n >= 0:
                owner = owner_of(bounds, e)
                if is_whole(bounds, e):
                    n = write(out, n, i, owner, ENTER, state, collect)
                else:
                    ask_for_box(boxes, owner)
                    held[n_held, 0], held[n_held, 1] = e, d
                    n_held += 1
                if n_held == _HELD:
                    n = meet_held(held, n_held, bounds, boxes, rows, r, i, state, collect, out, n)
                    n_held = 0
                e = next_met(homes, e + 1, last, rows, r, d)
        if n >= 0:
            n = meet_held(held, n_held, bounds, boxes, rows, r, i, state, collect, out, n)
        if n < 0:
            return i, before
    return len(chosen), n


@kernel
def meet_recent(
    rows: Cells,
    chosen: NDArray[np.int32],
    span: tuple[int, int],
    boxes: Boxes,
    state: NDArray[np.uint8],
    collect: bool,
    out: Pairs,
    begin: Number,
    n: Number,
) -> tuple[int, int]:
    """Do what `meet` does for boxes that stand in no list, by looking at each."""
    pieces, start = boxes.pieces, boxes.start
    for i in range(begin, len(chosen)):
        r = np.int64(chosen[i])
        before = n
        for b in range(span[0], span[1]):
            if box_meets(pieces, start[b], start[b + 1], rows, r):
                n = write(out, n, i, np.int64(boxes.sub[b]), ENTER, state, collect)
                if n < 0:
                    return i, before
    return len(chosen), n


@kernel
def meet_rows(
    rows: Cells,
    boxes: Boxes,
    box: Number,
    candidates: NDArray[np.int32],
    out: NDArray[np.int32],
    n: Number,
) -> int:
    """Write which candidates a box meets.

    The row of a publication that is gone overlaps nothing.
    """
    pieces = boxes.pieces
    first, last = boxes.start[box], boxes.start[box + 1]
    for i in range(len(candidates)):
        if box_meets(pieces, first, last, rows, np.int64(candidates[i])):
            out[n] = candidates[i]
            n += 1
    return int(n)


@kernel
def window(
    rows: Cells,
    boxes: Boxes,
    box: Number,
    piece: Number,
    ordered: Rows,
    dirty: NDArray[np.uint8],
    out: NDArray[np.int32],
    n: Number,
) -> int:
    """Write which rows a box meets, of those that overlap one of its pieces as they were ordered.

    Rows that are dirty have moved since and are left out.
    """
    pieces, row_of, upper = boxes.pieces, ordered.low_row, ordered.low_upper
    first, last = boxes.start[box], boxes.start[box + 1]
    d = dimension(pieces, piece)
    ends, low = pieces[piece, 2] & np.uint64(_LOW), pieces[piece, 0]
    to = place_in(ordered.low_high, ordered.low_low, 0, len(row_of), pieces[piece, 1], ends)
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
            and box_meets(pieces, first, last, rows, r)
            and overlaps(pieces, piece, rows, r, d)
            and is_first(pieces, first, piece, rows, r, d)
        ):
            out[n] = r
            n += 1
        e += 1
    return int(n)
