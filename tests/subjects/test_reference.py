"""The paper's algorithms tell exactly the difference of relation M; no kernels are needed here."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from tests.subjects.reference import Reference, Region, matches

from tocsin.normalize.domains import HIGH, LOW, Domain

LOWEST, HIGHEST = LOW[Domain.NUMBER], HIGH[Domain.NUMBER]


def a_region(r: Random) -> Region:
    region = {}
    for d in r.sample(["x", "y", "z"], r.randrange(1, 4)):
        low, high = sorted((r.randrange(6), r.randrange(6)))
        ends = (low, r.choice((0, 1)) if low < high else 0), (high, 1 if low == high else 0)
        chance = r.random()
        if chance < 0.15:
            ends = LOWEST, ends[1]
        elif chance < 0.3:
            ends = ends[0], HIGHEST
        region[d] = ends
    return region


@pytest.mark.parametrize("seed", range(12))
def test_the_papers_operations_tell_the_difference_of_the_relation(seed: int) -> None:
    r = Random(seed)
    reference = Reference()
    names = itertools.count()
    publications: dict[Any, int] = {}
    subscriptions: dict[Any, int] = {}
    for _ in range(80):
        before = reference.relation()
        entered: set[Any] = set()
        left: set[Any] = set()
        action = r.randrange(6)
        if action == 0 or not publications:
            name = f"p{next(names)}"
            regions = [a_region(r) for _ in range(r.choice((1, 1, 2)))]
            entered = {(name, s) for s in reference.publish(name, regions)}
            publications[name] = len(regions)
        elif action == 1 or not subscriptions:
            name = f"s{next(names)}"
            regions = [a_region(r) for _ in range(r.choice((1, 1, 2)))]
            entered = {(p, name) for p in reference.subscribe(name, regions)}
            subscriptions[name] = len(regions)
        elif action == 2:
            name = r.choice(list(publications))
            holds, held = reference.update(name, r.randrange(publications[name]), a_region(r))
            entered, left = {(name, s) for s in holds}, {(name, s) for s in held}
        elif action == 3:
            name = r.choice(list(subscriptions))
            at = r.randrange(subscriptions[name])
            holds, held = reference.update_subscription(name, at, a_region(r))
            entered, left = {(p, name) for p in holds}, {(p, name) for p in held}
        elif action == 4:
            name = r.choice(list(publications))
            del publications[name]
            left = {(name, s) for s in reference.retract(name)}
        else:
            name = r.choice(list(subscriptions))
            del subscriptions[name]
            reference.unsubscribe(name)
            assert reference.relation() == {pair for pair in before if pair[1] != name}
            continue
        after = reference.relation()
        assert entered == after - before
        assert left == before - after


def test_a_dimension_without_a_constraint_may_have_any_value() -> None:
    assert matches({"x": ((1, 0), (2, 1))}, {"y": ((5, 0), (6, 1))})
    assert not matches({"x": ((1, 0), (2, 1))}, {"x": ((2, 1), (6, 1))})


def test_the_papers_example_of_an_index_finds_what_figure_six_shows() -> None:
    """o1 = [100,100], o2 = (60,120), o3 = [60,∞); i1 = [100,∞), i2 = (−∞,100), i3 = [60,100]."""
    reference = Reference()
    reference.subscribe("i1", [{"d": ((100, 0), HIGHEST)}])
    reference.subscribe("i2", [{"d": (LOWEST, (100, 0))}])
    reference.subscribe("i3", [{"d": ((60, 0), (100, 1))}])
    assert reference.publish("o1", [{"d": ((100, 0), (100, 1))}]) == {"i1", "i3"}
    assert reference.publish("o2", [{"d": ((60, 1), (120, 0))}]) == {"i1", "i2", "i3"}
    assert reference.publish("o3", [{"d": ((60, 0), HIGHEST)}]) == {"i1", "i2", "i3"}
