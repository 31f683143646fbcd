"""The shelf: the blocks of a book, and what is live in each.

Enters: blocks, and dense ids that are struck out. Leaves: which dense ids are live, their ids, ends
and conditions. When too much of a block is gone a smaller one takes its place, and neighbours that
are small are put together: single subscriptions up to a thousand, blocks of texts in steps that
double. So what is held is in proportion to what is live, and how many blocks there are does not
follow the calls that made them, however many subscriptions came and went.
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
"""A block of which less than this part is live is made anew; for single ones it is a half."""
_TEXTS = 65_536
"""How many texts of several blocks are put together at most."""


class LiveBlock:
    """A block and which of its places are live: all when `live` is None."""

    def __init__(self, block: Block, live: NDArray[np.bool_] | None = None) -> None:
        self.block = block
        self.live = live
        self.n_live = len(block) if live is None else int(np.count_nonzero(live))

    def strike(self, places: NDArray[np.int64] | int, n: int) -> None:
        """Mark n places as gone; each must have been live."""
        if self.live is None:
            self.live = np.ones(len(self.block), np.bool_)
        elif not self.live.flags.writeable:  # of a file
            self.live = self.live.copy()
        self.live[places] = False
        self.n_live -= n

    def is_live(self, place: int) -> bool:
        """Whether a place is live."""
        return self.live is None or bool(self.live[place])

    def kept(self) -> NDArray[np.int64]:
        """Return the places that are live."""
        return np.arange(len(self.block)) if self.live is None else np.flatnonzero(self.live)

    @property
    def is_small(self) -> bool:
        """Whether it holds single subscriptions, and may be put together with others."""
        return isinstance(self.block.source, SinglesSource)

    @property
    def has_texts(self) -> bool:
        """Whether it holds a column of texts, and may be put together with others."""
        return isinstance(self.block.source, TextSource)

    @property
    def is_wasteful(self) -> bool:
        """Whether too much of it is gone."""
        return self.n_live * (2 if self.is_small else _LEAST_SHARE) < len(self.block)


class LiveBlocks:
    """Blocks by dense id; the rest of the book knows what is below `first` of its growing part."""

    def __init__(self, held: list[LiveBlock] | None = None) -> None:
        self._held = held or []
        self._starts = [shelved.block.first for shelved in self._held]
        self._shown: tuple[tuple[Block, ...], tuple[int, ...]] | None = None

    def __iter__(self) -> Iterator[LiveBlock]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def names(self, growing: list[SubscriptionId], first: int) -> Names:
        """Return a view of all ids, with those that are not in a block yet."""
        if self._shown is None:
            self._shown = (tuple(shelved.block for shelved in self._held), tuple(self._starts))
        return Names(*self._shown, growing, first)

    def append(self, block: Block) -> None:
        """Add a block after all others."""
        self._held.append(LiveBlock(block))
        self._starts.append(block.first)
        self._shown = None
        self._tidy(len(self._held) - 1)

    def find(self, dense: int) -> tuple[LiveBlock, int] | None:
        """Return the block and place of a dense id that is live, or None."""
        at = bisect_right(self._starts, dense) - 1
        if at < 0:
            return None
        shelved = self._held[at]
        place = shelved.block.place(dense)
        return (shelved, place) if place >= 0 and shelved.is_live(place) else None

    def is_named(self, dense: int, name: SubscriptionId, octets: bytes | None) -> bool:
        """Whether a dense id is live and has an id; `octets` are the id's bytes, if a string."""
        at = bisect_right(self._starts, dense) - 1
        if at < 0:
            return False
        shelved = self._held[at]
        place, live = shelved.block.place(dense), shelved.live
        if place < 0 or (live is not None and not live[place]):
            return False
        return shelved.block.ids.is_at(place, name, octets)

    def template(self, dense: int) -> Template:
        """Return a subscription's condition with its parameters beside it."""
        block, place = self._at(dense)
        return block.source.template(block.row(place))

    def source(self, dense: int) -> OneSource:
        """Return a subscription's condition as it came, with its parameters."""
        block, place = self._at(dense)
        return block.source.one(block.row(place))

    def valid_until(self, dense: int) -> int | None:
        """Return the moment of a subscription's end, or None."""
        block, place = self._at(dense)
        moment = NEVER if block.until is None else int(block.until[place])
        return None if moment == NEVER else moment

    def _at(self, dense: int) -> tuple[Block, int]:
        found = self.find(dense)
        if found is None:
            raise KeyError(dense)
        return found[0].block, found[1]

    def are_live(self, dense: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which dense ids are live."""
        live = np.zeros(len(dense), np.bool_)
        for shelved, order, places in self._split(dense):
            live[order] = _live(shelved, places)
        return live

    def are_named(
        self, dense: NDArray[np.int64], ids: Ids, at: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Say which dense ids are live and have the ids at some places of a column."""
        named = np.zeros(len(dense), np.bool_)
        for shelved, order, places in self._split(dense):
            here = np.flatnonzero(_live(shelved, places))
            some = order[here]
            named[some] = shelved.block.ids.equal(places[here], ids, at[some])
        return named

    def strike(self, dense: NDArray[np.int64]) -> int:
        """Strike out dense ids, all of them live; return how many of them had an end."""
        parts = [(shelved, places) for shelved, _, places in self._split(dense)]
        n_ending = 0
        for shelved, places in parts:
            shelved.strike(places, len(places))
            if shelved.block.until is not None:
                n_ending += int(np.count_nonzero(shelved.block.until[places] != NEVER))
        for shelved, _ in parts:
            if shelved.is_wasteful or not shelved.n_live:
                at = bisect_right(self._starts, shelved.block.first) - 1
                if at >= 0 and self._held[at] is shelved:  # not put together with another yet
                    self._tidy(at)
        return n_ending

    def strike_one(self, dense: int) -> bool:
        """Strike out one dense id, which is live; return whether it had an end."""
        at = bisect_right(self._starts, dense) - 1
        shelved = self._held[at]
        block = shelved.block
        place = block.place(dense)
        shelved.strike(place, 1)
        if shelved.is_wasteful or not shelved.n_live:
            self._tidy(at)
        return block.until is not None and bool(block.until[place] != NEVER)

    def renumbered(self, new_of: Renumbering) -> LiveBlocks:
        """Return a shelf of what is live, with new dense ids."""
        return LiveBlocks([LiveBlock(_renumbered(s, new_of)) for s in self._held if s.n_live])

    def _split(
        self, dense: NDArray[np.int64]
    ) -> Iterator[tuple[LiveBlock, NDArray[np.int64], NDArray[np.int64]]]:
        for at, order in split(self._starts, np.iinfo(np.int64).max, dense):
            if at >= 0:
                yield self._held[at], order, self._held[at].block.places(dense[order])

    def _tidy(self, at: int) -> None:
        """Make a block anew where too much of it is gone, and put small neighbours together."""
        shelved = self._held[at]
        if not shelved.n_live:
            self._replace(at, at + 1, None)
            return
        if shelved.is_wasteful:
            self._replace(at, at + 1, shelved.block.only(shelved.kept()))
        while at + 1 < len(self._held) and self._fit(at) and self._join(at):
            pass
        while at and self._fit(at - 1) and self._join(at - 1):
            at -= 1

    def _fit(self, at: int) -> bool:
        """Whether two neighbours are to be put together."""
        one, other = self._held[at], self._held[at + 1]
        n = one.n_live + other.n_live
        if one.is_small or other.is_small:
            return one.is_small and other.is_small and n <= SINGLES
        is_even = one.n_live <= 2 * other.n_live  # so that none is copied more than some times
        return is_even and n <= _TEXTS and one.has_texts and other.has_texts

    def _join(self, at: int) -> bool:
        """Put two neighbours together; return whether that could be done."""
        kept = [(s.block, s.kept()) for s in self._held[at : at + 2]]
        joined = _singles_of(kept) if self._held[at].is_small else texts_block(kept)
        if joined is not None:
            self._replace(at, at + 2, joined)
        return joined is not None

    def _replace(self, start: int, stop: int, block: Block | None) -> None:
        made = [] if block is None else [block]
        self._held[start:stop] = [LiveBlock(block) for block in made]
        self._starts[start:stop] = [block.first for block in made]
        self._shown = None


def _renumbered(shelved: LiveBlock, new_of: Renumbering) -> Block:
    """Return a block of what is live, with new dense ids.

    Its conditions are copied only where much of them is gone, or some were left out before: a file
    that they lie in stays mapped, and what is held stays in proportion to what is live.
    """
    block, kept = shelved.block, shelved.kept()
    if len(kept) < len(block):
        if block.rows is None and 2 * len(kept) >= len(block) and not shelved.is_small:
            until = None if block.until is None else block.until[kept]
            ids, dense = block.ids.take(kept), block.dense_ids()[kept]
            block = replace(block, ids=ids, rows=kept, until=until, dense=dense)
        else:
            block = block.only(kept)
    dense = new_of(block.dense_ids())
    first, stop = int(dense[0]), int(dense[-1]) + 1
    return replace(
        block, first=first, stop=stop, dense=None if stop - first == len(dense) else dense
    )


def _live(shelved: LiveBlock, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    here = places >= 0
    return here if shelved.live is None else here & shelved.live[places]


def _singles_of(parts: list[tuple[Block, NDArray[np.int64]]]) -> Block:
    """Put some places of blocks of single subscriptions together."""
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
