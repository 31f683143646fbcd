"""The rows of a write buffer against events, compiled. See `write_buffer.Rows` and `Values`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import Cells, Integers, Numbers
from tocsin.jit import inlined, kernel

Matrix = NDArray[np.int64]

ABSENT_CODE = 0
OTHER_CODE = 1
FIRST_CODE = 2
FLOAT_CODE = 6
ABSENT_FLAG = 1
PRESENT_FLAG = 2


@inlined
def _is_before(key: Any, offset: Any, other_key: Any, other_offset: Any) -> Any:
    """Whether a cut is at or before another one."""
    return (key < other_key) | ((key == other_key) & (offset <= other_offset))


@kernel
def match_rows(
    codes: Matrix,
    keys: Matrix,
    floats: NDArray[np.float64],
    rows: Matrix,
    conditions: Matrix,
    pieces: Matrix,
    limit: int,
    first_event: int,
    event: Cells,
    number: Numbers,
) -> Any:
    """Write the pairs of an event and one of the first `limit` rows that it satisfies.

    Returns the number of pairs and the event to go on from: the arrays have all pairs of the events
    before it.
    """
    n, n_slots = np.int64(0), codes.shape[1]
    domain, key = np.empty(n_slots, np.int64), np.empty(n_slots, np.int64)
    offset = np.empty(n_slots, np.int64)
    bits: Integers = np.empty(1, np.float64).view(np.int64)
    as_float = bits.view(np.float64)
    for e in range(first_event, len(codes)):
        if n + limit > len(event):
            return n, np.int64(e)
        for slot in range(n_slots):
            code = codes[e, slot]
            if code == FLOAT_CODE:
                value = floats[e, slot] + 0.0
                as_float[0] = value
                key[slot] = bits[0] if bits[0] >= 0 else bits[0] ^ np.int64(0x7FFFFFFFFFFFFFFF)
                domain[slot], offset[slot] = FIRST_CODE, 0
                if value != value:
                    domain[slot] = OTHER_CODE
            else:
                domain[slot], offset[slot], key[slot] = code & 7, code >> 3, keys[e, slot]
        for r in range(limit):
            is_match = True
            for c in range(rows[r, 0], rows[r, 1]):
                slot, flags = conditions[c, 0], conditions[c, 1]
                own, own_key, own_offset = domain[slot], key[slot], offset[slot]
                if own == ABSENT_CODE:
                    is_match = (flags & ABSENT_FLAG) != 0
                elif (flags & PRESENT_FLAG) == 0:
                    is_match = False
                    for p in range(conditions[c, 2], conditions[c, 3]):
                        if (
                            pieces[p, 0] + FIRST_CODE == own
                            and _is_before(pieces[p, 1], pieces[p, 2], own_key, own_offset)
                            and not _is_before(pieces[p, 3], pieces[p, 4], own_key, own_offset)
                        ):
                            is_match = True
                            break
                if not is_match:
                    break
            event[n], number[n] = e, r
            n += is_match
    return n, np.int64(len(codes))
