"""Ragged ids: the ids of each event of a batch, as one pair of arrays.

Engines return them with the dense ids of subscriptions, the parts of an index with the numbers of
conjunctions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class RaggedIds(NamedTuple):
    """The ids of event i are `values[offsets[i] : offsets[i + 1]]`; the first offset is 0."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]

    @property
    def n_events(self) -> int:
        """The number of events."""
        return len(self.offsets) - 1

    def of(self, event: int) -> NDArray[Any]:
        """Return the ids of one event."""
        ids: NDArray[Any] = self.values[self.offsets[event] : self.offsets[event + 1]]
        return ids

    def rows(self) -> NDArray[np.int64]:
        """Return for each id the number of its event."""
        return np.repeat(np.arange(self.n_events), np.diff(self.offsets))

    def slice(self, first: int, last: int) -> RaggedIds:
        """Return the ids of the events from `first` to before `last`; the values are shared."""
        offsets = self.offsets[first : last + 1]
        return RaggedIds(offsets - offsets[0], self.values[offsets[0] : offsets[-1]])
