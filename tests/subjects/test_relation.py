"""Transitions are exactly the difference of relation M before and after each operation."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.subjects import worlds
from tests.subjects.brute import Brute, difference
from tests.subjects.reference import Reference

from tocsin.catalog import subscriptions
from tocsin.errors import EventError
from tocsin.model import EventType
from tocsin.subjects import Range, SubjectSpace, box_index, object_rows, state

pytestmark = pytest.mark.slow


class Both:
    """A subject space and the brute relation, side by side."""

    def __init__(self, missing: str = "absent") -> None:
        self.space = SubjectSpace(worlds.PLACE, worlds.NEWS, missing=missing)
        self.brute = Brute(worlds.PLACE, worlds.NEWS, missing=missing)
        self.numbers = itertools.count()
        self.relation: set[tuple[Any, Any]] = set()

    def compare(self, told: Any, silent: bool = False) -> None:
        after = self.brute.relation()
        found = sorted(((t.kind.value, t.key, t.subscription) for t in told), key=repr)
        expected = [] if silent else difference(self.relation, after)
        assert found == expected
        self.relation = after

    def check_queries(self) -> None:
        for key in self.brute.publications:
            found = self.space.subscriptions_of(key)
            assert sorted(found, key=repr) == sorted(
                (i for k, i in self.relation if k == key), key=repr
            )
        for id in self.brute.subscriptions:
            keys = self.space.publications_of(id)
            assert sorted(keys, key=repr) == sorted(
                (k for k, i in self.relation if i == id), key=repr
            )

    def step(self, r: Random) -> None:
        keys = list(self.brute.publications)
        ids = list(self.brute.subscriptions)
        actions = ["publish", "subscribe"]
        actions += ["update", "update", "retract", "replace"] if keys else []
        actions += ["exchange", "unsubscribe"] if ids else []
        getattr(self, r.choice(actions))(r, keys, ids)

    def publish(self, r: Random, keys: list[Any], ids: list[Any]) -> None:
        key, values = f"k{next(self.numbers)}", worlds.publication(r)
        if self.is_refused(lambda: self.space.publish(key, values)):
            return
        self.brute.publish(key, values)
        self.compare(self.told)

    def is_refused(self, call: Any) -> bool:
        """Whether a call was refused, such as one with an empty range; nothing may change then."""
        try:
            self.told = call()
        except EventError:
            return True
        return False

    def replace(self, r: Random, keys: list[Any], ids: list[Any]) -> None:
        key, values = r.choice(keys), worlds.publication(r)
        if self.is_refused(lambda: self.space.publish(key, values)):
            return
        self.brute.publish(key, values)
        self.compare(self.told)

    def update(self, r: Random, keys: list[Any], ids: list[Any]) -> None:
        key = r.choice(keys)
        regions = self.brute.publications[key].regions
        name = r.choice(list(regions))
        changed = worlds.values(r, regions[name].space or "Place")
        if r.random() < 0.5:
            changed = dict(itertools.islice(changed.items(), 1))
        call = (
            (lambda: self.space.update_publication(key, changed))
            if name == ""
            else (lambda: self.space.update_region(key, name, changed))
        )
        if self.is_refused(call):
            return
        self.brute.update(key, changed, name)
        self.compare(self.told)

    def retract(self, r: Random, keys: list[Any], ids: list[Any]) -> None:
        key = r.choice(keys)
        told = self.space.retract(key)
        del self.brute.publications[key]
        self.compare(told)

    def subscribe(self, r: Random, keys: list[Any], ids: list[Any]) -> None:
        id, where = next(self.numbers), worlds.subscription(r)
        told = self.space.subscribe(id, where)
        self.brute.subscribe(id, where)
        self.compare(told)

    def exchange(self, r: Random, keys: list[Any], ids: list[Any]) -> None:
        id, where = r.choice(ids), worlds.subscription(r)
        told = self.space.update(id, where=where)
        self.brute.subscribe(id, where)
        self.compare(told)

    def unsubscribe(self, r: Random, keys: list[Any], ids: list[Any]) -> None:
        id = r.choice(ids)
        told = self.space.unsubscribe(id)
        del self.brute.subscriptions[id]
        self.compare(told, silent=True)


@given(st.randoms(use_true_random=False), st.sampled_from(["absent", "any"]), st.booleans())
@settings(max_examples=40)
def test_transitions_are_the_difference_of_the_relation(
    r: Random, missing: str, is_small: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if is_small:  # lists and orders from the first on, and too little room for what is found
            patch.setattr(state, "_CAPACITY", 1)
            patch.setattr(state, "_BLOCK", 2)
            patch.setattr(box_index, "MAX_UNINDEXED", 0)
            patch.setattr(object_rows, "_MAX_SCANS", 0)
            patch.setattr(object_rows, "_MIN_ORDERED", 0)
        both = Both(missing)
        for _ in range(30):
            both.step(r)
        both.check_queries()


@pytest.mark.parametrize("seed", range(6))
def test_long_lives_stay_exact(seed: int) -> None:
    r = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(box_index, "MAX_UNINDEXED", seed * 3)
        patch.setattr(object_rows, "_MIN_ORDERED", seed)
        both = Both("any" if seed == 5 else "absent")
        for at in range(150):
            both.step(r)
            if at % 50 == 49:
                both.check_queries()


@pytest.mark.parametrize("seed", range(4))
def test_relations_stay_exact_when_subscriptions_are_renumbered_all_the_time(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(subscriptions, "_WASTE", (1, 3))
    monkeypatch.setattr(box_index, "MAX_UNINDEXED", seed)
    r, both = Random(seed), Both()
    for at in range(120):
        both.step(r)
        if at % 40 == 39:
            both.check_queries()
    catalog = both.space._subscriptions.catalog
    assert catalog.next_dense <= 2 * len(catalog) + 8


Ends = tuple[int, int]
Box = dict[str, list[Ends]]


def _ends(r: Random) -> Ends:
    low, high = sorted((r.randrange(12), r.randrange(12)))
    return low, high


def _box(r: Random) -> Box:
    dims = r.sample("abcd", r.choice([1, 2, 2, 3]))
    return {d: [_ends(r) for _ in range(r.choice([1, 1, 1, 2, 3]))] for d in dims}


def _where(box: Box) -> str:
    return " AND ".join(
        "(" + " OR ".join(f"{d} BETWEEN {low} AND {high}" for low, high in pieces) + ")"
        for d, pieces in box.items()
    )


def _meets(box: Box, region: dict[str, Ends] | None) -> bool:
    return region is not None and all(
        any(low <= region[d][1] and region[d][0] <= high for low, high in pieces)
        for d, pieces in box.items()
    )


@pytest.mark.parametrize("seed", range(6))
def test_what_changes_in_several_dimensions_at_once_is_told_once(seed: int) -> None:
    r = Random(seed)
    boxes = [_box(r) for _ in range(100)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(box_index, "MAX_UNINDEXED", 0)
        patch.setattr(state, "_CAPACITY", 1)
        space = SubjectSpace(EventType("point", dict.fromkeys("abcd", int)))
        for number, box in enumerate(boxes):
            space.subscribe(number, _where(box))
        regions: dict[int, dict[str, Ends] | None] = dict.fromkeys(range(6))
        for _ in range(60):
            key, is_point = r.randrange(6), r.random() < 0.5
            old = regions[key]
            new = {d: (low, low if is_point else high) for d in "abcd" for low, high in [_ends(r)]}
            values = {d: Range(*ends) for d, ends in new.items()}
            if old is None:
                told, regions[key] = space.publish(key, values), new
            elif r.random() < 0.3:
                told, regions[key] = space.retract(key), None
            else:
                told, regions[key] = space.update_publication(key, values), new
            changed = [
                i for i, box in enumerate(boxes) if _meets(box, old) != _meets(box, regions[key])
            ]
            kinds = ["ENTER" if _meets(boxes[i], regions[key]) else "LEAVE" for i in changed]
            found = sorted((t.subscription, t.kind.value) for t in told)
            assert found == list(zip(changed, kinds, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_the_papers_algorithms_say_the_same(seed: int) -> None:
    """Points and intervals of one region each, where what is not constrained may be anything."""
    r = Random(seed)
    space = SubjectSpace(missing="any")
    reference = Reference()
    for number in range(120):
        dims = r.sample("xyz", r.randrange(1, 4))
        ends = {d: tuple(sorted((r.randrange(9), r.randrange(9)))) for d in dims}
        region = {d: ((low, 0), (high, 1)) for d, (low, high) in ends.items()}
        values = {d: Range(low, high) for d, (low, high) in ends.items()}
        action = r.randrange(3)
        if action == 0:
            where = " AND ".join(f"{d} BETWEEN {a} AND {b}" for d, (a, b) in ends.items())
            found = {t.key for t in space.subscribe(number, where)}
            assert found == reference.subscribe(number, [region])
        elif action == 1 or len(space.publications) == 0:
            found = {t.subscription for t in space.publish(number, values)}
            assert found == reference.publish(number, [region])
        else:
            key = r.choice(list(space._publications.keys.row_of))
            told = space.publish(key, values)
            entered, left = reference.update(key, 0, region)
            assert {t.subscription for t in told if t.kind.value == "ENTER"} == entered
            assert {t.subscription for t in told if t.kind.value == "LEAVE"} == left
