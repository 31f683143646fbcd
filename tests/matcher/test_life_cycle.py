"""Subscribing, updating and unsubscribing one at a time; ids; expiry."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tocsin
from tocsin.engines import names
from tocsin.errors import (
    ArgumentError,
    DuplicateSubscriptionError,
    EventError,
    InvalidIdError,
    KindClashError,
    ParameterError,
    UnknownEngineError,
    UnknownSubscriptionError,
)
from tocsin.language import parse
from tocsin.matcher import Matcher
from tocsin.model import INT64_MAX, INT64_MIN

pytestmark = pytest.mark.parametrize("engine", names())

QUOTE = tocsin.EventType("Quote", firm=str, price=float, volume=int)
EVENT = {"firm": "IBM", "price": 89.5}


class Clock:
    """A clock that stands still until it is set; seconds since 1970."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds

    @property
    def now(self) -> int:
        return int(self.seconds * 1_000_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def found(matcher: Matcher, event: dict[str, Any]) -> set[Any]:
    """Match an event by itself and in a batch, and return what both say."""
    one = matcher.match(event)
    (many,) = matcher.match_batch([event])
    assert len(set(one)) == len(one)
    assert sorted(map(str, one)) == sorted(map(str, many))
    matcher.check()
    return set(one)


def test_what_the_design_shows_works(engine: str) -> None:
    m = tocsin.Matcher(QUOTE, engine=engine)
    m.subscribe("alice", "firm = 'IBM' AND price < 100", valid_until=None)
    m.subscribe("bob", "firm = :firm AND price < :limit", params={"firm": "IBM", "limit": 90.0})
    assert found(m, EVENT) == {"alice", "bob"}
    m.update("bob", params={"limit": 80.0})
    assert found(m, EVENT) == {"alice"}
    m.update("bob", params={"limit": 95.0})
    m.update("alice", where="price > 200")
    assert found(m, EVENT) == {"bob"}
    m.unsubscribe("alice")
    assert len(m) == 1
    assert "alice" not in m
    assert "bob" in m
    m.unsubscribe_many(["bob"])
    assert len(m) == 0
    assert found(m, EVENT) == set()


def test_a_matcher_without_subscriptions_matches_nothing(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    assert found(m, EVENT) == set()
    assert len(m.match_batch(pa.table({"x": [1, 2, 3]}))) == 3
    assert len(m.match_batch([])) == 0


def test_a_condition_may_be_an_expression(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, parse("price < :limit"), params={"limit": 90})
    assert found(m, EVENT) == {1}
    m.update(1, where=parse("price < 10"))
    assert found(m, EVENT) == set()


def test_conditions_that_are_always_or_never_true_can_be_held(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe("always", "TRUE")
    m.subscribe("never", "price < 10 AND price > 20")
    m.subscribe("either", "price < 10 OR price >= 10 OR price IS NULL")
    assert found(m, EVENT) == {"always", "either"}
    assert found(m, {}) == {"always", "either"}
    m.unsubscribe("never")
    m.update("always", where="FALSE")
    assert found(m, EVENT) == {"either"}


def test_a_subscription_with_many_disjuncts_matches_once(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(7, "firm = 'IBM' OR price < 100 OR price BETWEEN 80 AND 90 OR price > 200")
    assert m.match(EVENT) == [7]
    assert list(m.match_batch([EVENT, {}, {"price": 300}])) == [[7], [], [7]]


# Updates.


def test_an_update_of_some_parameters_keeps_the_others(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "price BETWEEN :low AND :high", params={"low": 10, "high": 20})
    m.update(1, params={"low": 15})
    assert found(m, {"price": 12}) == set()
    assert found(m, {"price": 17}) == {1}
    m.update(1, params={})
    assert found(m, {"price": 17}) == {1}


def test_an_update_of_the_condition_keeps_the_parameters_that_it_still_has(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "price > :low AND firm = :firm", params={"low": 10, "firm": "IBM"})
    m.update(1, where="price < :low")
    assert found(m, {"price": 5}) == {1}
    m.update(1, where="price < :low AND volume > :least", params={"least": 100})
    assert found(m, {"price": 5, "volume": 101}) == {1}
    assert found(m, {"price": 5, "volume": 100}) == set()


def test_an_update_of_both_takes_the_new_condition_with_the_new_parameters(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "price > :x", params={"x": 10})
    m.update(1, where="price < :x AND firm = :firm", params={"x": 5, "firm": "IBM"})
    assert found(m, {"price": 4, "firm": "IBM"}) == {1}
    m.update(1, where="volume = 3")
    with pytest.raises(ParameterError, match="has no parameters") as caught:
        m.update(1, params={"x": 1})
    assert caught.value.unknown == ("x",)


def test_an_update_may_change_a_subscription_that_came_in_bulk(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe_many({"id": ["a", "b"], "limit": [10, 20]}, where="price < :limit")
    m.subscribe_many({"id": ["c"], "where": ["price < 20"]})
    m.subscribe_many({"id": ["d"], "attribute": ["price"], "op": ["<"], "value": [20]})
    m.update("b", params={"limit": 5})
    m.update("c", where="price < :limit", params={"limit": 7})
    m.update("d", where="price > 7")
    assert found(m, {"price": 6}) == {"a", "c"}
    m.update("c", params={"limit": 6})
    assert found(m, {"price": 6}) == {"a"}
    with pytest.raises(ParameterError):
        m.update("d", params={"limit": 7})


def test_an_update_needs_something_to_change(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "price > 3")
    with pytest.raises(ArgumentError, match="update needs where, params or valid_until"):
        m.update(1)


# Ids.


@pytest.mark.parametrize("id", ["", "a", "été 😀", "a\0b", 0, -1, INT64_MAX, INT64_MIN])
def test_ids_are_strings_or_64_bit_integers(engine: str, id: str | int) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(id, "price > 3")
    assert id in m
    assert m.match({"price": 4}) == [id]
    assert m.match_batch([{"price": 4}]).to_table()["subscription"].to_pylist() == [id]
    m.update(id, where="price > 4")
    m.unsubscribe(id)
    assert id not in m


@pytest.mark.parametrize(
    "id",
    [None, True, 1.0, INT64_MAX + 1, INT64_MIN - 1, b"a", ("a",), [], {}, np.int64(1)],
    ids=repr,
)
def test_other_ids_are_refused(engine: str, id: Any) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "price > 3")
    for call in (
        lambda: m.subscribe(id, "price > 3"),
        lambda: m.update(id, where="price > 3"),
        lambda: m.unsubscribe(id),
        lambda: m.unsubscribe_many([1, id]),
        lambda: m.get(id),
        lambda: m.explain(id, {"price": 4}),
    )[: 6 if id is not None else 5]:  # explain(None) is about the index
        with pytest.raises(InvalidIdError) as caught:
            call()
        assert caught.value.subscription is id
    assert len(m) == 1


@pytest.mark.parametrize("id", [None, True, 1.0, [], {}, INT64_MAX + 1], ids=repr)
def test_what_is_no_id_is_not_in_a_matcher(engine: str, id: Any) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "price > 3")
    assert id not in m
    assert 1 in m


def test_a_string_and_an_integer_are_two_ids(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "price > 3")
    m.subscribe("1", "price > 4")
    assert found(m, {"price": 4}) == {1}
    assert found(m, {"price": 5}) == {1, "1"}
    m.unsubscribe(1)
    assert found(m, {"price": 5}) == {"1"}


def test_an_id_may_be_used_again(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    for limit in range(5):
        m.subscribe("a", f"price > {limit}")
        assert found(m, {"price": limit + 1}) == {"a"}
        assert found(m, {"price": limit}) == set()
        m.unsubscribe("a")
        assert found(m, {"price": limit + 1}) == set()


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "c"],
        ("a", "c"),
        {"a": 1, "c": 2}.keys(),
        pa.array(["a", "c"]),
        pa.chunked_array([["a"], ["c"]]),
        pa.array(["a", "c"]).dictionary_encode(),
        np.array(["a", "c"]),
        frozenset("ac"),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_many_are_unsubscribed_by_any_list_of_ids(engine: str, ids: Any) -> None:
    m = tocsin.Matcher(engine=engine)
    for name in "abcd":
        m.subscribe(name, "price > 3")
    m.unsubscribe_many(ids)
    assert found(m, {"price": 4}) == {"b", "d"}
    m.unsubscribe_many(iter([]))
    assert len(m) == 2


def test_integers_are_unsubscribed_by_numpy_arrays(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    for name in range(4):
        m.subscribe(name, "price > 3")
    m.unsubscribe_many(np.array([0, 3]))
    assert found(m, {"price": 4}) == {1, 2}


# Expiry.


def test_a_subscription_is_gone_from_valid_until_on(engine: str, clock: Clock) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    m.subscribe("a", "price > 3", valid_until=clock.now + 1)
    m.subscribe("b", "price > 3")
    assert found(m, {"price": 4}) == {"a", "b"}
    clock.seconds += 0.000_001
    assert found(m, {"price": 4}) == {"b"}
    assert len(m) == 1
    assert "a" not in m


@pytest.mark.parametrize(
    "until",
    [
        dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC),
        dt.datetime(2026, 7, 1, 12),
        dt.datetime(2026, 7, 1, 14, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        1_782_907_200_000_000,
    ],
    ids=["utc", "no zone", "another zone", "microseconds"],
)
def test_valid_until_is_a_moment_or_microseconds(
    engine: str, clock: Clock, until: dt.datetime | int
) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    m.subscribe("a", "price > 3", valid_until=until)
    clock.seconds = 1_782_907_199.999
    assert "a" in m
    clock.seconds = 1_782_907_200.0
    assert "a" not in m


@pytest.mark.parametrize("until", ["2026-07-01", 1.5, True, dt.date(2026, 7, 1)], ids=repr)
def test_any_other_valid_until_is_refused(engine: str, until: Any) -> None:
    m = tocsin.Matcher(engine=engine)
    with pytest.raises(ArgumentError, match="valid_until"):
        m.subscribe("a", "price > 3", valid_until=until)
    assert len(m) == 0


@pytest.mark.parametrize(
    "look",
    [
        lambda m: len(m) == 0,
        lambda m: "a" not in m,
        lambda m: m.match({"price": 4}) == [],
        lambda m: list(m.match_batch([{"price": 4}])) == [[]],
        lambda m: m.subscribe("a", "price > 3") is None,
        lambda m: m.subscribe_many({"id": ["a"], "where": ["x = 1"]}).loaded == 1,
        lambda m: "0 subscriptions" in repr(m),
    ],
    ids=["len", "in", "match", "match_batch", "subscribe", "subscribe_many", "repr"],
)
def test_every_call_sees_that_a_subscription_has_expired(
    engine: str, clock: Clock, look: Any
) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    m.subscribe("a", "price > 3", valid_until=clock.now + 5)
    clock.seconds += 1
    assert look(m)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.unsubscribe("a"),
        lambda m: m.unsubscribe_many(["a"]),
        lambda m: m.update("a", where="price > 4"),
        lambda m: m.explain("a"),
        lambda m: m.explain("a", {"price": 4}),
    ],
    ids=["unsubscribe", "unsubscribe_many", "update", "explain", "explain an event"],
)
def test_an_expired_subscription_is_unknown(engine: str, clock: Clock, call: Any) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    m.subscribe("a", "price > 3", valid_until=clock.now + 5)
    clock.seconds += 1
    with pytest.raises(UnknownSubscriptionError):
        call(m)


def test_an_update_keeps_valid_until(engine: str, clock: Clock) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    m.subscribe("a", "price > :x", params={"x": 3}, valid_until=clock.now + 2_000_000)
    m.update("a", params={"x": 4})
    m.update("a", where="price > :x OR price < 0")
    clock.seconds += 1
    assert found(m, {"price": 5}) == {"a"}
    clock.seconds += 1
    assert found(m, {"price": 5}) == set()
    assert len(m) == 0


def test_a_new_subscription_does_not_inherit_an_old_end(engine: str, clock: Clock) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    m.subscribe("a", "price > 3", valid_until=clock.now + 1_000_000)
    m.unsubscribe("a")
    m.subscribe("a", "price > 3")
    m.subscribe("b", "price > 3", valid_until=clock.now + 1_000_000)
    m.unsubscribe("b")
    m.subscribe("b", "price > 3", valid_until=clock.now + 3_000_000)
    clock.seconds += 2
    assert found(m, {"price": 4}) == {"a", "b"}
    clock.seconds += 2
    assert found(m, {"price": 4}) == {"a"}


def test_a_subscription_whose_time_has_passed_never_matches(engine: str, clock: Clock) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    m.subscribe("a", "price > 3", valid_until=clock.now)
    assert found(m, {"price": 4}) == set()
    m.subscribe("a", "price > 3", valid_until=0)
    assert len(m) == 0


def test_a_bulk_load_may_say_until_when(engine: str, clock: Clock) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    until = pa.array([clock.now + 1_000_000, None, clock.now + 3_000_000], pa.timestamp("us"))
    m.subscribe_many({"id": [1, 2, 3], "where": ["x = 1"] * 3, "valid_until": until})
    m.subscribe_many({"id": [4, 5, 6], "v": [1, 1, 1], "valid_until": until}, where="x = :v")
    assert found(m, {"x": 1}) == {1, 2, 3, 4, 5, 6}
    clock.seconds += 1
    assert found(m, {"x": 1}) == {2, 3, 5, 6}
    clock.seconds += 2
    assert found(m, {"x": 1}) == {2, 5}


def test_with_quarantined_rows_each_keeps_its_own_end(engine: str, clock: Clock) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    until = [clock.now + 1_000_000, clock.now + 2_000_000, clock.now + 3_000_000]
    report = m.subscribe_many(
        {"id": [1, 2, 3], "where": ["x = 1", "x =", "x = 1"], "valid_until": until},
        on_error="quarantine",
    )
    assert report.loaded == 2
    clock.seconds += 2
    assert found(m, {"x": 1}) == {3}
    clock.seconds += 1
    assert found(m, {"x": 1}) == set()


def test_many_expire_at_once(engine: str, clock: Clock) -> None:
    m = tocsin.Matcher(engine=engine, clock=clock)
    for i in range(50):
        m.subscribe(i, "x = 1", valid_until=clock.now + 1 + i % 5)
    clock.seconds += 0.000_003
    assert found(m, {"x": 1}) == {i for i in range(50) if i % 5 > 2}
    clock.seconds += 1
    assert len(m) == 0


# What a matcher is made with.


def test_declared_attributes_are_checked(engine: str) -> None:
    m = tocsin.Matcher(QUOTE, engine=engine)
    with pytest.raises(KindClashError) as caught:
        m.subscribe(1, "firm = 3")
    assert (caught.value.attribute, caught.value.declared) == ("firm", "string")
    assert caught.value.kind == "integer"
    m.subscribe(1, "undeclared = 3 AND volume > 2.5")
    assert found(m, {"undeclared": 3, "volume": 3}) == {1}
    assert m.event_type is QUOTE


def test_a_duplicate_id_is_refused(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    m.subscribe(1, "x = 1")
    with pytest.raises(DuplicateSubscriptionError) as caught:
        m.subscribe(1, "x = 2")
    assert caught.value.subscription == 1
    assert found(m, {"x": 1}) == {1}


def test_options_that_an_engine_does_not_have_are_refused(engine: str) -> None:
    with pytest.raises(ArgumentError, match="no option no_such_option"):
        tocsin.Matcher(engine=engine, no_such_option=1)


def test_an_unknown_engine_is_refused(engine: str) -> None:
    with pytest.raises(UnknownEngineError) as caught:
        tocsin.Matcher(engine=f"not {engine}")
    assert caught.value.name == f"not {engine}"
    assert engine in caught.value.known


def test_an_event_type_must_be_one(engine: str) -> None:
    with pytest.raises(ArgumentError, match="EventType"):
        tocsin.Matcher({"x": int}, engine=engine)  # type: ignore[arg-type]


def test_a_matcher_tells_what_it_is(engine: str) -> None:
    m = tocsin.Matcher(QUOTE, engine=engine)
    m.subscribe(1, "price < 3")
    assert repr(m) == f"<Matcher of Quote: 1 subscriptions, engine {engine}>"
    assert m.engine == engine
    m.match({"price": 2})
    assert m.nbytes >= 0


# Statistics.


def test_what_was_learned_of_events_changes_no_answer(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)
    expected = tocsin.Matcher(engine=engine)
    batch = pa.table({"x": [i % 7 for i in range(100)], "s": ["ab"[i % 2] for i in range(100)]})
    table = {
        "id": range(60),
        "a": [i % 7 for i in range(60)],
        "b": ["ab"[i % 2] for i in range(60)],
    }
    m.profile(batch)
    for matcher in (m, expected):
        matcher.subscribe_many(table, where="x <= :a AND s = :b OR x = 6")
    assert [sorted(ids) for ids in m.match_batch(batch)] == [
        sorted(ids) for ids in expected.match_batch(batch)
    ]
    m.profile([{"x": 1}, {"y": "of another kind"}])
    m.profile([])
    m.subscribe("late", "x = 3 AND s = 'a'")
    assert "late" in found(m, {"x": 3, "s": "a"})


def test_events_that_cannot_be_accepted_teach_nothing(engine: str) -> None:
    m = tocsin.Matcher(QUOTE, engine=engine)
    with pytest.raises(EventError):
        m.profile([{"price": "dear"}])
    with pytest.raises(ArgumentError):
        m.profile({"price": 3.0})


def test_a_rebuild_changes_no_answer_and_gives_back_what_was_unsubscribed(engine: str) -> None:
    """Engines that change in place keep their room for what comes next."""
    m = Matcher(engine=engine)
    m.rebuild()
    texts = [f"x = {i % 50} AND y = {i // 50}" for i in range(1_000)]
    m.subscribe_many(pa.table({"id": range(1_000), "where": texts}))
    assert found(m, {"x": 5, "y": 1}) == {55}
    before = m.nbytes
    m.unsubscribe_many(range(100, 1_000))
    m.subscribe("late", "x = 5")
    m.profile([{"x": 5, "y": i % 20} for i in range(400)])
    m.rebuild()
    assert found(m, {"x": 5, "y": 1}) == {55, "late"}
    assert found(m, {"x": 5, "y": 2}) == {"late"}
    assert len(m) == 101
    assert m.nbytes < before or engine not in ("auto", "tree")


# Threads.


def test_calls_from_several_threads_are_taken_one_at_a_time(engine: str) -> None:
    m = tocsin.Matcher(engine=engine)

    def live(first: int) -> int:
        n_matches = 0
        for i in range(first, first + 25):
            m.subscribe(i, f"x = {i}")
            n_matches += m.match({"x": i}) == [i]
            m.update(i, where=f"x = {i} OR y = 1")
            n_matches += len(m.match_batch([{"x": i}])[0])
            if i % 2:
                m.unsubscribe(i)
        return n_matches

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(live, range(0, 400, 100))) == [50] * 4
    assert len(m) == 4 * 13
    assert found(m, {"y": 1}) == {i for i in range(400) if i in m}
