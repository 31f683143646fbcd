"""Events ↔ lines on a link.

Enters: an event of a broker. Leaves: a line of JSON that has all of it, and from it the same event
at the next broker, to be matched there. A line is

    ["PUB", number, origin, number there, type, valid until, envelope, the event]

where the first number is 0 for events that need no acknowledgement. The envelope has headers, body
and the key of a publication. It has `p` if the publication is sent only to subscribers that begin
to watch. Each broker parses the attributes itself, with the types that it declares.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from tocsin.broker.events import (
    OWN_HEADERS,
    Event,
    check_type,
    from_cloudevent,
    from_json,
    from_stomp,
    to_end,
)
from tocsin.broker.overlay.fields import shown, to_instance, to_number
from tocsin.broker.protocol import json_text
from tocsin.broker.protocol.cloudevents import CloudEvent, check_context
from tocsin.broker.terms import to_publication
from tocsin.errors import EventError, ProtocolError
from tocsin.model import EventType

_LONGEST_HEADER = 1 << 16


def to_line(
    event: Event, number: int, instance: str, with_key: bool, *, is_past: bool = False
) -> bytes:
    """Return an event as a line for a peer."""
    until = event.valid_until
    origin, there = event.origin or (instance, event.seq)
    envelope: dict[str, Any] = {}
    if event.headers is not None or event.body is not None:
        body = None if event.body is None else base64.b64encode(event.body).decode()
        envelope = {"h": event.headers, "b": body, "c": event.content_type}
    if with_key and event.key is not None:
        envelope |= {"k": event.key, "g": event.gone}
        if is_past:
            envelope["p"] = 1
    elif is_past:  # who asked does not watch any more, and it is no news: it is over
        until = 0
    head = ["PUB", number, origin, there, event.type, until, envelope or None]
    return json_text.write(head)[:-1] + b"," + event.text + b"]\n"


def of_line(plain: list[Any], types: Mapping[str, EventType]) -> Event:
    """Return the event of a line; what is ill-formed is refused as a publisher's would be."""
    if len(plain) != 8:
        raise EventError("PUB has 7 parts")
    _, _, origin, there, type, until, envelope, fields = plain
    try:
        source = to_instance(origin), to_number(there, "number of an event")
        type = check_type(type)
        event = _event(type, to_end(until), _envelope(envelope), fields, types.get(type or ""))
    except ProtocolError as error:
        raise EventError(str(error)) from None
    except (TypeError, KeyError, ValueError) as error:
        if isinstance(error, EventError):
            raise
        raise EventError(f"PUB has no event: {shown(error)}") from None
    event.origin = source
    return event


_ENDS = (None, "retracted", "expired")


def _envelope(plain: object) -> Mapping[str, Any]:
    """Return the envelope of an event, checked."""
    if plain is None:
        return {}
    if not isinstance(plain, dict) or set(plain) - {"h", "b", "c", "k", "g", "p"}:
        raise EventError(f"{shown(plain)} is no envelope of an event")
    headers, kind = plain.get("h"), plain.get("c", "")
    if headers is not None and not isinstance(headers, dict):
        raise EventError("headers are an object")
    if not isinstance(kind, str) or not (kind.isprintable() or not kind):
        raise EventError(f"{shown(kind)} is no content type")
    if headers is not None and "ce" not in headers:
        for name, value in headers.items():
            _check_header(name, value)
    if plain.get("g") not in _ENDS:
        raise EventError(f"{shown(plain['g'])} is no end of a publication")
    return plain


def _check_header(name: str, value: object) -> None:
    is_text = isinstance(value, str) and len(name) + len(value) <= _LONGEST_HEADER
    if not is_text or not name or "\0" in name or "\0" in value or name in OWN_HEADERS:  # type: ignore[operator]
        raise EventError(f"{shown(name)}: {shown(value)} is no header of an event")


def _event(
    type: str | None,
    until: int | None,
    envelope: Mapping[str, Any],
    fields: object,
    event_type: EventType | None,
) -> Event:
    headers, body = envelope.get("h"), envelope.get("b")
    raw = b"" if body is None else base64.b64decode(body, validate=True)
    if headers is not None and "ce" in headers:
        context = headers["ce"]
        if not isinstance(context, dict):
            raise EventError("a CloudEvent has a context")
        check_context(context)
        event = from_cloudevent(CloudEvent(context, raw), event_type)
        event.valid_until = until  # it need not be the end that the context names
    elif headers is not None:
        event = from_stomp(headers, raw, envelope["c"], type, event_type, until)
    else:
        event = from_json(fields, type, event_type, valid_until=until)
    if "k" in envelope:
        publication = to_publication(event, envelope["k"], event_type)
        publication.gone = envelope.get("g")
        publication.is_past = "p" in envelope
        return publication
    return event
