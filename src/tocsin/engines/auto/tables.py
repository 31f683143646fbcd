"""Access tables: keys that lead to clusters of rows. Entries and columns are rows of such tables.

Enters: conjunctions, and where the plan puts them. Leaves: `Keys`, and the conjunction of each row.
An event has a few keys; the rows under each of them, a cluster, are the ones that it is compared
with (Fabret et al., SIGMOD 2001, section 2: clusters under access predicates).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto import table_kernels
from tocsin.engines.auto.arrays import (
    NUMBER,
    Cells,
    Codes,
    Coding,
    Conditions,
    Flags,
    Integers,
    Keys,
    Numbers,
)
from tocsin.engines.auto.part import TableReport
from tocsin.engines.auto.plan import MAX_DIGITS, MAX_PREFIX, Plan
from tocsin.errors import CapacityError


class Placement(NamedTuple):
    """Conjunctions in tables: keys, each conjunction's member, and the conjunction of each row."""

    keys: Keys
    member_of: Cells
    order: Numbers


def check_capacity(n: int, what: str, most: int = 0xFFFFFFFF) -> None:
    """Refuse more of something than a segment has numbers for."""
    if n > most:
        raise CapacityError(f"{n} {what} are too many for one segment of the index, at most {most}")


def place(conditions: Conditions, plan: Plan, is_chosen: Flags) -> Placement:
    """Place conjunctions under their keys; a key with ranges puts one into several rows."""
    keys, n_keys = _number_keys(plan, is_chosen)
    selected = np.flatnonzero(is_chosen).astype(np.uint32)
    member_of = _member_numbers(keys, plan, is_chosen)
    counts = np.zeros(n_keys + 1, np.int64)
    digits = np.zeros((MAX_PREFIX + 1, 2 * MAX_DIGITS), np.int64)
    low, high = (np.empty(len(conditions.attribute), np.int32) for _ in range(2))
    table_kernels.find_digits(plan.coding, conditions, low, high)
    arguments = (plan.coding, conditions, keys, selected, plan.family, member_of, low, high, digits)
    table_kernels.place(*arguments, counts, np.empty(0, np.uint32))
    np.cumsum(counts, out=counts)
    check_capacity(int(counts[-1]), "entries")
    order = np.empty(counts[-1], np.uint32)
    keys = keys._replace(start=counts.astype(np.uint32))
    if len(order):
        table_kernels.place(*arguments, counts, order)
    return Placement(keys, member_of, order)


def _number_keys(plan: Plan, is_chosen: Flags) -> tuple[Keys, int]:
    """Number the keys of the tables of some conjunctions; return how many there are too."""
    n_digits = plan.coding.n_digits
    member_start, attributes, offsets = [0], [], []
    bases, strides = [], []
    base = 0
    for f, prefix in enumerate(plan.prefixes):
        stride = 0
        for member in np.unique(plan.member[is_chosen & (plan.family == f)]).tolist():
            attributes.append(member)
            offsets.append(stride)
            stride += int(n_digits[member]) if member >= 0 else 1
        member_start.append(len(attributes))
        bases.append(base)
        strides.append(stride)
        base += stride * int(np.prod(n_digits[list(prefix)], dtype=np.int64))
    keys = Keys(
        prefix_start=np.cumsum([0, *(len(p) for p in plan.prefixes)]).astype(np.int64),
        prefix=np.array([a for p in plan.prefixes for a in p], np.int64),
        member_start=np.array(member_start, np.int64),
        member_attribute=np.array(attributes, np.int64),
        member_offset=np.array(offsets, np.int64),
        member_digit=np.array([plan.coding.first[max(a, 0)] for a in attributes], np.int64),
        base=np.array(bases, np.int64),
        stride=np.array(strides, np.int64),
        start=np.zeros(1, np.uint32),
    )
    return keys, base


def _member_numbers(keys: Keys, plan: Plan, is_chosen: Flags) -> NDArray[np.int32]:
    """Return for each chosen conjunction the number of its family's member."""
    numbers = np.zeros(len(plan.family), np.int32)
    for f in range(len(plan.prefixes)):
        inside = np.flatnonzero(is_chosen & (plan.family == f))
        first, last = keys.member_start[f], keys.member_start[f + 1]
        members = keys.member_attribute[first:last]
        numbers[inside] = first + np.searchsorted(members, plan.member[inside])
    return numbers


def no_keys() -> Keys:
    """Return the keys of no tables."""
    none = np.empty(0, np.int64)
    zero = np.zeros(1, np.int64)
    return Keys(zero, none, zero, none, none, none, none, none, np.zeros(1, np.uint32))


class Tables:
    """The tables of some keys, by family and member, for explanations and checks."""

    def __init__(self, keys: Keys, prefixes: tuple[tuple[int, ...], ...], coding: Coding) -> None:
        self._keys, self._prefixes, self._coding = keys, prefixes, coding

    def explain(self, numbers: Numbers, conjunction: int, name: Callable[[int], str]) -> str | None:
        """Say under which key a conjunction is, or None; `numbers` are the conjunctions by row."""
        rows = np.flatnonzero((numbers & NUMBER) == conjunction)
        if not len(rows):
            return None
        f, m = self._table_of(int(rows[0]))
        n, names = int(self._sizes(f, m).sum()), [name(a) for a in self._attributes(f, m)]
        if not names:
            return f"tried on every event with {n} conjunctions in all"
        return f"kept under ({', '.join(names)}) with {n} conjunctions in all"

    def describe(self, form: str, codes: Codes | None) -> list[TableReport]:
        """Report each table; without codes of events all keys are thought to be equally likely."""
        return [
            TableReport(self._attributes(f, m), int(sizes.sum()), form, self._hits(f, m, codes))
            for f, m in self._all()
            for sizes in [self._sizes(f, m)]
        ]

    def check(self, n_rows: int) -> None:
        """Verify that clusters are in order and have all rows."""
        start = self._keys.start.astype(np.int64)
        assert np.all(np.diff(start) >= 0), "clusters are out of order"
        assert start[-1] == n_rows, "rows without a cluster"

    def _all(self) -> Iterator[tuple[int, int]]:
        keys = self._keys
        for f in range(len(keys.base)):
            for m in range(int(keys.member_start[f]), int(keys.member_start[f + 1])):
                yield f, m

    def _table_of(self, row: int) -> tuple[int, int]:
        """Return the family and the member of the table that has a row."""
        keys = self._keys
        key = int(np.searchsorted(keys.start, row, side="right")) - 1
        f = max(f for f in range(len(keys.base)) if keys.base[f] <= key and keys.stride[f])
        slot = (key - int(keys.base[f])) % int(keys.stride[f])
        members = range(int(keys.member_start[f]), int(keys.member_start[f + 1]))
        return f, max(m for m in members if keys.member_offset[m] <= slot)

    def _attributes(self, f: int, m: int) -> tuple[int, ...]:
        """Return the attributes of the key of a table."""
        member = int(self._keys.member_attribute[m])
        return (*self._prefixes[f], *((member,) if member >= 0 else ()))

    def _sizes(self, f: int, m: int) -> Integers:
        """Return the number of rows under each key of a table."""
        keys = self._keys
        stride, offset = int(keys.stride[f]), int(keys.member_offset[m])
        is_last = m + 1 == keys.member_start[f + 1]
        end = stride if is_last else int(keys.member_offset[m + 1])
        limit = int(keys.base[f + 1]) if f + 1 < len(keys.base) else len(keys.start) - 1
        n_prefixes = (limit - int(keys.base[f])) // stride
        first = int(keys.base[f]) + np.arange(n_prefixes)[:, None] * stride + np.arange(offset, end)
        sizes: Integers = keys.start[first + 1].astype(np.int64) - keys.start[first]
        return sizes.ravel()

    def _hits(self, f: int, m: int, codes: Codes | None) -> float:
        """Return how many rows an event finds in a table on average."""
        if codes is None:
            return float(self._sizes(f, m).mean())
        keys, coding = self._keys, self._coding
        prefix = np.zeros(len(codes), np.int64)
        has_key = np.ones(len(codes), np.bool_)
        for a in self._prefixes[f]:
            digit = coding.digit[coding.first[a] + codes[:, a]]
            has_key &= digit >= 0
            prefix = prefix * coding.n_digits[a] + digit
        key = keys.base[f] + prefix * keys.stride[f] + keys.member_offset[m]
        member = int(keys.member_attribute[m])
        if member >= 0:
            digit = coding.digit[coding.first[member] + codes[:, member]]
            has_key &= digit >= 0
            key = key + digit
        key = key[has_key]
        sizes = keys.start[key + 1].astype(np.int64) - keys.start[key]
        return float(sizes.sum() / max(len(codes), 1))
