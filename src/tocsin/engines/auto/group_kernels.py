"""Groups, compiled: entries under a prefix against many events that have it.

See `groups`. The events of a prefix are taken 64 at a time, or 512 where there are more. Masks say
which of them have a code, or a lower one (`mask_kernels`), so that an entry is decided for all of
them by a few loads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    NUMBER,
    Cells,
    Codes,
    Flags,
    GroupCosts,
    Integers,
    Keys,
    Numbers,
    Scalar,
    Slots,
    Words,
)
from tocsin.engines.auto.mask_kernels import (
    accumulate_one,
    accumulate_wide,
    add_pairs,
    aligned_masks,
    end_of_run,
    marker,
    unmark_one,
    unmark_wide,
)
from tocsin.jit import (
    WORDS,
    common_words,
    common_words_of_ranges,
    inner,
    kernel,
    lowest_bit,
    uncounted_inlined,
)

_BLOCKS = 16
"""How many blocks of 64 entries are filtered before pairs of the remaining ones are added."""
_FEW = 64
"""How many events have masks of one word."""
_FEW_RANGES = 128
"""Up to how many events such masks are cheaper where entries have ranges."""
_MANY = 64 * WORDS
"""How many events have masks of `WORDS` words."""
_FAR = 4e6
"""With this many entries, hardly one that is looked up is in the cache."""


@kernel
def fill_slots(keys: Keys, f: int, n_prefixes: int, slots: Codes) -> None:
    """Write the slot of each entry of a family: its key below the prefix."""
    stride = keys.stride[f]
    for p in range(n_prefixes):
        for s in range(stride):
            key = keys.base[f] + p * stride + s
            for i in range(np.int64(keys.start[key]), np.int64(keys.start[key + 1])):
                slots[i] = s


@kernel
def are_points(entries: Words) -> bool:
    """Whether the two residual conditions of each entry are of one code."""
    for i in range(len(entries)):
        if np.uint16(entries[i, 0] >> np.uint64(32)) | np.uint16(entries[i, 1] >> np.uint64(16)):
            return False
    return True


@kernel
def do_any_need_checks(entries: Words) -> bool:
    """Whether some entries do not decide their conjunctions."""
    for i in range(len(entries)):
        if np.uint32(entries[i, 1] >> np.uint64(32)) > NUMBER:
            return True
    return False


@uncounted_inlined
def _bounds(entries: Words, slots: Slots, i: Scalar) -> Any:
    """Return the begin and the end of each of the three ranges of an entry, as rows of masks."""
    slot, word, rest = slots.of_entry[i], entries[i, 0], entries[i, 1]
    first, one = slots.first, np.uint64(1)
    low = np.uint64(first[word & np.uint64(0xFFFF)]) + np.uint64(np.uint16(word >> np.uint64(16)))
    low2 = np.uint64(first[word >> np.uint64(48)]) + np.uint64(np.uint16(rest))
    high = low + np.uint64(np.uint16(word >> np.uint64(32))) + one
    high2 = low2 + np.uint64(np.uint16(rest >> np.uint64(16))) + one
    return np.uint64(slots.low[slot]), np.uint64(slots.high[slot]), low, high, low2, high2


@uncounted_inlined
def _common_word(equal: Words, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
    """Do as `common_words` for masks of one word."""
    return np.uint64((equal[a] & equal[b] & equal[c]) != 0)


def _point_filter(common: Any) -> Any:
    """Return a function that filters the entries of three codes, for masks of one width."""

    @inner
    def filter_points(
        entries: Words, slots: Slots, first: Scalar, last: Scalar, equal: Words, is_left: Words
    ) -> None:
        """Write as bits which entries have three codes that one event of the run has.

        Nothing else is done here, so that all that the loop uses stays in registers and no branch
        depends on the data: most of the time is spent in it.
        """
        for start in range(np.uint64(first), np.uint64(last), np.uint64(64)):
            bits = np.uint64(0)
            for i in range(start, min(start + np.uint64(64), np.uint64(last))):
                a, _, b, _, c, _ = _bounds(entries, slots, i)
                bits |= np.uint64(common(equal, a, b, c) != 0) << np.uint64(i - start)
            is_left[(start - np.uint64(first)) >> np.uint64(6)] = bits

    return filter_points


def _point_adder(width: int, common: Any) -> Any:
    """Return a function that adds the pairs of entries of three codes, for masks of one width."""
    size = np.uint64(width)

    @uncounted_inlined
    def add_points(
        entries: Words, slots: Slots, places: Any, equal: Words, is_left: Words,
        at: Scalar, pairs: Any, n: Scalar,
    ) -> Scalar:  # fmt: skip
        """Add the pairs of the entries that are left; see `add_pairs`."""
        order, pair_event, pair_number = pairs
        for k in range((places[1] - places[0] + 63) >> 6):
            bits = is_left[k]
            while bits and n >= 0:
                i = np.uint64(places[0] + (k << 6) + lowest_bit(bits))
                bits &= bits - np.uint64(1)
                a, _, b, _, c, _ = _bounds(entries, slots, i)
                words, number = common(equal, a, b, c), np.uint32(entries[i, 1] >> np.uint64(32))
                while words and n >= 0:
                    w = np.uint64(lowest_bit(words))
                    words &= words - np.uint64(1)
                    mask = equal[a * size + w] & equal[b * size + w] & equal[c * size + w]
                    first = at + np.int64(w << np.uint64(6))
                    n = add_pairs(order, number, mask, first, pair_event, pair_number, n)
        return n

    return add_points


@uncounted_inlined
def _add_ranges_one(
    entries: Words, slots: Slots, places: Any, below: Words, at: Scalar, pairs: Any, n: Scalar
) -> Scalar:
    """Add the pairs of entries of any kind, for masks of one word.

    They are added at once: with ranges, most entries have some.
    """
    order, pair_event, pair_number = pairs
    for i in range(np.uint64(places[0]), np.uint64(places[1])):
        a, a_end, b, b_end, c, c_end = _bounds(entries, slots, i)
        mask = (below[a_end] ^ below[a]) & (below[b_end] ^ below[b])
        if mask == 0:
            continue
        mask &= below[c_end] ^ below[c]
        if mask != 0 and n >= 0:
            number = np.uint32(entries[i, 1] >> np.uint64(32))
            n = add_pairs(order, number, mask, at, pair_event, pair_number, n)
    return n


@uncounted_inlined
def _add_ranges_wide(
    entries: Words, slots: Slots, places: Any, below: Words, at: Scalar, pairs: Any, n: Scalar
) -> Scalar:
    """Do the same for masks of `WORDS` words."""
    order, pair_event, pair_number = pairs
    size = np.uint64(WORDS)
    for i in range(np.uint64(places[0]), np.uint64(places[1])):
        a, a_end, b, b_end, c, c_end = _bounds(entries, slots, i)
        words = common_words_of_ranges(below, a, a_end, b, b_end, c, c_end)
        number = np.uint32(entries[i, 1] >> np.uint64(32))
        while words and n >= 0:
            w = np.uint64(lowest_bit(words))
            words &= words - np.uint64(1)
            mask = below[a_end * size + w] ^ below[a * size + w]
            mask &= below[b_end * size + w] ^ below[b * size + w]
            mask &= below[c_end * size + w] ^ below[c * size + w]
            first = at + np.int64(w << np.uint64(6))
            n = add_pairs(order, number, mask, first, pair_event, pair_number, n)
    return n


def _run_matcher(width: int, common: Any, add_ranges: Any, unmark: Any, accumulate: Any) -> Any:
    """Return a function that matches a run of events with entries, for masks of one width."""
    mark, filter_points = marker(width), _point_filter(common)
    add_points = _point_adder(width, common)

    @inner
    def match_run(
        entries: Words, slots: Slots, places: Any, is_pointed: Any, masks: Any,
        is_left: Words, codes: Codes, run: Any, pairs: Any, n: Scalar,
    ) -> Scalar:  # fmt: skip
        """Add the pairs of the events `run[0] : run[1]` and the entries `places[0] : places[1]`.

        Returns the end of the pairs, or -1 where they do not fit.
        """
        equal, below = masks
        mark(codes, run[0], run[1], slots.first, equal)
        if not is_pointed:
            accumulate(slots.first, equal, below)
            return add_ranges(entries, slots, places, below, run[0], pairs, n)
        for first in range(places[0], places[1], 64 * len(is_left)):
            some = (first, min(first + 64 * len(is_left), places[1]))
            filter_points(entries, slots, some[0], some[1], equal, is_left)
            n = add_points(entries, slots, some, equal, is_left, run[0], pairs, n)
        unmark(codes, run[0], run[1], slots.first, equal)
        return n

    return match_run


_match_few = _run_matcher(1, _common_word, _add_ranges_one, unmark_one, accumulate_one)
_match_many = _run_matcher(WORDS, common_words, _add_ranges_wide, unmark_wide, accumulate_wide)


@uncounted_inlined
def _cost_of_masks(
    n_events: Scalar, n_entries: Scalar, n_codes: Scalar, n_attributes: Scalar, is_pointed: Any,
    costs: GroupCosts,
) -> Scalar:  # fmt: skip
    """Return the cost of matching a run of events with entries by masks."""
    marking = n_events * n_attributes * costs.mark
    if n_events <= (_FEW if is_pointed else _FEW_RANGES):
        code = 0.0 if is_pointed else costs.code
        return marking + (n_events + _FEW - 1) // _FEW * (n_entries * costs.few + n_codes * code)
    code = costs.code if is_pointed else 3.0 * costs.code
    return marking + (n_events + _MANY - 1) // _MANY * (n_entries * costs.many + n_codes * code)


@kernel
def match_groups(
    keys: Keys,
    entries: Words,
    slots: Slots,
    f: int,
    is_pointed: bool,
    costs: GroupCosts,
    codes: Codes,
    order: Cells,
    prefix_of: Integers,
    is_matched: Flags,
    at: int,
    enough: int,
    pair_event: Cells,
    pair_number: Numbers,
    n: int,
) -> Any:
    """Add the pairs of a family and an ordered batch, by masks where they pay; see `output.Pairs`.

    The k-th row of `codes` is that of event `order[k]`, and `prefix_of[k]` its prefix. `is_matched`
    is set for the events that were matched, or whose prefix has no entries. `is_pointed` says that
    each entry has three single codes.
    """
    pairs = (order, pair_event, pair_number)
    n_members = keys.member_start[f + 1] - keys.member_start[f]
    probes = n_members * (costs.probe + costs.far * min(1.0, len(entries) / _FAR))
    per_entry = n_members / max(keys.stride[f], 1) * costs.check
    n_codes = np.int64(slots.first[len(slots.first) - 1])
    few = (np.zeros(n_codes + 1, np.uint64), np.zeros(n_codes + 1, np.uint64))
    many = (aligned_masks(n_codes + 1), aligned_masks(n_codes + 1))
    few_to = _FEW if is_pointed else _FEW_RANGES
    is_left = np.empty(_BLOCKS, np.uint64)
    while at < len(order) and n < enough:
        prefix, end = prefix_of[at], end_of_run(prefix_of, at)
        key = keys.base[f] + prefix * keys.stride[f]
        places = (np.int64(0), np.int64(0))
        if prefix >= 0:
            places = (np.int64(keys.start[key]), np.int64(keys.start[key + keys.stride[f]]))
        n_entries = places[1] - places[0]
        masked = _cost_of_masks(end - at, n_entries, n_codes, codes.shape[1], is_pointed, costs)
        one_by_one = (end - at) * (probes + n_entries * per_entry)
        if n_entries == 0 or masked >= one_by_one:
            is_matched[at:end] = n_entries == 0
            at = end
        while at < end and n < enough:
            run = (at, min(at + (_MANY if end - at > few_to else _FEW), end))
            if end - at > few_to:
                n_after = _match_many(
                    entries, slots, places, is_pointed, many, is_left, codes, run, pairs, n
                )
            else:
                n_after = _match_few(
                    entries, slots, places, is_pointed, few, is_left, codes, run, pairs, n
                )
            if n_after < 0:
                return n, at
            n = n_after
            is_matched[at : run[1]] = True
            at = run[1]
    return n, at
