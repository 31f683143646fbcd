"""Compiled: the difference of two sets of dense ids, row by row.

Enters: offsets and dense ids before and after, and which rows exist (all if that is empty). Leaves:
kinds, rows and dense ids. The ids of a row are sorted in place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inner, kernel


@inner
def sort_ids(ids: NDArray[np.int32], first: int, last: int) -> None:
    """Sort a short run by insertion, a long one as NumPy does."""
    is_sorted = True
    for i in range(first + 1, last):
        if ids[i - 1] > ids[i]:
            is_sorted = False
            break
    if is_sorted:
        return
    if last - first > 32:
        ids[first:last].sort()
        return
    for i in range(first + 1, last):
        value = ids[i]
        j = i
        while j > first and ids[j - 1] > value:
            ids[j] = ids[j - 1]
            j -= 1
        ids[j] = value


@kernel
def differences(
    old_start: NDArray[np.int64],
    old_ids: NDArray[np.int32],
    old_here: NDArray[np.bool_],
    new_start: NDArray[np.int64],
    new_ids: NDArray[np.int32],
    new_here: NDArray[np.bool_],
    kind: NDArray[np.int8],
    row: NDArray[np.int64],
    dense: NDArray[np.int32],
) -> int:
    """Write the ids that are in one set only; return their number."""
    n = 0
    for i in range(len(old_start) - 1):
        a, a_last = old_start[i], old_start[i + 1]
        b, b_last = new_start[i], new_start[i + 1]
        if len(old_here) > 0 and not old_here[i]:
            a_last = a
        if len(new_here) > 0 and not new_here[i]:
            b_last = b
        sort_ids(old_ids, a, a_last)
        sort_ids(new_ids, b, b_last)
        while a < a_last or b < b_last:
            if a < a_last and (b == b_last or old_ids[a] < new_ids[b]):
                kind[n], row[n], dense[n] = -1, i, old_ids[a]
                a += 1
                n += 1
            elif b < b_last and (a == a_last or new_ids[b] < old_ids[a]):
                kind[n], row[n], dense[n] = 1, i, new_ids[b]
                b += 1
                n += 1
            else:
                a += 1
                b += 1
    return n
