"""Summaries: for each attribute, a set of values that covers the conditions of every member.

Enters: conjunction tables. Leaves: a `Summary`, which admits every event that one of the table's
conjunctions matches (and others). It is the least upper bound of Jayaram et al. (Beretta, sections
2.4 and 5), attribute by attribute: a condition that each conjunction's condition on the attribute
implies. An attribute that some conjunction leaves free is free in the summary.

Deviations: where the paper has one interval, we keep a few (`pieces.py`), and sets of strings; an
absent value is one more value that a condition may admit. LIKE patterns count as the intervals that
hold their strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import CellSpace
from tocsin.encode.events import EventBatch, read_value
from tocsin.encode.moments import holds
from tocsin.language.computed import choices_of
from tocsin.normalize.condition import Condition
from tocsin.normalize.condition import unite as unite_conditions
from tocsin.normalize.describe import NEVER, describe_conjunction
from tocsin.normalize.domains import FULL, Domain, Intervals
from tocsin.normalize.layout import from_forms
from tocsin.normalize.normal import Conjunction, NormalForm, conjunction_covers
from tocsin.normalize.table import ABSENT, PRESENT, ConjunctionTable
from tocsin.summary import plain
from tocsin.summary.pieces import (
    DEFAULT_LIMITS,
    Limits,
    Pieces,
    check_limits,
    reduce,
    reduce_intervals,
    to_intervals,
    unite,
)


@dataclass(frozen=True)
class Summary:
    """A cover of some conjunctions. Immutable; safe to read from many threads."""

    conditions: Conjunction
    """The attributes that every member constrains, each with the values that some member admits."""
    is_never: bool = False
    """Whether there is no member, so that no event is admitted."""
    limits: Limits = DEFAULT_LIMITS

    @classmethod
    def of_table(
        cls, table: ConjunctionTable, *, max_pieces: int = 64, max_values: int = 1024
    ) -> Summary:
        """Summarise the conjunctions of a table.

        Of an attribute, at most `max_pieces` intervals of numbers (and as many of timestamps) are
        kept, and `max_values` strings.
        """
        limits = check_limits(max_pieces, max_values)
        n = table.n_conjunctions
        if n == 0:
            return cls({}, True, limits)
        used = np.bincount(table.attribute, minlength=len(table.attributes))
        conditions: dict[str, Condition] = {}
        for attribute in np.flatnonzero(used == n).tolist():
            if choices_of(table.attributes[attribute]):
                continue  # it has a value in each choice, not in the event
            condition = _summarise(table, attribute, limits)
            if not condition.is_full:
                conditions[table.attributes[attribute]] = condition
        return cls(conditions, False, limits)

    @classmethod
    def never(cls, *, max_pieces: int = 64, max_values: int = 1024) -> Summary:
        """Return the summary of nothing."""
        return cls({}, True, check_limits(max_pieces, max_values))

    @property
    def is_always(self) -> bool:
        """Whether every event is admitted."""
        return not self.is_never and not self.conditions

    def joined(self, other: Summary) -> Summary:
        """Return a summary of the members of both, within this one's limits."""
        if self.is_never or other.is_never:
            whole = other if self.is_never else self
            return Summary(
                {name: self._within(condition) for name, condition in whole.conditions.items()},
                whole.is_never,
                self.limits,
            )
        joint: dict[str, Condition] = {}
        for name, own in self.conditions.items():
            if name in other.conditions:
                both = unite_conditions(own, other.conditions[name])
                assert both is not None, "summaries have no patterns"
                if not both.is_full:
                    joint[name] = self._within(both)
        return Summary(joint, False, self.limits)

    def _within(self, condition: Condition) -> Condition:
        if condition.other:
            return condition
        by_domain = tuple(
            reduce_intervals(domain, condition.intervals[domain], self.limits) for domain in Domain
        )
        return Condition(by_domain, condition.absent)

    def covers(self, other: Summary) -> bool:
        """Whether this admits every event that the other admits."""
        if other.is_never or self.is_always:
            return True
        return not self.is_never and conjunction_covers(self.conditions, other.conditions)

    def admits(self, events: EventBatch) -> NDArray[np.bool_]:
        """Return for each event whether a member may match it; False is exact."""
        if self.is_never:
            return np.zeros(len(events), np.bool_)
        admitted = np.ones(len(events), np.bool_)
        if self.conditions:
            space, tables = self._cells
            for cells, table in zip(space.encode(events), tables, strict=True):
                admitted &= table[cells]
        return admitted

    def admits_one(self, event: Mapping[str, object]) -> bool:
        """Return whether a member may match an event; False is exact."""
        return not self.is_never and all(
            holds(condition, read_value(event, name)) for name, condition in self.conditions.items()
        )

    @cached_property
    def _cells(self) -> tuple[CellSpace, list[NDArray[np.bool_]]]:
        """The cells into which the conditions divide each attribute, and which are admitted."""
        space = CellSpace(from_forms([NormalForm((self.conditions,))]))
        tables = []
        for at, n_cells in enumerate(space.n_cells):
            table = np.zeros(n_cells, np.bool_)
            for place in range(space.range_start[at], space.range_start[at + 1]):
                table[space.range_low[place] : space.range_high[place]] = True
            tables.append(table)
        return space, tables

    def to_json(self) -> dict[str, Any]:
        """Return the summary as lists and dictionaries that JSON can hold, exactly."""
        return {
            "never": self.is_never,
            "max_pieces": self.limits.max_pieces,
            "max_values": self.limits.max_values,
            "attributes": {
                name: plain.condition_to_plain(condition)
                for name, condition in self.conditions.items()
            },
        }

    @classmethod
    def from_json(cls, source: Mapping[str, Any]) -> Summary:
        """Return the summary of `to_json`; raise `ArgumentError` if it is ill-formed."""
        plain.check_keys(source, "never", "max_pieces", "max_values", "attributes")
        limits = check_limits(source["max_pieces"], source["max_values"])
        never = plain.to_flag(source["never"], "never")
        conditions = {
            name: plain.condition_of_plain(name, entry)
            for name, entry in plain.to_items(source["attributes"])
        }
        return cls({n: c for n, c in conditions.items() if not c.is_full}, never, limits)

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        return (Summary.from_json, (self.to_json(),))

    def describe(self) -> str:
        """Describe in words which events are admitted."""
        return NEVER if self.is_never else describe_conjunction(self.conditions)


def _summarise(table: ConjunctionTable, attribute: int, limits: Limits) -> Condition:
    """Return the values that some condition on an attribute admits, or more."""
    members = np.flatnonzero(table.attribute == attribute)
    flags = table.flags[members]
    absent = bool(np.any(flags & ABSENT))
    if np.any(flags & PRESENT):
        return Condition(FULL, absent, other=True)
    starts = table.piece_start[members]
    counts = table.piece_start[members + 1] - starts
    before = np.cumsum(counts) - counts
    places = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    on = table.domain[places]
    by_domain: list[Intervals] = [(), (), (), ()]
    for domain in Domain:
        chosen = places[on == domain]
        if len(chosen):
            pieces = Pieces(*(getattr(table, name)[chosen] for name in Pieces._fields))
            kept = reduce(domain, unite(pieces), limits)
            by_domain[domain] = to_intervals(
                domain, kept, lambda rank: str(table.vocabulary[rank].as_py())
            )
    return Condition(tuple(by_domain), absent)
