"""Members: a family of many tables without a prefix, of which an event has few attributes.

Where there are hundreds of attributes and an event has a few dozen, looking an event up in all
tables costs a cache miss each. Here the loops are exchanged: block by block of events, one table
after the other, with the events that have its attribute. An entry is compared first by the two
attributes that it requires: 32 bits an entry, against a bit mask of the attributes of the event,
for sixteen entries at a time. Only the few that are left are read.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tocsin.engines.auto import member_kernels, verify_kernels
from tocsin.engines.auto.arrays import NEEDS_CHECK, Cells, Flags, Keys, Numbers, Words
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.output import Buffer, join, to_ragged
from tocsin.engines.auto.part import Part, Shared
from tocsin.engines.ragged import RaggedIds
from tocsin.jit import LANES

_MIN_MEMBERS = 64
_MIN_EVENTS = 64
_BLOCK_EVENTS = 4096
"""How many events are matched with all members at a time."""
_BLOCK_CODES = 1 << 26
"""The codes of these events at most: fewer events where there are very many attributes."""


def choose_family(keys: Keys) -> int:
    """Return the family without a prefix if it has many members, or -1."""
    for f in range(len(keys.base)):
        n_members = keys.member_start[f + 1] - keys.member_start[f]
        if keys.prefix_start[f + 1] == keys.prefix_start[f] and n_members >= _MIN_MEMBERS:
            return f
    return -1


class Members(Part):
    """A family of the entries, matched member by member."""

    def __init__(self, shared: Shared, keys: Keys, entries: Words, family: int) -> None:
        self._shared, self._keys, self._entries = shared, keys, entries
        self._family = family

    def takes(self, n_events: int) -> bool:
        """Whether the batch is large enough."""
        return n_events >= _MIN_EVENTS

    @cached_property
    def _required(self) -> Numbers:
        """The two attributes that each entry requires, see `member_kernels.find_required`."""
        required = np.zeros(len(self._entries) + LANES, np.uint32)
        n_attributes = len(self._shared.coding.n_cells)
        member_kernels.find_required(self._entries, n_attributes, required)
        return required

    def match(self, batch: PreparedBatch, base: int, is_done: Flags, rows: RaggedIds) -> RaggedIds:
        """Match the family."""
        shared, n = self._shared, len(batch.events)
        is_done[self._family] = True
        n_attributes = max(len(shared.coding.n_cells), 1)
        size = min(_BLOCK_EVENTS, max(_BLOCK_CODES // n_attributes, 1))
        pairs = Buffer(shared.pool, max(4 * n, shared.rate.expected(n)), np.int32, np.uint32)
        arrays = shared.coding, self._keys, self._entries, self._required, self._family
        n_pairs = pairs.fill(member_kernels.match_members, *arrays, *batch.present, n, size)
        event, number = (array[:n_pairs] for array in pairs.arrays)
        verified = self._verified(batch, event, number)
        own = to_ragged(verified, len(verified[0]), n, base, shared.pool)
        return join(rows, own, shared.pool)

    def _verified(
        self, batch: PreparedBatch, event: Cells, number: Numbers
    ) -> tuple[Cells, Numbers]:
        """Return the pairs that hold; cells are encoded only for events that need a check."""
        needs_check = number >= NEEDS_CHECK
        if not needs_check.any():
            return event, number
        events = np.unique(event[needs_check])
        rows = batch.rows_of(events)
        row = np.searchsorted(events, event[needs_check]).astype(np.int32)
        unverified = number[needs_check]
        n = verify_kernels.verify_pairs(self._shared.stream, rows, len(unverified), row, unverified)
        return (
            np.concatenate([event[~needs_check], events[row[:n]]]),
            np.concatenate([number[~needs_check], unverified[:n]]),
        )
