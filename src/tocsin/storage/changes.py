"""A batch of changes ↔ a file of a store.

Enters: subscriptions to add (a table in one of the forms that `Matcher` takes), ids to remove, or
updates. Leaves: parts that are written; and from them the same batch, which `apply` makes to a
matcher. A batch is made whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from tocsin.bundle import Parts
from tocsin.catalog.ids import Ids
from tocsin.catalog.records import write_json
from tocsin.catalog.sources import read_params, write_params
from tocsin.model import SubscriptionId
from tocsin.storage.container import read_file
from tocsin.storage.manifests import Manifest
from tocsin.storage.place import Place

_FEW = 64
"""Up to this number, updates are applied one by one."""


class ChangeTarget(Protocol):
    """The object that changes are applied to: a matcher."""

    def subscribe(
        self,
        id: SubscriptionId,
        where: str,
        params: Mapping[str, object] | None = None,
        *,
        valid_until: int | None = None,
    ) -> None:
        """Register one subscription."""

    def subscribe_many(self, table: object, where: str | None = None) -> object:
        """Register many subscriptions."""

    def unsubscribe_many(self, ids: Any) -> None:
        """Remove subscriptions."""

    def update(
        self,
        id: SubscriptionId,
        where: str | None = None,
        params: Mapping[str, object] | None = None,
        *,
        valid_until: int | None,
    ) -> None:
        """Change a subscription."""

    def update_many(self, table: object) -> object:
        """Change many subscriptions."""


@dataclass(frozen=True)
class AddOne:
    """One subscription, with its parameters."""

    id: SubscriptionId
    where: str
    params: Mapping[str, object]
    valid_until: int | None

    def apply(self, matcher: ChangeTarget) -> None:
        """Register it."""
        matcher.subscribe(self.id, self.where, self.params, valid_until=self.valid_until)


@dataclass(frozen=True)
class AddTable:
    """A table of texts, of parameters for one text, or of predicate rows."""

    table: pa.Table
    where: str | None = None
    is_rows: bool = False

    def apply(self, matcher: ChangeTarget) -> None:
        """Register the subscriptions."""
        table = self.table
        if self.is_rows and "where" in table.column_names:  # it would be taken for texts
            table = table.drop_columns(["where"])
        matcher.subscribe_many(table, self.where)


@dataclass(frozen=True)
class RemoveIds:
    """Ids of subscriptions to remove."""

    ids: Sequence[SubscriptionId]

    def apply(self, matcher: ChangeTarget) -> None:
        """Remove the subscriptions."""
        matcher.unsubscribe_many(self.ids)


@dataclass(frozen=True)
class UpdateOne:
    """A subscription as it is after an update."""

    id: SubscriptionId
    where: str
    params: Mapping[str, object]
    valid_until: int | None


@dataclass(frozen=True)
class UpdateMany:
    """Updates of different subscriptions."""

    updates: Sequence[UpdateOne]

    def apply(self, matcher: ChangeTarget) -> None:
        """Change the subscriptions."""
        updates = self.updates
        if len(updates) > _FEW and len({type(one.id) for one in updates}) == 1:
            matcher.update_many(self.to_table())
            return
        for one in updates:
            matcher.update(one.id, one.where, one.params, valid_until=one.valid_until)

    def to_table(self) -> pa.Table:
        """Return the updates as a table that `update_many` takes; the ids are of one kind."""
        ends = [one.valid_until for one in self.updates]
        params = [write_json(one.params) if one.params else None for one in self.updates]
        return pa.table(
            {
                "id": pa.array([one.id for one in self.updates]),
                "where": pa.array([one.where for one in self.updates], pa.large_string()),
                "params": pa.array(params, pa.large_string()),
                "valid_until": pa.array(ends, pa.int64()),
            }
        )


@dataclass(frozen=True)
class ChangeBatch:
    """Batches that are applied together, in order."""

    changes: Sequence[AddOne | AddTable | RemoveIds | UpdateMany]

    def apply(self, matcher: ChangeTarget) -> None:
        """Apply all of them."""
        for change in self.changes:
            change.apply(matcher)


Change: TypeAlias = AddOne | AddTable | RemoveIds | UpdateMany | ChangeBatch


def write_change(change: Change) -> Parts:
    """Return a batch of changes as parts."""
    if isinstance(change, ChangeBatch):
        written = [write_change(one) for one in change.changes]
        return Parts(
            {"op": "several", "facts": [parts.facts for parts in written]},
            {f"{at}.{n}": a for at, parts in enumerate(written) for n, a in parts.arrays.items()},
            {f"{at}.{n}": c for at, parts in enumerate(written) for n, c in parts.columns.items()},
        )
    if isinstance(change, AddOne):
        params = write_params(change.params)
        return Parts({"op": "one", "one": [change.id, change.where, params, change.valid_until]})
    if isinstance(change, AddTable):
        facts = {"op": "add", "where": change.where, "is_rows": change.is_rows}
        return Parts(facts, {"table": _write_table(change.table)})
    if isinstance(change, RemoveIds):
        ids = Ids.of(change.ids)
        arrays = {} if ids.numbers is None else {"numbers": ids.numbers}
        columns = {} if ids.texts is None else {"texts": ids.texts}
        return Parts({"op": "remove"}, arrays, columns)
    updates = [
        [one.id, one.where, write_params(one.params), one.valid_until] for one in change.updates
    ]
    return Parts({"op": "update", "updates": updates})


def read_change(parts: Parts) -> Change:
    """Return the batch in some parts; raise KeyError or ValueError for other parts."""
    facts = parts.facts
    if facts["op"] == "several":
        return ChangeBatch([read_change(_part(parts, at)) for at in range(len(facts["facts"]))])  # type: ignore[misc]
    if facts["op"] == "one":
        id, where, params, valid_until = facts["one"]
        return AddOne(id, where, read_params(params), valid_until)
    if facts["op"] == "add":
        return AddTable(_read_table(parts), facts["where"], facts["is_rows"])
    if facts["op"] == "remove":
        return RemoveIds(Ids(parts.arrays.get("numbers"), parts.columns.get("texts")).to_list())
    if facts["op"] == "update":
        return UpdateMany(
            [
                UpdateOne(id, where, read_params(params), until)
                for id, where, params, until in facts["updates"]
            ]
        )
    raise ValueError(f"no change is called {facts['op']!r}")


def _part(parts: Parts, at: int) -> Parts:
    """Return one of several batches."""
    prefix = f"{at}."
    arrays = {n[len(prefix) :]: a for n, a in parts.arrays.items() if n.startswith(prefix)}
    columns = {n[len(prefix) :]: c for n, c in parts.columns.items() if n.startswith(prefix)}
    return Parts(parts.facts["facts"][at], arrays, columns)


def read_changes(place: Place, versions: Sequence[Manifest]) -> Iterator[tuple[Change, float]]:
    """Yield the changes of some versions, in order, with the moments of their commits."""
    for manifest in versions:
        assert manifest.changes is not None
        file = read_file(place.local(manifest.changes.name), manifest.changes)
        file.verify()
        yield read_change(file.parts), manifest.facts["at"]


def _write_table(table: pa.Table) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _read_table(parts: Parts) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(parts.arrays["table"])).read_all()
