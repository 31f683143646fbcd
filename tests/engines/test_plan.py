"""The planner of `auto`: what it may cost, and where it puts subscriptions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import tocsin
from tocsin.encode.events import to_batch
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.content import from_table
from tocsin.engines.auto.plan import _cumulated, _make_coding, _selectivities, max_keys
from tocsin.engines.auto.plan_kernels import find_key_shares
from tocsin.engines.auto.segment import Segment
from tocsin.normalize.bulk import normalize_texts


def segment_of(texts: list[str], events: object = None) -> Segment:
    """Build a segment, planned for some events."""
    sample = None if events is None else to_batch(events)
    return Segment.build(from_table(normalize_texts(pa.array(texts)).table), sample)


def test_many_values_on_many_attributes_ask_for_no_more_keys_than_allowed() -> None:
    rng = np.random.default_rng(1)
    texts = [
        f"user = {u} AND item = {i} AND shop = {s}"
        for u, i, s in rng.integers(0, 20_000, (20_000, 3)).tolist()
    ]
    segment = segment_of(texts)
    segment.check()
    assert len(segment.layout.keys.start) <= 2 * max_keys(len(texts))


def test_subscriptions_that_share_two_equalities_are_kept_under_both_and_a_third() -> None:
    rng = np.random.default_rng(2)
    texts = [
        f"a = {v[0]} AND b = {v[1]} AND c{v[3] % 5} = {v[2]}"
        for v in rng.integers(0, 30, (20_000, 4)).tolist()
    ]
    segment = segment_of(texts)
    names = [{segment.space.attributes[a] for a in prefix} for prefix in segment.prefixes]
    assert {"a", "b"} in names
    assert all("c" in line for line in segment.explain(7))


@pytest.mark.parametrize("constant", ["kind", "place"])
def test_a_profile_moves_subscriptions_to_the_attribute_that_tells_events_apart(
    constant: str,
) -> None:
    texts = [f"kind = {i % 50} AND place = {i // 50}" for i in range(2_500)]
    events = [{"kind": i % 50, "place": i // 50} | {constant: 7} for i in range(2_500)]
    segment = segment_of(texts, events)
    telling = "place" if constant == "kind" else "kind"
    assert all(telling in segment.explain(i)[0] for i in range(0, 2_500, 100))
    found = segment.match(PreparedBatch(to_batch([{"kind": 3, "place": 7}]), segment.space))
    assert found.values.tolist() == [7 * 50 + 3]


def test_matching_stays_right_after_a_profile() -> None:
    m = tocsin.Matcher()
    for i in range(500):
        m.subscribe(i, f"kind = {i % 10} AND place = {i // 10} AND price > {i % 7}")
    events = [{"kind": i % 10, "place": i % 50, "price": float(i % 9)} for i in range(300)]
    before = [sorted(ids, key=str) for ids in m.match_batch(events)]
    m.profile(events)
    m.subscribe("late", "kind = 3")
    m.unsubscribe("late")
    for i in range(500, 1200):
        m.subscribe(i, "kind = -1")
    assert [sorted(ids, key=str) for ids in m.match_batch(events)] == before
    m.check()


def test_a_range_costs_what_events_have_in_all_the_groups_of_cells_that_it_covers() -> None:
    rng = np.random.default_rng(3)
    texts = [f"a BETWEEN {v} AND {v + 99}" for v in rng.integers(0, 9_000, 5_000).tolist()]
    texts += [f"(a < {v} OR a > {v + 50}) AND b > {v}" for v in range(5)]
    content = from_table(normalize_texts(pa.array(texts)).table)
    conditions, space = content.conditions, content.space
    coding, _ = _make_coding(conditions, space.n_cells)
    shares = [rng.dirichlet(np.ones(n)) for n in space.n_cells.tolist()]
    first, below = _cumulated(shares)
    found = _selectivities(conditions, first, below)
    find_key_shares(coding, conditions, first, below, found)
    for i in range(0, len(found), 37):
        a = conditions.attribute[i]
        digit = coding.digit[coding.first[a] : coding.first[a] + space.n_cells[a]]
        held = np.zeros(len(digit), np.bool_)
        for r in range(conditions.range_start[i], conditions.range_start[i + 1]):
            held[conditions.low[r] : conditions.high[r]] = True
        covered = np.isin(digit, np.unique(digit[held & (digit >= 0)]))
        assert found[i] == pytest.approx(shares[a][covered | held].sum(), abs=1e-9)


def test_where_many_attributes_serve_alike_subscriptions_gather_on_some_of_them() -> None:
    rng = np.random.default_rng(4)
    chosen = np.argsort(rng.random((20_000, 200)), axis=1)[:, :10]
    low = rng.integers(0, 9_900, chosen.shape)
    texts = [
        " AND ".join(f"a{a} BETWEEN {v} AND {v + 99}" for a, v in zip(row, values, strict=True))
        for row, values in zip(chosen.tolist(), low.tolist(), strict=True)
    ]
    segment = segment_of(texts)
    segment.check()
    keys, n = segment.layout.keys, len(segment.layout.entries)
    first = [keys.start[keys.base[0] + offset] for offset in keys.member_offset]
    sizes = np.sort(np.diff([*first, n]))[::-1]
    assert sizes[:150].sum() > 0.99 * n
