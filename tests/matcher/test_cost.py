"""What a costly condition does to others: nothing; and what a literal costs: its value counts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.normalize.test_budget import absorbing, costly

import tocsin
from tocsin.errors import ConditionCostError, ConditionSyntaxError
from tocsin.loading import load_table
from tocsin.normalize.budget import MAX_STEPS
from tocsin.storage.changes import AddOne


def outcome(work: object) -> list[BaseException | None]:
    """Do something in another thread; return what it raised, or nothing where it still waits."""
    caught: list[BaseException | None] = []

    def run() -> None:
        try:
            work()  # type: ignore[operator]
            caught.append(None)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    return caught


def test_a_condition_is_brought_into_normal_form_before_the_lock_is_taken() -> None:
    matcher = tocsin.Matcher()
    with matcher._lock:  # as if a match or another change went on
        (error,) = outcome(lambda: matcher.subscribe("a", costly()))
    assert isinstance(error, ConditionCostError)


def test_an_update_is_brought_into_normal_form_without_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matcher = tocsin.Matcher()
    matcher.subscribe("a", "x = :p OR y LIKE :q", {"p": 1, "q": "%b%"})
    prepare = matcher._prepare
    counts: list[int] = []

    def prepared(where: object, params: object) -> object:
        outcome(lambda: counts.append(len(matcher)))  # another thread takes the lock
        return prepare(where, params)

    monkeypatch.setattr(matcher, "_prepare", prepared)
    matcher.update("a", where="x = :p OR z = 3")
    matcher.update("a", params={"p": 2})
    assert counts == [1, 1]
    assert matcher.match({"x": 2}) == ["a"]


def test_updates_of_many_threads_come_one_after_the_other() -> None:
    matcher = tocsin.Matcher()
    names = [f"p{i}" for i in range(8)]
    matcher.subscribe("a", " OR ".join(f"{n} = :{n}" for n in names), dict.fromkeys(names, 0))

    def change(name: str) -> None:
        for value in range(1, 20):
            matcher.update("a", params={name: value})

    threads = [threading.Thread(target=change, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [name for name in names if matcher.match({name: 19})] == names
    assert not any(matcher.match({name: 18}) for name in names)


def test_a_subscription_that_is_replaced_while_it_is_updated_is_updated_as_it_is_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matcher = tocsin.Matcher()
    matcher.subscribe("a", "x = :p OR y = 1", {"p": 1})
    prepare, times = matcher._prepare, []

    def prepared(where: object, params: object) -> object:
        times.append(where)
        if len(times) == 1:
            matcher.unsubscribe("a")
            monkeypatch.undo()
            matcher.subscribe("a", "z = :p OR y = 2", {"p": 5})
        return prepare(where, params)

    monkeypatch.setattr(matcher, "_prepare", prepared)
    matcher.update("a", params={"p": 7})
    assert matcher.match({"z": 7}) == ["a"]
    assert not matcher.match({"x": 7})


@pytest.mark.slow
def test_what_a_store_accepted_once_is_opened_whatever_it_costs(tmp_path: Path) -> None:
    matcher = tocsin.Matcher()
    matcher.apply(AddOne("a", costly(), {}, None), 0.0)
    assert matcher.match({"a": "7"}) == ["a"]
    matcher.save(tmp_path / "store")
    assert tocsin.Matcher.open(tmp_path / "store").match({"a": "7"}) == ["a"]
    with pytest.raises(ConditionCostError):
        matcher.subscribe("b", costly())


def test_a_bulk_load_bounds_each_condition_by_itself() -> None:
    texts = [absorbing(400), absorbing(401) + " AND c = 1", absorbing(402)]
    matcher = tocsin.Matcher()
    assert matcher.subscribe_many({"id": [1, 2, 3], "where": texts}).loaded == 3
    assert sorted(matcher.match({"a": 1, "c": 1})) == [1, 2, 3]
    assert len(load_table({"id": [1], "where": texts[:1]}, None, None, None).attributes) == 401
    assert MAX_STEPS < 10**7


ZEROS = [0, 1, 19, 39, 40, 41, 60, 5_000]


@pytest.mark.parametrize("sign", ["", "-", "+"])
@pytest.mark.parametrize("n", ZEROS)
def test_leading_zeros_do_not_count_by_any_road(n: int, sign: str, tmp_path: Path) -> None:
    text, value = f"x = {sign}{'0' * n}15", -15 if sign == "-" else 15
    single, bulk = tocsin.Matcher(), tocsin.Matcher()
    single.subscribe("a", text)
    assert bulk.subscribe_many({"id": ["a"], "where": [text]}).loaded == 1
    shaped = tocsin.Matcher(engine="tree")
    shaped.subscribe_many({"id": ["a"], "where": [f"NOT (x <> {sign}{'0' * n}15)"]})
    for at, matcher in enumerate((single, bulk, shaped)):
        assert matcher.match({"x": value}) == ["a"]
        assert str(value) in matcher.explain("a")
        matcher.save(tmp_path / str(at))
        assert tocsin.Matcher.open(tmp_path / str(at)).match({"x": value}) == ["a"]


@pytest.mark.parametrize("digits", ["9223372036854775808", "9" * 39, "9" * 5_000])
@pytest.mark.parametrize("n", [0, 50])
def test_an_integer_beyond_64_bits_is_refused_by_every_road(n: int, digits: str) -> None:
    text = f"x = {'0' * n}{digits}"
    matcher = tocsin.Matcher()
    with pytest.raises(ConditionSyntaxError, match="64 bits"):
        matcher.subscribe("a", text)
    report = matcher.subscribe_many({"id": ["a"], "where": [text]}, on_error="quarantine")
    assert [bad.code for bad in report.bad] == ["syntax"]
