"""A plan → the flat arrays of a segment.

Enters: conditions as ranges of cells, and where the plan puts each conjunction. Leaves: a `Layout`:
keys and entries; columns, for tables whose conjunctions have the same one or two attributes besides
the key, their clusters ordered by the lower bounds of one; bitmaps, for conjunctions that so many
events satisfy that looking them up by a key saves nothing; and the stream, which says all.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto import build_kernels as kernels
from tocsin.engines.auto.arrays import (
    N_BANDS,
    NUMBER,
    Bitmaps,
    Columns,
    Conditions,
    Flags,
    Integers,
    Keys,
    Numbers,
    Slots,
    Stream,
    Words,
)
from tocsin.engines.auto.plan import MAX_DIGITS, MAX_PREFIX, Plan
from tocsin.errors import CapacityError
from tocsin.jit import RANGES

_COLUMNS_FROM = 256
"""From how many conjunctions on a table may have columns."""
_CLUSTER_FROM = 8
"""From how many conjunctions a key on it does."""
_AGREED = 0.9
"""The share of a table's conjunctions that must fit into columns."""
_MAX_MASK_CODES = 1 << 14
"""With more codes than these, the masks of a group of events would not stay in the cache."""


@dataclass(frozen=True)
class Layout:
    """The flat arrays of a segment. `slots` is of the family `grouped`, if that is not -1."""

    stream: Stream
    keys: Keys
    entries: Words
    grouped: int
    slots: Slots
    column_keys: Keys
    columns: Columns
    bitmaps: Bitmaps

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        values = (getattr(self, field.name) for field in fields(self))
        arrays = (array for value in values if isinstance(value, tuple) for array in value)
        return int(self.entries.nbytes + sum(array.nbytes for array in arrays))


def lay_out(conditions: Conditions, plan: Plan, has_columns: bool = True) -> Layout:
    """Lay out the conjunctions of a plan; tables may have columns or not."""
    in_tables = plan.family >= 0
    _check_numbers(len(in_tables), "conjunctions", int(NUMBER))
    windows = _choose_windows(conditions, plan, in_tables) if has_columns else []
    in_columns = np.zeros(len(in_tables), np.bool_)
    member = plan.member.copy()
    for window in windows:
        in_columns[window.conjunctions] = True
        member[window.conjunctions] = window.member
    plan = replace(plan, member=member)
    keys, member_of, order = _place(conditions, plan, in_tables & ~in_columns)
    entries = np.empty((len(order), 2), np.uint64)
    kernels.fill_entries(
        plan.coding, conditions, keys, plan.selectivity, plan.family, member_of, order, entries
    )
    column_keys, columns = _make_columns(conditions, plan, in_columns, windows)
    grouped = _choose_grouped(keys)
    in_words = _order_words(conditions, np.flatnonzero(~in_tables).astype(np.uint32))
    return Layout(
        _make_stream(conditions, in_words, in_tables),
        keys,
        entries,
        grouped,
        _make_slots(plan, keys, grouped, len(order)),
        column_keys,
        columns,
        _make_bitmaps(conditions, plan, in_words),
    )


def _make_stream(conditions: Conditions, in_words: Numbers, in_tables: Flags) -> Stream:
    """Write conditions as a stream, those in bitmaps first and in the order of their words."""
    order = np.concatenate([in_words, np.flatnonzero(in_tables).astype(np.uint32)])
    start = np.empty(len(order), np.uint32)
    n_words = kernels.measure_stream(conditions, order, start)
    _check_numbers(n_words, "words of conditions")
    stream = Stream(start, np.empty(n_words, np.uint16))
    kernels.write_stream(conditions, stream)
    return stream


def _check_numbers(n: int, what: str, most: int = 0xFFFFFFFF) -> None:
    """Refuse what the numbers of a segment have no bits for."""
    if n > most:
        raise CapacityError(f"{n} {what} are too many for one segment of the index, at most {most}")


def read_stream(stream: Stream, chosen: Numbers) -> Conditions:
    """Return the conditions of some conjunctions of a stream."""
    none = np.empty(0, np.int64)
    empty = Conditions(none, np.empty(0, np.int32), none, *(np.empty(0, np.int32),) * 2)
    n_conditions, n_ranges = kernels.read_stream(stream, chosen, empty)
    conditions = Conditions(
        np.zeros(len(chosen) + 1, np.int64),
        np.empty(n_conditions, np.int32),
        np.zeros(n_conditions + 1, np.int64),
        np.empty(n_ranges, np.int32),
        np.empty(n_ranges, np.int32),
    )
    if n_conditions:
        kernels.read_stream(stream, chosen, conditions)
    return conditions


def _place(
    conditions: Conditions, plan: Plan, is_chosen: Flags
) -> tuple[Keys, NDArray[np.int32], Numbers]:
    """Return the keys of some conjunctions, their member numbers, and the order they stand in."""
    keys, n_keys = _number_keys(plan, is_chosen)
    chosen = np.flatnonzero(is_chosen).astype(np.uint32)
    member_of = _member_numbers(keys, plan, is_chosen)
    counts = np.zeros(n_keys + 1, np.int64)
    digits = np.zeros((MAX_PREFIX + 1, 2 * MAX_DIGITS), np.int64)
    low, high = (np.empty(len(conditions.attribute), np.int32) for _ in range(2))
    kernels.find_digits(plan.coding, conditions, low, high)
    given = (plan.coding, conditions, keys, chosen, plan.family, member_of, low, high, digits)
    kernels.place(*given, counts, np.empty(0, np.uint32))
    np.cumsum(counts, out=counts)
    _check_numbers(int(counts[-1]), "entries")
    order = np.empty(counts[-1], np.uint32)
    keys = keys._replace(start=counts.astype(np.uint32))
    if len(order):
        kernels.place(*given, counts, order)
    return keys, member_of, order


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


@dataclass(frozen=True)
class _Window:
    """A table with columns: its key, the attributes of the columns, and what goes there."""

    family: int
    member: int
    window: int
    other: int
    conjunctions: NDArray[np.int64]


def _choose_windows(conditions: Conditions, plan: Plan, in_tables: Flags) -> list[_Window]:
    """Choose the tables that have columns.

    Where the member of a table is a range, a window finds what its digits would, and once only; so
    its conjunctions are tried under the prefix alone first.
    """
    found: dict[tuple[int, int], _Window] = {}
    for f, prefix in enumerate(plan.prefixes):
        inside = np.flatnonzero(in_tables & (plan.family == f))
        members, counts = np.unique(plan.member[inside], return_counts=True)
        is_large = counts >= _COLUMNS_FROM  # there may be very many members, most of them small
        for member in members[is_large][np.argsort(-counts[is_large])].tolist():
            chosen = inside[plan.member[inside] == member]
            is_range = member >= 0 and not plan.coding.is_point[member]
            for under, window in ((-1, member),) * is_range + ((member, -1),):
                key = [*prefix, *([under] if under >= 0 else [])]
                table = _try_window(conditions, plan, f, under, key, window, chosen)
                if table is not None and (f, under) not in found:
                    found[f, under] = table
                    break
    return list(found.values())


def _try_window(
    conditions: Conditions,
    plan: Plan,
    f: int,
    member: int,
    key: list[int],
    window: int,
    chosen: NDArray[np.int64],
) -> _Window | None:
    """Return a table with columns for most of some conjunctions, if that is worth while.

    `window` is the attribute to order by, or -1 where the most frequent one will do.
    """
    n_keys = int(np.prod(plan.coding.n_digits[key], dtype=np.int64))
    if len(chosen) < max(_COLUMNS_FROM, _CLUSTER_FROM * n_keys):
        return None
    ranked = _rank(conditions, plan, key, chosen[:: max(len(chosen) // 1000, 1)])
    window = window if window >= 0 else ranked[0]
    other = next((a for a in ranked if a != window), -1)
    if window < 0:
        return None
    fits = np.zeros(len(chosen), np.bool_)
    kernels.find_fitting(
        plan.coding,
        conditions,
        np.array(key, np.int64),
        window,
        other,
        chosen.astype(np.uint32),
        fits,
    )
    return _Window(f, member, window, other, chosen[fits]) if fits.mean() >= _AGREED else None


def _rank(
    conditions: Conditions, plan: Plan, key: list[int], sample: NDArray[np.int64]
) -> list[int]:
    """Return the two attributes that most conjunctions have besides the key, as one range; or -1.

    Of two that are as frequent, the more selective comes first.
    """
    lengths = conditions.start[sample + 1] - conditions.start[sample]
    firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    at = np.arange(lengths.sum()) + np.repeat(conditions.start[sample] - firsts, lengths)
    attribute = conditions.attribute[at]
    says_all = plan.coding.is_point & plan.coding.is_exact
    is_single = conditions.range_start[at + 1] - conditions.range_start[at] == 1
    is_free = is_single & ~(np.isin(attribute, key) & says_all[attribute])
    votes = np.zeros(len(says_all) + 2)
    np.add.at(votes, attribute[is_free], 1.0 - 0.5 * plan.selectivity[at][is_free])
    ranked = np.argsort(-votes, kind="stable")[:2].tolist()
    return [a if votes[a] > 0 else -1 for a in ranked]


def _make_columns(
    conditions: Conditions, plan: Plan, is_chosen: Flags, windows: list[_Window]
) -> tuple[Keys, Columns]:
    """Lay out the tables with columns, each cluster in the order of its lower bounds."""
    if not windows:
        none = np.empty(0, np.uint32)
        empty = np.empty(0, np.int64)
        return _no_keys(), Columns(empty, empty, none, none, none, none, none, none)
    keys, member_of, order = _place(conditions, plan, is_chosen)
    by_table = {(w.family, w.member): w for w in windows}
    chosen = [
        by_table[f, int(keys.member_attribute[m])]
        for f in range(len(plan.prefixes))
        for m in range(keys.member_start[f], keys.member_start[f + 1])
    ]
    columns = Columns(
        np.array([w.window for w in chosen], np.int64),
        np.array([w.other for w in chosen], np.int64),
        *(np.empty(len(order), np.uint32) for _ in range(6)),
    )
    kernels.fill_columns(conditions, member_of, order, columns)
    sizes = keys.start[1:].astype(np.int64) - keys.start[:-1]
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    order = order[np.lexsort((columns.low, cluster))]
    kernels.fill_columns(conditions, member_of, order, columns)
    kernels.fill_reach(keys.start, columns.high, columns.reach)
    return keys, columns


def _no_keys() -> Keys:
    none = np.empty(0, np.int64)
    zero = np.zeros(1, np.int64)
    return Keys(zero, none, zero, none, none, none, none, none, np.zeros(1, np.uint32))


def _choose_grouped(keys: Keys) -> int:
    """Choose the family by whose prefix a batch may be ordered: the largest that has one, or -1."""
    sizes = [
        int(keys.start[keys.base[f + 1] if f + 1 < len(keys.base) else -1])
        - int(keys.start[keys.base[f]])
        if keys.prefix_start[f + 1] > keys.prefix_start[f]
        else 0
        for f in range(len(keys.base))
    ]
    return int(np.argmax(sizes)) if sizes and max(sizes) > 0 else -1


def _make_slots(plan: Plan, keys: Keys, f: int, n_entries: int) -> Slots:
    """Number the places below each prefix of a family; empty where masks would be too large."""
    none = np.empty(0, np.uint32)
    n_codes = np.diff(plan.coding.first) + 1
    nothing = Slots(np.empty(0, np.uint16), none, none, none)
    if f < 0 or n_codes.sum() > _MAX_MASK_CODES or keys.stride[f] > 0xFFFF:
        return nothing
    first = np.concatenate([[0], np.cumsum(n_codes)]).astype(np.uint32)
    low = np.zeros(keys.stride[f], np.uint32)
    high = np.zeros(keys.stride[f], np.uint32)
    for m in range(keys.member_start[f], keys.member_start[f + 1]):
        a, offset = int(keys.member_attribute[m]), int(keys.member_offset[m])
        if a < 0:
            low[offset], high[offset] = first[0], first[1] - 1
            continue
        digits = plan.coding.digit[plan.coding.first[a] : plan.coding.first[a + 1]]
        codes = np.flatnonzero(digits >= 0)
        places = offset + digits[codes]
        high[places] = first[a] + codes + 1
        low[places[::-1]] = first[a] + codes[::-1]
    of_entry = np.zeros(n_entries, np.uint16)
    prefix = keys.prefix[keys.prefix_start[f] : keys.prefix_start[f + 1]]
    n_prefixes = int(np.prod(plan.coding.n_digits[prefix]))
    kernels.fill_slots(keys, f, n_prefixes, of_entry)
    return Slots(of_entry, low, high, first)


def _order_words(conditions: Conditions, chosen: Numbers) -> Numbers:
    """Order conjunctions so that those of like attributes come into the same word."""
    signatures = np.empty((2, len(chosen)), np.uint64)
    kernels.sign(conditions, chosen, signatures)
    ordered: Numbers = chosen[np.lexsort((signatures[1], signatures[0]))]
    return ordered


def _make_bitmaps(conditions: Conditions, plan: Plan, chosen: Numbers) -> Bitmaps:
    """Put conjunctions into words of 64."""
    n_words = -(-len(chosen) // 64)
    start = np.zeros(n_words + 1, np.int64)
    n_attributes = len(plan.coding.n_cells)
    found: Integers = np.empty(0, np.int64)
    for _ in range(2):  # count them, then write them
        last_word = np.full(n_attributes, -1, np.int64)
        n = kernels.find_word_attributes(conditions, chosen, last_word, start, found)
        found = np.empty(n, np.int64) if not len(found) else found
    bitmaps = Bitmaps(
        start,
        found,
        np.empty(n * N_BANDS, np.uint64),
        np.zeros(n_words * 64, np.uint32),
        np.zeros(n_words * RANGES, np.int32),
        np.full(
            n_words * 64 * RANGES, 0xFFFFFFFF, np.uint32
        ),  # no cell: an unused place holds none
        np.zeros(n_words * 64 * RANGES, np.uint32),
    )
    kernels.fill_bitmaps(conditions, plan.coding.n_cells, chosen, bitmaps)
    return bitmaps
