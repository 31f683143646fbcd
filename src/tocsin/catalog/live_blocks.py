"""LiveBlocks: the blocks of a catalog, with the live subscriptions of each.

Enters: blocks, and dense ids to remove. Leaves: which dense ids are live, their ids, expiries and
conditions. A block that is mostly removed is replaced by a smaller one, and small neighbours are
joined: single subscriptions up to a thousand, blocks of texts in steps that double. So memory is in
proportion to the live subscriptions, and the number of blocks does not grow with the number of
calls that made them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tocsin.catalog.blocks import NEVER, SINGLES, Block, Names, singles_block, split, texts_block
from tocsin.catalog.ids import Ids
from tocsin.catalog.renumbering import Renumbering
from tocsin.catalog.sources import OneSource, SinglesSource, Template, TextSource
from tocsin.model import SubscriptionId

_LEAST_SHARE = 4
"""A block is replaced when less than 1 in this many is live; in blocks of singles, 1 in 2."""
_TEXTS = 65_536
"""The most texts of a block that is joined from others."""


class LiveBlock:
    """A block and a mask of its live places; all are live when `live` is None."""

    def __init__(self, block: Block, live: NDArray[np.bool_] | None = None) -> None:
        self.block = block
        self.live = live
        self.n_live = len(block) if live is None else int(np.count_nonzero(live))

    def remove(self, places: NDArray[np.int64] | int, n: int) -> None:
        """Mark n places as removed; each must be live."""
        if self.live is None:
            self.live = np.ones(len(self.block), np.bool_)
        elif not self.live.flags.writeable:  # of a file
            self.live = self.live.copy()
        self.live[places] = False
        self.n_live -= n

    def is_live(self, place: int) -> bool:
        """Whether a place is live."""
        return self.live is None or bool(self.live[place])

    def live_places(self) -> NDArray[np.int64]:
        """Return the live places."""
        return np.arange(len(self.block)) if self.live is None else np.flatnonzero(self.live)

    @property
    def is_small(self) -> bool:
        """Whether it has single subscriptions, and may be joined with others."""
        return isinstance(self.block.source, SinglesSource)

    @property
    def has_texts(self) -> bool:
        """Whether it has a column of texts, and may be joined with others."""
        return isinstance(self.block.source, TextSource)

    @property
    def is_wasteful(self) -> bool:
        """Whether too much of it is removed."""
        return self.n_live * (2 if self.is_small else _LEAST_SHARE) < len(self.block)


class LiveBlocks:
    """Blocks in the order of dense ids."""

    def __init__(self, blocks: list[LiveBlock] | None = None) -> None:
        self._blocks = blocks or []
        self._starts = [live_block.block.first for live_block in self._blocks]
        self._shown: tuple[tuple[Block, ...], tuple[int, ...]] | None = None

    def __iter__(self) -> Iterator[LiveBlock]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def names(self, growing: list[SubscriptionId], first: int) -> Names:
        """Return a view of all ids; `growing` are those from `first` on, in no block yet."""
        if self._shown is None:
            self._shown = (
                tuple(live_block.block for live_block in self._blocks),
                tuple(self._starts),
            )
        return Names(*self._shown, growing, first)

    def append(self, block: Block) -> None:
        """Add a block after all others."""
        self._blocks.append(LiveBlock(block))
        self._starts.append(block.first)
        self._shown = None
        self._tidy(len(self._blocks) - 1)

    def find(self, dense: int) -> tuple[LiveBlock, int] | None:
        """Return the block and place of a dense id that is live, or None."""
        at = bisect_right(self._starts, dense) - 1
        if at < 0:
            return None
        live_block = self._blocks[at]
        place = live_block.block.place(dense)
        return (live_block, place) if place >= 0 and live_block.is_live(place) else None

    def is_named(self, dense: int, name: SubscriptionId, octets: bytes | None) -> bool:
        """Whether a dense id is live and has an id; `octets` are the id's bytes, if a string."""
        at = bisect_right(self._starts, dense) - 1
        if at < 0:
            return False
        live_block = self._blocks[at]
        place, live = live_block.block.place(dense), live_block.live
        if place < 0 or (live is not None and not live[place]):
            return False
        return live_block.block.ids.is_at(place, name, octets)

    def template(self, dense: int) -> Template:
        """Return a subscription's condition and its parameters."""
        block, place = self._at(dense)
        return block.source.template(block.row(place))

    def source(self, dense: int) -> OneSource:
        """Return a subscription's condition as it came, with its parameters."""
        block, place = self._at(dense)
        return block.source.one(block.row(place))

    def valid_until(self, dense: int) -> int | None:
        """Return a subscription's expiry, or None."""
        block, place = self._at(dense)
        moment = NEVER if block.until is None else int(block.until[place])
        return None if moment == NEVER else moment

    def _at(self, dense: int) -> tuple[Block, int]:
        live = self.find(dense)
        if live is None:
            raise KeyError(dense)
        return live[0].block, live[1]

    def are_live(self, dense: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the live dense ids."""
        live = np.zeros(len(dense), np.bool_)
        for live_block, order, places in self._split(dense):
            live[order] = _live(live_block, places)
        return live

    def are_named(
        self, dense: NDArray[np.int64], ids: Ids, at: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return a mask of the dense ids that are live and have the ids at `at` in a column."""
        named = np.zeros(len(dense), np.bool_)
        for live_block, order, places in self._split(dense):
            here = np.flatnonzero(_live(live_block, places))
            some = order[here]
            named[some] = live_block.block.ids.equal(places[here], ids, at[some])
        return named

    def remove(self, dense: NDArray[np.int64]) -> int:
        """Remove dense ids, all of them live; return how many of them had an expiry."""
        parts = [(live_block, places) for live_block, _, places in self._split(dense)]
        n_ending = 0
        for live_block, places in parts:
            live_block.remove(places, len(places))
            if live_block.block.until is not None:
                n_ending += int(np.count_nonzero(live_block.block.until[places] != NEVER))
        for live_block, _ in parts:
            if live_block.is_wasteful or not live_block.n_live:
                at = bisect_right(self._starts, live_block.block.first) - 1
                if at >= 0 and self._blocks[at] is live_block:  # not joined with another yet
                    self._tidy(at)
        return n_ending

    def remove_one(self, dense: int) -> bool:
        """Remove one dense id, which is live; return whether it had an expiry."""
        at = bisect_right(self._starts, dense) - 1
        live_block = self._blocks[at]
        block = live_block.block
        place = block.place(dense)
        live_block.remove(place, 1)
        if live_block.is_wasteful or not live_block.n_live:
            self._tidy(at)
        return block.until is not None and bool(block.until[place] != NEVER)

    def renumbered(self, new_of: Renumbering) -> LiveBlocks:
        """Return the live subscriptions with new dense ids."""
        return LiveBlocks([LiveBlock(_renumbered(s, new_of)) for s in self._blocks if s.n_live])

    def _split(
        self, dense: NDArray[np.int64]
    ) -> Iterator[tuple[LiveBlock, NDArray[np.int64], NDArray[np.int64]]]:
        for at, order in split(self._starts, np.iinfo(np.int64).max, dense):
            if at >= 0:
                yield self._blocks[at], order, self._blocks[at].block.places(dense[order])

    def _tidy(self, at: int) -> None:
        """Replace a block of which too much is removed, and join small neighbours."""
        live_block = self._blocks[at]
        if not live_block.n_live:
            self._replace(at, at + 1, None)
            return
        if live_block.is_wasteful:
            self._replace(at, at + 1, live_block.block.only(live_block.live_places()))
        while at + 1 < len(self._blocks) and self._fit(at) and self._join(at):
            pass
        while at and self._fit(at - 1) and self._join(at - 1):
            at -= 1

    def _fit(self, at: int) -> bool:
        """Whether two neighbours are to be joined."""
        one, other = self._blocks[at], self._blocks[at + 1]
        n = one.n_live + other.n_live
        if one.is_small or other.is_small:
            return one.is_small and other.is_small and n <= SINGLES
        is_even = one.n_live <= 2 * other.n_live  # so that none is copied more than some times
        return is_even and n <= _TEXTS and one.has_texts and other.has_texts

    def _join(self, at: int) -> bool:
        """Join two neighbours; return whether that was possible."""
        parts = [(s.block, s.live_places()) for s in self._blocks[at : at + 2]]
        joined = _singles_of(parts) if self._blocks[at].is_small else texts_block(parts)
        if joined is not None:
            self._replace(at, at + 2, joined)
        return joined is not None

    def _replace(self, start: int, stop: int, block: Block | None) -> None:
        blocks = [] if block is None else [block]
        self._blocks[start:stop] = [LiveBlock(block) for block in blocks]
        self._starts[start:stop] = [block.first for block in blocks]
        self._shown = None


def _renumbered(live_block: LiveBlock, new_of: Renumbering) -> Block:
    """Return a block of the live subscriptions, with new dense ids.

    Conditions are copied only where many are removed, or some were skipped before: so a file stays
    mapped, and memory stays in proportion to the live subscriptions.
    """
    block, places = live_block.block, live_block.live_places()
    if len(places) < len(block):
        if block.rows is None and 2 * len(places) >= len(block) and not live_block.is_small:
            until = None if block.until is None else block.until[places]
            ids, dense = block.ids.take(places), block.dense_ids()[places]
            block = replace(block, ids=ids, rows=places, until=until, dense=dense)
        else:
            block = block.only(places)
    dense = new_of(block.dense_ids())
    first, stop = int(dense[0]), int(dense[-1]) + 1
    return replace(
        block, first=first, stop=stop, dense=None if stop - first == len(dense) else dense
    )


def _live(live_block: LiveBlock, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    here = places >= 0
    return here if live_block.live is None else here & live_block.live[places]


def _singles_of(parts: list[tuple[Block, NDArray[np.int64]]]) -> Block:
    """Join some places of blocks of single subscriptions."""
    return singles_block(
        np.concatenate([block.dense_ids()[places] for block, places in parts]),
        [name for block, places in parts for name in block.ids.take(places).to_list()],
        [
            block.source.one(block.row(place))
            for block, places in parts
            for place in places.tolist()
        ],
        np.concatenate([block.ends()[places] for block, places in parts]).tolist(),
    )
