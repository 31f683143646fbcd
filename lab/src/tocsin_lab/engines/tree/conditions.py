"""Conditions → tests: each distinct condition of an attribute gets one number.

Enters: conjunction tables. Leaves: for each condition the number of its *test*, an elementary
predicate of Aguilera et al. (section 2): "the attribute's value lies in this set" with the result
yes. A test is a few ranges of cuts (see `places`). One that a single value satisfies is a *value*:
the tree finds it by hashing. One from an integer to the next is a *unit*: what an equality becomes
where the attribute is declared integer. All others are *sets*.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.model import INT64_MAX, INT64_MIN
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import floats_of
from tocsin.normalize.table import ABSENT, PRESENT, ConjunctionTable
from tocsin_lab.engines.tree import arrays, kernels
from tocsin_lab.engines.tree.growing import grown
from tocsin_lab.engines.tree.places import ABSENT as ABSENT_CUT
from tocsin_lab.engines.tree.places import END, FIRST_DOMAIN, Places

VALUE, UNIT, SET = 0, 1, arrays.SET
_EXACT = 2.0**53


class TestBook:
    """All tests: by number their attribute, sort and ranges."""

    __test__ = False  # nothing for pytest

    def __init__(self) -> None:
        self.places = Places()
        self.n = 0
        self.attribute = np.empty(64, np.int32)
        self.sort = np.empty(64, np.uint8)
        self.start = np.zeros(65, np.int64)
        self.low = np.empty(64, np.int32)
        self.high = np.empty(64, np.int32)
        self._slots = np.full((128, 2), arrays.NONE, np.int64)
        self._of_many: dict[bytes, int] = {}

    def tests_of(self, table: ConjunctionTable) -> NDArray[np.int32]:
        """Return the test of each condition of a table; new ones are added."""
        number = np.full(len(table.attributes), -1, np.int32)
        for at in np.unique(table.attribute).tolist():
            number[at] = self.places.attribute(table.attributes[at])
        attribute = number[table.attribute]
        start, low, high = self._ranges(table, attribute)
        tests = np.empty(table.n_conditions, np.int32)
        is_single = np.diff(start) == 1
        single = np.flatnonzero(is_single)
        at = start[single]
        sorts = np.full(len(start) - 1, SET, np.uint8)
        sorts[single] = _sorts(table, single)
        tests[single] = self._intern(attribute[single], sorts[single], low[at], high[at])
        for i in np.flatnonzero(~is_single).tolist():
            ranges = slice(start[i], start[i + 1])
            tests[i] = self._intern_many(int(attribute[i]), low[ranges], high[ranges])
        return tests

    def _ranges(
        self, table: ConjunctionTable, attribute: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """Return each condition's ranges as cuts, in order: starts, lows and highs."""
        low, high = self._cuts(table, attribute)
        is_absent = (table.flags & ABSENT) > 0
        is_present = (table.flags & PRESENT) > 0
        n_pieces = np.diff(table.piece_start)
        starts = np.zeros(len(n_pieces) + 1, np.int64)
        np.cumsum(n_pieces + is_absent + is_present, out=starts[1:])
        lows, highs = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.int32)
        moved = np.arange(len(low)) + np.repeat(
            starts[:-1] + is_absent - table.piece_start[:-1], n_pieces
        )
        lows[moved], highs[moved] = low, high
        first = np.array([a.first for a in self.places.attributes], np.int32)[attribute]
        at = starts[:-1][is_absent]
        lows[at], highs[at] = first[is_absent] + ABSENT_CUT, first[is_absent] + FIRST_DOMAIN
        at = starts[1:][is_present] - 1
        lows[at], highs[at] = first[is_present] + FIRST_DOMAIN, first[is_present] + END
        return starts, lows, highs

    def _cuts(
        self, table: ConjunctionTable, attribute: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the cuts of each piece's bounds."""
        n = len(table.domain)
        group = np.repeat(attribute.astype(np.int64) * 4, np.diff(table.piece_start)) + table.domain
        group = np.concatenate([group, group])
        keys = np.concatenate([table.low_key, table.high_key])
        offsets = np.concatenate([table.low_offset, table.high_offset])
        at_low = (keys == INT64_MIN) & (offsets == 0)
        at_high = (keys == INT64_MAX) & (offsets == 1)
        cuts = np.empty(2 * n, np.int32)
        order = np.argsort(group, kind="stable")
        bounds = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            members = order[first:last]
            number, domain = divmod(int(group[members[0]]), 4)
            domain_start = self.places.attributes[number].first + FIRST_DOMAIN + domain
            cuts[members[at_low[members]]] = domain_start
            cuts[members[at_high[members]]] = domain_start + 1
            inner = members[~(at_low[members] | at_high[members])]
            if not len(inner):
                continue
            if domain == Domain.STRING:
                ranks, sides = keys[inner].tolist(), offsets[inner].tolist()
                strings = table.strings
                texts = [(strings[r], s) for r, s in zip(ranks, sides, strict=True)]
                cuts[inner] = self.places.string_cuts(number, texts)
            else:
                cuts[inner] = self.places.number_cuts(
                    number, Domain(domain), keys[inner], offsets[inner]
                )
        return cuts[:n], cuts[n:]

    def _intern(
        self,
        attribute: NDArray[np.int32],
        sorts: NDArray[np.uint8],
        low: NDArray[np.int32],
        high: NDArray[np.int32],
    ) -> NDArray[np.int32]:
        """Number tests of one range."""
        if 2 * (self.n + len(low)) > len(self._slots):
            size = 1 << int(4 * (self.n + len(low))).bit_length()
            larger = np.full((size, 2), arrays.NONE, np.int64)
            kernels.move_pairs(self._slots, larger)
            self._slots = larger
        tests = np.empty(len(low), np.int32)
        before = self.n
        after = kernels.intern(self._slots, low, high, before, tests)
        if after > before:
            numbers, at = np.unique(tests, return_index=True)
            at = at[numbers >= before]
            ones = np.ones(len(at), np.int64)
            self._append(attribute[at], sorts[at], ones, low[at], high[at])
        return tests

    def _intern_many(self, attribute: int, low: NDArray[np.int32], high: NDArray[np.int32]) -> int:
        """Number a test of several ranges, or of none."""
        key = np.concatenate([[attribute], low, high]).astype(np.int32).tobytes()
        known = self._of_many.get(key)
        if known is None:
            known = self._of_many[key] = self.n
            self._append(
                np.array([attribute], np.int32),
                np.array([SET], np.uint8),
                np.array([len(low)], np.int64),
                low,
                high,
            )
        return known

    def _append(
        self,
        attribute: NDArray[np.int32],
        sorts: NDArray[np.uint8],
        n_ranges: NDArray[np.int64],
        low: NDArray[np.int32],
        high: NDArray[np.int32],
    ) -> None:
        first, self.n = self.n, self.n + len(attribute)
        begin = int(self.start[first])
        end = begin + len(low)
        self.attribute, self.sort = grown(self.attribute, self.n), grown(self.sort, self.n)
        self.start = grown(self.start, self.n + 1)
        self.low, self.high = grown(self.low, end), grown(self.high, end)
        self.attribute[first : self.n], self.sort[first : self.n] = attribute, sorts
        self.start[first + 1 : self.n + 1] = begin + np.cumsum(n_ranges)
        self.low[begin:end], self.high[begin:end] = low, high
        self._note(np.arange(first, self.n, dtype=np.int32))

    def _note(self, tests: NDArray[np.int32]) -> None:
        """Tell the places which tests hold for one value, or from an integer to the next."""
        values = tests[self.sort[tests] == VALUE]
        self.places.value[self.low[self.start[values]]] = values
        units = tests[self.sort[tests] == UNIT]
        for attribute in np.unique(self.attribute[units]).tolist():
            own = units[self.attribute[units] == attribute]
            at = self.start[own]
            self.places.set_units(attribute, own, self.low[at], self.high[at])

    def keep(self, used: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Forget the tests that are not used, and their cuts; return the new numbers."""
        kept = np.flatnonzero(used)
        n_ranges = np.diff(self.start[: self.n + 1])
        kept = np.concatenate([kept[n_ranges[kept] == 1], kept[n_ranges[kept] != 1]])
        renumbered = np.full(self.n, -1, np.int32)
        renumbered[kept] = np.arange(len(kept))
        n_ranges = n_ranges[kept]
        ranges = np.repeat(self.start[kept] - np.cumsum(n_ranges) + n_ranges, n_ranges)
        ranges += np.arange(len(ranges))
        low, high = self.low[ranges], self.high[ranges]
        is_used = np.zeros(self.places.n_cuts, np.bool_)
        is_used[low] = is_used[high] = True
        cuts = self.places.keep(is_used)
        attribute, sorts = self.attribute[kept], self.sort[kept]
        low, high = cuts[low], cuts[high]
        self.n, self._of_many = 0, {}
        self._slots = np.full((128, 2), arrays.NONE, np.int64)
        n_single = int(np.count_nonzero(n_ranges == 1))
        one = slice(0, n_single)
        self._intern(attribute[one], sorts[one], low[one], high[one])
        ends = np.cumsum(n_ranges).tolist()
        for test in range(n_single, len(kept)):
            own = slice(ends[test] - int(n_ranges[test]), ends[test])
            self._intern_many(int(attribute[test]), low[own], high[own])
        return renumbered

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        own = (self.attribute, self.sort, self.start, self.low, self.high, self._slots)
        return sum(array.nbytes for array in own) + self.places.nbytes


def _sorts(table: ConjunctionTable, single: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the sort of conditions that are one range."""
    sorts = np.full(len(single), SET, np.uint8)
    sorts[(table.flags[single] & ABSENT) > 0] = VALUE
    own = np.flatnonzero(table.flags[single] == 0)
    p = table.piece_start[single[own]]
    domain = table.domain[p]
    low, high = table.low_key[p], table.high_key[p]
    low_offset, high_offset = table.low_offset[p], table.high_offset[p]
    at_low, at_high = (
        (low == INT64_MIN) & (low_offset == 0),
        (high == INT64_MAX) & (high_offset == 1),
    )
    inner = ~at_low & ~at_high
    is_point = inner & (low == high) & (low_offset & 1 == 0) & (high_offset == low_offset + 1)
    is_tick = inner & (domain == Domain.TIMESTAMP) & (high == np.where(inner, low, 0) + 1)
    is_side = (domain == Domain.BOOLEAN) & (at_low != at_high)
    sorts[own[is_point | is_tick | is_side]] = VALUE
    low_number, high_number = floats_of(low), floats_of(high)
    with np.errstate(invalid="ignore"):
        is_unit = (
            inner
            & (domain == Domain.NUMBER)
            & (low_offset == 0)
            & (high_offset == 0)
            & (np.abs(low_number) < _EXACT)
            & (np.floor(low_number) == low_number)
            & (high_number == low_number + 1.0)
        )
    sorts[own[is_unit]] = UNIT
    return sorts
