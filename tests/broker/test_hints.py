"""What the broker says about conditions that may never match."""

from __future__ import annotations

import uuid
import warnings
from typing import Any

import httpx
import pytest
from tests.broker.servers import Running

import tocsin
from tocsin.errors import ConditionWarning

pytestmark = pytest.mark.slow


def post(http: httpx.Client, where: str, **more: Any) -> list[str]:
    """Add a subscription and return the warnings of the answer."""
    answer = http.post("/subscriptions", json={"where": where, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["warnings"]


@pytest.fixture
def published(http: httpx.Client) -> str:
    """A type of its own, with some events."""
    type = f"Trade{uuid.uuid4().hex[:6]}"
    events = [{"price": 5.5, "firm": "IBM", "at": "2026-01-02T00:00:00Z"}] * 3
    http.post("/events", params={"type": type}, json=events).raise_for_status()
    return type


def test_a_misspelt_attribute_is_said_with_the_right_one(
    http: httpx.Client, published: str
) -> None:
    assert post(http, "pirce < 10", type=published) == [
        "none of the last 3 events has attribute 'pirce'; did you mean 'price'?"
    ]
    assert post(http, "price < 10 AND firm = 'IBM'", type=published) == []


def test_a_literal_of_another_kind_is_said(http: httpx.Client, published: str) -> None:
    (warning,) = post(http, "price < '10'", type=published)
    assert "'price': the values of recent events are numbers, such as 5.5" in warning
    assert "do not compare with strings" in warning


def test_a_text_that_is_a_timestamp_compares_with_timestamps(
    http: httpx.Client, published: str
) -> None:
    assert post(http, "at > TIMESTAMP '2026-01-01'", type=published) == []


def test_a_condition_that_can_never_match_is_said(http: httpx.Client) -> None:
    assert "the condition can never match" in post(http, "price BETWEEN 10 AND 5")
    assert "the condition can never match" in post(http, "price < :p", params={"p": None})


def test_an_attribute_that_the_declared_type_does_not_have_is_said(http: httpx.Client) -> None:
    said = post(http, "pirce < 10", type="Quote")
    assert any("not declared by Quote; did you mean 'price'?" in each for each in said)


def test_a_misspelt_type_is_said_with_the_right_one(http: httpx.Client) -> None:
    assert any("did you mean 'Quote'?" in each for each in post(http, "price < 10", type="Qoute"))


def test_changes_and_arrays_have_warnings_too(http: httpx.Client, published: str) -> None:
    id = uuid.uuid4().hex
    body = {"where": "price < 10", "type": published}
    assert http.put(f"/subscriptions/{id}", json=body).json()["warnings"] == []
    answer = http.patch(f"/subscriptions/{id}", json={"where": "pirce < 10"}).json()
    assert "did you mean 'price'?" in answer["warnings"][0]
    several = [
        {"id": f"{id}-a", **body},
        {"id": f"{id}-b", "where": "prize < 1", "type": published},
    ]
    answer = http.post("/subscriptions", json=several).json()
    assert [each["id"] for each in answer["warnings"]] == [f"{id}-b"]
    assert "warnings" not in http.get(f"/subscriptions/{id}").json()
    shown = http.get(f"/subscriptions/{id}", params={"warnings": "true"}).json()
    assert "did you mean 'price'?" in shown["warnings"][0]


def test_a_trial_of_a_condition_has_the_same_warnings(http: httpx.Client, published: str) -> None:
    answer = http.post("/conditions", json={"where": "pirce < 10", "type": published}).json()
    assert (answer["matched"], answer["recent"]) == (0, 3)
    assert "did you mean 'price'?" in answer["warnings"][0]


def test_the_client_repeats_what_the_broker_says(broker: Running, published: str) -> None:
    with tocsin.connect(broker.url) as client:
        with pytest.warns(ConditionWarning, match="did you mean 'price'"):
            id = client.subscribe(None, "pirce < 10", type=published)
        with pytest.warns(ConditionWarning, match="can never match"):
            client.update(id, "price = NULL")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.put(id, "price < 10", type=published)
