"""The bounded outbox of a connection.

Enters: messages. Leaves: all that waits, when the connection can take it. `put` drops the oldest
that may be dropped when the bound is passed, and counts it; durable notifications and answers are
never dropped, but durable ones are only put where there is room.
"""

from __future__ import annotations

from collections import deque


class Outbox:
    """Messages that wait for a connection."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self.n_dropped = 0
        self._items: deque[tuple[bytes, bool]] = deque()
        self._kept: list[bytes] = []

    def __len__(self) -> int:
        return len(self._items) + len(self._kept)

    @property
    def has_room(self) -> bool:
        """Whether a durable notification may be put."""
        return len(self._items) < self.max_messages and self.n_bytes < self.max_bytes

    def put(self, message: bytes, droppable: bool) -> int:
        """Add a message; return how many others were dropped for it."""
        self._items.append((message, droppable))
        self.n_bytes += len(message)
        if len(self._items) <= self.max_messages and self.n_bytes <= self.max_bytes:
            return 0
        return self._shrink()

    def _shrink(self) -> int:
        n = 0
        while len(self._items) > self.max_messages or self.n_bytes > self.max_bytes:
            if len(self._items) <= 1:  # even one that is larger than all bounds is delivered
                break
            message, droppable = self._items.popleft()
            if droppable:
                self.n_bytes -= len(message)
                n += 1
            else:
                self._kept.append(message)
        self.n_dropped += n
        return n

    def take(self) -> list[bytes]:
        """Return all that waits, in order, and forget it."""
        messages = self._kept + [message for message, _ in self._items]
        self._kept = []
        self._items.clear()
        self.n_bytes = 0
        return messages
