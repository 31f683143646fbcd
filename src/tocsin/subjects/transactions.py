"""One call that changes a subject space: lock, expire, apply, log, return transitions.

If the call fails, the transitions caused by expiry are returned by the next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa

from tocsin.errors import ArgumentError
from tocsin.subjects.log import Log, Record
from tocsin.subjects.model import Interest, Publication, to_json, value_to_json
from tocsin.subjects.state import Changes
from tocsin.transitions.transition import PublicationKey, TransitionBlock, Transitions


class Journal:
    """The log of a space, its sequence number, and transitions not yet returned."""

    def __init__(self) -> None:
        self.log: Log | None = None
        self.sequence = 0
        """Number of calls that have changed something."""
        self.now = 0
        """The latest moment that any call has seen, in microseconds."""
        self.pending: list[TransitionBlock] = []
        """Transitions that the next call returns."""
        self.compact_if_long: Callable[[], None] = lambda: None

    def tick(self, clock: Callable[[], float]) -> int:
        """Return the moment of a call; it never goes back."""
        self.now = max(self.now, round(clock() * 1_000_000))
        return self.now


class Transactional(Protocol):
    """What a transaction needs of a space."""

    _lock: threading.RLock
    _clock: Callable[[], float]
    _journal: Journal

    def _expire_due(self, now: int) -> list[TransitionBlock]: ...

    def _transition_block(
        self, changes: Changes, keys: Sequence[PublicationKey]
    ) -> TransitionBlock: ...


class Transaction:
    """A call, from taking the lock to its transitions."""

    def __init__(self, space: Transactional) -> None:
        self._space = space
        self._journal = space._journal
        self._blocks: list[TransitionBlock] = []
        self._is_logged = False
        self._octets: bytes | None = None
        self.now = 0
        self.transitions: Transitions
        """The transitions that the call caused; set on exit."""

    def __enter__(self) -> Transaction:
        self._space._lock.acquire()
        try:
            if self._journal.log is not None:
                self._journal.log.check()
                self._journal.compact_if_long()
            self.now = self._journal.tick(self._space._clock)
            self._journal.pending += self._space._expire_due(self.now)
        except BaseException:
            self._space._lock.release()
            raise
        return self

    @property
    def has_expired(self) -> bool:
        """Whether expiry has caused transitions that were not returned yet."""
        return bool(self._journal.pending)

    def add(self, changes: Changes, keys: Sequence[PublicationKey]) -> None:
        """Add the transitions of changes whose items index `keys`."""
        block = self._space._transition_block(changes, keys)
        if len(block.kind):
            self._blocks.append(block)

    def log(self, op: str, **arguments: Any) -> None:
        """Prepare the log record that replays the call; must precede every change.

        Arguments that the log cannot hold are refused here, so that log and memory agree.
        """
        self._is_logged = True
        if self._journal.log is None:
            return
        try:
            record = _to_record(op, arguments, self.now)
            self._octets = self._journal.log.encode(record)
        except (TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException) as error:
            raise ArgumentError(f"this cannot be written to the log: {error}") from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        journal, ticket = self._journal, None
        try:
            if error is not None:
                return
            if self._is_logged:
                if journal.log is not None and self._octets is not None:
                    ticket = journal.log.append(self._octets)
                journal.sequence += 1
            self.transitions = Transitions([*journal.pending, *self._blocks], journal.sequence)
            journal.pending = []
        finally:
            self._space._lock.release()
        if ticket is not None and journal.log is not None:
            journal.log.wait(ticket)


def _to_record(op: str, arguments: dict[str, Any], now: int) -> Record:
    octets = b""
    fields: dict[str, Any] = {"op": op, "now": now}
    for name, value in arguments.items():
        if isinstance(value, pa.Table):
            octets = table_to_octets(value)
        elif isinstance(value, Publication | Interest):
            fields[name] = to_json(value)
        elif name in ("values", "params") and value is not None:
            fields[name] = {k: value_to_json(v) for k, v in value.items()}
        else:
            fields[name] = value
    return Record(fields, octets)


def table_to_octets(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def table_from_octets(octets: bytes) -> pa.Table:
    """Return the table that `table_to_octets` wrote."""
    return pa.ipc.open_stream(pa.py_buffer(octets)).read_all()
