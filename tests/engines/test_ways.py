"""Each way in which a segment meets events finds what a plain evaluation does.

Each test first asserts that its workload does go the way it is about.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.engines.ways import (
    SHAPES,
    Held,
    any_predicate,
    column,
    first_rows,
    part,
    predicate,
)

import tocsin
from tocsin.encode.events import to_batch
from tocsin.engines.auto import bitmaps, groups, member_kernels, members, output
from tocsin.engines.auto import columns as column_part
from tocsin.engines.auto import plan as plans
from tocsin.engines.auto.arrays import (
    CHECK_AT_ENDS,
    CHECK_AT_ENDS2,
    NEEDS_CHECK,
    Coding,
    GroupCosts,
    Keys,
)
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.groups import Groups
from tocsin.engines.auto.members import Members
from tocsin.engines.auto.plan import Costs
from tocsin.jit import LANES

NO_BITMAPS = Costs(word=1e9)
ALL_BITMAPS = Costs(word=0.0, band=0.0)
SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]


def flags_of(held: Held) -> np.ndarray:
    return (held.segment.layout.entries[:, 1] >> np.uint64(32)).astype(np.uint32)


# Event by event.


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_residual", [0, 1, 2, 10])
def test_entries_with_any_number_of_residual_conditions(n_residual: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    texts = [
        " AND ".join(
            [predicate(random, "key", 30, "equal")]
            + [any_predicate(random, f"r{i}", 12) for i in range(n_residual)]
        )
        for _ in range(100)
    ]
    held = Held(texts, costs=NO_BITMAPS)
    assert not len(held.segment.layout.bitmaps.number)
    assert not len(held.segment.layout.columns.number)
    is_open = (flags_of(held) & NEEDS_CHECK) > 0
    assert is_open.any() == (n_residual > 0)
    names = ["key", *(f"r{i}" for i in range(n_residual))]
    events = pa.table({n: column(random, 300, 30 if n == "key" else 12) for n in names})
    n_found = held.check(events)
    assert n_found > 0 or n_residual == 10
    held.check_each(events.slice(0, 20))
    for size in (0, 1, 255, 256, 257):
        held.check(first_rows(events, size))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_condition_is_found_at_and_beside_its_bounds(shape: str) -> None:
    random = np.random.default_rng(4)
    for kind in ("number", "text", "moment"):
        texts = [predicate(random, "x", 8, shape, kind) for _ in range(10)]
        texts += [f"{text} AND y = {i % 3}" for i, text in enumerate(texts)]
        held = Held(texts, costs=NO_BITMAPS)
        events = {"x": column(random, 70, 8, kind), "y": column(random, 70, 3)}
        assert held.check(pa.table(events)) > 0
        assert held.check(pa.table({"x": events["x"]})) > 0
        assert held.check(pa.table({"z": events["x"]})) >= 0


@pytest.mark.slow
def test_codes_that_stand_for_several_cells_are_checked_at_their_ends() -> None:
    random = np.random.default_rng(5)
    n = 70_000
    low = random.permutation(n)
    texts = [f"k = {i % 300} AND x BETWEEN {low[i]} AND {low[i] + i % 5}" for i in range(40_000)]
    held = Held(texts, costs=NO_BITMAPS)
    coding = held.segment.coding
    assert not coding.is_exact.all()
    wide = Held([f"{text} AND y < {i % 7} AND z < 3" for i, text in enumerate(texts)])
    assert not wide.segment.coding.is_exact.all()
    chosen = random.integers(0, len(texts), 40)
    values = low[chosen] + random.integers(-1, 6, 40)
    columns = {"k": pa.array(chosen % 300), "x": pa.array(values.astype(np.float64))}
    some = pa.table({**columns, "y": column(random, 40, 7), "z": column(random, 40, 4, lacks=0.1)})
    assert held.check(some) > 0
    wide.check(some)


def test_entries_say_where_they_are_open_at_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both residual conditions are of codes that stand for several cells."""
    monkeypatch.setattr(column_part, "_MIN_ROWS", 10**9)
    random = np.random.default_rng(6)
    n = 34_000
    x, y = (random.permutation(n) * 3 for _ in range(2))
    texts = [
        f"x BETWEEN {x[i]} AND {x[i] + 1} AND y BETWEEN {y[i]} AND {y[i] + 90}" for i in range(n)
    ]
    held = Held(texts, costs=NO_BITMAPS)
    assert not held.segment.coding.is_exact.any()
    flags = flags_of(held)
    assert (flags & CHECK_AT_ENDS).all()
    assert (flags & CHECK_AT_ENDS2).all()
    assert not (flags & NEEDS_CHECK).any()
    chosen = np.repeat(random.integers(0, n, 10), 4)
    steps = np.array([-1, 0, 1, 45, 89, 90, 91])[random.integers(0, 7, 40)]
    columns = {"x": x[chosen] + np.arange(40) % 4 - 1, "y": y[chosen] + steps}
    assert held.check(pa.table(columns)) > 0


def test_subscriptions_without_attributes_match_each_event_once() -> None:
    for n in (1, 65, 512, 600):
        held = Held(["TRUE"] * n)
        assert (len(held.segment.layout.bitmaps.number) > 0) == (n >= 512)
        for size in (0, 1, 70):
            assert held.check(pa.table({"x": [1] * size})) == n * size
    mixed = Held(["TRUE"] * 600 + [f"x < {i}" for i in range(700)])
    mixed.check(pa.table({"x": [None, 0, 350, 800]}))


# Groups.


def grouped_texts(random: np.random.Generator, n: int, is_pointed: bool = False) -> list[str]:
    """Return texts that share two attributes; with points, each asks for five values."""
    texts = []
    for a, b, c, value, more, d, e in random.integers(0, [6, 5, 12, 10, 3, 2, 2], (n, 7)).tolist():
        text = f"a = {a} AND b = {b} AND c{c} = {value}"
        if is_pointed:
            text += f" AND d = {d} AND e = {e}"
        elif more:
            text += f" AND {any_predicate(random, 'd', 12)}"
            text += f" AND {any_predicate(random, 'e', 12)}" * (more == 2)
        texts.append(text)
    return texts


def grouped_events(
    random: np.random.Generator, n: int, most: int = 6, is_pointed: bool = False
) -> pa.Table:
    """Return events of which some lack an attribute of the prefix."""
    names = [f"c{i}" for i in range(12)]
    return pa.table(
        {
            "a": column(random, n, most, lacks=0.05, is_whole=True),
            "b": column(random, n, 5, lacks=0.05, is_whole=True),
            **{name: column(random, n, 10, lacks=0.3, is_whole=True) for name in names},
            "d": column(random, n, 2 if is_pointed else 12, is_whole=is_pointed),
            "e": column(random, n, 2 if is_pointed else 12, is_whole=is_pointed),
        }
    )


ALWAYS = GroupCosts(probe=1e9, far=0.0, check=1e9, few=0.0, many=0.0, mark=0.0, code=0.0)
NEVER = GroupCosts(probe=0.0, far=0.0, check=0.0, few=1.0, many=1.0, mark=1.0, code=1.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_pointed", [False, True], ids=["ranges", "points"])
@pytest.mark.parametrize("costs", [ALWAYS, NEVER, groups._COSTS], ids=["masks", "", "mix"])
def test_groups_of_events_find_the_same_with_masks_and_without(
    monkeypatch: pytest.MonkeyPatch, costs: GroupCosts, is_pointed: bool, seed: int
) -> None:
    monkeypatch.setattr(groups, "_MIN_EVENTS", 64)
    monkeypatch.setattr(groups, "_COSTS", costs)
    monkeypatch.setattr(column_part, "_MIN_ROWS", 10**9)
    random = np.random.default_rng(seed)
    held = Held(grouped_texts(random, 400, is_pointed), costs=NO_BITMAPS)
    assert held.segment.layout.grouped >= 0
    assert len(held.segment.layout.slots.of_entry)
    assert part(held.segment, Groups).is_pointed == is_pointed
    events = grouped_events(random, 257, is_pointed=is_pointed)
    n_found = 0
    for size in (63, 64, 65, 128, 257):
        assert part(held.segment, Groups).takes(size) == (size >= 64)
        n_found += held.check(first_rows(events, size))
    assert n_found > 0
    held.check(pa.table({"c1": [1] * 70}))  # none has the prefix
    held.check(grouped_events(random, 100, most=1_000))  # hardly any


@pytest.mark.parametrize("is_pointed", [False, True], ids=["ranges", "points"])
@pytest.mark.parametrize("size", [64, 65, 200, 512, 513, 576, 577, 1_100])
def test_one_group_of_any_size_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, size: int, is_pointed: bool
) -> None:
    monkeypatch.setattr(groups, "_MIN_EVENTS", 64)
    monkeypatch.setattr(groups, "_COSTS", ALWAYS)
    monkeypatch.setattr(column_part, "_MIN_ROWS", 10**9)
    random = np.random.default_rng(size)
    held = Held(grouped_texts(random, 900, is_pointed), costs=NO_BITMAPS)
    events = grouped_events(random, size, is_pointed=is_pointed)
    for name in ("a", "b"):
        at = events.column_names.index(name)
        events = events.set_column(at, name, pa.array(np.full(size, 2)))
    assert held.check(events) > 0


@pytest.mark.parametrize("costs", [ALWAYS, NEVER], ids=["masks", "one by one"])
@pytest.mark.parametrize("unsettled", [1, 100, 1 << 14])
def test_groups_go_on_where_room_ran_out_or_enough_was_open(
    monkeypatch: pytest.MonkeyPatch, costs: GroupCosts, unsettled: int
) -> None:
    monkeypatch.setattr(groups, "_MIN_EVENTS", 64)
    monkeypatch.setattr(groups, "_COSTS", costs)
    monkeypatch.setattr(output, "_MAX_UNVERIFIED", unsettled)
    monkeypatch.setattr(column_part, "_MIN_ROWS", 10**9)
    random = np.random.default_rng(unsettled)
    texts = [
        f"a = {i % 6} AND b = {i % 5} AND d < {4 + i % 8}" + more
        for i in range(600)
        for more in ("", f" AND d > 0 AND e > {i % 4} AND c1 < 6")
    ]
    held = Held(texts, costs=NO_BITMAPS)
    assert held.segment.layout.grouped >= 0
    assert part(held.segment, Groups).need_checks
    events = grouped_events(random, 400)
    for name, value in (("a", 2), ("b", 2)):
        at = events.column_names.index(name)
        events = events.set_column(at, name, pa.array(np.full(400, value)))
    assert held.check(events) > 4 * 400  # more than room is made for at first
    assert held.check(grouped_events(random, 200)) > 0


def test_large_batches_are_grouped_as_they_come() -> None:
    random = np.random.default_rng(9)
    held = Held(grouped_texts(random, 400), costs=NO_BITMAPS)
    events = grouped_events(random, 2_049)
    for size in (2_047, 2_048, 2_049):
        assert part(held.segment, Groups).takes(size) == (size >= 2_048)
        assert held.check(events.slice(0, size)) > 0


def test_groups_without_room_for_masks_go_event_by_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_MIN_EVENTS", 64)
    monkeypatch.setattr(groups, "_MAX_MASK_CODES", 10)
    random = np.random.default_rng(10)
    held = Held(grouped_texts(random, 600), costs=NO_BITMAPS)
    assert part(held.segment, Groups).takes(100)
    assert not len(held.segment.layout.slots.of_entry)
    assert held.check(grouped_events(random, 100)) > 0


def test_more_pairs_than_there_is_room_for_are_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_MIN_EVENTS", 64)
    monkeypatch.setattr(column_part, "_MIN_ROWS", 10**9)
    texts = [f"a = {i % 3} AND b = {i % 2} AND c{i % 4} = 1 AND d < {i}" for i in range(800)]
    events = pa.table({n: [0 if n in "ab" else 1] * 100 for n in ("a", "b", "c0", "c1", "c2", "d")})
    held = Held(texts, costs=NO_BITMAPS)
    assert part(held.segment, Groups).takes(100)
    assert held.check(events) > 4 * 100
    assert not part(held.segment, Groups).takes(100), "many matches are not worth ordering"
    assert held.check(events) > 4 * 100


def test_with_many_tables_it_pays_to_order_batches_that_match_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "_MIN_EVENTS", 64)
    texts = [f"a = {i % 3} AND b = {i % 2} AND c{i % 25} = {i % 7}" for i in range(6 * 25 * 7 * 2)]
    held = Held(texts, costs=NO_BITMAPS)
    names = ("a", "b", *(f"c{i}" for i in range(25)))
    events = pa.table({name: [i % 2 for i in range(200)] for name in names})
    for _ in range(2):  # without and with an idea of how many there are
        assert part(held.segment, Groups).takes(200)
        assert held.check(events) > 20 * 200


# Member by member.


def member_texts(random: np.random.Generator, n: int, n_attributes: int) -> list[str]:
    texts = []
    for i in range(n):
        names = random.choice(n_attributes, 1 + i % 4, replace=False)
        parts = [predicate(random, f"m{names[0]}", 50, "equal")]
        parts += [any_predicate(random, f"m{name}", 50) for name in names[1:]]
        texts.append(" AND ".join(parts))
    return texts


def member_events(random: np.random.Generator, n: int, n_attributes: int) -> pa.Table:
    return pa.table({f"m{a}": column(random, n, 50, lacks=0.7) for a in range(n_attributes)})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block", [7, 2_048])
def test_members_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, block: int, seed: int
) -> None:
    monkeypatch.setattr(members, "_BLOCK_EVENTS", block)
    random = np.random.default_rng(seed)
    held = Held(member_texts(random, 400, 130), costs=NO_BITMAPS)
    assert part(held.segment, Members)
    events = member_events(random, 257, 130)
    for size in (63, 64, 65, 257):
        assert held.check(first_rows(events, size)) > 0
    held.check_each(events.slice(0, 5))
    held.check(pa.table({"other": [1] * 64}))


def test_a_member_that_admits_absence_is_found_by_events_that_lack_it() -> None:
    random = np.random.default_rng(12)
    texts = [f"(m{i % 70} IS NULL OR m{i % 70} = {i % 9}) AND k{i % 3} = 1" for i in range(300)]
    texts += [f"m{i % 70} IS NULL AND m{(i + 1) % 70} = {i % 5}" for i in range(300)]
    texts += [f"m{i} IS NULL" for i in range(70)]
    held = Held(texts, costs=NO_BITMAPS)
    assert part(held.segment, Members)
    names = [*(f"m{i}" for i in range(70)), "k0", "k1", "k2"]
    events = pa.table({name: column(random, 80, 9, lacks=0.5) for name in names})
    assert held.check(events) > 0
    held.check(events.select(["m0", "m1", "k1"]))


def test_a_member_with_more_entries_than_are_looked_at_at_once() -> None:
    texts = [f"m{i} = 1" for i in range(70)] + [
        f"m0 = 1 AND m{1 + i % 69} < {i}" for i in range(1_500)
    ]
    held = Held(texts, costs=NO_BITMAPS)
    assert part(held.segment, Members)
    events = pa.table({f"m{i}": [1, None, 1_500] * 22 for i in range(70)})
    held.check(events.take([0, 1, 2] * 22))


@pytest.mark.slow
def test_a_family_of_many_members_whose_codes_stand_for_several_cells() -> None:
    random = np.random.default_rng(13)
    n = 36_000
    texts = [f"x = {2 * i} AND m{i % 70} < {i % 9}" for i in range(n)]
    texts += [f"m{i % 70} = {i % 300} AND x < {2 * i}" for i in range(0, n, 9)]
    held = Held(texts, costs=NO_BITMAPS)
    assert part(held.segment, Members)
    assert not held.segment.coding.is_exact.all()
    events = {f"m{i}": column(random, 64, 9, lacks=0.6) for i in range(70)}
    events["x"] = pa.array(random.integers(0, 2 * n, 64))
    held.check(pa.table(events))


# Columns.


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("kind", "other"),
    [
        *(("number", other) for other in ("", "below", "absent", "present", "range")),
        *((kind, other) for kind in ("text", "moment") for other in ("", "range")),
    ],
)
def test_windows_of_every_kind_with_another_condition(
    monkeypatch: pytest.MonkeyPatch, kind: str, other: str, seed: int
) -> None:
    monkeypatch.setattr(column_part, "_MIN_ROWS", 64)
    monkeypatch.setattr(column_part, "_MIN_CLUSTER", 2)
    random = np.random.default_rng(seed)
    texts = [
        f"firm = 'f{i % 9}' AND {predicate(random, 'x', 90, 'range', kind)}"
        + (f" AND {predicate(random, 'y', 20, other)}" if other and i % 10 else "")
        for i in range(300)
    ]
    held = Held(texts, costs=NO_BITMAPS)
    columns = held.segment.layout.columns
    assert len(columns.number) > 0
    events = pa.table(
        {
            "firm": [None if i % 7 == 6 else f"f{i % 11}" for i in range(130)],
            "x": column(random, 130, 90, kind, lacks=0.1),
            "y": column(random, 130, 20),
        }
    )
    assert held.check(events) > 0
    held.check_each(events.slice(0, 12))


def test_windows_that_stand_under_several_keys() -> None:
    random = np.random.default_rng(15)
    for shape in ("below", "above", "range", "present"):
        texts = [
            f"k IN ({i % 5}, {i % 7}) AND {predicate(random, 'x', 300, shape)}" for i in range(400)
        ] + [f"k = {i % 5} AND {any_predicate(random, 'x', 300)}" for i in range(40)]
        held = Held(texts, costs=NO_BITMAPS)
        assert len(held.segment.layout.columns.number) > 400
        events = pa.table({"k": column(random, 70, 7), "x": column(random, 70, 300)})
        assert held.check(events) > 0


def test_windows_beside_entries_that_do_not_fit() -> None:
    random = np.random.default_rng(16)
    texts = [f"firm = {i % 4} AND {predicate(random, 'x', 500, 'range')}" for i in range(1_000)]
    texts += [f"firm = {i % 4} AND {any_predicate(random, 'x', 500)}" for i in range(50)]
    texts += [f"firm = {i % 4} AND x < 100 AND y > 3 AND z <> {i}" for i in range(30)]
    held = Held(texts, costs=NO_BITMAPS)
    layout = held.segment.layout
    assert len(layout.columns.number)
    assert len(layout.entries)
    names = {"firm": 4, "x": 500, "y": 6, "z": 30}
    events = pa.table({name: column(random, 100, n) for name, n in names.items()})
    assert held.check(events) > 0


def test_the_room_for_matches_grows_in_the_middle_of_a_batch() -> None:
    texts = [f"firm = {i % 2} AND x >= {i}" for i in range(1_500)]
    held = Held(texts, costs=NO_BITMAPS)
    assert len(held.segment.layout.columns.number)
    values = [0, 1, 1_500, 5, 1_499, None] * 10
    assert held.check(pa.table({"firm": [0, 1] * 30, "x": values})) > 1024


class Spied(BufferPool):
    """A pool that remembers the longest array that was acquired."""

    most = 0

    def acquire(self, n: int, dtype: Any) -> Any:
        self.most = max(self.most, n)
        return super().acquire(n, dtype)


@pytest.mark.parametrize("costs", [NO_BITMAPS, ALL_BITMAPS], ids=["tables", "bitmaps"])
def test_an_event_that_matches_all_reserves_no_memory_for_a_batch_of_such(costs: Costs) -> None:
    pool = Spied()
    held = Held([f"x < {i} OR y = {i}" for i in range(1_000)], costs=costs, pool=pool)
    assert held.check(pa.table({"x": [-1]})) == 1_000
    events = to_batch(pa.table({"x": [2_000] * 40_000}))
    found = held.segment.match(PreparedBatch(events, held.segment.space))
    assert not len(found.values)
    assert pool.most <= 1 << 20


class Uneven(BufferPool):
    """A pool of arrays longer than acquired, some more so, which watches what lies behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[Any] = []

    def acquire(self, n: int, dtype: Any) -> Any:
        array = np.full((3 if np.dtype(dtype) == np.int32 else 1) * n + 999, 77, dtype)
        self.rests.append(array[-999:])
        return array[:-999]


@pytest.mark.parametrize("costs", [NO_BITMAPS, ALL_BITMAPS], ids=["tables", "bitmaps"])
def test_buffers_of_different_lengths_are_not_written_over(costs: Costs) -> None:
    pool = Uneven()
    held = Held([f"x < {i} AND y <> {i}" for i in range(1_000)], costs=costs, pool=pool)
    assert held.check(pa.table({"x": [-1] * 300, "y": [-1] * 300})) == 300_000
    assert all((rest == 77).all() for rest in pool.rests)


# Bitmaps.


def bitmap_texts(random: np.random.Generator, n: int, n_attributes: int) -> list[str]:
    return [
        " AND ".join(
            any_predicate(random, f"b{a}", 500 if a % 2 else 20)
            for a in random.choice(n_attributes, 1 + i % 4, replace=False)
        )
        for i in range(n)
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_attributes", [5, 30])
@pytest.mark.parametrize("n", [128, 150])
def test_bitmaps_of_full_and_other_words(
    monkeypatch: pytest.MonkeyPatch, n: int, n_attributes: int, seed: int
) -> None:
    """Of more than 64 bands, and more attributes in a word than are compared at once."""
    monkeypatch.setattr(plans, "_FEWEST_BITS", 128)
    random = np.random.default_rng(seed)
    held = Held(bitmap_texts(random, n, n_attributes), costs=ALL_BITMAPS)
    bitmaps = held.segment.layout.bitmaps
    assert len(held.content.ids) == n
    assert len(bitmaps.number) == -(-n // 64) * 64
    assert (held.segment.space.n_cells.max() > 64) == (n_attributes == 5)
    assert (np.diff(bitmaps.start).max() > 8) == (n_attributes == 30)
    assert (bitmaps.number & NEEDS_CHECK).any()
    events = {
        f"b{a}": column(random, 257, 500 if a % 2 else 20, lacks=0.4) for a in range(n_attributes)
    }
    for size in (0, 1, 255, 256, 257):
        held.check(first_rows(pa.table(events), size))
    held.check_each(pa.table(events).slice(0, 5))
    held.check(pa.table({"nothing": [1, 2]}))


def test_bitmaps_of_many_events_and_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitmaps, "_BLOCK_EVENTS", 100)
    texts = [f"x < {i}" for i in range(600)] + [f"y > {i} OR x > {i}" for i in range(300)]
    held = Held(texts, costs=ALL_BITMAPS)
    assert len(held.segment.layout.bitmaps.number) >= 512
    random = np.random.default_rng(18)
    events = pa.table({"x": column(random, 301, 600), "y": column(random, 301, 300)})
    for size in (99, 100, 101, 301):
        assert held.check(events.slice(0, size)) > 1024


# All together.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_profiled", [False, True])
def test_all_ways_in_one_segment(
    monkeypatch: pytest.MonkeyPatch, is_profiled: bool, seed: int
) -> None:
    monkeypatch.setattr(groups, "_MIN_EVENTS", 128)
    monkeypatch.setattr(plans, "_FEWEST_BITS", 64)
    random = np.random.default_rng(seed)
    texts = grouped_texts(random, 900) + member_texts(random, 900, 100)
    texts += [*bitmap_texts(random, 300, 9), "TRUE", "a IS NULL"]
    texts += [f"a = {i % 6} AND {predicate(random, 'x', 90, 'range')}" for i in range(900)]
    events = grouped_events(random, 200)
    parts = [events, member_events(random, 200, 100)]
    parts.append(pa.table({f"b{i}": column(random, 200, 100) for i in range(9)}))
    parts.append(pa.table({"x": column(random, 200, 90)}))
    whole = pa.table({n: part[n] for part in parts for n in part.column_names})
    held = Held(texts, whole if is_profiled else None)
    for size in (1, 63, 64, 127, 128, 200):
        held.check(first_rows(whole, size))
    held.check_each(whole.slice(0, 3))


@pytest.mark.slow
@pytest.mark.parametrize("n", [16_400, 66_000])
def test_more_attributes_than_fit_beside_a_form_or_into_an_entry(n: int) -> None:
    step = n // 200
    texts = [f"z{i} = 1 AND z{(i + 7 * step) % n} < 5 AND z{n - 1} <> 3" for i in range(0, n, step)]
    everything = " AND ".join(f"z{i} IS NOT NULL" for i in range(n))
    for costs in (NO_BITMAPS, None) if n < 20_000 else (None,):
        held = Held([everything, *texts, *(f"z{i} = 2" for i in range(n - 20, n))], costs=costs)
        rows = [{f"z{i}": 1 for i in range(0, n, step)}, {f"z{i}": 2 for i in range(n - 30, n)}]
        rows += [dict.fromkeys((f"z{i}" for i in range(n)), 1)]
        rows += [dict.fromkeys((f"z{i}" for i in range(n - 1)), 1), {}]
        assert held.check(rows) > 0
    m = tocsin.Matcher(merges=False)
    m.subscribe("all", everything)
    assert m.match(rows[2]) == ["all"]
    assert m.match(rows[3]) == []
    m.subscribe("one", f"z{n - 1} = 2")
    assert m.match(rows[1]) == ["one"]
    m.rebuild()
    assert [sorted(m.match(row)) for row in rows] == [[], ["one"], ["all"], [], []]


@pytest.mark.parametrize("n_attributes", [0xFFFE, 0xFFFF, 0x10000, 0x10001, 0x10000 + 100])
def test_presence_bits_of_more_attributes_than_sixteen_bits_count(n_attributes: int) -> None:
    """One event's bits say nothing of the next one's, and the last attributes are like others."""
    random = np.random.default_rng(n_attributes)
    edge = np.arange(n_attributes - 130, n_attributes)
    used = np.concatenate([np.arange(70), edge])
    member = np.sort(used)
    n = len(member)
    asked = used[used <= 0xFFFF]  # what an entry has bits for
    pairs = random.choice(asked, (n, 2))
    words = pairs.astype(np.uint64)
    entries = np.stack(
        [
            words[:, 0] | np.uint64(2 << 16) | words[:, 1] << np.uint64(48),
            np.uint64(2) | np.arange(n, dtype=np.uint64) << np.uint64(32),
        ],
        axis=1,
    )
    first = np.arange(n_attributes + 1, dtype=np.int64) * 3
    coding = Coding(
        np.full(n_attributes, 3),
        np.ones(n_attributes, np.bool_),
        np.ones(n_attributes, np.bool_),
        np.zeros(n_attributes, np.int64),
        first,
        np.tile(np.array([-1, -1, 0], np.int32), n_attributes),
        np.ones(n_attributes, np.int64),
    )
    none, zero = np.empty(0, np.int64), np.zeros(1, np.int64)
    keys = Keys(
        np.zeros(2, np.int64),
        none,
        np.array([0, n]),
        member,
        np.arange(n),
        first[member],
        zero,
        np.array([n]),
        np.arange(n + 1, dtype=np.uint32),
    )
    events = [set(random.choice(used, 60, replace=False).tolist()) for _ in range(40)]
    events[4:8] = [set(edge.tolist()), set(used[:70].tolist())] * 2
    is_there = np.zeros((n_attributes, len(events)), np.bool_)
    for e, event in enumerate(events):
        is_there[list(event), e] = True
    event_of = np.nonzero(is_there)[1].astype(np.int32)
    lookup = np.zeros(n + LANES, np.uint32)
    member_kernels.find_required(entries, n_attributes, lookup)
    found = np.empty(9_000, np.int32), np.empty(9_000, np.uint32)
    n_found = member_kernels.match_members(
        coding,
        keys,
        entries,
        lookup,
        0,
        np.concatenate([zero, np.cumsum(is_there.sum(axis=1))]),
        event_of,
        np.full(len(event_of), 2, np.int32),
        len(events),
        4,
        *found,
    )
    expected = {
        (e, i)
        for e, event in enumerate(events)
        for i, (a, b) in enumerate(pairs.tolist())
        if {int(member[i]), a, b} <= event
    }
    written = list(zip(found[0][:n_found].tolist(), found[1][:n_found].tolist(), strict=True))
    assert set(written) == expected
    assert len(written) == len(expected) > 100
