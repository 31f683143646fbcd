"""A matcher ↔ the parts of a store.

Enters: the catalog and the index of a matcher as parts, with its event type, engine and options.
Leaves: the contents of a part of a store, and a saved matcher from the parts of a version. The
events of a profile are written as an Arrow stream if they fit a table.
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
"""The role of the file that is verified at its first use, not when the store is opened."""


@dataclass(frozen=True)
class MatcherFacts:
    """The configuration of a matcher, and facts of its subscriptions."""

    event_type: EventType | None
    engine: str
    options: Mapping[str, object]
    n_subscriptions: int
    attributes: Sequence[str] | None = None
    """The attributes that the conditions mention; None if unknown."""
    ids: str | None = None
    """The kinds of the ids: `integers`, `strings` or `mixed`; None without ids."""


@dataclass(frozen=True)
class SavedMatcher:
    """A matcher in parts; `index` is None for an engine that has to be filled again."""

    facts: MatcherFacts
    catalogs: Sequence[Parts]
    verify: Callable[[], object] | None
    """Raises DamagedStoreError if the conditions, which are not verified yet, are damaged."""
    index: Sequence[Parts] | None
    segments: Sequence[Parts]
    profile: EventBatch | None


def part_contents(facts: MatcherFacts, catalog: Parts, index: IndexParts | None) -> PartContents:
    """Return the contents of a part that has a whole matcher."""
    rest, conditions = split(catalog)
    files: dict[str, Callable[[], Parts]] = {"book": lambda: rest, _LATE: lambda: conditions}
    if index is not None:
        state = index.state
        files["index"] = lambda: state
        profile = _write_profile(index.sample, facts.event_type)
        if profile is not None:
            files["profile"] = lambda: profile
    return PartContents(write_facts(facts), files, index.segments if index else {})


def write_facts(facts: MatcherFacts) -> dict[str, Any]:
    """Return the facts of a matcher for JSON."""
    return {
        "event_type": _write_type(facts.event_type),
        "engine": facts.engine,
        "options": dict(facts.options),
        "n_subscriptions": facts.n_subscriptions,
        "attributes": facts.attributes,
        "ids": facts.ids,
    }


def read_facts(facts: Mapping[str, Any]) -> MatcherFacts:
    """Return the facts in JSON; the inverse of `write_facts`."""
    return MatcherFacts(
        _read_type(facts["event_type"]),
        facts["engine"],
        facts["options"],
        facts["n_subscriptions"],
        facts["attributes"],
        facts["ids"],
    )


def open_parts(place: Place, parts: Sequence[Part], verify: bool) -> SavedMatcher:
    """Map parts into memory; conditions are verified at their first use."""
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
    """Raise errors of parts that do not fit together as a DamagedStoreError."""
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
    strict = {"strict": True} if event_type.is_strict else {}
    return {"name": event_type.name, "attributes": kinds, **strict}


def _read_type(value: Any) -> EventType | None:
    if value is None:
        return None
    return EventType(
        value["name"], dict(value["attributes"]), strict=value.get("strict", False) is True
    )


def _write_profile(sample: EventBatch | None, event_type: EventType | None) -> Parts | None:
    """Return the events of a profile, or None if they fit no table; only plans depend on them."""
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
