"""Entries, compiled: a conjunction in two words under each of its keys.

See `entries`. `match_entries` goes event by event through all families; `match_rows` takes the
events of one family that `group_kernels` left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import (
    CHECK_AT_ENDS,
    CHECK_AT_ENDS2,
    NEEDS_CHECK,
    NUMBER,
    Cells,
    Clusters,
    Codes,
    Coding,
    Conditions,
    Flags,
    Integers,
    Keys,
    Numbers,
    Scalar,
    Stream,
    Words,
)
from tocsin.engines.auto.code_kernels import code_of
from tocsin.engines.auto.table_kernels import find_clusters_of_family, make_clusters, prefix_key
from tocsin.engines.auto.verify_kernels import fill_row, verify_event
from tocsin.jit import inlined, kernel


@inlined
def _in_key(keys: Keys, f: Scalar, m: Scalar, attribute: Scalar) -> Scalar:
    is_in = attribute == keys.member_attribute[m]
    for p in range(keys.prefix_start[f], keys.prefix_start[f + 1]):
        is_in |= keys.prefix[p] == attribute
    return is_in


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
                continue  # each digit is one cell: the key decides the condition
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
    """Return attribute, low and width of a condition in codes, and whether they decide it.

    The verdict is 2 where they do, 1 where they do except at the ends, 0 where they do not.
    """
    attribute, verdict = np.int64(0), 2
    if i >= 0:
        attribute = np.int64(conditions.attribute[i])
    if i < 0 or attribute > 65535:
        n_codes = coding.first[1] if len(coding.first) > 1 else np.int64(1)
        return np.uint64(0), np.uint64(0), np.uint64(n_codes - 1), 2 if i < 0 else 0
    n_cells, is_exact = coding.n_cells[attribute], coding.is_exact[attribute]
    first, last = conditions.range_start[i], conditions.range_start[i + 1]
    low = code_of(np.int64(conditions.low[first]), n_cells, is_exact)
    high = code_of(np.int64(conditions.high[last - 1]) - 1, n_cells, is_exact)
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
    """Write the entries; `order` are the conjunctions by row."""
    for at in range(len(order)):
        c = np.int64(order[at])
        m = np.int64(member_of[c])
        best, second, n = _rank_residuals(
            coding, conditions, keys, selectivity, c, np.int64(family[c]), m
        )
        attribute, low, width, verdict = _pack(coding, conditions, best)
        attribute2, low2, width2, verdict2 = _pack(coding, conditions, second)
        number = np.uint32(c)
        if n > 2 or verdict == 0 or verdict2 == 0:
            number |= NEEDS_CHECK
        if verdict == 1:
            number |= CHECK_AT_ENDS
        if verdict2 == 1:
            number |= CHECK_AT_ENDS2
        entries[at, 0] = (
            attribute
            | (low << np.uint64(16))
            | (width << np.uint64(32))
            | (attribute2 << np.uint64(48))
        )
        entries[at, 1] = low2 | (width2 << np.uint64(16)) | (np.uint64(number) << np.uint64(32))


SCAN_FROM = 8
"""Clusters of at least this many entries are scanned one by one, smaller ones in rounds."""


@inlined
def _find_clusters(
    coding: Coding, keys: Keys, entries: Words, is_done: Flags, row: Codes, clusters: Clusters
) -> Scalar:
    """Find the clusters of an event in all families that are not done; return their number."""
    n = np.int64(0)
    for f in range(len(keys.base)):
        if not is_done[f]:
            prefix = prefix_key(coding, keys, f, row)
            if prefix >= 0:
                n = find_clusters_of_family(coding, keys, entries, f, prefix, row, clusters, n)
    return n


@inlined
def check_entry(word: Scalar, rest: Scalar, code: Scalar, code2: Scalar) -> Any:
    """Compare an entry with the codes of its two attributes.

    Returns whether both ranges hold, the number with `NEEDS_CHECK` where that does not decide, and
    whether it is so.
    """
    width, width2 = np.uint16(word >> np.uint64(32)), np.uint16(rest >> np.uint64(16))
    distance = np.uint16(code - np.uint16(word >> np.uint64(16)))
    distance2 = np.uint16(code2 - np.uint16(rest))
    number = np.uint32(rest >> np.uint64(32))
    at_end = ((distance == 0) | (distance == width)) & ((number & CHECK_AT_ENDS) != 0)
    at_end2 = ((distance2 == 0) | (distance2 == width2)) & ((number & CHECK_AT_ENDS2) != 0)
    needs_check = (number >= NEEDS_CHECK) | at_end | at_end2
    is_inside = (distance <= width) & (distance2 <= width2)
    return is_inside, (number & NUMBER) | (np.uint32(needs_check) << np.uint32(31)), needs_check


@inlined
def _scan_large(
    entries: Words, clusters: Clusters, n_clusters: Scalar, row: Codes, out: Any, n: Scalar
) -> Any:
    """Scan the large clusters; move the small ones to the front.

    Returns the number of small ones, the end of the candidates, and how many of them need a check.
    """
    n_small, n_unverified = np.int64(0), np.int64(0)
    for k in range(n_clusters):
        first, last = clusters.start[k], clusters.end[k]
        clusters.start[n_small] = first
        clusters.end[n_small] = last
        if last - first < SCAN_FROM:
            n_small += 1
            continue
        for i in range(first, last):
            word, rest = entries[i, 0], entries[i, 1]
            code, code2 = row[word & np.uint64(0xFFFF)], row[word >> np.uint64(48)]
            is_inside, number, needs_check = check_entry(word, rest, code, code2)
            out[n] = number
            n += is_inside
            n_unverified += is_inside & needs_check
    return n_small, n, n_unverified


@inlined
def _scan_small(
    entries: Words, clusters: Clusters, n_clusters: Scalar, row: Codes, out: Any, n: Scalar
) -> Any:
    """Scan small clusters in rounds, an entry of each, so that no branch depends on their sizes.

    Returns the end of the candidates, and how many of them need a check.
    """
    n_unverified = np.int64(0)
    while n_clusters > 0:
        n_left = np.int64(0)
        for k in range(n_clusters):
            i, last = clusters.start[k], clusters.end[k]
            word, rest = entries[i, 0], entries[i, 1]
            code, code2 = row[word & np.uint64(0xFFFF)], row[word >> np.uint64(48)]
            is_inside, number, needs_check = check_entry(word, rest, code, code2)
            out[n] = number
            n += is_inside
            n_unverified += is_inside & needs_check
            clusters.start[n_left] = i + 1
            clusters.end[n_left] = last
            n_left += i + 1 < last
        n_clusters = n_left
    return n, n_unverified


@kernel
def match_entries(
    coding: Coding,
    stream: Stream,
    keys: Keys,
    entries: Words,
    is_done: Flags,
    codes: Codes,
    cells: Cells,
    base: int,
    first_event: int,
    out: Numbers,
    offsets: Integers,
) -> Any:
    """Write the conjunctions that events satisfy, each number plus a base, see `output.by_event`.

    Families that are done are skipped. `cells` is empty where codes are cells.
    """
    clusters = make_clusters(len(keys.member_attribute) + 1)
    row = np.empty(codes.shape[1], np.int32)
    start, n = np.uint32(base), offsets[first_event]
    for event in range(first_event, len(codes)):
        event_codes, length = codes[event], np.int64(1)
        n_clusters = _find_clusters(coding, keys, entries, is_done, event_codes, clusters)
        for k in range(n_clusters):
            length += clusters.end[k] - clusters.start[k]
        if n + length > len(out):
            return event
        n_small, n, n_unverified = _scan_large(entries, clusters, n_clusters, event_codes, out, n)
        n, more_unverified = _scan_small(entries, clusters, n_small, event_codes, out, n)
        if start:
            for i in range(offsets[event], n):
                out[i] += start
        if n_unverified + more_unverified:
            fill_row(codes, cells, event, row)
            n = verify_event(stream, row, out, offsets[event], n, start)
        offsets[event + 1] = n
    return len(codes)


@inlined
def _scan_entries(
    entries: Words,
    clusters: Clusters,
    n_clusters: Scalar,
    event_codes: Codes,
    place: Scalar,
    event: Scalar,
    pairs: Any,
    n: Scalar,
) -> Scalar:
    """Add the pairs of one event and the entries of some clusters.

    Returns the end of the pairs, or -1 where they do not fit.
    """
    pair_event, pair_number = pairs
    for k in range(n_clusters):
        for i in range(clusters.start[k], clusters.end[k]):
            word, rest = entries[i, 0], entries[i, 1]
            code, code2 = event_codes[word & np.uint64(0xFFFF)], event_codes[word >> np.uint64(48)]
            is_inside, number, needs_check = check_entry(word, rest, code, code2)
            if not is_inside:
                continue
            if n == len(pair_event):
                return np.int64(-1)
            pair_event[n] = place if needs_check else event
            pair_number[n] = number
            n += 1
    return n


@kernel
def match_rows(
    coding: Coding,
    keys: Keys,
    entries: Words,
    f: int,
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
    """Add the pairs of one family and the events that are not matched yet; see `output.Pairs`."""
    pairs = (pair_event, pair_number)
    clusters = make_clusters(keys.member_start[f + 1] - keys.member_start[f] + 1)
    while at < len(order) and n < enough:
        if not is_matched[at] and prefix_of[at] >= 0:
            row, n_clusters = codes[at], np.int64(0)
            n_clusters = find_clusters_of_family(
                coding, keys, entries, np.int64(f), prefix_of[at], row, clusters, n_clusters
            )
            following = _scan_entries(entries, clusters, n_clusters, row, at, order[at], pairs, n)
            if following < 0:
                break
            n = following
        at += 1
    return n, at
