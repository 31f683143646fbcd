"""The `tree` engine: the matching tree of Aguilera et al.

M. K. Aguilera, R. E. Strom, D. C. Sturman, M. Astley, T. D. Chandra, "Matching Events in a
Content-Based Subscription System", PODC 1999. Enters and leaves: see `engines.protocol`.

A node tests an attribute; its edges are results of the test, and one may be a don't-care edge for
the conjunctions that do not mention the attribute (section 2). An event follows every edge whose
result holds, and the don't-care edge; the leaves it reaches hold the conjunctions that it
satisfies. Each attribute is a level, and the edge of an equality is found by hashing (section 3).
Chains of don't-care edges are collapsed, searches that are blocked go on at annotated successors,
and index attributes are factored out (section 4); each of these can be switched, see `options`.
Subscriptions are inserted and deleted in place (appendix).

Where we deviate. A condition of our normal form is a set of values, so that an elementary test is
"the value lies in this set", and a node holds all the tests of its attribute, which the paper's
general algorithm would chain by don't-care edges: equalities in the hash table, other sets in a
list ordered by their bounds. Since an attribute has one condition a conjunction, only the result
"yes" has edges. A set that lies within one that the node has is put below it, as its test is
implied (section 2); equalities are not, as the hash table finds them at once. Index attributes have
trees for the values that conditions named when the tree was built, and one for all others, where
their tests are kept; they are given up where they would copy conjunctions too often. The order of
attributes is chosen when the tree is first filled, and again when it has doubled or a profile came;
the tree is then rebuilt, as it is when most of it was deleted. The search goes on in waves, not
down each path, unless there are annotations; it does not use what it knows about tests that failed
(the last paragraph on successors).

New bounds change nothing in the tree, since edges are labelled with numbers of cuts that keep their
meaning (see `places`); cells as `auto` has them would have to be renumbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch, read_value
from tocsin.engines.patterns import PatternChecks
from tocsin.engines.protocol import Engine
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.table import ConjunctionTable
from tocsin_lab.engines.tree import audit, id_kernels
from tocsin_lab.engines.tree.conditions import TestBook
from tocsin_lab.engines.tree.forest import Forest
from tocsin_lab.engines.tree.growing import grown
from tocsin_lab.engines.tree.options import TreeOptions, read_options
from tocsin_lab.engines.tree.order import choose_index, choose_order
from tocsin_lab.engines.tree.places import Attribute

_SAMPLE = 10_000
"""How many events `profile` keeps."""
_SMALL = 64
"""Below this number of conjunctions the order of attributes does not matter."""
_MANY_DELETED = 1024
"""The least number of deleted conjunctions that has the tree rebuilt."""


class TreeEngine(Engine):
    """A forest, and which subscription each conjunction in it belongs to."""

    def __init__(self, options: TreeOptions) -> None:
        self._options = options
        self._book = TestBook()
        self._patterns = PatternChecks()
        self._sample: EventBatch | None = None
        self._forest = Forest(self._book, options, np.empty(0, np.int64), [])
        self._owner = np.empty(64, np.int32)
        self._group = np.empty(64, np.int32)
        self._seen = np.empty(64, np.int64)
        self._first_of = np.empty(64, np.int64)
        self._n_dense = 0
        self._stamp = 0
        self._n_live = self._n_ordered = self._n_deleted = 0
        self._has_siblings = False

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Add subscriptions: their conjunctions are put into the tree."""
        self._note_ids(ids)
        if not table.n_conjunctions:
            return
        tests = self._book.tests_of(table)
        counts = np.diff(table.condition_start)
        first, n = self._forest.kept.n, self._forest.kept.n + len(counts)
        for name in ("_owner", "_group", "_seen"):
            setattr(self, name, grown(getattr(self, name), n))
        self._owner[first:n] = table.subscription
        self._group[first:n] = _groups(table.subscription, first)
        self._has_siblings |= bool(np.any(self._group[first:n] >= 0))
        self._seen[first:n] = -1
        begins = np.flatnonzero(np.diff(table.subscription, prepend=-1))
        self._first_of[table.subscription[begins]] = first + begins
        self._n_live += len(counts)
        self._patterns.add(table, np.arange(first, n))
        if self._is_due():
            self._forest.kept.add(counts, tests)
            self._build()
        elif not self._forest.insert(counts, np.repeat(np.arange(len(counts)), counts), tests):
            self._build()

    def _is_due(self) -> bool:
        """Whether the tree is to be rebuilt, because it was empty or has doubled since."""
        if not self._n_ordered:
            return True
        is_free = self._options.order == "popular" or self._options.index_attributes != 0
        return is_free and self._n_live >= max(2 * self._n_ordered, _SMALL)

    def _note_ids(self, ids: NDArray[np.int64]) -> None:
        if len(ids) and ids[-1] >= self._n_dense:
            first, self._n_dense = self._n_dense, int(ids[-1]) + 1
            self._first_of = grown(self._first_of, self._n_dense)
            self._first_of[first : self._n_dense] = -1

    def _build(self) -> None:
        """Choose the order of attributes and rebuild the tree without deleted conjunctions."""
        kept, n = self._forest.kept, self._forest.kept.n
        live = np.flatnonzero(self._owner[:n] >= 0)
        counts = np.diff(kept.start[: n + 1])[live]
        at = np.repeat(kept.start[live] - np.cumsum(counts) + counts, counts)
        tests = kept.test[at + np.arange(len(at))]
        if self._n_deleted:
            tests = self._drop_unused(tests)
        self._renumber(live, n)
        order = np.arange(len(self._book.places.attributes))
        if self._options.order == "popular":
            order = choose_order(self._book, tests, self._sample)
        index = choose_index(self._book, tests, order, self._options.index_attributes)
        conjunction = np.repeat(np.arange(len(counts)), counts)
        while True:
            self._forest = Forest(self._book, self._options, order, index)
            if self._forest.insert(counts, conjunction, tests):
                break
            index.pop()
        self._n_ordered, self._n_deleted = len(live), 0

    def _drop_unused(self, tests: NDArray[np.int32]) -> NDArray[np.int32]:
        used = np.zeros(self._book.n, np.bool_)
        used[tests] = True
        return self._book.keep(used)[tests]

    def _renumber(self, live: NDArray[np.int64], n: int) -> None:
        number = np.full(n + 1, -1, np.int64)  # the last one is for no number
        number[live] = np.arange(len(live))
        self._patterns.renumber(number)
        self._owner, self._seen = self._owner[live], self._seen[live]
        self._group = number[self._group[live]].astype(np.int32)
        self._has_siblings = bool(np.any(self._group >= 0))
        known = self._first_of[: self._n_dense]
        self._first_of[: self._n_dense] = number[known]

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Remove subscriptions from the tree."""
        none = np.empty(0, np.int64)
        gone = np.concatenate([none, *(self._conjunctions_of(dense) for dense in ids.tolist())])
        self._first_of[ids] = -1
        if not len(gone):
            return
        self._forest.delete(gone)
        self._owner[gone] = -1
        if len(self._patterns):
            self._patterns.discard(gone.tolist())
        self._n_live -= len(gone)
        self._n_deleted += len(gone)
        if self._n_deleted > max(self._n_live, _MANY_DELETED):
            self._build()

    def _conjunctions_of(self, dense: int) -> NDArray[np.int64]:
        first = last = int(self._first_of[dense])
        while 0 <= last < self._forest.kept.n and self._owner[last] == dense:
            last += 1
        return np.arange(first, last)

    def profile(self, events: EventBatch) -> None:
        """Keep a sample of events, and order the attributes by what it says of their tests."""
        self._sample = events.readable_sample(
            _SAMPLE, (a.name for a in self._book.places.attributes)
        )
        if self._options.order == "popular":
            self._build()

    def rebuild(self) -> None:
        """Rebuild the tree for the events last profiled."""
        self._build()

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Match a batch."""
        n = len(events)
        cuts = np.empty((self._forest.n_levels, n), np.int32)
        for attribute, level in self._levels():
            cuts[level] = attribute.encode(events.column(attribute.name), n)
        offsets, conjunctions = self._forest.match(np.ascontiguousarray(cuts.T))
        if len(self._patterns):
            offsets, conjunctions = self._patterns.keep(events, RaggedIds(offsets, conjunctions))
        if not self._has_siblings:
            return RaggedIds(offsets, self._owner[conjunctions])
        ids, ends = np.empty(len(conjunctions), np.int32), np.empty(n, np.int64)
        seen = (self._seen, self._stamp)
        id_kernels.to_ids(offsets, conjunctions, self._owner, self._group, *seen, ids, ends)
        self._stamp += n
        return RaggedIds(np.append(np.int64(0), ends), ids[: ends[-1] if n else 0])

    def _levels(self) -> Iterable[tuple[Attribute, int]]:
        return zip(self._book.places.attributes, self._forest.level_of.tolist(), strict=True)

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event."""
        cuts = np.empty((1, self._forest.n_levels), np.int32)
        for attribute, level in self._levels():
            cuts[0, level] = attribute.cut_of(read_value(event, attribute.name))
        _, conjunctions = self._forest.match(cuts)
        conjunctions = self._patterns.keep_one(event, conjunctions)
        return list(dict.fromkeys(self._owner[conjunctions].tolist()))

    @property
    def n_visits(self) -> int:
        """How many nodes the last match visited, the leaves included."""
        return self._forest.n_visits

    @property
    def n_nodes(self) -> int:
        """How many nodes the tree has, the leaves included."""
        return self._forest.n_nodes

    def draw(self) -> audit.Drawn:
        """Return the (first) tree as nested dictionaries, for reading and for tests."""
        return audit.draw(self._forest)

    def explain(self, dense: int) -> str:
        """Say which path leads to each conjunction of a subscription."""
        conjunctions = self._conjunctions_of(dense).tolist()
        lines = [audit.explain(self._forest, conjunction) for conjunction in conjunctions]
        return "\n".join(lines) if lines else "not kept: it can never match"

    def describe(self) -> str:
        """Say how large the tree is."""
        return f"a matching tree of {self.n_nodes} nodes for {self._n_live} conjunctions"

    def check(self) -> None:
        """Verify the invariants of the tree."""
        live = np.flatnonzero(self._owner[: self._forest.kept.n] >= 0)
        assert len(live) == self._n_live, "a conjunction is lost"
        audit.check(self._forest, live)

    @property
    def nbytes(self) -> int:
        """Bytes held by the tree, its tests and cuts."""
        own = (self._owner, self._group, self._seen, self._first_of)
        return sum(a.nbytes for a in own) + self._forest.nbytes + self._book.nbytes


def _groups(subscription: NDArray[np.int64], first: int) -> NDArray[np.int32]:
    """Return the number of the first conjunction of each one's subscription, -1 if it is alone."""
    is_first = np.diff(subscription, prepend=-1) != 0
    begin = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    alone = np.diff(begin, append=len(subscription)) == 1
    return np.where(alone[group], -1, first + begin[group]).astype(np.int32)


def make_tree(**options: object) -> TreeEngine:
    """Make an engine with given options."""
    return TreeEngine(read_options(options))
