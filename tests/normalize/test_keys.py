"""Flat cuts: they keep the order of values exactly, and lead back to the cuts they came from."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.strategies import FLOATS, INTEGERS, STRINGS, TIMESTAMPS

from tocsin.model import INT64_MAX, INT64_MIN
from tocsin.normalize.domains import HIGH, LOW, Domain, cut_after, cut_before, tighten
from tocsin.normalize.keys import (
    HIGH_CUT,
    LOW_CUT,
    flatten_cut,
    float_keys,
    floats_of,
    integer_keys,
    key_of_number,
    number_of_key,
    unflatten_cut,
)

integers = st.one_of(st.sampled_from(INTEGERS), st.integers(INT64_MIN, INT64_MAX))
floats = st.one_of(
    st.sampled_from(FLOATS), st.floats(allow_nan=False, allow_infinity=True), integers.map(float)
)
numbers = st.one_of(integers, floats)
EDGES: list[int | float] = [*INTEGERS, *FLOATS, math.inf, -math.inf]


def flat(value: int | float) -> tuple[int, int]:
    """Return the flat cut just before a number, by the columnar functions."""
    if isinstance(value, int):
        keys, offsets = integer_keys(np.array([value], np.int64))
        return int(keys[0]), int(offsets[0])
    return int(float_keys(np.array([value], np.float64))[0]), 0


def no_string(_: Any) -> Any:
    raise AssertionError("only strings have ranks")


@given(numbers, numbers)
def test_flat_cuts_are_ordered_as_numbers_are(a: int | float, b: int | float) -> None:
    assert (flat(a) < flat(b)) is (a < b)
    assert (flat(a) == flat(b)) is (a == b)


def test_flat_cuts_are_ordered_as_numbers_are_at_the_edges() -> None:
    for a, b in itertools.product(EDGES, EDGES):
        assert (flat(a) < flat(b)) is (a < b), (a, b)
        assert (flat(a) == flat(b)) is (a == b), (a, b)


@given(numbers, numbers, st.sampled_from([0, 1]), st.sampled_from([0, 1]))
def test_the_side_of_a_cut_counts_less_than_its_number(
    a: int | float, b: int | float, a_side: int, b_side: int
) -> None:
    first, second = flat(a), flat(b)
    left, right = (first[0], first[1] + a_side), (second[0], second[1] + b_side)
    assert (left < right) is ((a, a_side) < (b, b_side))


@given(numbers)
def test_a_number_has_the_same_flat_cut_alone_as_in_a_column(value: int | float) -> None:
    assert key_of_number(value) == flat(value)


@given(numbers, st.sampled_from([0, 1]))
def test_numbers_come_back_from_their_flat_cuts(value: int | float, side: int) -> None:
    key, offset = key_of_number(value)
    back = number_of_key(key, offset + side)
    assert back == value
    if isinstance(value, int):
        assert isinstance(back, int)


@given(st.lists(floats))
def test_floats_come_back_from_their_keys(values: list[float]) -> None:
    column = np.array(values, np.float64)
    assert np.array_equal(floats_of(float_keys(column)), column)


def test_minus_zero_and_zero_are_one() -> None:
    assert float_keys(np.array([-0.0, 0.0])).tolist() == [0, 0]
    assert key_of_number(-0.0) == key_of_number(0) == (0, 0)


@given(st.lists(integers, max_size=20))
def test_integers_are_flattened_by_the_column(values: list[int]) -> None:
    keys, offsets = integer_keys(np.array(values, np.int64))
    assert keys.dtype == np.int64
    assert offsets.dtype == np.int16
    assert list(zip(keys.tolist(), offsets.tolist(), strict=True)) == [*map(key_of_number, values)]


def test_offsets_have_room_for_every_integer_between_two_floats() -> None:
    below = int(math.nextafter(2.0**63, 0))
    for value in (INT64_MAX, INT64_MAX - 1, below, below + 1, -below - 1, INT64_MIN + 1):
        key, offset = key_of_number(value)
        assert 0 <= offset + 1 <= np.iinfo(np.int16).max
        assert number_of_key(key, offset) == value


CUTS = {
    Domain.NUMBER: [cut(Domain.NUMBER, v) for v in EDGES for cut in (cut_before, cut_after)],
    Domain.STRING: [cut(Domain.STRING, v) for v in STRINGS for cut in (cut_before, cut_after)],
    Domain.BOOLEAN: [
        cut(Domain.BOOLEAN, v) for v in (False, True) for cut in (cut_before, cut_after)
    ],
    Domain.TIMESTAMP: [
        cut(Domain.TIMESTAMP, v) for v in TIMESTAMPS for cut in (cut_before, cut_after)
    ],
}


@pytest.mark.parametrize("domain", Domain, ids=lambda domain: domain.name.lower())
def test_cuts_of_every_domain_come_back_and_keep_their_order(domain: Domain) -> None:
    cuts = [*CUTS[domain], LOW[domain], HIGH[domain]]
    strings = sorted({key for key, _ in cuts if isinstance(key, str)})
    pairs = [flatten_cut(domain, cut, strings.index) for cut in cuts]
    assert [unflatten_cut(domain, *pair, strings.__getitem__) for pair in pairs] == cuts
    for (a, flat_a), (b, flat_b) in itertools.product(zip(cuts, pairs, strict=True), repeat=2):
        assert (flat_a < flat_b) is (a < b), (a, b)


@given(numbers, st.sampled_from([cut_before, cut_after]))
def test_cuts_of_numbers_come_back(value: int | float, make: Any) -> None:
    cut = make(Domain.NUMBER, value)
    assert (
        unflatten_cut(Domain.NUMBER, *flatten_cut(Domain.NUMBER, cut, no_string), no_string) == cut
    )


@given(numbers, st.sampled_from([cut_before, cut_after]))
def test_tightened_cuts_come_back(value: int | float, make: Any) -> None:
    cut = tighten(make(Domain.NUMBER, value))
    assert (
        unflatten_cut(Domain.NUMBER, *flatten_cut(Domain.NUMBER, cut, no_string), no_string) == cut
    )


@pytest.mark.parametrize("domain", Domain, ids=lambda domain: domain.name.lower())
def test_the_ends_are_the_same_pairs_on_every_domain(domain: Domain) -> None:
    assert flatten_cut(domain, LOW[domain], no_string) == LOW_CUT
    assert flatten_cut(domain, HIGH[domain], no_string) == HIGH_CUT
    assert unflatten_cut(domain, *LOW_CUT, no_string) == LOW[domain]
    assert unflatten_cut(domain, *HIGH_CUT, no_string) == HIGH[domain]
