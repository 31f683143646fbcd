"""Schema drift: predicates that can never hold, because of the columns of a DataFrame.

Enters: the schema of a DataFrame and the subscriptions. Leaves: a `SchemaIssue` for each attribute
that has no column, or one of another kind than subscriptions compare it with: how many predicates
can never hold because of it, and of which subscriptions.

A column of a kind can give an event only some cells (see `encode.cells`): "absent", and those of
its domain. A predicate that admits none of these can never hold. So `x IS NULL` still holds without
a column x, and `x = 1 OR x = 'a'` can hold with a column of strings.
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
from tocsin.normalize.domains import DOMAIN_OF_KIND
from tocsin.spark import columns, subscription_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from tocsin.engines.auto.arrays import Conditions

_log = logging.getLogger("tocsin.spark")
_EXAMPLES = 3


class SchemaDriftWarning(UserWarning):
    """The events lack attributes of subscriptions, or have them in another type."""


@dataclass(frozen=True)
class SchemaIssue:
    """An attribute whose predicates can never hold, with the reason and some subscriptions."""

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


def schema_issues(events: DataFrame, subscriptions: Any) -> tuple[SchemaIssue, ...]:
    """Return the attributes whose predicates can never hold for the columns of `events`.

    `subscriptions` is a matcher, a store or its path, or a DataFrame of conditions.
    """
    return find_issues(events.schema, subscription_source.open_on_driver(subscriptions))


def find_issues(schema: StructType, matcher: Matcher) -> tuple[SchemaIssue, ...]:
    """Return the issues that a matcher's subscriptions have with a schema."""
    misfits = columns.misfits(schema, matcher.event_type)
    dense_ids: dict[str, list[NDArray[np.int32]]] = {}
    for group in matcher.conditions():
        space = group.space
        suspects = [at for at, _ in enumerate(space.attributes) if _is_suspect(schema, space, at)]
        if suspects:
            conditions = group.read()
            for at in suspects:
                is_hidden = space.attributes[at] in misfits
                ids = group.ids[_unsatisfiable(schema, space, conditions, at, is_hidden)]
                if len(ids):
                    dense_ids.setdefault(space.attributes[at], []).append(ids)
    return tuple(
        _issue(schema, attribute, np.concatenate(ids), matcher)
        for attribute, ids in sorted(dense_ids.items())
    )


def attributes_of(matcher: Matcher) -> list[str]:
    """Return the attributes that a matcher's subscriptions mention."""
    return sorted({name for group in matcher.conditions() for name in group.space.attributes})


def warn(issues: Sequence[SchemaIssue]) -> None:
    """Report issues, as one warning at the caller's caller and in the log."""
    if issues:
        text = "\n  ".join(["predicates that can never hold:", *map(str, issues)])
        _log.warning(text)
        warnings.warn(text, SchemaDriftWarning, stacklevel=3)


def _is_suspect(schema: StructType, space: CellSpace, at: int) -> bool:
    """Return whether the column of an attribute may disagree with its predicates' domains."""
    location = columns.find(schema, space.attributes[at])
    kind = None if location is None else location.kind
    return kind is None or set(space.domains[at]) != {DOMAIN_OF_KIND[kind]}


def _unsatisfiable(
    schema: StructType, space: CellSpace, conditions: Conditions, at: int, is_hidden: bool
) -> NDArray[np.int64]:
    """Return the conjunction of each predicate on an attribute that can never hold."""
    start, attribute, range_start, low, high = conditions
    predicates = np.flatnonzero(attribute == at)
    if not len(predicates):
        return predicates
    admits = (low <= ABSENT_CELL) & (high > ABSENT_CELL)
    if not is_hidden:
        first, last = _cells_of_column(schema, space, at)
        admits |= (low < last) & (high > first)
    n_admitting = np.concatenate([[0], np.cumsum(admits)])
    can_hold = n_admitting[range_start[predicates + 1]] > n_admitting[range_start[predicates]]
    return np.searchsorted(start, predicates[~can_hold], side="right") - 1


def _cells_of_column(schema: StructType, space: CellSpace, at: int) -> tuple[int, int]:
    """Return the range of cells, besides "absent", that the column of an attribute can give."""
    location = columns.find(schema, space.attributes[at])
    if location is None:
        return 0, 0
    kind: Kind | None = location.kind
    cells = None if kind is None else space.domains[at].get(DOMAIN_OF_KIND[kind])
    if cells is None:
        return OTHER_CELL, OTHER_CELL + 1
    return cells.base, cells.base + cells.n_cells


def _issue(
    schema: StructType, attribute: str, dense_ids: NDArray[np.int32], matcher: Matcher
) -> SchemaIssue:
    distinct = np.unique(dense_ids)
    location = columns.find(schema, attribute)
    if location is None:
        reason = "there is no such column"
    else:
        reason = f"the column {location.column!r} has type {location.type.simpleString()}"
    examples = matcher.catalog.names.to_list(distinct[:_EXAMPLES])
    return SchemaIssue(attribute, reason, len(dense_ids), len(distinct), tuple(examples))
