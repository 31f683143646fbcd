"""The transitions of batches, from the matches before and after."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import tocsin
from tocsin import transitions
from tocsin.errors import ArgumentError

pytestmark = pytest.mark.slow


def test_batches_give_the_difference_of_their_matches() -> None:
    matcher = tocsin.Matcher()
    texts = [f"x BETWEEN {i} AND {i + 10}" for i in range(100)]
    matcher.subscribe_many({"id": [f"s{i}" for i in range(100)], "where": texts})
    random = np.random.default_rng(3)
    old, new = (pa.table({"x": random.integers(0, 120, 50)}) for _ in range(2))
    here = random.random(50) < 0.8
    found = transitions.of_batches(matcher, old, new, old_here=here).to_table()
    expected = []
    for row, (a, b, is_here) in enumerate(
        zip(old["x"].to_pylist(), new["x"].to_pylist(), here, strict=True)
    ):
        before = set(matcher.match({"x": a})) if is_here else set()
        after = set(matcher.match({"x": b}))
        expected += [("LEAVE", row, s) for s in before - after]
        expected += [("ENTER", row, s) for s in after - before]
    rows = [tuple(row.values()) for row in found.to_pylist()]
    assert sorted(rows) == sorted(expected)
    with pytest.raises(ArgumentError):
        transitions.of_batches(matcher, old, new.slice(1))


def test_changed_subscriptions_give_the_difference_too() -> None:
    before, after = tocsin.Matcher(), tocsin.Matcher()
    before.subscribe_many({"id": [1, 2, 3], "where": ["x > 1", "x > 2", "x > 3"]})
    after.subscribe_many({"id": [4, 3, 1], "where": ["x > 0", "x > 5", "x > 1"]})
    found = transitions.of_subscriptions(before, after, pa.table({"x": [1, 4, 6]})).to_table()
    rows = sorted(tuple(row.values()) for row in found.to_pylist())
    assert rows == [("ENTER", 0, 4), ("ENTER", 1, 4), ("ENTER", 2, 4), ("LEAVE", 1, 3)]


def test_ids_of_both_kinds_keep_their_kind_between_matchers() -> None:
    def matcher(where: str) -> tocsin.Matcher:
        m = tocsin.Matcher()
        m.subscribe(1, where)
        m.subscribe("1", "x = 2")
        m.subscribe("a", "x = 1")
        return m

    batch = pa.table({"x": [1]})
    same = transitions.of_subscriptions(matcher("x = 1"), matcher("x = 1"), batch)
    assert same.to_table().num_rows == 0
    changed = transitions.of_subscriptions(matcher("x = 1"), matcher("x = 2"), batch)
    assert changed.to_table().to_pylist() == [{"kind": "LEAVE", "row": 0, "subscription": "1"}]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.array([2**53 + 1, None]), pa.array([1.5, 2.0])),
        (pa.array([1.5, 2.0]), pa.array([2**53 + 1, None])),
        (pa.array([2**53 + 1, 7]), pa.array(["a", "b"])),
        (pa.array(["a", "b"], pa.string_view()), pa.array(["b", None], pa.string())),
        (pa.array([2**63 - 1, 1], pa.uint64()), pa.array([-1, 1], pa.int64())),
        (pa.array([Decimal("0.35"), None]), pa.array([0.35, 7.0])),
        (pa.array([{"y": 1}, None]), pa.array([7, 2**53 + 1])),
    ],
    ids=lambda column: str(column.type),
)
def test_a_column_of_two_types_keeps_its_values_in_each(old: pa.Array, new: pa.Array) -> None:
    m = tocsin.Matcher()
    texts = [f"x = {2**53 + 1}", f"x = {2.0**53}", "x = 'a'", "x > 1", "x = 0.35", "x = 7"]
    texts += ["x.y = 1", "x IS NULL", f"x = {2**63 - 1}", "x = -1"]
    m.subscribe_many({"id": range(len(texts)), "where": texts})
    tables = pa.table({"x": old}), pa.table({"x": new, "other": [1, 2]})
    before, after = (list(map(set, m.match_batch(table))) for table in tables)
    found = transitions.of_batches(m, *tables).to_table().to_pylist()
    for row in range(2):
        for kind, ids in (("LEAVE", before[row] - after[row]), ("ENTER", after[row] - before[row])):
            own = {t["subscription"] for t in found if (t["kind"], t["row"]) == (kind, row)}
            assert own == ids
