"""Cuts in order, and events → cuts: where values lie, in numbers that never have to change.

Enters: the bounds of conditions, as cuts of `normalize.keys`; event batches and single values.
Leaves: for each bound the number of its *cut*, for each value the number of the last cut at or
before it. Cuts are numbered as they come, and a number keeps its meaning, so that a tree that
refers to cuts needs no change when others arrive. Their order is kept apart, as *marks*: 64-bit
integers with gaps, so that a new cut gets a mark between those of its neighbours. Where a gap is
used up, all the marks of that attribute are respread, in the same order (`is_spread` says so).

The cuts of an attribute stand on one line: "absent", then the lines of `normalize.domains` one
after another, then present values that lie on none of them. So a condition on several lines, or on
absence, is a set of ranges like any other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.encode import cell_kernels
from tocsin.encode.cells import ALL_HERE, encode_numbers
from tocsin.encode.columns import Column, Part
from tocsin.encode.domain_cells import DomainCells
from tocsin.normalize import domains
from tocsin.normalize.condition import domain_of
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import key_of_number
from tocsin_lab.engines.tree.growing import grown

ABSENT, FIRST_DOMAIN, OTHER, END = 0, 1, 5, 6
"""The cuts that every attribute has, counted from its first: before absence, before each of the
four lines, before other present values, after all."""
N_FIXED = 7
_SPAN = 1 << 59
"""How far apart the marks of the fixed cuts are."""
_STRIDE = 1 << 36
"""How far apart the marks of cuts are that arrive at the end of a line."""
_MEMORY = 4096
"""Of how many values an attribute remembers the cut."""


class NumberCuts:
    """The cuts on a line other than that of strings: keys and tails in order, and their numbers."""

    def __init__(self) -> None:
        self.keys = np.empty(0, np.int64)
        self.offsets = np.empty(0, np.int16)
        self.cuts = np.empty(0, np.int32)

    def find(
        self, keys: NDArray[np.int64], offsets: NDArray[np.int16]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return how many cuts are before each of some, and whether it is among them."""
        at = np.searchsorted(self.keys, keys, side="left")
        end = np.searchsorted(self.keys, keys, side="right")
        while True:
            passed = at < end
            passed[passed] = self.offsets[at[passed]] < offsets[passed]
            if not passed.any():
                break
            at += passed
        known = at < end
        known[known] = self.offsets[at[known]] == offsets[known]
        return at, known

    def add(
        self,
        at: NDArray[np.int64],
        keys: NDArray[np.int64],
        offsets: NDArray[np.int16],
        cuts: NDArray[np.int32],
    ) -> None:
        """Insert cuts at their places."""
        self.keys = np.insert(self.keys, at, keys)
        self.offsets = np.insert(self.offsets, at, offsets)
        self.cuts = np.insert(self.cuts, at, cuts)
        self.__dict__.pop("cells", None)

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget some cuts."""
        self.keys, self.offsets, self.cuts = self.keys[kept], self.offsets[kept], self.cuts[kept]
        self.__dict__.pop("cells", None)

    @cached_property
    def cells(self) -> DomainCells:
        """What values are searched in: the i-th cell starts at the i-th cut."""
        return DomainCells(0, self.keys, self.offsets)

    def encode(self, domain: Domain, values: NDArray[Any], places: NDArray[np.int32]) -> None:
        """Write how many cuts are at or before each value."""
        if domain is not Domain.NUMBER:
            places[:] = np.searchsorted(self.keys, values, side="right")
        else:
            encode_numbers(self.cells, values, ALL_HERE, places)

    def place(self, domain: Domain, value: object) -> int:
        """Return how many cuts are at or before one value."""
        key, offset = domains.to_key(value), 0
        if domain is Domain.NUMBER:
            key, offset = key_of_number(key)
        at = int(np.searchsorted(self.keys, key, side="right"))
        while at > 0 and self.keys[at - 1] == key and self.offsets[at - 1] > offset:
            at -= 1
        return at

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.keys.nbytes + self.offsets.nbytes + self.cuts.nbytes)


class StringCuts:
    """The cuts on the line of strings: (text, side) in order, and their numbers."""

    def __init__(self) -> None:
        self.bounds: list[tuple[str, int]] = []
        self.cuts = np.empty(0, np.int32)

    def find(self, bounds: list[tuple[str, int]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return how many cuts are before each of some, and whether it is among them."""
        at = [bisect_left(self.bounds, bound) for bound in bounds]
        n = len(self.bounds)
        known = [i < n and self.bounds[i] == b for i, b in zip(at, bounds, strict=True)]
        return np.array(at, np.int64), np.array(known, np.bool_)

    def add(
        self, at: NDArray[np.int64], bounds: list[tuple[str, int]], cuts: NDArray[np.int32]
    ) -> None:
        """Insert cuts at their places."""
        if len(bounds) == 1:
            self.bounds.insert(int(at[0]), bounds[0])
        else:
            self.bounds = sorted(self.bounds + bounds)
        self.cuts = np.insert(self.cuts, at, cuts)
        self._forget()

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget some cuts."""
        self.bounds = [b for b, k in zip(self.bounds, kept.tolist(), strict=True) if k]
        self.cuts = self.cuts[kept]
        self._forget()

    def _forget(self) -> None:
        self.__dict__.pop("_texts", None)
        self.__dict__.pop("_sides", None)

    @cached_property
    def _texts(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        return _buffers(pa.array([text for text, _ in self.bounds], pa.large_string()))

    @cached_property
    def _sides(self) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        return np.arange(len(self.bounds)), np.array([side for _, side in self.bounds], np.int16)

    def encode(self, domain: Domain, values: pa.Array, places: NDArray[np.int32]) -> None:
        """Write how many cuts are at or before each string; nulls count as before all."""
        encoded = values.dictionary_encode()
        cuts = np.zeros(len(encoded.dictionary) + 1, np.int32)
        starts, octets = _buffers(encoded.dictionary)
        cell_kernels.search_strings(starts, octets, *self._texts, *self._sides, 0, cuts)
        cuts[-1] = 0
        places[:] = cuts[encoded.indices.fill_null(-1).to_numpy()]

    def place(self, domain: Domain, value: object) -> int:
        """Return how many cuts are at or before one string."""
        return bisect_right(self.bounds, (str(value), 0))

    @property
    def nbytes(self) -> int:
        """Bytes held, the texts counted by their lengths."""
        return int(self.cuts.nbytes + sum(len(text) + 64 for text, _ in self.bounds))


def _buffers(strings: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where strings start, and their bytes."""
    _, offsets, data = strings.buffers()
    starts = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return starts, np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)


class Attribute:
    """The cuts of one attribute, line by line."""

    def __init__(self, name: str, first: int) -> None:
        self.name = name
        self.first = first
        self.domains: tuple[NumberCuts | StringCuts, ...] = (
            NumberCuts(),
            StringCuts(),
            NumberCuts(),
            NumberCuts(),
        )
        self._known: dict[tuple[type, object], int] = {}

    def forget(self) -> None:
        """Forget which cuts values had, because there are others now."""
        self._known.clear()

    def encode(self, column: Column, n: int) -> NDArray[np.int32]:
        """Return the last cut at or before each of n values."""
        cuts = np.full(n, self.first + ABSENT, np.int32)
        if column.other is not None:
            cuts[column.other] = self.first + OTHER
        for part in column.parts:
            self._encode_part(part, cuts)
        return cuts

    def _encode_part(self, part: Part, cuts: NDArray[np.int32]) -> None:
        start, domain_cuts = self.first + FIRST_DOMAIN + part.domain, self.domains[part.domain]
        here = slice(None) if part.here is None else part.here
        if not len(domain_cuts.cuts):
            cuts[here] = start
            return
        values = part.values
        if part.domain is not Domain.STRING and part.here is not None:
            values = values[part.here]
        places = np.empty(len(values), np.int32)
        domain_cuts.encode(part.domain, values, places)
        if part.domain is Domain.STRING and part.here is not None:
            places = places[part.here]
        cuts[here] = np.concatenate([np.array([start], np.int32), domain_cuts.cuts])[places]

    def cut_of(self, value: object) -> int:
        """Return the last cut at or before one value."""
        if value is None:
            return self.first + ABSENT
        key = (type(value), value)
        try:
            known = self._known.get(key)
        except TypeError:  # a list or the like
            return self.first + OTHER
        if known is None:
            known = self._find(value)
            if len(self._known) >= _MEMORY:
                self._known.clear()
            self._known[key] = known
        return known

    def _find(self, value: object) -> int:
        domain = domain_of(value)
        if domain is None:
            return self.first + OTHER
        domain_cuts = self.domains[domain]
        place = domain_cuts.place(domain, value)
        return int(domain_cuts.cuts[place - 1]) if place else self.first + FIRST_DOMAIN + domain


class Places:
    """The cuts of all attributes: their marks, and the tests that hold from one to the next.

    `value[c]` is the test that holds for one value alone, which starts at cut c; `unit[c]` one that
    holds from an integer to the next, around cut c. Either is -1 where there is none.
    """

    def __init__(self) -> None:
        self.attributes: list[Attribute] = []
        self.number_of: dict[str, int] = {}
        self.n_cuts = 0
        self.mark = np.empty(64, np.int64)
        self.value = np.empty(64, np.int32)
        self.unit = np.empty(64, np.int32)
        self.unit_high = np.empty(64, np.int32)
        self.is_spread = False

    def attribute(self, name: str) -> int:
        """Return the number of an attribute; a new one gets the next."""
        number = self.number_of.get(name)
        if number is None:
            number = self.number_of[name] = len(self.attributes)
            first = self._new_cuts(np.arange(N_FIXED, dtype=np.int64) * _SPAN)
            self.attributes.append(Attribute(name, int(first[0])))
        return number

    def _new_cuts(self, marks: NDArray[np.int64]) -> NDArray[np.int32]:
        first, self.n_cuts = self.n_cuts, self.n_cuts + len(marks)
        for name in ("mark", "value", "unit", "unit_high"):
            setattr(self, name, grown(getattr(self, name), self.n_cuts))
        self.mark[first : self.n_cuts] = marks
        for array in (self.value, self.unit, self.unit_high):
            array[first : self.n_cuts] = -1
        return np.arange(first, self.n_cuts, dtype=np.int32)

    def number_cuts(
        self, attribute: int, domain: Domain, keys: NDArray[np.int64], offsets: NDArray[np.int16]
    ) -> NDArray[np.int32]:
        """Return the numbers of cuts on a line; new ones are added."""
        domain_cuts = self.attributes[attribute].domains[domain]
        assert isinstance(domain_cuts, NumberCuts)
        at, known = domain_cuts.find(keys, offsets)
        if not known.all():
            fresh = np.flatnonzero(~known)
            order = np.lexsort((offsets[fresh], keys[fresh]))
            k, t = keys[fresh][order], offsets[fresh][order]
            first = np.ones(len(k), np.bool_)
            first[1:] = (k[1:] != k[:-1]) | (t[1:] != t[:-1])
            k, t, where = k[first], t[first], at[fresh][order][first]
            domain_cuts.add(where, k, t, self._add(attribute, domain, domain_cuts.cuts, where))
            at, _ = domain_cuts.find(keys, offsets)
        return domain_cuts.cuts[at]

    def string_cuts(self, attribute: int, bounds: list[tuple[str, int]]) -> NDArray[np.int32]:
        """Return the numbers of cuts on the line of strings; new ones are added."""
        strings = self.attributes[attribute].domains[Domain.STRING]
        assert isinstance(strings, StringCuts)
        at, known = strings.find(bounds)
        if not known.all():
            fresh = sorted({b for b, k in zip(bounds, known.tolist(), strict=True) if not k})
            where, _ = strings.find(fresh)
            strings.add(where, fresh, self._add(attribute, Domain.STRING, strings.cuts, where))
            at, _ = strings.find(bounds)
        return strings.cuts[at]

    def _add(
        self,
        attribute: int,
        domain: Domain,
        cuts: NDArray[np.int32],
        at: NDArray[np.int64],
    ) -> NDArray[np.int32]:
        """Number new cuts that come before the at-th of the old ones, and give them marks."""
        self.attributes[attribute].forget()
        start = self.attributes[attribute].first + FIRST_DOMAIN + domain
        fenced = np.concatenate([[start], cuts, [start + 1]]).astype(np.int32)
        marks, fits = _marks_between(self.mark[fenced], at)
        new = self._new_cuts(marks)
        before = fenced[at]
        unit, high = self.unit[before], self.unit_high[before]
        if not fits:
            self._spread(start, np.insert(cuts, at, new))
        inside = (unit >= 0) & (self.mark[new] < self.mark[high])
        self.unit[new[inside]], self.unit_high[new[inside]] = unit[inside], high[inside]
        return new

    def _spread(self, start: int, cuts: NDArray[np.int32]) -> None:
        """Spread the marks of a line's cuts evenly."""
        step = _SPAN // (len(cuts) + 1)
        self.mark[cuts] = self.mark[start] + step * np.arange(1, len(cuts) + 1)
        self.is_spread = True

    def set_units(
        self,
        attribute: int,
        tests: NDArray[np.int32],
        low: NDArray[np.int32],
        high: NDArray[np.int32],
    ) -> None:
        """Note tests that hold from an integer to the next."""
        cuts = self.attributes[attribute].domains[Domain.NUMBER].cuts
        marks = self.mark[cuts]
        first, last = (
            np.searchsorted(marks, self.mark[low]),
            np.searchsorted(marks, self.mark[high]),
        )
        n = last - first
        inside = cuts[np.repeat(first - np.cumsum(n) + n, n) + np.arange(n.sum())]
        self.unit[inside], self.unit_high[inside] = np.repeat(tests, n), np.repeat(high, n)

    def keep(self, used: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Forget the cuts that are not used, the fixed ones apart; return the new numbers."""
        for attribute in self.attributes:
            used[attribute.first : attribute.first + N_FIXED] = True
        renumbered = (np.cumsum(used) - 1).astype(np.int32)
        for attribute in self.attributes:
            for domain_cuts in attribute.domains:
                domain_cuts.keep(used[domain_cuts.cuts])
                domain_cuts.cuts = renumbered[domain_cuts.cuts]
            attribute.first = int(renumbered[attribute.first])
            attribute.forget()
        n = self.n_cuts
        self.n_cuts = int(np.count_nonzero(used))
        self.mark = self.mark[:n][used]
        for name in ("value", "unit", "unit_high"):
            setattr(self, name, np.full(self.n_cuts, -1, np.int32))
        return renumbered

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = self.mark.nbytes + self.value.nbytes + 2 * self.unit.nbytes
        return arrays + sum(cuts.nbytes for a in self.attributes for cuts in a.domains)


def _marks_between(
    fence: NDArray[np.int64], at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], bool]:
    """Return marks for new cuts, each after the at-th of a fence, and whether there is room."""
    low, high = fence[at], fence[at + 1]
    _, gap, n_in_gap = np.unique(at, return_inverse=True, return_counts=True)
    n = n_in_gap[gap]
    begins = np.cumsum(n_in_gap) - n_in_gap
    rank = np.arange(len(at)) - begins[gap]
    step = (high - low) // (n + 1)
    at_end, at_start = at == len(fence) - 2, at == 0
    step = np.where(at_end | at_start, np.minimum(step, _STRIDE), step)
    from_high = at_start & ~at_end
    marks = np.where(from_high, high - step * (n - rank), low + step * (rank + 1))
    return marks, bool(np.all(step > 0))
