"""The transitions of a batch: which pairs of a row and a subscription begin and cease to match.

Enters: the matches of rows before and after a change. Leaves: kinds, rows and dense ids of the
pairs that are in one of the two only, as columns. The dense ids of each row are sorted and merged
by one kernel (`difference_kernels`), whoever keeps the values: `of_batches` matches the old and the
new values of publications, `of_subscriptions` one batch against two sets of subscriptions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arguments import to_table
from tocsin.catalog.blocks import Names
from tocsin.encode.events import to_batch
from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.transitions import difference_kernels
from tocsin.transitions.transition import ENTER, LEAVE


class BatchTransitions(NamedTuple):
    """The transitions of a batch as columns; the kind is 1 for ENTER and -1 for LEAVE."""

    kind: NDArray[np.int8]
    row: NDArray[np.int64]
    dense: NDArray[np.int32]
    names: Names

    def to_table(self) -> pa.Table:
        """Return columns `kind`, `row` and `subscription` (a dictionary of ids)."""
        distinct, indices = np.unique(self.dense, return_inverse=True)
        ids = pa.DictionaryArray.from_arrays(indices.astype(np.int32), self.names.take(distinct))
        kinds = pa.DictionaryArray.from_arrays(
            (self.kind < 0).astype(np.int8), pa.array([ENTER.value, LEAVE.value])
        )
        return pa.table({"kind": kinds, "row": self.row, "subscription": ids})


def of_batches(
    matcher: Matcher,
    old: object,
    new: object,
    old_here: NDArray[np.bool_] | None = None,
    new_here: NDArray[np.bool_] | None = None,
) -> BatchTransitions:
    """Return the transitions when the rows of table `old` become those of `new`.

    Row i of both is one publication. Where `old_here[i]` is false there was none before; where
    `new_here[i]` is false it has ended. Both tables are matched as one batch, so that they see the
    same subscriptions. Tables of different lengths raise ArgumentError.
    """
    before, after = to_table(old), to_table(new)
    n = before.num_rows
    if after.num_rows != n:
        raise ArgumentError(f"{n} rows before, {after.num_rows} after; row i is the same in both")
    matches = matcher.match_batch(_joined(before, after))
    offsets, dense = matches.offsets, matches.dense.values
    return difference(
        (offsets[: n + 1], dense, old_here), (offsets[n:], dense, new_here), matches.names
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
    """Return the transitions of the rows of `batch` when subscriptions change.

    Subscriptions are identified by their ids. One that `after` does not have gives no LEAVE.
    """
    table = to_table(batch)
    old, new = before.match_batch(table), after.match_batch(table)
    distinct = np.unique(old.dense.values)
    ids, kept = old.names.to_list(distinct), np.full(len(distinct), -1, np.int32)
    for at, name in enumerate(ids):
        number = after.catalog.dense(name)
        kept[at] = -1 if number is None else number
    mapped = kept[np.searchsorted(distinct, old.dense.values)]
    is_there = mapped >= 0
    counts = np.zeros(len(mapped) + 1, np.int64)
    np.cumsum(is_there, out=counts[1:])
    offsets = counts[old.offsets]
    return difference(
        (offsets, mapped[is_there], None),
        (new.offsets, new.dense.values, None),
        after.catalog.names,
    )


_Side = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_] | None]
_ALL = np.zeros(0, np.bool_)


def difference(old: _Side, new: _Side, names: Names) -> BatchTransitions:
    """Return what one side of each row has and the other lacks.

    A side is offsets, dense ids, and optionally a mask: a row that it excludes matches nothing.
    """
    most = int(old[0][-1] - old[0][0] + new[0][-1] - new[0][0])
    kind, row = np.empty(most, np.int8), np.empty(most, np.int64)
    dense = np.empty(most, np.int32)
    sides = [
        (np.array(offsets, np.int64), np.array(ids, np.int32), _ALL if here is None else here)
        for offsets, ids, here in (old, new)
    ]
    n = difference_kernels.differences(*sides[0], *sides[1], kind, row, dense)
    return BatchTransitions(kind[:n].copy(), row[:n].copy(), dense[:n].copy(), names)
