"""What brokers tell each other about routing.

Enters and leaves: messages, and lists that JSON can hold. After Jayaram et al. (Beretta, section 5,
algorithms 1-3): `Adv` and `Unadv` name the event types that are published behind the sender; `Sub`,
`Unsub` and `Upd` say what is wanted behind it, whole, not at all any more, or as a change. Ours:
`State` tells who is linked to whom, from which all derive the same tree; `Types` begins the use of
a link, and `Standby` says that the sender does not use it, so that what it said before is void.
Where both ends match approximately, `Cells` names the grids to which the ranges that follow are
rounded, and these are coded as bits (Zhao and Wu, section III-E.2). Events travel in plain form: a
subscriber's own broker needs their values.

An event type is a name, or None for events without a type. What is wanted comes by *topic*: a type,
or None for what subscriptions to every type want.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tocsin.broker.overlay.cells import Codes, Grids, grids_of_plain, grids_to_plain
from tocsin.broker.overlay.forms import (
    Change,
    Slots,
    change_of_plain,
    change_to_plain,
    slots_of_plain,
    slots_to_plain,
)
from tocsin.errors import ProtocolError

Topic: TypeAlias = str | None


@dataclass(frozen=True)
class Adv:
    """Events of a type are published behind me."""

    type: Topic


@dataclass(frozen=True)
class Unadv:
    """No events of a type are published behind me any more."""

    type: Topic


@dataclass(frozen=True)
class Types:
    """These are all types that are published behind me: said when a link begins to be used."""

    types: tuple[Topic, ...]


@dataclass(frozen=True)
class Sub:
    """This is all that is wanted of a topic behind me; `keep`: some of it must not be lost."""

    topic: Topic
    slots: Slots
    keep: bool = False


@dataclass(frozen=True)
class Unsub:
    """Nothing of a topic is wanted behind me."""

    topic: Topic


@dataclass(frozen=True)
class Upd:
    """What is wanted of a topic behind me has changed."""

    topic: Topic
    change: Change
    keep: bool


@dataclass(frozen=True)
class Cells:
    """With these grids ranges of a topic's attributes are coded from now on (`cells.py`)."""

    topic: Topic
    grids: Grids


@dataclass(frozen=True)
class State:
    """The neighbours of a broker; a higher version is newer."""

    name: str
    version: int
    peers: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Standby:
    """I do not use this link; forget what I said about types and topics."""


Message: TypeAlias = Adv | Unadv | Types | Sub | Unsub | Upd | Cells | State | Standby


class Speech:
    """What one end of a connection says: cells that it has named count for all that follows."""

    def __init__(self) -> None:
        self._codes: dict[Topic, Codes] = {}

    def codes(self, topic: Topic) -> Codes:
        """Return how conditions of a topic are coded."""
        return self._codes.setdefault(topic, Codes())

    @property
    def n_coded(self) -> int:
        """How many conditions were coded so far."""
        return sum(codes.n for codes in self._codes.values())


def to_plain(message: Message, said: Speech | None = None) -> list[Any]:
    """Return a message as a list that JSON can hold; `said` has what was said before it."""
    said = Speech() if said is None else said
    match message:
        case Adv(type):
            return ["ADV", type]
        case Unadv(type):
            return ["UNADV", type]
        case Types(types):
            return ["TYPES", list(types)]
        case Sub(topic, slots, keep):
            return ["SUB", topic, slots_to_plain(slots, said.codes(topic)), int(keep)]
        case Unsub(topic):
            return ["UNSUB", topic]
        case Upd(topic, change, keep):
            return ["UPD", topic, change_to_plain(change, said.codes(topic)), int(keep)]
        case Cells(topic, grids):
            said.codes(topic).grids.update(grids)
            return ["CELLS", topic, grids_to_plain(grids)]
        case State(name, version, peers):
            return ["STATE", name, version, list(peers)]
        case Standby():
            return ["STANDBY"]


def of_plain(given: object, said: Speech | None = None) -> Message:
    """Undo `to_plain`, or refuse what is ill-formed."""
    kind = given[0] if isinstance(given, list) and given else None
    if not isinstance(given, list) or not isinstance(kind, str) or kind not in _READERS:
        raise ProtocolError("this is no message of a link")
    n_parts, read = _READERS[kind]
    if len(given) != n_parts + 1:
        raise ProtocolError(f"{kind} has {n_parts} parts")
    return read(Speech() if said is None else said, *given[1:])


def _topic(given: object) -> Topic:
    if given is not None and not isinstance(given, str):
        raise ProtocolError(f"{given!r} is no event type")
    return given


def _types(given: object) -> tuple[Topic, ...]:
    if not isinstance(given, list):
        raise ProtocolError("TYPES has an array of event types")
    return tuple(map(_topic, given))


def _state(_: Speech, name: object, version: object, peers: object) -> State:
    if not isinstance(name, str) or type(version) is not int or not isinstance(peers, list):
        raise ProtocolError("STATE has a name, a version and peers")
    return State(name, version, tuple(map(str, peers)))


def _sub(said: Speech, topic: object, slots: object, keep: object) -> Sub:
    topic = _topic(topic)
    return Sub(topic, slots_of_plain(slots, said.codes(topic)), bool(keep))


def _upd(said: Speech, topic: object, change: object, keep: object) -> Upd:
    topic = _topic(topic)
    return Upd(topic, change_of_plain(change, said.codes(topic)), bool(keep))


def _cells(said: Speech, topic: object, given: object) -> Cells:
    topic, grids = _topic(topic), grids_of_plain(given)
    said.codes(topic).grids.update(grids)
    return Cells(topic, grids)


_READERS: dict[str, tuple[int, Callable[..., Message]]] = {
    "ADV": (1, lambda _, type: Adv(_topic(type))),
    "UNADV": (1, lambda _, type: Unadv(_topic(type))),
    "TYPES": (1, lambda _, types: Types(_types(types))),
    "SUB": (3, _sub),
    "UNSUB": (1, lambda _, topic: Unsub(_topic(topic))),
    "UPD": (3, _upd),
    "CELLS": (2, _cells),
    "STATE": (3, _state),
    "STANDBY": (0, lambda _: Standby()),
}
