"""Changes of a store ↔ matchers.

Enters: a change and a matcher. Leaves: the matcher with the change made to it, and what a manifest
says of the change. A matcher of a whole version takes changes as they are; one that holds a part of
it, or what came after it, takes what concerns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.arrow import kind_of_type
from tocsin.catalog.serialization import to_text
from tocsin.errors import BadRow
from tocsin.language.expression import attribute_names
from tocsin.loading import Load, load_rows, load_table, to_expression
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
    """Return the ids whose conditions so far are void after a change."""
    if isinstance(change, RemoveIds):
        return list(change.ids)
    if isinstance(change, ChangeBatch):
        return [id for one in change.changes for id in replaced_ids(one)]
    return [one.id for one in change.updates] if isinstance(change, UpdateMany) else []


def flatten(change: Change) -> Sequence[AddOne | AddTable | RemoveIds | UpdateMany]:
    """Return the batches that a change is made of."""
    return change.changes if isinstance(change, ChangeBatch) else [change]


def apply_to_part(
    change: AddOne | AddTable | RemoveIds | UpdateMany, moment: float, matcher: Matcher
) -> None:
    """Make a change to a matcher that may not have what is removed or updated."""
    matcher.unsubscribe_many([id for id in replaced_ids(change) if id in matcher])
    for one in change.updates if isinstance(change, UpdateMany) else ():
        assert one.where is not None, "updates are written whole"
        new = AddOne(one.id, one.where, one.params or {}, one.valid_until)
        matcher._make(new, moment)
    if isinstance(change, AddOne | AddTable):
        matcher._make(change, moment)


def resolve_updates(change: Change, matcher: Matcher) -> Change:
    """Return updates with the whole condition that each led to."""
    if isinstance(change, ChangeBatch):
        assert not any(isinstance(one, UpdateMany) for one in change.changes)
    if not isinstance(change, UpdateMany):
        return change
    whole = {}
    for one in change.updates:
        dense = matcher._dense(one.id)
        where, params = matcher._book.template(dense)
        text, lifted = to_text(where)
        until = matcher._book.valid_until(dense)
        whole[one.id] = UpdateOne(one.id, text, {**params, **lifted}, until)
    return UpdateMany(list(whole.values()))


def apply_change(change: Change, matcher: Matcher) -> set[str]:
    """Make a change to a matcher; return the attributes that new conditions mention."""
    if isinstance(change, ChangeBatch):
        return {name for one in change.changes for name in apply_change(one, matcher)}
    if isinstance(change, AddTable):
        loaded = load_change(change, matcher)
        matcher._load(loaded, "raise")
        return set(loaded.attributes)
    change.apply(matcher)
    if isinstance(change, RemoveIds):
        return set()
    texts = [change.where] if isinstance(change, AddOne) else [one.where for one in change.updates]
    return {name for text in texts if text for name in attribute_names(to_expression(text))}


def load_change(change: AddTable, matcher: Matcher) -> Load:
    """Read a table as a matcher would."""
    if change.is_rows:
        return load_rows(change.table, matcher.event_type)
    return load_table(change.table, change.where, matcher.event_type, None)


def without_bad_rows(change: AddTable, bad: Sequence[BadRow]) -> AddTable:
    """Return the subscriptions of a table that are not refused."""
    table = change.table
    if not bad:
        return change
    if change.is_rows:
        ids = table.column("id")
        refused = pa.array([row.id for row in bad if row.id is not None], ids.type)
        kept = pc.and_(ids.is_valid(), pc.invert(pc.is_in(ids, refused)))
        return replace(change, table=table.filter(kept))
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
    """Return what the ids of several are: `integers`, `strings` or `mixed`; None for no ids."""
    found = {kind for kind in kinds if kind}
    return None if not found else found.pop() if len(found) == 1 else "mixed"
