"""Conditions → what the planner needs to know of them, compiled.

Enters: conditions as ranges of cells. Leaves: how many codes each covers, which may serve in a key,
what share of events a key lets through, and the table of each conjunction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import (
    Cells,
    Coding,
    Conditions,
    Flags,
    Integers,
    Scalar,
)
from tocsin.engines.auto.code_kernels import code_range, digit_of
from tocsin.jit import inlined, kernel


@kernel
def count_codes(coding: Coding, conditions: Conditions, counts: Integers) -> None:
    """Count the codes that each condition covers."""
    for i in range(len(conditions.attribute)):
        n = np.int64(0)
        for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
            first, last = code_range(
                coding, conditions.attribute[i], conditions.low[r], conditions.high[r]
            )
            n += last - first + 1
        counts[i] = n


@kernel
def mark_codes(
    coding: Coding, conditions: Conditions, counts: Integers, most: int, is_marked: Flags
) -> None:
    """Mark the codes that narrow conditions on point attributes cover."""
    for i in range(len(conditions.attribute)):
        attribute = conditions.attribute[i]
        if counts[i] > most or not coding.is_point[attribute]:
            continue
        for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
            first, last = code_range(coding, attribute, conditions.low[r], conditions.high[r])
            for code in range(first, last + 1):
                is_marked[coding.first[attribute] + code] = True


@kernel
def find_keys(
    coding: Coding, conditions: Conditions, counts: Integers, most: int, is_key: Flags
) -> None:
    """Mark the conditions that may serve in a key: they cover few digits."""
    for i in range(len(conditions.attribute)):
        attribute = conditions.attribute[i]
        n = counts[i]
        if not coding.is_point[attribute]:
            n = np.int64(0)
            for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
                first, last = code_range(coding, attribute, conditions.low[r], conditions.high[r])
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
    """Write the share of events in the digits that each condition on a range attribute covers.

    `below[first[a] + cell]` is the share of events with a lower cell of attribute a.
    """
    for i in range(len(conditions.attribute)):
        a = conditions.attribute[i]
        if coding.is_point[a]:
            continue
        total, last_digit, shift = 0.0, np.int64(-1), coding.shift[a]
        for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
            low, high = code_range(coding, a, conditions.low[r], conditions.high[r])
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
    is_member: Flags,
    bit_share: NDArray[np.float64],
    family: NDArray[np.int16],
    member: Cells,
    checks: NDArray[np.float64],
) -> None:
    """Assign each conjunction the family and member attribute with the fewest expected checks.

    `checks` is the share of events that will check it, or what a bitmap costs in such checks.

    In a family without a prefix, a member that is not in `is_member` serves only conjunctions that
    have no other. A conjunction of n conditions that more than `bit_share[0] + n * bit_share[1]` of
    the events would check is cheaper in a bitmap: its family is -1.
    """
    for c in range(len(conditions.start) - 1):
        first, last = conditions.start[c], conditions.start[c + 1]
        best = 2.0
        family[c], member[c] = -1, -1
        for f in range(len(prefix_start) - 1):
            share, n_in_prefix = 1.0, 0
            least, least_attribute, is_least_member = 1.0, -1, False
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
                    n_in_prefix += 1
                    continue
                preferred = not is_bare or is_member[attribute]
                if shares[i] < 1.0 and (
                    (preferred and not is_least_member)
                    or (preferred == is_least_member and shares[i] < least)
                ):
                    least, least_attribute, is_least_member = shares[i], attribute, preferred
            if n_in_prefix == prefix_start[f + 1] - prefix_start[f] and share * least < best:
                best = share * least
                family[c], member[c] = f, least_attribute
        most = bit_share[0] + bit_share[1] * (last - first)
        if best > most:
            family[c], member[c] = -1, -1
        checks[c] = min(best, most)


@inlined
def _condition_on(conditions: Conditions, c: Scalar, attribute: Scalar) -> Scalar:
    """Return the condition of a conjunction on an attribute, or -1."""
    for i in range(conditions.start[c], conditions.start[c + 1]):
        if conditions.attribute[i] == attribute:
            return i
    return np.int64(-1)


@kernel
def fit_prefix(coding: Coding, conditions: Conditions, is_key: Flags, prefix: Integers) -> Any:
    """Whether each conjunction has a key condition with digits on every attribute of a prefix."""
    for c in range(len(conditions.start) - 1):
        for p in range(len(prefix)):
            i = _condition_on(conditions, c, prefix[p])
            if i < 0 or not is_key[i]:
                return False
            for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
                first, last = code_range(coding, prefix[p], conditions.low[r], conditions.high[r])
                for code in range(first, last + 1):
                    if digit_of(coding, prefix[p], code) < 0:
                        return False
    return True
