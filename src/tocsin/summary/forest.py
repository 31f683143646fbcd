"""The exact grade of summaries: the conjunctions that no other covers.

Enters: normal forms under ids, as they come and go. Leaves: the *roots*: a minimal set of the
conjunctions such that each other one is covered by one of them. An event matches a member exactly
if it matches a root, since every root is a member's. Jayaram et al. (Beretta), sections 2.4 and
5.6: posets of subscriptions, and summaries that are disjunctions.

Deviation: the paper's poset links each subscription to all that cover it next. One link is enough
to tell roots from others, so the members are a forest: each that is not a root hangs below one that
covers it, and when that goes, it looks for another. Roots are kept by the single values that they
ask for: one that covers a conjunction asks only for values that the conjunction asks for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeAlias

from tocsin.encode.events import satisfies
from tocsin.errors import DuplicateSubscriptionError, UnknownSubscriptionError
from tocsin.model import SubscriptionId
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import point_value
from tocsin.normalize.normal import Conjunction, NormalForm, conjunction_covers

_Points: TypeAlias = frozenset[tuple[str, Hashable]]


class CoverForest:
    """Subscriptions by covering. Calls are not concurrent."""

    def __init__(self) -> None:
        self._nodes: dict[SubscriptionId, list[_Node]] = {}
        self._roots: dict[frozenset[str], dict[_Points, dict[_Node, None]]] = {}
        self._n_roots = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, id: object) -> bool:
        return id in self._nodes

    @property
    def n_roots(self) -> int:
        """How many conjunctions no other covers."""
        return self._n_roots

    def insert(self, id: SubscriptionId, form: NormalForm) -> bool:
        """Take in a subscription; say whether the roots changed."""
        if id in self._nodes:
            raise DuplicateSubscriptionError(id)
        nodes = [_Node(conjunction) for conjunction in form]
        self._nodes[id] = nodes
        became_root = [self._hang(node) for node in nodes]
        return any(became_root)

    def remove(self, id: SubscriptionId) -> bool:
        """Let go of a subscription; say whether the roots changed."""
        if id not in self._nodes:
            raise UnknownSubscriptionError(id)
        changed = False
        for node in self._nodes.pop(id):
            orphans = list(node.below)
            node.below.clear()
            if node.above is None:
                changed = True
                self._drop_root(node)
            else:
                del node.above.below[node]
            for orphan in orphans:
                orphan.above = None
            for orphan in orphans:
                self._hang(orphan)
        return changed

    def update(self, id: SubscriptionId, form: NormalForm) -> bool:
        """Replace a subscription's condition; say whether the roots may have changed."""
        gone = self.remove(id)
        return self.insert(id, form) or gone

    def roots(self) -> Iterator[Conjunction]:
        """Yield the conjunctions that no other covers."""
        for by_points in self._roots.values():
            for nodes in by_points.values():
                for node in nodes:
                    yield node.conjunction

    def disjunction(self) -> NormalForm:
        """Return the roots as one normal form: what exactly the members match."""
        return NormalForm(tuple(self.roots()))

    def admits_one(self, event: Mapping[str, object]) -> bool:
        """Say whether some member matches an event; both answers are right."""
        return any(
            all(satisfies(event, name, condition) for name, condition in conjunction.items())
            for conjunction in self.roots()
        )

    def _hang(self, node: _Node) -> bool:
        """Put a node below a root that covers it, or make it a root; say whether it became one."""
        for root in self._covering(node):
            root.below[node] = None
            node.above = root
            return False
        for root in self._covered(node):
            self._drop_root(root)
            node.below[root] = None
            root.above = node
        self._roots.setdefault(node.names, {}).setdefault(node.points, {})[node] = None
        self._n_roots += 1
        return True

    def _drop_root(self, node: _Node) -> None:
        by_points = self._roots[node.names]
        del by_points[node.points][node]
        if not by_points[node.points]:
            del by_points[node.points]
            if not by_points:
                del self._roots[node.names]
        self._n_roots -= 1

    def _covering(self, node: _Node) -> Iterator[_Node]:
        """Yield the roots that cover a node."""
        for names, by_points in self._roots.items():
            if not names <= node.names:
                continue
            for points in _parts(by_points, node.points):
                for root in by_points[points]:
                    if conjunction_covers(root.conjunction, node.conjunction):
                        yield root

    def _covered(self, node: _Node) -> list[_Node]:
        """Return the roots that a node covers."""
        return [
            root
            for names, by_points in self._roots.items()
            if node.names <= names
            for points, roots in by_points.items()
            if node.points <= points
            for root in roots
            if conjunction_covers(node.conjunction, root.conjunction)
        ]

    def check(self) -> None:
        """Verify every invariant; raise AssertionError where one fails."""
        roots = [n for by in self._roots.values() for nodes in by.values() for n in nodes]
        assert len(roots) == self._n_roots, "roots are miscounted"
        for a in roots:
            assert a.above is None, "a root hangs below something"
            for b in roots:
                covers = conjunction_covers(a.conjunction, b.conjunction)
                assert a is b or not covers, "a root is covered by another"
        for nodes in self._nodes.values():
            for node in nodes:
                if node.above is None:
                    assert node in self._roots[node.names][node.points], "a node is lost"
                else:
                    assert node in node.above.below, "a node hangs below what does not know it"
                    assert conjunction_covers(node.above.conjunction, node.conjunction), "cover"


class _Node:
    """One conjunction, what it hangs below, and what hangs below it."""

    __slots__ = ("above", "below", "conjunction", "names", "points")

    def __init__(self, conjunction: Conjunction) -> None:
        self.conjunction = conjunction
        self.names = frozenset(conjunction)
        self.points: _Points = frozenset(
            (name, point)
            for name, condition in conjunction.items()
            if (point := _point_of(condition)) is not None
        )
        self.above: _Node | None = None
        self.below: dict[_Node, None] = {}


def _parts(by_points: Mapping[_Points, object], points: _Points) -> list[_Points]:
    """Return those of some sets of exact values that are part of another."""
    if len(points) <= _FEW and len(by_points) > 1 << len(points):
        return [part for part in _subsets(points) if part in by_points]
    return [part for part in by_points if part <= points]


_FEW = 8
"""Up to this number of exact values, all subsets are looked up."""


def _subsets(points: _Points) -> Iterator[_Points]:
    values = list(points)
    for mask in range(1 << len(values)):
        yield frozenset(point for i, point in enumerate(values) if mask >> i & 1)


def _point_of(condition: Condition) -> Hashable:
    """Return the one value that a condition admits, with its line; None where there are others."""
    if condition.absent or condition.other or condition.patterns:
        return None
    used = [
        (domain, intervals) for domain, intervals in enumerate(condition.intervals) if intervals
    ]
    if len(used) != 1 or len(used[0][1]) != 1:
        return None
    domain, (interval,) = used[0]
    value = point_value(interval) if domain < 2 else None
    return None if value is None else (domain, value)
