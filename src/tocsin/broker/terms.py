"""Terms of publishing: a key, a time to live, retention.

Enters: parameters of a request, events that a protocol read. Leaves: a `Publication` for an event
with a key.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.broker.events import UNADDRESSABLE, Event, Publication, to_end, to_seconds
from tocsin.broker.merge_patch import attributes_of
from tocsin.broker.protocol import json_text
from tocsin.broker.protocol.text import has_controls
from tocsin.encode.events import lookup
from tocsin.errors import EventError
from tocsin.model import EventType, is_unicode

MAX_KEY = 500


def check_key(key: object, row: int | None = None) -> str:
    """Return a key as a text, from a text or an integer; raise EventError for anything else."""
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
    """How events are published: under which key, and for how long they are valid.

    Where `key_of` is set, the attribute of that name has the key of each event.
    """

    key: str | None = None
    key_of: str | None = None
    merges: bool = False
    valid_until: int | None = None
    retain_until: int | None = None

    def apply(self, event: Event, event_type: EventType | None, row: int | None = None) -> Event:
        """Return the event or the publication that these terms make of an event."""
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
    """Return a boolean from a boolean or a text."""
    flag = _FLAGS.get(value) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise EventError(f"{name} is true or false")
    return flag


def to_terms(parameters: Mapping[str, Any]) -> Terms | None:
    """Return the terms in the parameters of a request; None where there are none."""
    terms = {name: parameters[name] for name in _TERMS if parameters.get(name) not in (None, "")}
    for name in ("key", "key_of"):
        if parameters.get(name) == "":
            raise EventError(f"{name} is empty: leave it out for an event without a key")
    if not terms:
        return None
    now = time.time_ns() // 1000
    until, ttl = terms.get("valid_until"), to_seconds(terms.get("ttl"), "ttl")
    if until is not None and ttl is not None:
        raise EventError("give ttl or valid_until, not both")
    number = json_text.to_number(until) if isinstance(until, str) else None
    end = now + ttl if ttl is not None else to_end(until if number is None else number)
    retain = to_seconds(terms.get("retain"), "retain")
    merges = to_flag(terms.get("merge", False), "merge")
    key, key_of = terms.get("key"), terms.get("key_of")
    if (key is not None and key_of is not None) or (key_of and not isinstance(key_of, str)):
        raise EventError("give key, or key_of, the name of an attribute")
    if merges and key is None and key_of is None:
        raise EventError("merge needs key or key_of")
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
    """Return a publication of an event; headers that read as numbers become numbers."""
    name = check_key(key, row)
    if event.numbers:
        event.text = json_text.write(json_text.read(event.text) | event.numbers)
    publication = Publication(event, name, merges=merges)
    if event.headers is not None:  # its text has more than the attributes
        publication.attributes = attributes_of(publication, event_type)
    return publication


def retraction(type: str | None, key: object, row: int | None = None) -> Publication:
    """Return the event that ends a publication."""
    return Publication(Event(type, {}, b"{}"), check_key(key, row), gone="retracted")
