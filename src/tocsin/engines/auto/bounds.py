"""Whether the arrays of a segment that was opened stay within each other.

Enters: a segment, and how many ids there are. Leaves: nothing, or a ValueError. Checksums find
accidents, but are not always compared; kernels index without looking, so that a number out of its
bounds would be read, or written, elsewhere in memory. What is checked is every number that kernels
follow from one array into another: ids, offsets, numbers of conjunctions, attributes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto import bounds_kernels as kernels
from tocsin.engines.auto.arrays import N_BANDS, BitmapArrays, Coding, ColumnArrays, Keys
from tocsin.engines.auto.segment import Segment


def check_bounds(segment: Segment, n_ids: int) -> None:
    """Raise ValueError where a kernel would look beyond an array."""
    layout, coding, n = segment.layout, segment.coding, len(segment.ids)
    n_attributes = len(segment.space.attributes)
    if n:
        least, greatest = kernels.ends_of_ids(segment.ids)
        _require(least >= 0 and greatest < n_ids, "ids")
    stream = layout.stream
    _require(len(stream.start) >= n, "the starts of conditions")
    if len(stream.start):  # they stand in the order in which they are looked at, not by number
        greatest = kernels.greatest_of(stream.start)
        _require(greatest < len(stream.words), "the starts of conditions")
    _require(layout.entries.shape[1:] == (2,), "entries")
    if len(layout.entries):
        number, attribute = kernels.greatest_of_entries(layout.entries)
        _require(number < n and attribute < max(n_attributes, 1), "entries")
    _check_coding(coding, n_attributes)
    _check_keys(layout.keys, coding, len(layout.entries), n_attributes)
    _check_keys(layout.column_keys, coding, len(layout.columns.number), n_attributes)
    _check_columns(layout.columns, len(layout.column_keys.member_attribute), n, n_attributes)
    _check_bitmaps(layout.bitmaps, n, n_attributes)
    _require(-1 <= layout.grouped < len(layout.keys.base), "the family of groups")
    slots = layout.slots
    if layout.grouped >= 0 and len(slots.low):  # without them events are not met in groups
        _require(len(slots.of_entry) == len(layout.entries), "slots")
        _require(len(slots.low) == len(slots.high), "slots")
        _require(_greatest(slots.of_entry) < len(slots.low), "slots")
    _check_patterns(segment, n, n_attributes)


def _require(is_so: Any, what: str) -> None:
    if not is_so:
        raise ValueError(f"{what} are out of bounds")


def _greatest(array: NDArray[Any]) -> int:
    return int(array.max()) if len(array) else -1


def _check_range(array: NDArray[Any], low: int, high: int, what: str) -> None:
    """Have all of some integers in a half-open range."""
    if len(array):
        _require(int(array.min()) >= low and int(array.max()) < high, what)


def _check_starts(starts: NDArray[Any], n: int, what: str) -> None:
    """Have offsets ascend up to a length."""
    if not len(starts):
        return
    is_long = len(starts) > 4096 and starts.dtype == np.uint32
    ascends = kernels.ascend(starts) if is_long else np.all(starts[1:] >= starts[:-1])
    _require(ascends and int(starts[0]) >= 0 and int(starts[-1]) <= n, what)


def _check_coding(coding: Coding, n_attributes: int) -> None:
    for array in (coding.n_cells, coding.is_exact, coding.is_point, coding.shift, coding.first):
        _require(len(array) >= n_attributes, "codes")
    _require(len(coding.n_digits) >= n_attributes, "digits")
    _check_starts(coding.first, len(coding.digit), "the starts of digits")
    firsts = [*coding.first.tolist(), len(coding.digit)]
    for at in range(n_attributes):
        digits = coding.digit[firsts[at] : firsts[at + 1]]
        _check_range(digits, -1, max(int(coding.n_digits[at]), 1), "digits")


def _check_keys(keys: Keys, coding: Coding, n: int, n_attributes: int) -> None:
    _check_starts(keys.start, n, "the starts of keys")
    _check_starts(keys.prefix_start, len(keys.prefix), "the starts of prefixes")
    _check_starts(keys.member_start, len(keys.member_attribute), "the starts of members")
    n_families = len(keys.base)
    _require(len(keys.stride) == n_families, "families")
    _require(min(len(keys.prefix_start), len(keys.member_start)) > n_families, "families")
    n_members = len(keys.member_attribute)
    _require(len(keys.member_offset) == len(keys.member_digit) == n_members, "members")
    _check_range(keys.prefix, 0, n_attributes, "the attributes of prefixes")
    _check_range(keys.member_attribute, -1, n_attributes, "the attributes of members")
    _check_range(keys.member_digit, 0, len(coding.digit) + 1, "the digits of members")
    digits = np.append(coding.n_digits[:n_attributes], 1)  # a member without an attribute has one
    for f in range(n_families):
        prefix = keys.prefix[keys.prefix_start[f] : keys.prefix_start[f + 1]]
        members = slice(int(keys.member_start[f]), int(keys.member_start[f + 1]))
        n_prefixes = int(np.prod(digits[prefix], dtype=np.float64)) if len(prefix) else 1
        stride, base = int(keys.stride[f]), int(keys.base[f])
        _require(stride >= 0 and base >= 0, "keys")
        _require(base + n_prefixes * stride < len(keys.start) or not n_prefixes * stride, "keys")
        ends = keys.member_offset[members] + digits[keys.member_attribute[members]]
        _check_range(keys.member_offset[members], 0, max(stride, 1), "members")
        _require(_greatest(ends) <= stride, "members")


def _check_columns(columns: ColumnArrays, n_members: int, n: int, n_attributes: int) -> None:
    _require(len(columns.window) == len(columns.other) == n_members, "windows")
    _check_range(columns.window, -1, n_attributes, "windows")
    _check_range(columns.other, -1, n_attributes, "windows")
    lengths = {len(array) for array in columns[2:]}
    _require(len(lengths) == 1, "columns")
    if len(columns.number):
        _require(kernels.greatest_of_numbers(columns.number) < n, "columns")


def _check_bitmaps(bitmaps: BitmapArrays, n: int, n_attributes: int) -> None:
    n_words = max(len(bitmaps.start) - 1, 0)
    _check_starts(bitmaps.start, len(bitmaps.attribute), "the starts of words")
    _check_range(bitmaps.attribute, 0, max(n_attributes, 1), "the attributes of words")
    _check_range(bitmaps.first, 0, max(n_attributes, 1), "the attributes of words")
    _require(len(bitmaps.admitted) >= N_BANDS * len(bitmaps.attribute), "words")
    _require(len(bitmaps.number) >= 64 * n_words and len(bitmaps.first) >= 8 * n_words, "words")
    least = 8 * 64 * n_words
    _require(len(bitmaps.low) >= least and len(bitmaps.width) >= least, "words")
    if len(bitmaps.number):
        _require(kernels.greatest_of_numbers(bitmaps.number) < max(n, 1), "words")


def _check_patterns(segment: Segment, n: int, n_attributes: int) -> None:
    patterns = segment.patterns
    _check_range(patterns.conjunction, 0, n, "patterns")
    _check_range(patterns.attribute, 0, n_attributes, "patterns")
    _check_range(patterns.number, 0, len(patterns.patterns), "patterns")
    columns = patterns.conjunction, patterns.attribute, patterns.number, patterns.negated
    _require(len({len(column) for column in columns}) == 1, "patterns")
    _check_range(segment.layout.pattern_rows, 0, len(patterns.conjunction), "patterns")
