"""Kernels that look whether numbers which other kernels index by are in their bounds.

Enters: arrays of a segment that was opened. Leaves: the greatest number of each kind, and whether
offsets ascend. One pass each, at the speed of memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import NUMBER, Cells, Numbers, Words
from tocsin.jit import kernel


@kernel
def ends_of_ids(ids: Cells) -> Any:
    """Return the least and the greatest of some ids."""
    least, greatest = ids[0], ids[0]
    for i in range(len(ids)):
        least = min(least, ids[i])
        greatest = max(greatest, ids[i])
    return least, greatest


@kernel
def ascend(starts: Numbers) -> Any:
    """Return whether no offset is below the one before it."""
    n_down = np.int64(0)
    for i in range(len(starts) - 1):
        n_down += np.int64(starts[i + 1] < starts[i])
    return n_down == 0


@kernel
def greatest_of(starts: Numbers) -> Any:
    """Return the greatest of some offsets."""
    greatest = np.uint32(0)
    for i in range(len(starts)):
        greatest = max(greatest, starts[i])
    return greatest


@kernel
def greatest_of_numbers(numbers: Numbers) -> Any:
    """Return the greatest number of a conjunction, without its flags."""
    greatest = np.uint32(0)
    for i in range(len(numbers)):
        greatest = max(greatest, numbers[i] & NUMBER)
    return greatest


@kernel
def greatest_of_entries(entries: Words) -> Any:
    """Return the greatest number of a conjunction, and the greatest attribute, of some entries."""
    number, attribute = np.uint32(0), np.uint16(0)
    for i in range(len(entries)):
        word, rest = entries[i, 0], entries[i, 1]
        number = max(number, np.uint32(rest >> np.uint64(32)) & NUMBER)
        attribute = max(attribute, max(np.uint16(word), np.uint16(word >> np.uint64(48))))
    return number, attribute
