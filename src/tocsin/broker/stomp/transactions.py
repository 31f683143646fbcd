"""The open transactions of a client: frames that wait for COMMIT, and their acknowledgements.

Enters: BEGIN, the frames of transactions, COMMIT or ABORT. Leaves: the frames of a transaction, in
order. The open transactions of a connection are bounded by frames and memory; so is the memory of
all connections together (`TransactionBudget`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import NamedTuple

from tocsin.broker import schema
from tocsin.broker.backlog import Backlog
from tocsin.broker.config import Limits
from tocsin.broker.durable import Consumer
from tocsin.broker.protocol.stomp import Frame
from tocsin.errors import LimitError, ProtocolError

_MOST_OPEN = 100
REFUSED = "refused by the subscriber"
_PER_HEADER = 128  # of a header besides its text, and of a frame without headers


class TransactionBudget:
    """The bytes that the open transactions of all clients take."""

    def __init__(self, limits: Limits) -> None:
        self.max_bytes = limits.max_all_transaction_bytes
        self.n_bytes = 0


class Transactions:
    """The open transactions of a client."""

    def __init__(self, limits: Limits, budget: TransactionBudget) -> None:
        self._limits = limits
        self._budget = budget
        self._open: dict[str, list[tuple[Frame, int]]] = {}
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
        if self._budget.n_bytes + size > self._budget.max_bytes:
            raise LimitError(
                "the transactions of all clients are too large", "max_all_transaction_bytes", 1.0
            )
        self._n_frames += 1
        self._add(size)
        self._open[name].append((frame, size))

    def _add(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        self._budget.n_bytes += n_bytes

    def end(self, name: str) -> list[Frame]:
        """Close a transaction and return its frames."""
        sized = self._open.pop(name, None)
        if sized is None:
            raise ProtocolError(f"no transaction {name!r} was begun")
        self._n_frames -= len(sized)
        self._add(-sum(size for _, size in sized))
        return [frame for frame, _ in sized]

    def clear(self) -> None:
        """Drop all transactions."""
        self._open.clear()
        self._add(-self._n_bytes)
        self._n_frames = 0


class Done(NamedTuple):
    """Notifications that a client acknowledges, puts off (`delay`) or refuses for good."""

    consumer: Consumer
    seqs: Sequence[int]
    is_ack: bool
    delay: float | None = None


class Settlement:
    """The acknowledgements of a transaction: applied on disk at once, then in memory."""

    def __init__(self, done: Sequence[Done]) -> None:
        self.done = done
        self._results: list[tuple[int, int]] = []

    def store(self, connection: sqlite3.Connection) -> None:
        """Make the changes, within the caller's transaction."""
        now = time.time_ns() // 1000
        self._results = []
        for each in self.done:
            no, n, n_bytes = each.consumer.subscription.no, 0, 0
            if each.is_ack:
                n = schema.acknowledge(connection, no, each.seqs)
            elif each.delay is not None:
                due = now + round(each.delay * 1_000_000)
                schema.put_off(connection, no, each.seqs, due)
            else:
                n, n_bytes = schema.bury(connection, no, schema.Letter(each.seqs[0], REFUSED), now)
            self._results.append((n, n_bytes))

    def settle(self, backlog: Backlog) -> None:
        """Apply in memory what is on disk."""
        for each, (n, n_bytes) in zip(self.done, self._results, strict=True):
            subscription = each.consumer.subscription
            if each.is_ack:
                backlog.acknowledged(subscription, n)
            elif each.delay is None:
                backlog.buried(subscription, n, n_bytes)
            if each.delay is None or each.is_ack:
                each.consumer.forget(each.seqs)
            else:
                each.consumer.put_off(each.seqs, each.delay)


def _size_of(frame: Frame) -> int:
    """Return about how many bytes a frame takes in memory."""
    texts = sum(len(name.encode()) + len(value.encode()) for name, value in frame.headers.items())
    return len(frame.body) + texts + _PER_HEADER * (1 + len(frame.headers))
