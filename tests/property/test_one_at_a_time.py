"""Rules that come one at a time: whatever is done in between, answers are those of the oracle.

Limits are drawn small, so that subscriptions go from the write buffer to the index and back between
any two calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.property.samples import WORLDS, to_table
from tests.property.strategies import (
    MIXED,
    NUMERIC,
    STRINGY,
    TYPED,
    Seeded,
    World,
    choose,
    event,
    expression,
    one_in,
)

import tocsin
from tocsin.encode.events import to_batch
from tocsin.engines import auto
from tocsin.engines.auto import pending, write_buffer
from tocsin.engines.auto.pending import join_tables
from tocsin.engines.auto.write_buffer import BufferSnapshot, WriteBuffer
from tocsin.language import print_expression
from tocsin.loading import prepare
from tocsin.matcher import Matcher
from tocsin.normalize.table import ConjunctionTable, stack

WORLDS_OF_RULES = {"typed": TYPED, "mixed": MIXED, "numeric": NUMERIC, "stringy": STRINGY}
LIMITS: tuple[dict[str, int], ...] = (
    {},
    {"MAX_ROWS": 8},
    {"_MAX_COMPARED": 200},
    {"MAX_ROWS": 20, "_MAX_COMPARED": 60, "_MAX_PENDING": 12},
    {"_MAX_ATTRIBUTES": 3},
    {"_LABEL_STEP": 4},
)


def limit(monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]) -> None:
    for name, value in limits.items():
        for module in (auto, pending, write_buffer):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def act(source: Seeded, world: World, matchers: tuple[Matcher, ...], ids: list[int]) -> None:
    """Make one change, the same to all matchers."""
    dice, condition = source.below(10), expression(source, world, depth=2)
    if dice < 6 or not ids:
        new = max(ids, default=-1) + 1 + source.below(3)
        for matcher in matchers:
            matcher.subscribe(new, condition)
        ids.append(new)
    elif dice < 7:
        old = choose(source, ids)
        for matcher in matchers:
            matcher.update(old, condition)
    elif dice < 9:
        old = ids.pop(source.below(len(ids)))
        for matcher in matchers:
            matcher.unsubscribe(old)
    else:
        first = max(ids) + 1
        many = [expression(source, world, depth=1) for _ in range(source.below(90) + 1)]
        new_ids = list(range(first, first + len(many)))
        table = {"id": new_ids, "where": [print_expression(each) for each in many]}
        for matcher in matchers:
            matcher.subscribe_many(table)
        ids.extend(new_ids)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("name", WORLDS_OF_RULES)
def test_changes_and_matches_in_any_order_answer_as_the_oracle_does(
    monkeypatch: pytest.MonkeyPatch, name: str, limits: dict[str, int]
) -> None:
    limit(monkeypatch, limits)
    world = WORLDS_OF_RULES[name]
    source, ids = Seeded(len(name) + len(limits)), list[int]()
    matcher, oracle = tocsin.Matcher(), tocsin.Matcher(engine="oracle")
    n_matches = 0
    for _ in range(50):
        for _ in range(1 + source.below(4)):
            act(source, world, (matcher, oracle), ids)
        if one_in(source, 3):
            rows: Any = [event(source, world) for _ in range(1 + source.below(12))]
            if world is not MIXED and one_in(source, 2):
                rows = to_table(rows, world, source)
            expected = [sorted(found) for found in oracle.match_batch(rows)]
            assert [sorted(found) for found in matcher.match_batch(rows)] == expected
        row = event(source, world)
        found = matcher.match(row)
        n_matches += len(found)
        assert sorted(found) == sorted(oracle.match(row))
        assert len(set(found)) == len(found)
    matcher.check()
    assert n_matches > 30


def tables_of(world: World, source: Seeded, n: int) -> list[ConjunctionTable]:
    tables: list[ConjunctionTable] = []
    while len(tables) < n:
        table = prepare(expression(source, world, depth=2), None, None).table
        if table.n_conjunctions <= 20:
            table.subscription[:] = len(tables)
            tables.append(table)
    return tables


def buffer_of(tables: list[ConjunctionTable]) -> BufferSnapshot:
    buffer = WriteBuffer()
    for table in tables:
        assert buffer.append(table)
    return buffer.snapshot()


@pytest.mark.parametrize("name", WORLDS)
def test_the_buffer_holds_for_an_event_what_the_normal_forms_hold_with_a_kernel_or_without(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    world, source = WORLDS[name], Seeded(7)
    tables = tables_of(world, source, 120)
    rows = [event(source, world) for _ in range(60)]
    forms = [table.form(i) for i, table in enumerate(tables)]
    expected = [[i for i, form in enumerate(forms) if form.holds(row)] for row in rows]
    assert sum(map(len, expected)) > 300
    snapshot = buffer_of(tables)
    for way in ("kernel", "NumPy"):
        assert [sorted(set(snapshot.match_one(row).tolist())) for row in rows] == expected, way
        found: list[set[int]] = [set() for _ in rows]
        for at, dense in zip(*snapshot.match_batch(to_batch(rows)), strict=True):
            found[at].add(int(dense))
        assert [sorted(each) for each in found] == expected, way
        monkeypatch.setattr(snapshot, "_match", snapshot._match_without_kernels)


def test_a_snapshot_of_the_buffer_does_not_change_while_more_is_added() -> None:
    source, world = Seeded(3), STRINGY
    tables = tables_of(world, source, 100)
    rows = [event(source, world) for _ in range(30)]
    buffer = WriteBuffer()
    snapshots = []
    for table in tables:
        assert buffer.append(table)
        snapshot = buffer.snapshot()
        snapshots.append((snapshot, [snapshot.match_one(row).tolist() for row in rows]))
    for snapshot, then in snapshots:
        assert [snapshot.match_one(row).tolist() for row in rows] == then


def test_strings_that_leave_no_room_for_a_label_between_them_are_refused_and_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_buffer, "_LABEL_STEP", 4)
    buffer, n = WriteBuffer(), 0
    for i in range(20):
        table = prepare(f"s > '{'a' * (i + 1)}' AND s < 'b'", None, None).table
        before = buffer.snapshot().match_one({"s": "az"}).tolist()
        if not buffer.append(table):
            assert buffer.snapshot().match_one({"s": "az"}).tolist() == before
            break
        n += 1
    assert 0 < n < 20


@pytest.mark.parametrize("name", WORLDS)
def test_very_many_small_tables_are_joined_as_few_large_ones_are(name: str) -> None:
    tables = tables_of(WORLDS[name], Seeded(11), 60)
    joined = join_tables(tables)
    stacked = stack(tables, [0] * len(tables), len(tables))
    assert joined.attributes == stacked.attributes
    assert joined.patterns == stacked.patterns
    assert joined.vocabulary.equals(stacked.vocabulary)
    for field in (
        "subscription", "condition_start", "attribute", "flags", "piece_start", "domain", "low_key",
        "low_offset", "high_key", "high_offset", "pattern_condition", "pattern_id",
        "pattern_negated",
    ):  # fmt: skip
        mine, theirs = getattr(joined, field), getattr(stacked, field)
        assert mine.dtype == theirs.dtype, field
        assert np.array_equal(mine, theirs), field


def test_a_rule_is_visible_as_soon_as_subscribe_returns_and_gone_when_unsubscribe_does() -> None:
    matcher = tocsin.Matcher()
    matcher.subscribe_many({"id": range(1_000), "v": range(1_000)}, where="x = :v")
    assert matcher.match({"x": 5}) == [5]
    for i in range(1_000, 4_000):
        matcher.subscribe(i, f"x = {i % 50} AND y < {i}")
        assert i in matcher.match({"x": i % 50, "y": 3})
        if i % 3 == 0:
            matcher.unsubscribe(i)
            assert i not in matcher.match({"x": i % 50, "y": 3})
    assert len(matcher.match({"x": 7, "y": 3})) == 1 + len(
        [i for i in range(1_000, 4_000) if i % 50 == 7 and i % 3]
    )
