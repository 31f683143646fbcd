"""Publications, subscriptions and filters as users write them; no kernels are needed here."""

from __future__ import annotations

import datetime as dt
import json
import math

import numpy as np
import pytest

from tocsin.errors import ArgumentError, TocsinError
from tocsin.normalize.keys import integer_keys, key_of_number
from tocsin.subjects.filters import FilterTerms, to_terms
from tocsin.subjects.model import (
    AtLeast,
    Interest,
    InterestRegion,
    ObjectRegion,
    Publication,
    Range,
    from_json,
    to_json,
    value_from_json,
    value_to_json,
)
from tocsin.subjects.positions import (
    FIRST_DOMAIN,
    Labels,
    LabelsExhausted,
    cut_of,
    position,
    positions,
    relabel,
)


def test_publications_and_subscriptions_survive_json() -> None:
    moment = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    values = {"x": 1.5, "r": Range(1, None, low_open=True), "t": moment, "s": "a", "b": True}
    publication = Publication({"a": ObjectRegion(values, "Place")}, AtLeast(1))
    asked = InterestRegion("x < :limit", {"limit": 3})
    subscription = Interest({"a": asked, "b": InterestRegion("y > 1")}, "a AND NOT b")
    for given in (publication, subscription):
        assert from_json(json.loads(json.dumps(to_json(given)))) == given
        assert from_json(json.dumps(to_json(given))) == given


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.1, 2**62, None, "x", True, Range()])
def test_values_survive_json(value: object) -> None:
    again = value_from_json(json.loads(json.dumps(value_to_json(value))))
    assert again == value
    assert type(again) is type(value)
    assert math.isnan(value_from_json(json.loads(json.dumps(value_to_json(math.nan)))))


@pytest.mark.parametrize(
    "given",
    ["[]", "{", '{"regions": {"a": {}}}', '{"regions": {"a": {"values": {"x": {"y": 1}}}}}'],
)
def test_json_that_is_no_publication_is_refused_by_our_error(given: str) -> None:
    with pytest.raises(TocsinError):
        from_json(given)


def test_filters_become_counts_and_terms() -> None:
    assert to_terms("all", "abc") == FilterTerms(3)
    assert to_terms("any", "abc") == FilterTerms(1)
    assert to_terms(AtLeast(2), "abc") == FilterTerms(2)
    terms = to_terms("a AND (b OR NOT c)", "abc")
    holds = [hits for hits in range(8) if terms.holds(hits)]
    assert holds == [0b001, 0b011, 0b111]


@pytest.mark.parametrize(
    "given",
    ["NOT a", "a OR NOT a", "TRUE", "a AND NOT a", "d", "a = 1", "a >", AtLeast(0), AtLeast(4), 3],
)
def test_filters_that_hold_for_nothing_or_name_nothing_are_refused(given: object) -> None:
    with pytest.raises(TocsinError):
        to_terms(given, ["a", "b", "c"])  # type: ignore[arg-type]
    assert issubclass(ArgumentError, TocsinError)


def test_places_are_ordered_as_the_cuts_of_numbers_are() -> None:
    numbers = [-math.inf, -(2**63), -2.5, -1, 0, 1e-300, 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1]
    cuts = [key_of_number(number) for number in numbers]
    found = [position(FIRST_DOMAIN, key, offset + side) for key, offset in cuts for side in (0, 1)]
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    for (key, offset), at in zip(cuts, found[::2], strict=True):
        assert cut_of(*at) == (FIRST_DOMAIN, key, offset)
    whole = np.array([n for n in numbers if isinstance(n, int)])
    upper, lower = positions(FIRST_DOMAIN, *integer_keys(whole))
    expected = [position(FIRST_DOMAIN, *key_of_number(int(n))) for n in whole]
    assert list(zip(upper.tolist(), lower.tolist(), strict=True)) == expected


def test_labels_are_ordered_as_the_strings_are_however_they_come() -> None:
    labels = Labels()
    for text in ("a", "z"):
        labels.add(text)

    def crowd() -> None:
        for i in range(100):
            labels.add("b" * (100 - i))

    with pytest.raises(LabelsExhausted):
        crowd()
    strings = sorted(labels.label_of)
    assert strings == labels.strings
    assert sorted(labels.label_of.values()) == [labels.label_of[text] for text in strings]
    old, new = labels.spread(["m", "n"])
    assert len(old) == len(new) == len(strings)
    assert np.all(np.diff(new) > 0)
    key = np.array([labels.label_of["a"]])
    upper, lower = positions(3, old[:1], np.array([1]))
    moved = relabel(upper, lower, old, new)
    assert cut_of(int(moved[0][0]), int(moved[1][0])) == (3, int(key[0]), 1)
