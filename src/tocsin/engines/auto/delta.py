"""What is recent: subscriptions that came after the largest segment was built, and fit beside it.

Enters: small segments that were laid out beside a large one, one after the other. Leaves: the
numbers of the conjunctions that events satisfy, like a segment. A `Recent` grows in place, so that
nothing has to be merged as long as it is small beside the large one; a `RecentView` is what it was
at one time, and stays right while more is added: it knows up to which number it may look, and no
number below that is ever moved or changed. Arrays that are full are replaced by larger ones; the
old ones stay as they are for the views that have them.

Entries stand in chains by the prefix of the large segment's chief family. A batch that is ordered
by it meets a chain with up to 64 events at once, by masks (see `group_kernels.match_chains`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto import build_kernels, group_kernels, row_kernels
from tocsin.engines.auto.arrays import IN_BLOCK, NO_NUMBER, NUMBER, Chains, Stream
from tocsin.engines.auto.pairs import Pairs
from tocsin.engines.auto.prepared import Ordered, Prepared, to_rows
from tocsin.engines.auto.segment import Segment, renumbered_ids, spread
from tocsin.engines.ragged import RaggedIds

_MAX_CODES = 2048
"""With more codes than these, making masks for a few events would cost more than it saves."""


class RecentView:
    """Subscriptions beside a segment, as they were at one time; never changed."""

    has_siblings: bool
    first_id = None
    is_patterned = False

    def __init__(
        self,
        beside: Segment,
        ids: NDArray[np.int32],
        stream: Stream,
        chains: Chains,
        n_subscriptions: int,
    ) -> None:
        self.beside = beside
        self.space = beside.space
        self.patterns = beside.patterns.none()
        self.ids = ids
        self.stream = stream
        self.n_subscriptions = n_subscriptions
        self.has_siblings = n_subscriptions < len(ids)
        self._chains = chains

    def candidates(self, batch: Prepared, base: int = 0) -> RaggedIds:
        """Return the conjunctions that each event satisfies, each number plus a base."""
        beside, n = self.beside, len(batch.events)
        keys, f = beside.layout.keys, beside.layout.grouped
        ordered = batch.ordered(beside.coding, keys, f, beside.needs_cells)
        pairs = self._match(ordered, n)
        return spread((pairs.event, pairs.number), pairs.n, n, base, beside.rooms)

    def _match(self, ordered: Ordered, room: int) -> Pairs:
        """Return pairs of an event and a number; `room` is how many to expect."""
        pairs = Pairs(ordered, self.stream, True, max(room, 64), self.beside.rooms)
        (codes, _), order, prefix_of = ordered
        limit, code_start = len(self.ids), self.beside.layout.slots.first
        given = self._chains, limit, code_start, codes, order, prefix_of
        pairs.collect(group_kernels.match_chains, *given)
        return pairs

    def match_one(self, event: Mapping[str, object]) -> NDArray[np.int32]:
        """Return the ids (perhaps repeated) that one event matches."""
        beside = self.beside
        cells = np.array(self.space.encode_event(event), np.int32).reshape(-1, 1)
        order, place, prefix_of = (
            np.zeros(1, np.int32),
            np.zeros(1, np.int32),
            np.zeros(1, np.int64),
        )
        keys, f = beside.layout.keys, beside.layout.grouped
        row_kernels.sort_events(beside.coding, keys, f, cells, order, place, prefix_of)
        rows = to_rows(beside.coding, cells, place, beside.needs_cells)
        found = self._match(Ordered(rows, order, prefix_of), 256)
        ids: NDArray[np.int32] = self.ids[found.number[: found.n]]
        return ids

    def check(self) -> None:
        """Verify that every conjunction is in some chain, and that chains are apart."""
        numbers = self._chains.number
        found = numbers[numbers != NO_NUMBER] & NUMBER
        present = np.unique(found[found < len(self.ids)])
        assert len(present) == len(self.ids), "a conjunction is lost"
        _, following = self._chains[:2]
        followers = following[following >= 0]
        assert len(np.unique(followers)) == len(followers), "chains run together"


class Recent:
    """Subscriptions beside a segment, to which more are added."""

    is_patterned = False

    def __init__(self, beside: Segment) -> None:
        self.beside = beside
        self.space = beside.space
        self.n_subscriptions = 0
        self._n = self._n_words = self._n_blocks = 0
        keys, f = beside.layout.keys, beside.layout.grouped
        prefix = keys.prefix[keys.prefix_start[f] : keys.prefix_start[f + 1]]
        n_prefixes = int(np.prod(beside.coding.n_digits[prefix]))
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
        """Whether this can be kept beside a segment."""
        first = segment.layout.slots.first
        return len(first) > 0 and int(first[-1]) <= _MAX_CODES

    @property
    def ids(self) -> NDArray[np.int32]:
        """The ids of subscriptions, by conjunction."""
        return self._ids[: self._n]

    @property
    def n_words(self) -> int:
        """How many words of the stream there are."""
        return self._n_words

    def view(self) -> RecentView:
        """Return the subscriptions as they are now."""
        stream = Stream(self._stream.start[: self._n], self._stream.words[: self._n_words])
        return RecentView(self.beside, self.ids, stream, self._chains, self.n_subscriptions)

    def renumbered(self, kept: NDArray[np.int64], beside: Segment) -> Recent:
        """Return the same with other ids: what was `kept[i]` is i. It takes the place of this one.

        `beside` is the segment that this is kept beside, renumbered.
        """
        recent = copy.copy(self)
        recent._ids = np.empty_like(self._ids)
        recent._ids[: self._n] = renumbered_ids(self.ids, kept)
        recent.beside = beside
        return recent

    def add(self, segment: Segment) -> None:
        """Add the subscriptions of a segment without patterns that was laid out beside the same."""
        n, stream, entries = len(segment.ids), segment.stream, segment.layout.entries
        ids = _with_room(self._ids, self._n, n)
        start = _with_room(self._stream.start, self._n, n)
        words = _with_room(self._stream.words, self._n_words, len(stream.words))
        ids[self._n : self._n + n] = segment.ids
        start[self._n : self._n + n] = stream.start + np.uint32(self._n_words)
        words[self._n_words : self._n_words + len(stream.words)] = stream.words
        self._chains = _with_blocks(self._chains, self._n_blocks, len(entries))
        self._n_blocks = build_kernels.add_to_chains(
            segment.layout.keys.start,
            entries,
            self.beside.layout.slots.first,
            self._n,
            self._chains,
            self._tail,
            self._used,
            self._n_blocks,
        )
        self._ids, self._stream = ids, Stream(start, words)
        self._n += n
        self._n_words += len(stream.words)
        self.n_subscriptions += segment.n_subscriptions

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (self._ids, self._tail, self._used, *self._stream, *self._chains)
        return sum(array.nbytes for array in arrays)


def _with_blocks(chains: Chains, used: int, more: int) -> Chains:
    """Return chains with room for more blocks: themselves, or larger ones.

    The heads of larger ones are their own: those of views must not lead to blocks that these lack.
    """
    head, following, bounds, number = chains
    if used + more <= len(following):
        return chains
    return Chains(
        head.copy(),
        _with_room(following, used, more, -1),
        _with_room(bounds, 4 * IN_BLOCK * used, 4 * IN_BLOCK * more, 0),
        _with_room(number, IN_BLOCK * used, IN_BLOCK * more, NO_NUMBER),
    )


def _with_room(array: NDArray[Any], used: int, more: int, filled: Any = None) -> NDArray[Any]:
    """Return an array with room for more after what is used of it: itself, or a larger one."""
    if used + more <= len(array):
        return array
    size = max(2 * len(array), used + more)
    larger = np.empty(size, array.dtype) if filled is None else np.full(size, filled, array.dtype)
    larger[:used] = array[:used]
    return larger
