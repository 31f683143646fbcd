"""What holds of a matching tree, verified; the path to a conjunction, in words; a tree, drawn.

Enters: a forest. Leaves: an AssertionError where an invariant fails; a sentence; dictionaries.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import unflatten_cut
from tocsin_lab.engines.tree import arrays
from tocsin_lab.engines.tree.conditions import SET
from tocsin_lab.engines.tree.forest import Forest
from tocsin_lab.engines.tree.places import StringCuts


def check(forest: Forest, live: NDArray[np.int64]) -> None:
    """Verify that the tree holds the live conjunctions and nothing besides them."""
    _check_cuts(forest)
    nodes = _live_nodes(forest)
    assert len(nodes) == forest.n_nodes, "nodes are miscounted"
    _check_edges(forest, nodes)
    _check_shape(forest, nodes)
    for node in nodes[forest.tree.nodes[nodes, arrays.LEVEL] != arrays.LEAF].tolist():
        if forest.tree.nodes[node, arrays.N_SETS]:
            _check_list(forest, node)
    _check_entries(forest, nodes, live)


def _live_nodes(forest: Forest) -> NDArray[np.int64]:
    n = int(forest.tree.counts[arrays.N_NODES])
    return 1 + np.flatnonzero(forest.tree.nodes[1:n, arrays.LEVEL] != arrays.NONE)


def _check_cuts(forest: Forest) -> None:
    """Marks must have the order of the cuts."""
    places = forest.book.places
    for attribute in places.attributes:
        for domain, domain_cuts in enumerate(attribute.domains):
            ends = np.arange(attribute.first + 1 + domain, attribute.first + 3 + domain)
            cuts = np.concatenate([ends[:1], domain_cuts.cuts, ends[1:]])
            assert np.all(np.diff(places.mark[cuts]) > 0), "marks are out of order"


def _check_edges(forest: Forest, nodes: NDArray[np.int64]) -> None:
    """Every node must be where its parent's edge leads, and there must be no other edges."""
    tree = forest.tree
    parent, label = tree.parent[nodes].astype(np.int64), tree.label[nodes].astype(np.int64)
    is_root, is_star = parent < 0, label < 0
    assert np.array_equal(tree.roots[label[is_root]], nodes[is_root]), "a root is lost"
    assert np.count_nonzero(tree.roots >= 0) == np.count_nonzero(is_root), "a root is no node"
    starred = is_star & ~is_root
    assert np.array_equal(tree.nodes[parent[starred], arrays.STAR], nodes[starred])
    inner = nodes[tree.nodes[nodes, arrays.LEVEL] != arrays.LEAF]
    n_stars = np.count_nonzero(tree.nodes[inner, arrays.STAR] >= 0)
    assert n_stars == np.count_nonzero(starred), "a don't-care edge leads to no node"
    by_test = ~is_root & ~is_star
    pairs = tree.slots[tree.slots[:, 0] != arrays.NONE]
    keys = (parent[by_test] << 32) | label[by_test]
    assert len(pairs) == len(keys) == tree.counts[arrays.N_SLOTS], "edges are miscounted"
    pairs = pairs[np.argsort(pairs[:, 0])]
    order = np.argsort(keys)
    assert np.array_equal(pairs[:, 0], keys[order]), "an edge is lost"
    assert np.array_equal(pairs[:, 1], nodes[by_test][order]), "an edge leads elsewhere"
    counted = np.bincount(parent[by_test], minlength=len(tree.nodes))[inner]
    assert np.array_equal(counted, tree.nodes[inner, arrays.N_EDGES]), "edges are miscounted"
    is_set = forest.book.sort[label[by_test]] == SET
    n_sets = np.bincount(parent[by_test][is_set], minlength=len(tree.nodes))[inner]
    assert np.array_equal(n_sets, tree.nodes[inner, arrays.N_SETS]), "sets are miscounted"


def _check_shape(forest: Forest, nodes: NDArray[np.int64]) -> None:
    """Levels must descend; no node may lead nowhere."""
    tree = forest.tree
    level = tree.nodes[:, arrays.LEVEL].astype(np.int64)
    below = nodes[tree.parent[nodes] >= 0]
    above = tree.parent[below]
    label = tree.label[below]
    by_set = (label >= 0) & (forest.book.sort[label] == SET)
    assert np.all(level[below] >= level[above] + ~by_set), "a level comes twice"
    by_test = below[label >= 0]
    assert np.all(forest.tests.level[tree.label[by_test]] == level[tree.parent[by_test]]), (
        "a test stands at the level of another attribute"
    )
    inner = nodes[level[nodes] != arrays.LEAF]
    has_star = tree.nodes[inner, arrays.STAR] >= 0
    n_edges = tree.nodes[inner, arrays.N_EDGES]
    assert np.all(has_star | (n_edges > 0)), "a node leads nowhere"
    if forest.options.collapse:
        assert np.all(n_edges > 0), "a node has a don't-care edge alone"
    leaves = nodes[level[nodes] == arrays.LEAF]
    assert np.all(tree.nodes[leaves, arrays.N_SETS] > 0), "a leaf is empty"


def _check_list(forest: Forest, node: int) -> None:
    tree, tests = forest.tree, forest.tests
    start = int(tree.nodes[node, arrays.FIRST])
    own = slice(start, start + int(tree.nodes[node, arrays.N_SETS]))
    edges = tree.lists[own]
    bounds, head = edges[:, : arrays.TEST], edges[:, arrays.TEST]
    test = np.where(head < 0, ~head, head)
    low = tests.mark[tests.low[tests.start[test]]]
    high = tests.mark[tests.high[tests.start[test + 1] - 1]]
    assert np.array_equal(bounds, np.stack([low, high, np.maximum.accumulate(high)], axis=1))
    assert np.array_equal(np.lexsort((high, low)), np.arange(len(low))), "a list is out of order"
    children = edges[:, arrays.CHILD]
    assert np.all(tree.parent[children] == node), "a list leads to a stranger"
    assert np.array_equal(tree.label[children], test), "a list leads elsewhere"


def _check_chain(tree: arrays.Tree, leaf: int) -> None:
    """Verify the chain of a leaf's entries, and what the leaf says of its beginning."""
    chain, entry = [], int(tree.nodes[leaf, arrays.FIRST])
    while entry >= 0:
        chain.append(entry)
        assert tree.entries[entry, arrays.AT] == leaf, "a chain leads to another leaf"
        entry = int(tree.entries[entry, arrays.NEXT])
    assert len(chain) == tree.nodes[leaf, arrays.N_SETS], "a chain is broken"
    head = tree.entries[chain[0], arrays.CONJUNCTION]
    assert tree.nodes[leaf, arrays.HEAD] == head, "a leaf names another conjunction"
    n_adjacent = int(tree.nodes[leaf, arrays.N_ADJACENT])
    adjacent = [chain[0] - i for i in range(n_adjacent)]
    assert adjacent, "a leaf counts no entry"
    assert chain[:n_adjacent] == adjacent, "entries are not adjacent"


def _check_entries(forest: Forest, nodes: NDArray[np.int64], live: NDArray[np.int64]) -> None:
    """Every live conjunction must be in a leaf below just its tests, and no other be anywhere."""
    tree = forest.tree
    entries = tree.entries[: tree.counts[arrays.N_ENTRIES]]
    entries = entries[entries[:, arrays.CONJUNCTION] != arrays.NONE]
    conjunction = entries[:, arrays.CONJUNCTION].astype(np.int64)
    leaf = entries[:, arrays.AT].astype(np.int64)
    assert np.array_equal(np.unique(conjunction), live), "a conjunction is lost, or not deleted"
    leaves = nodes[tree.nodes[nodes, arrays.LEVEL] == arrays.LEAF]
    counted = np.bincount(leaf, minlength=len(tree.nodes))[leaves]
    assert np.array_equal(counted, tree.nodes[leaves, arrays.N_SETS]), "entries are miscounted"
    for node in leaves.tolist():
        _check_chain(tree, node)
    root, passed = _climb(forest, leaf)
    n_own = np.diff(forest.kept.start)[conjunction]
    at = np.repeat(forest.kept.start[conjunction] - np.cumsum(n_own) + n_own, n_own)
    tests = forest.kept.test[at + np.arange(len(at))]
    expected = (np.repeat(np.arange(len(leaf)), n_own) << 32) | tests
    for pair in np.setdiff1d(expected, passed).tolist():
        entry, test = pair >> 32, pair & 0xFFFFFFFF
        assert _is_settled(forest, test, int(root[entry])), "a test is missing on the path"
    for pair in np.setdiff1d(passed, expected).tolist():
        own = forest.kept.tests_of(int(conjunction[pair >> 32])).tolist()
        is_implied = any(_holds_in(forest, pair & 0xFFFFFFFF, test) for test in own)
        assert is_implied, "a strange test on the path"


def _climb(forest: Forest, leaf: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the roots above leaves, and all tests on the way, each with the number of its leaf."""
    tree = forest.tree
    root, passed = np.full(len(leaf), -1), [np.empty(0, np.int64)]
    at, node = np.arange(len(leaf)), leaf
    while len(at):
        label, parent = tree.label[node].astype(np.int64), tree.parent[node].astype(np.int64)
        is_root = parent < 0
        root[at[is_root]] = label[is_root]
        by_test = ~is_root & (label >= 0)
        passed.append((at[by_test] << 32) | label[by_test])
        at, node = at[~is_root], parent[~is_root]
    return root, np.concatenate(passed)


def _path(forest: Forest, node: int) -> tuple[int, list[int]]:
    """Return the root above a node, and the tests on the way."""
    tests: list[int] = []
    while True:
        label, parent = int(forest.tree.label[node]), int(forest.tree.parent[node])
        if parent < 0:
            return label, tests[::-1]
        if label >= 0:
            tests.append(label)
        node = parent


def _is_settled(forest: Forest, test: int, root: int) -> bool:
    """Whether a test holds for the values that lead to a root."""
    factors, level = forest.factors, int(forest.tests.level[test])
    if level >= len(factors.stride):
        return False
    start, end = factors.start[level : level + 2].tolist()
    value = int(factors.test[start + root // int(factors.stride[level]) % (end - start)])
    return value >= 0 and _holds_in(forest, test, value)


def _holds_in(forest: Forest, wide: int, narrow: int) -> bool:
    """Whether a test holds wherever another one of the same attribute does."""
    book, mark = forest.book, forest.book.places.mark
    outer = [(mark[book.low[i]], mark[book.high[i]]) for i in range(*book.start[wide : wide + 2])]
    return bool(book.attribute[wide] == book.attribute[narrow]) and all(
        any(low <= mark[book.low[i]] and mark[book.high[i]] <= high for low, high in outer)
        for i in range(*book.start[narrow : narrow + 2])
    )


def explain(forest: Forest, conjunction: int) -> str:
    """Say which path leads to a conjunction, and how many share its leaf."""
    tree, attributes = forest.tree, forest.book.places.attributes
    entry = int(forest.kept.first_entry[conjunction])
    leaf = int(tree.entries[entry, arrays.AT])
    n_twins = 0
    while entry >= 0:
        n_twins += 1
        entry = int(tree.entries[entry, arrays.TWIN])
    _, path = _path(forest, leaf)
    names = [attributes[forest.book.attribute[test]].name for test in path]
    way = f"found by testing {', '.join(names)}" if names else "found without a test"
    others = int(tree.nodes[leaf, arrays.N_SETS]) - 1
    places = f" in {n_twins} trees" if n_twins > 1 else ""
    return f"{way}{places}; {others} other conjunctions share its leaf"


Drawn: TypeAlias = "dict[str, dict[str, Drawn]] | int"
"""A node: its attribute and its edges; or a leaf: how many conjunctions it holds."""


def draw(forest: Forest, root: int = 0) -> Drawn:
    """Return a tree as nested dictionaries: by attribute, and by the test of the edge."""
    node = int(forest.tree.roots[root])
    return 0 if node < 0 else _draw_node(forest, node)


def _draw_node(forest: Forest, node: int) -> Drawn:
    tree = forest.tree
    level = int(tree.nodes[node, arrays.LEVEL])
    if level == arrays.LEAF:
        return int(tree.nodes[node, arrays.N_SETS])
    number = int(np.flatnonzero(forest.level_of == level)[0])
    children = [c for c in _live_nodes(forest).tolist() if tree.parent[c] == node]
    edges = {
        _words(forest, int(tree.label[child])): _draw_node(forest, child)
        for child in sorted(children, key=lambda child: int(tree.label[child]) % (1 << 31))
    }
    return {forest.book.places.attributes[number].name: edges}


def _words(forest: Forest, test: int) -> str:
    """Say a test as its value, as its ranges, or as the don't-care star."""
    book = forest.book
    if test < 0:
        return "*"
    ranges = range(*book.start[test : test + 2])
    bounds = [
        (_bound(forest, test, book.low[i]), _bound(forest, test, book.high[i])) for i in ranges
    ]
    if book.sort[test] != SET:
        return bounds[0][0]
    return " or ".join(f"{low} to {high}" for low, high in bounds)


def _bound(forest: Forest, test: int, cut: int) -> str:
    """Say where a cut is: at a value, or at the end of a line."""
    attribute = forest.book.places.attributes[forest.book.attribute[test]]
    for domain, domain_cuts in zip(Domain, attribute.domains, strict=True):
        for at in np.flatnonzero(domain_cuts.cuts == cut).tolist():
            if isinstance(domain_cuts, StringCuts):
                return repr(domain_cuts.bounds[at][0])
            key, offset = int(domain_cuts.keys[at]), int(domain_cuts.offsets[at])
            return str(unflatten_cut(domain, key, offset, str)[0])
    names = ("absent", "number", "string", "boolean", "timestamp", "other", "end")
    return names[cut - attribute.first]
