"""Publications by key, and when they end.

Enters: keys, rows, moments. Leaves: rows by key and keys by row; the rows whose time has come.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tocsin.errors import UnknownPublicationError
from tocsin.model import check_id
from tocsin.transitions.transition import PublicationKey

_GONE = ""


class Publications:
    """The keys that are in use; a publication is known by its first row."""

    def __init__(self) -> None:
        self.row_of: dict[PublicationKey, int] = {}
        self._keys: list[PublicationKey] = []
        self._until: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.row_of)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | int) and key in self.row_of

    def row(self, key: object) -> int:
        """Return the row of a key, or raise an error."""
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
        """Note that a key has a row."""
        if row >= len(self._keys):
            self._keys.extend([_GONE] * (row + 1 - len(self._keys)))
        self._keys[row] = key
        self.row_of[key] = row

    def remove(self, key: PublicationKey) -> None:
        """Forget a key and its end."""
        row = self.row_of.pop(key)
        self._keys[row] = _GONE
        self._until.pop(row, None)

    def until(self, row: int) -> int | None:
        """Return when a publication ends, in microseconds, or None."""
        return self._until.get(row)

    def set_until(self, row: int, until: int | None) -> None:
        """Say when a publication ends."""
        if until is None:
            self._until.pop(row, None)
            return
        self._until[row] = until
        heapq.heappush(self._ends, (until, row))
        if len(self._ends) > 64 + 4 * len(self._until):
            self._ends = [(moment, of) for of, moment in self._until.items()]
            heapq.heapify(self._ends)

    def untils(self) -> list[tuple[int, int]]:
        """Return the rows of all publications that end, and their ends."""
        return list(self._until.items())

    @property
    def has_ends(self) -> bool:
        """Whether any publication ends by itself."""
        return bool(self._until)

    def due(self, now: int) -> tuple[int, int] | None:
        """Take out the publication that ends first, if that is by now: its end and its row."""
        while self._ends and self._ends[0][0] <= now:
            until, row = heapq.heappop(self._ends)
            if self._until.get(row) == until:
                return until, row
        return None
