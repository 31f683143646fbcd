"""Kernels of conjunctions that are reached through the elements of a list.

Enters: the codes of the elements of each event, conjunctions by the code of their key, and what
else they require. Leaves: pairs of an event and a conjunction.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inner, kernel

Scalar = int
Codes = NDArray[np.int32]
Starts = NDArray[np.int64]


@inner
def _fits_cells(
    conjunction: Scalar,
    event: Scalar,
    start: Starts,
    attribute: Codes,
    range_start: Starts,
    low: Codes,
    high: Codes,
    cells: NDArray[np.int32],
) -> bool:
    """Whether the cells of an event satisfy the other conditions of a conjunction."""
    for at in range(start[conjunction], start[conjunction + 1]):
        cell = cells[attribute[at], event]
        fits = False
        for piece in range(range_start[at], range_start[at + 1]):
            if low[piece] <= cell < high[piece]:
                fits = True
                break
        if not fits:
            return False
    return True


@inner
def _fits_codes(
    place: Scalar,
    required_start: Starts,
    required: Codes,
    forbidden_start: Starts,
    forbidden: Codes,
    state: NDArray[np.uint8],
) -> bool:
    """Whether all required codes are there, and no forbidden one."""
    for at in range(required_start[place], required_start[place + 1]):
        if state[required[at]] == 0:
            return False
    for at in range(forbidden_start[place], forbidden_start[place + 1]):
        if state[forbidden[at]] != 0:
            return False
    return True


@inner
def _set_state(
    codes: Codes, begin: Scalar, end: Scalar, state: NDArray[np.uint8], value: Scalar
) -> None:
    for at in range(begin, end):
        if codes[at] >= 0:
            state[codes[at]] = value


@kernel
def match_elements(
    element_start: Starts,
    codes: Codes,
    posting_start: Starts,
    postings: Codes,
    second: Codes,
    required_start: Starts,
    required: Codes,
    forbidden_start: Starts,
    forbidden: Codes,
    has_cells: NDArray[np.bool_],
    start: Starts,
    attribute: Codes,
    range_start: Starts,
    low: Codes,
    high: Codes,
    cells: NDArray[np.int32],
    state: NDArray[np.uint8],
    first: Scalar,
    out: NDArray[np.uint32],
    offsets: Starts,
) -> Scalar:
    """Write the conjunctions of each event from the first on; return the event reached.

    Codes are -1 for elements without one. A conjunction is reached under one code, at a place
    among its postings; `second` is another code that it requires (or its own), which rules
    out most, and `required` are the rest; it has no element with a `forbidden` code. All that is
    by place, so that it is read in order. `has_cells` says whether there are other conditions;
    these are by conjunction. `state` is zero for each code.
    """
    n_events = len(element_start) - 1
    n = offsets[first]
    for event in range(first, n_events):
        begin, end = element_start[event], element_start[event + 1]
        _set_state(codes, begin, end, state, 1)  # there, and not yet looked up
        is_full = False
        for at in range(begin, end):
            code = codes[at]
            if code < 0 or state[code] != 1:
                continue
            state[code] = 2
            for place in range(posting_start[code], posting_start[code + 1]):
                if state[second[place]] == 0 or not _fits_codes(
                    place, required_start, required, forbidden_start, forbidden, state
                ):
                    continue
                if has_cells[place] and not _fits_cells(
                    postings[place], event, start, attribute, range_start, low, high, cells
                ):
                    continue
                if n == len(out):
                    is_full = True
                    break
                out[n] = postings[place]
                n += 1
        _set_state(codes, begin, end, state, 0)
        if is_full:
            return event
        offsets[event + 1] = n
    return n_events


@inner
def _some_element_fits(
    conjunction: Scalar,
    first: Scalar,
    last: Scalar,
    start: Starts,
    attribute: Codes,
    range_start: Starts,
    low: Codes,
    high: Codes,
    cells: NDArray[np.int32],
) -> bool:
    for element in range(first, last):
        if _fits_cells(conjunction, element, start, attribute, range_start, low, high, cells):
            return True
    return False


@kernel
def test_elements(
    offsets: Starts,
    numbers: NDArray[np.uint32],
    test_start: Starts,
    tests: Starts,
    form_start: Starts,
    start: Starts,
    attribute: Codes,
    range_start: Starts,
    low: Codes,
    high: Codes,
    element_start: Starts,
    cells: NDArray[np.int32],
    holds: NDArray[np.bool_],
) -> None:
    """Say which pairs of an event and a conjunction satisfy all tests of the conjunction.

    A test is satisfied where an element of the event satisfies one of the test's conjunctions,
    which are numbered from `form_start[test]` on; `cells` are those of the elements.
    """
    for event in range(len(offsets) - 1):
        first, last = element_start[event], element_start[event + 1]
        for pair in range(offsets[event], offsets[event + 1]):
            number = numbers[pair]
            fits = True
            for at in range(test_start[number], test_start[number + 1]):
                fits = False
                for conjunction in range(form_start[tests[at]], form_start[tests[at] + 1]):
                    if _some_element_fits(
                        conjunction, first, last, start, attribute, range_start, low, high, cells
                    ):
                        fits = True
                        break
                if not fits:
                    break
            holds[pair] = fits
