"""What a matcher is made of ↔ a store.

Enters: the book and the index of a matcher, taken apart, with its event type, engine and options.
Leaves: a store; and from a store the same again. The events of a profile are kept as an Arrow
stream, where they fit a table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.book.parts import join, split
from tocsin.encode.events import EventBatch, to_batch
from tocsin.engines.protocol import IndexParts
from tocsin.errors import ArgumentError, DamagedStoreError, EventError
from tocsin.model import EventType
from tocsin.parts import Parts
from tocsin.store.folder import Contents, open_store, save

_LATE = "conditions"
"""The file that is verified before it is first used, and not when the store is opened."""


@dataclass(frozen=True)
class Described:
    """What kind of matcher it is, and how many subscriptions it holds."""

    event_type: EventType | None
    engine: str
    options: Mapping[str, object]
    n_subscriptions: int


@dataclass(frozen=True)
class SavedMatcher:
    """A matcher in parts; `index` is None where the engine is to be filled anew."""

    described: Described
    book: Parts
    verify: Callable[[], None] | None
    """Raises where the book's conditions are damaged: that is not known yet."""
    index: Parts | None
    segments: Sequence[Parts]
    profile: EventBatch | None


def to_path(path: object) -> Path:
    """Take a path in any of the forms that Python knows."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"a path must be a string or a Path, not {path!r}")
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise ArgumentError(f"{text!r} is no path")
    return Path(text)


def save_matcher(path: Path, described: Described, book: Parts, index: IndexParts | None) -> None:
    """Write a matcher, or replace the one that is there."""
    rest, conditions = split(book)
    files: dict[str, Callable[[], Parts]] = {"book": lambda: rest, _LATE: lambda: conditions}
    if index is not None:
        state = index.state
        files["index"] = lambda: state
        profile = _write_profile(index.sample, described.event_type)
        if profile is not None:
            files["profile"] = lambda: profile
    facts = {
        "event_type": _write_type(described.event_type),
        "engine": described.engine,
        "options": dict(described.options),
        "n_subscriptions": described.n_subscriptions,
    }
    save(path, Contents(facts, files, index.segments if index else {}))


def open_matcher(path: Path, verify: bool) -> SavedMatcher:
    """Map what `save_matcher` wrote into memory; if `verify`, conditions are so when first used."""
    opened = open_store(path, verify, late=(_LATE,))
    with making_sense(path):
        facts, files = opened.facts, opened.files
        event_type = _read_type(facts["event_type"])
        index, profile = files.get("index"), files.get("profile")
        return SavedMatcher(
            Described(event_type, facts["engine"], facts["options"], facts["n_subscriptions"]),
            join(files["book"].parts, files[_LATE].parts),
            files[_LATE].verify if verify else None,
            None if index is None else index.parts,
            opened.segments,
            None if profile is None else _read_profile(profile.parts, event_type),
        )


@contextmanager
def making_sense(path: Path) -> Iterator[None]:
    """Say of what does not fit together that the store is damaged."""
    try:
        yield
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        reason = f"its parts do not fit together: {type(error).__name__}: {error}"
        raise DamagedStoreError(str(path), reason) from error


def _write_type(event_type: EventType | None) -> Any:
    if event_type is None:
        return None
    kinds = [[name, kind.value] for name, kind in event_type.attributes.items()]
    return {"name": event_type.name, "attributes": kinds}


def _read_type(said: Any) -> EventType | None:
    return None if said is None else EventType(said["name"], dict(said["attributes"]))


def _write_profile(sample: EventBatch | None, event_type: EventType | None) -> Parts | None:
    """Return the events of a profile, or None where they fit no table; only plans depend on it."""
    table = None if sample is None else sample.to_table()
    if table is None:
        return None
    try:
        to_batch(table, event_type)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    except (EventError, pa.ArrowException):
        return None
    return Parts({}, {"events": np.frombuffer(sink.getvalue(), np.uint8)})


def _read_profile(parts: Parts, event_type: EventType | None) -> EventBatch:
    stream = pa.ipc.open_stream(pa.py_buffer(parts.arrays["events"]))
    return to_batch(stream.read_all(), event_type)
