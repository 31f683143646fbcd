"""Cells → matches, compiled: building and probing the access tables of a segment.

Enters: conditions as ranges of cells, a plan, the codes of events. Leaves: the flat arrays of the
access tables, and for each event the conjunctions it satisfies (LIKE patterns apart).

An *entry* stands for a conjunction under one key, in two 64-bit words: 16 bits each of attribute,
low and width of its first residual condition and the attribute of its second; then low and width of
the second, and the conjunction's number with three flags on top. A code c satisfies a residual
condition when `c - low` as an unsigned 16-bit number is at most the width, so one subtraction and
one comparison check both ends, and a miss touches no other cache line.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, inner, kernel, prefetch_row

Integers: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Codes: TypeAlias = NDArray[np.uint16]
Cells: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]
Scalar: TypeAlias = Any

ALWAYS_CHECK = np.uint32(1 << 31)
"""Flag of an entry: the words do not say all, the conditions have to be checked."""
CHECK_AT_ENDS = np.uint32(1 << 30)
"""Flag of an entry: the words do not say all where a code is an end of the first range."""
CHECK_AT_ENDS2 = np.uint32(1 << 29)
"""The same for the second range."""
NUMBER = np.uint32((1 << 29) - 1)
SCAN_FROM = 8
"""From how many entries on a cluster is scanned by itself."""
WINDOW_FROM = 48
"""From how many entries on a cluster is searched for its window first."""


class Conditions(NamedTuple):
    """The conditions of a segment: by conjunction, as ranges of cells."""

    start: Integers
    attribute: Cells
    range_start: Integers
    low: Cells
    high: Cells


class Coding(NamedTuple):
    """Per attribute how cells become codes (16 bits) and codes become key digits.

    The code of a cell is itself where `is_exact`, else all cells are spread over 16 bits. The digit
    of a code is `digit[first[a] + code]`: where `is_point`, the number of a marked code (-1: not
    marked), else `(code - 2) >> shift` (-1 for the codes of absent and other values).
    """

    n_cells: Integers
    is_exact: Flags
    is_point: Flags
    shift: Integers
    first: Integers
    digit: Cells
    n_digits: Integers


class Tables(NamedTuple):
    """The access tables: families of them share the leading attributes of their keys.

    A family's keys are numbered (digits of the prefix, member, digit of the member's attribute).
    A member without an attribute (-1) has one digit; `member_digit` is where the digits of its
    attribute's codes stand.
    """

    prefix_start: Integers
    prefix: Integers
    member_start: Integers
    member_attribute: Integers
    member_offset: Integers
    member_digit: Integers
    member_window: Integers
    base: Integers
    stride: Integers
    cluster_start: NDArray[np.uint32]
    entries: Words
    reach: Codes


@inlined
def _code(cell: Scalar, n_cells: Scalar, is_exact: Scalar) -> Scalar:
    """Return the code of a cell: itself, or its place when all are spread over 16 bits."""
    if is_exact or cell < 2:
        return cell
    return 2 + (cell - 2) * 65533 // (n_cells - 2)


@inlined
def _digit_of(coding: Coding, attribute: Scalar, code: Scalar) -> Scalar:
    """Return the key digit of an event's code, or -1."""
    return np.int64(coding.digit[coding.first[attribute] + code])


@inner
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


@kernel
def choose_tables(
    conditions: Conditions,
    selectivity: NDArray[np.float64],
    is_key: Flags,
    prefix_start: Integers,
    prefix: Integers,
    family: NDArray[np.int16],
    member: Cells,
) -> None:
    """Assign each conjunction the family and member attribute with the fewest expected checks."""
    for c in range(len(conditions.start) - 1):
        first, last = conditions.start[c], conditions.start[c + 1]
        best = 2.0
        family[c], member[c] = -1, -1
        for f in range(len(prefix_start) - 1):
            share, n_found = 1.0, 0
            least, least_attribute = 1.0, -1
            for i in range(first, last):
                if not is_key[i]:
                    continue
                attribute = conditions.attribute[i]
                in_prefix = False
                for p in range(prefix_start[f], prefix_start[f + 1]):
                    in_prefix |= prefix[p] == attribute
                if in_prefix:
                    share *= selectivity[i]
                    n_found += 1
                elif selectivity[i] < least:
                    least, least_attribute = selectivity[i], attribute
            if n_found == prefix_start[f + 1] - prefix_start[f] and share * least < best:
                best = share * least
                family[c], member[c] = f, least_attribute


@inner
def _find_condition(conditions: Conditions, c: Scalar, attribute: Scalar) -> Scalar:
    for i in range(conditions.start[c], conditions.start[c + 1]):
        if conditions.attribute[i] == attribute:
            return i
    return np.int64(-1)


@inner
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
def place(
    coding: Coding,
    conditions: Conditions,
    tables: Tables,
    family: NDArray[np.int16],
    member_of: Cells,
    digits: Integers,
    counts: Integers,
    order: NDArray[np.uint32],
) -> None:
    """Count the conjunctions under each key, or (when there is room for them) write them.

    With an empty `order`, `counts[key + 1]` grows; else `counts[key]` is where the next one goes.
    `digits` has a row for each attribute of a key, wide enough for any condition that may serve.
    """
    is_counting = len(order) == 0
    n_of = np.ones(len(digits), np.int64)
    for c in range(len(family)):
        f, m = np.int64(family[c]), np.int64(member_of[c])
        n_prefix = tables.prefix_start[f + 1] - tables.prefix_start[f]
        n_keys = np.int64(1)
        for d in range(n_prefix + 1):
            digits[d, 0], n_of[d] = 0, 1
            attribute = tables.member_attribute[m]
            if d < n_prefix:
                attribute = tables.prefix[tables.prefix_start[f] + d]
            if attribute >= 0:
                i = _find_condition(conditions, c, attribute)
                n_of[d] = _write_digits(coding, conditions, i, digits, d)
            n_keys *= n_of[d]
        for combination in range(n_keys):
            rest = combination
            key, scale = np.int64(0), np.int64(1)
            for back in range(n_prefix):
                d = n_prefix - 1 - back
                key += digits[d, rest % n_of[d]] * scale
                rest //= n_of[d]
                scale *= coding.n_digits[tables.prefix[tables.prefix_start[f] + d]]
            key = tables.base[f] + key * tables.stride[f] + tables.member_offset[m]
            key += digits[n_prefix, rest]
            if is_counting:
                counts[key + 1] += 1
            else:
                order[counts[key]] = c
                counts[key] += 1


@inner
def _rank_residuals(
    coding: Coding,
    conditions: Conditions,
    tables: Tables,
    selectivity: NDArray[np.float64],
    c: Scalar,
    f: Scalar,
    member_attribute: Scalar,
    window: Scalar,
) -> Any:
    """Return the two most selective residual conditions (-1: none), and how many there are."""
    best: Scalar = np.int64(-1)
    second: Scalar = np.int64(-1)
    best_share, second_share = 2.0, 2.0
    n = 0
    for i in range(conditions.start[c], conditions.start[c + 1]):
        attribute = conditions.attribute[i]
        in_key = attribute == member_attribute
        for p in range(tables.prefix_start[f], tables.prefix_start[f + 1]):
            in_key |= tables.prefix[p] == attribute
        share = selectivity[i]
        if in_key:
            if coding.is_point[attribute] and coding.is_exact[attribute]:
                continue  # each digit is one cell: the key says it all
            share = 0.5
        n += 1
        if attribute == window:
            share = -1.0
        if share < best_share:
            second, second_share = best, best_share
            best, best_share = i, share
        elif share < second_share:
            second, second_share = i, share
    return best, second, n


@inner
def _pack(coding: Coding, conditions: Conditions, i: Scalar) -> Any:
    """Return attribute, low and width of a condition in codes, and whether they say it all.

    The verdict is 2 when they do, 1 when they do but at the ends, 0 when they do not.
    """
    if i < 0:
        return np.uint64(0), np.uint64(0), np.uint64(65535), 2
    attribute = conditions.attribute[i]
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
    tables: Tables,
    selectivity: NDArray[np.float64],
    family: NDArray[np.int16],
    member_of: Cells,
    order: NDArray[np.uint32],
) -> None:
    """Write the entry of each placed conjunction."""
    for at in range(len(order)):
        c = np.int64(order[at])
        m = np.int64(member_of[c])
        best, second, n = _rank_residuals(
            coding,
            conditions,
            tables,
            selectivity,
            c,
            np.int64(family[c]),
            tables.member_attribute[m],
            tables.member_window[m],
        )
        attribute, low, width, said = _pack(coding, conditions, best)
        attribute2, low2, width2, said2 = _pack(coding, conditions, second)
        number = np.uint32(c)
        if n > 2 or said == 0 or said2 == 0:
            number |= ALWAYS_CHECK
        if said == 1:
            number |= CHECK_AT_ENDS
        if said2 == 1:
            number |= CHECK_AT_ENDS2
        tables.entries[at, 0] = (
            attribute
            | (low << np.uint64(16))
            | (width << np.uint64(32))
            | (attribute2 << np.uint64(48))
        )
        tables.entries[at, 1] = (
            low2 | (width2 << np.uint64(16)) | (np.uint64(number) << np.uint64(32))
        )


@kernel
def fill_reach(cluster_start: NDArray[np.uint32], entries: Words, reach: Codes) -> None:
    """Write the greatest first upper bound up to each entry of its cluster.

    In a cluster that is ordered by its first lower bounds, the entries that a code may satisfy are
    then a contiguous run.
    """
    for key in range(len(cluster_start) - 1):
        greatest = np.uint16(0)
        for i in range(np.int64(cluster_start[key]), np.int64(cluster_start[key + 1])):
            word = entries[i, 0]
            high = np.uint16(np.uint16(word >> np.uint64(16)) + np.uint16(word >> np.uint64(32)))
            greatest = max(greatest, high)
            reach[i] = greatest


@inlined
def _window(tables: Tables, first: Scalar, last: Scalar, code: Scalar) -> Any:
    """Return the run of a cluster's entries that may hold for a code of its window attribute."""
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if np.uint16(tables.entries[middle, 0] >> np.uint64(16)) <= code:
            low = middle + 1
        else:
            high = middle
    end = low
    low, high = first, end
    while low < high:
        middle = (low + high) >> 1
        if tables.reach[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low, end


class Checks(NamedTuple):
    """The conditions of each conjunction in one stream, to be checked exactly.

    Those of conjunction c are `stream[start[c] : start[c + 1]]`: an attribute, the number of its
    ranges, and their bounds, again and again.
    """

    start: Integers
    stream: Cells


@kernel
def write_checks(conditions: Conditions, checks: Checks) -> None:
    """Write the stream of checks, for which there is room, and where each conjunction starts."""
    n = 0
    for c in range(len(conditions.start) - 1):
        checks.start[c] = n
        for i in range(conditions.start[c], conditions.start[c + 1]):
            first, last = conditions.range_start[i], conditions.range_start[i + 1]
            checks.stream[n] = conditions.attribute[i]
            checks.stream[n + 1] = last - first
            n += 2
            for r in range(first, last):
                checks.stream[n] = conditions.low[r]
                checks.stream[n + 1] = conditions.high[r]
                n += 2
    checks.start[len(conditions.start) - 1] = n


@inlined
def _holds(checks: Checks, c: Scalar, cells: Cells) -> Scalar:
    """Whether an event's cells satisfy a conjunction."""
    at, end = checks.start[c], checks.start[c + 1]
    while at < end:
        cell = cells[checks.stream[at]]
        following = at + 2 + 2 * checks.stream[at + 1]
        inside = False
        for r in range(at + 2, following, 2):
            if cell < checks.stream[r + 1]:
                inside = cell >= checks.stream[r]
                break
        if not inside:
            return False
        at = following
    return True


class Clusters(NamedTuple):
    """The clusters that an event finds: first entry, end, and the member of each."""

    start: Integers
    end: Integers
    member: Integers


@inlined
def _find_clusters(coding: Coding, tables: Tables, row: Codes, clusters: Clusters) -> Scalar:
    """Look an event up in every table; write the clusters found, return their number."""
    n = np.int64(0)
    for f in range(len(tables.base)):
        key = np.int64(0)
        for p in range(tables.prefix_start[f], tables.prefix_start[f + 1]):
            attribute = tables.prefix[p]
            digit = _digit_of(coding, attribute, np.int64(row[attribute]))
            if digit < 0:
                key = np.int64(-1)
                break
            key = key * coding.n_digits[attribute] + digit
        if key < 0:
            continue
        key = tables.base[f] + key * tables.stride[f]
        for m in range(tables.member_start[f], tables.member_start[f + 1]):
            attribute = tables.member_attribute[m]
            digit = np.int64(0)
            if attribute >= 0:
                digit = np.int64(coding.digit[tables.member_digit[m] + np.int64(row[attribute])])
                if digit < 0:
                    continue
            place = key + tables.member_offset[m] + digit
            first = np.int64(tables.cluster_start[place])
            last = np.int64(tables.cluster_start[place + 1])
            clusters.start[n] = first
            clusters.end[n] = last
            clusters.member[n] = m
            n += first < last
            prefetch_row(tables.entries, first)
    return n


@inlined
def _check(word: Scalar, rest: Scalar, row: Codes) -> Any:
    """Whether an entry's words hold for an event; and its number, marked when it is still open."""
    width, width2 = np.uint16(word >> np.uint64(32)), np.uint16(rest >> np.uint64(16))
    distance = np.uint16(row[word & np.uint64(0xFFFF)] - np.uint16(word >> np.uint64(16)))
    distance2 = np.uint16(row[word >> np.uint64(48)] - np.uint16(rest))
    number = np.uint32(rest >> np.uint64(32))
    at_end = ((distance == 0) | (distance == width)) & ((number & CHECK_AT_ENDS) != 0)
    at_end2 = ((distance2 == 0) | (distance2 == width2)) & ((number & CHECK_AT_ENDS2) != 0)
    is_open = (number >= ALWAYS_CHECK) | at_end | at_end2
    is_inside = (distance <= width) & (distance2 <= width2)
    return is_inside, (number & NUMBER) | (np.uint32(is_open) << np.uint32(31)), is_open


@inlined
def _scan_large(
    tables: Tables, clusters: Clusters, n_clusters: Scalar, row: Codes, out: Any, n: Scalar
) -> Any:
    """Scan the large clusters, or their windows; move the small ones up.

    Returns the number of small ones, where the next match goes, and how many are still open.
    """
    entries = tables.entries
    n_small, n_open = np.int64(0), np.int64(0)
    for k in range(n_clusters):
        first, last = clusters.start[k], clusters.end[k]
        clusters.start[n_small] = first
        clusters.end[n_small] = last
        if last - first < SCAN_FROM:
            n_small += 1
            continue
        window = tables.member_window[clusters.member[k]]
        if window >= 0 and last - first >= WINDOW_FROM:
            first, last = _window(tables, first, last, row[window])
        for i in range(first, last):
            is_inside, number, is_open = _check(entries[i, 0], entries[i, 1], row)
            out[n] = number
            n += is_inside
            n_open += is_inside & is_open
    return n_small, n, n_open


@inlined
def _scan_small(
    entries: Words, clusters: Clusters, n_clusters: Scalar, row: Codes, out: Any, n: Scalar
) -> Any:
    """Scan small clusters in rounds, an entry of each: no branch depends on their sizes.

    Returns where the next match goes, and how many are still open.
    """
    n_open = np.int64(0)
    while n_clusters > 0:
        n_left = np.int64(0)
        for k in range(n_clusters):
            i, last = clusters.start[k], clusters.end[k]
            is_inside, number, is_open = _check(entries[i, 0], entries[i, 1], row)
            out[n] = number
            n += is_inside
            n_open += is_inside & is_open
            clusters.start[n_left] = i + 1
            clusters.end[n_left] = last
            n_left += i + 1 < last
        n_clusters = n_left
    return n, n_open


@inner
def _close(
    checks: Checks, cells: Cells, out: NDArray[np.uint32], first: Scalar, last: Scalar
) -> Scalar:
    """Check the open ones among the conjunctions found for an event; keep those that hold."""
    n = first
    for i in range(first, last):
        number = out[i]
        holds = True
        if number >= ALWAYS_CHECK:
            holds = _holds(checks, np.int64(number & NUMBER), cells)
        out[n] = number & NUMBER
        n += holds
    return n


@kernel
def match(
    coding: Coding,
    checks: Checks,
    tables: Tables,
    codes: Codes,
    cells: Cells,
    event_order: Integers,
    first_event: int,
    out: NDArray[np.uint32],
    offsets: Integers,
) -> int:
    """Write the conjunctions that events satisfy; return how many events were done.

    Events are taken in the given order, from place `first_event` on; `offsets[first_event]` says
    where to write. An event is either done whole or not at all. `cells` is empty where codes are
    cells.
    """
    n_members = len(tables.member_attribute) + 1
    clusters = Clusters(
        np.empty(n_members, np.int64), np.empty(n_members, np.int64), np.empty(n_members, np.int64)
    )
    has_cells = len(cells) > 0
    exact_row = np.empty(codes.shape[1], np.int32)
    n = offsets[first_event]
    for at in range(first_event, len(event_order)):
        event = event_order[at]
        row = codes[event]
        n_clusters = _find_clusters(coding, tables, row, clusters)
        room = n + 1
        for k in range(n_clusters):
            room += clusters.end[k] - clusters.start[k]
        if room > len(out):
            return at
        n_small, n, n_open = _scan_large(tables, clusters, n_clusters, row, out, n)
        n, more_open = _scan_small(tables.entries, clusters, n_small, row, out, n)
        n_open += more_open
        if n_open:
            for a in range(len(exact_row)):
                exact_row[a] = cells[event, a] if has_cells else row[a]
            n = _close(checks, exact_row, out, offsets[at], n)
        offsets[at + 1] = n
    return len(event_order)


@kernel
def to_rows(coding: Coding, cells: Cells, codes: Codes, rows: Cells) -> None:
    """Turn cells by attribute into codes by event, and into cells by event if there is room."""
    n_attributes, n_events = cells.shape
    has_rows = len(rows) > 0
    for first in range(0, n_events, 256):
        last = min(first + 256, n_events)
        for a in range(n_attributes):
            n_cells, is_exact = coding.n_cells[a], coding.is_exact[a]
            for event in range(first, last):
                codes[event, a] = _code(np.int64(cells[a, event]), n_cells, is_exact)
                if has_rows:
                    rows[event, a] = cells[a, event]


@kernel
def sort_events(coding: Coding, prefix: Integers, codes: Codes, order: Integers) -> None:
    """Order events by the digits of some attributes, so that neighbours share clusters."""
    n_keys = np.int64(1)
    for attribute in prefix:
        n_keys *= coding.n_digits[attribute] + 1
    keys = np.empty(len(codes), np.int64)
    counts = np.zeros(n_keys + 1, np.int64)
    for event in range(len(codes)):
        key = np.int64(0)
        for attribute in prefix:
            digit = _digit_of(coding, attribute, np.int64(codes[event, attribute]))
            key = key * (coding.n_digits[attribute] + 1) + digit + 1
        keys[event] = key
        counts[key + 1] += 1
    for k in range(n_keys):
        counts[k + 1] += counts[k]
    for event in range(len(codes)):
        order[counts[keys[event]]] = event
        counts[keys[event]] += 1


@kernel
def to_ids(
    offsets: Integers,
    found: NDArray[np.uint32],
    subscription: Integers,
    is_live: Flags,
    last_event: Integers,
    stamp: int,
    has_siblings: bool,
    ids: Cells,
    ends: Integers,
) -> None:
    """Turn the conjunctions found into ids of live subscriptions, each once per event.

    `ends[k]` becomes the number of ids up to and with the k-th event. `last_event[id]` holds a
    number of the event that an id was last seen in; numbers below `stamp` are of earlier calls.
    """
    n = 0
    for at in range(len(offsets) - 1):
        for i in range(offsets[at], offsets[at + 1]):
            dense = subscription[found[i]]
            is_wanted = is_live[dense]
            if has_siblings:
                is_wanted &= last_event[dense] != stamp + at
                last_event[dense] = stamp + at
            ids[n] = dense
            n += is_wanted
        ends[at] = n


@kernel
def arrange(
    event_order: Integers, ends: Integers, ids: Cells, out_offsets: Integers, out: Cells
) -> None:
    """Put the ids of events, which stand in some order, into the order of the events."""
    for at in range(len(event_order)):
        n = out_offsets[event_order[at]]
        for i in range(ends[at - 1] if at > 0 else 0, ends[at]):
            out[n] = ids[i]
            n += 1
