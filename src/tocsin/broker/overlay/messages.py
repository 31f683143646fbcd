"""The routing messages between peers.

Enters and leaves: messages, and lists that JSON can hold. After Jayaram et al. (Beretta, section 5,
algorithms 1-3): `Adv` and `Unadv` name the event types that are published behind the sender; `Sub`,
`Unsub` and `Upd` say what is wanted behind it, whole, not at all any more, or as a change. Ours:
`State` tells who is linked to whom, from which all derive the same tree; `Types` begins the use of
a link, and `Standby` says that the sender does not use it, so that what it said before is void.
Where both ends match approximately, `Cells` names the grids to which the ranges that follow are
rounded, and these are coded as bits (Zhao and Wu, section III-E.2). Events travel in plain form: a
subscriber's own broker needs their values.

An event type is a name, or None for events without a type. What is wanted comes by *topic*: a type,
or None for what subscriptions to every type interest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from tocsin.broker.overlay.cells import Codes, Grids, grids_of_plain, grids_to_plain
from tocsin.broker.overlay.fields import (
    MAX_ATTRIBUTES,
    MAX_PEERS,
    MAX_TYPES,
    MAX_VERSION,
    to_flag,
    to_list,
    to_name,
    to_number,
    to_topic,
)
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
    """The peers of a broker; a higher version is newer."""

    name: str
    version: int
    peers: tuple[str, ...] = field(default=())

    @cached_property
    def ends(self) -> frozenset[str]:
        """The peers, to be looked up."""
        return frozenset(self.peers)


@dataclass(frozen=True)
class Standby:
    """I do not use this link; forget what I said about types and topics."""


Message: TypeAlias = Adv | Unadv | Types | Sub | Unsub | Upd | Cells | State | Standby


class Codebook:
    """The codes of one direction of a connection: a grid applies to all messages after it."""

    def __init__(self) -> None:
        self._codes: dict[Topic, Codes] = {}

    def codes(self, topic: Topic) -> Codes:
        """Return how conditions of a topic are coded."""
        if topic not in self._codes and len(self._codes) > MAX_TYPES:
            raise ProtocolError(f"more than {MAX_TYPES} topics")
        return self._codes.setdefault(topic, Codes())

    @property
    def n_coded(self) -> int:
        """How many conditions were coded so far."""
        return sum(codes.n for codes in self._codes.values())


def to_plain(message: Message, said: Codebook | None = None) -> list[Any]:
    """Return a message as a list that JSON can hold; `said` has what was said before it."""
    said = Codebook() if said is None else said
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


def of_plain(value: object, said: Codebook | None = None) -> Message:
    """Undo `to_plain`, or refuse what is ill-formed."""
    kind = value[0] if isinstance(value, list) and value else None
    if not isinstance(value, list) or not isinstance(kind, str) or kind not in _READERS:
        raise ProtocolError("this is no message of a link")
    n_parts, read = _READERS[kind]
    if len(value) != n_parts + 1:
        raise ProtocolError(f"{kind} has {n_parts} parts")
    return read(Codebook() if said is None else said, *value[1:])


def _types(value: object) -> tuple[Topic, ...]:
    return tuple(map(to_topic, to_list(value, MAX_TYPES, "event types")))


def _state(_: Codebook, name: object, version: object, peers: object) -> State:
    names = tuple(map(to_name, to_list(peers, MAX_PEERS, "peers")))
    return State(to_name(name), to_number(version, "version", MAX_VERSION), names)


def _sub(said: Codebook, topic: object, slots: object, keep: object) -> Sub:
    topic = to_topic(topic)
    return Sub(topic, slots_of_plain(slots, said.codes(topic)), to_flag(keep, "keep"))


def _upd(said: Codebook, topic: object, change: object, keep: object) -> Upd:
    topic = to_topic(topic)
    return Upd(topic, change_of_plain(change, said.codes(topic)), to_flag(keep, "keep"))


def _cells(said: Codebook, topic: object, value: object) -> Cells:
    topic, grids = to_topic(topic), grids_of_plain(value)
    known = said.codes(topic).grids
    known.update(grids)
    if len(known) > MAX_ATTRIBUTES:
        raise ProtocolError(f"more than {MAX_ATTRIBUTES} grids of one topic")
    return Cells(topic, grids)


_READERS: dict[str, tuple[int, Callable[..., Message]]] = {
    "ADV": (1, lambda _, type: Adv(to_topic(type))),
    "UNADV": (1, lambda _, type: Unadv(to_topic(type))),
    "TYPES": (1, lambda _, types: Types(_types(types))),
    "SUB": (3, _sub),
    "UNSUB": (1, lambda _, topic: Unsub(to_topic(topic))),
    "UPD": (3, _upd),
    "CELLS": (2, _cells),
    "STATE": (3, _state),
    "STANDBY": (0, lambda _: Standby()),
}
