"""Publications by type and key, and events that are retained for later subscriptions.

Enters: publishes with keys, in the broker's order; the clock. Leaves: what each replaces, what has
expired. Only values are kept, so a publish that is refused, or that the disk does not take, is
undone by putting the old values back. After Leung and Jacobsen on state-persistent
publish/subscribe, section 3; a publication has single values here, no ranges.

The thread that matches makes all changes, one batch at a time; the event loop only reads.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tocsin.broker import merge_patch
from tocsin.broker.config import Config
from tocsin.broker.events import Event, Publication, numbers_of
from tocsin.broker.schema import PublicationRow
from tocsin.broker.subscription import SubscriptionSpec
from tocsin.errors import LimitError, TocsinError
from tocsin.model import EventType

Address = tuple[str | None, str]
"""The type and the key of a publication."""
_Replaced = list[tuple[Address, Publication | None]]
_MAX_STALE_ENDS = 1_000
log = logging.getLogger("tocsin.broker")


class PublicationTable:
    """Publications by address, and retained events in the order of publishing."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self.by_address: dict[Address, Publication] = {}
        self.retained: deque[Event] = deque()
        self.is_retaining = config.retain_seconds > 0
        self.n_bytes = 0
        self.n_retained_bytes = 0
        self._config = config
        self._types = config.types
        self._clock = clock
        self._ends: list[tuple[int, int, Address]] = []
        self._count = itertools.count()  # orders equal ends
        self._undo: _Replaced = []
        self._undo_expired: _Replaced = []

    def expect_retained(self, events: Sequence[Event]) -> None:
        """Begin to retain where an event of a publish asks for it."""
        if not self.is_retaining:
            self.is_retaining = any(event.retain_until is not None for event in events)

    def now(self) -> int:
        """Return the time in microseconds."""
        return int(self._clock() * 1_000_000)

    def _event_type(self, name: str | None) -> EventType | None:
        return None if name is None else self._types.get(name)

    # A batch.

    def begin_batch(self) -> int:
        """Forget how the last batch is undone; return the time."""
        self._undo, self._undo_expired = [], []
        return self.now()

    def stage(
        self, event: Publication, staged: dict[Address, Publication | None], now: int
    ) -> Publication | None:
        """Merge and check a publication; return the one it replaces.

        `staged` has what earlier events of the batch put, by address.
        """
        address = event.address
        before = staged[address] if address in staged else self.by_address.get(address)
        if event.gone is None and event.valid_until is not None and event.valid_until <= now:
            event.gone = "expired"
        if event.gone is not None:
            if before is not None:
                _copy_content(before, event)
            staged[address] = None
            return before
        limits = self._config.limits
        if before is None and len(self.by_address) + len(staged) >= limits.max_publications:
            n_new = sum(
                each is not None and at not in self.by_address for at, each in staged.items()
            )
            if len(self.by_address) + n_new >= limits.max_publications:
                raise LimitError("too many publications", "max_publications")
        if self.n_bytes > limits.max_publication_bytes:
            raise LimitError("the publications are too large", "max_publication_bytes")
        if event.merges:
            event.begin_merge()
            event_type = self._event_type(event.type)
            merge_patch.merge(event, before, event_type, limits.max_body)
        staged[address] = event
        return before

    def accept(self, events: Sequence[Publication]) -> None:
        """Put the publications of a publish that was staged."""
        for event in events:
            self._undo.append((event.address, self.by_address.get(event.address)))
            self._put(event.address, None if event.gone is not None else event)

    def _put(self, address: Address, event: Publication | None) -> None:
        before = self.by_address.pop(address, None)
        if before is not None:
            self.n_bytes -= len(before.text)
        if event is None:
            return
        self.by_address[address] = event
        self.n_bytes += len(event.text)
        if event.valid_until is None or (before and before.valid_until == event.valid_until):
            return
        heapq.heappush(self._ends, (event.valid_until, next(self._count), address))
        if len(self._ends) > 2 * len(self.by_address) + _MAX_STALE_ENDS:
            self._remove_stale_ends()

    def _remove_stale_ends(self) -> None:
        """Remove ends that no publication has any more."""
        ends = [
            (each.valid_until, next(self._count), address)
            for address, each in self.by_address.items()
            if each.valid_until is not None
        ]
        heapq.heapify(ends)
        self._ends = ends

    def forget(self, address: Address) -> None:
        """Remove a publication of another broker without transitions."""
        self._put(address, None)

    def expire(self, now: int) -> list[Publication]:
        """Remove the publications whose time is over; return a copy of each that says so."""
        expired: list[Publication] = []
        while self._ends and self._ends[0][0] <= now:
            until, _, address = heapq.heappop(self._ends)
            publication = self.by_address.get(address)
            if publication is None or publication.valid_until != until:
                continue
            self._undo_expired.append((address, publication))
            self._put(address, None)
            expired.append(publication.copied(gone="expired"))
        return expired

    @property
    def n_ends(self) -> int:
        """The most publications that the next batch can expire."""
        return len(self.by_address)

    @property
    def next_end(self) -> int | None:
        """A time before which no publication expires; None where none does."""
        first = self._ends[:1]  # in one step: another thread may pop it
        return first[0][0] if first else None

    def undo(self, *, with_expired: bool) -> None:
        """Put back what the last batch changed, and on request what expired with it."""
        for address, before in reversed(self._undo):
            self._put(address, before)
        self._undo = []
        if with_expired:
            for address, before in reversed(self._undo_expired):
                self._put(address, before)
            self._undo_expired = []

    # New subscriptions.

    def is_relevant_to(self, spec: SubscriptionSpec) -> bool:
        """Return whether a subscription must have its place among the publishes."""
        return bool(spec.transition_mask) or self.is_retaining

    def valid(self, type: str | None, *, retained: bool) -> list[Event]:
        """Return the publications, or the retained events, of a type that have not expired."""
        now = self.now()
        events: Sequence[Event] = tuple(self.retained if retained else self.by_address.values())
        return [
            event
            for event in events
            if (type is None or event.type == type)
            and (event.valid_until is None or event.valid_until > now)
            and (not retained or (event.retain_until or 0) > now)
        ]

    # Retention.

    def retain(self, event: Event) -> list[int]:
        """Retain an event; return the numbers of those dropped to stay within the bounds."""
        self.retained.append(event)
        self.n_retained_bytes += len(event.text)
        gone = []
        config = self._config
        while self.retained and (
            len(self.retained) > config.retain_events or self.n_retained_bytes > config.retain_bytes
        ):
            gone.append(self._drop_first())
        return gone

    def _drop_first(self) -> int:
        first = self.retained.popleft()
        self.n_retained_bytes -= len(first.text)
        return first.seq

    def retire(self) -> list[int]:
        """Drop retained events whose time is over; return their numbers."""
        now = self.now()
        over = {e.seq for e in self.retained if (e.retain_until or 0) <= now}
        if over:
            rest = [event for event in self.retained if event.seq not in over]
            self.retained = deque(rest)
            self.n_retained_bytes = sum(len(event.text) for event in rest)
        return sorted(over)

    # Restoring.

    def restore(self, rows: Sequence[PublicationRow], retained: Sequence[tuple[Any, ...]]) -> None:
        """Load stored rows, before the broker starts."""
        for row in rows:
            type = row.type or None
            event = Event.restored(
                row.seq, type, row.text, row.extra, row.valid_until, row.published
            )
            assert isinstance(event, Publication)
            event.attributes = self._attributes(event)
            self._put(event.address, event)
        for *row_of_event, until in retained:
            event = Event.restored(*row_of_event)
            event_type = self._event_type(event.type)
            event.attributes = self._attributes(event)
            event.numbers = numbers_of(event.headers or {}, event_type)
            event.retain_until = until
            self.retained.append(event)
            self.n_retained_bytes += len(event.text)
            self.is_retaining = True

    def _attributes(self, event: Event) -> dict[str, Any]:
        """Return the attributes of a stored event.

        An event that contradicts a type that was declared since stays, and matches nothing.
        """
        try:
            return merge_patch.attributes_of(event, self._event_type(event.type))
        except TocsinError as error:
            name = f"publication {event.key!r}" if event.key is not None else f"event {event.seq}"
            log.error("%s of type %r matches nothing: %s", name, event.type, error)
            return merge_patch.attributes_of(event, None)


def _copy_content(before: Publication, event: Publication) -> None:
    """Give the end of a publication the content it had last."""
    event.attributes, event.text = before.attributes, before.text
    event.headers, event.body = before.headers, before.body
    event.content_type = before.content_type
