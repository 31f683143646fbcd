"""Replay: the changes of a store, applied to matchers.

Enters: a change and a matcher. Leaves: the matcher with the change applied, and the facts of the
change for its manifest. A matcher of a whole version takes each change as it is; one of a part, or
of the changes since the base, takes its share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.arguments import Moment, OnError, Unchanged
from tocsin.arrow import kind_of_type
from tocsin.catalog.records import text_and_params
from tocsin.errors import BadRow
from tocsin.language import parse
from tocsin.language.computed import attribute_names
from tocsin.language.expression import Expression
from tocsin.loading import Load, LoadReport, load_rows, load_table
from tocsin.matcher import Matcher
from tocsin.model import Kind, SubscriptionId
from tocsin.storage.changes import (
    AddOne,
    AddTable,
    Change,
    ChangeBatch,
    RemoveIds,
    UpdateMany,
    UpdateOne,
)


def replaced_ids(change: Change) -> list[SubscriptionId]:
    """Return the ids whose earlier conditions a change removes or replaces."""
    if isinstance(change, RemoveIds):
        return list(change.ids)
    if isinstance(change, ChangeBatch):
        return [id for one in change.changes for id in replaced_ids(one)]
    return [one.id for one in change.updates] if isinstance(change, UpdateMany) else []


def flatten(change: Change) -> Sequence[AddOne | AddTable | RemoveIds | UpdateMany]:
    """Return the single changes of a batch, or the change itself."""
    return change.changes if isinstance(change, ChangeBatch) else [change]


def apply_to_part(
    change: AddOne | AddTable | RemoveIds | UpdateMany, moment: float, matcher: Matcher
) -> None:
    """Apply a change to a matcher that need not have the ids that it removes or updates."""
    matcher.unsubscribe_many([id for id in replaced_ids(change) if id in matcher])
    for one in change.updates if isinstance(change, UpdateMany) else ():
        assert one.where is not None, "updates are written whole"
        new = AddOne(one.id, one.where, one.params or {}, one.valid_until)
        matcher.apply(new, moment)
    if isinstance(change, AddOne | AddTable):
        matcher.apply(change, moment)


class AppliedChange(NamedTuple):
    """A change as it is written after it was applied to a matcher; None if nothing changed."""

    change: Change | None
    attributes: set[str]
    """The attributes that new conditions mention."""
    report: LoadReport = LoadReport(0)


def apply_change(change: AddOne | RemoveIds | AddTable | ChangeBatch, matcher: Matcher) -> set[str]:
    """Apply a change to a matcher; return the attributes that new conditions mention."""
    if isinstance(change, ChangeBatch):
        changes = [each for each in change.changes if not isinstance(each, UpdateMany)]
        assert len(changes) == len(change.changes)
        return {name for each in changes for name in apply_change(each, matcher)}
    if isinstance(change, AddTable):
        load = load_change(change, matcher)
        matcher.load(load)
        return set(load.attributes)
    change.apply(matcher)
    return set(attribute_names(parse(change.where))) if isinstance(change, AddOne) else set()


def add_table(change: AddTable, matcher: Matcher, on_error: OnError) -> AppliedChange:
    """Register the subscriptions of a table."""
    load = load_change(change, matcher)
    report = matcher.load(load, on_error)
    made = without_bad_rows(change, report.bad) if report.loaded else None
    return AppliedChange(made, set(load.attributes), report)


def put_one(
    id: SubscriptionId,
    where: str,
    params: Mapping[str, object],
    valid_until: int | None,
    matcher: Matcher,
) -> AppliedChange:
    """Register a subscription, or replace the one of this id."""
    is_known = id in matcher
    matcher.put(id, where, params, valid_until=valid_until)
    attributes = set(attribute_names(parse(where)))
    if is_known:
        change: Change = UpdateMany([UpdateOne(id, where, params, valid_until)])
    else:
        change = AddOne(id, where, params, valid_until)
    return AppliedChange(change, attributes, LoadReport(1, replaced=int(is_known)))


def put_table(change: AddTable, matcher: Matcher, on_error: OnError) -> AppliedChange:
    """Register the subscriptions of a table, or replace those whose ids are taken."""
    load = load_change(change, matcher)
    replaced = load.known(matcher.catalog)
    report = matcher.put_load(load, on_error)
    if not report.loaded:
        return AppliedChange(None, set(), report)
    added = without_bad_rows(change, report.bad)
    made = ChangeBatch([RemoveIds(replaced), added]) if replaced else added
    return AppliedChange(made, set(load.attributes), report)


def update_table(
    table: object, where: str | Expression | None, matcher: Matcher, on_error: OnError
) -> AppliedChange:
    """Update subscriptions; the change has the whole condition of each afterwards."""
    report = matcher.update_many(table, where, on_error=on_error)
    stop = matcher.catalog.next_dense
    return _resolved(matcher, range(stop - report.loaded, stop), report)


def update_one(
    id: SubscriptionId,
    where: str | Expression | None,
    params: Mapping[str, object] | None,
    valid_until: Moment | Unchanged | None,
    matcher: Matcher,
) -> AppliedChange:
    """Update a subscription; the change has its whole condition afterwards."""
    matcher.update(id, where, params, valid_until=valid_until)
    newest = matcher.catalog.next_dense - 1
    return _resolved(matcher, range(newest, newest + 1), LoadReport(1))


def _resolved(matcher: Matcher, dense: range, report: LoadReport) -> AppliedChange:
    """Return the subscriptions that were just updated: they have the latest dense ids."""
    catalog = matcher.catalog
    names, updates = catalog.names, []
    for each in dense:
        text, params = text_and_params(catalog.source(each))
        updates.append(UpdateOne(names[each], text, params, catalog.valid_until(each)))
    texts = {one.where for one in updates}
    attributes = {name for text in texts for name in attribute_names(parse(text))}
    return AppliedChange(UpdateMany(updates) if updates else None, attributes, report)


def load_change(change: AddTable, matcher: Matcher) -> Load:
    """Read a table as a matcher would."""
    if change.is_rows:
        return load_rows(change.table, matcher.event_type)
    return load_table(change.table, change.where, matcher.event_type)


def without_bad_rows(change: AddTable, bad: Sequence[BadRow]) -> AddTable:
    """Return a table without its bad rows."""
    table = change.table
    if not bad:
        return change
    if change.is_rows:
        ids = table.column("id")
        refused = pa.array([row.id for row in bad if row.id is not None], ids.type)
        is_good_id = pc.and_(ids.is_valid(), pc.invert(pc.is_in(ids, refused)))
        return replace(change, table=table.filter(is_good_id))
    is_good = np.ones(table.num_rows, np.bool_)
    is_good[[row.row for row in bad]] = False
    return replace(change, table=table.filter(pa.array(is_good)))


def id_kinds(change: Change) -> str | None:
    """Return the kinds of the ids that a change adds."""
    if isinstance(change, ChangeBatch):
        return merge_id_kinds(id_kinds(one) for one in change.changes)
    if isinstance(change, AddTable):
        kind = kind_of_type(change.table.schema.field("id").type)
        return "strings" if kind is Kind.STRING else "integers"
    if isinstance(change, AddOne):
        return "strings" if isinstance(change.id, str) else "integers"
    return None


def merge_id_kinds(kinds: Iterable[str | None]) -> str | None:
    """Return the kind of ids of several kinds: `integers`, `strings` or `mixed`; None for none."""
    distinct = {kind for kind in kinds if kind}
    if not distinct:
        return None
    return distinct.pop() if len(distinct) == 1 else "mixed"
