"""Snapshots: a subject space ↔ log records.

Enters: a space. Leaves: the records of a snapshot; and from a log, the space: its snapshot, then
each logged call replayed at its own time. Arrays are written in chunks; nothing is pickled.
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
from tocsin.catalog.subscriptions import SubscriptionCatalog
from tocsin.errors import DamagedStoreError, StoreError, TocsinError
from tocsin.model import EventType
from tocsin.normalize.patterns import parse_pattern
from tocsin.subjects.arrays import Boxes, Subscriptions
from tocsin.subjects.expiry import LATEST
from tocsin.subjects.filters import FilterTerms
from tocsin.subjects.log import FORMAT, VERSION, Log, Record
from tocsin.subjects.model import (
    Interest,
    filter_from_json,
    filter_to_json,
    from_json,
    to_json,
    value_from_json,
)
from tocsin.subjects.positions import Labels
from tocsin.subjects.state import MultiRegion
from tocsin.subjects.transactions import table_from_octets, table_to_octets
from tocsin.transitions.transition import TransitionBlock, Transitions

_CHUNK_BYTES = 1 << 25
_Space = TypeVar("_Space")
SubjectSpace = Any
"""The class is above this module."""
_END = "state"
"""The operation of the record that ends a snapshot."""


# Space → records.


def records_of(space: SubjectSpace) -> Iterator[Record]:
    """Yield the snapshot of a space."""
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
    yield Record(
        {
            "op": "axes",
            "axes": [_dimension_record(dimension) for dimension in space._dimensions.entries],
        }
    )
    yield from _catalog_records(space._subscriptions.catalog.parts())
    yield from _interest_records(space)
    yield from _object_records(space)
    yield Record({"op": _END})


def _pending(blocks: list[TransitionBlock]) -> list[list[Any]]:
    return [[t.kind.value, t.key, t.subscription] for t in Transitions(blocks)]


def _dimension_record(dimension: Any) -> dict[str, Any]:
    pattern = None if dimension.pattern is None else dimension.pattern.text
    labels = [dimension.labels.strings, dimension.labels.labels]
    return {
        "space": dimension.space,
        "name": dimension.attribute,
        "of": dimension.of,
        "pattern": pattern,
        "labels": labels,
    }


def _catalog_records(parts: Parts) -> Iterator[Record]:
    yield Record({"op": "book", "facts": parts.facts})
    for name, array in parts.arrays.items():
        yield from _array_records("book", name, array)
    for name, column in parts.columns.items():
        yield Record({"op": "column", "name": name}, table_to_octets(pa.table({"c": column})))


def _interest_records(space: SubjectSpace) -> Iterator[Record]:
    box_index, subscriptions = space._state.box_index, space._subscriptions
    n_subs = subscriptions.catalog.next_dense
    defined = {dense: to_json(regions) for dense, regions in subscriptions.regions.items()}
    numbers = {"n_boxes": box_index.n_boxes, "n_dead": box_index.n_dead}
    yield Record({"op": "interests", **numbers, "n_terms": box_index.n_terms, "defined": defined})
    n_pieces = int(box_index.boxes.start[box_index.n_boxes])
    lengths = {"pieces": n_pieces, "start": box_index.n_boxes + 1}
    for name, array in box_index.boxes._asdict().items():
        n = lengths.get(name, box_index.n_boxes)
        yield from _array_records("boxes", name, array[:n])
    for name, array in box_index.subs._asdict().items():
        yield from _array_records(
            "subs", name, array[: box_index.n_terms if name == "terms" else n_subs]
        )
    yield from _array_records("subs", "wants", box_index.masks[:n_subs])


def _object_records(space: SubjectSpace) -> Iterator[Record]:
    object_rows, publications = space._state.object_rows, space._publications
    multi_region = [
        [
            int(publication),
            list(of.names),
            of.rows.tolist(),
            [of.filter.least, list(of.filter.terms)],
            filter_to_json(publications.filters[publication]),
        ]
        for publication, of in space._state.multi_region.items()
    ]
    yield Record(
        {
            "op": "objects",
            "n": object_rows.n,
            "free": object_rows.free,
            "keys": list(publications.keys.row_of.items()),
            "until": list(publications.keys.expiries()),
            "several": multi_region,
        }
    )
    yield from _array_records(
        "objects", "cells", object_rows.cells[: object_rows.n, : object_rows.n_dims]
    )


def _array_records(of: str, name: str, array: NDArray[Any]) -> Iterator[Record]:
    step = max(1, _CHUNK_BYTES // max(1, array.nbytes // max(1, len(array))))
    for first in range(0, max(1, len(array)), step):
        piece = np.ascontiguousarray(array[first : first + step])
        fields = {"op": "array", "of": of, "name": name, "dtype": piece.dtype.str}
        yield Record({**fields, "shape": piece.shape}, zlib.compress(piece.tobytes(), 1))


# Records → space.


class _Snapshot:
    """The records of a snapshot, by operation and name."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.records: dict[str, dict[str, Any]] = {}
        self.pieces: dict[tuple[str, str], list[NDArray[Any]]] = {}
        self.columns: dict[str, pa.Array] = {}

    def add_record(self, record: Record) -> bool:
        """Add a record; return whether it was the last one."""
        op = record.fields.get("op")
        if op == "array":
            fields = record.fields
            array = np.frombuffer(zlib.decompress(record.octets), fields["dtype"])
            key = (fields["of"], fields["name"])
            self.pieces.setdefault(key, []).append(array.reshape(fields["shape"]))
        elif op == "column":
            column = table_from_octets(record.octets).column(0)
            self.columns[record.fields["name"]] = column.combine_chunks()
        elif op is None:
            self.head = record.fields
        else:
            self.records[op] = record.fields
        return op == _END

    def arrays(self, of: str) -> dict[str, NDArray[Any]]:
        """Return new arrays by name."""
        return {
            name: np.concatenate(pieces)
            for (whose, name), pieces in self.pieces.items()
            if whose == of
        }


def restore(make: type[_Space], log: Log, clock: Callable[[], float]) -> _Space:
    """Return the space of a log."""
    records = log.read()
    snapshot = _Snapshot()
    try:
        for record in records:
            if snapshot.add_record(record):
                break
        else:
            raise ValueError("it ends within the snapshot")
        space = _restore(make, snapshot, clock)
        whole: SubjectSpace = space
        whole.recovered = tuple(_replay(whole, record) for record in records)
    except StoreError:
        raise
    except TocsinError as error:
        reason = f"a logged call cannot be replayed: {error}"
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
        raise DamagedStoreError(str(log.path), f"it is not a valid snapshot: {error}") from error
    whole._clock = clock
    return space


def _restore(make: type[_Space], snapshot: _Snapshot, clock: Callable[[], float]) -> _Space:
    head = snapshot.head
    spaces = [EventType(name, attributes) for name, attributes in head["spaces"]]
    made: Any = make
    space: SubjectSpace = made(*spaces, clock=clock, missing=head["missing"])
    journal = space._journal
    journal.sequence, journal.now = head["sequence"], head["now"]
    if head["pending"]:
        kinds, keys, ids = zip(*head["pending"], strict=True)
        n = np.arange(len(kinds))
        kind = np.array([1 if kind == "ENTER" else -1 for kind in kinds], np.int8)
        journal.pending = [TransitionBlock(kind, n, list(keys), n, Names(growing=list(ids)))]
    for at, entry in enumerate(snapshot.records["axes"]["axes"][1:], 1):
        pattern = entry["pattern"]
        number = (
            space._dimensions.dim(entry["space"], entry["name"])
            if pattern is None
            else space._dimensions.pattern_dim(
                entry["of"], parse_pattern(pattern, "\\", is_bounded=False)
            )
        )
        if number != at:
            raise ValueError("dimensions are out of order")
        space._dimensions.entries[at].labels = Labels(*entry["labels"])
    parts = Parts(snapshot.records["book"]["facts"], snapshot.arrays("book"), snapshot.columns)
    space._subscriptions.catalog = SubscriptionCatalog.from_parts([parts])
    _restore_interests(space, snapshot)
    _restore_objects(space, snapshot)
    return space  # type: ignore[no-any-return]


def _restore_interests(space: SubjectSpace, snapshot: _Snapshot) -> None:
    box_index, fields = space._state.box_index, snapshot.records["interests"]
    boxes, subs = snapshot.arrays("boxes"), snapshot.arrays("subs")
    box_index.masks = _with_capacity(subs.pop("wants"))
    box_index.boxes = Boxes(**{name: _with_capacity(array) for name, array in boxes.items()})
    box_index.subs = Subscriptions(**{name: _with_capacity(array) for name, array in subs.items()})
    box_index.subs.stamp[:] = 0
    box_index.n_boxes, box_index.n_dead = fields["n_boxes"], fields["n_dead"]
    box_index.n_terms = fields["n_terms"]
    box_index.has_masks = bool(np.any(box_index.masks != 3))
    box_index.n_complex = int(np.count_nonzero(box_index.subs.state > 1))
    for dense, regions_json in fields["defined"].items():
        regions = from_json(regions_json)
        assert isinstance(regions, Interest)
        space._subscriptions.regions[int(dense)] = regions
    box_index.extend_lists()


def _with_capacity(array: NDArray[Any]) -> NDArray[Any]:
    """Return a writable array with capacity for at least 16 rows."""
    if len(array) >= 16:
        return array
    larger = np.zeros((16, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def _restore_objects(space: SubjectSpace, snapshot: _Snapshot) -> None:
    object_rows, fields = space._state.object_rows, snapshot.records["objects"]
    cells = snapshot.arrays("objects")["cells"]
    object_rows.fit()
    rows = object_rows.allocate(fields["n"])
    object_rows.cells[rows, : cells.shape[1]] = cells
    object_rows.free = list(fields["free"])
    for key, row in fields["keys"]:
        space._publications.keys.add(key, row)
    for row, until in fields["until"]:
        space._publications.keys.set_expiry(row, until)
    for publication, names, of, (least, terms), filter_json in fields["several"]:
        filter_ = FilterTerms(least, tuple((must, must_not) for must, must_not in terms))
        regions = MultiRegion(tuple(names), np.array(of, np.int32), filter_)
        space._state.multi_region[publication] = regions
        space._state.owner.update(dict.fromkeys(of, publication))
        space._publications.filters[publication] = filter_from_json(filter_json)


# Replay of calls.


def _replay(space: SubjectSpace, record: Record) -> Transitions:
    """Replay a call, at its own time."""
    arguments = dict(record.fields)
    op, now = arguments.pop("op"), arguments.pop("now")
    space._clock = lambda: now / 1_000_000
    space._journal.now = now
    if "until" in arguments and op != "subscribe":
        until = arguments.pop("until")
        ends = until is not None and until <= LATEST
        arguments["ttl"] = dt.timedelta(microseconds=until - now) if ends else None
    if record.octets:
        arguments["table"] = table_from_octets(record.octets)
    return _CALLS[op](space, arguments)  # type: ignore[no-any-return]


def _values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value_from_json(value) for name, value in values.items()}


def _publish(space: SubjectSpace, arguments: dict[str, Any]) -> Transitions:
    values_json = arguments.pop("values")
    values = from_json(arguments.pop("whole")) if values_json is None else _values(values_json)
    transitions: Transitions = space.publish(arguments["key"], values, arguments["ttl"])
    return transitions


def _where(arguments: dict[str, Any]) -> dict[str, Any]:
    if isinstance(arguments.get("where"), dict):
        arguments["where"] = from_json(arguments["where"])
    if arguments.get("params") is not None:
        arguments["params"] = _values(arguments["params"])
    return arguments


def _subscribe(space: SubjectSpace, arguments: dict[str, Any]) -> Transitions:
    until = arguments.pop("until")
    transitions: Transitions = space.subscribe(**_where(arguments), valid_until=until)
    return transitions


_CALLS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "publish": _publish,
    "update": lambda space, arguments: space.update_publication(
        arguments["key"], _values(arguments["values"])
    ),
    "update_region": lambda space, arguments: space.update_region(
        arguments["key"], arguments["region"], _values(arguments["values"])
    ),
    "retract": lambda space, arguments: space.retract_many(arguments["keys"]),
    "touch": lambda space, arguments: space.touch(arguments["key"], arguments["ttl"]),
    "expire": lambda space, arguments: space.expire(),
    "publish_many": lambda space, arguments: space.publish_many(**arguments),
    "update_many": lambda space, arguments: space.update_publications(**arguments),
    "subscribe": _subscribe,
    "update_subscription": lambda space, arguments: space.update(**_where(arguments)),
    "update_subscriptions": lambda space, arguments: space.update_many(
        **arguments, on_error="quarantine"
    ),
    "unsubscribe": lambda space, arguments: space.unsubscribe_many(arguments["ids"]),
    "subscribe_many": lambda space, arguments: space.subscribe_many(
        **arguments, on_error="quarantine"
    ),
}
