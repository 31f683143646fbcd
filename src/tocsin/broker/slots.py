"""Slots: a limit on concurrent work, in all and for each owner.

Enters: owners that request a slot. Leaves: slots, in turn. No owner has more than its share; a slot
that becomes free goes to the owner that has waited longest since its last one, so that many
requests of one owner do not delay those of another. Used within the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """A number of slots; an owner without a name may take all of them."""

    def __init__(self, n: int, n_each: int) -> None:
        self.n_free = n
        self._n_each = n_each
        self._n_all = n
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def _has_share(self, owner: str) -> bool:
        most = self._n_each if owner else self._n_all
        return self._taken.get(owner, 0) < most

    async def acquire(self, owner: str) -> None:
        """Wait for a slot and take it."""
        if self.n_free and self._has_share(owner) and not self._waiting.get(owner):
            self._take(owner)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # a slot was assigned just now
                self.release(owner)
            else:
                self._forget(owner, turn)
            raise

    def _take(self, owner: str) -> None:
        self.n_free -= 1
        self._taken[owner] = self._taken.get(owner, 0) + 1

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(owner)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[owner]

    def release(self, owner: str) -> None:
        """Release a slot, and assign it to the next owner."""
        self.n_free += 1
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        self._assign_free()

    def _assign_free(self) -> None:
        """Assign free slots to waiting owners in turn."""
        for owner in list(self._waiting):
            if not self.n_free:
                return
            queue = self._waiting[owner]
            while queue and queue[0].done():  # it gave up
                queue.popleft()
            if queue and self._has_share(owner):
                self._take(owner)
                queue.popleft().set_result(None)
                self._waiting[owner] = self._waiting.pop(owner)  # at the end: others come first
            if not queue:
                del self._waiting[owner]

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Hold a slot within a block."""
        await self.acquire(owner)
        try:
            yield
        finally:
            self.release(owner)
