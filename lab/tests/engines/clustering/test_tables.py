"""Tables over several attributes: costs by hand, the greedy choice, and dynamic maintenance."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from tests.engines.test_protocol import Bench

from tocsin.encode.events import to_batch
from tocsin_lab.engines.clustering.costs import Costs
from tocsin_lab.engines.clustering.dynamic import DynamicEngine
from tocsin_lab.engines.clustering.groups import decode, encode, groups_of
from tocsin_lab.engines.clustering.static import Problem, StaticEngine, choose_tables

PLAIN = Costs(
    table=2, hash=10, hash_attribute=3, check=1, check_predicate=0,
    table_bytes=100, entry_bytes=8, predicate_bytes=4,
)  # fmt: skip


def schemas(engine: StaticEngine | DynamicEngine) -> list[tuple[str, ...]]:
    return sorted(engine.schema_names(schema) for schema in engine.tables.values())


def static(bench: Bench) -> StaticEngine:
    bench.engine.explain(0)
    return cast(StaticEngine, bench.engine)


def dynamic(bench: Bench) -> DynamicEngine:
    return cast(DynamicEngine, bench.engine)


def pairs(n: int, values: int = 10) -> list[str]:
    """Return conditions on two attributes, each pair of values as often as the others."""
    return [f"a = {i % values} AND b = {i // values % values} AND x > {i}" for i in range(n)]


# The formulas.


def test_the_matching_cost_is_that_of_tables_and_of_checks() -> None:
    assert PLAIN.of_table(1.0, 2) == 2 + 10 + 2 * 3
    assert PLAIN.of_table(0.5, 2) == 2 + (10 + 2 * 3) / 2
    cost = PLAIN.matching([1.0, 0.5], [2, 2], [0.1, 0.1, 0.01], [3, 3, 2])
    assert cost == pytest.approx(18 + 10 + 0.21)
    each = Costs(table=0, hash=0, hash_attribute=0, check=1, check_predicate=0.5)
    assert each.matching([], [], [0.1, 0.2], [2, 0]) == pytest.approx(0.1 * 2 + 0.2 * 1)


def test_the_space_is_that_of_entries_and_of_predicates_left() -> None:
    assert PLAIN.space([5, 0], [2, 1, 0]) == 2 * 100 + 5 * 8 + 4 * (3 + 2 + 1)
    assert PLAIN.space([], []) == 0


def test_the_costs_of_the_papers_example_are_those_it_gives() -> None:
    """Example 3.1: events have A and B but not C, all attributes have 100 values."""
    probes = Costs(table=0, hash=1, hash_attribute=0, check=0, check_predicate=0)
    checks = Costs(table=0, hash=0, hash_attribute=0, check=1, check_predicate=0)
    third, hundred = 7e6 / 3, 1 / 100
    first = [third * hundred, third * hundred, 0.0]
    assert checks.matching([], [], first, [0, 0, 0]) == pytest.approx(46_600, rel=0.01)
    assert probes.matching([1, 1, 0], [1, 1, 1], first, [0, 0, 0]) == 2
    # Under A, B, C, AB, BC. The paper says 25,150 for A, B and AB.
    second = [1.5e6 / 100, 1e6 / 100, 0.0, 1.5e6 / 1e4, 0.0]
    assert checks.matching([], [], second, [0] * 5) == 25_150
    assert probes.matching([1, 1, 0, 1, 0], [1, 1, 1, 2, 2], second, [0] * 5) == 3


def test_schemas_are_coded_and_decoded() -> None:
    for schema in [(0, 1), (3, 17, 65_533), (0, 2, 4, 6)]:
        assert decode(encode(schema)) == schema


# The greedy algorithm.


def problem(bench: Bench, weight: float = 1.0) -> Problem:
    """Return the problem of the conjunctions of a bench, at even shares."""
    engine = static(bench)
    slots = np.arange(len(bench.live), dtype=np.int32)
    inputs = engine._problem(slots)
    return Problem(inputs.groups, inputs.share, inputs.n_left, inputs.size, inputs.presence, weight)


def test_groups_are_the_sets_of_two_to_four_equalities() -> None:
    bench = Bench("static")
    bench.insert(0, "a = 1 AND b = 1 AND c = 1 AND x > 1", "a = 1 AND b = 2", "a = 1", "x > 0")
    engine = static(bench)
    groups = engine._problem(np.arange(4, dtype=np.int32)).groups
    names = [engine.schema_names(decode(int(code))) for code in groups.codes]
    assert sorted(names) == [("a", "b"), ("a", "b", "c"), ("a", "c"), ("b", "c")]
    assert sorted(groups.conjunction.tolist()) == [0, 0, 0, 0, 1]
    of_b = groups.share[groups.schema == names.index(("a", "b"))]
    assert of_b.tolist() == [0.5, 0.5], "a has one value, b has two"
    assert len(groups.schema_of_key) == 5


def test_no_more_than_six_equalities_of_a_conjunction_are_grouped() -> None:
    bench = Bench("static")
    bench.insert(0, " AND ".join(f"a{i} = 1" for i in range(12)))
    engine = static(bench)
    groups = groups_of(engine._book, engine._predicates_of(np.array([0])), np.array([12], np.int32))
    assert len(groups.codes) == 15 + 20 + 15


def test_the_greedy_choice_is_that_computed_by_hand() -> None:
    """100 conjunctions, ten values each: under (a, b) each is checked once in 100 events.

    Alone, a check costs 100 × 1/10 = 10 an event; under the table 100 × 1/100 = 1, and the table
    18. So it pays when each conjunction stands for more than two.
    """
    bench = Bench("static")
    bench.insert(0, *pairs(100))
    assert choose_tables(problem(bench, weight=2.0), PLAIN) == []
    (schema,) = choose_tables(problem(bench, weight=2.1), PLAIN)
    assert static(bench).schema_names(schema) == ("a", "b")


def test_the_space_limit_keeps_tables_out() -> None:
    """Each of 100 conjunctions has two predicates left and its number: 12 bytes, 4 under the table.

    The table takes 100 bytes and 8 for each of 100 entries, and saves 4 for each conjunction.
    """
    bench = Bench("static")
    bench.insert(0, *pairs(100))
    inputs, needed = problem(bench, weight=10.0), 10.0 * 100 * 12 + 100 + 10.0 * 100 * (8 - 4)
    assert choose_tables(inputs, PLAIN, needed)
    assert not choose_tables(inputs, PLAIN, needed - 1)
    assert not choose_tables(inputs, PLAIN, 0)


def test_the_table_that_saves_most_for_its_bytes_comes_first() -> None:
    bench = Bench("static")
    some = [f"c = {i} AND d = {i}" for i in range(10)] * 10
    bench.insert(0, *pairs(100), *some)
    first, *others = choose_tables(problem(bench, weight=100.0), PLAIN)
    assert static(bench).schema_names(first) == ("c", "d"), "as much time, a tenth of the entries"
    assert [static(bench).schema_names(other) for other in others] == [("a", "b")]


def test_static_makes_tables_for_what_it_holds_and_finds_everything() -> None:
    bench = Bench("static")
    bench.insert(0, *pairs(2_000))
    assert schemas(static(bench)) == [("a", "b")]
    assert "kept under (a, b)" in bench.engine.explain(7)
    bench.insert(2_000, "a = 1 AND b = 1", "a = 1", "x > 5 OR a = 2 AND b = 3")
    bench.check([{"a": 1, "b": 1, "x": 2_000}, {"a": 2, "b": 3}, {"b": 1, "x": 9}])
    limited = Bench("static", max_bytes=0)
    limited.insert(0, *pairs(2_000))
    assert schemas(static(limited)) == []


def test_static_replans_when_much_has_changed_or_events_are_profiled() -> None:
    bench = Bench("static")
    bench.insert(0, *pairs(2_000))
    assert schemas(static(bench)) == [("a", "b")]
    bench.delete(*range(500))
    assert schemas(static(bench)) == [("a", "b")], "a quarter is not much"
    bench.delete(*range(500, 1_950))
    assert schemas(static(bench)) == []
    bench.insert(2_000, *pairs(2_000))
    bench.engine.profile(to_batch([{"a": 100, "b": 100}] * 500))
    assert schemas(static(bench)) == [], "no event reaches them anyway"
    bench.check([{"a": 1, "b": 1, "x": 5_000}])


# Dynamic maintenance.


def test_dynamic_makes_a_table_when_margin_and_power_suffice() -> None:
    """Under one of ten values, 100 conjunctions have a margin of 1 for each ten in a cluster."""
    bench = Bench("dynamic", bm_max=1.0, b_min=1, rp_min=100, s_min=0)
    bench.insert(0, *pairs(90))
    engine = dynamic(bench)
    assert engine.n_created == 0
    assert max(engine.margins()) < 1.0
    bench.insert(90, *pairs(200)[90:])
    assert schemas(engine) == [("a", "b")]
    assert engine.n_created == 1
    assert "kept under (a, b)" in bench.engine.explain(199)
    assert max(engine.margins()) < 1.0
    bench.check([{"a": 3, "b": 4, "x": 1e9}, {"a": 3}])


def test_reparation_power_adds_up_over_clusters_until_it_suffices() -> None:
    bench = Bench("dynamic", bm_max=1.0, b_min=1, rp_min=250, s_min=0)
    texts = [*pairs(100), *pairs(100), *pairs(100)]
    bench.insert(0, *texts[:200])
    engine = dynamic(bench)
    (first,) = (encode((d, d + 2)) for d in [int(engine._book.dimension.max()) - 2])
    assert engine.repair.power(first) == 200
    assert not engine.tables
    bench.insert(200, *texts[200:])
    assert schemas(engine) == [("a", "b")]
    assert engine.repair.best(1, 0.0) == 0, "no cluster speaks for a schema"
    bench.check([{"a": 3, "b": 4, "x": 1e9}])


def test_a_table_that_saves_too_few_checks_is_not_made() -> None:
    """200 conjunctions under one of ten values are 20 checks an event, under a pair of them 2."""
    bench = Bench("dynamic", bm_max=1.0, b_min=1, rp_min=100, s_min=18.1)
    bench.insert(0, *pairs(200))
    assert schemas(dynamic(bench)) == []
    bench = Bench("dynamic", bm_max=1.0, b_min=1, rp_min=100, s_min=17.9)
    bench.insert(0, *pairs(200))
    assert schemas(dynamic(bench)) == [("a", "b")]


def test_what_is_frozen_makes_and_removes_no_tables() -> None:
    bench = Bench("dynamic", bm_max=1.0, b_min=50, rp_min=100, s_min=0)
    bench.insert(0, *pairs(200))
    engine = dynamic(bench)
    engine.freeze()
    bench.delete(*range(190))
    assert schemas(engine) == [("a", "b")]
    bench.insert(200, *(f"c = {i % 10} AND d = {i // 10 % 10}" for i in range(400)))
    assert schemas(engine) == [("a", "b")]
    bench.check([{"a": 9, "b": 9, "x": 1e9}, {"c": 3, "d": 4}])


def test_a_high_limit_of_margins_leaves_everything_as_it_is() -> None:
    bench = Bench("dynamic", bm_max=1_000.0, b_min=1, rp_min=1, s_min=0)
    bench.insert(0, *pairs(1_000))
    assert dynamic(bench).n_created == dynamic(bench).n_moved == 0
    bench.check([{"a": 3, "b": 4, "x": 1e9}])


def test_dynamic_removes_a_table_that_holds_too_little() -> None:
    bench = Bench("dynamic", bm_max=1.0, b_min=50, rp_min=100, s_min=0)
    bench.insert(0, *pairs(200))
    engine = dynamic(bench)
    assert schemas(engine) == [("a", "b")]
    bench.delete(*range(150))
    assert schemas(engine) == [("a", "b")], "50 are left"
    bench.delete(150)
    assert schemas(engine) == []
    assert engine.n_removed == 1
    assert engine.n_moved >= 49
    bench.check([{"a": i % 10, "b": i // 10 % 10, "x": 1e9} for i in range(145, 160)])
    bench.insert(200, *pairs(400)[200:])
    assert schemas(engine) == [("a", "b")], "it comes back when it is worth it again"
    bench.check([{"a": 3, "b": 4, "x": 1e9}])


def test_redistribution_uses_the_tables_there_are_before_it_makes_others() -> None:
    bench = Bench("dynamic", bm_max=1.0, b_min=1, rp_min=100, s_min=0)
    bench.insert(0, *pairs(200))
    engine = dynamic(bench)
    n_moved = engine.n_moved
    bench.insert(200, *pairs(400)[200:])
    assert engine.n_created == 1
    assert engine.n_moved == n_moved, "what comes goes to the best table at once"
    assert engine.table_sizes().tolist() == [400]


def test_new_statistics_make_a_cluster_excessive() -> None:
    bench = Bench("dynamic", bm_max=2.0, b_min=1, rp_min=50, s_min=0)
    bench.engine.profile(to_batch([{"a": -1, "b": -1}] * 1_000))
    bench.insert(0, *pairs(200, values=2))
    engine = dynamic(bench)
    assert engine.n_created == 0, "hardly an event gets there"
    bench.engine.profile(to_batch([{"a": i % 2, "b": i // 2 % 2} for i in range(400)]))
    assert schemas(engine) == [("a", "b")]
    bench.check([{"a": 0, "b": 1, "x": 100}, {"a": 1, "b": 1}, {"a": 39, "b": 39}, {}])


def test_redistribution_moves_what_other_tables_serve_better() -> None:
    bench = Bench("dynamic", bm_max=1.0, b_min=1, rp_min=10_000, s_min=0)
    bench.insert(0, *(f"a = {i % 2} AND b = {i // 2 % 2} AND x > {i}" for i in range(100)))
    engine = dynamic(bench)
    assert engine.n_moved == 0
    bench.engine.profile(to_batch([{"a": i % 2, "b": 7} for i in range(400)]))
    assert engine.n_moved >= 40, "those under a are now better under b"
    assert engine.n_created == 0
    assert {bench.engine.explain(i).partition(",")[0] for i in range(100)} == {"kept under (b)"}
    bench.check([{"a": 0, "b": 1, "x": 50}])
