from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from tocsin.workloads import Market, workload
from tocsin_lab.workloads import Popularity

COMPARE = {
    "=": np.equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def column(table, name):
    return table[name].to_numpy()


def codes(column):
    """Dictionary indices of a column, with its dictionary."""
    encoded = column.combine_chunks()
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()


def matches_per_event(name, n_subscriptions, n_events):
    """Count matches by comparing every predicate row with every event, one event at a time."""
    chosen = workload(name)
    rows = chosen.subscription_rows(n_subscriptions)
    owner, value = column(rows, "id"), column(rows, "value")
    attribute, names = codes(rows["attribute"])
    op, ops = codes(rows["op"])
    sizes = np.bincount(owner)
    events = chosen.events(n_events)
    cells = np.stack([column(events, attribute_name) for attribute_name in names])
    counts = []
    for event in range(n_events):
        operand = cells[attribute, event]
        holds = np.zeros(len(value), np.bool_)
        for code, symbol in enumerate(ops):
            of_op = op == code
            if not of_op.any():
                continue
            holds[of_op] = COMPARE[symbol](operand[of_op], value[of_op])
        counts.append(np.count_nonzero(np.bincount(owner, holds) == sizes))
    return np.mean(counts)


def shapes(name, n):
    texts = workload(name).subscription_texts(n)["where"]
    return len(pc.unique(pc.replace_substring_regex(texts, r"\b[0-9.]+|'[^']*'", "?")))


def test_w0_texts_fix_two_attributes_and_choose_three_others():
    rows = workload("W0").subscription_rows(5_000)
    attribute, _ = codes(rows["attribute"])
    by_subscription = attribute.reshape(-1, 5)
    assert (by_subscription[:, :2] == [0, 1]).all()
    free = np.sort(by_subscription[:, 2:], axis=1)
    assert free.min() == 2
    assert free.max() == 31
    assert (free[:, 1:] > free[:, :-1]).all()
    assert set(column(rows, "value").tolist()) == set(range(1, 36))


def test_w0_texts_come_in_24360_shapes():
    n = 50_000
    possible = 30 * 29 * 28
    expected = possible * (1 - (1 - 1 / possible) ** n)
    assert shapes("W0", n) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("name", "expected"), [("W1", 29), ("W2", 24), ("M", 2)])
def test_few_shapes_where_only_one_attribute_is_free(name, expected):
    assert shapes(name, 3_000) == expected


def test_every_t_text_has_a_shape_of_its_own():
    assert shapes("T", 3_000) == 3_000


def test_w1_and_w2_have_the_operators_of_the_paper():
    ops = {name: workload(name).subscription_rows(50)["op"].to_pylist() for name in ("W1", "W2")}
    assert ops["W1"] == ["=", "=", ">", "="] * 50
    assert ops["W2"] == ["=", "=", "<", "<", "<", "<", "<", ">", "="] * 50


def test_w0_events_have_all_32_attributes_uniform_from_1_to_35():
    events = workload("W0").events(7_000)
    assert events.num_columns == 32
    assert sum(c.null_count for c in events.columns) == 0
    counts = np.bincount(column(events, "a31"), minlength=36)
    assert counts[0] == 0
    assert len(counts) == 36
    assert counts[1:].min() > 130
    assert counts.max() < 270


def test_t_events_have_100_of_1000_attributes():
    events = workload("T").events(300)
    present = np.stack([c.is_valid().to_numpy() for c in events.columns])
    assert present.shape == (1000, 300)
    assert (present.sum(axis=0) == 100).all()
    assert present.sum(axis=1).min() > 5
    values = np.concatenate([c.drop_null().to_numpy() for c in events.columns])
    assert 0 <= values.min() < 0.001
    assert 0.999 < values.max() <= 1


@pytest.mark.parametrize(("name", "n_ranges", "width"), [("T", 10, 0.01), ("TW", 5, 0.3)])
def test_ranges_have_one_width_and_lie_inside_the_unit_interval(name, n_ranges, width):
    rows = workload(name).subscription_rows(2_000)
    bounds = column(rows, "value").reshape(-1, 2)
    attribute, _ = codes(rows["attribute"])
    assert len(bounds) == 2_000 * n_ranges
    assert (attribute.reshape(-1, 2)[:, 0] == attribute.reshape(-1, 2)[:, 1]).all()
    assert np.allclose(bounds[:, 1] - bounds[:, 0], width)
    assert bounds.min() >= 0
    assert bounds.max() <= 1
    of_subscription = np.sort(attribute.reshape(-1, 2 * n_ranges)[:, ::2], axis=1)
    assert (of_subscription[:, 1:] > of_subscription[:, :-1]).all()


def test_tw_events_match_0_3_to_the_fifth_of_the_subscriptions():
    assert matches_per_event("TW", 10_000, 40) == pytest.approx(10_000 * 0.3**5, rel=0.1)


def test_g_events_match_as_many_as_the_popularities_say():
    likely = Popularity("G").likelihoods
    expected = 10_000 * np.prod(1 - likely + likely / 5)
    assert matches_per_event("G", 10_000, 150) == pytest.approx(expected, rel=0.2)


def test_g_attributes_decay_geometrically_and_values_by_zipf():
    rows = workload("G").subscription_rows(20_000)
    attribute, _ = codes(rows["attribute"])
    tests = np.bincount(attribute, minlength=30) / 20_000
    assert tests == pytest.approx(0.98 * 0.85 ** np.arange(30), abs=0.01)
    values = np.bincount(column(rows, "value"))[1:]
    assert values / values[0] == pytest.approx(1 / np.arange(1, 6), rel=0.05)


def m_matches_per_event(n_subscriptions, n_events):
    """Count the matches firm by firm, each quote against each subscription of its firm."""
    chosen = workload("M")
    events = chosen.events(n_events).to_pandas().groupby("firm")
    n_matches = 0
    for table in chosen.subscription_params(n_subscriptions):
        watched = table.to_pandas().groupby("firm")
        for firm in events.groups.keys() & watched.groups.keys():
            quotes, ranges = events.get_group(firm), watched.get_group(firm)
            price = quotes["price"].to_numpy()[:, None]
            holds = (ranges["low"].to_numpy() <= price) & (price <= ranges["high"].to_numpy())
            if "volume" in ranges:
                holds &= quotes["volume"].to_numpy()[:, None] > ranges["volume"].to_numpy()
            n_matches += holds.sum()
    return n_matches / n_events


def test_m_events_match_about_three_in_a_thousand_subscriptions():
    assert 300 < m_matches_per_event(100_000, 1_000) < 350


def test_half_of_the_m_subscriptions_ask_for_a_volume():
    plain, with_volume = workload("M").subscription_params(10_000)
    assert len(plain) + len(with_volume) == 10_000
    assert len(with_volume) == pytest.approx(5_000, rel=0.05)


def test_m_prices_stay_within_five_percent_of_the_level_of_their_firm():
    chosen = Market("M")
    plain, _ = chosen.subscription_params(5_000)
    events = chosen.events(5_000, seed=9)
    level = dict(zip(chosen.firms, chosen.levels / 100, strict=True))
    for table, low, high in ((plain, "low", "high"), (events, "price", "price")):
        levels = np.array([level[f] for f in table["firm"].to_pylist()])
        assert (column(table, low) >= 0.95 * levels - 1e-9).all()
        assert (column(table, high) <= 1.05 * levels + 1e-9).all()
        assert (column(table, low) <= column(table, high)).all()


def test_m_firms_are_popular_by_zipf_with_both_sides():
    chosen = workload("M")
    for table in (chosen.events(20_000), chosen.subscription_params(40_000)[0]):
        share = table["firm"].value_counts().to_pylist()
        counts = {each["values"]: each["counts"] for each in share}
        assert counts["F000"] / counts["F001"] == pytest.approx(2, rel=0.1)
        assert len(counts) > 480
