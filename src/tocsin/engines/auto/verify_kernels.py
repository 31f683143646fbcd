"""Candidates → matches, compiled: check the conditions that a part did not look at.

Enters: pairs of an event and the number of a conjunction, flagged `NEEDS_CHECK` where the words
that a part compared do not decide. Leaves: the pairs that hold. A candidate is verified against all
of its conditions in the stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    NEEDS_CHECK,
    NUMBER,
    Cells,
    Codes,
    Numbers,
    Scalar,
    Stream,
)
from tocsin.engines.auto.stream_kernels import conjunction_holds
from tocsin.jit import inlined, inner, kernel, prefetch_row

_TOGETHER = 256
"""How many pairs are prefetched, then verified, at a time."""


@inlined
def fill_row(codes: Codes, rows: Cells, event: Scalar, row: Cells) -> None:
    """Write the cells of an event; `rows` is empty where codes are cells."""
    for a in range(len(row)):
        row[a] = rows[event, a] if len(rows) > 0 else codes[event, a]


@inner
def verify_event(
    stream: Stream, cells: Cells, out: Numbers, first: Scalar, last: Scalar, base: Scalar
) -> Scalar:
    """Verify the candidates `out[first:last]` of an event in place; return the end of the matches.

    Numbers in `out` have `base` added."""
    n = first
    for i in range(first, last):
        number = out[i]
        holds = True
        if number >= NEEDS_CHECK:
            number &= ~NEEDS_CHECK
            holds = conjunction_holds(stream.words, np.int64(stream.start[number - base]), cells)
        out[n] = number
        n += holds
    return n


@kernel
def verify_ordered_pairs(
    stream: Stream,
    codes: Codes,
    rows: Cells,
    order: Cells,
    pair_event: Cells,
    pair_number: Numbers,
    first_pair: int,
    n: int,
) -> Any:
    """Verify the candidates of an ordered batch from `first_pair` to before n; return the new n.

    An unverified pair has the position of its event in the order, and gets the event itself. The
    words that a check reads are prefetched while other pairs are verified.
    """
    row = np.empty(codes.shape[1], np.int32)
    n_valid = np.int64(first_pair)
    for first in range(first_pair, n, _TOGETHER):
        last = min(first + _TOGETHER, n)
        for i in range(first if first == first_pair else last, min(last + _TOGETHER, n)):
            if pair_number[i] > NUMBER:
                prefetch_row(stream.start, np.int64(pair_number[i] & NUMBER))
        for i in range(first, last):
            if pair_number[i] > NUMBER:
                prefetch_row(stream.words, np.int64(stream.start[pair_number[i] & NUMBER]))
        for i in range(first, last):
            event, number = pair_event[i], pair_number[i]
            holds = True
            if number > NUMBER:
                number &= NUMBER
                fill_row(codes, rows, np.int64(event), row)
                holds = conjunction_holds(stream.words, np.int64(stream.start[number]), row)
                event = order[event]
            pair_event[n_valid] = event
            pair_number[n_valid] = number
            n_valid += holds
    return n_valid


@kernel
def verify_pairs(
    stream: Stream, rows: Cells, n: int, pair_event: Cells, pair_number: Numbers
) -> Any:
    """Verify n pairs in place; return how many hold. `rows` are the cells by event."""
    n_valid = np.int64(0)
    for i in range(n):
        event, number = pair_event[i], pair_number[i]
        holds = True
        if number >= NEEDS_CHECK:
            number &= NUMBER
            holds = conjunction_holds(stream.words, np.int64(stream.start[number]), rows[event])
        pair_event[n_valid] = event
        pair_number[n_valid] = number
        n_valid += holds
    return n_valid
