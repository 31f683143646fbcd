"""The open transactions of a client: frames that wait for COMMIT, never too many of them.

Enters: BEGIN, the frames of transactions, COMMIT or ABORT. Leaves: the frames of a transaction, in
order. All that a connection has open together is bounded, by frames and by the memory they take.
"""

from __future__ import annotations

from tocsin.broker.config import Limits
from tocsin.broker.protocol.stomp import Frame
from tocsin.errors import LimitError, ProtocolError

_MOST_OPEN = 100
_PER_HEADER = 128  # what a header takes beside its text; a frame without any takes as much


class Transactions:
    """What a client has begun and not ended."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[str, list[Frame]] = {}
        self._n_frames = 0
        self._n_bytes = 0

    def begin(self, name: str) -> None:
        """Begin a transaction."""
        if name in self._open:
            raise ProtocolError(f"transaction {name!r} was begun before")
        if len(self._open) >= _MOST_OPEN:
            raise LimitError("too many transactions", "max_transaction")
        self._open[name] = []

    def keep(self, name: str, frame: Frame) -> None:
        """Keep a frame until its transaction ends."""
        if name not in self._open:
            raise ProtocolError(f"no transaction {name!r} was begun")
        limits, size = self._limits, _size_of(frame)
        if self._n_frames >= limits.max_transaction:
            raise LimitError("the transactions have too many frames", "max_transaction")
        if self._n_bytes + size > limits.max_transaction_bytes:
            raise LimitError("the transactions are too large", "max_transaction_bytes")
        self._n_frames += 1
        self._n_bytes += size
        self._open[name].append(frame)

    def end(self, name: str) -> list[Frame]:
        """Return what a transaction kept, and forget it."""
        found = self._open.pop(name, None)
        if found is None:
            raise ProtocolError(f"no transaction {name!r} was begun")
        self._n_frames -= len(found)
        self._n_bytes -= sum(map(_size_of, found))
        return found

    def clear(self) -> None:
        """Forget all."""
        self._open.clear()
        self._n_frames = self._n_bytes = 0


def _size_of(frame: Frame) -> int:
    """Return about how many bytes a frame takes in memory."""
    texts = sum(len(name.encode()) + len(value.encode()) for name, value in frame.headers.items())
    return len(frame.body) + texts + _PER_HEADER * (1 + len(frame.headers))
