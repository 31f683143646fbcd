"""Owners: subscriptions and connections end with their token.

Enters: the tokens in the database. Leaves: subscriptions suspended, reinstated or removed,
webhooks stopped and resumed, connections closed. A suspended subscription gets nothing: no webhook
is called, nothing is added to its backlog. It goes on when its token is valid again, because an
expired one got a new end (`tocsin token rotate`). Used within the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from tocsin.broker import tokens as token_rows
from tocsin.broker.admission import Closable
from tocsin.broker.core import Broker
from tocsin.broker.tokens import Tokens
from tocsin.broker.webhooks import Webhooks

_EVERY = 0.5
_SETTLED = 2_000_000
"""Microseconds after which no request with a revoked token is in progress."""
log = logging.getLogger("tocsin.server")


class Ownership:
    """Compares the owners of subscriptions and connections with the valid tokens."""

    def __init__(
        self,
        broker: Broker,
        tokens: Tokens,
        webhooks: Webhooks,
        connections: Callable[[], Iterable[Closable]],
    ) -> None:
        self._broker = broker
        self._tokens = tokens
        self._webhooks = webhooks
        self._connections = connections
        broker.metrics.gauges["suspended_owners"] = (
            "Invalid tokens that have subscriptions.",
            lambda: len(broker.subscriptions.suspended.intersection(broker.subscriptions.owners())),
        )

    async def watch(self) -> None:
        """Check twice a second."""
        while True:
            await asyncio.sleep(_EVERY)
            await self.check()
            self._broker.supervisor.recovered("tokens")

    async def check(self) -> None:
        """Close, suspend, reinstate and remove what the tokens require."""
        removals = await self._broker.storage.read(token_rows.removals)
        if removals:
            self._tokens.refresh()
        self._close_connections()
        self._suspend()
        for owner, since in removals.items():
            await self._remove(owner, since)

    def _close_connections(self) -> None:
        for each in list(self._connections()):
            who = each.principal
            if who is not None and not each.is_revoked and not self._tokens.is_valid(who):
                log.info("a connection of %s is closed: its token is not valid any more", who.name)
                each.revoke()

    def _suspend(self) -> None:
        registry, audit = self._broker.registry, self._broker.audit
        subscriptions = self._broker.subscriptions
        for owner in subscriptions.owners():
            is_suspended = owner in subscriptions.suspended
            if self._tokens.is_owner(owner) != is_suspended:
                continue
            if is_suspended:
                changed = registry.reinstate(owner)
                for each in changed:
                    self._webhooks.wake(each)
            else:
                changed = registry.suspend(owner)
                for each in changed:
                    self._webhooks.suspend(each)
            act = "reinstated" if is_suspended else "suspended"
            log.warning("%d subscriptions of the token %s are %s", len(changed), owner, act)
            audit.note(f"owner.{act}", None, owner=owner, n=len(changed))

    async def _remove(self, owner: str, since: int) -> None:
        gone = self._broker.subscriptions.owned_by(owner)
        if gone:
            for each in gone:
                self._webhooks.suspend(each)
            await self._broker.remove(gone)
            log.warning("%d subscriptions of the token %s are removed", len(gone), owner)
            self._broker.audit.note("owner.removed", None, owner=owner, n=len(gone))
        if time.time_ns() // 1000 - since > _SETTLED:
            await self._broker.storage.submit(token_rows.end_removal, owner)
