"""The exact grade: roots cover all members, no root another, and answers are exact."""

from __future__ import annotations

import random

import pytest
from tests.property.samples import WORLDS
from tests.property.strategies import MARKET, Seeded, conjunction, event, expression, quote

from tocsin.errors import DuplicateSubscriptionError, UnknownSubscriptionError
from tocsin.language import parse
from tocsin.normalize import NormalForm, normalize
from tocsin.normalize.normal import covers
from tocsin.summary import CoverForest


def form_of(text: str) -> NormalForm:
    return normalize(parse(text))


def forest_of(**texts: str) -> CoverForest:
    forest = CoverForest()
    for name, text in texts.items():
        forest.insert(name, form_of(text))
    return forest


def test_what_is_covered_changes_nothing() -> None:
    forest = forest_of(wide="price < 10")
    assert not forest.insert("narrow", form_of("price < 5 AND firm = 'IBM'"))
    assert forest.insert("other", form_of("price > 20"))
    assert forest.n_roots == 2
    forest.check()


def test_what_covers_others_takes_their_place() -> None:
    forest = forest_of(a="price < 5", b="price < 7 AND firm = 'IBM'", c="volume > 1")
    assert forest.n_roots == 3
    assert forest.insert("d", form_of("price < 10"))
    assert forest.n_roots == 2
    forest.check()


def test_what_hung_below_the_removed_finds_another_place() -> None:
    forest = forest_of(a="x < 10", b="x < 8", c="x < 5 AND y = 1", d="x < 4", e="x < 10 AND y > 0")
    assert forest.n_roots == 1
    assert forest.remove("a")
    assert forest.n_roots == 2  # b, and e where y is positive
    forest.check()
    assert not forest.remove("d")
    forest.remove("b")
    forest.check()
    assert forest.n_roots == 1
    assert forest.admits_one({"x": 9, "y": 2})
    assert not forest.admits_one({"x": 9})


def test_equal_subscriptions_are_one_root() -> None:
    forest = forest_of(a="x = 1", b="x = 1", c="x = 1")
    assert forest.n_roots == 1
    forest.remove("a")
    assert forest.n_roots == 1
    assert forest.admits_one({"x": 1})
    forest.check()


@pytest.mark.parametrize("name", WORLDS)
def test_answers_are_exact_whatever_comes_and_goes(name: str) -> None:
    world, source, dice = WORLDS[name], Seeded(11), random.Random(2)
    makes = [quote] if world is MARKET else [expression, conjunction]
    forest = CoverForest()
    there: dict[int, NormalForm] = {}
    for step in range(150):
        form = normalize(dice.choice(makes)(source, world))
        kind = dice.random()
        if kind < 0.6 or not there:
            forest.insert(step, form)
            there[step] = form
        elif kind < 0.8:
            gone = dice.choice(list(there))
            forest.remove(gone)
            del there[gone]
        else:
            changed = dice.choice(list(there))
            forest.update(changed, form)
            there[changed] = form
        if step % 10 == 0:
            forest.check()
            for _ in range(10):
                one = event(source, world)
                assert forest.admits_one(one) is any(f.holds(one) for f in there.values())
    whole = forest.disjunction()
    assert all(covers(whole, form) for form in there.values())
    for name_ in list(there):
        forest.remove(name_)
    assert forest.n_roots == len(forest) == 0
    forest.check()


def test_ids_are_known_or_new() -> None:
    forest = forest_of(a="x = 1")
    with pytest.raises(DuplicateSubscriptionError):
        forest.insert("a", form_of("x = 2"))
    with pytest.raises(UnknownSubscriptionError):
        forest.remove("b")
    with pytest.raises(UnknownSubscriptionError):
        forest.update("b", form_of("x = 2"))
    assert "a" in forest
    assert forest.n_roots == 1
