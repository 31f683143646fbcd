"""Messages in the forms that AWS sends and takes → the fields of events.

Enters: a JSON value. Leaves: one mapping for each event: of SNS, an HTTP notification or the
entries of a batch; of EventBridge, the entries that `PutEvents` takes. An event that EventBridge
delivers is fields already. None for any other value.

The fields of an SNS message are its attributes, and where its body is a JSON object the fields of
that; an attribute counts where both have a name. `sns` has what is said about the message.
"""

from __future__ import annotations

import json
from typing import Any

from tocsin.errors import EventError

_ABOUT = ("MessageId", "TopicArn", "Subject", "Timestamp")


def events_of(value: object) -> list[dict[str, Any]] | None:
    """Return the events in a value, or None where it is of none of these forms."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("TopicArn"), str) and "Message" in value and "Type" in value:
        return [_notification(value)]
    if set(value) <= {"TopicArn", "PublishBatchRequestEntries"}:
        entries = value.get("PublishBatchRequestEntries")
        if isinstance(entries, list):
            topic = {"TopicArn": value["TopicArn"]} if "TopicArn" in value else {}
            return [
                _message({**topic, **_entry(each, row)}, row) for row, each in enumerate(entries)
            ]
    if set(value) <= {"Entries", "EndpointId"} and isinstance(value.get("Entries"), list):
        return [_put_event(_entry(each, row), row) for row, each in enumerate(value["Entries"])]
    return None


def _entry(value: object, row: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EventError("an entry is a JSON object", row=row)
    return value


def _notification(value: dict[str, Any]) -> dict[str, Any]:
    if value["Type"] != "Notification":
        raise EventError(
            f"an SNS message of type {value['Type']!r}: confirm it at its SubscribeURL"
        )
    return _message(value, None)


def _message(value: dict[str, Any], row: int | None) -> dict[str, Any]:
    """Return the fields of a message."""
    body = _json(value.get("Message"))
    fields: dict[str, Any] = dict(body) if isinstance(body, dict) else {"Message": value["Message"]}
    attributes = value.get("MessageAttributes") or {}
    if not isinstance(attributes, dict):
        raise EventError("MessageAttributes is a JSON object", row=row)
    for name, attribute in attributes.items():
        read = _attribute(name, attribute, row)
        if read is not None:
            fields[name] = read
    return {**fields, "sns": {name: value[name] for name in _ABOUT if name in value}}


def _attribute(name: str, attribute: object, row: int | None) -> object:
    """Return the value of an attribute; None for bytes, which no policy can ask for."""
    if not isinstance(attribute, dict):
        raise EventError("an attribute has a type and a value", attribute=name, row=row)
    kind = str(attribute.get("Type", attribute.get("DataType")))
    value = attribute.get("Value", attribute.get("StringValue"))
    if kind.startswith("String.Array"):
        read = _json(value)
        if not isinstance(read, list):
            raise EventError("a String.Array is a JSON array", attribute=name, row=row)
        return read
    if kind.startswith("Number"):
        read = _json(value)
        if not isinstance(read, int | float) or isinstance(read, bool):
            raise EventError("a Number is a number", attribute=name, row=row)
        return read
    return value if isinstance(value, str) and kind.startswith("String") else None


def _put_event(entry: dict[str, Any], row: int) -> dict[str, Any]:
    """Return the event that an entry of `PutEvents` becomes."""
    detail = _json(entry.get("Detail"))
    if not isinstance(detail, dict):
        raise EventError("Detail is a JSON object as a text", attribute="Detail", row=row)
    for name in ("Source", "DetailType"):
        if not isinstance(entry.get(name), str):
            raise EventError(f"an entry has a {name}", attribute=name, row=row)
    event = {
        "version": "0",
        "source": entry["Source"],
        "detail-type": entry["DetailType"],
        "resources": entry.get("Resources", []),
        "detail": detail,
    }
    return event if "Time" not in entry else {**event, "time": entry["Time"]}


def _json(text: object) -> Any:
    """Return the value of a text in JSON; None for what is no such thing."""
    if not isinstance(text, str):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
