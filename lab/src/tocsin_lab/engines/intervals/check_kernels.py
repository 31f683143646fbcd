"""Candidates → matches, by their rows; compiled.

Enters: events, and for each the conjunctions that may match. Leaves: the ones that do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inlined, kernel
from tocsin_lab.engines.intervals.arrays import (
    ABSENT,
    HIGH,
    LOW,
    POINT,
    PRESENT,
    RUN,
    SIZE_BITS,
    SIZE_MASK,
    STRING,
    TAILS,
    WHAT,
    Events,
)


@inlined
def _holds(
    mark: Any, what: Any, low: Any, high: Any, tails: Any, kind: Any, key: Any, tail: Any
) -> Any:
    """Whether a value lies in a row."""
    row_kind = what & 0xFF
    if row_kind == POINT:
        return kind == STRING and key == low
    if row_kind == PRESENT:
        return kind != ABSENT
    if row_kind != kind:
        return False
    if row_kind == ABSENT:
        return True
    if kind == STRING:
        return mark[low] <= mark[key] and mark[key] < mark[high]
    if key < low or key > high:
        return False
    if key == low and tail < tails >> 16:
        return False
    return key < high or tail < tails & 0xFFFF


@kernel
def keep(
    rows: NDArray[np.int64],
    slots: NDArray[np.int64],
    mark: NDArray[np.int64],
    events: Events,
    ends: NDArray[np.int64],
    candidates: NDArray[np.int32],
) -> None:
    """Move the candidates that match together; `ends[e + 1]` is where those of event e end."""
    kinds, keys, value_tails = events.kind, events.key, events.offset
    n, first = ends[0], ends[0]
    for e in range(len(kinds)):
        last = ends[e + 1]
        for i in range(first, last):
            slot = np.int64(candidates[i])
            run = slots[slot, RUN]
            row, end = run >> SIZE_BITS, (run >> SIZE_BITS) + (run & SIZE_MASK)
            holds = True
            while row < end and holds:
                a = rows[row, WHAT] >> 8
                kind, key, tail = np.int64(kinds[e, a]), keys[e, a], np.int64(value_tails[e, a])
                holds = False
                while row < end and rows[row, WHAT] >> 8 == a:
                    what, low, high = rows[row, WHAT], rows[row, LOW], rows[row, HIGH]
                    holds = holds or _holds(
                        mark, what, low, high, rows[row, TAILS], kind, key, tail
                    )
                    row += 1
            if holds:
                candidates[n] = slot
                n += 1
        first = last
        ends[e + 1] = n
