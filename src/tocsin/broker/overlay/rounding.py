"""Interests rounded outward to cells, whose grids change only when bounds outgrow them.

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
"""Levels more than the peer matches with: rounding adds little to what it lets through."""


class Rounding:
    """The slots of one topic and link, rounded."""

    def __init__(self, levels: int) -> None:
        self._levels = levels + FINER
        self._grids: dict[str, Grid | None] = {}
        self._new_grids: dict[str, Grid] = {}
        self._exact: Slots = {}
        self._slots: dict[int, Conjunction] = {}
        self._n_changes = 0

    def take_new_grids(self) -> dict[str, Grid]:
        """Return the grids that were chosen since the last call."""
        news, self._new_grids = self._new_grids, {}
        return news

    def slots(self, exact: Slots) -> Slots:
        """Return slots rounded. What is returned is not changed later."""
        before, self._exact = self._exact, exact
        changed = {
            slot: conjunction
            for slot, conjunction in exact.items()
            if before.get(slot) is not conjunction
        }
        if not changed and len(before) == len(exact):
            return self._slots
        self._n_changes += len(changed)
        if self._n_changes >= len(exact) or not self._fit(changed):
            self._n_changes = 0
            if self._choose(exact):
                changed = dict(exact)
        self._slots = dict(self._slots)
        for slot in before.keys() - exact.keys():
            del self._slots[slot]
        for slot, conjunction in changed.items():
            self._slots[slot] = self._rounded(conjunction)
        return self._slots

    def _rounded(self, conjunction: Conjunction) -> Conjunction:
        result = dict(conjunction)
        for name, condition in conjunction.items():
            grid = self._grids.get(name)
            if grid is not None:
                result[name] = rounded(condition, grid)
        return result

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
        self._new_grids |= {name: grid for name, grid in new.items() if grid is not None}
        return bool(new)


_Span = tuple[Domain | None, float, float]


def _spans(slots: Slots) -> Mapping[str, _Span]:
    """Return the line, the least and the greatest bound of each attribute that has ranges.

    There is no line where there are several.
    """
    spans: dict[str, _Span] = {}
    for conjunction in slots.values():
        for name, condition in conjunction.items():
            domain = to_round(condition)
            keys = [] if domain is None else _bounds(condition.intervals[domain])
            if keys:
                of, low, high = spans.get(name, (domain, keys[0], keys[0]))
                same = of if of is domain else None
                spans[name] = (same, min(low, *keys), max(high, *keys))
    return spans


def _bounds(intervals: Intervals) -> list[float]:
    return [key for interval in intervals for key, _ in interval if math.isfinite(key)]
