"""What a link is told, rounded outward to cells: chosen anew only when bounds outgrow them.

Enters: slots as they were gathered, again and again. Leaves: the same slots with ranges of whole
cells, and the grids that the other end does not know yet (`cells.py`). Rounded slots are what is
compared, sent and remembered, at both ends alike; so a bound that moves within its cell costs
nothing.

A grid follows the bounds of its attribute in all slots: when one leaves it, and now and then, all
are looked at, and those of attributes that it no longer fits are replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tocsin.broker.overlay.cells import Grid, choose, rounded, to_round
from tocsin.broker.overlay.forms import Slots
from tocsin.normalize.domains import Domain, Intervals
from tocsin.normalize.normal import Conjunction

FINER = 2
"""Levels more than the neighbour matches with: rounding adds little to what it lets through."""


class Rounding:
    """The slots of one topic and link, rounded."""

    def __init__(self, levels: int) -> None:
        self._levels = levels + FINER
        self._grids: dict[str, Grid | None] = {}
        self._news: dict[str, Grid] = {}
        self._given: Slots = {}
        self._slots: dict[int, Conjunction] = {}
        self._n_changes = 0

    def take_news(self) -> dict[str, Grid]:
        """Return the grids that were chosen since the last call."""
        news, self._news = self._news, {}
        return news

    def slots(self, given: Slots) -> Slots:
        """Return slots rounded. What is returned is not changed later."""
        before, self._given = self._given, given
        changed = {slot: held for slot, held in given.items() if before.get(slot) is not held}
        if not changed and len(before) == len(given):
            return self._slots
        self._n_changes += len(changed)
        if self._n_changes >= len(given) or not self._fit(changed):
            self._n_changes = 0
            if self._choose(given):
                changed = dict(given)
        self._slots = dict(self._slots)
        for slot in before.keys() - given.keys():
            del self._slots[slot]
        for slot, held in changed.items():
            self._slots[slot] = self._rounded(held)
        return self._slots

    def _rounded(self, conjunction: Conjunction) -> Conjunction:
        found = dict(conjunction)
        for name, held in conjunction.items():
            grid = self._grids.get(name)
            if grid is not None:
                found[name] = rounded(held, grid)
        return found

    def _fit(self, slots: Slots) -> bool:
        """Whether the grids reach as far as these slots."""
        for name, (_, low, high) in _spans(slots).items():
            if name not in self._grids:
                return False
            grid = self._grids[name]
            if grid is not None and not (grid.reaches(low) and grid.reaches(high)):
                return False
        return True

    def _choose(self, slots: Slots) -> bool:
        """Replace the grids that do not fit; whether there are any."""
        chosen: dict[str, Grid | None] = {}
        for name, (domain, low, high) in _spans(slots).items():
            old = self._grids.get(name)
            if domain is None:
                chosen[name] = None
            elif old is not None and old.domain == domain and old.fits(low, high):
                chosen[name] = old
            else:
                chosen[name] = choose(domain, low, high, self._levels)
        new = {n: grid for n, grid in chosen.items() if self._grids.get(n) != grid}
        self._grids = chosen
        self._news |= {name: grid for name, grid in new.items() if grid is not None}
        return bool(new)


_Span = tuple[Domain | None, float, float]


def _spans(slots: Slots) -> Mapping[str, _Span]:
    """Return the line, the least and the greatest bound of each attribute that has ranges.

    There is no line where there are several.
    """
    found: dict[str, _Span] = {}
    for conjunction in slots.values():
        for name, held in conjunction.items():
            domain = to_round(held)
            keys = [] if domain is None else _bounds(held.intervals[domain])
            if keys:
                of, low, high = found.get(name, (domain, keys[0], keys[0]))
                same = of if of is domain else None
                found[name] = (same, min(low, *keys), max(high, *keys))
    return found


def _bounds(intervals: Intervals) -> list[float]:
    return [key for interval in intervals for key, _ in interval if math.isfinite(key)]
