"""Matches: what `match_batch` returns.

Enters: offsets and dense ids from an engine, and the names of that moment. Leaves: for each event
the user's ids, or an Arrow table in which ids are dictionary-encoded, never copied per match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.catalog.blocks import Names
from tocsin.model import SubscriptionId


class Matches(Sequence[list[SubscriptionId]]):
    """The matches of a batch: `matches[i]` are the ids that event i matches, each once."""

    def __init__(
        self,
        offsets: NDArray[np.int64],
        dense_ids: NDArray[np.int32],
        names: Names | Sequence[SubscriptionId],
    ) -> None:
        self.offsets = offsets
        self._dense_ids = dense_ids
        self._names = names if isinstance(names, Names) else Names(growing=names)

    @property
    def n_matches(self) -> int:
        """How many (event, subscription) pairs match."""
        return len(self._dense_ids)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, event: int) -> list[SubscriptionId]:  # type: ignore[override]
        if event < 0:
            event += len(self)
        if not 0 <= event < len(self):
            raise IndexError(event)
        dense = self._dense_ids[self.offsets[event] : self.offsets[event + 1]]
        return self._names.to_list(dense)

    def __iter__(self) -> Iterator[list[SubscriptionId]]:
        return (self[event] for event in range(len(self)))

    def __repr__(self) -> str:
        return f"Matches({len(self)} events, {self.n_matches} matches)"

    def to_table(self) -> pa.Table:
        """Return columns `event` (row number) and `subscription` (dictionary of ids).

        Ids are integers where all ids of the matcher are, else strings: the tables of all batches
        that one set of subscriptions matched have the same columns.
        """
        distinct, indices = np.unique(self._dense_ids, return_inverse=True)
        dictionary = self._names.take(distinct)
        subscription = pa.DictionaryArray.from_arrays(indices.astype(np.int32), dictionary)
        event = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        return pa.table({"event": event, "subscription": subscription})
