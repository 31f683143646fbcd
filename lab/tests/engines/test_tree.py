"""The matching tree: the trees of the paper's figures, its optimisations, what deletion leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lab.tests.engines.trees import PLAIN, Grove

import tocsin
from tocsin.encode.events import to_batch
from tocsin.errors import ArgumentError
from tocsin.workloads import workload
from tocsin_lab.engines.tree import order

GIVEN = {"order": "given", "index_attributes": 0}


# The trees that the paper shows.


def test_subscriptions_that_share_a_test_share_its_node() -> None:
    grove = Grove("t1 = 1 AND t2 = 2", "t1 = 3 AND t3 = 4", **GIVEN)
    assert grove.engine.draw() == {"t1": {"1": {"t2": {"2": 1}}, "3": {"t3": {"4": 1}}}}


def test_a_subscription_that_does_not_test_an_attribute_is_behind_a_dont_care_edge() -> None:
    grove = Grove("t1 = 1 AND t2 = 2", "t3 = 3 AND t4 = 4", **GIVEN)
    assert grove.engine.draw() == {
        "t1": {"1": {"t2": {"2": 1}}, "*": {"t3": {"3": {"t4": {"4": 1}}}}}
    }


def test_a_test_that_implies_another_one_stands_below_it() -> None:
    texts = ("t1 < 100 AND t2 = 2", "t1 < 50 AND t3 = 3")
    below = {"t1": {"number to 50": {"t3": {"3": 1}}, "*": {"t2": {"2": 1}}}}
    siblings = {"number to 100": {"t2": {"2": 1}}, "number to 50": {"t3": {"3": 1}}}
    assert Grove(*texts, **GIVEN).engine.draw() == {"t1": {"number to 100": below}}
    assert Grove(*texts, **GIVEN, implied=False).engine.draw() == {"t1": siblings}


def test_with_equalities_alone_each_attribute_is_a_level() -> None:
    grove = Grove("a = 1 AND b = 2 AND c = 3", "a = 1 AND c = 3", "b = 2", **PLAIN)
    assert grove.engine.draw() == {
        "a": {
            "1": {"b": {"2": {"c": {"3": 1}}, "*": {"c": {"3": 1}}}},
            "*": {"b": {"2": {"c": {"*": 1}}}},
        }
    }


def test_chains_of_dont_care_edges_are_collapsed() -> None:
    texts = ("a = 1 AND b = 2 AND c = 3 AND d = 4", "a = 1 AND d = 4", "d = 5")
    kept = Grove(*texts, **PLAIN).engine
    grove = Grove(*texts, **GIVEN)
    assert grove.engine.draw() == {
        "a": {
            "1": {"b": {"2": {"c": {"3": {"d": {"4": 1}}}}, "*": {"d": {"4": 1}}}},
            "*": {"d": {"5": 1}},
        }
    }
    assert grove.engine.n_nodes == kept.n_nodes - 3


def test_identical_subscriptions_share_a_leaf() -> None:
    grove = Grove("a = 1 AND b < 5", "b < 5 AND a = 1", "a IN (1) AND NOT b >= 5", **GIVEN)
    assert grove.engine.draw() == {"a": {"1": {"b": {"number to 5": 3}}}}


def test_a_node_may_be_put_between_others_later() -> None:
    grove = Grove("a = 1 AND c = 3", "c = 4 AND b = 7", "a = 1 AND b = 2", **GIVEN)
    assert grove.engine.draw() == {
        "a": {"1": {"c": {"3": 1, "*": {"b": {"2": 1}}}}, "*": {"c": {"4": {"b": {"7": 1}}}}}
    }
    grove.check([{"a": 1, "b": 2, "c": 3}, {"b": 7, "c": 4}, {"a": 1, "b": 7, "c": 4}, {}])


# Optimisations: the same answers, fewer nodes.

OPTIMISED: list[dict[str, Any]] = [
    {},
    {"implied": False},
    {"collapse": False},
    {"successors": True},
    {"successors": True, "collapse": False, "index_attributes": 0},
    {"index_attributes": 0},
    {"index_attributes": 1},
    {"index_attributes": 3, "successors": True, "order": "given"},
]


def some_texts(n: int, seed: int) -> list[str]:
    """Return conditions of all sorts on few attributes and values, so that they meet often."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(n):
        parts = []
        for name in rng.permutation(list("abcd"))[: rng.integers(1, 4)]:
            low, high = sorted(rng.integers(0, 6, 2).tolist())
            ways = (
                f"{name} = {low}", f"{name} = {high}", f"{name} = {low}.5", f"{name} < {high}",
                f"{name} >= {low} AND {name} < {low + 1}", f"{name} BETWEEN {low} AND {high}",
                f"{name} <> {low}", f"{name} IN ({low}, {high}, 'x')", f"{name} IS NULL",
                f"{name} IS NOT NULL", f"({name} IS NULL OR {name} > {low})", f"{name} > 'b'",
                f"{name} LIKE '%x%'", f"({name} = 'x' OR {name} = {low})",
            )  # fmt: skip
            parts.append(str(rng.choice(ways[: rng.integers(2, len(ways) + 1)])))
        texts.append(" AND ".join(parts) if rng.integers(4) else " OR ".join(parts))
    return texts


def some_events(n: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    values = (0, 1, 2, 3, 4, 5, 0.5, 1.5, 4.5, 7, -1, "x", "axe", "b", "c", True, None, [1])
    return [
        {name: values[rng.integers(len(values))] for name in "abcd" if rng.integers(5)}
        for _ in range(n)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIMISED, ids=str)
def test_no_option_changes_an_answer(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    grove = Grove(**options)
    for step in range(30):
        grove.insert(*some_texts(1 if step % 3 else 60, step))
        gone = [dense for dense in grove.forms if rng.integers(6) == 0]
        grove.delete(*gone)
        grove.check(some_events(8, step))
    grove.engine.profile(to_batch(some_events(50, 4)))
    grove.check(some_events(50, 5))
    grove.delete(*grove.forms)
    assert grove.engine.n_nodes == 0
    grove.check(some_events(3, 6))


def test_every_optimisation_leaves_the_answers_and_saves_visits() -> None:
    chosen = workload("G")
    rows, events = chosen.subscription_rows(2_000, 1), chosen.events(200, 1)
    visits, answers = {}, []
    plain: dict[str, Any] = {**PLAIN, "implied": True}
    steps: dict[str, dict[str, Any]] = {
        "none": plain,
        "collapse": plain | {"collapse": True},
        "successors": plain | {"collapse": True, "successors": True},
        "index": plain | {"collapse": True, "index_attributes": 2},
    }
    for name, options in steps.items():
        m = tocsin.Matcher(engine="tree", **options)
        m.subscribe_many(rows)
        for _ in range(4):  # annotations come when enough events have
            matches = m.match_batch(events)
        answers.append([sorted(ids, key=str) for ids in matches])
        engine: Any = m.index
        visits[name] = engine.n_visits
    assert all(answer == answers[0] for answer in answers[1:])
    assert visits["collapse"] < 0.5 * visits["none"]
    assert visits["successors"] < 0.95 * visits["collapse"]
    assert visits["index"] < 0.8 * visits["collapse"]


def test_a_blocked_search_goes_on_at_the_successors() -> None:
    """The paper's example: what ⟨1, 2, 3⟩ implies is found without going back to the root."""
    texts = [
        "a = 1 AND b = 2 AND c = 3 AND d = 9",
        "a = 1 AND c = 3 AND d = 4",
        "b = 2 AND c = 3 AND d = 4",
        "a = 1 AND b = 2 AND d = 4",
        "c = 3 AND d = 4",
        "d = 4",
        "b = 2",
    ]
    event = {"a": 1, "b": 2, "c": 3, "d": 4}
    by_option = {
        successors: Grove(*texts, **GIVEN, successors=successors).check([event] * 5)
        for successors in (False, True)
    }
    assert by_option[True] < by_option[False]


def test_a_test_that_is_implied_is_only_evaluated_where_the_other_holds() -> None:
    texts = [f"x < {100 * i} AND y = {i}" for i in range(20, 0, -1)]
    texts += [f"x BETWEEN {i} AND {i + 5} AND y = {i}" for i in range(0, 2000, 17)]
    events = [{"x": x, "y": 3} for x in (5, 905, 1_999, 5_000)]
    nested, flat = Grove(**GIVEN), Grove(**GIVEN, implied=False)
    nested.insert(*texts)
    flat.insert(*texts)
    nested.check(events)
    flat.check(events)
    assert nested.check([{"x": 5_000, "y": 3}]) == flat.check([{"x": 5_000, "y": 3}]) == 1


def test_a_subscription_that_does_not_test_the_index_attribute_is_in_every_tree() -> None:
    texts = [f"a = {i % 3} AND b = {i}" for i in range(9)]
    grove = Grove(order="given", index_attributes=1)
    grove.insert(*texts, "b = 4", "a > 1 AND b = 4", "a = 0.5 AND b = 4")
    assert "in 5 trees" in grove.engine.explain(9)
    late = grove.insert("b = 5", "a = 77 AND b = 4", "a IS NULL")
    assert "in 5 trees" in grove.engine.explain(late[0])
    events = [{"a": a, "b": b} for a in (0, 1, 2, 3, 0.5, 77, None, "x") for b in (4, 5)]
    grove.check(events)
    grove.delete(9, late[0])
    grove.check(events)


def test_large_trees_are_divided_by_more_index_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, events = workload("G").subscription_rows(3_000, 3), workload("G").events(100, 3)
    answers, n_roots = [], []
    for large in (10_000, 50):
        monkeypatch.setattr(order, "_LARGE", large)
        m = tocsin.Matcher(engine="tree")
        m.subscribe_many(rows)
        engine: Any = m.index
        engine.check()
        answers.append([sorted(ids) for ids in m.match_batch(events)])
        n_roots.append(len(engine._forest.tree.roots))
    assert answers[0] == answers[1]
    assert n_roots == [6, 36]


def test_subscriptions_that_ask_the_same_share_a_leaf_as_they_come_and_go() -> None:
    grove = Grove(**GIVEN)
    same = grove.insert(*["a = 1 AND b = 2"] * 20)
    other = grove.insert("a = 1", "b = 2", "a = 2 AND b = 2")
    events = [{"a": a, "b": b} for a in (1, 2) for b in (2, 3)]
    grove.check(events)
    grove.delete(same[0], same[7], same[19])
    grove.check(events)
    more = grove.insert(*["a = 1 AND b = 2"] * 5, "a = 1")
    grove.check(events)
    grove.delete(*same[1:7], *same[8:19], *more[1:], other[0])
    grove.check(events)
    grove.delete(more[0])
    grove.check(events)


# What the paper proves.


def test_visits_grow_more_slowly_than_subscriptions() -> None:
    """The paper's workload; the match count per event would grow as the subscriptions do."""
    chosen = workload("G")
    events = chosen.events(200, 2)
    visits = []
    for n in (1_000, 4_000, 16_000):
        m = tocsin.Matcher(engine="tree", index_attributes=0)
        m.subscribe_many(chosen.subscription_rows(n, 2))
        m.match_batch(events)
        engine: Any = m.index
        visits.append(engine.n_visits)
    assert visits[1] < 0.75 * 4 * visits[0]
    assert visits[2] < 0.75 * 4 * visits[1]


def test_nodes_grow_at_most_as_the_tests_do() -> None:
    rows = workload("G").subscription_rows(3_000, 4)
    m = tocsin.Matcher(engine="tree", index_attributes=0)
    m.subscribe_many(rows)
    engine: Any = m.index
    assert engine.n_nodes <= len(rows) + 2 * 3_000


# Inserting and deleting in place.


@pytest.mark.parametrize("options", [{}, PLAIN], ids=["optimised", "plain"])
def test_what_is_deleted_leaves_no_node(options: dict[str, Any]) -> None:
    grove = Grove(**options)
    first = grove.insert(*some_texts(60, 1))
    n_before = grove.engine.n_nodes
    later = grove.insert(*some_texts(40, 2))
    grove.delete(*later)
    grove.check(some_events(5, 1))
    if options is PLAIN:
        assert grove.engine.n_nodes <= n_before + len(later)
    grove.delete(*first)
    grove.check(some_events(5, 2))
    assert grove.engine.n_nodes == 0


def test_a_node_that_only_a_dont_care_edge_leaves_is_taken_out() -> None:
    grove = Grove("a = 1 AND c = 3", "b = 2 AND c = 3", "a = 2 AND b = 2", **GIVEN)
    before = Grove("a = 1 AND c = 3", "a = 2 AND b = 2", **GIVEN).engine.draw()
    grove.delete(1)
    assert grove.engine.draw() == before
    grove.delete(0)
    assert grove.engine.draw() == {"a": {"2": {"b": {"2": 1}}}}


@pytest.mark.parametrize(
    "bounds",
    [range(90), range(90, 0, -1), [(-1) ** i * 2.0**-i for i in range(90)]],
    ids=["rising", "falling", "ever closer"],
)
def test_new_bounds_find_their_place_among_the_others(bounds: Any) -> None:
    grove = Grove()
    for bound in bounds:
        grove.insert(f"x < {bound!r}")
    values = [*list(bounds)[::17], -1e9, 0.0, 1e9]
    grove.check([{"x": x} for x in values])


def test_integers_floats_and_what_lies_between_are_distinguished() -> None:
    texts = ["x = 5", "x = 5.0", "x >= 5 AND x < 6", "x = 5.5", "x > 5 AND x < 6", "x >= 5.5"]
    big = 2**53
    texts += [f"x = {big + 1}", f"x = {big}", f"x > {big} AND x < {big + 2}", "x = 'x'", "x = TRUE"]
    values = [5, 5.0, 5.25, 5.5, 6, 4.999, big, big + 1, float(big), big + 2, "x", True, 1, None]
    Grove(*texts).check([{"x": x} for x in values])
    Grove(*reversed(texts)).check([{"x": x} for x in values])


def test_unused_cuts_are_forgotten() -> None:
    grove = Grove()
    n_cuts = []
    for round_ in range(4):
        ids = grove.insert(*(f"x < {1_000 * round_ + i} AND s > 's{i}'" for i in range(600)))
        n_cuts.append(grove.engine._book.places.n_cuts)
        grove.delete(*ids)
    assert n_cuts[-1] < 1.5 * 2 * 600 + 100
    grove.insert("x < 3 AND s > 'a'", "x IN (1, 3)")
    grove.check([{"x": 1, "s": "b"}, {"x": 3}])


def test_a_profile_puts_the_attribute_first_that_tells_events_apart() -> None:
    texts = [f"a > 0 AND b = {i}" if i < 60 else f"a > 0 AND c = {i}" for i in range(100)]
    grove = Grove(index_attributes=0)
    grove.insert(*texts)
    events = [{"a": 3, "b": -i, "c": -i} for i in range(50)]
    before = grove.check(events)
    assert list(grove.engine.draw()) == ["a"]  # type: ignore[arg-type]
    grove.engine.profile(to_batch(events))
    assert list(grove.engine.draw()) == ["b"]  # type: ignore[arg-type]
    assert grove.check(events) < before


# Options.


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"colour": "red"}, "no option colour; it has order, collapse"),
        ({"order": "random"}, "order must be 'popular' or 'given', not 'random'"),
        ({"collapse": 1}, "collapse must be True or False, not 1"),
        ({"successors": "yes"}, "successors must be True or False, not 'yes'"),
        ({"implied": None}, "implied must be True or False, not None"),
        ({"index_attributes": 1.5}, "index_attributes must be 0 to 8 or None, not 1.5"),
        ({"index_attributes": True}, "index_attributes must be 0 to 8 or None, not True"),
        ({"index_attributes": 9}, "index_attributes must be 0 to 8 or None, not 9"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        tocsin.Matcher(engine="tree", **options)
    assert why in str(caught.value)
