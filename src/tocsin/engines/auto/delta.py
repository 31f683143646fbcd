"""The delta: subscriptions added since the largest segment was built, in that segment's cells.

Enters: conjunctions laid out as entries under the group prefix of a base segment. Leaves: the
numbers of the conjunctions that events satisfy, like a segment. A `Delta` grows in place, so that
nothing has to be merged while it is small compared with its base. A `DeltaSnapshot` is the delta at
one time and stays valid while more is added: it knows the highest conjunction that it may report,
and no earlier one is ever moved or changed. Arrays that are full are replaced by larger ones; the
snapshots keep the old ones.

Entries are in chains of blocks, two per prefix (see `arrays.Chains`). A batch is sorted by the
prefix, as for `groups`, and a chain is compared with up to 64 of its events at once, by masks.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto import delta_kernels, entries, row_kernels
from tocsin.engines.auto.arrays import (
    BLOCK_SIZE,
    NO_NUMBER,
    NUMBER,
    Chains,
    Keys,
    Stream,
    Words,
)
from tocsin.engines.auto.batch import OrderedRows, PreparedBatch, to_rows
from tocsin.engines.auto.content import Content
from tocsin.engines.auto.layout import make_stream
from tocsin.engines.auto.output import Pairs
from tocsin.engines.auto.plan import plan_under
from tocsin.engines.auto.segment import Segment, as_column, renumbered_ids
from tocsin.engines.ragged import RaggedIds

_MAX_CODES = 2048
"""With more codes, making masks for a few events would cost more than it saves."""


@dataclass(frozen=True)
class NewEntries:
    """Conjunctions laid out as entries, to be appended to a delta; `ids` are by conjunction."""

    ids: NDArray[np.int32]
    stream: Stream
    keys: Keys
    entries: Words

    @property
    def n_words(self) -> int:
        """The number of words of the stream."""
        return len(self.stream.words)


def lay_out_entries(content: Content, base: Segment) -> NewEntries | None:
    """Lay out conjunctions under the group prefix of a segment, in its cells.

    Returns None where a conjunction has no key with that prefix.
    """
    prefix = base.group_prefix
    plan = None if prefix is None else plan_under(content.conditions, base.coding, prefix)
    if plan is None:
        return None
    n = len(content.ids)
    stream = make_stream(content.conditions, np.arange(n, dtype=np.uint32))
    keys, rows = entries.build(content.conditions, plan, np.ones(n, np.bool_))
    return NewEntries(content.ids, stream, keys, rows)


class DeltaSnapshot:
    """The subscriptions of a delta at one time; immutable."""

    has_siblings: bool
    first_id = None
    is_patterned = False

    def __init__(
        self,
        base: Segment,
        ids: NDArray[np.int32],
        stream: Stream,
        chains: Chains,
        n_subscriptions: int,
    ) -> None:
        self.base = base
        self.space = base.space
        self.patterns = base.patterns.none()
        self.ids = ids
        self.stream = stream
        self.n_subscriptions = n_subscriptions
        self.has_siblings = n_subscriptions < len(ids)
        self._chains = chains

    def match(self, batch: PreparedBatch, base: int = 0) -> RaggedIds:
        """Return the conjunctions that each event satisfies, each number plus a base."""
        of, n = self.base, len(batch.events)
        ordered = batch.ordered(of.coding, of.layout.keys, of.layout.grouped, of.needs_cells)
        return self._match(ordered, n).rows(n, base)

    def _match(self, ordered: OrderedRows, n_expected: int) -> Pairs:
        pairs = Pairs(ordered, self.stream, True, max(n_expected, 64), self.base.pool)
        (codes, _), order, prefix_of = ordered
        limit, code_start = len(self.ids), self.base.layout.slots.first
        arguments = self._chains, limit, code_start, codes, order, prefix_of
        pairs.collect(delta_kernels.match_chains, *arguments)
        return pairs

    def match_one(self, event: Mapping[str, object]) -> NDArray[np.int32]:
        """Return the dense ids, perhaps repeated, that one event matches."""
        base = self.base
        cells = as_column(self.space.encode_event(event))
        order, place = np.zeros(1, np.int32), np.zeros(1, np.int32)
        prefix_of = np.zeros(1, np.int64)
        keys, f = base.layout.keys, base.layout.grouped
        row_kernels.sort_events(base.coding, keys, f, cells, order, place, prefix_of)
        rows = to_rows(base.coding, cells, place, base.needs_cells)
        ids: NDArray[np.int32] = self.ids[
            self._match(OrderedRows(rows, order, prefix_of), 256).numbers
        ]
        return ids

    def check(self) -> None:
        """Verify that every conjunction is in some chain, and that no two chains share a block."""
        numbers = self._chains.number
        in_chains = numbers[numbers != NO_NUMBER] & NUMBER
        present = np.unique(in_chains[in_chains < len(self.ids)])
        assert len(present) == len(self.ids), "a conjunction is lost"
        followers = self._chains.following[self._chains.following >= 0]
        assert len(np.unique(followers)) == len(followers), "chains run together"


class Delta:
    """Subscriptions in the cells of a base segment, to which more are appended."""

    is_patterned = False

    def __init__(self, base: Segment) -> None:
        self.base = base
        self.space = base.space
        self.n_subscriptions = 0
        self._n = self._n_words = self._n_blocks = 0
        keys, f = base.layout.keys, base.layout.grouped
        prefix = keys.prefix[keys.prefix_start[f] : keys.prefix_start[f + 1]]
        n_prefixes = int(np.prod(base.coding.n_digits[prefix]))
        self._tail = np.full(2 * n_prefixes, -1, np.int32)
        self._used = np.zeros(2 * n_prefixes, np.int32)
        self._ids = np.empty(1024, np.int32)
        self._stream = Stream(np.empty(1024, np.uint32), np.empty(8192, np.uint16))
        self._chains = Chains(
            np.full(2 * n_prefixes, -1, np.int32),
            np.empty(0, np.int32),
            np.empty(0, np.uint16),
            np.empty(0, np.uint32),
        )

    @staticmethod
    def suits(segment: Segment) -> bool:
        """Whether a segment can have a delta."""
        first = segment.layout.slots.first
        return len(first) > 0 and int(first[-1]) <= _MAX_CODES

    @property
    def ids(self) -> NDArray[np.int32]:
        """The dense ids, by conjunction."""
        return self._ids[: self._n]

    @property
    def n_words(self) -> int:
        """The number of words of the stream."""
        return self._n_words

    def snapshot(self) -> DeltaSnapshot:
        """Return the subscriptions as they are now."""
        stream = Stream(self._stream.start[: self._n], self._stream.words[: self._n_words])
        return DeltaSnapshot(self.base, self.ids, stream, self._chains, self.n_subscriptions)

    def renumbered(self, kept: NDArray[np.int64], base: Segment) -> Delta:
        """Return the delta with other dense ids, `kept[i]` becomes i, in place of this one.

        `base` is the renumbered base segment.
        """
        delta = copy.copy(self)
        delta._ids = np.empty_like(self._ids)
        delta._ids[: self._n] = renumbered_ids(self.ids, kept)
        delta.base = base
        return delta

    def append(self, new: NewEntries) -> None:
        """Append conjunctions without patterns that `lay_out_entries` made for this base."""
        n, stream = len(new.ids), new.stream
        ids = _with_capacity(self._ids, self._n, n)
        start = _with_capacity(self._stream.start, self._n, n)
        words = _with_capacity(self._stream.words, self._n_words, new.n_words)
        ids[self._n : self._n + n] = new.ids
        start[self._n : self._n + n] = stream.start + np.uint32(self._n_words)
        words[self._n_words : self._n_words + new.n_words] = stream.words
        self._chains = _with_blocks(self._chains, self._n_blocks, len(new.entries))
        self._n_blocks = delta_kernels.add_to_chains(
            new.keys.start,
            new.entries,
            self.base.layout.slots.first,
            self._n,
            self._chains,
            self._tail,
            self._used,
            self._n_blocks,
        )
        self._ids, self._stream = ids, Stream(start, words)
        self._n += n
        self._n_words += new.n_words
        self.n_subscriptions += int(np.count_nonzero(np.diff(new.ids, prepend=-1)))

    @property
    def nbytes(self) -> int:
        """The bytes of the delta."""
        arrays = (self._ids, self._tail, self._used, *self._stream, *self._chains)
        return sum(array.nbytes for array in arrays)


def _with_blocks(chains: Chains, n_used: int, n_new: int) -> Chains:
    """Return chains with capacity for more blocks: these, or larger ones.

    `head` is copied when growing: existing snapshots must not see blocks that their arrays lack.
    """
    head, following, bounds, number = chains
    if n_used + n_new <= len(following):
        return chains
    return Chains(
        head.copy(),
        _with_capacity(following, n_used, n_new, -1),
        _with_capacity(bounds, 4 * BLOCK_SIZE * n_used, 4 * BLOCK_SIZE * n_new, 0),
        _with_capacity(number, BLOCK_SIZE * n_used, BLOCK_SIZE * n_new, NO_NUMBER),
    )


def _with_capacity(array: NDArray[Any], n_used: int, n_new: int, fill: Any = None) -> NDArray[Any]:
    """Return an array with capacity for more elements: this one, or a larger copy."""
    if n_used + n_new <= len(array):
        return array
    size = max(2 * len(array), n_used + n_new)
    larger = np.empty(size, array.dtype) if fill is None else np.full(size, fill, array.dtype)
    larger[:n_used] = array[:n_used]
    return larger
