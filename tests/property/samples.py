"""Samples: conditions and events of a world, with DuckDB's verdict on every pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from tests.property import duck
from tests.property.strategies import (
    AGREEING,
    ANY,
    MARKET,
    MIXED,
    NUMERIC,
    STRINGY,
    TYPED,
    Event,
    Seeded,
    Source,
    World,
    choose,
    event,
    expression,
    quote,
)

from tocsin.language import print_expression
from tocsin.language.expression import Expression
from tocsin.model import EventType, Kind

Verdicts: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

WORLDS = {
    "typed": TYPED,
    "agreeing": AGREEING,
    "mixed": MIXED,
    "numeric": NUMERIC,
    "stringy": STRINGY,
    "market": MARKET,
}


@dataclass(frozen=True)
class Sample:
    """Conditions, events, and which of them DuckDB says match: one row a condition."""

    world: World
    conditions: Sequence[Expression]
    texts: Sequence[str]
    events: Sequence[Event]
    verdicts: Verdicts

    @property
    def n_pairs(self) -> int:
        return len(self.conditions) * len(self.events)

    @property
    def event_type(self) -> EventType | None:
        """What may be declared: only conditions that agree with their attributes' kinds."""
        return EventType("Sample", dict(self.world.kinds)) if self.world is AGREEING else None

    def check(self, found: Verdicts, who: str) -> int:
        """Compare with DuckDB; return the number of pairs that were compared."""
        wrong = np.argwhere(found != self.verdicts)
        if len(wrong):
            shown = "\n".join(self._show(i, j, found) for i, j in wrong[:5])
            pytest.fail(f"{who} differs from DuckDB on {len(wrong)} of {self.n_pairs}:\n{shown}")
        rate = f"{self.verdicts.mean():.0%}"
        print(f"{who}: {self.n_pairs} pairs agree with DuckDB, {rate} of them match")
        return self.n_pairs

    def _show(self, condition: int, event: int, found: Verdicts) -> str:
        return (
            f"  condition {condition}: {self.texts[condition]!a}\n"
            f"  event {event}: {self.events[event]!a}\n"
            f"  DuckDB: {self.verdicts[condition, event]}, found: {found[condition, event]}"
        )

    def by_pairs(self, holds: Callable[[int, Event], bool]) -> Verdicts:
        """Ask for each pair."""
        return np.array(
            [[holds(i, event) for event in self.events] for i in range(len(self.conditions))]
        )

    def by_events(self, matches: Iterable[Sequence[Any]]) -> Verdicts:
        """Take the matches of each event, by the numbers of the conditions."""
        found = np.zeros(self.verdicts.shape, np.bool_)
        for column, ids in enumerate(matches):
            assert len(set(ids)) == len(ids), "an id is there once"
            found[list(ids), column] = True
        return found


@cache
def sample(name: str, n_conditions: int, n_events: int, seed: int = 1) -> Sample:
    """Make a sample; the same arguments give the same one."""
    world = WORLDS[name]
    source = Seeded(seed)
    make = quote if world is MARKET else expression
    conditions = [make(source, world) for _ in range(n_conditions)]
    events = [event(source, world) for _ in range(n_events)]
    verdicts = duck.verdicts(conditions, events, world)
    assert 0.01 < verdicts.mean() < 0.6, "both answers are frequent"
    return Sample(world, conditions, [*map(print_expression, conditions)], events, verdicts)


_TYPES: dict[Kind, tuple[pa.DataType, ...]] = {
    Kind.INTEGER: (pa.int64(),),
    Kind.FLOAT: (pa.float64(),),
    Kind.STRING: (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ),
    Kind.BOOLEAN: (pa.bool_(),),
    Kind.TIMESTAMP: (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("us", "+02:00")),
}


def to_table(events: Sequence[Event], world: World, source: Source) -> pa.Table:
    """Return events as an Arrow table, its types, chunks and structs chosen at random."""
    columns: dict[str, Any] = {}
    structs: dict[str, dict[str, pa.Array]] = {}
    for name, kind in world.kinds.items():
        assert kind is not ANY
        array = _array([event.get(name) for event in events], choose(source, _TYPES[kind]))
        head, dot, tail = name.partition(".")
        if dot and source.below(2):
            structs.setdefault(head, {})[tail] = array
        else:
            columns[name] = array
    for head, fields in structs.items():
        columns[head] = pa.StructArray.from_arrays([*fields.values()], names=[*fields])
    table = pa.table(columns)
    if source.below(2):  # chunks, and arrays that do not start where their buffers do
        place = source.below(len(events))
        table = pa.concat_tables([table.slice(0, place), table.slice(place)])
    return table


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    if pa.types.is_timestamp(kind) and kind.tz is None:
        values = [None if value is None else value.replace(tzinfo=None) for value in values]
    return pa.array(values, kind)


def nested(event: Event) -> Event:
    """Return an event with its dotted attributes as nested objects."""
    found: Event = {}
    for name, value in event.items():
        head, dot, tail = name.partition(".")
        if dot:
            found.setdefault(head, {})[tail] = value
        else:
            found[name] = value
    return found
