"""One call that changes a subject space: the lock, the clock, what is told, what is logged.

Enters: what a call brings about, and how it may be done again. Leaves: its transitions, once it is
on disk. What is due ends before anything else; should the call fail then, what that brought about
waits for the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tocsin.errors import ArgumentError
from tocsin.subjects.model import Publication, Subscription, to_json, value_to_json
from tocsin.subjects.records import Log, Record
from tocsin.subjects.state import Changes, chosen
from tocsin.transitions.transition import Part, PublicationKey, Transitions


class Journal:
    """What is remembered of the calls so far."""

    def __init__(self) -> None:
        self.log: Log | None = None
        self.sequence = 0
        """How many calls have changed something."""
        self.now = 0
        """The latest moment that any call has seen, in microseconds."""
        self.pending: list[Part] = []
        self.tidy: Callable[[], None] = lambda: None
        """Makes the log short where it is long."""

    def tick(self, clock: Callable[[], float]) -> int:
        """Return the moment of a call; time never goes back."""
        self.now = max(self.now, round(clock() * 1_000_000))
        return self.now


class Changing(Protocol):
    """What a call needs of a space."""

    _lock: threading.RLock
    _clock: Callable[[], float]
    _journal: Journal

    def _end_due(self, now: int) -> list[Part]: ...

    def _part(self, changes: Changes, keys: Sequence[PublicationKey]) -> Part: ...


class Change:
    """A call, from its lock to its transitions."""

    def __init__(self, core: Changing) -> None:
        self._core = core
        self._journal = core._journal
        self._parts: list[Part] = []
        self._is_recorded = False
        self._octets: bytes | None = None
        self.now = 0
        self.transitions: Transitions
        """What the call brought about, once it is done."""

    def __enter__(self) -> Change:
        self._core._lock.acquire()
        try:
            if self._journal.log is not None:
                self._journal.log.check()
                self._journal.tidy()
            self.now = self._journal.tick(self._core._clock)
            self._journal.pending += self._core._end_due(self.now)
        except BaseException:
            self._core._lock.release()
            raise
        return self

    @property
    def has_expired(self) -> bool:
        """Whether something was due."""
        return bool(self._journal.pending)

    def tell(self, changes: Changes, keys: Sequence[PublicationKey]) -> None:
        """Note changes whose places are places among some keys."""
        part = self._core._part(changes, keys)
        if len(part.kind):
            self._parts.append(part)

    def record(self, op: str, **said: Any) -> None:
        """Note how the call may be done again, before it changes anything.

        What the log cannot hold is refused here; otherwise log and memory would differ.
        """
        self._is_recorded = True
        if self._journal.log is None:
            return
        try:
            self._octets = self._journal.log.written(_to_record(op, said, self.now))
        except (TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException) as error:
            raise ArgumentError(f"this cannot be kept on disk: {error}") from error

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
            if self._is_recorded:
                if journal.log is not None and self._octets is not None:
                    ticket = journal.log.append(self._octets)
                journal.sequence += 1
            self.transitions = Transitions([*journal.pending, *self._parts], journal.sequence)
            journal.pending = []
        finally:
            self._core._lock.release()
        if ticket is not None and journal.log is not None:
            journal.log.wait(ticket)


def _to_record(op: str, said: dict[str, Any], now: int) -> Record:
    octets = b""
    written: dict[str, Any] = {"op": op, "now": now}
    for name, value in said.items():
        if isinstance(value, pa.Table):
            octets = table_to_octets(value)
        elif isinstance(value, Publication | Subscription):
            written[name] = to_json(value)
        elif name in ("values", "params") and value is not None:
            written[name] = {k: value_to_json(v) for k, v in value.items()}
        else:
            written[name] = value
    return Record(written, octets)


def table_to_octets(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def table_from_octets(octets: bytes) -> pa.Table:
    """Return what `table_to_octets` wrote."""
    return pa.ipc.open_stream(pa.py_buffer(octets)).read_all()


def wanted(changes: Changes, wants: Any) -> Changes:
    """Return the changes that subscribers want to be told."""
    bits = wants[changes.sub]
    return chosen(changes, np.where(changes.kind > 0, bits & 1, bits & 2) > 0)
