"""Publications: events with a key, that stay until they are updated, retracted or expire.

Enters: events that a protocol read, a key, perhaps the publication that is there already. Leaves:
a `Publication` whose text says all it says: conditions see what its text has, so that one that is
restored from the database is met by the same conditions. After Leung and Jacobsen (seed on
state-persistent publish/subscribe), section 3; a publication has single values here, no ranges.

An update merges as RFC 7396 has it: fields that are named take the place of those that were there,
objects are merged within, null takes a field away.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.broker.events import (
    JSON,
    UNADDRESSABLE,
    Event,
    Publication,
    to_declared,
    to_end,
    to_seconds,
)
from tocsin.broker.protocol import json_text
from tocsin.broker.protocol.text import has_controls
from tocsin.encode.events import lookup
from tocsin.errors import ArgumentError, EventError, LimitError
from tocsin.model import EventType, is_unicode

MAX_KEY = 500
ENTER, LEAVE = 1, -1
NAMES = {ENTER: "ENTER", LEAVE: "LEAVE"}
_WANTS = {"ENTER": 1, "LEAVE": 2}


def check_key(key: object, row: int | None = None) -> str:
    """Return a key: a text, or an integer as a text."""
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or not is_unicode(key):
        raise EventError(f"a key is a text of 1 to {MAX_KEY} characters, or an integer", row=row)
    if has_controls(key):
        raise EventError("a key has no control characters or line breaks", row=row)
    if key in UNADDRESSABLE:
        raise EventError(f"a key is not {key!r}, which no path can name", row=row)
    return key


@dataclass(frozen=True)
class Terms:
    """How events are published: whether under a key, and for how long they count.

    Each of several events has its key in the attribute that `key_of` names.
    """

    key: str | None = None
    key_of: str | None = None
    merges: bool = False
    valid_until: int | None = None
    retain_until: int | None = None

    def apply(self, event: Event, event_type: EventType | None, row: int | None = None) -> Event:
        """Return an event as it is published on these terms."""
        if self.valid_until is not None:
            event.valid_until = self.valid_until
        event.retain_until = self.retain_until
        key: object = self.key
        if self.key_of is not None:
            key = lookup(event.attributes, self.key_of)
            if key is None:
                raise EventError("the event has no key", attribute=self.key_of, row=row)
        if key is None:
            return event
        return to_publication(event, key, event_type, merges=self.merges, row=row)


_TERMS = ("key", "key_of", "merge", "ttl", "valid_until", "retain")
_FLAGS: dict[object, bool] = {"true": True, "1": True, "false": False, "0": False}


def to_flag(value: object, name: str) -> bool:
    """Return whether something is asked for, by a text or a boolean."""
    found = _FLAGS.get(value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise EventError(f"{name} is true or false")
    return found


def to_terms(asked: Mapping[str, Any]) -> Terms | None:
    """Return the terms that the parameters of a request name; None where there are none."""
    given = {name: asked[name] for name in _TERMS if asked.get(name) not in (None, "")}
    for name in ("key", "key_of"):
        if asked.get(name) == "":
            raise EventError(f"{name} is empty: leave it out for an event without a key")
    if not given:
        return None
    now = time.time_ns() // 1000
    until, ttl = given.get("valid_until"), to_seconds(given.get("ttl"), "ttl")
    if until is not None and ttl is not None:
        raise EventError("give ttl or valid_until, not both")
    number = json_text.to_number(until) if isinstance(until, str) else None
    end = now + ttl if ttl is not None else to_end(until if number is None else number)
    retain = to_seconds(given.get("retain"), "retain")
    merges = to_flag(given.get("merge", False), "merge")
    key, key_of = given.get("key"), given.get("key_of")
    if (key is not None and key_of is not None) or (key_of and not isinstance(key_of, str)):
        raise EventError("give key, or key_of, the name of an attribute")
    if merges and key is None and key_of is None:
        raise EventError("what is merged has a key")
    return Terms(
        key=None if key is None else check_key(key),
        key_of=key_of,
        merges=merges,
        valid_until=end,
        retain_until=None if retain is None else now + retain,
    )


def to_publication(
    event: Event, key: object, event_type: EventType | None, *, merges: bool = False,
    row: int | None = None,
) -> Publication:  # fmt: skip
    """Return an event as a publication; headers that read as numbers are numbers."""
    name = check_key(key, row)
    if event.numbers:
        event.text = json_text.write(json_text.read(event.text) | event.numbers)
    found = Publication(event, name, merges=merges)
    if event.headers is not None:  # a text that is more than the attributes were
        found.attributes = attributes_of(found, event_type)
    return found


def retraction(type: str | None, key: object, row: int | None = None) -> Publication:
    """Return what ends a publication."""
    return Publication(Event(type, {}, b"{}"), check_key(key, row), gone="retracted")


def _fields(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = json_text.read(event.text)
    if event.headers is not None and "ce" in event.headers:
        found.pop("ce", None)
    return found


def attributes_of(event: Event, event_type: EventType | None) -> dict[str, Any]:
    """Return what conditions see of an event, by its text and context."""
    found = _fields(event)
    if event_type is not None:
        found = to_declared(found, event_type)
    context = (event.headers or {}).get("ce")
    if isinstance(context, dict):
        found = found | {f"ce.{name}": value for name, value in context.items()}
    return found


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return one object changed by another (RFC 7396)."""
    found = dict(old)
    for name, value in new.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, dict):
            within = found.get(name)
            found[name] = merged(within if isinstance(within, dict) else {}, value)
        else:
            found[name] = value
    return found


def merge(
    event: Publication, before: Event | None, event_type: EventType | None, most: int
) -> None:
    """Let a publication say what was there before, but for what it names; its end stays too."""
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


def to_wants(asked: object) -> int:
    """Return which transitions a subscription asks for, as bits; 0 for none."""
    if asked is None or asked is False:
        return 0
    if asked is True:
        return 3
    if isinstance(asked, list) and asked and all(each in ("ENTER", "LEAVE") for each in asked):
        return sum(_WANTS[each] for each in set(asked))
    raise ArgumentError('transitions is true, ["ENTER"] or ["LEAVE"]')


def from_wants(wants: int) -> bool | list[str]:
    """Undo `to_wants`."""
    return wants == 3 or [name for name, bit in _WANTS.items() if wants & bit]
