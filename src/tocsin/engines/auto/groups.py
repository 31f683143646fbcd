"""Groups: a family of the entries, for large batches in the order of its prefix.

Events with the same prefix meet the same entries. So a batch is sorted by the prefix of the largest
family that has one, and 64 or 512 events of a prefix are compared with each of its entries at once:
for each code of each attribute a mask says which of the events have it, or a lower code, and an
entry of three conditions is decided by three or six loads (`Slots` has where the masks are). Where
few events share a prefix, masks do not pay, and the entries are looked up event by event.

It pays as long as events match little: matches have to be sorted by event at the end.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tocsin.engines.auto import entry_kernels, group_kernels
from tocsin.engines.auto.arrays import Coding, Flags, GroupCosts, Keys, Slots, Words
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.output import Pairs, join
from tocsin.engines.auto.part import Part, Shared
from tocsin.engines.ragged import RaggedIds

_MIN_EVENTS = 2048
"""Smaller batches are not sorted."""
_MAX_MATCHES = 16, 4
"""Up to how many matches per event sorting pays, and how many more for each member.

The more members there are, the more it saves to look for many events at a time.
"""
_MAX_MASK_CODES = 1 << 14
"""With more codes, the masks of a group of events would not stay in the cache."""
_COSTS = GroupCosts(probe=9.0, far=40.0, check=1.2, few=2.2, many=2.7, mark=1.2, code=0.8)


def choose_family(keys: Keys) -> int:
    """Return the largest family with a prefix, or -1."""
    sizes = [
        int(keys.start[keys.base[f + 1] if f + 1 < len(keys.base) else -1])
        - int(keys.start[keys.base[f]])
        if keys.prefix_start[f + 1] > keys.prefix_start[f]
        else 0
        for f in range(len(keys.base))
    ]
    return int(np.argmax(sizes)) if sizes and max(sizes) > 0 else -1


def build(coding: Coding, keys: Keys, f: int, n_entries: int) -> Slots:
    """Number the slots below each prefix of a family; empty where masks would be too large."""
    none = np.empty(0, np.uint32)
    n_codes = np.diff(coding.first) + 1
    if f < 0 or n_codes.sum() > _MAX_MASK_CODES or keys.stride[f] > 0xFFFF:
        return Slots(np.empty(0, np.uint16), none, none, none)
    first = np.concatenate([[0], np.cumsum(n_codes)]).astype(np.uint32)
    low = np.zeros(keys.stride[f], np.uint32)
    high = np.zeros(keys.stride[f], np.uint32)
    for m in range(keys.member_start[f], keys.member_start[f + 1]):
        a, offset = int(keys.member_attribute[m]), int(keys.member_offset[m])
        if a < 0:
            low[offset], high[offset] = first[0], first[1] - 1
            continue
        digits = coding.digit[coding.first[a] : coding.first[a + 1]]
        codes = np.flatnonzero(digits >= 0)
        slots = offset + digits[codes]
        high[slots] = first[a] + codes + 1
        low[slots[::-1]] = first[a] + codes[::-1]
    of_entry = np.zeros(n_entries, np.uint16)
    prefix = keys.prefix[keys.prefix_start[f] : keys.prefix_start[f + 1]]
    n_prefixes = int(np.prod(coding.n_digits[prefix]))
    group_kernels.fill_slots(keys, f, n_prefixes, of_entry)
    return Slots(of_entry, low, high, first)


class Groups(Part):
    """A family of the entries, matched by groups of events with its prefix."""

    def __init__(
        self, shared: Shared, keys: Keys, entries: Words, slots: Slots, family: int
    ) -> None:
        self._shared, self._keys, self._entries, self._slots = shared, keys, entries, slots
        self._family = family
        n_members = int(keys.member_start[family + 1] - keys.member_start[family])
        self._max_matches = _MAX_MATCHES[0] + _MAX_MATCHES[1] * n_members

    def takes(self, n_events: int) -> bool:
        """Whether sorting the next batch, of this size, pays."""
        return n_events >= _MIN_EVENTS and self._shared.rate.is_at_most(self._max_matches)

    def match(self, batch: PreparedBatch, base: int, is_done: Flags, rows: RaggedIds) -> RaggedIds:
        """Match the family: by masks where they pay, and event by event elsewhere."""
        shared, n, f = self._shared, len(batch.events), self._family
        is_done[f] = True
        ordered = batch.ordered(shared.coding, self._keys, f, shared.needs_cells)
        (codes, _), order, prefix_of = ordered
        is_matched = np.zeros(n, np.bool_)
        n_expected = max(4 * n, shared.rate.expected(n))
        pairs = Pairs(ordered, shared.stream, self.need_checks, n_expected, shared.pool)
        if len(self._slots.of_entry):
            pairs.collect(
                group_kernels.match_groups,
                self._keys,
                self._entries,
                self._slots,
                f,
                self.is_pointed,
                _COSTS,
                codes,
                order,
                prefix_of,
                is_matched,
            )
        if not is_matched.all():
            events = codes, order, prefix_of, is_matched
            arrays = shared.coding, self._keys, self._entries, f
            pairs.collect(entry_kernels.match_rows, *arrays, *events)
        return join(rows, pairs.rows(n, base), shared.pool)

    @cached_property
    def _own_entries(self) -> Words:
        """The entries of the family."""
        keys, f = self._keys, self._family
        end = keys.base[f + 1] if f + 1 < len(keys.base) else -1
        return self._entries[keys.start[keys.base[f]] : keys.start[end]]

    @cached_property
    def is_pointed(self) -> bool:
        """Whether each entry of the family has three single codes."""
        if np.any(self._slots.high - self._slots.low > 1):
            return False
        return bool(group_kernels.are_points(self._own_entries))

    @cached_property
    def need_checks(self) -> bool:
        """Whether some entries of the family do not decide their conjunctions."""
        return bool(group_kernels.do_any_need_checks(self._own_entries))
