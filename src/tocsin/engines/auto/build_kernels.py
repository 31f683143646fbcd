"""Conditions → the flat arrays of a segment, compiled.

Enters: conditions as ranges of cells, and a plan. Leaves: codes and digits of the conditions, the
keys of each conjunction, entries, columns, bitmaps and the stream (see `arrays`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import (
    IN_BLOCK,
    IS_OPEN,
    MANY,
    N_BANDS,
    OPEN_AT_ENDS,
    OPEN_AT_ENDS2,
    Bitmaps,
    Cells,
    Chains,
    Codes,
    Coding,
    Columns,
    Conditions,
    Flags,
    Integers,
    Keys,
    Numbers,
    Scalar,
    Stream,
    Words,
)
from tocsin.jit import RANGES, inlined, kernel

_WIDE = 0x3FFF
"""Attributes from this one on do not fit beside a form in one word of the stream."""


@inlined
def _code(cell: Scalar, n_cells: Scalar, is_exact: Scalar) -> Scalar:
    """Return the code of a cell: itself, or its place when all are spread over 16 bits."""
    if is_exact or cell < 2:
        return cell
    return 2 + (cell - 2) * 65533 // (n_cells - 2)


@inlined
def _digit_of(coding: Coding, attribute: Scalar, code: Scalar) -> Scalar:
    """Return the key digit of a code, or -1."""
    return np.int64(coding.digit[coding.first[attribute] + code])


@inlined
def _code_range(coding: Coding, attribute: Scalar, low: Scalar, high: Scalar) -> Any:
    """Return the first and the last code of a range of cells."""
    n_cells, is_exact = coding.n_cells[attribute], coding.is_exact[attribute]
    return (
        _code(np.int64(low), n_cells, is_exact),
        _code(np.int64(high) - 1, n_cells, is_exact),
    )


@kernel
def count_codes(coding: Coding, conditions: Conditions, counts: Integers) -> None:
    """Count the codes that each condition covers."""
    for i in range(len(conditions.attribute)):
        n = np.int64(0)
        for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
            first, last = _code_range(
                coding, conditions.attribute[i], conditions.low[r], conditions.high[r]
            )
            n += last - first + 1
        counts[i] = n


@kernel
def mark_codes(
    coding: Coding, conditions: Conditions, counts: Integers, most: int, is_marked: Flags
) -> None:
    """Mark the codes of point attributes that narrow conditions cover."""
    for i in range(len(conditions.attribute)):
        attribute = conditions.attribute[i]
        if counts[i] > most or not coding.is_point[attribute]:
            continue
        for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
            first, last = _code_range(coding, attribute, conditions.low[r], conditions.high[r])
            for code in range(first, last + 1):
                is_marked[coding.first[attribute] + code] = True


@kernel
def find_keys(
    coding: Coding, conditions: Conditions, counts: Integers, most: int, is_key: Flags
) -> None:
    """Find the conditions that may serve in a key: those that cover few digits."""
    for i in range(len(conditions.attribute)):
        attribute = conditions.attribute[i]
        n = counts[i]
        if not coding.is_point[attribute]:
            n = np.int64(0)
            for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
                first, last = _code_range(coding, attribute, conditions.low[r], conditions.high[r])
                shift = coding.shift[attribute]
                n += ((last - 2) >> shift) - ((first - 2) >> shift) + 1
                n += most if first < 2 else 0  # an absent or other value has no digit
        is_key[i] = n <= most


@inlined
def _first_cell(coding: Coding, attribute: Scalar, code: Scalar) -> Scalar:
    """Return the first cell whose code is this one or a later one."""
    n_cells = coding.n_cells[attribute]
    if coding.is_exact[attribute]:
        return min(code, n_cells)
    return min(2 + ((code - 2) * (n_cells - 2) + 65532) // 65533, n_cells)


@kernel
def find_key_shares(
    coding: Coding,
    conditions: Conditions,
    first: Integers,
    below: NDArray[np.float64],
    shares: NDArray[np.float64],
) -> None:
    """Write the share of events in the digits that each condition covers, where they are ranges.

    `below[first[a] + cell]` is the share of events in the cells of attribute a before one.
    """
    for i in range(len(conditions.attribute)):
        a = conditions.attribute[i]
        if coding.is_point[a]:
            continue
        total, last_digit, shift = 0.0, np.int64(-1), coding.shift[a]
        for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
            low, high = _code_range(coding, a, conditions.low[r], conditions.high[r])
            digit = max((low - 2) >> shift, last_digit + 1)
            last_digit = max((high - 2) >> shift, last_digit)
            end = _first_cell(coding, a, 2 + ((last_digit + 1) << shift))
            begin = _first_cell(coding, a, 2 + (digit << shift))
            total += max(below[first[a] + end] - below[first[a] + begin], 0.0)
        shares[i] = min(max(total, shares[i]), 1.0)


@kernel
def choose_tables(
    conditions: Conditions,
    shares: NDArray[np.float64],
    is_key: Flags,
    prefix_start: Integers,
    prefix: Integers,
    is_kept: Flags,
    bit_share: NDArray[np.float64],
    family: NDArray[np.int16],
    member: Cells,
) -> None:
    """Assign each conjunction the family and member attribute with the fewest expected checks.

    `shares` are those of events in the digits of conditions. In a family without a prefix, members
    that are not kept serve only those that have no other. A conjunction that would be checked more
    often than `bit_share[0] + n * bit_share[1]` of the time, n its number of conditions, is cheaper
    in a bitmap: its family is -1.
    """
    for c in range(len(conditions.start) - 1):
        first, last = conditions.start[c], conditions.start[c + 1]
        best = 2.0
        family[c], member[c] = -1, -1
        for f in range(len(prefix_start) - 1):
            share, n_found = 1.0, 0
            least, least_attribute, is_least_kept = 1.0, -1, False
            is_bare = prefix_start[f] == prefix_start[f + 1]
            for i in range(first, last):
                if not is_key[i]:
                    continue
                attribute = conditions.attribute[i]
                in_prefix = False
                for p in range(prefix_start[f], prefix_start[f + 1]):
                    in_prefix |= prefix[p] == attribute
                if in_prefix:
                    share *= shares[i]
                    n_found += 1
                    continue
                kept = not is_bare or is_kept[attribute]
                if shares[i] < 1.0 and (
                    (kept and not is_least_kept) or (kept == is_least_kept and shares[i] < least)
                ):
                    least, least_attribute, is_least_kept = shares[i], attribute, kept
            if n_found == prefix_start[f + 1] - prefix_start[f] and share * least < best:
                best = share * least
                family[c], member[c] = f, least_attribute
        if best > bit_share[0] + bit_share[1] * (last - first):
            family[c], member[c] = -1, -1


@inlined
def _find_condition(conditions: Conditions, c: Scalar, attribute: Scalar) -> Scalar:
    for i in range(conditions.start[c], conditions.start[c + 1]):
        if conditions.attribute[i] == attribute:
            return i
    return np.int64(-1)


@inlined
def _write_digits(
    coding: Coding, conditions: Conditions, i: Scalar, digits: Integers, d: Scalar
) -> Scalar:
    """Write the distinct digits that a condition covers into row d; return how many."""
    attribute = conditions.attribute[i]
    n = np.int64(0)
    for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
        first, last = _code_range(coding, attribute, conditions.low[r], conditions.high[r])
        digit, end = _digit_of(coding, attribute, first), _digit_of(coding, attribute, last)
        while digit <= end:
            if n == 0 or digits[d, n - 1] < digit:
                digits[d, n] = digit
                n += 1
            digit += 1
    return n


@kernel
def find_digits(coding: Coding, conditions: Conditions, low: Cells, high: Cells) -> None:
    """Write the first and the last key digit of each condition; -2 where it has several ranges."""
    first, digit, attribute = coding.first, coding.digit, conditions.attribute
    n_cells, is_exact = coding.n_cells, coding.is_exact
    for i in range(len(attribute)):
        a = attribute[i]
        r = conditions.range_start[i]
        if conditions.range_start[i + 1] - r != 1:
            low[i], high[i] = -2, -2
            continue
        start = _code(np.int64(conditions.low[r]), n_cells[a], is_exact[a])
        end = _code(np.int64(conditions.high[r]) - 1, n_cells[a], is_exact[a])
        low[i], high[i] = digit[first[a] + start], digit[first[a] + end]


@kernel
def place(
    coding: Coding,
    conditions: Conditions,
    keys: Keys,
    chosen: Numbers,
    family: NDArray[np.int16],
    member_of: Cells,
    low: Cells,
    high: Cells,
    digits: Integers,
    counts: Integers,
    order: Numbers,
) -> None:
    """Count the chosen conjunctions under each key, or (where there is room) write them.

    With an empty `order`, `counts[key + 1]` grows; else `counts[key]` is where the next one goes.
    `low` and `high` are of `find_digits`. `digits` has a row for each attribute of a key, wide
    enough for any condition that may serve.
    """
    is_counting = len(order) == 0
    start, attribute = conditions.start, conditions.attribute
    prefix_start, prefix, n_digits = keys.prefix_start, keys.prefix, coding.n_digits
    n_of = np.ones(len(digits), np.int64)
    for at in range(len(chosen)):
        c = np.int64(chosen[at])
        f, m = np.int64(family[c]), np.int64(member_of[c])
        first_p, n_prefix = prefix_start[f], prefix_start[f + 1] - prefix_start[f]
        n_keys = np.int64(1)
        for d in range(n_prefix + 1):
            digits[d, 0], n_of[d] = 0, 1
            wanted = prefix[first_p + d] if d < n_prefix else keys.member_attribute[m]
            if wanted >= 0:
                i = start[c]
                while attribute[i] != wanted:
                    i += 1
                if low[i] == -2:
                    n_of[d] = _write_digits(coding, conditions, i, digits, d)
                else:
                    n_of[d] = high[i] - low[i] + 1
                    for k in range(n_of[d]):
                        digits[d, k] = low[i] + k
            n_keys *= n_of[d]
        for combination in range(n_keys):
            rest = combination
            key, scale = np.int64(0), np.int64(1)
            for back in range(n_prefix):
                d = n_prefix - 1 - back
                key += digits[d, rest % n_of[d]] * scale
                rest //= n_of[d]
                scale *= n_digits[prefix[first_p + d]]
            key = keys.base[f] + key * keys.stride[f] + keys.member_offset[m]
            key += digits[n_prefix, rest]
            if is_counting:
                counts[key + 1] += 1
            else:
                order[counts[key]] = c
                counts[key] += 1


@inlined
def _in_key(keys: Keys, f: Scalar, m: Scalar, attribute: Scalar) -> Scalar:
    found = attribute == keys.member_attribute[m]
    for p in range(keys.prefix_start[f], keys.prefix_start[f + 1]):
        found |= keys.prefix[p] == attribute
    return found


@inlined
def _rank_residuals(
    coding: Coding,
    conditions: Conditions,
    keys: Keys,
    selectivity: NDArray[np.float64],
    c: Scalar,
    f: Scalar,
    m: Scalar,
) -> Any:
    """Return the two most selective residual conditions (-1: none), and how many there are."""
    best: Scalar = np.int64(-1)
    second: Scalar = np.int64(-1)
    best_share, second_share = 2.0, 2.0
    n = 0
    for i in range(conditions.start[c], conditions.start[c + 1]):
        attribute = conditions.attribute[i]
        share = selectivity[i]
        if _in_key(keys, f, m, attribute):
            if coding.is_point[attribute] and coding.is_exact[attribute]:
                continue  # each digit is one cell: the key says it all
            share = 0.5
        n += 1
        if share < best_share:
            second, second_share = best, best_share
            best, best_share = i, share
        elif share < second_share:
            second, second_share = i, share
    return best, second, n


@inlined
def _pack(coding: Coding, conditions: Conditions, i: Scalar) -> Any:
    """Return attribute, low and width of a condition in codes, and whether they say it all.

    The verdict is 2 when they do, 1 when they do but at the ends, 0 when they do not.
    """
    attribute, verdict = np.int64(0), 2
    if i >= 0:
        attribute = np.int64(conditions.attribute[i])
    if i < 0 or attribute > 65535:
        n_codes = coding.first[1] if len(coding.first) > 1 else np.int64(1)
        return np.uint64(0), np.uint64(0), np.uint64(n_codes - 1), 2 if i < 0 else 0
    n_cells, is_exact = coding.n_cells[attribute], coding.is_exact[attribute]
    first, last = conditions.range_start[i], conditions.range_start[i + 1]
    low = _code(np.int64(conditions.low[first]), n_cells, is_exact)
    high = _code(np.int64(conditions.high[last - 1]) - 1, n_cells, is_exact)
    verdict = 0 if last - first > 1 else (2 if is_exact else 1)
    return np.uint64(attribute), np.uint64(low), np.uint64(high - low), verdict


@kernel
def fill_entries(
    coding: Coding,
    conditions: Conditions,
    keys: Keys,
    selectivity: NDArray[np.float64],
    family: NDArray[np.int16],
    member_of: Cells,
    order: Numbers,
    entries: Words,
) -> None:
    """Write the entry of each placed conjunction."""
    for at in range(len(order)):
        c = np.int64(order[at])
        m = np.int64(member_of[c])
        best, second, n = _rank_residuals(
            coding, conditions, keys, selectivity, c, np.int64(family[c]), m
        )
        attribute, low, width, said = _pack(coding, conditions, best)
        attribute2, low2, width2, said2 = _pack(coding, conditions, second)
        number = np.uint32(c)
        if n > 2 or said == 0 or said2 == 0:
            number |= IS_OPEN
        if said == 1:
            number |= OPEN_AT_ENDS
        if said2 == 1:
            number |= OPEN_AT_ENDS2
        entries[at, 0] = (
            attribute
            | (low << np.uint64(16))
            | (width << np.uint64(32))
            | (attribute2 << np.uint64(48))
        )
        entries[at, 1] = low2 | (width2 << np.uint64(16)) | (np.uint64(number) << np.uint64(32))


@kernel
def fill_slots(keys: Keys, f: int, n_prefixes: int, slots: Codes) -> None:
    """Write for each entry of a family its place below the prefix of its key."""
    stride = keys.stride[f]
    for p in range(n_prefixes):
        for s in range(stride):
            key = keys.base[f] + p * stride + s
            for i in range(np.int64(keys.start[key]), np.int64(keys.start[key + 1])):
                slots[i] = s


@kernel
def add_to_chains(
    start: Numbers,
    entries: Words,
    code_start: Numbers,
    first_number: int,
    chains: Chains,
    tail: Cells,
    used: Cells,
    n_blocks: int,
) -> Any:
    """Add entries to the chains of their prefixes (see `Chains`), their numbers plus the first one.

    Those of prefix p are `start[p] : start[p + 1]`; the codes of attribute a start at
    `code_start[a]`. `tail` is the last block of each chain, `used` how much of it is. There is
    room; returns how many blocks there are now.
    """
    head, following, bounds, number = chains
    n, one = np.int64(n_blocks), np.uint32(1)
    for p in range(len(start) - 1):
        for i in range(np.int64(start[p]), np.int64(start[p + 1])):
            word, rest = entries[i, 0], entries[i, 1]
            width = np.uint32(np.uint16(word >> np.uint64(32)))
            width2 = np.uint32(np.uint16(rest >> np.uint64(16)))
            c = 2 * p + np.int64(width + width2 > 0)
            if tail[c] < 0 or used[c] == IN_BLOCK:
                if tail[c] < 0:
                    head[c] = n
                else:
                    following[tail[c]] = n
                tail[c], used[c] = n, 0
                n += 1
            at = np.int64(tail[c]) * IN_BLOCK
            low = code_start[word & np.uint64(0xFFFF)] + np.uint32(np.uint16(word >> np.uint64(16)))
            low2 = code_start[word >> np.uint64(48)] + np.uint32(np.uint16(rest))
            if c & 1:
                place = 4 * (at + used[c])
                bounds[place], bounds[place + 1] = low, low + width + one
                bounds[place + 2], bounds[place + 3] = low2, low2 + width2 + one
            else:
                place = 4 * at + 2 * used[c]
                bounds[place], bounds[place + 1] = low, low2
            number[at + used[c]] = np.uint32(rest >> np.uint64(32)) + np.uint32(first_number)
            used[c] += 1
    return n


@kernel
def find_fitting(
    coding: Coding,
    conditions: Conditions,
    key: Integers,
    window: int,
    other: int,
    chosen: Numbers,
    fits: Flags,
) -> None:
    """Find the conjunctions that a key and single ranges of one or two attributes say all of.

    The one they must have is the window.
    """
    for at in range(len(chosen)):
        c = np.int64(chosen[at])
        fits[at] = False
        for i in range(conditions.start[c], conditions.start[c + 1]):
            attribute = conditions.attribute[i]
            is_single = conditions.range_start[i + 1] - conditions.range_start[i] == 1
            says_all = coding.is_point[attribute] and coding.is_exact[attribute]
            in_key = False
            for a in key:
                in_key |= a == attribute
            if is_single and attribute == window:
                fits[at] = True
            elif not (is_single and attribute == other) and not (in_key and says_all):
                fits[at] = False
                break


@kernel
def fill_columns(
    conditions: Conditions, member_of: Cells, order: Numbers, columns: Columns
) -> None:
    """Write the columns of each placed conjunction."""
    for at in range(len(order)):
        c = np.int64(order[at])
        m = np.int64(member_of[c])
        columns.number[at] = c
        columns.other_low[at], columns.other_width[at] = 0, 0xFFFFFFFF
        for i in range(conditions.start[c], conditions.start[c + 1]):
            attribute = conditions.attribute[i]
            low = np.uint32(conditions.low[conditions.range_start[i]])
            high = np.uint32(conditions.high[conditions.range_start[i]])
            if attribute == columns.window[m]:
                columns.low[at], columns.high[at] = low, high
            elif attribute == columns.other[m]:
                columns.other_low[at], columns.other_width[at] = low, high - low - np.uint32(1)


@kernel
def fill_reach(start: Numbers, high: Numbers, reach: Numbers) -> None:
    """Write the greatest upper bound up to each place of its cluster.

    In a cluster that is ordered by lower bounds, what a cell may satisfy is then a contiguous run.
    """
    for key in range(len(start) - 1):
        greatest = np.uint32(0)
        for i in range(np.int64(start[key]), np.int64(start[key + 1])):
            greatest = max(greatest, high[i])
            reach[i] = greatest


@kernel
def sign(conditions: Conditions, chosen: Numbers, signatures: Words) -> None:
    """Write the eight least attributes of each chosen conjunction, 16 bits each, least first."""
    for at in range(len(chosen)):
        c = np.int64(chosen[at])
        least = np.int64(-1)
        for half in range(2):
            signature = np.uint64(0)
            for _ in range(4):
                following = np.int64(0xFFFF)
                for i in range(conditions.start[c], conditions.start[c + 1]):
                    attribute = np.int64(conditions.attribute[i])
                    if least < attribute < following:
                        following = attribute
                least = following
                signature = (signature << np.uint64(16)) | np.uint64(following)
            signatures[half, at] = signature


@kernel
def find_word_attributes(
    conditions: Conditions, chosen: Numbers, last_word: Integers, start: Integers, found: Integers
) -> Any:
    """Write the distinct attributes of each word of 64 conjunctions; return how many in all."""
    n = np.int64(0)
    for word in range(len(start) - 1):
        start[word] = n
        for at in range(64 * word, min(64 * word + 64, len(chosen))):
            c = np.int64(chosen[at])
            for i in range(conditions.start[c], conditions.start[c + 1]):
                attribute = np.int64(conditions.attribute[i])
                if last_word[attribute] != word:
                    last_word[attribute] = word
                    if len(found):
                        found[n] = attribute
                    n += 1
    start[len(start) - 1] = n
    return n


@inlined
def _band(cell: Scalar, n_cells: Scalar) -> Scalar:
    """Return the band of a cell: the cell itself where there are few, else its share of them."""
    if n_cells <= N_BANDS or cell < 2:
        return cell
    return 2 + (cell - 2) * (N_BANDS - 2) // (n_cells - 2)


@kernel
def fill_bitmaps(
    conditions: Conditions, n_cells: Integers, chosen: Numbers, bitmaps: Bitmaps
) -> None:
    """Write which conjunctions each band admits, and their exact ranges."""
    slot_of = np.empty(len(n_cells), np.int64)
    for word in range(len(bitmaps.start) - 1):
        first, last = bitmaps.start[word], bitmaps.start[word + 1]
        n_here = min(64, len(chosen) - 64 * word)
        full = ~np.uint64(0) >> np.uint64(64 - n_here)
        for slot in range(first, last):
            slot_of[bitmaps.attribute[slot]] = slot
            if slot - first < RANGES:
                bitmaps.first[RANGES * word + slot - first] = bitmaps.attribute[slot]
            for band in range(N_BANDS):
                bitmaps.admitted[slot * N_BANDS + band] = full
        for b in range(n_here):
            place = 64 * word + b
            c = np.int64(chosen[place])
            number = np.uint32(c)
            bit = np.uint64(1) << np.uint64(b)
            for j in range(RANGES):
                bitmaps.low[place * RANGES + j], bitmaps.width[place * RANGES + j] = 0, 0xFFFFFFFF
            for i in range(conditions.start[c], conditions.start[c + 1]):
                attribute = conditions.attribute[i]
                slot = slot_of[attribute]
                r0, r1 = conditions.range_start[i], conditions.range_start[i + 1]
                for band in range(N_BANDS):
                    bitmaps.admitted[slot * N_BANDS + band] &= ~bit
                for r in range(r0, r1):
                    low = _band(np.int64(conditions.low[r]), n_cells[attribute])
                    high = _band(np.int64(conditions.high[r]) - 1, n_cells[attribute])
                    for band in range(low, high + 1):
                        bitmaps.admitted[slot * N_BANDS + band] |= bit
                if r1 - r0 > 1 or slot - first >= RANGES:
                    number |= IS_OPEN
                else:
                    at = place * RANGES + slot - first
                    bitmaps.low[at] = conditions.low[r0]
                    bitmaps.width[at] = conditions.high[r0] - 1 - conditions.low[r0]
            bitmaps.number[place] = number


@inlined
def _form_of(conditions: Conditions, i: Scalar) -> Scalar:
    """Return in which form a condition is written into the stream."""
    first, last = conditions.range_start[i], conditions.range_start[i + 1]
    if last - first != 1 or conditions.attribute[i] >= _WIDE:
        return 3
    if conditions.high[first] > 0xFFFF:
        return 2
    return 0 if conditions.high[first] - conditions.low[first] == 1 else 1


@kernel
def measure_stream(conditions: Conditions, order: Numbers, start: Numbers) -> Any:
    """Write where each conjunction will begin in the stream; return the number of words."""
    n = np.int64(0)
    for at in range(len(order)):
        c = np.int64(order[at])
        start[c] = n
        n += 1 if conditions.start[c + 1] - conditions.start[c] < MANY else 3
        for i in range(conditions.start[c], conditions.start[c + 1]):
            form = _form_of(conditions, i)
            n += 2 + form if form < 2 else 5
            if form == 3:
                n += 4 * (conditions.range_start[i + 1] - conditions.range_start[i])
    return n


@inlined
def _write_wide(words: Codes, n: Scalar, value: Scalar) -> Scalar:
    words[n] = np.uint16(value & 0xFFFF)
    words[n + 1] = np.uint16(value >> 16)
    return n + 2


@kernel
def write_stream(conditions: Conditions, stream: Stream) -> None:
    """Write the conditions into the stream, for which there is room."""
    words = stream.words
    for c in range(len(conditions.start) - 1):
        n = np.int64(stream.start[c])
        n_conditions = conditions.start[c + 1] - conditions.start[c]
        words[n] = np.uint16(min(n_conditions, MANY))
        n += 1
        if n_conditions >= MANY:
            n = _write_wide(words, n, n_conditions)
        for i in range(conditions.start[c], conditions.start[c + 1]):
            form = _form_of(conditions, i)
            attribute = np.int64(conditions.attribute[i])
            first, last = conditions.range_start[i], conditions.range_start[i + 1]
            words[n] = np.uint16((form << 14) | (attribute if form < 3 else 0))
            n += 1
            if form == 3:
                n = _write_wide(words, n, attribute)
                n = _write_wide(words, n, last - first)
            for r in range(first, last):
                low, high = np.int64(conditions.low[r]), np.int64(conditions.high[r])
                if form < 2:
                    words[n] = np.uint16(low)
                    if form == 1:
                        words[n + 1] = np.uint16(high)
                    n += 1 + form
                else:
                    n = _write_wide(words, n, low)
                    n = _write_wide(words, n, high)


@inlined
def _read_wide(words: Codes, n: Scalar) -> Scalar:
    return np.int64(words[n]) | (np.int64(words[n + 1]) << 16)


@kernel
def read_stream(stream: Stream, chosen: Numbers, conditions: Conditions) -> Any:
    """Write the conditions of chosen conjunctions, if there is room; return how many there are.

    Returns the number of conditions and of ranges.
    """
    words = stream.words
    has_room = len(conditions.attribute) > 0
    n_conditions, n_ranges = np.int64(0), np.int64(0)
    for at in range(len(chosen)):
        c = np.int64(chosen[at])
        n = np.int64(stream.start[c])
        n_left = np.int64(words[n])
        n += 1
        if n_left == MANY:
            n_left = _read_wide(words, n)
            n += 2
        for _ in range(n_left):
            form, attribute = np.int64(words[n] >> 14), np.int64(words[n] & _WIDE)
            n += 1
            count = np.int64(1)
            if form == 3:
                attribute, count = _read_wide(words, n), _read_wide(words, n + 2)
                n += 4
            if has_room:
                conditions.attribute[n_conditions] = attribute
            for r in range(n_ranges, n_ranges + count):
                if form < 2:
                    low, high = np.int64(words[n]), np.int64(words[n + form]) + (1 - form)
                    n += 1 + form
                else:
                    low, high = _read_wide(words, n), _read_wide(words, n + 2)
                    n += 4
                if has_room:
                    conditions.low[r], conditions.high[r] = low, high
            n_conditions += 1
            n_ranges += count
            if has_room:
                conditions.range_start[n_conditions] = n_ranges
        if has_room:
            conditions.start[at + 1] = n_conditions
    return n_conditions, n_ranges


@kernel
def move_cells(
    conditions: Conditions, attribute: Cells, first: Integers, low: Cells, high: Cells, end: Cells
) -> None:
    """Renumber the attributes and cells of conditions in place, see `encode.joined.Moved`."""
    for i in range(len(conditions.attribute)):
        a = conditions.attribute[i]
        for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
            is_present = conditions.low[r] == 1
            conditions.high[r] = end[a] if is_present else high[first[a] + conditions.high[r]]
            conditions.low[r] = low[first[a] + conditions.low[r]]
        conditions.attribute[i] = attribute[a]


@kernel
def fit_prefix(coding: Coding, conditions: Conditions, is_key: Flags, prefix: Integers) -> Any:
    """Whether every conjunction has a key condition with digits on each attribute of a prefix."""
    for c in range(len(conditions.start) - 1):
        for p in range(len(prefix)):
            i = _find_condition(conditions, c, prefix[p])
            if i < 0 or not is_key[i]:
                return False
            for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
                first, last = _code_range(coding, prefix[p], conditions.low[r], conditions.high[r])
                for code in range(first, last + 1):
                    if _digit_of(coding, prefix[p], code) < 0:
                        return False
    return True
