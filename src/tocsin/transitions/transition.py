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


class Part(NamedTuple):
    """Transitions in arrays: kinds, places in a list of keys, and dense ids with their names."""

    kind: NDArray[np.int8]
    place: NDArray[np.int64]
    keys: Sequence[PublicationKey]
    dense: NDArray[np.int64]
    names: Names


class Transitions(Sequence[Transition]):
    """What a call brought about, in order; objects are made when they are asked for.

    `sequence` is the number of the call in a space that is kept on disk.
    """

    def __init__(self, parts: Sequence[Part] = (), sequence: int | None = None) -> None:
        self.parts = tuple(part for part in parts if len(part.kind))
        self.sequence = sequence
        self.bad: tuple[BadRow, ...] = ()
        """The rows that a bulk load set aside."""
        self._ends = list(accumulate(len(part.kind) for part in self.parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, at: int) -> Transition:  # type: ignore[override]
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(at)
        which = bisect_right(self._ends, at)
        part = self.parts[which]
        inner = at - self._ends[which] + len(part.kind)
        key = part.keys[int(part.place[inner])]
        return Transition(_KINDS[int(part.kind[inner])], key, part.names[int(part.dense[inner])])

    def __iter__(self) -> Iterator[Transition]:
        for part in self.parts:
            names = part.names.to_list(part.dense)
            kinds, places = part.kind.tolist(), part.place.tolist()
            for kind, place, name in zip(kinds, places, names, strict=True):
                yield Transition(_KINDS[kind], part.keys[place], name)

    def __repr__(self) -> str:
        n_enter = sum(int(np.count_nonzero(part.kind == 1)) for part in self.parts)
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
