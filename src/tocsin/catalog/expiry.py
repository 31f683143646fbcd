"""ExpiryQueue: which subscriptions have expired.

Enters: expiries in microseconds with dense ids, one or many at a time. Leaves: the dense ids whose
expiry has passed. Single expiries are in a heap, columns in sorted runs, so that a million expiries
cost neither a million objects nor a pass over them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.catalog.blocks import NEVER
from tocsin.catalog.renumbering import Renumbering

_MOST_RUNS = 8
_Run: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
IsLive: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


class ExpiryQueue:
    """Expiries with dense ids. Some may be of removed subscriptions; `keep` drops these."""

    def __init__(self, run: _Run | None = None) -> None:
        self._heap: list[tuple[int, int]] = []
        self._runs: list[_Run] = [run] if run is not None and len(run[0]) else []
        self._next = self._first()

    def __len__(self) -> int:
        return len(self._heap) + sum(len(moments) for moments, _ in self._runs)

    def add(self, moment: int, dense: int) -> None:
        """Add one expiry."""
        heapq.heappush(self._heap, (moment, dense))
        self._next = min(self._next, moment)

    def add_many(self, moments: NDArray[np.int64], dense: NDArray[np.int64]) -> None:
        """Add a column of expiries."""
        self._runs.append(_sorted(moments, dense))
        if len(self._runs) > _MOST_RUNS:
            self._join(None)
        self._next = self._first()

    def due(self, now: int) -> NDArray[np.int64]:
        """Remove and return the dense ids whose expiry has passed."""
        if now < self._next:
            return np.empty(0, np.int64)
        single = []
        while self._heap and self._heap[0][0] <= now:
            single.append(heapq.heappop(self._heap)[1])
        due = [np.array(single, np.int64)]
        remaining = []
        for moments, dense in self._runs:
            n_due = int(np.searchsorted(moments, min(now, NEVER), "right"))
            due.append(np.asarray(dense[:n_due]))
            if n_due < len(moments):
                remaining.append((moments[n_due:], dense[n_due:]))
        self._runs = remaining
        self._next = self._first()
        return np.concatenate(due)

    def keep(self, is_live: IsLive) -> None:
        """Drop the expiries of removed subscriptions."""
        self._join(is_live)
        self._next = self._first()

    def joined(self, is_live: IsLive) -> _Run:
        """Return the expiries of live subscriptions, in order of time."""
        self.keep(is_live)
        return self._runs[0] if self._runs else _sorted(*_columns([]))

    def renumbered(self, is_live: IsLive, new_of: Renumbering) -> _Run:
        """Return the expiries of live subscriptions, in order of time, with new dense ids."""
        moments, dense = self.joined(is_live)
        return moments, new_of(dense)

    def _join(self, is_live: IsLive | None) -> None:
        parts = [*self._runs, _columns(self._heap)]
        moments, dense = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        if is_live is not None:
            live = is_live(dense)
            moments, dense = moments[live], dense[live]
        self._heap = []
        self._runs = [_sorted(moments, dense)] if len(dense) else []

    def _first(self) -> int:
        heads = [int(moments[0]) for moments, _ in self._runs]
        return min([*heads, self._heap[0][0]] if self._heap else heads, default=NEVER)


def _columns(heap: list[tuple[int, int]]) -> _Run:
    pairs = np.array(heap, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _sorted(moments: NDArray[np.int64], dense: NDArray[np.int64]) -> _Run:
    order = np.argsort(moments, kind="stable")
    return moments[order], dense[order]
