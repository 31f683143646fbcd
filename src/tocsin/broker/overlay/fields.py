"""Fields of a peer's messages: checked before anything is done with them.

Enters: values that a peer sent. Leaves: the same values, typed, or a `ProtocolError`.
A peer is another program, perhaps an older one, perhaps one that lies: what it says is bounded
in length and number, has no control characters, and numbers fit what is computed with them.
"""

from __future__ import annotations

import reprlib

from tocsin.broker.events import MAX_TYPE
from tocsin.errors import ProtocolError
from tocsin.model import INT64_MAX, is_unicode

MAX_NAME = 100
MAX_INSTANCE = 64
MAX_VERSION = 1 << 53
"""Versions of a broker's state: the integers that every JSON reader keeps exactly."""
MAX_PEERS = 1_000
MAX_TYPES = 10_000
"""Event types behind one peer."""
MAX_ATTRIBUTES = 10_000
MAX_SLOTS = 200_000
"""Conjunctions that one peer may interest of one topic."""
MAX_TEXT = 4_096
"""Characters of an attribute's name."""


def shown(value: object) -> str:
    """Return a value as it may stand in a log: short, and on one line."""
    return reprlib.repr(value)


def to_name(value: object) -> str:
    """Return the name of a broker."""
    return _printable(value, MAX_NAME, "name of a broker")


def to_instance(value: object) -> str:
    """Return which database a broker's numbers are from."""
    return _printable(value, MAX_INSTANCE, "instance of a broker")


def _printable(value: object, longest: int, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        raise ProtocolError(
            f"{shown(value)} is no {what}: a text of 1 to {longest} printable characters"
        )
    return value


def to_topic(value: object) -> str | None:
    """Return the name of an event type, or None for no type."""
    if value is None:
        return None
    is_text = isinstance(value, str) and 0 < len(value) <= MAX_TYPE
    if not is_text or not value.isprintable() or value == "*":  # type: ignore[attr-defined]
        raise ProtocolError(f"{shown(value)} is no event type")
    return value  # type: ignore[return-value]


def to_attribute(value: object) -> str:
    """Return the name of an attribute."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or not is_unicode(value):
        raise ProtocolError(f"{shown(value)} is no name of an attribute")
    return value


def to_number(value: object, what: str, most: int = INT64_MAX) -> int:
    """Return an integer that is not negative."""
    if type(value) is not int or not 0 <= value <= most:
        raise ProtocolError(f"{shown(value)} is no {what}")
    return value


def to_flag(value: object, what: str) -> bool:
    """Return a truth value, which links write as 0 or 1."""
    if value not in (0, 1):
        raise ProtocolError(f"{shown(value)} is no {what}: it is 0 or 1")
    return bool(value)


def to_list(value: object, most: int, what: str) -> list[object]:
    """Return an array of at most `most` entries."""
    if not isinstance(value, list):
        raise ProtocolError(f"{shown(value)} is no array of {what}")
    if len(value) > most:
        raise ProtocolError(f"{len(value)} {what}; at most {most} are taken")
    return value
