"""Access tables, compiled: from conjunctions to their keys, and from events to clusters.

A table's rows are sorted by key, so that a key leads to a run of rows, its cluster (see
`arrays.Keys`). The rows are entries (`entry_kernels`) or columns (`column_kernels`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import (
    Cells,
    Clusters,
    Codes,
    Coding,
    Conditions,
    Integers,
    Keys,
    Numbers,
    Scalar,
)
from tocsin.engines.auto.code_kernels import code_of, code_range, digit_of
from tocsin.jit import inlined, kernel, prefetch_row


@inlined
def _write_digits(
    coding: Coding, conditions: Conditions, i: Scalar, digits: Integers, d: Scalar
) -> Scalar:
    """Write the distinct digits that a condition covers into row d; return their number."""
    attribute = conditions.attribute[i]
    n = np.int64(0)
    for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
        first, last = code_range(coding, attribute, conditions.low[r], conditions.high[r])
        digit, end = digit_of(coding, attribute, first), digit_of(coding, attribute, last)
        while digit <= end:
            if n == 0 or digits[d, n - 1] < digit:
                digits[d, n] = digit
                n += 1
            digit += 1
    return n


@kernel
def find_digits(coding: Coding, conditions: Conditions, low: Cells, high: Cells) -> None:
    """Write the first and the last key digit of each condition, -2 where it has several ranges."""
    first, digit, attribute = coding.first, coding.digit, conditions.attribute
    n_cells, is_exact = coding.n_cells, coding.is_exact
    for i in range(len(attribute)):
        a = attribute[i]
        r = conditions.range_start[i]
        if conditions.range_start[i + 1] - r != 1:
            low[i], high[i] = -2, -2
            continue
        start = code_of(np.int64(conditions.low[r]), n_cells[a], is_exact[a])
        end = code_of(np.int64(conditions.high[r]) - 1, n_cells[a], is_exact[a])
        low[i], high[i] = digit[first[a] + start], digit[first[a] + end]


@kernel
def place(
    coding: Coding,
    conditions: Conditions,
    keys: Keys,
    selected: Numbers,
    family: NDArray[np.int16],
    member_of: Cells,
    low: Cells,
    high: Cells,
    digits: Integers,
    counts: Integers,
    order: Numbers,
) -> None:
    """Count the selected conjunctions under each key, or write them by key.

    With an empty `order`, `counts[key + 1]` is incremented; otherwise conjunctions are written to
    `order`, the next one of a key to `counts[key]`. `low` and `high` are of `find_digits`. `digits`
    is scratch: a row for each attribute of a key, as wide as a key condition has digits.
    """
    is_counting = len(order) == 0
    start, attribute = conditions.start, conditions.attribute
    prefix_start, prefix, n_digits = keys.prefix_start, keys.prefix, coding.n_digits
    n_of = np.ones(len(digits), np.int64)
    for at in range(len(selected)):
        c = np.int64(selected[at])
        f, m = np.int64(family[c]), np.int64(member_of[c])
        first_p, n_prefix = prefix_start[f], prefix_start[f + 1] - prefix_start[f]
        n_keys = np.int64(1)
        for d in range(n_prefix + 1):
            digits[d, 0], n_of[d] = 0, 1
            attribute_of_key = prefix[first_p + d] if d < n_prefix else keys.member_attribute[m]
            if attribute_of_key >= 0:
                i = start[c]
                while attribute[i] != attribute_of_key:
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
def make_clusters(n: Scalar) -> Any:
    """Return uninitialized arrays for n clusters."""
    return Clusters(np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64))


@inlined
def prefix_key(coding: Coding, keys: Keys, f: Scalar, row: Codes) -> Scalar:
    """Return the number of an event's prefix in a family, or -1 where it has none."""
    key = np.int64(0)
    for p in range(keys.prefix_start[f], keys.prefix_start[f + 1]):
        attribute = keys.prefix[p]
        digit = np.int64(coding.digit[coding.first[attribute] + np.int64(row[attribute])])
        if digit < 0:
            return np.int64(-1)
        key = key * coding.n_digits[attribute] + digit
    return key


@inlined
def find_clusters_of_family(
    coding: Coding,
    keys: Keys,
    rows: Any,
    f: Scalar,
    prefix: Scalar,
    row: Codes,
    clusters: Clusters,
    n: Scalar,
) -> Scalar:
    """Add the clusters of an event's keys in the tables of a family; return how many there are.

    `rows` is the array of which the first row of each cluster is prefetched."""
    key = keys.base[f] + prefix * keys.stride[f]
    for m in range(keys.member_start[f], keys.member_start[f + 1]):
        attribute = keys.member_attribute[m]
        digit = np.int64(0)
        if attribute >= 0:
            digit = np.int64(coding.digit[keys.member_digit[m] + np.int64(row[attribute])])
            if digit < 0:
                continue
        place = key + keys.member_offset[m] + digit
        first = np.int64(keys.start[place])
        last = np.int64(keys.start[place + 1])
        clusters.start[n] = first
        clusters.end[n] = last
        clusters.member[n] = m
        n += first < last
        prefetch_row(rows, first)
    return n
