"""The bounded outbox of a connection.

Enters: messages. Leaves: all of them, when the connection is ready. When the bound is passed, `put`
drops the oldest droppable message and counts it. Durable notifications and answers are never
dropped: durable ones are put only while `has_capacity`, and the reader of requests stops while
`is_full_of_answers`. So the outbox has at most its bound of notifications, its bound of answers,
and one message more of each.
"""

from __future__ import annotations

from collections import deque


class Outbox:
    """The messages of a connection."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self.n_dropped = 0
        self._n_answers = self._n_answer_bytes = 0
        self._items: deque[bytes] = deque()
        self._n_removed = 0  # messages removed from the front
        self._fixed: deque[int] = deque()  # positions of messages that are never dropped
        self._undroppable: list[bytes] = []

    def __len__(self) -> int:
        return len(self._items) + len(self._undroppable)

    @property
    def has_capacity(self) -> bool:
        """Whether a durable notification may be put."""
        return len(self) < self.max_messages and self.n_bytes < self.max_bytes

    @property
    def is_full_of_answers(self) -> bool:
        """Whether no more requests should be read until the client reads its answers."""
        return self._n_answers >= self.max_messages or self._n_answer_bytes >= self.max_bytes

    def answer(self, message: bytes) -> None:
        """Add an answer, a receipt or an error, which is never dropped."""
        self._n_answers += 1
        self._n_answer_bytes += len(message)
        self.put(message, False)

    def put(self, message: bytes, droppable: bool) -> int:
        """Add a message; return how many others were dropped for it."""
        items = self._items
        if not droppable:
            self._fixed.append(self._n_removed + len(items))
        items.append(message)
        self.n_bytes += len(message)
        if len(items) <= self.max_messages and self.n_bytes <= self.max_bytes:
            return 0
        return self._shrink()

    def _shrink(self) -> int:
        n = 0
        while len(self._items) > self.max_messages or self.n_bytes > self.max_bytes:
            if len(self._items) <= 1:  # a message larger than the bounds is delivered all the same
                break
            message = self._items.popleft()
            if self._fixed and self._fixed[0] == self._n_removed:
                self._fixed.popleft()
                self._undroppable.append(message)
            else:
                self.n_bytes -= len(message)
                n += 1
            self._n_removed += 1
        self.n_dropped += n
        return n

    def take(self) -> list[bytes]:
        """Remove and return all messages, in order."""
        messages = [*self._undroppable, *self._items] if self._undroppable else list(self._items)
        self._items.clear()
        self._n_removed = self.n_bytes = 0
        self._n_answers = self._n_answer_bytes = 0
        if self._fixed or self._undroppable:
            self._fixed.clear()
            self._undroppable = []
        return messages
