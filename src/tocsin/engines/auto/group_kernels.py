"""Cells → matches, compiled: many events at a time against the entries that they all lead to.

Enters: entries under the prefixes of a family, of a segment or of what is recent (see `arrays`),
and events ordered by that prefix. Leaves: pairs of an event and the number of a conjunction that it
satisfies; where what was looked at does not say all, that number is open, and there is the event's
place in the order instead of the event (see `match_kernels.settle_pairs`).

Events of one prefix are taken 64 at a time, or 512 where there are more: a mask per code says which
of them have it, or a lower one, so an entry is decided for all of them by a few loads. Where few
events share a prefix they are left, to be looked up one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    IN_BLOCK,
    NUMBER,
    Cells,
    Chains,
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
from tocsin.jit import (
    WORDS,
    common_words,
    common_words_of_ranges,
    inlined,
    inner,
    kernel,
    lowest_bit,
    prefetch_row,
    uncounted_inlined,
)

_BLOCKS_AHEAD = 6
"""So many blocks of a chain are fetched ahead."""
_IN_BOUNDS = 4 * IN_BLOCK
"""How much of the bounds of a chain a block has."""
_SIFTED = 16
"""How many times 64 entries are sifted before what is found among them is written."""
_FEW = 64
"""So many events have masks of one word."""
_FEW_RANGES = 128
"""Up to so many events such masks are cheaper where entries have ranges."""
_MANY = 64 * WORDS
"""So many have masks of `WORDS`."""
_FAR = 4e6
"""With so many entries, hardly one that is looked for is in the cache."""


@uncounted_inlined
def _mark(codes: Codes, first: Scalar, last: Scalar, starts: Numbers, equal: Words) -> None:
    """Write for each code of each attribute which of up to 64 events have it.

    The codes of attribute a start at `starts[a]`, with one place more than there are codes.
    """
    for event in range(first, last):
        bit = np.uint64(1) << np.uint64(event - first)
        for a in range(len(starts) - 1):
            equal[starts[a] + np.uint32(codes[event, a])] |= bit


@uncounted_inlined
def _unmark(codes: Codes, first: Scalar, last: Scalar, starts: Numbers, equal: Words) -> None:
    """Take back what `_mark` wrote."""
    for event in range(first, last):
        for a in range(len(starts) - 1):
            equal[starts[a] + np.uint32(codes[event, a])] = np.uint64(0)


@uncounted_inlined
def _sum_up(starts: Numbers, equal: Words, below: Words) -> None:
    """Write for each code which events have a lower one, given which have it, and unmark these."""
    for a in range(len(starts) - 1):
        lower = np.uint64(0)
        for i in range(np.uint64(starts[a]), np.uint64(starts[a + 1])):
            below[i] = lower
            lower |= equal[i]
            equal[i] = np.uint64(0)


@uncounted_inlined
def _add_pairs(
    order: Cells, number: Scalar, mask: Scalar, at: Scalar, pair_event: Cells,
    pair_number: Numbers, n: Scalar,
) -> Scalar:  # fmt: skip
    """Add a pair for each event of a mask, of those from place `at` on.

    Returns where the next pair goes, or -1 when there is no room.
    """
    while mask:
        if n == len(pair_event):
            return np.int64(-1)
        place = at + lowest_bit(mask)
        pair_event[n] = place if number > NUMBER else order[place]
        pair_number[n] = number
        mask &= mask - np.uint64(1)
        n += 1
    return n


@uncounted_inlined
def _bounds(entries: Words, slots: Slots, i: Scalar) -> Any:
    """Return where each of the three ranges of an entry begins and ends, among all codes."""
    slot, word, rest = slots.of_entry[i], entries[i, 0], entries[i, 1]
    first, one = slots.first, np.uint64(1)
    low = np.uint64(first[word & np.uint64(0xFFFF)]) + np.uint64(np.uint16(word >> np.uint64(16)))
    low2 = np.uint64(first[word >> np.uint64(48)]) + np.uint64(np.uint16(rest))
    high = low + np.uint64(np.uint16(word >> np.uint64(32))) + one
    high2 = low2 + np.uint64(np.uint16(rest >> np.uint64(16))) + one
    return np.uint64(slots.low[slot]), np.uint64(slots.high[slot]), low, high, low2, high2


@inner
def _sift_points(
    entries: Words, slots: Slots, first: Scalar, last: Scalar, equal: Words, found: Words
) -> None:
    """Find the entries that ask for three codes which one of up to 64 events has.

    They are written as bits. Nothing else is done here, so that all that the loop needs stays in
    registers, and no branch depends on what is found: most of the time is spent in it.
    """
    for start in range(np.uint64(first), np.uint64(last), np.uint64(64)):
        bits = np.uint64(0)
        for i in range(start, min(start + np.uint64(64), np.uint64(last))):
            a, _, b, _, c, _ = _bounds(entries, slots, i)
            is_found = (equal[a] & equal[b] & equal[c]) != 0
            bits |= np.uint64(is_found) << np.uint64(i - start)
        found[(start - np.uint64(first)) >> np.uint64(6)] = bits


@inner
def _sift_points_wide(
    entries: Words, slots: Slots, first: Scalar, last: Scalar, equal: Words, found: Words
) -> None:
    """Do as `_sift_points` for up to 512 events."""
    for start in range(np.uint64(first), np.uint64(last), np.uint64(64)):
        bits = np.uint64(0)
        for i in range(start, min(start + np.uint64(64), np.uint64(last))):
            a, _, b, _, c, _ = _bounds(entries, slots, i)
            is_found = common_words(equal, a, b, c) != 0
            bits |= np.uint64(is_found) << np.uint64(i - start)
        found[(start - np.uint64(first)) >> np.uint64(6)] = bits


@uncounted_inlined
def _add_found(
    entries: Words, slots: Slots, places: Any, equal: Words, found: Words,
    at: Scalar, pairs: Any, n: Scalar,
) -> Scalar:  # fmt: skip
    """Add the pairs of what was found among up to 64 events, from the one at `at` on.

    See `_add_pairs`.
    """
    order, pair_event, pair_number = pairs
    for k in range((places[1] - places[0] + 63) >> 6):
        bits = found[k]
        while bits and n >= 0:
            i = np.uint64(places[0] + (k << 6) + lowest_bit(bits))
            bits &= bits - np.uint64(1)
            a, _, b, _, c, _ = _bounds(entries, slots, i)
            mask, number = equal[a] & equal[b] & equal[c], np.uint32(entries[i, 1] >> np.uint64(32))
            n = _add_pairs(order, number, mask, at, pair_event, pair_number, n)
    return n


@uncounted_inlined
def _add_found_wide(
    entries: Words, slots: Slots, places: Any, equal: Words, found: Words,
    at: Scalar, pairs: Any, n: Scalar,
) -> Scalar:  # fmt: skip
    """Do as `_add_found` for up to 512 events."""
    order, pair_event, pair_number = pairs
    size = np.uint64(WORDS)
    for k in range((places[1] - places[0] + 63) >> 6):
        bits = found[k]
        while bits and n >= 0:
            i = np.uint64(places[0] + (k << 6) + lowest_bit(bits))
            bits &= bits - np.uint64(1)
            a, _, b, _, c, _ = _bounds(entries, slots, i)
            words = common_words(equal, a, b, c)
            number = np.uint32(entries[i, 1] >> np.uint64(32))
            while words and n >= 0:
                w = np.uint64(lowest_bit(words))
                words &= words - np.uint64(1)
                mask = equal[a * size + w] & equal[b * size + w] & equal[c * size + w]
                n = _add_pairs(
                    order, number, mask, at + 64 * np.int64(w), pair_event, pair_number, n
                )
    return n


@uncounted_inlined
def _add_ranges(
    entries: Words, slots: Slots, places: Any, below: Words, at: Scalar, pairs: Any, n: Scalar
) -> Scalar:
    """Add the pairs of entries of any kind with up to 64 events, from the one at `at` on.

    They are added at once: with ranges, most entries have some. See `_add_pairs`.
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
            n = _add_pairs(order, number, mask, at, pair_event, pair_number, n)
    return n


@uncounted_inlined
def _add_ranges_wide(
    entries: Words, slots: Slots, places: Any, below: Words, at: Scalar, pairs: Any, n: Scalar
) -> Scalar:
    """Do as `_add_ranges` for up to 512 events."""
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
            n = _add_pairs(order, number, mask, first, pair_event, pair_number, n)
    return n


@inlined
def _aligned(n_rows: Scalar) -> Any:
    """Return rows of masks that are empty, each of them in one cache line."""
    room = np.zeros((n_rows + 1) * WORDS, np.uint64)
    first = (-(room.ctypes.data >> 3)) & (WORDS - 1)
    return room[first:]


@uncounted_inlined
def _mark_wide(codes: Codes, first: Scalar, last: Scalar, starts: Numbers, equal: Words) -> None:
    """Do as `_mark` for up to 512 events, in rows of masks."""
    for event in range(first, last):
        bit = np.uint64(1) << np.uint64((event - first) & 63)
        word = np.uint64(event - first) >> np.uint64(6)
        for a in range(len(starts) - 1):
            row = np.uint64(starts[a]) + np.uint64(codes[event, a])
            equal[row * np.uint64(WORDS) + word] |= bit


@uncounted_inlined
def _sum_up_wide(starts: Numbers, equal: Words, below: Words) -> None:
    """Do as `_sum_up` for rows of masks."""
    size = np.uint64(WORDS)
    for a in range(len(starts) - 1):
        first, last = np.uint64(starts[a]) * size, np.uint64(starts[a + 1]) * size
        for i in range(size):
            below[first + i] = np.uint64(0)
        for i in range(first, last - size):
            below[i + size] = below[i] | equal[i]


@kernel
def are_points(entries: Words) -> bool:
    """Whether the two conditions of each entry ask for one code."""
    for i in range(len(entries)):
        if np.uint16(entries[i, 0] >> np.uint64(32)) | np.uint16(entries[i, 1] >> np.uint64(16)):
            return False
    return True


@kernel
def are_some_open(entries: Words) -> bool:
    """Whether some entries do not say all."""
    for i in range(len(entries)):
        if np.uint32(entries[i, 1] >> np.uint64(32)) > NUMBER:
            return True
    return False


@uncounted_inlined
def _end_of_run(numbers: Integers, start: Scalar) -> Scalar:
    """Return where the run of one number ends."""
    end = start + 1
    while end < len(numbers) and numbers[end] == numbers[start]:
        end += 1
    return end


@uncounted_inlined
def _cost_of_masks(
    n_events: Scalar, n_entries: Scalar, n_codes: Scalar, n_attributes: Scalar, is_pointed: Any,
    costs: GroupCosts,
) -> Scalar:  # fmt: skip
    """Return what it costs to meet a run of events with entries by masks."""
    marking = n_events * n_attributes * costs.mark
    if n_events <= (_FEW if is_pointed else _FEW_RANGES):
        code = 0.0 if is_pointed else costs.code
        return marking + (n_events + _FEW - 1) // _FEW * (n_entries * costs.few + n_codes * code)
    code = costs.code if is_pointed else 3.0 * costs.code
    return marking + (n_events + _MANY - 1) // _MANY * (n_entries * costs.many + n_codes * code)


@inner
def _meet_few(
    entries: Words, slots: Slots, places: Any, is_pointed: Any, masks: Any,
    found: Words, codes: Codes, run: Any, pairs: Any, n: Scalar,
) -> Scalar:  # fmt: skip
    """Meet up to 64 events with entries.

    `places` are the first entry and the one after the last, `run` the same of events. Returns where
    the next pair goes, or -1 when there is no room.
    """
    equal, below = masks
    _mark(codes, run[0], run[1], slots.first, equal)
    if not is_pointed:
        _sum_up(slots.first, equal, below)
        return _add_ranges(entries, slots, places, below, run[0], pairs, n)
    for first in range(places[0], places[1], 64 * len(found)):
        some = (first, min(first + 64 * len(found), places[1]))
        _sift_points(entries, slots, some[0], some[1], equal, found)
        n = _add_found(entries, slots, some, equal, found, run[0], pairs, n)
    _unmark(codes, run[0], run[1], slots.first, equal)
    return n


@inner
def _meet_many(
    entries: Words, slots: Slots, places: Any, is_pointed: Any, masks: Any,
    found: Words, codes: Codes, run: Any, pairs: Any, n: Scalar,
) -> Scalar:  # fmt: skip
    """Do as `_meet_few` for up to 512 events."""
    equal, below = masks
    _mark_wide(codes, run[0], run[1], slots.first, equal)
    if not is_pointed:
        _sum_up_wide(slots.first, equal, below)
        n = _add_ranges_wide(entries, slots, places, below, run[0], pairs, n)
        equal[:] = 0
        return n
    for first in range(places[0], places[1], 64 * len(found)):
        some = (first, min(first + 64 * len(found), places[1]))
        _sift_points_wide(entries, slots, some[0], some[1], equal, found)
        n = _add_found_wide(entries, slots, some, equal, found, run[0], pairs, n)
    equal[:] = 0
    return n


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
    is_met: Flags,
    at: int,
    enough: int,
    pair_event: Cells,
    pair_number: Numbers,
    n: int,
) -> Any:
    """Write pairs for a family whose prefix orders the events, see `pairs`.

    The k-th row of `codes` is that of event `order[k]`, and `prefix_of[k]` its prefix. Only runs of
    events are met for which masks pay: `is_met` says which. `slots` is empty where the codes are
    too many; `is_pointed` says that each entry asks for three codes.
    """
    pairs = (order, pair_event, pair_number)
    n_members = keys.member_start[f + 1] - keys.member_start[f]
    probes = n_members * (costs.probe + costs.far * min(1.0, len(entries) / _FAR))
    per_entry = n_members / max(keys.stride[f], 1) * costs.check
    n_codes = np.int64(slots.first[len(slots.first) - 1])
    few = (np.zeros(n_codes + 1, np.uint64), np.zeros(n_codes + 1, np.uint64))
    many = (_aligned(n_codes + 1), _aligned(n_codes + 1))
    few_to = _FEW if is_pointed else _FEW_RANGES
    found = np.empty(_SIFTED, np.uint64)
    while at < len(order) and n < enough:
        prefix, end = prefix_of[at], _end_of_run(prefix_of, at)
        key = keys.base[f] + prefix * keys.stride[f]
        places = (np.int64(0), np.int64(0))
        if prefix >= 0:
            places = (np.int64(keys.start[key]), np.int64(keys.start[key + keys.stride[f]]))
        n_entries = places[1] - places[0]
        masked = _cost_of_masks(end - at, n_entries, n_codes, codes.shape[1], is_pointed, costs)
        one_by_one = (end - at) * (probes + n_entries * per_entry)
        if n_entries == 0 or masked >= one_by_one:
            is_met[at:end] = n_entries == 0
            at = end
        while at < end and n < enough:
            run = (at, min(at + (_MANY if end - at > few_to else _FEW), end))
            if end - at > few_to:
                following = _meet_many(
                    entries, slots, places, is_pointed, many, found, codes, run, pairs, n
                )
            else:
                following = _meet_few(
                    entries, slots, places, is_pointed, few, found, codes, run, pairs, n
                )
            if following < 0:
                return n, at
            n = following
            is_met[at : run[1]] = True
            at = run[1]
    return n, at


@uncounted_inlined
def _fetch_chain(chains: Chains, chain: Scalar) -> None:
    """Ask for the first blocks of a chain."""
    _, following, bounds, _ = chains
    block = np.int64(chains.head[chain])
    for _ in range(_BLOCKS_AHEAD):
        if block < 0:
            return
        prefetch_row(bounds, _IN_BOUNDS * block)
        block = np.int64(following[block])


@uncounted_inlined
def _block_ahead(chains: Chains, chain: Scalar) -> Scalar:
    """Return the first block of a chain that `_fetch_chain` does not ask for, or -1."""
    block = np.int64(chains.head[chain])
    for _ in range(_BLOCKS_AHEAD):
        if block >= 0:
            block = np.int64(chains.following[block])
    return block


@uncounted_inlined
def _scan_points(
    chains: Chains,
    chain: Scalar,
    limit: Scalar,
    equal: Words,
    at: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Meet a chain of points with up to 64 events, from the one at `at` on; see `_add_pairs`."""
    order, pair_event, pair_number = pairs
    head, following, bounds, numbers = chains
    block, ahead = np.int64(head[chain]), _block_ahead(chains, chain)
    while block >= 0 and n >= 0:
        if ahead >= 0:
            prefetch_row(bounds, _IN_BOUNDS * ahead)
            ahead = np.int64(following[ahead])
        first = np.uint64(_IN_BOUNDS * block)
        for i in range(np.uint64(IN_BLOCK)):
            place = first + i + i
            mask = equal[bounds[place]] & equal[bounds[place + np.uint64(1)]]
            if mask != 0:
                number = numbers[np.uint64(IN_BLOCK * block) + i]
                if number & NUMBER < limit and n >= 0:
                    n = _add_pairs(order, number, mask, at, pair_event, pair_number, n)
        block = np.int64(following[block])
    return n


@uncounted_inlined
def _scan_ranges(
    chains: Chains,
    chain: Scalar,
    limit: Scalar,
    below: Words,
    at: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Meet a chain of ranges with up to 64 events, from the one at `at` on; see `_add_pairs`."""
    order, pair_event, pair_number = pairs
    head, following, bounds, numbers = chains
    block, ahead = np.int64(head[chain]), _block_ahead(chains, chain)
    while block >= 0 and n >= 0:
        if ahead >= 0:
            prefetch_row(bounds, _IN_BOUNDS * ahead)
            prefetch_row(bounds, _IN_BOUNDS * ahead + _IN_BOUNDS // 2)
            ahead = np.int64(following[ahead])
        for i in range(np.uint64(block * IN_BLOCK), np.uint64((block + 1) * IN_BLOCK)):
            first = np.uint64(4) * i
            mask = below[bounds[first + np.uint64(1)]] ^ below[bounds[first]]
            mask &= below[bounds[first + np.uint64(3)]] ^ below[bounds[first + np.uint64(2)]]
            if mask != 0 and numbers[i] & NUMBER < limit and n >= 0:
                n = _add_pairs(order, numbers[i], mask, at, pair_event, pair_number, n)
        block = np.int64(following[block])
    return n


@kernel
def match_chains(
    chains: Chains,
    limit: int,
    code_start: Numbers,
    codes: Codes,
    order: Cells,
    prefix_of: Integers,
    at: int,
    enough: int,
    pair_event: Cells,
    pair_number: Numbers,
    n: int,
) -> Any:
    """Write pairs for what is recent, numbers below a limit, see `pairs`.

    Events are ordered by prefix as for `match_groups`; the codes of attribute a start at
    `code_start[a]`. Most of what is asked is one value: then it need only be known which events
    have a code, and not which have a lower one.
    """
    pairs = (order, pair_event, pair_number)
    n_codes = np.int64(code_start[len(code_start) - 1])
    equal, below = np.zeros(n_codes + 1, np.uint64), np.zeros(n_codes + 1, np.uint64)
    while at < len(order) and n < enough:
        prefix, end = prefix_of[at], _end_of_run(prefix_of, at)
        if end < len(order) and prefix_of[end] >= 0:
            _fetch_chain(chains, 2 * prefix_of[end])
            _fetch_chain(chains, 2 * prefix_of[end] + 1)
        if prefix < 0 or max(chains.head[2 * prefix], chains.head[2 * prefix + 1]) < 0:
            at = end
        while at < end and n < enough:
            stop = min(at + _FEW, end)
            _mark(codes, at, stop, code_start, equal)
            following = _scan_points(chains, 2 * prefix, limit, equal, at, pairs, n)
            if chains.head[2 * prefix + 1] < 0:
                _unmark(codes, at, stop, code_start, equal)
            elif following >= 0:
                _sum_up(code_start, equal, below)
                following = _scan_ranges(chains, 2 * prefix + 1, limit, below, at, pairs, following)
            if following < 0:
                return n, at
            n = following
            at = stop
    return n, at
