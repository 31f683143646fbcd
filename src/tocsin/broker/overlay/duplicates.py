"""Which events a broker has had, by origin and number.

Enters: the broker where an event was published and the number it got there. Leaves: whether it
comes for the first time. In a tree nothing comes twice but what is sent again after a failure, and
the link itself sees that. While a tree is being changed into another, an event may come two ways;
that is what this is for. Only the last so many are known.
"""

from __future__ import annotations

from collections import OrderedDict


class DuplicateFilter:
    """The last events of each origin."""

    def __init__(self, most: int = 100_000) -> None:
        self.most = most
        self._known: OrderedDict[tuple[str, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def forget(self, origin: str, number: int) -> None:
        """Forget an event that was not taken in after all."""
        self._known.pop((origin, number), None)

    def is_new(self, origin: str, number: int) -> bool:
        """Say whether an event comes for the first time, and take note of it."""
        key = (origin, number)
        if key in self._known:
            return False
        self._known[key] = None
        if len(self._known) > self.most:
            self._known.popitem(last=False)
        return True
