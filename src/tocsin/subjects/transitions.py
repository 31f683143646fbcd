"""Transitions: which matches began and which ended.

Enters: what a subject space found; or, for whoever keeps values elsewhere (Spark), a matcher and
the values of publications before and after. Leaves: transitions, one by one or as columns. Nothing
here needs a subject space, and nothing is pickled.

`of_batches` computes the difference of two sets of matches row by row: both batches are matched,
and the dense ids of each row are compared in order. Values are single ones, as events are.
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
from tocsin.encode.events import to_batch
from tocsin.errors import ArgumentError, BadRow
from tocsin.loading import to_table
from tocsin.matcher import Matcher
from tocsin.model import SubscriptionId
from tocsin.subjects import difference_kernels

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


class BatchTransitions(NamedTuple):
    """Transitions of a batch: 1 for ENTER and -1 for LEAVE, the row, the dense id."""

    kind: NDArray[np.int8]
    row: NDArray[np.int64]
    dense: NDArray[np.int32]
    names: Names

    def to_table(self) -> pa.Table:
        """Return columns `kind`, `row` and `subscription` (a dictionary of ids)."""
        distinct, indices = np.unique(self.dense, return_inverse=True)
        ids = pa.DictionaryArray.from_arrays(indices.astype(np.int32), self.names.take(distinct))
        kinds = pa.DictionaryArray.from_arrays(
            (self.kind < 0).astype(np.int8), pa.array(["ENTER", "LEAVE"])
        )
        return pa.table({"kind": kinds, "row": self.row, "subscription": ids})


def of_batches(
    matcher: Matcher,
    old: object,
    new: object,
    old_here: NDArray[np.bool_] | None = None,
    new_here: NDArray[np.bool_] | None = None,
) -> BatchTransitions:
    """Return what begins and ceases to match when the rows of one table become those of another.

    Row i of both is one publication. Where `old_here` says no, there was none before; where
    `new_here` says no, it is gone. Both are matched as one batch, so that they meet the same
    subscriptions, whoever changes these meanwhile.
    """
    before, after = to_table(old), to_table(new)
    n = before.num_rows
    if after.num_rows != n:
        raise ArgumentError(f"{n} rows before, {after.num_rows} after; row i is the same in both")
    found = matcher.match_batch(_joined(before, after))
    offsets, dense = found.offsets, found.dense.values
    return difference(
        (offsets[: n + 1], dense, old_here), (offsets[n:], dense, new_here), found.names
    )


def _joined(before: pa.Table, after: pa.Table) -> object:
    """Return the rows of two tables as one batch of events.

    A column whose types differ keeps the values that it has in each: promotion to a common type
    would change or refuse some of them.
    """
    try:
        return pa.concat_tables([before, after], promote_options="default")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return [*to_batch(before).events(), *to_batch(after).events()]


def of_subscriptions(before: Matcher, after: Matcher, batch: object) -> BatchTransitions:
    """Return what begins and ceases to match when one set of subscriptions becomes another.

    Subscriptions are the same where their ids are; a LEAVE of one that is gone is not told.
    """
    table = to_table(batch)
    old, new = before.match_batch(table), after.match_batch(table)
    distinct = np.unique(old.dense.values)
    ids, kept = old.names.to_list(distinct), np.full(len(distinct), -1, np.int32)
    for at, name in enumerate(ids):
        number = after._book.dense(name)
        kept[at] = -1 if number is None else number
    mapped = kept[np.searchsorted(distinct, old.dense.values)]
    is_there = mapped >= 0
    counts = np.zeros(len(mapped) + 1, np.int64)
    np.cumsum(is_there, out=counts[1:])
    offsets = counts[old.offsets]
    return difference(
        (offsets, mapped[is_there], None), (new.offsets, new.dense.values, None), after._book.names
    )


_Side = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_] | None]
_ALL = np.zeros(0, np.bool_)


def difference(old: _Side, new: _Side, names: Names) -> BatchTransitions:
    most = int(old[0][-1] - old[0][0] + new[0][-1] - new[0][0])
    kind, row = np.empty(most, np.int8), np.empty(most, np.int64)
    dense = np.empty(most, np.int32)
    sides = [
        (np.array(offsets, np.int64), np.array(ids, np.int32), _ALL if here is None else here)
        for offsets, ids, here in (old, new)
    ]
    n = difference_kernels.differences(*sides[0], *sides[1], kind, row, dense)
    return BatchTransitions(kind[:n].copy(), row[:n].copy(), dense[:n].copy(), names)


__all__ = [
    "ENTER",
    "LEAVE",
    "BatchTransitions",
    "Part",
    "Transition",
    "TransitionKind",
    "Transitions",
    "of_batches",
    "of_subscriptions",
]
