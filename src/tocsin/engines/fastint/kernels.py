"""The kernels of `fastint`: entering intervals into trees, matching, moving a bound; compiled.

Enters and leaves: the arrays of `arrays`. Jayaram et al. (Beretta), sections 5.3 to 5.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.fastint.arrays import (
    ABSENT,
    ALWAYS_NODE,
    BLOCK,
    N_BLOCKS,
    N_ENTRIES,
    N_STALE,
    POINT,
    PRESENT,
    STRING,
    Events,
    Nodes,
    Rows,
    Slots,
    Trees,
)
from tocsin.jit import inlined, kernel

COUNT, FILL, APPEND = 0, 1, 2
"""What `enter` does: count the entries of each node, fill blocks laid out by then, or append."""


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
def _first_leaf(trees: Any, tree: Any, low: Any) -> Any:
    """Return the leaf in which an interval begins."""
    return _count_to(trees.bounds, trees.start[tree], trees.start[tree + 1], low, True)


@inlined
def _last_leaf(trees: Any, tree: Any, high: Any, tail: Any) -> Any:
    """Return the leaf in which an interval ends; with no tail the bound itself is not in it."""
    return _count_to(trees.bounds, trees.start[tree], trees.start[tree + 1], high, tail > 0)


@inlined
def _put(nodes: Any, node: Any, slot: Any, mode: Any, first: Any) -> Any:
    """Add a conjunction to a node; blocks are there."""
    count = nodes.total[node]
    if mode != COUNT:
        within = count % BLOCK
        if within == 0:
            block = np.int64(nodes.state[N_BLOCKS])
            if mode == FILL:
                block = first[node] + count // BLOCK
            else:
                nodes.state[N_BLOCKS] += 1
            nodes.blocks[block, BLOCK] = nodes.head[node] if count > 0 else -1
            nodes.head[node] = block
        nodes.blocks[nodes.head[node], within] = slot
    nodes.total[node] = count + 1


@inlined
def _leaves(trees: Any, rows: Any, row: Any) -> Any:
    """Return the tree of a row that is an interval, and its first leaf and the one after."""
    kind = rows.kind[row]
    tree = np.int64(rows.attribute[row]) * 4 + kind
    low, high, tail = rows.low[row], rows.high[row], rows.high_tail[row]
    if kind == STRING:
        low, high, tail = trees.mark[low], trees.mark[high], np.int16(0)
    return tree, _first_leaf(trees, tree, low), _last_leaf(trees, tree, high, tail) + 1


@inlined
def _single_node(trees: Any, rows: Any, row: Any) -> Any:
    """Return the node of a row that is no interval."""
    if rows.kind[row] == POINT:
        return trees.point_node[rows.low[row]]
    return trees.ends_node[rows.attribute[row]] + (1 if rows.kind[row] == PRESENT else 0)


@inlined
def _enter_row(
    trees: Any, nodes: Any, rows: Any, row: Any, slot: Any, mode: Any, first: Any
) -> Any:
    """Add a conjunction to the nodes that make up a row; return to how many."""
    if rows.kind[row] >= ABSENT:
        _put(nodes, _single_node(trees, rows, row), slot, mode, first)
        return np.int64(1)
    tree, a, b = _leaves(trees, rows, row)
    base = trees.node[tree]
    a += trees.size[tree]
    b += trees.size[tree]
    n = np.int64(0)
    while a < b:
        if a & 1:
            _put(nodes, base + a, slot, mode, first)
            a += 1
            n += 1
        if b & 1:
            b -= 1
            _put(nodes, base + b, slot, mode, first)
            n += 1
        a >>= 1
        b >>= 1
    return n


@kernel
def enter(
    trees: Trees,
    nodes: Nodes,
    rows: Rows,
    slots: Slots,
    chosen: NDArray[np.int64],
    done: int,
    mode: int,
    first: NDArray[np.int64],
) -> Any:
    """Enter conjunctions into the nodes of their rows; return how many are done.

    When appending, it stops where there may be too few blocks. `first[node]` is the first block of
    a node when filling.
    """
    for i in range(done, len(chosen)):
        slot = chosen[i]
        size = np.int64(slots.size[slot])
        if mode == APPEND and nodes.state[N_BLOCKS] + 130 * (size + 1) > len(nodes.blocks):
            return i
        n = np.int64(0)
        if size == 0:
            _put(nodes, np.int64(ALWAYS_NODE), slot, mode, first)
            n += 1
        for row in range(slots.start[slot], slots.start[slot] + size):
            n += _enter_row(trees, nodes, rows, row, slot, mode, first)
        if mode != COUNT:
            slots.n_entries[slot] = n
            nodes.state[N_ENTRIES] += n
    return len(chosen)


@kernel
def move_row(
    trees: Trees,
    nodes: Nodes,
    rows: Rows,
    slots: Slots,
    slot: int,
    row: int,
    low: int,
    high: int,
    low_tail: int,
    high_tail: int,
) -> None:
    """Give a row that is an interval other bounds, in place.

    The conjunction is added to the nodes that are new. Where it was before it stays, which does no
    harm since candidates are checked; it is counted as stale.
    """
    tree, old_a, old_b = _leaves(trees, rows, row)
    rows.low[row], rows.high[row] = low, high
    rows.low_tail[row], rows.high_tail[row] = low_tail, high_tail
    tree, a, b = _leaves(trees, rows, row)
    if a == old_a and b == old_b:
        return
    base, size = trees.node[tree], trees.size[tree]
    new, width = np.int64(0), np.int64(1)
    first = np.empty(0, np.int64)
    a += size
    b += size
    while a < b:
        for side in range(2):
            node = a if side == 0 else b - 1
            if (side == 0 and a & 1) or (side == 1 and b & 1 and a < b):
                begin = node * width - size
                above = (node >> 1) * 2 * width - size
                inside = begin >= old_a and begin + width <= old_b
                held = inside and not (above >= old_a and above + 2 * width <= old_b)
                if not held:
                    _put(nodes, base + node, np.int64(slot), APPEND, first)
                    new += 1
                if side == 0:
                    a += 1
                else:
                    b -= 1
        a >>= 1
        b >>= 1
        width *= 2
    nodes.state[N_ENTRIES] += new
    nodes.state[N_STALE] += new
    slots.n_entries[slot] += new


@kernel
def move_point(
    trees: Trees, nodes: Nodes, rows: Rows, slots: Slots, slot: int, row: int, low: int, high: int
) -> None:
    """Have a row name another string, in place; what names the old one is stale."""
    rows.low[row], rows.high[row] = low, high
    _put(nodes, trees.point_node[low], np.int64(slot), APPEND, np.empty(0, np.int64))
    nodes.state[N_ENTRIES] += 1
    nodes.state[N_STALE] += 1
    slots.n_entries[slot] += 1


@inlined
def _size_of(trees: Any, nodes: Any, attribute: Any, kind: Any, key: Any, leaf: Any) -> Any:
    """Return how many entries lie on the way from a leaf to the root, with those beside."""
    ends = trees.ends_node[attribute]
    if kind == ABSENT:
        return np.int64(nodes.total[ends])
    n = np.int64(nodes.total[ends + 1])
    if kind == PRESENT:
        return n
    tree = attribute * 4 + kind
    if kind == STRING and trees.point_node[key] >= 0:
        n += nodes.total[trees.point_node[key]]
    base, node = trees.node[tree], trees.size[tree] + leaf
    while node > 0:
        n += nodes.total[base + node]
        node >>= 1
    return n


@inlined
def _holds(trees: Any, rows: Any, row: Any, kind: Any, key: Any, tail: Any) -> Any:
    """Whether a value lies in a row."""
    asked = rows.kind[row]
    if asked == POINT:
        return kind == STRING and key == rows.low[row]
    if asked == PRESENT:
        return kind != ABSENT
    if asked != kind:
        return False
    if asked == ABSENT:
        return True
    low, high = rows.low[row], rows.high[row]
    if kind == STRING:
        place = trees.mark[key]
        return trees.mark[low] <= place and place < trees.mark[high]
    if key < low or key > high:
        return False
    if key == low and tail < rows.low_tail[row]:
        return False
    return key < high or tail < rows.high_tail[row]


@inlined
def _matches(trees: Any, rows: Any, start: Any, end: Any, events: Any, e: Any) -> Any:
    """Whether an event satisfies all conditions of a conjunction."""
    row = start
    while row < end:
        attribute = rows.attribute[row]
        kind, key, tail = (
            events.kind[e, attribute],
            events.key[e, attribute],
            events.tail[e, attribute],
        )
        held = False
        while row < end and rows.attribute[row] == attribute:
            held = held or _holds(trees, rows, row, kind, key, tail)
            row += 1
        if not held:
            return False
    return True


@inlined
def _take(
    trees: Any,
    nodes: Any,
    rows: Any,
    slots: Any,
    node: Any,
    events: Any,
    e: Any,
    seen: Any,
    stamp: Any,
    out: Any,
    n: Any,
) -> Any:
    """Write the conjunctions of a node that match and were not looked at yet."""
    block = nodes.head[node]
    left = np.int64(nodes.total[node])
    within = (left - 1) % BLOCK + 1 if left > 0 else np.int64(0)
    while left > 0:
        for i in range(within):
            slot = nodes.blocks[block, i]
            if seen[slot] != stamp and slots.owner[slot] >= 0:
                seen[slot] = stamp
                start = slots.start[slot]
                if _matches(trees, rows, start, start + slots.size[slot], events, e):
                    out[n] = slot
                    n += 1
        left -= within
        within = np.int64(BLOCK)
        block = nodes.blocks[block, BLOCK]
    return n


@inlined
def _take_attribute(
    trees: Any,
    nodes: Any,
    rows: Any,
    slots: Any,
    attribute: Any,
    leaf: Any,
    events: Any,
    e: Any,
    seen: Any,
    stamp: Any,
    out: Any,
    n: Any,
    way: Any,
) -> Any:
    """Write the matching conjunctions that the value of one attribute leads to."""
    kind = events.kind[e, attribute]
    ends = trees.ends_node[attribute]
    n_ways = np.int64(0)
    way[n_ways] = ends if kind == ABSENT else ends + 1
    n_ways += 1
    if kind < ABSENT:
        tree = np.int64(attribute) * 4 + kind
        if kind == STRING and trees.point_node[events.key[e, attribute]] >= 0:
            way[n_ways] = trees.point_node[events.key[e, attribute]]
            n_ways += 1
        base, node = trees.node[tree], trees.size[tree] + leaf
        while node > 0:
            if nodes.total[base + node] > 0:
                way[n_ways] = base + node
                n_ways += 1
            node >>= 1
    for i in range(n_ways):
        n = _take(trees, nodes, rows, slots, way[i], events, e, seen, stamp, out, n)
    return n


@inlined
def _leaf_of(trees: Any, events: Any, e: Any, attribute: Any) -> Any:
    """Return the leaf in which a value lies."""
    kind = events.kind[e, attribute]
    if kind >= ABSENT:
        return np.int64(0)
    key = events.key[e, attribute]
    if kind == STRING:
        key = trees.mark[key]
    return _first_leaf(trees, np.int64(attribute) * 4 + kind, key)


@kernel
def match(
    trees: Trees,
    nodes: Nodes,
    rows: Rows,
    slots: Slots,
    events: Events,
    full: NDArray[np.int64],
    n_live: int,
    done: int,
    seen: NDArray[np.int64],
    stamp: int,
    out: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> Any:
    """Write the conjunctions that match each event; return how many events are done.

    `full` are the attributes that every conjunction constrains: the one with the smallest set is
    taken, and what is in it is checked. Without any, the sets of all attributes are taken. It stops
    before an event for which `out` may be too small.
    """
    n = offsets[done]
    way = np.empty(70, np.int64)
    n_attributes = events.kind.shape[1]
    for e in range(done, len(events.kind)):
        if n + n_live > len(out):
            return e
        best, best_leaf, least = np.int64(-1), np.int64(0), np.int64(1) << 62
        for i in range(len(full)):
            a = full[i]
            leaf = _leaf_of(trees, events, e, a)
            size = _size_of(trees, nodes, a, events.kind[e, a], events.key[e, a], leaf)
            if size < least:
                best, best_leaf, least = a, leaf, size
            if size == 0:
                break
        first, last = best, best + 1
        if best < 0:
            first, last = np.int64(0), np.int64(n_attributes)
            always = np.int64(ALWAYS_NODE)
            n = _take(trees, nodes, rows, slots, always, events, e, seen, stamp + e, out, n)
        for a in range(first, last):
            leaf = best_leaf if best >= 0 else _leaf_of(trees, events, e, a)
            n = _take_attribute(
                trees, nodes, rows, slots, a, leaf, events, e, seen, stamp + e, out, n, way
            )
        offsets[e + 1] = n
    return len(events.kind)
