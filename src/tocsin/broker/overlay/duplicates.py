"""Recognizes events that arrive twice, by origin and sequence number.

Enters: the broker where an event was published, and its sequence number there. Leaves: whether it
is new. In a tree only redelivery after a failure repeats an event, and the link recognizes that.
While the tree changes, an event may arrive over two links: this filter drops the second. It
remembers a bounded number of events.
"""

from __future__ import annotations

from collections import OrderedDict


class DuplicateFilter:
    """The most recent events."""

    def __init__(self, most: int = 100_000) -> None:
        self.most = most
        self._known: OrderedDict[tuple[str, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def forget(self, origin: str, number: int) -> None:
        """Forget an event that was not accepted."""
        self._known.pop((origin, number), None)

    def is_new(self, origin: str, number: int) -> bool:
        """Return whether an event is new, and remember it."""
        key = (origin, number)
        if key in self._known:
            return False
        self._known[key] = None
        if len(self._known) > self.most:
            self._known.popitem(last=False)
        return True
