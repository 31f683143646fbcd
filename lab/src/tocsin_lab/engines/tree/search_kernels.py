"""Searching the matching tree, compiled: which conjunctions an event satisfies.

Enters: the arrays of a tree, the cuts of events. Leaves: for each event the conjunctions it
satisfies (LIKE patterns apart); for a tree that is searched with annotations, the successors of its
nodes. Nothing here changes a tree. How a pair is found in the hash table of edges stands here as it
does in `kernels`: a cached kernel would not notice a change there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, kernel, prefetch_row
from tocsin_lab.engines.tree.arrays import (
    CHILD,
    CONJUNCTION,
    FILTER,
    FIRST,
    HEAD,
    HIGH,
    LEAF,
    LEVEL,
    LOW,
    N_ADJACENT,
    N_SETS,
    NEXT,
    NONE,
    REACH,
    STAR,
    TEST,
    Cells,
    Factors,
    Integers,
    Numbers,
    Scalar,
    Successors,
    Tests,
    Tree,
)


@inlined
def _home(key: Scalar, n: Scalar) -> Scalar:
    return (np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & np.uint64(n - 1)


@inlined
def _key(first: Scalar, second: Scalar) -> Scalar:
    return (np.int64(first) << np.int64(32)) | np.int64(second)


@inlined
def _find(slots: Scalar, first: Scalar, second: Scalar) -> Scalar:
    """Return what a pair leads to, or -1."""
    key = _key(first, second)
    at = _home(key, len(slots))
    while slots[at, np.uint64(0)] != key:
        if slots[at, np.uint64(0)] == np.int64(NONE):
            return np.int64(NONE)
        at = (at + np.uint64(1)) & np.uint64(len(slots) - 1)
    return slots[at, np.uint64(1)]


# Matching: the paper's procedure `visit`.


@inlined
def _root_of(cells: Cells, factors: Factors, row: Scalar) -> Scalar:
    """Return the root to which an event comes."""
    root = np.int64(0)
    for level in range(len(factors.stride)):
        cut = row[level]
        value, unit = cells.value[cut], cells.unit[cut]
        digit = np.int64(factors.digit[value]) if value >= 0 else np.int64(0)
        if digit == 0 and unit >= 0:
            digit = np.int64(factors.digit[unit])
        root += digit * factors.stride[level]
    return root


@inlined
def _may_have(nodes: Scalar, node: Scalar, test: Scalar) -> Scalar:
    column = np.uint64(FILTER) + np.uint64((test >> 5) & 1)
    return (nodes[node, column] >> np.int32(test & 31)) & 1


@inlined
def _holds(tests: Tests, test: Scalar, mark: Scalar) -> Scalar:
    for i in range(tests.start[test], tests.start[test + 1]):
        if mark < tests.mark[tests.high[i]]:
            return tests.mark[tests.low[i]] <= mark
    return False


@inlined
def _push_sets(tree: Tree, tests: Tests, node: Scalar, mark: Scalar, stack: Any, top: Any) -> Any:
    """Push the children whose sets hold for a mark; return the new top."""
    lists = tree.lists
    start, n = np.int64(tree.nodes[node, FIRST]), np.int64(tree.nodes[node, N_SETS])
    first, last = start, start + n
    while first < last:
        middle = (first + last) >> np.int64(1)
        if lists[middle, LOW] <= mark:
            first = middle + np.int64(1)
        else:
            last = middle
    end = first
    first, last = start, end
    while first < last:
        middle = (first + last) >> np.int64(1)
        if lists[middle, REACH] > mark:
            last = middle
        else:
            first = middle + np.int64(1)
    for i in range(first, end):
        if lists[i, HIGH] > mark:
            test = lists[i, TEST]
            if test >= 0 or _holds(tests, ~test, mark):
                stack[top] = lists[i, CHILD]
                top += 1
    return top


@inlined
def _push_all(after: Successors, node: Scalar, stack: Any, top: Any) -> Any:
    """Push the successors of a node; return the new top."""
    for i in range(after.span[node, 0], after.span[node, 1]):
        stack[top] = after.node[i]
        top += 1
    return top


@inlined
def _write(nodes: Scalar, entries: Scalar, leaf: Scalar, out: Any, n: Any) -> Any:
    """Write the conjunctions of a leaf; return how many are written in all."""
    out[n] = nodes[leaf, HEAD]
    if nodes[leaf, N_SETS] == 1:
        return n + 1
    first, n_adjacent = np.int64(nodes[leaf, FIRST]), np.int64(nodes[leaf, N_ADJACENT])
    for i in range(n_adjacent):
        out[n + i] = entries[first - i, CONJUNCTION]
    n += n_adjacent
    entry = np.int64(entries[first - n_adjacent + 1, NEXT])
    while entry >= 0:
        out[n] = entries[entry, CONJUNCTION]
        n += 1
        entry = np.int64(entries[entry, NEXT])
    return n


@inlined
def _ask_edges(nodes: Scalar, slots: Scalar, cells: Cells, node: Scalar, cut: Scalar) -> None:
    """Ask for the edges of a node that an event may follow."""
    for kind in range(2):
        test = np.int64(cells.value[cut] if kind == 0 else cells.unit[cut])
        if test >= 0 and _may_have(nodes, node, test):
            prefetch_row(slots, np.int64(_home(_key(node, test), len(slots))))


@kernel
def match(
    tree: Tree,
    tests: Tests,
    cells: Cells,
    factors: Factors,
    events: NDArray[np.int32],
    wave: Numbers,
    out: Numbers,
    offsets: Integers,
    visits: Integers,
    first: int,
) -> int:
    """Write the conjunctions of each event from the first on; return where room ran out.

    The nodes that an event visits are met in waves: what the next step reads is asked for first.
    """
    nodes, slots, entries = tree.nodes, tree.slots, tree.entries
    for e in range(first, len(events)):
        n = offsets[e]
        wave[0] = tree.roots[_root_of(cells, factors, events[e])]
        start, end = np.int64(0), np.int64(1 if wave[0] >= 0 else 0)
        while start < end:
            last = end
            for i in range(start, last):  # ask for edges and entries
                node = np.int64(wave[i])
                level = np.int64(nodes[node, LEVEL])
                if level != LEAF:
                    _ask_edges(nodes, slots, cells, node, events[e, level])
                elif nodes[node, N_SETS] > 1:
                    prefetch_row(entries, np.int64(nodes[node, FIRST]))
            for i in range(start, last):
                node = np.int64(wave[i])
                level = np.int64(nodes[node, LEVEL])
                if level == LEAF:
                    if n + nodes[node, N_SETS] > len(out):
                        return e
                    n = _write(nodes, entries, node, out, n)
                    continue
                star = np.int64(nodes[node, STAR])
                if star >= 0:
                    prefetch_row(nodes, star)
                    wave[end] = star
                    end += 1
                cut = events[e, level]
                if nodes[node, N_SETS] > 0:
                    end = _push_sets(tree, tests, node, tests.mark[cut], wave, end)
                for kind in range(2):
                    test = np.int64(cells.value[cut] if kind == 0 else cells.unit[cut])
                    if test >= 0 and _may_have(nodes, node, test):
                        child = _find(slots, node, test)
                        if child >= 0:
                            prefetch_row(nodes, child)
                            wave[end] = child
                            end += 1
            start = last
        visits[0] += end
        offsets[e + 1] = n
    return len(events)


@kernel
def match_annotated(
    tree: Tree,
    tests: Tests,
    cells: Cells,
    factors: Factors,
    after: Successors,
    events: NDArray[np.int32],
    stack: Numbers,
    out: Numbers,
    offsets: Integers,
    visits: Integers,
    first: int,
) -> int:
    """The same in a tree with annotations: in depth, so that what waits can be left out."""
    nodes, slots, entries = tree.nodes, tree.slots, tree.entries
    for e in range(first, len(events)):
        n = offsets[e]
        stack[0] = tree.roots[_root_of(cells, factors, events[e])]
        top = np.int64(1 if stack[0] >= 0 else 0)
        while top > 0:
            top -= 1
            item = np.int64(stack[top])
            node = item if item >= 0 else ~item
            visits[0] += 1
            waits = item >= 0
            if waits and after.is_gap[node]:
                top = _push_all(after, node, stack, top)
                waits = False  # type: ignore[assignment]
            level = np.int64(nodes[node, LEVEL])
            if level == LEAF:
                if n + nodes[node, N_SETS] > len(out):
                    return e
                n = _write(nodes, entries, node, out, n)
                if waits:
                    top = _push_all(after, node, stack, top)
                continue
            bottom = top
            if nodes[node, STAR] >= 0:
                stack[top] = ~nodes[node, STAR]
                top += 1
            if waits:
                top = _push_all(after, node, stack, top)
            cut = events[e, level]
            if nodes[node, N_SETS] > 0:
                top = _push_sets(tree, tests, node, tests.mark[cut], stack, top)
            for kind in range(2):
                test = np.int64(cells.value[cut] if kind == 0 else cells.unit[cut])
                if test >= 0 and _may_have(nodes, node, test):
                    child = _find(slots, node, test)
                    if child >= 0:
                        if after.is_plain[level]:
                            top = bottom  # the child's successors are what waits here
                        stack[top] = child
                        top += 1
        offsets[e + 1] = n
    return len(events)


# Annotating: the paper's successor nodes.


@kernel
def annotate(tree: Tree, order: Integers, after: Successors, stack: Numbers) -> int:
    """Write the successors of every node; `order` is by the level of parents. -1: no room.

    Those of a child c that node v reaches by test t are the star child of v, and what each
    successor of v leads to by t; where one leads nowhere by t, its own star child and successors.
    """
    nodes, span = tree.nodes, after.span
    n = np.int64(0)
    for q in range(len(order)):
        c = order[q]
        v, t = np.int64(tree.parent[c]), np.int64(tree.label[c])
        span[c, 0] = span[c, 1] = n
        after.is_gap[c] = False
        if v < 0 or t < 0 or not after.is_plain[nodes[v, LEVEL]]:
            continue
        level = nodes[v, LEVEL]
        after.is_gap[c] = nodes[c, LEVEL] != level + 1
        top = np.int64(0) if after.is_gap[v] else _push_all(after, v, stack, np.int64(0))
        item = np.int64(~v)
        while True:
            node = item if item >= 0 else ~item
            is_here = nodes[node, LEVEL] == level
            onward = _find(tree.slots, node, t) if is_here and node != v else np.int64(NONE)
            if onward < 0:
                star = np.int64(nodes[node, STAR]) if is_here else node
                onward = ~star if star >= 0 else np.int64(NONE)
                if item >= 0:
                    top = _push_all(after, node, stack, top)
            if onward != NONE:
                if n == len(after.node):
                    return -1
                after.node[n] = onward
                n += 1
            if top == 0:
                break
            top -= 1
            item = np.int64(stack[top])
        span[c, 1] = n
    return int(n)
