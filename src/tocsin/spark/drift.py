"""Schema drift on Spark: predicates that can never hold, because of the columns of a DataFrame.

Enters: the schema of a DataFrame and the subscriptions. Leaves: a `SchemaIssue` for each attribute
that has no column, or one of another kind than subscriptions compare it with; `tocsin.drift` finds
them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tocsin.drift import SchemaIssue, Seen, report
from tocsin.drift import find_issues as find_issues_of
from tocsin.errors import SchemaDriftWarning
from tocsin.language.computed import attributes_of as attributes_of_name
from tocsin.language.names import is_path
from tocsin.matcher import Matcher
from tocsin.normalize.demands import list_of
from tocsin.normalize.domains import DOMAIN_OF_KIND
from tocsin.spark import columns, subscription_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["SchemaDriftWarning", "SchemaIssue", "attributes_of", "find_issues", "schema_issues"]

_log = logging.getLogger("tocsin.spark")


def schema_issues(events: DataFrame, subscriptions: Any) -> tuple[SchemaIssue, ...]:
    """Return the attributes whose predicates can never hold for the columns of `events`.

    `subscriptions` is a matcher, a store or its path, or a DataFrame of conditions.
    """
    return find_issues(events.schema, subscription_source.open_on_driver(subscriptions))


def find_issues(schema: StructType, matcher: Matcher) -> tuple[SchemaIssue, ...]:
    """Return the issues that a matcher's subscriptions have with a schema."""
    misfits = columns.misfits(schema, matcher.event_type)

    def seen(name: str) -> Seen | None:
        of = list_of(name)
        if of is None and not is_path(name):
            return None
        attribute = name if of is None else of
        location = columns.find(schema, attribute)
        if location is None:
            return None if of else Seen("there is no such column")
        reason = f"the column {location.column!r} has type {location.type.simpleString()}"
        if attribute in misfits:  # the matcher does not see it
            return Seen(reason)
        if of is not None and not location.is_list:
            return None
        kind = location.kind if of is None else location.kind_of_elements
        if of is not None and kind is None:
            return None
        domains = frozenset() if kind is None else frozenset({DOMAIN_OF_KIND[kind]})
        return Seen(reason, domains, is_present=True, is_list=of is None and location.is_list)

    return tuple(find_issues_of(matcher.conditions(), seen, matcher.catalog))


def attributes_of(matcher: Matcher) -> list[str]:
    """Return the attributes that a matcher's subscriptions mention."""
    names = {name for group in matcher.conditions() for name in group.space.attributes}
    return sorted({each for name in names for each in attributes_of_name(name)})


def warn(issues: Sequence[SchemaIssue]) -> None:
    """Report issues, as one warning at the caller's caller and in the log."""
    if issues:
        text = report(issues)
        _log.warning(text)
        warnings.warn(text, SchemaDriftWarning, stacklevel=3)
