"""What every call of a subject space works on.

Enters: spaces, a clock. Leaves: the state, the keys, the book, and the end of what is due.
"""

from __future__ import annotations

import datetime as dt
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tocsin.errors import ArgumentError
from tocsin.model import EventType
from tocsin.subjects.axes import Axes
from tocsin.subjects.change import Change, Journal, wanted
from tocsin.subjects.model import Filter
from tocsin.subjects.publications import Publications
from tocsin.subjects.state import Changes, State
from tocsin.subjects.subscribing import Subscribing
from tocsin.transitions.transition import Part, PublicationKey

Seconds = float | int | dt.timedelta
LATEST = 253_402_300_799_999_999
"""The last microsecond of the year 9999: what ends later never ends."""


def end_of(now: int, ttl: Seconds | None) -> int | None:
    """Return the moment so many seconds from now, in microseconds."""
    if ttl is None:
        return None
    if isinstance(ttl, dt.timedelta):
        length = ttl // dt.timedelta(microseconds=1)
    elif type(ttl) not in (int, float) or not math.isfinite(ttl):
        raise ArgumentError(f"ttl must be a number of seconds or a timedelta, not {ttl!r}")
    else:
        length = round(ttl * 1_000_000)
    if length <= 0:
        raise ArgumentError(f"ttl must be more than nothing, not {ttl!r}")
    if now + length > LATEST:
        raise ArgumentError(f"ttl {ttl!r} ends after the year 9999: None is for what never ends")
    return now + length


class Core:
    """The parts of a subject space."""

    def __init__(
        self,
        *spaces: EventType,
        clock: Callable[[], float] = time.time,
        missing: str = "absent",
    ) -> None:
        for space in spaces:
            if not isinstance(space, EventType):
                raise ArgumentError(f"a space must be an EventType, not {space!r}")
        if missing not in ("absent", "any"):
            raise ArgumentError(f"missing is 'absent' or 'any', not {missing!r}")
        self.spaces = spaces or (EventType(""),)
        self.missing = missing
        self._clock = clock
        self._lock = threading.RLock()
        self._axes = Axes(self.spaces, missing)
        self._state = State(self._axes)
        self._subscribing = Subscribing(self._axes)
        self._publications = Publications()
        self._given: dict[int, Filter] = {}
        self._journal = Journal()

    def _change(self) -> Change:
        return Change(self)

    def _part(self, changes: Changes, keys: Sequence[PublicationKey]) -> Part:
        """Return changes as they are told, whose places are places among some keys."""
        interests = self._state.interests
        told = wanted(changes, interests.wants) if interests.is_choosy else changes
        return Part(told.kind, told.place, keys, told.sub, self._subscribing.book.names)

    def _told_by_row(self, changes: Changes) -> tuple[Changes, list[PublicationKey]]:
        """Return changes whose places are rows, and keys such that they are places among those."""
        distinct, place = np.unique(changes.place, return_inverse=True)
        keys = self._publications.keys(distinct.tolist())
        return Changes(changes.kind, place.astype(np.int64), changes.sub), keys

    def _end_due(self, now: int) -> list[Part]:
        """End what is due, each at its time: publications are told of, subscriptions are not."""
        parts = []
        while (due := self._publications.due(now)) is not None:
            until, row = due
            self._end_subscriptions(until)
            key = self._publications.key(row)
            parts.append(self._part(self._delete(key), [key]))
        self._end_subscriptions(now)
        return [part for part in parts if len(part.kind)]

    def _end_subscriptions(self, now: int) -> None:
        if self._subscribing.book.has_expiries:
            self._remove_subscriptions(self._subscribing.book.due(now))

    def _remove_subscriptions(self, dense: Any) -> None:
        if len(dense):
            self._subscribing.remove(dense)
            self._state.interests.remove(dense)

    def _delete(self, key: PublicationKey) -> Changes:
        """Remove a publication; return what ceases to match."""
        row = self._publications.row_of[key]
        if row in self._state.several:
            found = self._state.delete_several(row)
            self._given.pop(row, None)
        else:
            found = self._state.delete(np.array([row], np.int32))
        self._publications.remove(key)
        return found
