"""The book: dense ids, names that stay, what is released, ends."""

from __future__ import annotations

import random
import threading
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.catalog.catalogs import ONE, add_many, reopened

from tocsin.catalog.blocks import NEVER, SINGLES
from tocsin.catalog.id_index import IdTable
from tocsin.catalog.ids import FEW, Ids
from tocsin.catalog.sources import OneSource, TemplateSource
from tocsin.catalog.subscriptions import SubscriptionCatalog
from tocsin.language import parse
from tocsin.language.printer import print_expression


def condition(book: SubscriptionCatalog, dense: int) -> str:
    return print_expression(book.expression(dense))


def held(book: SubscriptionCatalog) -> int:
    """Return how many subscriptions are held, live or not, wherever."""
    blocks = sum(len(shelved.block) for shelved in book._shelf)
    return max(blocks, book._directory.n_entries, len(book._ends)) + len(book._names)


# Names.


@pytest.mark.parametrize("n", [3, FEW + 1, 3 * SINGLES])
def test_names_stay_as_they_were_when_the_book_changes(n: int) -> None:
    book = SubscriptionCatalog()
    bulk = add_many(book, [f"b{i}" for i in range(n)]).tolist()
    single = [book.add(i, ONE) for i in range(n)]
    names = book.names
    book.remove(np.array([*bulk, *single[::2]]))
    for i in range(n):
        book.add(f"later{i}", ONE)
    add_many(book, [f"b{i}" for i in range(n)])
    expected = [*(f"b{i}" for i in range(n)), *range(n)]
    assert [names[dense] for dense in [*bulk, *single]] == expected
    dense = np.array([*bulk, *single])
    assert names.to_list(dense) == expected
    assert names.take(dense[::-1]).to_pylist() == [str(name) for name in reversed(expected)]
    assert names.take(np.array(single)).to_pylist() == [str(i) for i in range(n)]
    assert names.take(np.array([], np.int64)).type == names.take(dense).type
    if n > FEW:
        with pytest.raises(IndexError):
            book.names[bulk[0]]


def test_names_may_be_read_beside_a_writer() -> None:
    book = SubscriptionCatalog()
    add_many(book, [f"b{i}" for i in range(1_000)])
    views = [(book.names, 1_000)]
    wrong: list[Any] = []
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.is_set():
            names, n = views[-1]
            found = names.to_list(np.arange(n))
            wrong.extend(x for i, x in enumerate(found) if x != (f"b{i}" if i < 1_000 else i))

    reader = threading.Thread(target=watch)
    reader.start()
    for i in range(1_000, 6_000):
        book.add(i, ONE)
        views.append((book.names, i + 1))
    for start in range(0, 6_000, 500):
        book.remove(np.arange(start, start + 500))
    is_done.set()
    reader.join()
    assert not wrong
    assert len(book) == 0


def test_odd_kinds_of_integers_and_strings_are_plain_ids() -> None:
    class Text(str):
        """A string of another class."""

    book = SubscriptionCatalog()
    dense = book.add(Text("a"), ONE)
    assert type(book.names[dense]) is str
    assert book.dense("a") == dense


# What is released.


def test_a_block_whose_subscriptions_are_gone_is_released() -> None:
    book = SubscriptionCatalog()
    dense = add_many(book, list(range(5_000)))
    book.add("stays", ONE)
    book.remove(dense)
    assert held(book) <= FEW
    assert len(book) == 1


@pytest.mark.parametrize("left", [1, FEW, 200])
def test_little_is_held_of_a_block_of_which_little_is_left(left: int) -> None:
    book = SubscriptionCatalog()
    n = 10_000
    columns = {"v": pa.array(np.arange(n))}
    source = TemplateSource(parse("x = :v"), columns, {})
    until = np.arange(n) + 1_000_000
    dense = book.add_many(IdTable(Ids(np.arange(n) * 2)), source, None, until)
    order = np.random.default_rng(1).permutation(dense)
    for start in range(0, n - left, 500):
        book.remove(order[start : min(start + 500, n - left)])
    assert len(book) == left
    assert held(book) <= 4 * left + 2_000
    for one in order[n - left :].tolist():
        assert book.names[one] == 2 * one
        assert book.dense(2 * one) == one
        assert condition(book, one) == f"x = {one}"
        assert book.valid_until(one) == one + 1_000_000
    assert book.due(2_000_000).tolist() == sorted(order[n - left :].tolist())


@pytest.mark.parametrize("lifetime", [1, 100, pytest.param(3_000, marks=pytest.mark.slow)])
def test_endless_churn_of_single_subscriptions_holds_little(lifetime: int) -> None:
    """Also where some of those that come stay for long."""
    book = SubscriptionCatalog()
    live: list[int] = []
    longest = 0
    for i in range(15_000):
        live.append(book.add(f"s{i}", ONE, 10**9 if i % 3 == 0 else None))
        if len(live) > lifetime:
            book.remove(np.array([live.pop(i * 7919 % len(live))]))
        if i % 100 == 0:
            longest = max(longest, held(book))
    assert len(book) == len(live) == lifetime
    assert longest <= 4 * lifetime + 4 * SINGLES
    assert len(book._shelf) <= lifetime // 100 + 8
    for dense in live:
        assert book.dense(book.names[dense]) == dense


@pytest.mark.parametrize("kind", ["integers", "strings", "both"])
def test_many_small_loads_of_texts_are_kept_together(kind: str) -> None:
    """Nothing of what they say is lost: ids, conditions, ends, what was removed meanwhile."""
    book = SubscriptionCatalog()
    size, n_loads = 100, 200
    live: dict[int, tuple[Any, str, int | None]] = {}
    gone: list[Any] = []
    for load in range(n_loads):
        numbers = range(load * size, (load + 1) * size)
        is_text = kind == "strings" or (kind == "both" and load % 40 == 7)
        names: list[Any] = [f"s{i}" for i in numbers] if is_text else list(numbers)
        until = np.array([i if i % 3 else NEVER for i in numbers]) if load % 5 == 0 else None
        dense = add_many(book, names, until)
        for at, one in enumerate(dense.tolist()):
            end = None if until is None or until[at] == NEVER else int(until[at])
            live[one] = names[at], f"x = {at}", end
        removed = [one for one in live if (one * 7919 + load) % 311 == 0]
        gone += [live.pop(one)[0] for one in removed]
        book.remove(np.array(removed, np.int64))
    assert len(book._shelf) <= (60 if kind == "both" else 16)
    assert held(book) <= 2 * len(live)
    assert len(book) == len(live)
    for one, (name, text, end) in live.items():
        assert (book.names[one], condition(book, one)) == (name, text)
        assert (book.dense(name), book.valid_until(one)) == (one, end)
    assert not any(name in book for name in gone)


def test_the_memory_that_churn_takes_does_not_grow() -> None:
    book = SubscriptionCatalog()

    def churn(first: int, n: int) -> int:
        for i in range(first, first + n):
            dense = book.add(f"s{i}", OneSource(f"x = {i}", {"p": i}), 10**9)
            if i % 1_000:
                book.remove(np.array([dense]))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    before = churn(0, 3_000)
    after = churn(3_000, 9_000)
    tracemalloc.stop()
    assert after - before < 300_000, "9,000 of them would take megabytes"
    assert len(book) == 12


# ExpiryQueue.


@pytest.mark.parametrize("n", [10, 500])
def test_those_are_due_whose_moment_has_come_and_that_are_still_there(n: int) -> None:
    book = SubscriptionCatalog()
    until = np.where(np.arange(n) % 2, np.arange(n) + 100, NEVER)
    bulk = add_many(book, [f"b{i}" for i in range(n)], until)
    single = [book.add(i, ONE, 100 + i) for i in range(n)]
    assert book.has_expiries
    assert book.due(100).tolist() == [single[0]]
    book.remove(np.array(single[:1]))
    book.remove(bulk[3:4])
    assert sorted(book.due(103)) == sorted([bulk[1], *single[1:4]])
    book.remove(np.array([bulk[1], *single[1:4]]))
    assert book.due(103).tolist() == []
    assert book.valid_until(int(bulk[5])) == 105
    assert book.valid_until(int(bulk[4])) is None
    assert book.valid_until(single[5]) == 105
    rest = book.due(10**30)
    assert sorted(rest) == sorted([*bulk[5::2], *single[4:]])
    book.remove(rest)
    assert not book.has_expiries
    assert len(book) == (n + 1) // 2


def test_moments_far_away_are_kept_apart_from_none() -> None:
    book = SubscriptionCatalog()
    dense = [book.add("far", ONE, 10**30), book.add("past", ONE, -(10**30)), book.add("no", ONE)]
    assert book.due(0).tolist() == [dense[1]]
    assert book.valid_until(dense[2]) is None
    add_many(book, [f"b{i}" for i in range(FEW + 1)])  # those before are in a block now
    book.remove(np.array(dense))
    assert not book.has_expiries


# One random life, beside a dictionary.


class Life:
    """A book and a dictionary that do the same: id → (dense id, condition, end)."""

    def __init__(self, seed: int, folder: Any) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.book = SubscriptionCatalog()
        self.model: dict[Any, tuple[int, str, int | None]] = {}
        self.n_made = 0

    def fresh(self, n: int) -> list[Any]:
        kind = self.random.choice((int, str))
        new = [kind(i) for i in self.random.sample(range(20_000), n)]
        return [name for name in new if name not in self.model]

    def add_one(self) -> None:
        for _ in range(self.random.choice((1, 10, 400))):
            for name in self.fresh(1):
                until = self.random.choice((None, self.random.randrange(1_000)))
                value = self.random.choice((1, 2.5, "a", True, None))
                source = OneSource("x = :v OR y = 1", {"v": value})
                dense = self.book.add(name, source, until)
                self.model[name] = (dense, condition(self.book, dense), until)

    def add_many(self) -> None:
        names = self.fresh(self.random.choice((1, 30, 100, 2_000)))
        if names:
            until = np.array([self.random.choice((NEVER, 500)) for _ in names])
            dense = add_many(self.book, names, until)
            for at, name in enumerate(names):
                end = None if until[at] == NEVER else 500
                self.model[name] = (int(dense[at]), f"x = {at}", end)

    def remove(self) -> None:
        share = self.random.choice((0.01, 0.5, 0.98))
        gone = [name for name in self.model if self.random.random() < share]
        dense = [self.model.pop(name)[0] for name in gone]
        if dense:
            self.book.remove(np.array(dense))

    def reopen(self) -> None:
        self.n_made += 1
        self.book = reopened(self.book, self.folder / str(self.n_made))

    def compare(self) -> None:
        book, model = self.book, self.model
        assert len(book) == len(model)
        some = self.random.sample(list(model), min(len(model), 40))
        for name in some:
            dense, text, until = model[name]
            assert book.dense(name) == dense
            assert book.names[dense] == name
            assert type(book.names[dense]) is type(name)
            assert condition(book, dense) == text
            assert book.valid_until(dense) == until
        for kind in (int, str):
            asked = [kind(i) for i in range(0, 20_000, 29)]
            found = book.find(IdTable(Ids.of(asked))).tolist()
            assert found == [model[name][0] if name in model else -1 for name in asked]
        ending = sum(until is not None for _, _, until in model.values())
        assert book.has_expiries == (ending > 0)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]
)
def test_a_random_life_is_what_a_dictionary_says(seed: int, tmp_path: Any) -> None:
    life = Life(seed, tmp_path)
    steps = [life.add_one, life.add_many, life.remove, life.reopen]
    for _ in range(25):
        life.random.choices(steps, (4, 4, 4, 1))[0]()
        life.compare()
