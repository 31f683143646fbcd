"""What can be said of the trees: whether they hold what they should, and what covers it all.

Enters: the arrays of a `fastint` engine. Leaves: an AssertionError where an invariant fails; the
least condition that covers the conditions on an attribute (LUB in section 5.4 of the paper).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import FULL, HIGH, LOW, Cut, Domain, Interval, Intervals, unite
from tocsin.normalize.keys import unflatten_cut
from tocsin_lab.engines.fastint.arrays import ALWAYS_NODE, BLOCK, N_ENTRIES, Nodes, Trees
from tocsin_lab.engines.fastint.index import SvTrees
from tocsin_lab.engines.intervals.arrays import (
    ABSENT,
    POINT,
    PRESENT,
    STRING,
    RowArrays,
    Rows,
    take_rows,
    unpack,
)
from tocsin_lab.engines.tree.places import FIRST_DOMAIN, Places, StringCuts


def check(index: SvTrees, arrays: RowArrays, live: NDArray[np.int64]) -> None:
    """Verify that each conjunction is in all nodes that make up its conditions."""
    trees, nodes = index.trees, index.nodes
    members = {node: _members(nodes, node) for node in range(index.n_nodes)}
    for slot in live.tolist():
        rows = unpack(arrays.rows[arrays.places(np.array([slot]))])
        size, attributes = len(rows.kind), rows.attribute
        runs = np.count_nonzero(attributes[1:] != attributes[:-1]) + 1
        assert runs == len(set(attributes.tolist())) or size == 0, "a condition is torn apart"
        if size == 0:
            assert slot in members[ALWAYS_NODE], "a conjunction without conditions is lost"
        for row in range(size):
            for node in _nodes_of(trees, rows, row):
                assert slot in members[node], "a conjunction is missing from a node"
    total = sum(int(n) for n in nodes.total[: index.n_nodes])
    assert total == nodes.state[N_ENTRIES], "entries are miscounted"


def _members(nodes: Nodes, node: int) -> set[int]:
    left, block = int(nodes.total[node]), int(nodes.head[node])
    members: set[int] = set()
    n = (left - 1) % BLOCK + 1 if left else 0
    while left > 0:
        members.update(nodes.blocks[block, :n].tolist())
        left, n, block = left - n, BLOCK, int(nodes.blocks[block, BLOCK])
    return members


def _nodes_of(trees: Trees, rows: Rows, row: int) -> list[int]:
    """Return the nodes that make up a row."""
    kind, attribute = int(rows.kind[row]), int(rows.attribute[row])
    if kind == POINT:
        return [int(trees.point_node[rows.low[row]])]
    if kind >= ABSENT:
        return [int(trees.ends_node[attribute]) + (kind == PRESENT)]
    tree = 4 * attribute + kind
    low, high, closed = int(rows.low[row]), int(rows.high[row]), rows.high_offset[row] > 0
    if kind == STRING:
        low, high, closed = int(trees.mark[low]), int(trees.mark[high]), False
    bounds = trees.bounds[trees.start[tree] : trees.start[tree + 1]]
    size = int(trees.size[tree])
    assert len(bounds) < size or size == 1, "a tree has more leaves than room for them"
    a = int(np.searchsorted(bounds, low, side="right")) + size
    b = int(np.searchsorted(bounds, high, side="right" if closed else "left")) + size + 1
    numbers = []
    while a < b:
        if a & 1:
            numbers.append(a)
        if b & 1:
            numbers.append(b - 1)
        a, b = (a + 1) >> 1, b >> 1
    return [int(trees.node[tree]) + node for node in numbers]


def cover(rows: Rows, attribute: int, places: Places) -> Condition:
    """Return the least interval on each line, or set of strings, that covers the rows."""
    own = take_rows(rows, rows.attribute == attribute)
    absent = bool(np.any(own.kind == ABSENT))
    if np.any(own.kind == PRESENT):
        return Condition(FULL, absent, other=True)
    by_domain: list[Intervals] = [(), (), (), ()]
    for domain in Domain:
        chosen = np.flatnonzero(own.kind == domain)
        if domain is Domain.STRING:
            by_domain[domain] = _cover_strings(own, attribute, places)
        elif len(chosen):
            first = chosen[np.lexsort((own.low_offset[chosen], own.low[chosen]))[0]]
            last = chosen[np.lexsort((own.high_offset[chosen], own.high[chosen]))[-1]]
            low = unflatten_cut(domain, int(own.low[first]), int(own.low_offset[first]), str)
            high = unflatten_cut(domain, int(own.high[last]), int(own.high_offset[last]), str)
            by_domain[domain] = ((low, high),)
    return Condition(tuple(by_domain), absent)


def _cover_strings(own: Rows, attribute: int, places: Places) -> Intervals:
    strings = places.attributes[attribute].domains[Domain.STRING]
    assert isinstance(strings, StringCuts)
    start = places.attributes[attribute].first + FIRST_DOMAIN + Domain.STRING
    cut_of: dict[int, Cut] = dict(zip(strings.cuts.tolist(), strings.bounds, strict=True))
    cut_of |= {start: LOW[Domain.STRING], start + 1: HIGH[Domain.STRING]}
    intervals: list[Interval] = []
    for kind in (STRING, POINT):
        chosen = own.kind == kind
        pairs = set(zip(own.low[chosen].tolist(), own.high[chosen].tolist(), strict=True))
        intervals += [(cut_of[low], cut_of[high]) for low, high in pairs]
    united = unite(tuple(intervals), ())
    return united if not np.any(own.kind == STRING) else ((united[0][0], united[-1][1]),)
