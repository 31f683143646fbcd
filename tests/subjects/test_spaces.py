"""Several spaces: none is written into another, and a refused table changes nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import ArgumentError
from tocsin.subjects import (
    ENTER,
    LEAVE,
    Interest,
    InterestRegion,
    ObjectRegion,
    Publication,
    SubjectSpace,
    Transition,
)

PLACE = tocsin.EventType("Place", x=float)
NEWS = tocsin.EventType("News", topic=str)
ICE = pa.table({"key": ["a"], "topic": ["ice"]})


def test_a_refused_table_adds_no_key_and_the_folder_opens_again(tmp_path: Path) -> None:
    space = SubjectSpace.open(tmp_path, PLACE, NEWS, sync=False)
    regions = {"p": ObjectRegion({"x": 1.0}), "q": ObjectRegion({"topic": "ice"}, "News")}
    space.publish("r", Publication(regions, "any"))
    space.publish_many(ICE, space="News")
    for key in ("r", "a"):
        with pytest.raises(ArgumentError, match=f"'{key}'"):
            space.publish_many({"key": ["new", key], "x": [7.0, 8.0]})
        assert "new" not in space.publications
        assert len(space.publications) == 2
    space.publish_many({"key": ["new", "new"], "x": [7.0, 8.0]})
    space.update_publication("new", x=9.0)
    space.close()
    with SubjectSpace.open(tmp_path) as again:
        assert again.publication("new") == {"x": 9.0}
        assert again.publication("a") == {"topic": "ice"}
        assert again.publication("r") == space.publication("r")


def test_values_published_over_those_of_another_space_take_their_place() -> None:
    space = SubjectSpace(PLACE, NEWS)
    space.subscribe("x", "x > 1")
    space.subscribe("topic", Interest({"r": InterestRegion("topic = 'ice'", space="News")}))
    assert list(space.publish_many(ICE, space="News")) == [Transition(ENTER, "a", "topic")]
    assert list(space.publish("a", {"x": 5.0})) == [
        Transition(LEAVE, "a", "topic"),
        Transition(ENTER, "a", "x"),
    ]
    assert space.publication("a") == {"x": 5.0}
    assert space.publications_of("x") == ["a"]
    assert space.publications_of("topic") == []


def test_a_table_of_updates_is_refused_where_a_publication_is_in_another_space() -> None:
    space = SubjectSpace(PLACE, NEWS)
    space.publish_many(ICE, space="News")
    space.publish("b", {"x": 1.0})
    with pytest.raises(ArgumentError, match="'a'"):
        space.update_publications({"key": ["b", "a"], "x": [5.0, 5.0]})
    with pytest.raises(ArgumentError, match="'b'"):
        space.update_publications({"key": ["a", "b"], "topic": ["sun", "sun"]}, space="News")
    assert space.publication("a") == {"topic": "ice"}
    assert space.publication("b") == {"x": 1.0}
    space.update_publications({"key": ["a"], "topic": ["sun"]}, space="News")
    assert space.publication("a") == {"topic": "sun"}
