"""Subscriptions: subscribe, update, unsubscribe, one or many at a time.

Enters: ids and conditions. Leaves: transitions: what there is already and is asked for now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tocsin.catalog.serialization import to_text
from tocsin.errors import ArgumentError, BadRowsError
from tocsin.language.expression import Expression
from tocsin.loading import Moment, find_all, load_table, to_ids, to_moment, to_params
from tocsin.model import SubscriptionId
from tocsin.subjects.core import Core, Seconds, end_of
from tocsin.subjects.interests import boxes_of
from tocsin.subjects.model import InterestRegion, Subscription, check_regions
from tocsin.subjects.subscribing import Where, from_wants, to_wants
from tocsin.transitions.transition import Transitions


class Asking(Core):
    """The calls about subscriptions."""

    def subscribe(
        self,
        id: SubscriptionId,
        where: Where,
        params: Mapping[str, Any] | None = None,
        *,
        valid_until: Moment | None = None,
        ttl: Seconds | None = None,
        notify: Literal["both", "enter", "leave"] = "both",
    ) -> Transitions:
        """Register a subscription under a new id; tell what matches it already.

        `where` is a condition in the first space, or a `Subscription` of regions in any. From
        `valid_until` on, or after `ttl` seconds, it is gone. `notify` says which transitions are
        told.
        """
        wants = to_wants(notify)
        condition, values = _plain(where, params)
        moment = None if valid_until is None else to_moment(valid_until)
        if moment is not None and ttl is not None:
            raise ArgumentError("give valid_until or ttl, not both")
        with self._change() as change:
            name = self._subscribing.check_new(id)
            self._subscribing.make_room(self._state.interests)
            until = end_of(change.now, ttl) if moment is None else moment
            prepared = self._subscribing.prepare(condition, values)
            change.record(
                "subscribe",
                id=name,
                where=condition,
                params=values,
                until=until,
                notify=from_wants(wants),
            )
            dense, boxes = self._subscribing.add(name, prepared, until)
            found = self._state.subscribe(
                np.array([dense]),
                boxes,
                wants,
                None if prepared.defined is None else [prepared.filter],
            )
            change.tell(*self._told_by_row(found))
        return change.transitions

    def update_subscription(
        self,
        id: SubscriptionId,
        *,
        where: Where | None = None,
        params: Mapping[str, Any] | None = None,
        notify: Literal["both", "enter", "leave"] | None = None,
    ) -> Transitions:
        """Change a subscription: some of its parameters, its whole condition, what it is told."""
        if where is None and params is None and notify is None:
            raise ArgumentError("update_subscription needs where, params or notify")
        condition, values = _plain(where, params)
        with self._change() as change:
            self._subscribing.make_room(self._state.interests)
            old = self._subscribing.dense(id)
            wants = int(self._state.interests.wants[old]) if notify is None else to_wants(notify)
            told = None if notify is None else from_wants(wants)
            said = {"id": id, "where": condition, "params": values, "notify": told}
            if where is None and params is None:
                change.record("update_subscription", **said)
                self._state.interests.wants[old] = wants
                self._state.interests.is_choosy = True
            else:
                prepared = self._subscribing.changed(old, condition, values)
                change.record("update_subscription", **said)
                until = self._subscribing.book.valid_until(old)
                self._subscribing.remove(np.array([old]))
                dense, boxes = self._subscribing.add(id, prepared, until)
                found = self._state.exchange(old, dense, boxes, wants, prepared.filter)
                change.tell(*self._told_by_row(found))
        return change.transitions

    def unsubscribe(self, id: SubscriptionId) -> Transitions:
        """Remove a subscription; nobody is told."""
        with self._change() as change:
            dense = self._subscribing.dense(id)
            change.record("unsubscribe", ids=[id])
            self._remove_subscriptions(np.array([dense]))
        return change.transitions

    def unsubscribe_many(
        self, ids: Iterable[SubscriptionId] | pa.Array | pa.ChunkedArray
    ) -> Transitions:
        """Remove many subscriptions; when one is unknown, none is removed."""
        asked = to_ids(ids)
        with self._change() as change:
            dense = find_all(self._subscribing.book, asked)
            names = asked if isinstance(asked, list) else asked.to_list()
            change.record("unsubscribe", ids=names)
            self._remove_subscriptions(dense)
        return change.transitions

    def subscribe_many(
        self,
        table: object,
        where: str | None = None,
        *,
        on_error: Literal["raise", "quarantine"] = "raise",
        notify: Literal["both", "enter", "leave"] = "both",
        quiet: bool = False,
    ) -> Transitions:
        """Register many subscriptions from anything Arrow, in the first space.

        The columns are those that `Matcher.subscribe_many` takes, and so is what becomes of bad
        rows; they are listed in `bad` of what is returned. With `quiet`, nothing is told.
        """
        if on_error not in ("raise", "quarantine"):
            raise ArgumentError(f"on_error must be 'raise' or 'quarantine', not {on_error!r}")
        wants = to_wants(notify)
        loaded = load_table(table, where, self.spaces[0], None)
        with self._change() as change:
            self._subscribing.make_room(self._state.interests, len(loaded.table.ids))
            bad = loaded.refuse_taken(self._subscribing.book)
            if bad and on_error == "raise":
                raise BadRowsError(bad)
            taken = pa.table(table) if not isinstance(table, pa.Table) else table
            options = {"where": where, "notify": from_wants(wants), "quiet": quiet}
            change.record("subscribe_many", table=taken, **options)
            dense, conjunctions = loaded.add_to(self._subscribing.book)
            boxes = boxes_of(conjunctions, self._axes, 0)
            found = self._state.subscribe(dense, boxes, wants, quiet=quiet)
            change.tell(*self._told_by_row(found))
        change.transitions.bad = bad
        return change.transitions


def _plain(where: Any, params: Mapping[str, Any] | None) -> tuple[Any, Mapping[str, Any] | None]:
    """Return a condition and parameters as the log holds them: expressions as texts.

    The space works with the same, so that it is the same after it was opened again.
    """
    if isinstance(where, Subscription):
        check_regions(where.regions, InterestRegion)
        regions = {}
        for name, region in where.regions.items():
            text, values = _plain(region.where, region.params)
            regions[name] = replace(region, where=text, params=values or {})
        return replace(where, regions=regions), params
    if not isinstance(where, Expression):
        return where, params
    text, lifted = to_text(where)
    return text, {**to_params(params), **lifted} if lifted else params
