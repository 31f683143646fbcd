"""Subscriptions: subscribe, update, unsubscribe, one or many at a time.

Enters: ids and conditions. Leaves: transitions: what there is already and is asked for now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tocsin.errors import ArgumentError, BadRowsError
from tocsin.loading import Moment, find_all, load_table, to_ids, to_moment
from tocsin.model import SubscriptionId
from tocsin.subjects.core import Core, Seconds, end_of
from tocsin.subjects.interests import boxes_of
from tocsin.subjects.subscribing import Where, to_wants
from tocsin.subjects.transitions import Transitions


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
        moment = None if valid_until is None else to_moment(valid_until)
        if moment is not None and ttl is not None:
            raise ArgumentError("give valid_until or ttl, not both")
        with self._change() as change:
            name = self._subscribing.check_new(id)
            until = end_of(change.now, ttl) if moment is None else moment
            prepared = self._subscribing.prepare(where, params)
            dense, boxes = self._subscribing.add(name, prepared, until)
            found = self._state.subscribe(
                np.array([dense]),
                boxes,
                wants,
                None if prepared.defined is None else [prepared.filter],
            )
            change.tell(*self._told_by_row(found))
            change.record(
                "subscribe", id=name, where=_text(where), params=params, until=until, notify=notify
            )
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
        with self._change() as change:
            old = self._subscribing.dense(id)
            wants = int(self._state.interests.wants[old]) if notify is None else to_wants(notify)
            if where is None and params is None:
                self._state.interests.wants[old] = wants
                self._state.interests.is_choosy = True
            else:
                prepared = self._subscribing.changed(old, where, params)
                until = self._subscribing.book.valid_until(old)
                self._subscribing.remove(np.array([old]))
                dense, boxes = self._subscribing.add(id, prepared, until)
                found = self._state.exchange(old, dense, boxes, wants, prepared.filter)
                change.tell(*self._told_by_row(found))
            change.record(
                "update_subscription", id=id, where=_text(where), params=params, notify=notify
            )
        return change.transitions

    def unsubscribe(self, id: SubscriptionId) -> Transitions:
        """Remove a subscription; nobody is told."""
        with self._change() as change:
            self._remove_subscriptions(np.array([self._subscribing.dense(id)]))
            change.record("unsubscribe", ids=[id])
        return change.transitions

    def unsubscribe_many(
        self, ids: Iterable[SubscriptionId] | pa.Array | pa.ChunkedArray
    ) -> Transitions:
        """Remove many subscriptions; when one is unknown, none is removed."""
        asked = to_ids(ids)
        with self._change() as change:
            self._remove_subscriptions(find_all(self._subscribing.book, asked))
            names = asked if isinstance(asked, list) else asked.to_list()
            change.record("unsubscribe", ids=names)
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
            bad = loaded.refuse_taken(self._subscribing.book)
            if bad and on_error == "raise":
                raise BadRowsError(bad)
            dense, conjunctions = loaded.add_to(self._subscribing.book)
            boxes = boxes_of(conjunctions, self._axes, 0)
            found = self._state.subscribe(dense, boxes, wants, quiet=quiet)
            change.tell(*self._told_by_row(found))
            taken = pa.table(table) if not isinstance(table, pa.Table) else table
            options = {"where": where, "notify": notify, "quiet": quiet}
            change.record("subscribe_many", table=taken, **options)
        change.transitions.bad = bad
        return change.transitions


def _text(where: Any) -> Any:
    """Return a condition as it is logged: expressions as texts."""
    from tocsin.language.printer import print_expression
    from tocsin.subjects.model import Subscription

    if where is None or isinstance(where, str | Subscription):
        return where
    return print_expression(where)
