"""Masks of events, compiled: which events of a run have a code, or a lower one.

Enters: a run of up to 64 events, or up to 512, as rows of codes. Leaves: for each code of each
attribute a mask with a bit per event, of one word of 64 bits or of `WORDS` words. The codes of
attribute a begin at row `starts[a]`, and have one row more than there are codes. `equal` is all
zeros between runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import NUMBER, Cells, Codes, Integers, Numbers, Scalar, Words
from tocsin.jit import WORDS, inlined, lowest_bit, uncounted_inlined


def marker(width: int) -> Any:
    """Return a function that sets the bits of a run of events, for masks of some words."""
    size = np.uint64(width)

    @uncounted_inlined
    def mark(codes: Codes, first: Scalar, last: Scalar, starts: Numbers, equal: Words) -> None:
        for event in range(first, last):
            place = np.uint64(event - first)
            bit = np.uint64(1) << (place & np.uint64(63))
            word = place >> np.uint64(6) if size > 1 else np.uint64(0)
            for a in range(len(starts) - 1):
                row = np.uint64(starts[a]) + np.uint64(codes[event, a])
                equal[row * size + word] |= bit

    return mark


mark_one = marker(1)


@uncounted_inlined
def unmark_one(codes: Codes, first: Scalar, last: Scalar, starts: Numbers, equal: Words) -> None:
    """Clear the masks of a run of up to 64 events."""
    for event in range(first, last):
        for a in range(len(starts) - 1):
            equal[starts[a] + np.uint32(codes[event, a])] = np.uint64(0)


@uncounted_inlined
def unmark_wide(codes: Codes, first: Scalar, last: Scalar, starts: Numbers, equal: Words) -> None:
    """Clear all masks: cheaper for many events."""
    for i in range(len(equal)):
        equal[i] = np.uint64(0)


@uncounted_inlined
def accumulate_one(starts: Numbers, equal: Words, below: Words) -> None:
    """Write for each code which events have a lower one, and clear the masks of equal codes."""
    for a in range(len(starts) - 1):
        lower = np.uint64(0)
        for i in range(np.uint64(starts[a]), np.uint64(starts[a + 1])):
            below[i] = lower
            lower |= equal[i]
            equal[i] = np.uint64(0)


@uncounted_inlined
def accumulate_wide(starts: Numbers, equal: Words, below: Words) -> None:
    """Do the same for masks of `WORDS` words."""
    size = np.uint64(WORDS)
    for a in range(len(starts) - 1):
        first, last = np.uint64(starts[a]) * size, np.uint64(starts[a + 1]) * size
        for i in range(size):
            below[first + i] = np.uint64(0)
        for i in range(first, last - size):
            below[i + size] = below[i] | equal[i]
    for i in range(len(equal)):
        equal[i] = np.uint64(0)


@inlined
def aligned_masks(n_rows: Scalar) -> Any:
    """Return masks of `WORDS` words, all zeros, each in one cache line."""
    words = np.zeros((n_rows + 1) * WORDS, np.uint64)
    first = (-(words.ctypes.data >> 3)) & (WORDS - 1)
    return words[first:]


@uncounted_inlined
def add_pairs(
    order: Cells, number: Scalar, mask: Scalar, at: Scalar, pair_event: Cells,
    pair_number: Numbers, n: Scalar,
) -> Scalar:  # fmt: skip
    """Add a pair for each event of a mask, whose lowest bit is the event at position `at`.

    A pair that needs a check gets the position of the event in the order, others the event itself.
    Returns the end of the pairs, or -1 where they do not fit.
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
def end_of_run(numbers: Integers, start: Scalar) -> Scalar:
    """Return the end of the run of equal numbers that begins at `start`."""
    end = start + 1
    while end < len(numbers) and numbers[end] == numbers[start]:
        end += 1
    return end
