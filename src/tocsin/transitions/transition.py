"""Transitions one by one: a publication and a subscription that begin or cease to match.

Enters: arrays of kinds, keys and dense ids, as a subject space computes them. Leaves: a sequence of
`Transition`, or a table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.catalog.blocks import Names
from tocsin.errors import BadRow
from tocsin.model import SubscriptionId

PublicationKey = str | int


class TransitionKind(Enum):
    """Whether a match began or ended."""

    ENTER = "ENTER"
    LEAVE = "LEAVE"


ENTER = TransitionKind.ENTER
LEAVE = TransitionKind.LEAVE
_KINDS = {1: ENTER, -1: LEAVE}


class Transition(NamedTuple):
    """A publication and a subscription that began or ceased to match."""

    kind: TransitionKind
    key: PublicationKey
    subscription: SubscriptionId


class TransitionBlock(NamedTuple):
    """Transitions in arrays: kinds, indices of keys, and dense ids with their names."""

    kind: NDArray[np.int8]
    key_index: NDArray[np.int64]
    keys: Sequence[PublicationKey]
    dense_ids: NDArray[np.int64]
    names: Names


class Transitions(Sequence[Transition]):
    """The transitions of a call, in order; objects are created on access.

    `sequence` is the sequence number of the call in a space on disk.
    """

    def __init__(self, blocks: Sequence[TransitionBlock] = (), sequence: int | None = None) -> None:
        self.blocks = tuple(block for block in blocks if len(block.kind))
        self.sequence = sequence
        self.loaded = 0
        """The number of subscriptions that a bulk call added or changed."""
        self.bad: tuple[BadRow, ...] = ()
        """The rows that a bulk load quarantined."""
        self._ends = list(accumulate(len(block.kind) for block in self.blocks))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, at: int) -> Transition:  # type: ignore[override]
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(at)
        which = bisect_right(self._ends, at)
        block = self.blocks[which]
        inner = at - self._ends[which] + len(block.kind)
        key = block.keys[int(block.key_index[inner])]
        name = block.names[int(block.dense_ids[inner])]
        return Transition(_KINDS[int(block.kind[inner])], key, name)

    def __iter__(self) -> Iterator[Transition]:
        for block in self.blocks:
            names = block.names.to_list(block.dense_ids)
            kinds, indices = block.kind.tolist(), block.key_index.tolist()
            for kind, index, name in zip(kinds, indices, names, strict=True):
                yield Transition(_KINDS[kind], block.keys[index], name)

    def __repr__(self) -> str:
        n_enter = sum(int(np.count_nonzero(block.kind == 1)) for block in self.blocks)
        return f"Transitions({n_enter} ENTER, {len(self) - n_enter} LEAVE)"

    def to_table(self) -> pa.Table:
        """Return columns `kind`, `key` and `subscription`; ids of two kinds become strings."""
        every = list(self)
        return pa.table(
            {
                "kind": pa.array([t.kind.value for t in every], pa.string()),
                "key": _column([t.key for t in every]),
                "subscription": _column([t.subscription for t in every]),
            }
        )


def _column(names: list[PublicationKey]) -> pa.Array:
    if all(isinstance(name, int) for name in names):
        return pa.array(names, pa.int64())
    return pa.array([str(name) for name in names], pa.string())
