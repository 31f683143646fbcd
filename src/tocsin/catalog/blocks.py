"""Blocks: runs of subscriptions in the order of their dense ids, and the names in them.

Enters: ids with their sources and expiries, as they were added. Leaves: `Block`, which is immutable
(`live_blocks` marks and replaces blocks), and `Names`, which maps dense ids to ids: a snapshot,
so that it may be read while a writer goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import to_array
from tocsin.catalog.ids import FEW, Ids
from tocsin.catalog.sources import OneSource, SinglesSource, Source, TextSource
from tocsin.model import INT64_MAX, SubscriptionId

NEVER = INT64_MAX
"""The expiry of a subscription that has none, in columns of expiries."""

SINGLES = 1024
"""The most single subscriptions of a block."""

MOST_BYTES = 2**31 - 1
"""The most bytes of an Arrow column of type `string`: offsets have 31 bits."""


@dataclass(frozen=True, eq=False)
class Block:
    """Subscriptions `first` to `stop` by dense id: all of them, or those in `dense`.

    `rows` are their places in the source (all, in order, when None), `until` their expiries, NEVER
    where there is none.
    """

    first: int
    stop: int
    ids: Ids
    source: Source
    rows: NDArray[np.int64] | None = None
    until: NDArray[np.int64] | None = None
    dense: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def place(self, dense: int) -> int:
        """Return the place of a dense id, or -1 if the block does not have it."""
        if self.dense is None:
            return dense - self.first if dense < self.stop else -1
        at = int(np.searchsorted(self.dense, dense))
        return at if at < len(self.dense) and self.dense[at] == dense else -1

    def places(self, dense: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of dense ids, -1 where the block does not have one."""
        if self.dense is None:
            return np.where(dense < self.stop, dense - self.first, -1)
        at = np.minimum(np.searchsorted(self.dense, dense), len(self.dense) - 1)
        return np.where(self.dense[at] == dense, at, -1)

    def row(self, at: int) -> int:
        """Return the place in the source of the at-th subscription."""
        return at if self.rows is None else int(self.rows[at])

    def dense_ids(self) -> NDArray[np.int64]:
        """Return the dense ids of all subscriptions."""
        return np.arange(self.first, self.stop) if self.dense is None else self.dense

    def ends(self) -> NDArray[np.int64]:
        """Return all expiries."""
        return np.full(len(self), NEVER) if self.until is None else self.until

    def only(self, places: NDArray[np.int64]) -> Block:
        """Return a block of some places, without references to the data of the others."""
        rows = places if self.rows is None else self.rows[places]
        source: Source
        if len(places) <= FEW:
            source = SinglesSource([self.source.one(row) for row in rows.tolist()])
        else:
            source = self.source.take(rows)
        dense = self.dense_ids()[places]
        until = None if self.until is None else self.until[places]
        first, stop = int(dense[0]), int(dense[-1]) + 1
        return Block(first, stop, self.ids.take(places), source, None, until, dense)


def singles_block(
    dense: NDArray[np.int64],
    names: Sequence[SubscriptionId],
    sources: Sequence[OneSource],
    ends: Sequence[int],
) -> Block:
    """Make a block of single subscriptions."""
    first, stop = int(dense[0]), int(dense[-1]) + 1
    until = np.array(ends, np.int64)
    return Block(
        first,
        stop,
        Ids.of(names),
        SinglesSource(sources),
        None,
        None if (until == NEVER).all() else until,
        None if stop - first == len(dense) else dense,
    )


def texts_block(parts: Sequence[tuple[Block, NDArray[np.int64]]]) -> Block | None:
    """Join some places of blocks of texts; return None where a block is of another kind."""
    sources = [block.source for block, _ in parts]
    texts = [source for source in sources if isinstance(source, TextSource)]
    types = {source.texts.type for source in texts}
    if len(texts) < len(parts) or len(types) > 1 or any(s.params is not None for s in texts):
        return None
    if sum(source.texts.nbytes for source in texts) > MOST_BYTES:
        return None
    ids = Ids.joined([block.ids.take(places) for block, places in parts])
    if ids is None:
        return None
    taken = [
        block.source.take(places if block.rows is None else block.rows[places])
        for block, places in parts
    ]
    whole = pa.concat_arrays([source.texts for source in taken if isinstance(source, TextSource)])
    dense = np.concatenate([block.dense_ids()[places] for block, places in parts])
    until = np.concatenate([block.ends()[places] for block, places in parts])
    first, stop = int(dense[0]), int(dense[-1]) + 1
    return Block(
        first,
        stop,
        ids,
        TextSource(whole),
        None,
        None if (until == NEVER).all() else until,
        None if stop - first == len(dense) else dense,
    )


class Names:
    """A snapshot of the ids by dense id.

    A writer may append to `growing` meanwhile: its present entries never change, and a snapshot
    reads no others.
    """

    __slots__ = ("_blocks", "_first", "_growing", "_n_growing", "_starts")

    def __init__(
        self,
        blocks: Sequence[Block] = (),
        starts: Sequence[int] = (),
        growing: Sequence[SubscriptionId] = (),
        first: int = 0,
    ) -> None:
        self._blocks = blocks
        self._starts = starts
        self._growing = growing
        self._n_growing = len(growing)
        self._first = first

    @property
    def has_strings(self) -> bool:
        """Whether an id of this view is a string, or there is no id at all."""
        if any(block.ids.texts is not None for block in self._blocks):
            return True
        singles = islice(self._growing, self._n_growing)
        return any(isinstance(name, str) for name in singles) or not (
            self._blocks or self._n_growing
        )

    def __getitem__(self, dense: int) -> SubscriptionId:
        if dense >= self._first:
            return self._growing[dense - self._first]
        at = bisect_right(self._starts, dense) - 1
        block = self._blocks[at]
        place = block.place(dense) if at >= 0 else -1
        if place < 0:
            raise IndexError(dense)
        return block.ids[place]

    def of(self, dense: list[int]) -> list[SubscriptionId]:
        """Return the ids of a few dense ids."""
        names: list[SubscriptionId] = []
        first, growing, low, high = self._first, self._growing, 0, 0
        read: Callable[[int], SubscriptionId] = growing.__getitem__
        for one in dense:
            if one >= first:
                names.append(growing[one - first])
            elif low <= one < high:
                names.append(read(one - low))
            else:
                names.append(self[one])
                block = self._blocks[bisect_right(self._starts, one) - 1]
                if block.dense is None:
                    low, high, read = block.first, block.stop, block.ids.read
        return names

    def to_list(self, dense: NDArray[np.integer]) -> list[SubscriptionId]:
        """Return the ids of many dense ids."""
        if len(dense) <= FEW:
            return self.of(dense.tolist())
        names: list[SubscriptionId] = [""] * len(dense)
        for ids, order in self._parts(dense):
            for at, name in zip(order.tolist(), ids.to_list(), strict=True):
                names[at] = name
        return names

    def take(self, dense: NDArray[np.integer]) -> pa.Array:
        """Return the ids of many dense ids: integers if all of this view are, else strings.

        So the type does not depend on which ids are taken, nor on their number.
        """
        parts = list(self._parts(dense))
        if not self.has_strings:
            numbers = np.empty(len(dense), np.int64)
            for ids, order in parts:
                assert ids.numbers is not None
                numbers[order] = ids.numbers
            return pa.array(numbers)
        texts = pa.chunked_array([ids.to_texts() for ids, _ in parts], pa.large_string())
        texts = to_array(texts)
        if texts.nbytes <= MOST_BYTES:
            texts = texts.cast(pa.string())
        if len(parts) > 1:
            texts = texts.take(pa.array(np.argsort(np.concatenate([o for _, o in parts]))))
        return texts

    def _parts(self, dense: NDArray[np.integer]) -> Iterator[tuple[Ids, NDArray[np.int64]]]:
        """Yield ids by block, with their places in `dense`."""
        for at, order in split(self._starts, self._first, dense):
            here = dense[order].astype(np.int64)
            if at == len(self._starts):
                yield Ids.of([self._growing[i] for i in (here - self._first).tolist()]), order
            else:
                places = self._blocks[at].places(here) if at >= 0 else np.array([-1])
                if np.any(places < 0):
                    raise IndexError("a dense id of no subscription")
                yield self._blocks[at].ids.take(places), order


def split(
    starts: Sequence[int], first: int, dense: NDArray[np.integer]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Divide dense ids by block: yield the number of a block and the places of its dense ids.

    The number is -1 for dense ids before all blocks, and `len(starts)` from `first` on.
    """
    if not len(dense):
        return
    which = np.searchsorted(np.array([*starts, first]), dense, "right") - 1
    if which[0] == which[-1] and np.all(which == which[0]):
        yield int(which[0]), np.arange(len(dense))
        return
    order = np.argsort(which, kind="stable")
    ends = [*(np.flatnonzero(np.diff(which[order])) + 1).tolist(), len(order)]
    start = 0
    for end in ends:
        yield int(which[order[start]]), order[start:end]
        start = end
