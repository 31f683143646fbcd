"""The matching tree, compiled: inserting and deleting in flat arrays.

Enters: tests (interned conditions), conjunctions as runs of tests in the order of levels. Leaves:
the changed arrays of the tree. `search_kernels` has what events do with it.

A *node* is a row of `nodes`; a leaf's level is LEAF. An *edge* is a row of `slots`, a hash table
with open addressing from (node, test) to the child; the don't-care edge is a column of the node.
Tests of more than one value ("sets") stand besides in the node's *list*: a block of `lists`,
ordered by lower and upper mark, with the greatest upper mark so far as REACH, so that the edges
that may hold for a mark are a window found by two searches. An *entry* is a conjunction
in a leaf. Freed nodes, entries and blocks are chained and used again.
"""

from __future__ import annotations

import numpy as np

from tocsin.jit import inlined, inner, kernel
from tocsin_lab.engines.tree.arrays import (
    AT,
    BEFORE,
    CHILD,
    CONJUNCTION,
    FILTER,
    FILTER2,
    FIRST,
    FREE_BLOCK,
    FREE_ENTRY,
    FREE_NODE,
    HEAD,
    HIGH,
    LEAF,
    LEVEL,
    LOW,
    N_ADJACENT,
    N_BLOCKS,
    N_EDGES,
    N_ENTRIES,
    N_LIVE,
    N_NODES,
    N_SETS,
    N_SLOTS,
    NEXT,
    NONE,
    REACH,
    ROOM,
    SET,
    STAR,
    TEST,
    TWIN,
    WIDEST,
    Factors,
    Integers,
    Numbers,
    Runs,
    Scalar,
    Tests,
    Tree,
)

_LOOK_BACK = 8
"""How many edges are tried, from the nearest on, for one whose test holds where a new one does."""


# Pairs of numbers → numbers.


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


@inner
def _put(slots: Scalar, first: Scalar, second: Scalar, value: Scalar) -> Scalar:
    """Set what a pair leads to; return whether the pair is new."""
    key = _key(first, second)
    at = _home(key, len(slots))
    while slots[at, np.uint64(0)] != key:
        if slots[at, np.uint64(0)] == np.int64(NONE):
            slots[at, np.uint64(0)] = key
            slots[at, np.uint64(1)] = value
            return True
        at = (at + np.uint64(1)) & np.uint64(len(slots) - 1)
    slots[at, np.uint64(1)] = value
    return False


@inner
def _drop(slots: Scalar, first: Scalar, second: Scalar) -> None:
    """Forget a pair; what was displaced by it moves back."""
    key = _key(first, second)
    mask = np.uint64(len(slots) - 1)
    at = _home(key, len(slots))
    while slots[at, np.uint64(0)] != key:
        at = (at + np.uint64(1)) & mask
    after = (at + np.uint64(1)) & mask
    while slots[after, np.uint64(0)] != np.int64(NONE):
        home = _home(slots[after, np.uint64(0)], len(slots))
        if ((after - home) & mask) >= ((after - at) & mask):
            slots[at, np.uint64(0)] = slots[after, np.uint64(0)]
            slots[at, np.uint64(1)] = slots[after, np.uint64(1)]
            at = after
        after = (after + np.uint64(1)) & mask
    slots[at, np.uint64(0)] = np.int64(NONE)


@kernel
def move_pairs(slots: Integers, larger: Integers) -> None:
    """Copy all pairs into a larger table."""
    for key, value in slots:
        if key != NONE:
            _put(larger, key >> np.int64(32), key & np.int64(0xFFFFFFFF), value)


@kernel
def intern(slots: Integers, first: Numbers, second: Numbers, n: int, numbers: Numbers) -> int:
    """Give each pair its number: the one it has, or n, n + 1, …; return the next."""
    for i in range(len(first)):
        known = _find(slots, first[i], second[i])
        if known < 0:
            known = np.int64(n)
            _put(slots, first[i], second[i], known)
            n += 1
        numbers[i] = known
    return n


# Nodes, entries and lists.


@inner
def _new_node(nodes: Scalar, counts: Scalar, level: Scalar) -> Scalar:
    node = counts[FREE_NODE]
    if node >= 0:
        counts[FREE_NODE] = nodes[node, FIRST]
    else:
        node = counts[N_NODES]
        counts[N_NODES] += 1
    counts[N_LIVE] += 1
    for column in range(8):
        nodes[node, column] = 0
    nodes[node, LEVEL] = level
    nodes[node, STAR] = NONE
    nodes[node, FIRST] = NONE
    return node


@inner
def _free_node(nodes: Scalar, lists: Scalar, counts: Scalar, node: Scalar) -> None:
    if nodes[node, ROOM] > 0:
        _free_block(lists, counts, np.int64(nodes[node, FIRST]), np.int64(nodes[node, ROOM]))
    nodes[node, LEVEL] = NONE
    nodes[node, FIRST] = counts[FREE_NODE]
    counts[FREE_NODE] = node
    counts[N_LIVE] -= 1


@inlined
def _chain(room: Scalar) -> Scalar:
    """Return where the chain of free blocks with so much room starts."""
    chain = FREE_BLOCK
    while (1 << (chain - FREE_BLOCK)) < room:
        chain += 1
    return chain


@inner
def _free_block(lists: Scalar, counts: Scalar, start: Scalar, room: Scalar) -> None:
    lists[start, CHILD] = counts[_chain(room)]
    counts[_chain(room)] = start


@inner
def _widen(nodes: Scalar, lists: Scalar, counts: Scalar, node: Scalar) -> None:
    """Give a node's list twice the room."""
    old, had = np.int64(nodes[node, FIRST]), np.int64(nodes[node, ROOM])
    room = max(2 * had, np.int64(1))
    new = counts[_chain(room)]
    if new >= 0:
        counts[_chain(room)] = lists[new, CHILD]
    else:
        new = counts[N_BLOCKS]
        counts[N_BLOCKS] += room
    for i in range(nodes[node, N_SETS]):
        _copy_edge(lists, old + i, new + i)
    if had > 0:
        _free_block(lists, counts, old, had)
    nodes[node, FIRST] = new
    nodes[node, ROOM] = room
    counts[WIDEST] = max(counts[WIDEST], room)


@inlined
def _copy_edge(lists: Scalar, one: Scalar, other: Scalar) -> None:
    for column in range(5):
        lists[other, column] = lists[one, column]


@inlined
def _place(lists: Scalar, start: Scalar, n: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return how many edges of a list come before one with these marks."""
    first, last = np.int64(0), np.int64(n)
    while first < last:
        middle = (first + last) >> np.int64(1)
        its = lists[start + middle, LOW]
        if its < low or (its == low and lists[start + middle, HIGH] < high):
            first = middle + np.int64(1)
        else:
            last = middle
    return first


@inner
def _add_to_list(
    lists: Scalar, start: Scalar, n: Scalar, head: Scalar, child: Scalar, low: Scalar, high: Scalar
) -> None:
    at = start + _place(lists, start, n, low, high)
    for i in range(start + n, at, -1):
        _copy_edge(lists, i - 1, i)
    lists[at, LOW], lists[at, HIGH] = low, high
    lists[at, TEST], lists[at, CHILD] = head, child
    _fill_reach(lists, start, at, start + n + 1)


@inlined
def _fill_reach(lists: Scalar, start: Scalar, first: Scalar, end: Scalar) -> None:
    reach = lists[first - 1, REACH] if first > start else lists[first, HIGH]
    for i in range(first, end):
        reach = max(reach, lists[i, HIGH])
        lists[i, REACH] = reach


@inner
def _find_in_list(lists: Scalar, start: Scalar, n: Scalar, head: Scalar, low: Scalar) -> Scalar:
    at = start + _place(lists, start, n, low, np.int64(-1))
    while lists[at, TEST] != head:
        at += 1
    return at


@inner
def _remove_from_list(lists: Scalar, start: Scalar, n: Scalar, head: Scalar, low: Scalar) -> None:
    at = _find_in_list(lists, start, n, head, low)
    for i in range(at, start + n - 1):
        _copy_edge(lists, i + 1, i)
    if at < start + n - 1:
        _fill_reach(lists, start, at, start + n - 1)


@inlined
def _head(tests: Tests, test: Scalar) -> Scalar:
    """Return how a test stands in a list: as it is when it has one range, else inverted."""
    return test if tests.start[test + 1] - tests.start[test] == 1 else ~test


@inlined
def _low_mark(tests: Tests, test: Scalar) -> Scalar:
    return tests.mark[tests.low[tests.start[test]]]


@inlined
def _high_mark(tests: Tests, test: Scalar) -> Scalar:
    return tests.mark[tests.high[tests.start[test + 1] - 1]]


@kernel
def refresh_bounds(tree: Tree, tests: Tests) -> None:
    """Rewrite the marks of all lists, after cuts got other marks (in the same order)."""
    nodes, lists = tree.nodes, tree.lists
    for node in range(tree.counts[N_NODES]):
        if nodes[node, LEVEL] == NONE or nodes[node, LEVEL] == LEAF or nodes[node, N_SETS] == 0:
            continue
        start = np.int64(nodes[node, FIRST])
        for i in range(start, start + nodes[node, N_SETS]):
            test = lists[i, TEST]
            test = test if test >= 0 else ~test
            lists[i, LOW], lists[i, HIGH] = _low_mark(tests, test), _high_mark(tests, test)
        _fill_reach(lists, start, start, start + nodes[node, N_SETS])


@inner
def _child(tree: Tree, at: Scalar, by: Scalar) -> Scalar:
    """Return the node that an edge leads to, or -1; the edges of no node lead to the roots."""
    if at < 0:
        return np.int64(tree.roots[by])
    if by < 0:
        return np.int64(tree.nodes[at, STAR])
    return _find(tree.slots, at, by)


@inner
def _attach(tree: Tree, tests: Tests, at: Scalar, by: Scalar, child: Scalar) -> None:
    """Let an edge lead to a node; the edge is made where there is none."""
    nodes = tree.nodes
    tree.parent[child], tree.label[child] = at, by
    if at < 0:
        tree.roots[by] = child
    elif by < 0:
        nodes[at, STAR] = child
    else:
        is_new = _put(tree.slots, at, by, child)
        if is_new:
            tree.counts[N_SLOTS] += 1
            nodes[at, N_EDGES] += 1
        if tests.sort[by] == SET:
            head, low = np.int64(_head(tests, by)), _low_mark(tests, by)
            n = np.int64(nodes[at, N_SETS])
            if is_new and n == nodes[at, ROOM]:
                _widen(nodes, tree.lists, tree.counts, at)
            start = np.int64(nodes[at, FIRST])
            if is_new:
                _add_to_list(tree.lists, start, n, head, child, low, _high_mark(tests, by))
                nodes[at, N_SETS] += 1
            else:
                tree.lists[_find_in_list(tree.lists, start, n, head, low), CHILD] = child
        else:
            nodes[at, FILTER + ((by >> 5) & 1)] |= np.int32(1) << np.int32(by & 31)


# Inserting: the paper's appendix.


@inner
def _holder(lists: Scalar, start: Scalar, n: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return a test of a node's list that holds between two marks and beyond, or -1."""
    at = start + _place(lists, start, n, low + 1, np.int64(-1)) - 1
    for i in range(at, max(at - _LOOK_BACK, start - 1), -1):
        if lists[i, REACH] < high:
            return np.int64(NONE)
        if lists[i, HIGH] >= high and lists[i, TEST] >= 0:
            return lists[i, TEST]
    return np.int64(NONE)


@inner
def _relation(tests: Tests, test: Scalar, value: Scalar) -> Scalar:
    """Return how a test and a test of one value are: 0 apart, 1 they overlap, 2 it holds there."""
    low, high = _low_mark(tests, value), _high_mark(tests, value)
    relation = np.int64(0)
    for i in range(tests.start[test], tests.start[test + 1]):
        its_low, its_high = tests.mark[tests.low[i]], tests.mark[tests.high[i]]
        if its_low <= low and high <= its_high:
            return np.int64(2)
        if its_low < high and low < its_high:
            relation = np.int64(1)
    return relation


@inlined
def _digit(factors: Factors, root: Scalar, level: Scalar) -> Scalar:
    n = factors.start[level + 1] - factors.start[level]
    return root // factors.stride[level] % n


@inner
def _is_settled(tests: Tests, factors: Factors, test: Scalar, root: Scalar) -> Scalar:
    """Whether a test holds for every event that comes to a root."""
    level = np.int64(tests.level[test])
    if level >= len(factors.stride) or _digit(factors, root, level) == 0:
        return False
    value = factors.test[factors.start[level] + _digit(factors, root, level)]
    return _relation(tests, test, np.int64(value)) == 2


@inner
def _add_entry(tree: Tree, first_entry: Numbers, leaf: Scalar, conjunction: Scalar) -> None:
    nodes, entries, counts = tree.nodes, tree.entries, tree.counts
    entry = counts[FREE_ENTRY]
    if entry >= 0:
        counts[FREE_ENTRY] = entries[entry, NEXT]
    else:
        entry = counts[N_ENTRIES]
        counts[N_ENTRIES] += 1
    following = nodes[leaf, FIRST]
    entries[entry, CONJUNCTION], entries[entry, AT] = conjunction, leaf
    entries[entry, NEXT], entries[entry, BEFORE] = following, NONE
    entries[entry, TWIN], first_entry[conjunction] = first_entry[conjunction], entry
    if following >= 0:
        entries[following, BEFORE] = entry
    is_adjacent = following >= 0 and entry == following + 1
    nodes[leaf, N_ADJACENT] = nodes[leaf, N_ADJACENT] + 1 if is_adjacent else 1
    nodes[leaf, FIRST], nodes[leaf, HEAD] = entry, conjunction
    nodes[leaf, N_SETS] += 1


@inner
def _has_room(tree: Tree, n_nodes: Scalar, n_tests: Scalar) -> Scalar:
    counts = tree.counts
    return (
        counts[N_NODES] + n_nodes <= len(tree.nodes)
        and counts[N_ENTRIES] < len(tree.entries)
        and 2 * (counts[N_SLOTS] + n_nodes) <= len(tree.slots)
        and counts[N_BLOCKS] + 2 * n_tests * (counts[WIDEST] + 1) <= len(tree.lists)
    )


@kernel
def insert(
    tree: Tree,
    tests: Tests,
    factors: Factors,
    runs: Runs,
    conjunctions: Integers,
    roots: Integers,
    collapse: bool,
    implied: bool,
    n_levels: int,
    first: int,
) -> int:
    """Insert conjunctions from the first on, each below a root; return where room ran out."""
    for q in range(first, len(conjunctions)):
        c, root = conjunctions[q], roots[q]
        i, end = runs.start[c], runs.start[c + 1]
        if not _has_room(tree, end - i + 2 + (0 if collapse else n_levels), end - i):
            return q
        at, by = np.int64(NONE), root
        while True:
            while i < end and _is_settled(tests, factors, np.int64(runs.test[i]), root):
                i += 1
            goal = np.int64(tests.level[runs.test[i]]) if i < end else np.int64(LEAF)
            node = _child(tree, at, by)
            if node < 0 or tree.nodes[node, LEVEL] > goal:
                level = goal
                if not collapse:
                    level = np.int64(0 if at < 0 else tree.nodes[at, LEVEL] + 1)
                    level = min(goal, level) if level < n_levels else goal
                fresh = _new_node(tree.nodes, tree.counts, level)
                _attach(tree, tests, at, by, fresh)
                if node >= 0:
                    _attach(tree, tests, fresh, np.int64(NONE), node)
                node = fresh
            if tree.nodes[node, LEVEL] < goal:
                at, by = node, np.int64(NONE)
                continue
            if goal == LEAF:
                break
            at, by = node, np.int64(runs.test[i])
            if implied and tests.sort[by] == SET and _find(tree.slots, at, by) < 0:
                start, n = np.int64(tree.nodes[at, FIRST]), np.int64(tree.nodes[at, N_SETS])
                low, high = _low_mark(tests, by), _high_mark(tests, by)
                holder = _holder(tree.lists, start, n, low, high)
                if holder >= 0:
                    by = holder
                    continue
            i += 1
        _add_entry(tree, runs.first_entry, node, c)
    return len(conjunctions)


@inner
def _skip(tests: Tests, factors: Factors, test: Scalar, root: Scalar) -> Scalar:
    """Return how many roots from this one on a conjunction with a test does not belong to."""
    level = np.int64(tests.level[test])
    if level >= len(factors.stride):
        return np.int64(0)
    digit, own = _digit(factors, root, level), np.int64(factors.digit[test])
    if tests.sort[test] == factors.sort[level]:  # it holds for one value, that of one digit
        n_digits = factors.start[level + 1] - factors.start[level]
        ahead = own - digit if digit <= own else n_digits - digit
        return ahead * factors.stride[level]
    if digit == 0:
        return np.int64(0)
    value = np.int64(factors.test[factors.start[level] + digit])
    return factors.stride[level] if _relation(tests, test, value) == 0 else np.int64(0)


@kernel
def spread(
    tests: Tests,
    factors: Factors,
    runs: Runs,
    conjunctions: Integers,
    n_roots: int,
    limit: int,
    chosen: Integers,
    roots: Integers,
) -> int:
    """Write the roots that each conjunction belongs to, or (without room) count to a limit."""
    n = 0
    for q in range(len(conjunctions)):
        c = conjunctions[q]
        root = np.int64(0)
        while root < n_roots:
            skip = np.int64(0)
            for i in range(runs.start[c], runs.start[c + 1]):
                skip = max(skip, _skip(tests, factors, np.int64(runs.test[i]), root))
            if skip == 0:
                if n < len(roots):
                    chosen[n], roots[n] = c, root
                n += 1
                skip = np.int64(1 if n <= limit else n_roots)
            root += skip
    return n


# Deleting.


@inner
def _remove_node(tree: Tree, tests: Tests, node: Scalar, collapse: Scalar) -> None:
    """Remove a node without edges or entries, and what then leads nowhere above it."""
    nodes = tree.nodes
    while True:
        at, by = np.int64(tree.parent[node]), np.int64(tree.label[node])
        _free_node(nodes, tree.lists, tree.counts, node)
        if at < 0:
            tree.roots[by] = NONE
            return
        if by < 0:
            nodes[at, STAR] = NONE
        else:
            _drop(tree.slots, at, by)
            tree.counts[N_SLOTS] -= 1
            nodes[at, N_EDGES] -= 1
            if tests.sort[by] == SET:
                start, n = np.int64(nodes[at, FIRST]), np.int64(nodes[at, N_SETS])
                head, low = np.int64(_head(tests, by)), _low_mark(tests, by)
                _remove_from_list(tree.lists, start, n, head, low)
                nodes[at, N_SETS] -= 1
            if nodes[at, N_EDGES] == nodes[at, N_SETS]:
                nodes[at, FILTER] = nodes[at, FILTER2] = 0
        if nodes[at, N_EDGES] > 0:
            return
        star = np.int64(nodes[at, STAR])
        if star >= 0:
            if collapse:
                _attach(tree, tests, np.int64(tree.parent[at]), np.int64(tree.label[at]), star)
                _free_node(nodes, tree.lists, tree.counts, at)
            return
        node = at


@kernel
def delete(tree: Tree, tests: Tests, runs: Runs, conjunctions: Integers, collapse: bool) -> None:
    """Delete conjunctions from all the leaves where they are."""
    nodes, entries, counts = tree.nodes, tree.entries, tree.counts
    for q in range(len(conjunctions)):
        entry = np.int64(runs.first_entry[conjunctions[q]])
        while entry >= 0:
            leaf = np.int64(entries[entry, AT])
            before, following = entries[entry, BEFORE], entries[entry, NEXT]
            if before >= 0:
                entries[before, NEXT] = following
            else:
                nodes[leaf, FIRST] = following
            if following >= 0:
                entries[following, BEFORE] = before
            if before < 0 <= following:
                nodes[leaf, HEAD] = entries[following, CONJUNCTION]
            nodes[leaf, N_ADJACENT] = 1
            nodes[leaf, N_SETS] -= 1
            twin = np.int64(entries[entry, TWIN])
            entries[entry, CONJUNCTION] = NONE
            entries[entry, NEXT] = counts[FREE_ENTRY]
            counts[FREE_ENTRY] = entry
            if nodes[leaf, N_SETS] == 0:
                _remove_node(tree, tests, leaf, collapse)
            entry = twin
        runs.first_entry[conjunctions[q]] = NONE
