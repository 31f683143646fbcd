"""The keys of publications, their rows and their expiry."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tocsin.errors import UnknownPublicationError
from tocsin.model import check_id
from tocsin.transitions.transition import PublicationKey

_UNUSED = ""


class PublicationKeys:
    """Keys by row, rows by key, and a queue of expiries; a publication's row is its first one."""

    def __init__(self) -> None:
        self.row_of: dict[PublicationKey, int] = {}
        self._keys: list[PublicationKey] = []
        self._expiry: dict[int, int] = {}
        self._queue: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.row_of)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | int) and key in self.row_of

    def row(self, key: object) -> int:
        """Return the row of a key; raise `UnknownPublicationError` if there is none."""
        name = check_id(key)
        row = self.row_of.get(name)
        if row is None:
            raise UnknownPublicationError(name)
        return row

    def key(self, row: int) -> PublicationKey:
        """Return the key of a row."""
        return self._keys[row]

    def keys(self, rows: Sequence[int]) -> list[PublicationKey]:
        """Return the keys of rows."""
        return [self._keys[row] for row in rows]

    def add(self, key: PublicationKey, row: int) -> None:
        """Assign a row to a key."""
        if row >= len(self._keys):
            self._keys.extend([_UNUSED] * (row + 1 - len(self._keys)))
        self._keys[row] = key
        self.row_of[key] = row

    def remove(self, key: PublicationKey) -> None:
        """Remove a key and its expiry."""
        row = self.row_of.pop(key)
        self._keys[row] = _UNUSED
        self._expiry.pop(row, None)

    def set_expiry(self, row: int, moment: int | None) -> None:
        """Set when a publication expires, in microseconds; None for never."""
        if moment is None:
            self._expiry.pop(row, None)
            return
        self._expiry[row] = moment
        heapq.heappush(self._queue, (moment, row))
        if len(self._queue) > 64 + 4 * len(self._expiry):
            self._queue = [(expiry, of) for of, expiry in self._expiry.items()]
            heapq.heapify(self._queue)

    def expiries(self) -> list[tuple[int, int]]:
        """Return the rows of the publications that expire, with the moments."""
        return list(self._expiry.items())

    @property
    def has_expiries(self) -> bool:
        """Whether any publication expires."""
        return bool(self._expiry)

    def pop_due(self, now: int) -> tuple[int, int] | None:
        """Return the expiry and row of the first publication that is due; None if none is."""
        while self._queue and self._queue[0][0] <= now:
            moment, row = heapq.heappop(self._queue)
            if self._expiry.get(row) == moment:
                return moment, row
        return None
