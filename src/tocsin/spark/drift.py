"""Schema drift: which predicates the columns of a DataFrame silence.

Enters: the schema of a DataFrame and the subscriptions. Leaves: for each attribute that has no
column, or one of another kind than subscriptions compare it with, how many predicates can never
hold because of it, and of which subscriptions.

A column of a kind can give an event only some cells (see `encode.cells`): "absent", and those of
its line. A condition that admits none of them is silenced. So `x IS NULL` is not silenced where
there is no column x, and `x = 1 OR x = 'a'` is not by a column of strings.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import ABSENT_CELL, OTHER_CELL, CellSpace
from tocsin.matcher import Matcher
from tocsin.model import Kind, SubscriptionId
from tocsin.normalize.domains import LINE_OF_KIND
from tocsin.spark import columns, subscription_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from tocsin.engines.auto.arrays import Conditions

_log = logging.getLogger("tocsin.spark")
_EXAMPLES = 3


class SchemaDriftWarning(UserWarning):
    """Events lack what subscriptions ask about, or have it in another type."""


@dataclass(frozen=True)
class Silenced:
    """What one attribute silences: how many predicates of how many subscriptions, and why."""

    attribute: str
    reason: str
    n_predicates: int
    n_subscriptions: int
    examples: tuple[SubscriptionId, ...]

    def __str__(self) -> str:
        some = ", ".join(map(repr, self.examples))
        more = ", …" if self.n_subscriptions > len(self.examples) else ""
        return (
            f"{self.attribute}: {self.reason}; {self.n_predicates} predicate(s) of "
            f"{self.n_subscriptions} subscription(s) can never hold ({some}{more})"
        )


def silenced(events: DataFrame, subscriptions: Any) -> tuple[Silenced, ...]:
    """Return which attributes of the subscriptions the columns of some events silence, and how.

    `subscriptions` is a matcher, a store or its path.
    """
    return silenced_by(events.schema, subscription_source.open_on_driver(subscriptions))


def silenced_by(schema: StructType, matcher: Matcher) -> tuple[Silenced, ...]:
    """Return what a schema silences of a matcher's subscriptions."""
    misfits = columns.misfits(schema, matcher.event_type)
    found: dict[str, list[NDArray[np.int32]]] = {}
    for group in matcher.conditions():
        space = group.space
        suspects = [at for at, _ in enumerate(space.attributes) if _is_suspect(schema, space, at)]
        if suspects:
            conditions = group.read()
            for at in suspects:
                is_hidden = space.attributes[at] in misfits
                ids = group.ids[_silenced(schema, space, conditions, at, is_hidden)]
                if len(ids):
                    found.setdefault(space.attributes[at], []).append(ids)
    return tuple(
        _report(schema, attribute, np.concatenate(ids), matcher)
        for attribute, ids in sorted(found.items())
    )


def attributes_of(matcher: Matcher) -> list[str]:
    """Return the attributes that a matcher's subscriptions mention."""
    return sorted({name for group in matcher.conditions() for name in group.space.attributes})


def warn(found: Sequence[Silenced]) -> None:
    """Report what is silenced, as one warning and in the log."""
    if found:
        text = "\n  ".join(["the events silence predicates:", *map(str, found)])
        _log.warning(text)
        warnings.warn(text, SchemaDriftWarning, stacklevel=4)


def _is_suspect(schema: StructType, space: CellSpace, at: int) -> bool:
    """Whether conditions on an attribute may be silenced: not where column and lines agree."""
    kind = _kind_at(schema, space.attributes[at])
    return kind is None or set(space.lines[at]) != {LINE_OF_KIND[kind]}


def _kind_at(schema: StructType, attribute: str) -> Kind | None:
    place = columns.find(schema, attribute)
    return None if place is None else place.kind


def _silenced(
    schema: StructType, space: CellSpace, conditions: Conditions, at: int, is_hidden: bool
) -> NDArray[np.int64]:
    """Return the conjunction of each silenced condition on an attribute."""
    start, attribute, range_start, low, high = conditions
    chosen = np.flatnonzero(attribute == at)
    if not len(chosen):
        return chosen
    admits = (low <= ABSENT_CELL) & (high > ABSENT_CELL)
    if not is_hidden:
        first, last = _possible(schema, space, at)
        admits |= (low < last) & (high > first)
    n_admitting = np.concatenate([[0], np.cumsum(admits)])
    can_hold = n_admitting[range_start[chosen + 1]] > n_admitting[range_start[chosen]]
    dead = chosen[~can_hold]
    return np.searchsorted(start, dead, side="right") - 1


def _possible(schema: StructType, space: CellSpace, at: int) -> tuple[int, int]:
    """Return the range of cells, besides "absent", that the column of an attribute can give."""
    place = columns.find(schema, space.attributes[at])
    if place is None:
        return 0, 0
    line = None if place.kind is None else LINE_OF_KIND[place.kind]
    cells = None if line is None else space.lines[at].get(line)
    if cells is None:
        return OTHER_CELL, OTHER_CELL + 1
    return cells.base, cells.base + cells.n_cells


def _report(
    schema: StructType, attribute: str, ids: NDArray[np.int32], matcher: Matcher
) -> Silenced:
    distinct = np.unique(ids)
    place = columns.find(schema, attribute)
    if place is None:
        reason = "there is no such column"
    else:
        reason = f"the column {place.column!r} has another type there: {place.type.simpleString()}"
    examples = matcher._book.names.to_list(distinct[:_EXAMPLES])
    return Silenced(attribute, reason, len(ids), len(distinct), tuple(examples))
