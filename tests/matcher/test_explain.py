"""Explanations: how a subscription is kept, and why an event does or does not match."""

from __future__ import annotations

import pytest

import tocsin
from tocsin.engines import names
from tocsin.errors import ArgumentError, EventError, UnknownSubscriptionError
from tocsin.matcher import Matcher

QUOTE = tocsin.EventType("Quote", firm=str, price=float, volume=int)


@pytest.fixture(params=names())
def m(request: pytest.FixtureRequest) -> Matcher:
    m = tocsin.Matcher(QUOTE, engine=request.param)
    m.subscribe("alice", "firm = 'IBM' AND price < 100")
    m.subscribe("bob", "firm = :firm AND price < :limit", params={"firm": "IBM", "limit": 90.0})
    m.subscribe("never", "price < 10 AND price > 20")
    m.subscribe("always", "price IS NULL OR price IS NOT NULL")
    m.subscribe("either", "firm = 'IBM' AND price < 3 OR volume > 5")
    return m


def test_a_subscription_is_told_with_its_condition_and_its_normal_form(m: Matcher) -> None:
    told = m.explain("alice")
    assert told.startswith("subscription 'alice': firm = 'IBM' AND price < 100\n")
    assert "firm = 'IBM' and price < 100" in told


def test_parameters_are_told_with_their_values(m: Matcher) -> None:
    assert "price < 90" in m.explain("bob").splitlines()[0]
    m.update("bob", params={"limit": 80})
    assert "price < 80" in m.explain("bob").splitlines()[0]


def test_what_can_never_or_must_always_match_is_called_so(m: Matcher) -> None:
    assert "never" in m.explain("never")
    assert "always" in m.explain("always")
    assert "never" in m.explain("never", {"price": 15})
    assert m.explain("always", {}) == "match: the condition is always true"


def test_each_conjunction_is_told_on_its_own(m: Matcher) -> None:
    told = m.explain("either")
    assert "firm = 'IBM' and price < 3" in told
    assert "volume >= 6" in told


def test_of_a_match_the_conditions_that_hold_are_told_with_the_values(m: Matcher) -> None:
    told = m.explain("alice", {"firm": "IBM", "price": 89.5})
    assert told.startswith("match: ")
    assert "firm = 'IBM' ('IBM')" in told
    assert "price < 100 (89.5)" in told


def test_of_a_miss_the_conditions_that_fail_are_told_with_the_values(m: Matcher) -> None:
    told = m.explain("alice", {"firm": "IBM", "price": 100.0})
    assert told == "no match: not price < 100 (100.0)"
    assert "(absent)" in m.explain("alice", {"price": 3.0})


def test_of_several_conjunctions_each_failure_is_told(m: Matcher) -> None:
    told = m.explain("either", {"firm": "SAP", "volume": 5})
    assert told.startswith("no match: ")
    for part in ("'SAP'", "absent", "volume"):
        assert part in told


def test_an_explanation_agrees_with_the_match(m: Matcher) -> None:
    for firm in ("IBM", "SAP", None):
        for price in (None, 2.0, 15.0, 89.5, 95.0, 200.0):
            for volume in (5, 6):
                event = {"firm": firm, "price": price, "volume": volume}
                matched = m.match(event)
                for name in ("alice", "bob", "never", "always", "either"):
                    assert m.explain(name, event).startswith("match: ") is (name in matched)


def test_subscriptions_that_came_in_bulk_can_be_explained(m: Matcher) -> None:
    m.subscribe_many({"id": [1], "where": ["price > 5"]})
    m.subscribe_many({"id": [2], "limit": [7.5]}, where="price > :limit")
    m.subscribe_many({"id": [3], "attribute": ["price"], "op": [">="], "value": [9]})
    assert "price > 5" in m.explain(1)
    assert "price > 7.5" in m.explain(2)
    assert "price >= 9" in m.explain(3)
    assert m.explain(3, {"price": 9.0}).startswith("match: ")


def test_an_event_that_cannot_be_accepted_cannot_be_explained(m: Matcher) -> None:
    with pytest.raises(EventError) as caught:
        m.explain("alice", {"price": "dear"})
    assert caught.value.attribute == "price"
    with pytest.raises(EventError):
        m.explain("alice", 5)  # type: ignore[arg-type]


def test_an_unknown_subscription_cannot_be_explained(m: Matcher) -> None:
    with pytest.raises(UnknownSubscriptionError):
        m.explain("nobody")


def test_without_an_id_the_tables_are_listed_with_what_an_event_sees_of_them() -> None:
    m = tocsin.Matcher()
    m.subscribe_many(
        {"id": range(300), "firm": [f"f{i % 20}" for i in range(300)]}, where="firm = :firm"
    )
    assert m.explain() == "segment 1: 300 subscriptions\n  (firm): 300 entries, 15 an event"
    m.profile([{"firm": "f1"}, {"firm": "unheard of"}])
    assert m.explain().endswith("(firm): 300 entries, 7.5 an event")
    with pytest.raises(ArgumentError):
        m.explain(event={"firm": "f1"})


def test_an_empty_matcher_has_nothing_to_explain() -> None:
    assert tocsin.Matcher().explain() == "nothing is indexed"
