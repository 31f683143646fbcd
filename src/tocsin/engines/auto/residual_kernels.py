"""Candidate pairs → those within a circle, compiled.

Enters: candidates by event, the circles of tests, and the places of events as points on the unit
sphere. Leaves: the candidates that are in their circles, in place, and marks where the squared
chord is too close to the bound to decide.
"""

from __future__ import annotations

from typing import Any

from tocsin.engines.auto.arrays import Cells, Flags, Integers, Numbers, Scalar
from tocsin.jit import inlined, kernel, prefetch_row

_AHEAD = 16
"""How many candidates ahead the circle is prefetched."""


@inlined
def _test_of(of: Cells, number: Scalar) -> Scalar:
    return of[number] if len(of) > 0 else number


@kernel
def keep_near(
    offsets: Integers,
    numbers: Numbers,
    of: Cells,
    circles: Any,
    x: Any,
    y: Any,
    z: Any,
    new_offsets: Integers,
    unsure: Flags,
) -> Scalar:
    """Keep the candidates in their circles, and those without; return how many are unsure."""
    n, n_unsure, total = 0, 0, len(numbers)
    for event in range(len(offsets) - 1):
        for i in range(offsets[event], offsets[event + 1]):
            if i + _AHEAD < total:
                ahead = _test_of(of, numbers[i + _AHEAD])
                if ahead >= 0:
                    prefetch_row(circles, 8 * ahead)
            number = numbers[i]
            test = _test_of(of, number)
            is_unsure, is_near = False, True
            if test >= 0:
                row = 8 * test
                dx, dy = x[event] - circles[row], y[event] - circles[row + 1]
                dz = z[event] - circles[row + 2]
                square = dx * dx + dy * dy + dz * dz
                is_near = square < circles[row + 4]
                is_unsure = is_near and square > circles[row + 3]
            numbers[n] = number
            unsure[n] = is_unsure
            n_unsure += is_unsure
            n += is_near
        new_offsets[event + 1] = n
    return n_unsure
