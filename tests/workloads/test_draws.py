from __future__ import annotations

import numpy as np
import pytest

from tocsin.workloads.draws import below, by_steps, distinct, draw, zipf_steps


@pytest.mark.parametrize("width", [1, 3, 4, 5, 8])
def test_a_row_is_the_same_whatever_rows_are_drawn_with_it(width):
    whole = draw(7, "stream", 0, 50, width)
    assert np.array_equal(whole[13:29], draw(7, "stream", 13, 16, width))


def test_draws_lie_in_the_unit_interval_and_differ_by_seed_stream_and_row():
    units = draw(1, "a", 0, 10_000, 4)
    assert 0 <= units.min() < 0.001
    assert 0.999 < units.max() < 1
    assert abs(units.mean() - 0.5) < 0.01
    assert len(np.unique(units)) == units.size
    assert not np.isin(units, draw(2, "a", 0, 10_000, 4)).any()
    assert not np.isin(units, draw(1, "b", 0, 10_000, 4)).any()


def test_the_first_draws_never_change():
    assert draw(0, "stream", 0, 1, 2).tolist() == [[0.9430614933158573, 0.5070076625452501]]


def test_the_greatest_unit_stays_below_every_limit():
    greatest = np.array([1 - 2.0**-53])
    limits = [*range(1, 2000), 10**6 + 1, 2**31, 2**52]
    assert all(below(greatest, limit)[0] == limit - 1 for limit in limits)


def test_distinct_draws_are_distinct_uniform_and_in_random_order():
    chosen = distinct(draw(0, "d", 0, 30_000, 3), 6)
    assert (np.sort(chosen, axis=1)[:, 1:] > np.sort(chosen, axis=1)[:, :-1]).all()
    orders, counts = np.unique(chosen, axis=0, return_counts=True)
    assert len(orders) == 6 * 5 * 4
    assert counts.min() > 170
    assert counts.max() < 330


def test_choosing_all_is_a_permutation():
    chosen = distinct(draw(0, "d", 0, 5, 9), 9)
    assert (np.sort(chosen, axis=1) == np.arange(9)).all()


def test_shares_by_zipf_fall_with_the_rank():
    ranks = by_steps(draw(0, "z", 0, 100_000, 1)[:, 0], zipf_steps(10, 1.0))
    counts = np.bincount(ranks, minlength=10)
    assert len(counts) == 10
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.05)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.08)
