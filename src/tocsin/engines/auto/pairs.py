"""Pairs of an event and the number of a conjunction, as they are found for an ordered batch.

Enters: kernels that go through the batch and stop where room runs out, or enough is open. Leaves:
the pairs that hold. What is found may be open, and have the event's place in the order instead of
the event (see `group_kernels`): it is settled soon, while what that reads is still in the cache,
and before room is made for more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tocsin.engines.auto import match_kernels as kernels
from tocsin.engines.auto.arrays import Stream
from tocsin.engines.auto.buffer_pool import Rooms
from tocsin.engines.auto.prepared import Ordered

_UNSETTLED = 1 << 14
"""So many pairs may be open before they are settled."""


class Pairs:
    """Pairs found in an ordered batch; `is_open` says that some of them may be open."""

    def __init__(
        self, ordered: Ordered, stream: Stream, is_open: bool, room: int, rooms: Rooms
    ) -> None:
        self._ordered, self._stream, self._is_open = ordered, stream, is_open
        self._rooms = rooms
        self.event, self.number = rooms.take(room, np.int32), rooms.take(room, np.uint32)
        self.n = 0

    def collect(self, find: Callable[..., tuple[int, int]], *given: Any) -> None:
        """Add what a kernel finds.

        It is given a place in the order to go on from, how many pairs are enough, room for pairs,
        and how many there are; it returns how many there are then, and the place that it reached.
        """
        at, end = 0, len(self._ordered.order)
        while at < end:
            enough = self.n + _UNSETTLED if self._is_open else len(self.event)
            n, reached = find(*given, at, enough, self.event, self.number, self.n)
            if self._is_open:
                (codes, cells), order, _ = self._ordered
                n = kernels.settle_pairs(
                    self._stream, codes, cells, order, self.event, self.number, self.n, n
                )
            self.n = n
            if reached == at or 2 * n > len(self.event):
                self._grow()
            at = reached

    def _grow(self) -> None:
        event = self._rooms.take(4 * len(self.event), np.int32)
        number = self._rooms.take(4 * len(self.event), np.uint32)
        event[: self.n], number[: self.n] = self.event[: self.n], self.number[: self.n]
        self.event, self.number = event, number
