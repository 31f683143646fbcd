"""Summaries that are maintained while subscriptions are inserted and removed.

Enters: conjunction tables of inserted and of removed members. Leaves: the same `Summary` that
`Summary.of_table` gives for the members (Jayaram et al., Beretta, section 5: summaries under
churn). Only counts are stored: of conjunctions, of conditions by attribute, and at each cut how
many more intervals begin there than end. Where the running sum of these is positive, some member
admits the values; so one pass over the cuts gives the union.

Cuts of numbers, booleans and timestamps are sorted arrays with a delta, which is merged before the
summary is computed; cuts of strings are a dictionary. The cost of a change is that of its own cuts;
the summary is computed on demand, with one pass for each attribute that changed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tocsin.errors import ArgumentError
from tocsin.language.computed import choices_of
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import FULL, Cut, Domain, Intervals
from tocsin.normalize.keys import unflatten_cut
from tocsin.normalize.table import ABSENT, PRESENT, ConjunctionTable
from tocsin.summary.pieces import (
    Limits,
    Pieces,
    check_limits,
    reduce,
    reduce_intervals,
    to_intervals,
)
from tocsin.summary.summaries import Summary


class LiveSummary:
    """Maintains the summary of a changing set of conjunctions. Calls must be serialized.

    Only conjunctions that were inserted may be removed; members are counted, not stored.
    """

    def __init__(self, *, max_pieces: int = 64, max_values: int = 1024) -> None:
        self._limits = check_limits(max_pieces, max_values)
        self._n_conjunctions = 0
        self._attributes: dict[str, _Attribute] = {}

    @property
    def n_conjunctions(self) -> int:
        """Number of conjunctions."""
        return self._n_conjunctions

    @property
    def nbytes(self) -> int:
        """Bytes of the cuts of numbers and timestamps."""
        return sum(
            cuts.nbytes for counts in self._attributes.values() for cuts in counts.cuts.values()
        )

    def insert(self, table: ConjunctionTable) -> None:
        """Insert the conjunctions of a table."""
        self._count(table, 1)

    def remove(self, table: ConjunctionTable) -> None:
        """Remove the conjunctions of a table, which were inserted before."""
        used = np.bincount(table.attribute, minlength=len(table.attributes)).tolist()
        missing = self._n_conjunctions < table.n_conjunctions or any(
            n > (self._attributes[name].n_conditions if name in self._attributes else 0)
            for name, n in zip(table.attributes, used, strict=True)
        )
        if missing:
            raise ArgumentError("what is removed from a summary must have been inserted")
        self._count(table, -1)

    def update(self, old: ConjunctionTable, new: ConjunctionTable) -> None:
        """Replace conjunctions by others: a parametric or structural update."""
        self.remove(old)
        self.insert(new)

    def summary(self) -> Summary:
        """Return the summary of the current members."""
        if self._n_conjunctions == 0:
            return Summary({}, True, self._limits)
        conditions: dict[str, Condition] = {}
        for name, counts in self._attributes.items():
            if counts.n_conditions == self._n_conjunctions and not choices_of(name):
                condition = counts.condition(self._limits)
                if not condition.is_full:
                    conditions[name] = condition
        return Summary(conditions, False, self._limits)

    def _count(self, table: ConjunctionTable, sign: int) -> None:
        self._n_conjunctions += sign * table.n_conjunctions
        owner = np.repeat(table.attribute, np.diff(table.piece_start))
        for attribute in np.unique(table.attribute).tolist():
            name = table.attributes[attribute]
            counts = self._attributes.setdefault(name, _Attribute())
            flags = table.flags[table.attribute == attribute]
            counts.n_conditions += sign * len(flags)
            counts.n_absent += sign * int(np.count_nonzero(flags & ABSENT))
            counts.n_present += sign * int(np.count_nonzero(flags & PRESENT))
            counts.made = None
            places = np.flatnonzero(owner == attribute)
            for domain in np.unique(table.domain[places]).tolist():
                counts.count(table, Domain(domain), places[table.domain[places] == domain], sign)
            if counts.n_conditions == 0:
                del self._attributes[name]


@dataclass
class _Attribute:
    """The counts of one attribute."""

    n_conditions: int = 0
    n_absent: int = 0
    n_present: int = 0
    cuts: dict[Domain, _Cuts] = field(default_factory=dict)
    strings: dict[Cut, int] = field(default_factory=dict)
    made: Condition | None = None
    """The cached condition, unless something changed since."""

    def count(
        self, table: ConjunctionTable, domain: Domain, places: NDArray[np.int64], sign: int
    ) -> None:
        """Count the bounds of some pieces of a domain."""
        keys = np.concatenate([table.low_key[places], table.high_key[places]])
        offsets = np.concatenate([table.low_offset[places], table.high_offset[places]])
        steps = np.repeat(np.array([sign, -sign], np.int64), len(places))
        keys, offsets, steps = _sum_steps(keys, offsets, steps)
        if domain is not Domain.STRING:
            self.cuts.setdefault(domain, _Cuts()).add(keys, offsets, steps)
            return
        for key, offset, step in zip(keys.tolist(), offsets.tolist(), steps.tolist(), strict=True):
            cut = unflatten_cut(
                domain, key, offset, lambda rank: str(table.vocabulary[rank].as_py())
            )
            left = self.strings.get(cut, 0) + step
            if left:
                self.strings[cut] = left
            else:
                self.strings.pop(cut, None)

    def condition(self, limits: Limits) -> Condition:
        """Return the values that some member admits, or more."""
        if self.made is None:
            absent = self.n_absent > 0
            if self.n_present:
                self.made = Condition(FULL, absent, other=True)
            else:
                by_domain: list[Intervals] = [(), (), (), ()]
                by_domain[Domain.STRING] = self._string_intervals(limits)
                for domain, cuts in self.cuts.items():
                    by_domain[domain] = to_intervals(domain, reduce(domain, cuts.union(), limits))
                self.made = Condition(tuple(by_domain), absent)
        return self.made

    def _string_intervals(self, limits: Limits) -> Intervals:
        intervals = []
        depth, low = 0, None
        for cut in sorted(self.strings):
            if depth == 0:
                low = cut
            depth += self.strings[cut]
            if depth == 0:
                assert low is not None
                intervals.append((low, cut))
        return reduce_intervals(Domain.STRING, tuple(intervals), limits)


class _Cuts:
    """Sorted cuts of one domain with the sums of their steps, and a delta of steps."""

    def __init__(self) -> None:
        self.keys = np.empty(0, np.int64)
        self.offsets = np.empty(0, np.int16)
        self.steps = np.empty(0, np.int64)
        self.delta: defaultdict[tuple[int, int], int] = defaultdict(int)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.offsets.nbytes + self.steps.nbytes

    def add(
        self, keys: NDArray[np.int64], offsets: NDArray[np.int16], steps: NDArray[np.int64]
    ) -> None:
        if len(keys) > _FEW:
            self.merge(keys, offsets, steps)
            return
        for key, offset, step in zip(keys.tolist(), offsets.tolist(), steps.tolist(), strict=True):
            self.delta[key, offset] += step
        if len(self.delta) > max(_FEW, len(self.keys) // 8):
            self.flush()

    def flush(self) -> None:
        """Merge the delta into the arrays."""
        if self.delta:
            cuts = np.array(list(self.delta), np.int64)
            steps = np.array(list(self.delta.values()), np.int64)
            self.delta.clear()
            self.merge(cuts[:, 0], cuts[:, 1].astype(np.int16), steps)

    def merge(
        self, keys: NDArray[np.int64], offsets: NDArray[np.int16], steps: NDArray[np.int64]
    ) -> None:
        self.keys, self.offsets, self.steps = _sum_steps(
            np.concatenate([self.keys, keys]),
            np.concatenate([self.offsets, offsets]),
            np.concatenate([self.steps, steps]),
        )

    def union(self) -> Pieces:
        """Return the intervals where more have begun than ended."""
        self.flush()
        depth = np.cumsum(self.steps)
        high = np.flatnonzero(depth == 0)
        low = np.append(0, high[:-1] + 1)[: len(high)]
        return Pieces(self.keys[low], self.offsets[low], self.keys[high], self.offsets[high])


_FEW = 64
"""Up to this number, cuts are counted one by one."""


def _sum_steps(
    keys: NDArray[np.int64], offsets: NDArray[np.int16], steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int16], NDArray[np.int64]]:
    """Sort cuts and add up the steps of equal ones; drop sums of zero."""
    order = np.lexsort((offsets, keys))
    keys, offsets, steps = keys[order], offsets[order], steps[order]
    is_new = np.ones(len(keys), np.bool_)
    is_new[1:] = (keys[1:] != keys[:-1]) | (offsets[1:] != offsets[:-1])
    first = np.flatnonzero(is_new)
    sums = np.add.reduceat(steps, first) if len(first) else steps
    kept = first[sums != 0]
    return keys[kept], offsets[kept], sums[sums != 0]
