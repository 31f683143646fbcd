"""Tombstones: when each subscription of an index was deleted.

Enters: dense ids, and the times of their deletion. Leaves: for ids of segments, whether they were
live at a time. Times are 32 bits and count back from `LATEST`: a live subscription has 0, which
costs no memory until it is touched. Dense ids are counted from `first`, so that an index whose ids
begin at a high number (a part of a store) needs no memory for lower ones.

Snapshots share the table, and ignore deletions that are later than their own time. It is written in
place, but never made smaller or renumbered: an extended, renumbered or restarted table is a new
object, and snapshots keep the old one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LATEST = 0xFFFFFFFF
"""A subscription deleted at time t has `LATEST - t`."""
_LEAST = 1024


@dataclass(frozen=True, eq=False)
class Tombstones:
    """Deletion times by dense id: `times[id - first]`."""

    first: int
    times: NDArray[np.uint32]

    @staticmethod
    def empty(first: int = 0) -> Tombstones:
        """Return a table without deletions for ids from `first` on."""
        return Tombstones(first, np.zeros(_LEAST, np.uint32))

    @property
    def stop(self) -> int:
        """The first id beyond the table."""
        return self.first + len(self.times)

    def of(self, ids: NDArray[np.integer]) -> NDArray[np.uint32]:
        """Return the deletion times of ids."""
        times: NDArray[np.uint32] = self.times[ids if not self.first else ids - self.first]
        return times

    def bury(self, ids: NDArray[np.integer], time: int) -> None:
        """Mark ids as deleted at a time; ids below `first` are in no segment."""
        if self.first:
            ids = ids[ids >= self.first] - self.first
        self.times[ids] = LATEST - time

    def extended_to(self, stop: int) -> Tombstones:
        """Return a table for all ids below `stop`: this one, or a larger copy."""
        if stop <= self.stop:
            return self
        larger = np.zeros(max(stop - self.first, 2 * len(self.times)), np.uint32)
        dead = np.flatnonzero(self.times)
        larger[dead] = self.times[dead]
        return Tombstones(self.first, larger)

    def renumbered(self, kept: NDArray[np.int64]) -> Tombstones:
        """Return a table for other ids: `kept[i]` becomes i."""
        times = np.zeros(max(len(kept), _LEAST), np.uint32)
        inside = slice(*np.searchsorted(kept, [self.first, self.stop]).tolist())
        times[inside] = self.of(kept[inside])
        return Tombstones(0, times)

    def restarted(self) -> Tombstones:
        """Return a table in which all deletions were at time 0, so that time can restart."""
        times = np.zeros(len(self.times), np.uint32)
        times[np.flatnonzero(self.times)] = LATEST
        return Tombstones(self.first, times)
