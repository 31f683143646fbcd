"""The verbs of subscriptions on a subject space: those of a matcher, which return transitions."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

import tocsin
from tocsin.errors import BadRowsError, UnknownSubscriptionError
from tocsin.subjects import Interest, InterestRegion, SubjectSpace, Transition
from tocsin.subjects.model import from_json
from tocsin.transitions.transition import ENTER, LEAVE

END = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def test_subscriptions_are_read_back_and_publications_have_a_view() -> None:
    space = SubjectSpace(clock=lambda: 0.0)
    space.publish("k", {"x": 1})
    space.subscribe("a", "x > :v", {"v": 0}, valid_until=END)
    assert space.subscribe_many({"id": ["b", "c"], "where": ["x = 1", "x = 2"]}).loaded == 2
    assert space.get("a") == tocsin.Subscription("a", "x > :v", {"v": 0}, END)
    assert (list(space), len(space), "a" in space, "k" in space) == (
        ["a", "b", "c"],
        3,
        True,
        False,
    )
    assert dict(space.publications) == {"k": {"x": 1}}
    assert "k" in space.publications
    again = SubjectSpace()
    again.subscribe_many(space.to_table())
    assert again.to_table().equals(space.to_table())
    with pytest.raises(UnknownSubscriptionError):
        space.get("k")


def test_an_interest_is_read_back_as_json() -> None:
    space = SubjectSpace()
    interest = Interest({"at": InterestRegion("x > 1")})
    space.subscribe("a", interest)
    assert from_json(space.get("a").where) == interest
    assert space.to_table().column("where")[0].as_py() == space.get("a").where


def test_updates_survive_opening_again(tmp_path: Path) -> None:
    with SubjectSpace.open(tmp_path / "space", clock=lambda: 0.0) as space:
        space.publish("k", {"x": 1})
        space.subscribe("a", "x = :v", {"v": 1}, valid_until=END)
        space.subscribe("b", "x = 5")
        assert list(space.update("a", valid_until=None)) == []
        assert space.get("a").valid_until is None
        found = space.update_many({"id": ["a", "b"], "where": ["x = 2", "x = 1"]})
        assert sorted(found, key=str) == sorted(
            [Transition(LEAVE, "k", "a"), Transition(ENTER, "k", "b")], key=str
        )
        assert (found.loaded, found.bad) == (2, ())
        with pytest.raises(BadRowsError, match="no subscription with id 'z'"):
            space.update_many({"id": ["z"], "where": ["x = 1"]})
        expected = space.to_table()
    with SubjectSpace.open(tmp_path / "space", clock=lambda: 0.0) as space:
        assert space.to_table().equals(expected)
        assert space.subscriptions_of("k") == ["b"]
