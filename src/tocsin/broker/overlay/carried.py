"""Events ↔ lines on a link.

Enters: an event of a broker. Leaves: a line of JSON that has all of it, and from it the same event
at the next broker, to be matched there. A line is

    ["PUB", number, origin, number there, type, valid until, what is beside the text, the event]

where the first number is 0 for what need not be acknowledged. Beside the text is `p` where a
publication is told to those that begin to watch: it is no news to anybody else. Attributes are
read anew at each broker, so that types which are declared there count.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from tocsin.broker.events import Event, from_cloudevent, from_json, from_stomp
from tocsin.broker.keyed import to_publication
from tocsin.broker.protocol import json_text
from tocsin.broker.protocol.cloudevents import CloudEvent
from tocsin.errors import EventError, ProtocolError
from tocsin.model import EventType


def to_line(
    event: Event, number: int, instance: str, with_key: bool, *, is_past: bool = False
) -> bytes:
    """Return an event as a line for a neighbour."""
    until = event.valid_until
    origin, there = event.origin or (instance, event.seq)
    beside: dict[str, Any] = {}
    if event.headers is not None or event.body is not None:
        body = None if event.body is None else base64.b64encode(event.body).decode()
        beside = {"h": event.headers, "b": body, "c": event.content_type}
    if with_key and event.key is not None:
        beside |= {"k": event.key, "g": event.gone}
        if is_past:
            beside["p"] = 1
    elif is_past:  # who asked does not watch any more, and it is no news: it is over
        until = 0
    head = ["PUB", number, origin, there, event.type, until, beside or None]
    return json_text.write(head)[:-1] + b"," + event.text + b"]\n"


def of_line(plain: list[Any], types: Mapping[str, EventType]) -> tuple[int, Event]:
    """Return the number on the link, and the event."""
    if len(plain) != 8:
        raise ProtocolError("PUB has 7 parts")
    _, number, origin, there, type, until, beside, fields = plain
    if number.__class__ is not int or there.__class__ is not int or not isinstance(origin, str):
        raise ProtocolError("PUB has numbers and an origin")
    try:
        event = _event(type, until, beside or {}, fields, types.get(type or ""))
    except (TypeError, KeyError, ValueError) as error:
        if isinstance(error, EventError):
            raise
        raise ProtocolError(f"PUB has no event: {error!r}") from None
    event.origin = (origin, there)
    return number, event


def _event(
    type: str | None,
    until: int | None,
    beside: Mapping[str, Any],
    fields: object,
    event_type: EventType | None,
) -> Event:
    headers, body = beside.get("h"), beside.get("b")
    raw = b"" if body is None else base64.b64decode(body)
    if headers is not None and "ce" in headers:
        event = from_cloudevent(CloudEvent(headers["ce"], raw), event_type)
        event.valid_until = until  # it need not be the end that the context names
    elif headers is not None:
        event = from_stomp(headers, raw, beside["c"], type, event_type, until)
    else:
        event = from_json(fields, type, event_type, valid_until=until)
    if "k" in beside:
        publication = to_publication(event, beside["k"], event_type)
        publication.gone = beside["g"]
        publication.is_past = "p" in beside
        return publication
    return event
