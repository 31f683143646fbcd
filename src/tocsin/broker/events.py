"""Events between the wire and the matcher.

Enters: what a protocol read. Leaves: an `Event`: attributes for conditions, bytes for
subscribers. The attributes of a STOMP message are the fields of its JSON body and its
headers; a header that reads as a number is both a number and a text until the matchers say what
conditions compare it with (`header_columns.py`).
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.broker.protocol import json_text
from tocsin.broker.protocol.cloudevents import CloudEvent, is_json
from tocsin.broker.protocol.text import has_controls
from tocsin.encode.events import check_event, lookup
from tocsin.errors import EventError
from tocsin.model import EventType, Kind, from_microseconds, is_unicode

JSON = "application/json"
_NUMBER = re.compile(r"[+-]?(\d+|(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d{1,3})?)", re.ASCII).fullmatch
MAX_TYPE = 200
OWN_HEADERS = frozenset(
    "destination content-type content-length receipt transaction valid-until message-id "
    "subscription ack redelivered delivery-count missed key ttl merge retract retain transition "
    "gone".split()
)
"""Headers of STOMP frames that are no attributes of an event."""
_KINDS = (str | None, bytes, int | None, int)
"""The kinds of a stored event's type, text, end and moment."""
UNADDRESSABLE = (".", "..")
"""Keys and ids that would be taken for steps of a path, percent-encoded or not."""


class Event:
    """One event.

    Conditions see `attributes`; `text` is the same as a line of JSON. `headers`, `body` and
    `content_type` are as a STOMP or CloudEvents publisher sent them, where they are not the text.
    It is retained for later subscriptions until `retain_until`. `origin` is the broker of a network
    where it was published, `source` the peer that sent it here.
    """

    key: str | None = None
    gone: str | None = None
    is_past: bool = False
    transitions: Sequence[tuple[int, int]] = ()

    __slots__ = (
        "attributes", "body", "content_type", "headers", "json", "numbers", "origin", "published",
        "retain_until", "seq", "source", "sse", "stomp", "text", "type", "valid_until",
    )  # fmt: skip

    def __init__(
        self,
        type: str | None,
        attributes: dict[str, Any],
        text: bytes,
        *,
        headers: dict[str, Any] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        numbers: dict[str, int | float] | None = None,
        valid_until: int | None = None,
    ) -> None:
        self.type = type
        self.attributes = attributes
        self.text = text
        self.headers = headers
        self.body = body
        self.content_type = content_type
        self.numbers = numbers
        self.valid_until = valid_until
        self.retain_until: int | None = None
        self.origin: tuple[str, int] | None = None
        self.source: str | None = None
        self.json: bytes | None = None
        self.sse: tuple[bytes, bytes] | None = None
        self.stomp: bytes | None = None
        self.seq = 0
        self.published = 0

    def extra(self) -> bytes | None:
        """Return what is stored besides the text."""
        if self.headers is None and self.body is None and self.origin is None:
            return None
        return json_text.write(self._to_extra())

    def _to_extra(self) -> dict[str, Any]:
        body = None if self.body is None else base64.b64encode(self.body).decode()
        stored = {"h": self.headers, "b": body, "c": self.content_type}
        return stored if self.origin is None else stored | {"o": self.origin}

    @classmethod
    def restored(
        cls,
        seq: int,
        type: str | None,
        text: bytes,
        extra: bytes | None,
        valid_until: int | None,
        published: int,
    ) -> Event:
        """Return a stored event, to be delivered but not matched again.

        Raises an EventError where a damaged disk changed the row.
        """
        if not all(map(isinstance, (type, text, valid_until, published), _KINDS)):
            raise EventError(f"event {seq} is damaged on disk: a column has another kind of value")
        event = cls(type, {}, text, valid_until=valid_until)
        event.seq, event.published = seq, published
        if extra is None:
            return event
        try:
            stored = json_text.read(extra)
            event.headers, event.content_type = stored["h"], stored["c"]
            event.body = None if stored["b"] is None else base64.b64decode(stored["b"])
            if "o" in stored:
                event.origin = (stored["o"][0], stored["o"][1])
            if "k" in stored:
                event = Publication(event, stored["k"], gone=stored.get("g"))
        except (AttributeError, EventError, LookupError, TypeError, ValueError) as error:
            raise EventError(f"event {seq} is damaged on disk: {error!r}") from None
        return event


class Publication(Event):
    """An event under a key.

    `merges`: it patches the publication under its key. `gone`: how it ended, `retracted` or
    `expired`. `transitions`: numbers of subscriptions with ENTER or LEAVE. `is_past`: a peer had
    it before, so only subscriptions to transitions are notified of it.
    """

    __slots__ = ("_patch", "gone", "is_past", "key", "merges", "transitions")

    def __init__(self, source: Event, key: str, *, merges: bool = False, gone: str | None = None):
        super().__init__(
            source.type,
            source.attributes,
            source.text,
            headers=source.headers,
            body=source.body,
            content_type=source.content_type,
            valid_until=source.valid_until,
        )
        self.retain_until = source.retain_until
        self.origin, self.source = source.origin, source.source
        self.seq, self.published = source.seq, source.published
        self.key: str | None = key
        self.merges = merges
        self.gone = gone
        self.is_past = False
        self.transitions: Sequence[tuple[int, int]] = ()
        self._patch: tuple[Any, ...] | None = None

    def begin_merge(self) -> None:
        """Restore the content that was published: a batch that fails is run again."""
        if self._patch is None:
            self._patch = (
                self.text, self.headers, self.body, self.content_type, self.valid_until
            )  # fmt: skip
        else:
            self.text, self.headers, self.body, self.content_type, self.valid_until = self._patch

    @property
    def address(self) -> tuple[str | None, str]:
        """The type and the key."""
        assert self.key is not None
        return self.type, self.key

    def extra(self) -> bytes:
        """Return what is stored besides the text."""
        stored = self._to_extra() | {"k": self.key}
        return json_text.write(stored | ({} if self.gone is None else {"g": self.gone}))

    def copied(self, gone: str | None = None) -> Publication:
        """Return a copy, to be delivered under a number of its own."""
        assert self.key is not None
        copy = Publication(self, self.key, gone=gone)
        copy.origin = copy.source = None
        return copy


def check_type(name: object) -> str | None:
    """Return the name of an event type, None where there is none, or refuse it."""
    if name is None or name == "":
        return None
    if not isinstance(name, str) or len(name) > MAX_TYPE or not is_unicode(name):
        raise EventError(f"the name of an event type is a text of at most {MAX_TYPE} characters")
    if not name.isprintable() or name == "*":
        raise EventError("the name of an event type has odd characters")
    return name


def from_json(
    fields: object,
    type: str | None,
    event_type: EventType | None,
    *,
    raw: bytes | None = None,
    row: int | None = None,
    valid_until: int | None = None,
) -> Event:
    """Return the event of a JSON value; `raw` is its text, where it stands on a line alone."""
    if not isinstance(fields, dict):
        raise EventError("an event is a JSON object", row=row)
    if event_type is not None:
        attributes = to_declared(fields, event_type, row)
    else:
        attributes = fields
        _check_sizes(fields, row)
    if raw is None or b"\n" in raw or b"\r" in raw:
        raw = json_text.write(fields)
    else:
        json_text.check_depth(raw, fields)
    return Event(type, attributes, raw, valid_until=valid_until)


def from_json_rows(
    values: Sequence[object], type: str | None, event_type: EventType | None, is_small: bool
) -> list[Event]:
    """Return the events of JSON values; `is_small` says that no integer is beyond 64 bits."""
    if event_type is not None or not is_small:
        return [from_json(each, type, event_type, row=row) for row, each in enumerate(values)]
    write, events = json_text.write, []
    for row, each in enumerate(values):
        if not isinstance(each, dict):
            raise EventError("an event is a JSON object", row=row)
        events.append(Event(type, each, write(each)))
    return events


def _check_sizes(fields: Mapping[str, Any], row: int | None) -> None:
    """Refuse integers that orjson reads but 64 bits with a sign do not hold."""
    for name, value in fields.items():
        if value.__class__ is int and not -(1 << 63) <= value < 1 << 63:
            raise EventError("an integer beyond 64 bits", attribute=name, row=row)


def to_declared(
    fields: dict[str, Any], event_type: EventType, row: int | None = None
) -> dict[str, Any]:
    """Return an event's attributes with timestamps read, or refuse what does not fit."""
    attributes = fields
    for name, kind in event_type.attributes.items():
        if kind is Kind.TIMESTAMP:
            value = lookup(fields, name)
            if isinstance(value, str):
                if attributes is fields:
                    attributes = dict(fields)
                attributes[name] = to_timestamp(value, name, row)
    try:
        check_event(attributes, event_type)
    except EventError as error:
        raise EventError(error.message, attribute=error.attribute, row=row) from None
    return attributes


def to_timestamp(text: object, attribute: str, row: int | None = None) -> dt.datetime:
    """Return the moment that an ISO 8601 text or a number of microseconds means, in UTC."""
    try:
        if isinstance(text, int) and not isinstance(text, bool):
            return from_microseconds(text)
        moment = dt.datetime.fromisoformat(str(text))
        return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise EventError(
            f"no moment: {str(text)[:60]!r}; write 2026-07-01T12:30:00Z",
            attribute=attribute,
            row=row,
        ) from None


def from_cloudevent(
    cloudevent: CloudEvent, event_type: EventType | None, row: int | None = None
) -> Event:
    """Return the event of a CloudEvent: fields of JSON data, and `ce.…`."""
    kind = str(cloudevent.context.get("datacontenttype", JSON))
    fields: object = json_text.read(cloudevent.data) if cloudevent.data and is_json(kind) else None
    attributes = dict(fields) if isinstance(fields, dict) else {}
    if event_type is not None:
        attributes = to_declared(attributes, event_type, row)
    else:
        _check_sizes(attributes, row)
    text = json_text.write({**attributes, "ce": cloudevent.context})
    attributes |= {f"ce.{name}": value for name, value in cloudevent.context.items()}
    type = check_type(cloudevent.context["type"])
    valid_until = _expiry(cloudevent.context, row)
    return Event(
        type,
        attributes,
        text,
        headers={"ce": cloudevent.context},
        body=cloudevent.data or b"",
        content_type=kind,
        valid_until=valid_until,
    )


def _expiry(context: Mapping[str, Any], row: int | None) -> int | None:
    """Return the end that the extension `expirytime` gives."""
    if "expirytime" not in context:
        return None
    return to_end(context["expirytime"], row)


def to_seconds(value: object, name: str, row: int | None = None) -> int | None:
    """Return how many microseconds a number of seconds is, or a text that is one."""
    if value is None:
        return None
    try:
        seconds = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        seconds = -1.0
    if isinstance(value, bool) or not 0 < seconds < 1e10:
        raise EventError("a number of seconds, more than 0", attribute=name, row=row)
    return round(seconds * 1_000_000)


def to_end(value: object, row: int | None = None) -> int | None:
    """Return a `valid_until` in microseconds: from a number of them, or an ISO 8601 text."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < 1 << 63:
            raise EventError("no moment", attribute="valid_until", row=row)
        return value
    moment = to_timestamp(value, "valid_until", row)
    return int(moment.timestamp() * 1_000_000)


def from_stomp(
    headers: Mapping[str, str],
    body: bytes,
    content_type: str,
    type: str | None,
    event_type: EventType | None,
    valid_until: int | None = None,
) -> Event:
    """Return the event of a STOMP message: its headers, and the fields of a JSON body."""
    fields: dict[str, Any] = {}
    if body[:1] == b"{" or (body and is_json(content_type)):
        content = _read_body(body, content_type)
        if isinstance(content, dict):
            fields = content
            if not headers:
                if content_type:
                    _check_headers({}, content_type)
                event = from_json(content, type, event_type, raw=body, valid_until=valid_until)
                event.content_type = content_type or JSON
                return event
    attributes: dict[str, Any] = {}
    numbers: dict[str, int | float] = {}
    if headers or content_type:
        _check_headers(headers, content_type)
    for name, value in headers.items():
        if name in fields:
            continue
        attributes[name] = value
        declared = event_type.kind_of(name) if event_type else None
        if declared in (Kind.INTEGER, Kind.FLOAT, None) and _NUMBER(value):
            number = _to_number(value)
            if declared is not None:
                attributes[name] = number
            elif number is not None:
                numbers[name] = number
        elif declared is Kind.BOOLEAN and value in ("true", "false"):
            attributes[name] = value == "true"
    attributes |= fields
    if event_type is not None:
        attributes = to_declared(attributes, event_type)
    else:
        _check_sizes(attributes, None)
    shown = attributes if fields or not body else {**attributes, "body": _shown(body)}
    return Event(
        type,
        attributes,
        json_text.write(shown),
        headers=dict(headers),
        body=body,
        content_type=content_type,
        numbers=numbers or None,
        valid_until=valid_until,
    )


def _check_headers(headers: Mapping[str, str], content_type: str) -> None:
    """Refuse what other protocols could not carry in their headers."""
    for name, value in headers.items():
        if has_controls(name) or has_controls(value):
            raise EventError("a header has no control characters or line breaks", attribute=name)
    if has_controls(content_type):
        raise EventError("a content type has no control characters or line breaks")


def numbers_of(headers: Mapping[str, Any], event_type: EventType | None) -> dict[str, Any] | None:
    """Return the headers of a stored message that read as numbers, where nothing is declared."""
    numbers = {
        name: _to_number(value)
        for name, value in headers.items()
        if isinstance(value, str)
        and _NUMBER(value)
        and (event_type is None or event_type.kind_of(name) is None)
    }
    return {name: number for name, number in numbers.items() if number is not None} or None


def _read_body(body: bytes, content_type: str) -> object:
    """Return the JSON of a body; None where it is none and does not say that it is."""
    try:
        return json_text.read(body)
    except EventError:
        if is_json(content_type):
            raise
        return None


def _to_number(text: str) -> int | float | None:
    try:
        number: int | float = int(text)
        return number if -(1 << 63) <= number < 1 << 63 else None
    except ValueError:
        value = float(text)
        return value if abs(value) != float("inf") else None


def _shown(body: bytes) -> str:
    return body.decode(errors="replace")
