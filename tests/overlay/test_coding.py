"""Cells travel as bits: the same cells come out, in as few bytes as the paper says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.broker.overlay.coding import (
    code_range,
    code_value,
    decode_bounds,
    decode_range,
    decode_value,
    decompose,
    split,
)
from tocsin.errors import ArgumentError


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int, int]:
    level = draw(st.integers(0, 30))
    low = draw(st.integers(0, (1 << level) - 1))
    return low, draw(st.integers(low, (1 << level) - 1)), level


@given(ranges())
def test_a_range_is_made_up_of_two_cells_a_level_at_most(given: tuple[int, int, int]) -> None:
    low, high, level = given
    cells = decompose(low, high, level)
    spans = sorted((c << level - at, (c + 1) << level - at) for at, c in cells)
    assert spans[0][0] == low
    assert spans[-1][1] == high + 1
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    levels = [at for at, _ in cells]
    assert all(levels.count(at) <= 2 for at in levels)


@given(ranges())
def test_a_coded_range_is_decoded_as_it_was(given: tuple[int, int, int]) -> None:
    coded = code_range(*given)
    cells = decompose(*given)
    assert sorted(decode_range(coded)) == cells
    low, high, level = given
    left, right, last = decode_bounds(coded)
    assert (left << level - last, ((right + 1) << level - last) - 1) == (low, high)
    n_levels = cells[-1][0] - cells[0][0] + 1
    assert len(coded) <= 10 + (n_levels - 1) / 4


@given(st.lists(ranges()))
def test_coded_ranges_are_told_apart(given: list[tuple[int, int, int]]) -> None:
    coded = [code_range(*each) for each in given]
    assert list(split(b"".join(coded))) == coded


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 2**30 - 1))
def test_a_coded_value_is_decoded_as_it_was(a: int, b: int, leaf: int) -> None:
    first, last = min(a, b), max(a, b)
    leaf >>= 30 - last
    coded = code_value(leaf, first, last)
    assert decode_value(coded) == [(at, leaf >> (last - at)) for at in range(first, last + 1)]
    assert len(coded) <= 6 + (last - first + 7) // 8


@pytest.mark.parametrize("bad", [b"", b"\x10", b"\x08\x01\x02", b"\x04\xf0"])
def test_what_is_cut_off_is_refused(bad: bytes) -> None:
    for decode in (decode_range, decode_bounds):
        with pytest.raises(ArgumentError):
            decode(bad)
