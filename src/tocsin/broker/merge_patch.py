"""Merge patches: an update of a publication names only the fields that change (RFC 7396).

Enters: a publication and an event under the same key. Leaves: the event with all fields. Named
fields replace those of the publication, objects are merged, null removes a field. The text of an
event has everything that conditions see, so that a publication restored from the database matches
the same conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.broker.events import JSON, Event, Publication, to_declared
from tocsin.broker.protocol import json_text
from tocsin.errors import LimitError
from tocsin.model import EventType


def _fields(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = json_text.read(event.text)
    if event.headers is not None and "ce" in event.headers:
        fields.pop("ce", None)
    return fields


def attributes_of(event: Event, event_type: EventType | None) -> dict[str, Any]:
    """Return the attributes of an event, from its text and context."""
    attributes = _fields(event)
    if event_type is not None:
        attributes = to_declared(attributes, event_type)
    context = (event.headers or {}).get("ce")
    if isinstance(context, dict):
        attributes = attributes | {f"ce.{name}": value for name, value in context.items()}
    return attributes


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return one object patched with another (RFC 7396)."""
    result = dict(old)
    for name, value in new.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            inner = result.get(name)
            result[name] = merged(inner if isinstance(inner, dict) else {}, value)
        else:
            result[name] = value
    return result


def merge(
    event: Publication, before: Event | None, event_type: EventType | None, most: int
) -> None:
    """Patch the publication before with an event, in the event; without an end it takes over that.

    Raises LimitError where the result is larger than `most` bytes.
    """
    fields = merged({} if before is None else _fields(before), _fields(event))
    headers = event.headers
    if before is not None:
        headers = {**(before.headers or {}), **(headers or {})} or None
        if event.valid_until is None:
            event.valid_until = before.valid_until
    context = (headers or {}).get("ce")
    event.text = json_text.write(fields | ({"ce": context} if isinstance(context, dict) else {}))
    if len(event.text) > most:
        raise LimitError(f"a publication has at most {most} bytes", "max_body")
    if headers is not None or event.body is not None:
        event.headers, event.body, event.content_type = headers, json_text.write(fields), JSON
    event.attributes = attributes_of(event, event_type)
