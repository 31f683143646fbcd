"""A subject space, call by call."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tocsin
from tocsin.catalog import subscriptions
from tocsin.errors import (
    ArgumentError,
    BadRowsError,
    CapacityError,
    DuplicateSubscriptionError,
    EventError,
    ParameterError,
    StoreError,
    UnknownPublicationError,
    UnknownSubscriptionError,
)
from tocsin.subjects import (
    ENTER,
    LEAVE,
    AtLeast,
    Interest,
    InterestRegion,
    ObjectRegion,
    Publication,
    Range,
    SubjectSpace,
    Transition,
)

pytestmark = pytest.mark.slow

POSITION = tocsin.EventType("Position", zone=str, x=float, n=int)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def told(found: Any) -> list[tuple[str, Any, Any]]:
    return sorted((t.kind.value, t.key, t.subscription) for t in found)


def test_a_truck_that_enters_a_zone_rings_once() -> None:
    space = tocsin.SubjectSpace(POSITION)
    space.subscribe("dispatch", "zone = 'harbour'")
    assert list(space.publish("truck", {"zone": "road"})) == []
    assert list(space.update_publication("truck", zone="harbour")) == [
        Transition(ENTER, "truck", "dispatch")
    ]
    assert list(space.update_publication("truck", x=3.5)) == []
    assert list(space.update_publication("truck", zone="harbour", x=4.0)) == []
    assert space.publication("truck") == {"zone": "harbour", "x": 4.0}
    assert list(space.update_publication("truck", zone=None)) == [
        Transition(LEAVE, "truck", "dispatch")
    ]


def test_a_subscriber_chooses_what_it_is_told() -> None:
    space = SubjectSpace(POSITION)
    for notify in ("both", "enter", "leave"):
        space.subscribe(notify, "x > 1", notify=notify)
    assert told(space.publish(1, {"x": 2})) == [("ENTER", 1, "both"), ("ENTER", 1, "enter")]
    assert told(space.update_publication(1, x=0)) == [("LEAVE", 1, "both"), ("LEAVE", 1, "leave")]
    space.update("leave", notify="enter")
    assert told(space.update_publication(1, x=5)) == [
        ("ENTER", 1, x) for x in ("both", "enter", "leave")
    ]
    with pytest.raises(ArgumentError):
        space.subscribe("no", "x > 1", notify="sometimes")


def test_publications_and_subscriptions_end_by_the_clock_in_their_order() -> None:
    clock = Clock()
    space = SubjectSpace(POSITION, clock=clock)
    space.subscribe("long", "x > 0")
    space.subscribe("short", "x > 0", ttl=5)
    space.publish("a", {"x": 1}, ttl=3)
    space.publish("b", {"x": 1}, ttl=dt.timedelta(seconds=7))
    space.publish("c", {"x": 1}, ttl=2)
    space.touch("c", 100)
    clock.now += 10
    expected = [("LEAVE", "a", "long"), ("LEAVE", "a", "short"), ("LEAVE", "b", "long")]
    assert told(space.expire()) == expected
    assert len(space.publications) == 1
    assert "c" in space.publications
    assert len(space) == 1
    clock.now += 100
    assert len(space.publications) == 0
    assert told(space.publish("d", {"x": 1})) == [("ENTER", "d", "long"), ("LEAVE", "c", "long")]
    with pytest.raises(UnknownPublicationError):
        space.update_publication("c", x=2)
    with pytest.raises(ArgumentError):
        space.publish("e", {}, ttl=-1)
    assert "e" not in space.publications


def test_parameters_move_bounds_and_only_those_between_are_told() -> None:
    space = SubjectSpace(POSITION)
    space.publish_many(pa.table({"key": range(500), "x": np.arange(500) / 10}))
    assert len(space.subscribe("s", "x < :limit", {"limit": 10})) == 100
    for limit in (12, 11, 30, 11.05):
        before = set(space.publications_of("s"))
        found = space.update("s", params={"limit": limit})
        after = {key for key in range(500) if key / 10 < limit}
        assert set(space.publications_of("s")) == after
        expected = [("ENTER", k, "s") for k in after - before]
        assert told(found) == sorted(expected + [("LEAVE", k, "s") for k in before - after])
        space.update_publications({"key": [1, 2], "x": [0.15, 0.25]})
    with pytest.raises(ParameterError):
        space.update("s", params={"other": 1})


def test_a_batch_tells_what_its_rows_would_one_after_another() -> None:
    random = np.random.default_rng(5)
    one, many = SubjectSpace(POSITION), SubjectSpace(POSITION)
    texts = [f"x BETWEEN {i} AND {i + 3} AND n <> {i}" for i in range(40)]
    texts += ["zone = 'a' OR n IS NULL", "zone LIKE '%b%'"]
    many.subscribe_many(pa.table({"id": range(42), "where": texts}))
    for id, text in enumerate(texts):
        one.subscribe(id, text)
    for publish in (True, False, True, False):
        n = 60
        table = pa.table(
            {
                "key": random.integers(0, 25, n) if publish else random.choice(list(KEYS), n),
                "x": pa.array(random.integers(0, 40, n), mask=random.random(n) < 0.2),
                "zone": random.choice(["a", "ab", "c"], n),
            }
        )
        if publish:
            KEYS.update(table["key"].to_pylist())
            found = many.publish_many(table)
            expected = [one.publish(row.pop("key"), row) for row in table.to_pylist()]
        else:
            found = many.update_publications(table)
            expected = [one.update_publication(row.pop("key"), row) for row in table.to_pylist()]
        flat = [t for part in expected for t in part]
        assert told(found) == told(flat)
        assert found.to_table().num_rows == len(flat)
    kept = many.update_publications({"key": [0], "x": pa.array([None], pa.float64())}, nulls="keep")
    assert len(kept) == 0
    for id in range(42):
        assert sorted(one.publications_of(id)) == sorted(many.publications_of(id))


KEYS: set[int] = set()


def test_ranges_may_come_in_columns_and_nested_values_by_their_paths() -> None:
    space = SubjectSpace()
    space.subscribe("s", "span > 5 AND order.total = 3")
    table = pa.table(
        {
            "key": ["a", "b"],
            "span": [{"low": 1, "high": 9}, {"low": 1, "high": 4}],
            "order": [{"total": 3}, {"total": 3}],
        }
    )
    assert told(space.publish_many(table)) == [("ENTER", "a", "s")]
    assert told(space.publish("c", {"span": 6, "order": {"total": 3}})) == [("ENTER", "c", "s")]
    assert told(space.update_publication("b", span=Range(1, 6))) == [("ENTER", "b", "s")]
    assert space.publication("b") == {"span": Range(1, 6), "order": [], "order.total": 3}


def test_regions_and_filters_hold_on_both_sides() -> None:
    news = tocsin.EventType("News", topic=str)
    space = SubjectSpace(POSITION, news)
    zones = {"inner": InterestRegion("x < 10"), "outer": InterestRegion("x < 5")}
    space.subscribe("ring", Interest(zones, "inner AND NOT outer"))
    topics = {"p": InterestRegion("x > 0"), "t": InterestRegion("topic = 'ice'", {}, "News")}
    space.subscribe("both", Interest(topics))
    assert told(space.publish("k", {"x": 7})) == [("ENTER", "k", "ring")]
    assert told(space.update_publication("k", x=4)) == [("LEAVE", "k", "ring")]
    regions = {"at": ObjectRegion({"x": 7}), "about": ObjectRegion({"topic": "ice"}, "News")}
    assert told(space.publish("m", Publication(regions))) == [("ENTER", "m", "both")]
    assert told(space.update_region("m", "about", {"topic": "sun"})) == [("LEAVE", "m", "both")]
    found = space.publish("m", Publication(regions, AtLeast(1)))
    assert told(found) == [("ENTER", "m", "both"), ("ENTER", "m", "ring")]
    assert space.publication("m") == Publication(
        {"at": ObjectRegion({"x": 7.0}, "Position"), "about": regions["about"]}, AtLeast(1)
    )
    with pytest.raises(ArgumentError, match="region"):
        space.update_publication("m", x=1)


def test_what_is_refused_changes_nothing() -> None:
    space = SubjectSpace(POSITION)
    space.subscribe("s", "x > 1")
    space.publish("k", {"x": 2.0, "zone": "a"})
    with pytest.raises(EventError):
        space.publish("k", {"x": "high"})
    with pytest.raises(EventError, match="no value"):
        space.update_publication("k", x=Range(3, 3, low_open=True))
    with pytest.raises(EventError):
        space.update_publication("k", n=Range(1.2, 1.8))
    with pytest.raises(EventError):
        space.update_publications({"key": ["k"], "x": ["high"]})
    with pytest.raises(UnknownPublicationError):
        space.update_publications({"key": ["k", "j"], "x": [0, 0]})
    with pytest.raises(DuplicateSubscriptionError):
        space.subscribe("s", "x > 5")
    with pytest.raises(BadRowsError):
        space.subscribe_many({"id": ["a", "s"], "where": ["x > 0", "x > 0"]})
    with pytest.raises(UnknownSubscriptionError):
        space.update("t", where="x > 1")
    with pytest.raises(tocsin.errors.TocsinError):
        space.update("s", where="x >")
    assert space.publication("k") == {"x": 2.0, "zone": "a"}
    assert space.publications_of("s") == ["k"]
    assert len(space) == 1
    found = space.subscribe_many(
        {"id": ["a", "s"], "where": ["x > 0", "x > 0"]}, on_error="quarantine"
    )
    assert [bad.id for bad in found.bad] == ["s"]
    assert told(found) == [("ENTER", "k", "a")]


def test_strings_that_crowd_each_other_keep_their_order() -> None:
    space = SubjectSpace()
    space.subscribe("s", "s >= 'm'")
    space.subscribe("t", "s BETWEEN 'b' AND 'bbbb'")
    for i in range(120):
        text = "b" * (130 - i)
        expected = [("ENTER", i, "t")] if "b" <= text <= "bbbb" else []
        assert told(space.publish(i, {"s": text})) == expected
    assert told(space.update_publication(0, s="n")) == [("ENTER", 0, "s")]


# On disk, in one process; `test_durability` has what happens when one is killed.


def test_a_closed_space_is_the_same_when_opened_again(tmp_path: Path) -> None:
    clock = Clock()
    space = SubjectSpace.open(tmp_path / "a", POSITION, clock=clock)
    space.subscribe("s", "x > :low", {"low": 1})
    zones = {"inner": InterestRegion("x < 10"), "outer": InterestRegion("zone LIKE '%b'")}
    space.subscribe("ring", Interest(zones, "inner AND NOT outer"), ttl=50)
    space.subscribe_many({"id": range(300), "where": [f"n = {i}" for i in range(300)]})
    space.publish_many({"key": range(50), "n": range(50), "x": [0.5] * 50})
    space.publish("k", {"x": Range(0, 3), "zone": "ab"}, ttl=20)
    space.publish("m", Publication({"p": ObjectRegion({"x": 2}), "q": ObjectRegion({"n": 7})}))
    space.retract(3)
    before = state_of(space)
    space.close()
    with pytest.raises(StoreError):
        space.publish("late", {})
    for compact in (False, True, True):
        space = SubjectSpace.open(tmp_path / "a", clock=clock)
        assert state_of(space) == before
        if compact:
            space.compact()
            assert space.recovered == () or len(space.recovered) > 0
        space.close()
    space = SubjectSpace.open(tmp_path / "a", clock=clock)
    assert told(space.update("s", params={"low": 2.5})) == []
    clock.now += 30
    assert told(space.expire()) == [("LEAVE", "k", "s")]
    space.close()
    with pytest.raises(ArgumentError, match="other spaces"):
        SubjectSpace.open(tmp_path / "a", tocsin.EventType("Other"))


def state_of(space: SubjectSpace) -> Any:
    keys = sorted(space._publications.keys.row_of, key=repr)
    ids = sorted(
        space._subscriptions.catalog.names.to_list(space._subscriptions.catalog.live()), key=repr
    )
    relation = {id: sorted(space.publications_of(id), key=repr) for id in ids}
    return [space.sequence, [(key, space.publication(key)) for key in keys], relation]


def test_a_space_gives_dense_ids_again_and_forgets_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MOST_IDS", 40)
    with SubjectSpace.open(tmp_path / "a", POSITION) as space:
        zones = {"inner": InterestRegion("x < 10"), "outer": InterestRegion("zone LIKE '%b'")}
        space.subscribe("ring", Interest(zones, "inner AND NOT outer"), notify="enter")
        space.publish("k", {"x": 5.0, "n": 7})
        for i in range(200):
            space.subscribe(i, f"n = {i % 10}")
            assert space.subscriptions_of("k") == ["ring"] + [i] * (i % 10 == 7)
            space.unsubscribe(i)
        assert space._subscriptions.catalog.next_dense <= 40
        assert len(space._state.box_index.subs.state) <= 64
        space.subscribe_many({"id": range(30), "where": [f"n = {i}" for i in range(30)]})
        before = state_of(space)
        with pytest.raises(CapacityError, match="at most 40"):
            space.subscribe_many({"id": range(100, 110), "where": ["n = 1"] * 10})
        assert state_of(space) == before
    with SubjectSpace.open(tmp_path / "a") as again:
        assert state_of(again) == before
        changed = sorted(told(again.update_publication("k", n=8, zone="b")))
        assert changed == [("ENTER", "k", 8), ("LEAVE", "k", 7)]
