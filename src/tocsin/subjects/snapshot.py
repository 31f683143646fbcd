"""A subject space ↔ records.

Enters: a space. Leaves: records that say all it is; and from a log, the space: what the first
records say, and then each call done again at its own time. Arrays are written as they are, in
pieces; nothing is pickled.
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.bundle import Parts
from tocsin.catalog.blocks import Names
from tocsin.catalog.subscriptions import SubscriptionBook
from tocsin.errors import DamagedStoreError, StoreError, TocsinError
from tocsin.model import EventType
from tocsin.normalize.patterns import parse_pattern
from tocsin.subjects.arrays import Boxes, Subscriptions
from tocsin.subjects.change import table_from_octets, table_to_octets
from tocsin.subjects.core import LATEST
from tocsin.subjects.filters import FilterTerms
from tocsin.subjects.model import (
    Subscription,
    filter_from_json,
    filter_to_json,
    from_json,
    to_json,
    value_from_json,
)
from tocsin.subjects.places import Labels
from tocsin.subjects.records import FORMAT, VERSION, Log, Record
from tocsin.subjects.state import Several
from tocsin.transitions.transition import Part, Transitions

_PIECE = 1 << 25
_Space = TypeVar("_Space")
SubjectSpace = Any
"""The class is above this module."""
_END = "state"
"""The record that says that all of the state was said."""


# A space as records.


def records_of(space: SubjectSpace) -> Iterator[Record]:
    """Yield what a space is."""
    journal = space._journal
    yield Record(
        {
            "format": FORMAT,
            "version": VERSION,
            "spaces": [
                [each.name, {name: kind.value for name, kind in each.attributes.items()}]
                for each in space.spaces
            ],
            "missing": space.missing,
            "sequence": journal.sequence,
            "now": journal.now,
            "pending": _pending(journal.pending),
        }
    )
    yield Record({"op": "axes", "axes": [_axis(axis) for axis in space._axes.axes]})
    yield from _book_records(space._subscribing.book.parts())
    yield from _interest_records(space)
    yield from _object_records(space)
    yield Record({"op": _END})


def _pending(parts: list[Part]) -> list[list[Any]]:
    return [[t.kind.value, t.key, t.subscription] for t in Transitions(parts)]


def _axis(axis: Any) -> dict[str, Any]:
    pattern = None if axis.pattern is None else axis.pattern.text
    labels = [axis.labels.strings, axis.labels.labels]
    return {"space": axis.space, "name": axis.attribute, "of": axis.of, "pattern": pattern,
            "labels": labels}  # fmt: skip


def _book_records(parts: Parts) -> Iterator[Record]:
    yield Record({"op": "book", "facts": parts.facts})
    for name, array in parts.arrays.items():
        yield from _array_records("book", name, array)
    for name, column in parts.columns.items():
        yield Record({"op": "column", "name": name}, table_to_octets(pa.table({"c": column})))


def _interest_records(space: SubjectSpace) -> Iterator[Record]:
    interests, subscribing = space._state.interests, space._subscribing
    n_subs = subscribing.book._first
    defined = {dense: to_json(given) for dense, given in subscribing.defined.items()}
    numbers = {"n_boxes": interests.n_boxes, "n_dead": interests.n_dead}
    yield Record({"op": "interests", **numbers, "n_terms": interests.n_terms, "defined": defined})
    n_pieces = int(interests.boxes.start[interests.n_boxes])
    lengths = {"pieces": n_pieces, "start": interests.n_boxes + 1}
    for name, array in interests.boxes._asdict().items():
        n = lengths.get(name, interests.n_boxes)
        yield from _array_records("boxes", name, array[:n])
    for name, array in interests.subs._asdict().items():
        yield from _array_records(
            "subs", name, array[: interests.n_terms if name == "terms" else n_subs]
        )
    yield from _array_records("subs", "wants", interests.wants[:n_subs])


def _object_records(space: SubjectSpace) -> Iterator[Record]:
    objects, publications = space._state.objects, space._publications
    several = [
        [
            int(publication),
            list(of.names),
            of.rows.tolist(),
            [of.filter.least, list(of.filter.terms)],
            filter_to_json(space._given[publication]),
        ]
        for publication, of in space._state.several.items()
    ]
    yield Record(
        {
            "op": "objects",
            "n": objects.n,
            "free": objects.free,
            "keys": list(publications.row_of.items()),
            "until": list(publications.untils()),
            "several": several,
        }
    )
    yield from _array_records("objects", "cells", objects.cells[: objects.n, : objects.n_dims])


def _array_records(of: str, name: str, array: NDArray[Any]) -> Iterator[Record]:
    step = max(1, _PIECE // max(1, array.nbytes // max(1, len(array))))
    for first in range(0, max(1, len(array)), step):
        piece = np.ascontiguousarray(array[first : first + step])
        said = {"op": "array", "of": of, "name": name, "dtype": piece.dtype.str}
        yield Record({**said, "shape": piece.shape}, zlib.compress(piece.tobytes(), 1))


# Records as a space.


class _Read:
    """What the first records of a log said."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.said: dict[str, dict[str, Any]] = {}
        self.pieces: dict[tuple[str, str], list[NDArray[Any]]] = {}
        self.columns: dict[str, pa.Array] = {}

    def take(self, record: Record) -> bool:
        """Take in a record; return whether it was the last one."""
        op = record.said.get("op")
        if op == "array":
            said = record.said
            array = np.frombuffer(zlib.decompress(record.octets), said["dtype"])
            key = (said["of"], said["name"])
            self.pieces.setdefault(key, []).append(array.reshape(said["shape"]))
        elif op == "column":
            column = table_from_octets(record.octets).column(0)
            self.columns[record.said["name"]] = column.combine_chunks()
        elif op is None:
            self.head = record.said
        else:
            self.said[op] = record.said
        return op == _END

    def arrays(self, of: str) -> dict[str, NDArray[Any]]:
        """Return arrays of their own by name."""
        return {
            name: np.concatenate(pieces)
            for (whose, name), pieces in self.pieces.items()
            if whose == of
        }


def read(make: type[_Space], log: Log, clock: Callable[[], float]) -> _Space:
    """Return the space that a log tells of."""
    records = log.read()
    found = _Read()
    try:
        for record in records:
            if found.take(record):
                break
        else:
            raise ValueError("it ends before the space does")
        space = _restored(make, found, clock)
        whole: SubjectSpace = space
        whole.recovered = tuple(_again(whole, record) for record in records)
    except StoreError:
        raise
    except TocsinError as error:
        reason = f"a call that was logged cannot be done again: {error}"
        raise DamagedStoreError(str(log.path), reason) from error
    except (
        KeyError,
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
        AssertionError,
        OverflowError,
        zlib.error,
        pa.ArrowException,
    ) as error:
        raise DamagedStoreError(str(log.path), f"it makes no sense: {error}") from error
    whole._clock = clock
    return space


def _restored(make: type[_Space], found: _Read, clock: Callable[[], float]) -> _Space:
    head = found.head
    spaces = [EventType(name, attributes) for name, attributes in head["spaces"]]
    made: Any = make
    space: SubjectSpace = made(*spaces, clock=clock, missing=head["missing"])
    journal = space._journal
    journal.sequence, journal.now = head["sequence"], head["now"]
    if head["pending"]:
        kinds, keys, ids = zip(*head["pending"], strict=True)
        n = np.arange(len(kinds))
        kind = np.array([1 if kind == "ENTER" else -1 for kind in kinds], np.int8)
        journal.pending = [Part(kind, n, list(keys), n, Names(growing=list(ids)))]
    for at, said in enumerate(found.said["axes"]["axes"][1:], 1):
        pattern = said["pattern"]
        number = (
            space._axes.dim(said["space"], said["name"])
            if pattern is None
            else space._axes.pattern_dim(said["of"], parse_pattern(pattern, "\\", is_bounded=False))
        )
        if number != at:
            raise ValueError("dimensions are out of order")
        space._axes.axes[at].labels = Labels(*said["labels"])
    parts = Parts(found.said["book"]["facts"], found.arrays("book"), found.columns)
    space._subscribing.book = SubscriptionBook.from_parts([parts])
    _restore_interests(space, found)
    _restore_objects(space, found)
    return space  # type: ignore[no-any-return]


def _restore_interests(space: SubjectSpace, found: _Read) -> None:
    interests, said = space._state.interests, found.said["interests"]
    boxes, subs = found.arrays("boxes"), found.arrays("subs")
    interests.wants = _roomy(subs.pop("wants"))
    interests.boxes = Boxes(**{name: _roomy(array) for name, array in boxes.items()})
    interests.subs = Subscriptions(**{name: _roomy(array) for name, array in subs.items()})
    interests.subs.stamp[:] = 0
    interests.n_boxes, interests.n_dead = said["n_boxes"], said["n_dead"]
    interests.n_terms = said["n_terms"]
    interests.is_choosy = bool(np.any(interests.wants != 3))
    interests.n_complex = int(np.count_nonzero(interests.subs.state > 1))
    for dense, given in said["defined"].items():
        defined = from_json(given)
        assert isinstance(defined, Subscription)
        space._subscribing.defined[int(dense)] = defined
    interests.settle()


def _roomy(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that is never empty, and may be written."""
    if len(array) >= 16:
        return array
    larger = np.zeros((16, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def _restore_objects(space: SubjectSpace, found: _Read) -> None:
    objects, said = space._state.objects, found.said["objects"]
    cells = found.arrays("objects")["cells"]
    objects.fit()
    rows = objects.allocate(said["n"])
    objects.cells[rows, : cells.shape[1]] = cells
    objects.free = list(said["free"])
    for key, row in said["keys"]:
        space._publications.add(key, row)
    for row, until in said["until"]:
        space._publications.set_until(row, until)
    for publication, names, of, (least, terms), given in said["several"]:
        filter_ = FilterTerms(least, tuple((must, must_not) for must, must_not in terms))
        several = Several(tuple(names), np.array(of, np.int32), filter_)
        space._state.several[publication] = several
        space._state.owner.update(dict.fromkeys(of, publication))
        space._given[publication] = filter_from_json(given)


# Calls, done again.


def _again(space: SubjectSpace, record: Record) -> Transitions:
    """Do a call again, at its own time."""
    said = dict(record.said)
    op, now = said.pop("op"), said.pop("now")
    space._clock = lambda: now / 1_000_000
    space._journal.now = now
    if "until" in said and op != "subscribe":
        until = said.pop("until")
        ends = until is not None and until <= LATEST
        said["ttl"] = dt.timedelta(microseconds=until - now) if ends else None
    if record.octets:
        said["table"] = table_from_octets(record.octets)
    return _CALLS[op](space, said)  # type: ignore[no-any-return]


def _values(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value_from_json(value) for name, value in given.items()}


def _publish(space: SubjectSpace, said: dict[str, Any]) -> Transitions:
    given = said.pop("values")
    values = from_json(said.pop("whole")) if given is None else _values(given)
    found: Transitions = space.publish(said["key"], values, said["ttl"])
    return found


def _where(said: dict[str, Any]) -> dict[str, Any]:
    if isinstance(said.get("where"), dict):
        said["where"] = from_json(said["where"])
    if said.get("params") is not None:
        said["params"] = _values(said["params"])
    return said


def _subscribe(space: SubjectSpace, said: dict[str, Any]) -> Transitions:
    until = said.pop("until")
    found: Transitions = space.subscribe(**_where(said), valid_until=until)
    return found


_CALLS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "publish": _publish,
    "update": lambda space, said: space.update(said["key"], _values(said["values"])),
    "update_region": lambda space, said: space.update_region(
        said["key"], said["region"], _values(said["values"])
    ),
    "retract": lambda space, said: space.retract_many(said["keys"]),
    "touch": lambda space, said: space.touch(said["key"], said["ttl"]),
    "expire": lambda space, said: space.expire(),
    "publish_many": lambda space, said: space.publish_many(**said),
    "update_many": lambda space, said: space.update_many(**said),
    "subscribe": _subscribe,
    "update_subscription": lambda space, said: space.update_subscription(**_where(said)),
    "unsubscribe": lambda space, said: space.unsubscribe_many(said["ids"]),
    "subscribe_many": lambda space, said: space.subscribe_many(**said, on_error="quarantine"),
}
