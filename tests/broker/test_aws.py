"""Messages as AWS has them become events."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tocsin.broker.protocol.aws import events_of
from tocsin.errors import EventError

NOTIFICATION: dict[str, Any] = {
    "Type": "Notification",
    "MessageId": "m-1",
    "TopicArn": "arn:aws:sns:eu-west-1:1:orders",
    "Subject": "an order",
    "Message": '{"store": "of the body", "price": 5}',
    "Timestamp": "2026-11-19T04:00:00Z",
    "MessageAttributes": {
        "store": {"Type": "String", "Value": "example"},
        "kinds": {"Type": "String.Array", "Value": '["a", "b", null, 5]'},
        "n": {"Type": "Number", "Value": "2.5"},
        "raw": {"Type": "Binary", "Value": "AAAA"},
    },
}


def test_the_fields_of_a_notification_are_its_attributes_and_its_body() -> None:
    assert events_of(NOTIFICATION) == [
        {
            "store": "example",
            "price": 5,
            "kinds": ["a", "b", None, 5],
            "n": 2.5,
            "sns": {
                "MessageId": "m-1",
                "TopicArn": "arn:aws:sns:eu-west-1:1:orders",
                "Subject": "an order",
                "Timestamp": "2026-11-19T04:00:00Z",
            },
        }
    ]


def test_a_body_that_is_no_object_is_a_text() -> None:
    (event,) = events_of({"Type": "Notification", "TopicArn": "t", "Message": "[1]"}) or []
    assert event["Message"] == "[1]"


def test_the_entries_of_batches_become_events() -> None:
    entry = {"Id": "1", "Message": "hello"}
    attributes = {"store": {"DataType": "String", "StringValue": "example"}}
    entries = [entry, {**entry, "MessageAttributes": attributes}]
    batch = {"TopicArn": "t", "PublishBatchRequestEntries": entries}
    first, second = events_of(batch) or []
    assert first == {"Message": "hello", "sns": {"TopicArn": "t"}}
    assert second["store"] == "example"
    put = {"Source": "shop", "DetailType": "sold", "Detail": '{"n": 1}', "Time": "2026-11-19"}
    assert events_of({"Entries": [put]}) == [
        {
            "version": "0",
            "source": "shop",
            "detail-type": "sold",
            "resources": [],
            "detail": {"n": 1},
            "time": "2026-11-19",
        }
    ]


@pytest.mark.parametrize("value", [5, None, {"a": 1}, {"Entries": 5}, {"Entries": [], "a": 1}])
def test_other_values_are_left_alone(value: object) -> None:
    assert events_of(value) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({**NOTIFICATION, "Type": "SubscriptionConfirmation"}, "SubscribeURL"),
        ({**NOTIFICATION, "MessageAttributes": [5]}, "JSON object"),
        ({**NOTIFICATION, "MessageAttributes": {"a": "x"}}, "a type and a value"),
        ({**NOTIFICATION, "MessageAttributes": {"a": {"Type": "Number", "Value": "x"}}}, "number"),
        (
            {**NOTIFICATION, "MessageAttributes": {"a": {"Type": "String.Array", "Value": "{}"}}},
            "array",
        ),
        ({"Entries": [5]}, "JSON object"),
        ({"Entries": [{"Source": "a", "DetailType": "b", "Detail": "x"}]}, "Detail"),
        ({"Entries": [{"Source": "a", "Detail": "{}"}]}, "DetailType"),
    ],
)
def test_what_is_ill_formed_is_refused(value: dict[str, Any], message: str) -> None:
    with pytest.raises(EventError, match=message):
        events_of(value)


def test_the_broker_takes_them_as_they_are(http: httpx.Client) -> None:
    answer = http.post("/events", params={"type": "sns"}, json=NOTIFICATION)
    assert answer.json()["accepted"] == 1
    entries = [{"Source": "s", "DetailType": "t", "Detail": json.dumps({"n": n})} for n in (1, 2)]
    answer = http.post("/events", params={"type": "bus"}, json={"Entries": entries})
    assert answer.json()["accepted"] == 2
    bad = {"Entries": [{"Source": "s"}]}
    assert http.post("/events", json=bad).status_code == 400
