"""The kernels of `fastint`: entering intervals into trees, matching, moving a bound; compiled.

Enters and leaves: the arrays of `arrays`. Jayaram et al. (Beretta), sections 5.3 to 5.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, kernel, prefetch_row
from tocsin_lab.engines.fastint.arrays import (
    ALWAYS_NODE,
    BLOCK,
    N_BLOCKS,
    N_ENTRIES,
    N_STALE,
    Nodes,
    Trees,
)
from tocsin_lab.engines.intervals.arrays import (
    ABSENT,
    HIGH,
    LOW,
    POINT,
    PRESENT,
    RUN,
    SEEN,
    SIZE_BITS,
    STRING,
    TAILS,
    WHAT,
    Events,
)

COUNT, FILL, APPEND = 0, 1, 2
"""What `enter` does: count the entries of each node, fill blocks laid out by then, or append."""
_ONES = (1 << SIZE_BITS) - 1


@inlined
def _count_to(bounds: Any, first: Any, last: Any, key: Any, closed: Any) -> Any:
    """Return how many bounds lie before a key, or at it where `closed`."""
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] < key or (closed and bounds[middle] == key):
            low = middle + 1
        else:
            high = middle
    return low - first


@inlined
def _put(head: Any, total: Any, blocks: Any, state: Any, node: Any, slot: Any, mode: Any) -> Any:
    """Add a conjunction to a node; when filling, `head` is the first block until it is used."""
    count = total[node]
    if mode != COUNT:
        within = count % BLOCK
        if within == 0:
            block = np.int64(head[node])
            if mode == APPEND:
                block = np.int64(state[N_BLOCKS])
                state[N_BLOCKS] += 1
                blocks[block, BLOCK] = head[node] if count > 0 else -1
            else:
                block += 1 if count > 0 else 0
                blocks[block, BLOCK] = block - 1 if count > 0 else -1
            head[node] = block
        blocks[head[node], within] = slot
    total[node] = count + 1


@inlined
def _leaves(start: Any, bounds: Any, mark: Any, what: Any, low: Any, high: Any, tails: Any) -> Any:
    """Return the first leaf of an interval and the one after its last."""
    tree = (what >> 8) * 4 + (what & 0xFF)
    closed = (tails & 0xFFFF) > 0
    if what & 0xFF == STRING:
        low, high, closed = mark[low], mark[high], False
    a = _count_to(bounds, start[tree], start[tree + 1], low, True)
    b = _count_to(bounds, start[tree], start[tree + 1], high, closed) + 1
    return a, b


@kernel
def enter(
    trees: Trees,
    nodes: Nodes,
    rows: NDArray[np.int64],
    slots: NDArray[np.int64],
    n_entries: NDArray[np.int32],
    chosen: NDArray[np.int64],
    done: int,
    mode: int,
) -> Any:
    """Enter conjunctions into the nodes of their rows; return how many are done.

    When appending, it stops where there may be too few blocks.
    """
    head, total, blocks, state = nodes.head, nodes.total, nodes.blocks, nodes.state
    start, bounds, sizes, base = trees.start, trees.bounds, trees.size, trees.node
    mark, point_node, ends_node = trees.mark, trees.point_node, trees.ends_node
    for i in range(done, len(chosen)):
        slot = chosen[i]
        first, size = slots[slot, RUN] >> SIZE_BITS, slots[slot, RUN] & _ONES
        if mode == APPEND and state[N_BLOCKS] + 130 * (size + 1) > len(blocks):
            return i
        n = np.int64(0)
        if size == 0:
            _put(head, total, blocks, state, np.int64(ALWAYS_NODE), slot, mode)
            n += 1
        for row in range(first, first + size):
            what = rows[row, WHAT]
            attribute, kind = what >> 8, what & 0xFF
            if kind >= ABSENT:
                node = ends_node[attribute] + (1 if kind == PRESENT else 0)
                if kind == POINT:
                    node = point_node[rows[row, LOW]]
                _put(head, total, blocks, state, node, slot, mode)
                n += 1
                continue
            low, high, tails = rows[row, LOW], rows[row, HIGH], rows[row, TAILS]
            a, b = _leaves(start, bounds, mark, what, low, high, tails)
            tree = attribute * 4 + kind
            a += sizes[tree]
            b += sizes[tree]
            while a < b:
                if a & 1:
                    _put(head, total, blocks, state, base[tree] + a, slot, mode)
                    a += 1
                    n += 1
                if b & 1:
                    b -= 1
                    _put(head, total, blocks, state, base[tree] + b, slot, mode)
                    n += 1
                a >>= 1
                b >>= 1
        if mode != COUNT:
            n_entries[slot] = n
            state[N_ENTRIES] += n
    return len(chosen)


@kernel
def move_row(
    trees: Trees,
    nodes: Nodes,
    rows: NDArray[np.int64],
    n_entries: NDArray[np.int32],
    slot: int,
    row: int,
    low: int,
    high: int,
    tails: int,
) -> None:
    """Give a row that is an interval or a string other bounds, in place.

    The conjunction is added to the nodes that are new. Where it was before it stays, which does no
    harm since candidates are checked; it is counted as stale.
    """
    head, total, blocks, state = nodes.head, nodes.total, nodes.blocks, nodes.state
    start, bounds, mark = trees.start, trees.bounds, trees.mark
    what, was_low, was_high = rows[row, WHAT], rows[row, LOW], rows[row, HIGH]
    was_tails = rows[row, TAILS]
    rows[row, LOW], rows[row, HIGH], rows[row, TAILS] = low, high, tails
    new = np.int64(0)
    if what & 0xFF == POINT:
        _put(head, total, blocks, state, trees.point_node[low], np.int64(slot), APPEND)
        new += 1
    else:
        tree = (what >> 8) * 4 + (what & 0xFF)
        base, size, width = trees.node[tree], trees.size[tree], np.int64(1)
        old_a, old_b = _leaves(start, bounds, mark, what, was_low, was_high, was_tails)
        a, b = _leaves(start, bounds, mark, what, low, high, tails)
        if a == old_a and b == old_b:
            return
        a += size
        b += size
        while a < b:
            for side in range(2):
                node = a if side == 0 else b - 1
                if (a if side == 0 else b) & 1:
                    begin, above = node * width - size, (node >> 1) * 2 * width - size
                    inside = begin >= old_a and begin + width <= old_b
                    if not inside or (above >= old_a and above + 2 * width <= old_b):
                        _put(head, total, blocks, state, base + node, np.int64(slot), APPEND)
                        new += 1
                    if side == 0:
                        a += 1
                    else:
                        b -= 1
            a >>= 1
            b >>= 1
            width *= 2
    state[N_ENTRIES] += new
    state[N_STALE] += new
    n_entries[slot] += new


@inlined
def _holds(
    mark: Any, what: Any, low: Any, high: Any, tails: Any, kind: Any, key: Any, tail: Any
) -> Any:
    """Whether a value lies in a row."""
    row_kind = what & 0xFF
    if row_kind == POINT:
        return kind == STRING and key == low
    if row_kind == PRESENT:
        return kind != ABSENT
    if row_kind != kind:
        return False
    if row_kind == ABSENT:
        return True
    if kind == STRING:
        return mark[low] <= mark[key] and mark[key] < mark[high]
    if key < low or key > high:
        return False
    if key == low and tail < tails >> 16:
        return False
    return key < high or tail < tails & 0xFFFF


@inlined
def _ways(
    sizes: Any,
    base: Any,
    point_node: Any,
    ends_node: Any,
    total: Any,
    a: Any,
    kind: Any,
    key: Any,
    leaf: Any,
    way: Any,
    n: Any,
) -> Any:
    """Write the nodes that a value leads to; return how many there are, and their entries."""
    first = ends_node[a] + (0 if kind == ABSENT else 1)
    way[n] = first
    n += 1
    entries = np.int64(total[first])
    if kind < ABSENT:
        if kind == STRING and point_node[key] >= 0:
            way[n] = point_node[key]
            n += 1
            entries += total[point_node[key]]
        tree = a * 4 + kind
        node = sizes[tree] + leaf
        while node > 0:
            if total[base[tree] + node] > 0:
                way[n] = base[tree] + node
                n += 1
                entries += total[base[tree] + node]
            node >>= 1
    return n, entries


@inlined
def _take(
    head: Any,
    total: Any,
    blocks: Any,
    rows: Any,
    slots: Any,
    mark: Any,
    kinds: Any,
    keys: Any,
    value_tails: Any,
    node: Any,
    e: Any,
    stamp: Any,
    out: Any,
    n: Any,
) -> Any:
    """Write the conjunctions of a node that match an event and were not looked at yet."""
    left, block = np.int64(total[node]), np.int64(head[node])
    within = (left - 1) % BLOCK + 1 if left > 0 else np.int64(0)
    while left > 0:
        following = np.int64(blocks[block, BLOCK])
        if following >= 0:
            prefetch_row(blocks, following)
        for i in range(within):
            prefetch_row(slots, np.int64(blocks[block, i]))
        for i in range(within):
            prefetch_row(rows, slots[blocks[block, i], RUN] >> SIZE_BITS)
        for i in range(within):
            slot = np.int64(blocks[block, i])
            run = slots[slot, RUN]
            if run < 0 or slots[slot, SEEN] == stamp + e:
                continue
            slots[slot, SEEN] = stamp + e
            row, end = run >> SIZE_BITS, (run >> SIZE_BITS) + (run & _ONES)
            holds = True
            while row < end and holds:
                a = rows[row, WHAT] >> 8
                kind, key, tail = np.int64(kinds[e, a]), keys[e, a], np.int64(value_tails[e, a])
                holds = False
                while row < end and rows[row, WHAT] >> 8 == a:
                    what, low, high = rows[row, WHAT], rows[row, LOW], rows[row, HIGH]
                    holds = holds or _holds(
                        mark, what, low, high, rows[row, TAILS], kind, key, tail
                    )
                    row += 1
            if holds:
                out[n] = slot
                n += 1
        left -= within
        within = np.int64(BLOCK)
        block = following
    return n


@kernel
def match(
    trees: Trees,
    nodes: Nodes,
    rows: NDArray[np.int64],
    slots: NDArray[np.int64],
    events: Events,
    full: NDArray[np.int64],
    any_full: bool,
    n_live: int,
    done: int,
    stamp: int,
    way: NDArray[np.int64],
    out: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> Any:
    """Write the conjunctions that match each event; return how many events are done.

    `full` are the attributes that every conjunction constrains: the one with the smallest set is
    taken, and its conjunctions are checked. Without any they are all attributes, and the sets of
    all are taken. It stops before an event for which `out` may be too small.
    """
    head, total, blocks = nodes.head, nodes.total, nodes.blocks
    start, bounds, sizes, base = trees.start, trees.bounds, trees.size, trees.node
    mark, point_node, ends_node = trees.mark, trees.point_node, trees.ends_node
    kinds, keys, tails = events.kind, events.key, events.offset
    n = offsets[done]
    for e in range(done, len(kinds)):
        if n + n_live > len(out):
            return e
        n_ways, least = np.int64(0), np.int64(1) << 62
        if not any_full:
            way[0] = ALWAYS_NODE
            n_ways = np.int64(1)
        for i in range(len(full)):
            a = full[i]
            kind, key, leaf = np.int64(kinds[e, a]), keys[e, a], np.int64(0)
            if kind < ABSENT:
                tree = a * 4 + kind
                place = mark[key] if kind == STRING else key
                leaf = _count_to(bounds, start[tree], start[tree + 1], place, True)
            before = n_ways
            n_ways, entries = _ways(
                sizes, base, point_node, ends_node, total, a, kind, key, leaf, way, n_ways
            )
            if any_full:
                if entries < least:  # keep this set, drop the one before
                    for j in range(n_ways - before):
                        way[j] = way[before + j]
                    n_ways, least = n_ways - before, entries
                else:
                    n_ways = before
                if least == 0:
                    break
        for w in range(n_ways):
            n = _take(
                head, total, blocks, rows, slots, mark, kinds, keys, tails, way[w], e, stamp, out, n
            )
        offsets[e + 1] = n
    return len(kinds)
