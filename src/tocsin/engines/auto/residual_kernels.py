"""Candidate pairs → the pairs that satisfy their tests, compiled.

Enters: candidates by event; the circles of tests and the places of events as points on the unit
sphere, or a program of arithmetic with the constants and ranges of tests. Leaves: the candidates
that satisfy their tests, in place; and marks where a squared chord is too close to the bound.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

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


COLUMN, CONSTANT, ADD, SUBTRACT, MULTIPLY, DIVIDE, NEGATE, ABSOLUTE, ROOT = range(9)
"""The steps of a program: what pushes a column or a constant, what replaces the last values."""
BLOCK = 256
"""How many pairs take a step together."""


@inlined
def _step(
    step: Scalar, which: Scalar, top: Scalar, n: Scalar, stack: Any, columns: Any, constants: Any,
    width: Scalar, event: Any, test: Any,
) -> Scalar:  # fmt: skip
    """Take a step for some pairs; return how many values are on the stack then."""
    if step == COLUMN:
        for j in range(n):
            stack[top, j] = columns[which, event[j]]
        return top + 1
    if step == CONSTANT:
        for j in range(n):
            stack[top, j] = constants[width * test[j] + which]
        return top + 1
    if step == NEGATE:
        for j in range(n):
            stack[top - 1, j] = -stack[top - 1, j]
        return top
    if step == ABSOLUTE:
        for j in range(n):
            stack[top - 1, j] = abs(stack[top - 1, j])
        return top
    if step == ROOT:
        for j in range(n):
            stack[top - 1, j] = math.sqrt(stack[top - 1, j])
        return top
    if step == ADD:
        for j in range(n):
            stack[top - 2, j] += stack[top - 1, j]
    elif step == SUBTRACT:
        for j in range(n):
            stack[top - 2, j] -= stack[top - 1, j]
    elif step == MULTIPLY:
        for j in range(n):
            stack[top - 2, j] *= stack[top - 1, j]
    else:
        for j in range(n):
            by = stack[top - 1, j]
            stack[top - 2, j] = stack[top - 2, j] / by if by != 0.0 else math.nan
    return top - 1


@kernel
def keep_within(
    offsets: Integers,
    numbers: Numbers,
    of: Cells,
    program: Any,
    columns: Any,
    constants: Any,
    width: Scalar,
    stack: Any,
    new_offsets: Integers,
) -> None:
    """Keep the candidates for which a program's result is in the range of their tests.

    `columns` are values of events, by column. A test has `width` numbers: its constants, and the
    ends of its range. Candidates without a test are kept. What is NaN is in no range.
    """
    n, at, total = 0, 0, len(numbers)
    event, test = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for start in range(0, total, BLOCK):
        size = min(BLOCK, total - start)
        for j in range(size):
            while offsets[at + 1] <= start + j:
                at += 1
            event[j] = at
            test[j] = max(_test_of(of, numbers[start + j]), 0)
            prefetch_row(constants, width * test[j])
        top = 0
        for i in range(len(program)):
            top = _step(
                program[i, 0], program[i, 1], top, size, stack, columns, constants, width,
                event, test,
            )  # fmt: skip
        ends = width - 2
        for j in range(size):
            low, high = constants[width * test[j] + ends], constants[width * test[j] + ends + 1]
            number = numbers[start + j]
            numbers[n] = number
            if (low <= stack[0, j] and stack[0, j] <= high) or _test_of(of, number) < 0:
                n += 1
                new_offsets[event[j] + 1] += 1
    for at in range(len(offsets) - 1):
        new_offsets[at + 1] += new_offsets[at]
