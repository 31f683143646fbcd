"""Schema drift: predicates that can never hold for the events that come.

Enters: conditions as ranges of cells, and for each attribute what is known of its values (`Seen`).
Leaves: a `SchemaIssue` for each attribute that events do not have, or have with values of another
kind than conditions compare it with: how many predicates can never hold because of it, and of which
subscriptions.

Values of a domain give an event only some cells (see `encode.cells`): "absent", and those of their
domain. A predicate that admits none of these can never hold. So `x IS NULL` still holds without an
attribute x, and `x = 1 OR x = 'a'` can hold with strings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import ABSENT_CELL, OTHER_CELL, CellSpace
from tocsin.language.names import is_path
from tocsin.normalize.demands import ANY, LIST, demands_of, shown_name
from tocsin.normalize.domains import Domain

if TYPE_CHECKING:
    from tocsin.catalog.subscriptions import SubscriptionCatalog
    from tocsin.engines.auto.arrays import Conditions
    from tocsin.engines.conditions import IndexedConditions
    from tocsin.model import SubscriptionId

_EXAMPLES = 3
_MAX_ISSUES = 20


@dataclass(frozen=True)
class SchemaIssue:
    """An attribute whose predicates can never hold, with the reason and some subscriptions."""

    attribute: str
    reason: str
    n_predicates: int
    n_subscriptions: int
    examples: tuple[SubscriptionId, ...]
    always: bool = False
    """Whether they always hold instead: they ask for the absence of a column that is missing."""

    def __str__(self) -> str:
        some = ", ".join(map(repr, self.examples))
        more = ", …" if self.n_subscriptions > len(self.examples) else ""
        verdict = "hold for every event" if self.always else "can never hold"
        return (
            f"{self.attribute}: {self.reason}; {self.n_predicates} predicate(s) of "
            f"{self.n_subscriptions} subscription(s) {verdict} ({some}{more})"
        )


class Seen(NamedTuple):
    """What is known of the values of an attribute: their domains, and words for a report.

    No domains: the attribute is absent, or its values are of no domain (`is_present`).
    """

    reason: str
    domains: frozenset[Domain] = frozenset()
    is_present: bool = False
    is_missing: bool = False
    """Whether a column is missing, so that whoever asks for absence is to know it."""
    is_list: bool = False

    def meets(self, mask: int) -> bool:
        """Whether values are what something asks for, a mask of domains."""
        if mask == ANY or not self.is_present:
            return self.is_present
        return bool(LIST * self.is_list & mask or any(mask >> each & 1 for each in self.domains))


def find_issues(
    groups: Iterable[IndexedConditions],
    seen: Callable[[str], Seen | None],
    catalog: SubscriptionCatalog,
) -> list[SchemaIssue]:
    """Return the attributes whose predicates can never hold, by name.

    `seen` says what is known of an attribute; None where nothing is. Removed subscriptions do not
    count.
    """
    dense_ids: dict[tuple[str, bool], list[NDArray[np.int32]]] = {}
    for group in groups:
        space = group.space
        causes = [_cause_of(space, at, seen) for at in range(len(space.attributes))]
        known = [one for _, one in causes]
        suspects = [at for at, one in enumerate(known) if one and _is_suspect(space, at, one)]
        if suspects:
            conditions = group.read()
            for at in suspects:
                never, always = _verdicts(space, conditions, at, known[at])
                for holds, conjunctions in ((False, never), (True, always)):
                    ids = group.ids[conjunctions]
                    ids = ids[catalog.are_live(ids)]
                    if len(ids):
                        dense_ids.setdefault((causes[at][0], holds), []).append(ids)
    return [
        _issue(name, seen(name), np.concatenate(ids), catalog, holds)
        for (name, holds), ids in sorted(dense_ids.items())
    ]


def _cause_of(
    space: CellSpace, at: int, seen: Callable[[str], Seen | None]
) -> tuple[str, Seen | None]:
    """Return what is known of an attribute; of a computed value, where what it needs is not."""
    name = space.attributes[at]
    if not is_path(name):
        mask = sum(1 << domain for domain in space.domains[at]) or ANY
        for attribute, need in demands_of(name, mask):
            one = seen(attribute)
            if one is not None and not one.meets(need):
                return attribute, Seen(one.reason, is_missing=one.is_missing)
    return name, seen(name)


def _is_suspect(space: CellSpace, at: int, seen: Seen) -> bool:
    """Return whether the values of an attribute may disagree with its predicates' domains."""
    return not seen.domains or not set(space.domains[at]) <= seen.domains


def _verdicts(
    space: CellSpace, conditions: Conditions, at: int, seen: Seen | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the conjunction of each predicate that can never hold, and of each that always holds.

    The latter only where a column is missing.
    """
    start, attribute, range_start, low, high = conditions
    predicates = np.flatnonzero(attribute == at)
    if not len(predicates):
        return predicates, predicates
    absent = (low <= ABSENT_CELL) & (high > ABSENT_CELL)
    admits = absent.copy()
    for first, last in _cells(space, at, seen):
        admits |= (low < last) & (high > first)
    n_admitting = np.concatenate([[0], np.cumsum(admits)])
    can_hold = n_admitting[range_start[predicates + 1]] > n_admitting[range_start[predicates]]
    conjunctions = np.searchsorted(start, predicates, side="right") - 1
    is_missing = seen is not None and seen.is_missing
    return conjunctions[~can_hold], conjunctions[can_hold & is_missing]


def _cells(space: CellSpace, at: int, seen: Seen | None) -> list[tuple[int, int]]:
    """Return the ranges of cells, besides "absent", that values like those seen can give."""
    if seen is None or not seen.is_present:
        return []
    ranges = [] if seen.domains else [(OTHER_CELL, OTHER_CELL + 1)]
    for domain in seen.domains:
        cells = space.domains[at].get(domain)
        if cells is None:
            ranges.append((OTHER_CELL, OTHER_CELL + 1))
        else:
            ranges.append((cells.base, cells.base + cells.n_cells))
    return ranges


def _issue(
    attribute: str,
    seen: Seen | None,
    dense_ids: NDArray[np.int32],
    catalog: SubscriptionCatalog,
    always: bool,
) -> SchemaIssue:
    distinct = np.unique(dense_ids)
    examples = catalog.names.to_list(distinct[:_EXAMPLES])
    reason, name = "" if seen is None else seen.reason, shown_name(attribute)
    return SchemaIssue(name, reason, len(dense_ids), len(distinct), tuple(examples), always)


def report(issues: Sequence[SchemaIssue]) -> str:
    """Return the text of a warning about some issues."""
    shown = [str(issue) for issue in issues[:_MAX_ISSUES]]
    if len(issues) > _MAX_ISSUES:
        shown.append(f"… and {len(issues) - _MAX_ISSUES} more")
    title = "conditions ask for what the events do not have:"
    if not any(issue.always for issue in issues):
        title = "predicates that can never hold:"
    return "\n  ".join([title, *shown])
