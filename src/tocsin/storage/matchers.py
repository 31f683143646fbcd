"""What a matcher is made of ↔ a store.

Enters: the book and the index of a matcher, taken apart, with its event type, engine and options.
Leaves: the contents of a part; and from the parts of a version the same again. The events of a
profile are kept as an Arrow stream, where they fit a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.bundle import Parts
from tocsin.catalog.serialization import join, split
from tocsin.encode.events import EventBatch, to_batch
from tocsin.engines.protocol import IndexParts
from tocsin.errors import DamagedStoreError, EventError, TocsinError
from tocsin.model import EventType
from tocsin.storage.folder import PartContents, open_part
from tocsin.storage.manifests import Part
from tocsin.storage.place import Place

_LATE = "conditions"
"""The file that is verified before it is first used, and not when the store is opened."""


@dataclass(frozen=True)
class MatcherFacts:
    """What kind of matcher it is, and how many subscriptions it holds."""

    event_type: EventType | None
    engine: str
    options: Mapping[str, object]
    n_subscriptions: int
    attributes: Sequence[str] | None = None
    """What the conditions mention; None where that is not known."""
    ids: str | None = None
    """The kinds of the ids: `integers`, `strings` or `mixed`; None where there are none."""


@dataclass(frozen=True)
class SavedMatcher:
    """A matcher in parts; `index` is None where the engine is to be filled anew."""

    facts: MatcherFacts
    books: Sequence[Parts]
    verify: Callable[[], object] | None
    """Raises where the conditions of a book are damaged: that is not known yet."""
    index: Sequence[Parts] | None
    segments: Sequence[Parts]
    profile: EventBatch | None


def part_contents(facts: MatcherFacts, book: Parts, index: IndexParts | None) -> PartContents:
    """Return what is written of a matcher."""
    rest, conditions = split(book)
    files: dict[str, Callable[[], Parts]] = {"book": lambda: rest, _LATE: lambda: conditions}
    if index is not None:
        state = index.state
        files["index"] = lambda: state
        profile = _write_profile(index.sample, facts.event_type)
        if profile is not None:
            files["profile"] = lambda: profile
    return PartContents(write_facts(facts), files, index.segments if index else {})


def write_facts(facts: MatcherFacts) -> dict[str, Any]:
    """Return what kind of matcher it is, for JSON."""
    return {
        "event_type": _write_type(facts.event_type),
        "engine": facts.engine,
        "options": dict(facts.options),
        "n_subscriptions": facts.n_subscriptions,
        "attributes": facts.attributes,
        "ids": facts.ids,
    }


def read_facts(facts: Mapping[str, Any]) -> MatcherFacts:
    """Return what `write_facts` was given."""
    return MatcherFacts(
        _read_type(facts["event_type"]),
        facts["engine"],
        facts["options"],
        facts["n_subscriptions"],
        facts["attributes"],
        facts["ids"],
    )


def open_parts(place: Place, parts: Sequence[Part], verify: bool) -> SavedMatcher:
    """Map parts into memory; conditions are verified, if they are, when first used."""
    opened = [open_part(place, part, verify, late=(_LATE,)) for part in parts]
    with as_damaged_store(place):
        files = [one.files for one in opened]
        facts = read_facts(opened[0].facts)
        profile = files[0].get("profile")
        late = [of[_LATE].verify for of in files]
        return SavedMatcher(
            facts,
            [join(of["book"].parts, of[_LATE].parts) for of in files],
            lambda: [check() for check in late],
            [of["index"].parts for of in files] if "index" in files[0] else None,
            [segment for one in opened for segment in one.segments],
            None if profile is None else _read_profile(profile.parts, facts.event_type),
        )


@contextmanager
def as_damaged_store(path: object) -> Iterator[None]:
    """Say of what does not fit together that the store is damaged."""
    try:
        yield
    except TocsinError:  # some of them are a KeyError or a ValueError too
        raise
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
