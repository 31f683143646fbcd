"""Matches: what `match_batch` returns.

Enters: dense ids by event from an engine, and the names that they had at that moment. Leaves: for
each event the user's ids, or a table in which ids are dictionary-encoded, never copied per match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.catalog.blocks import Names
from tocsin.engines.ragged import RaggedIds
from tocsin.errors import ArgumentError
from tocsin.model import SubscriptionId

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class Matches(Sequence[list[SubscriptionId]]):
    """The matches of a batch: `matches[i]` are the ids that event i matches, each once.

    `matches[2:5]` are the matches of some events, again as `Matches`. `dense` and `names` are for
    other modules of the package: the matches as dense ids, and the ids that these stand for.
    """

    def __init__(self, dense: RaggedIds, names: Names | Sequence[SubscriptionId]) -> None:
        self.dense = dense
        self.names = names if isinstance(names, Names) else Names(growing=names)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the matches of each event begin among all, and at last how many there are."""
        return self.dense.offsets

    @property
    def n_matches(self) -> int:
        """The number of (event, subscription) pairs that match."""
        return len(self.dense.values)

    def __len__(self) -> int:
        return self.dense.n_events

    @overload
    def __getitem__(self, event: int) -> list[SubscriptionId]: ...
    @overload
    def __getitem__(self, event: slice) -> Matches: ...
    def __getitem__(self, event: int | slice) -> list[SubscriptionId] | Matches:
        if isinstance(event, slice):
            return self._select(range(len(self))[event])
        if event < 0:
            event += len(self)
        if not 0 <= event < len(self):
            raise IndexError(event)
        return self.names.to_list(self.dense.of(event))

    def _select(self, events: range) -> Matches:
        if events.step == 1 and events:
            return Matches(self.dense.slice(events.start, events.stop), self.names)
        ids = [self.dense.values[:0], *(self.dense.of(event) for event in events)]
        offsets = np.cumsum([len(of_event) for of_event in ids])
        return Matches(RaggedIds(offsets, np.concatenate(ids)), self.names)

    def __iter__(self) -> Iterator[list[SubscriptionId]]:
        return (self[event] for event in range(len(self)))

    def __repr__(self) -> str:
        return f"Matches({len(self)} events, {self.n_matches} matches)"

    def to_table(self) -> pa.Table:
        """Return an Arrow table of columns `event` (row number) and `subscription` (id).

        Ids are dictionary-encoded: integers where all ids of the matcher are, else strings, so the
        tables of all batches that one set of subscriptions matched have the same columns.
        """
        distinct, indices = np.unique(self.dense.values, return_inverse=True)
        dictionary = self.names.take(distinct)
        subscription = pa.DictionaryArray.from_arrays(indices.astype(np.int32), dictionary)
        return pa.table({"event": self.dense.rows(), "subscription": subscription})

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas frame of columns `event` and `subscription` (categorical).

        Raises ArgumentError where pandas is not installed.
        """
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise ArgumentError("to_pandas needs pandas: pip install pandas") from None
        return self.to_table().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return a Polars frame of columns `event` and `subscription` (categorical, or integers).

        Raises ArgumentError where Polars is not installed.
        """
        try:
            import polars
        except ImportError:
            raise ArgumentError("to_polars needs Polars: pip install polars") from None
        frame = polars.from_arrow(self.to_table())
        assert isinstance(frame, polars.DataFrame)
        return frame
