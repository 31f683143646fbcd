"""SubjectSpace: publications that stay, subscriptions, and the transitions between them.

Enters: what a user calls. Leaves: transitions, or errors that name the place. A call either does
all it says or changes nothing. After Leung and Jacobsen, sections 3 to 5: adding, updating and
removing a publication, adding and updating a subscription tell of the pairs that begin or cease to
match; removing a subscription tells nobody. Publications and subscriptions may end by themselves
(Fabret et al., section 1: events and subscriptions are valid for a time); every call first ends
what is due, and what that brings about stands first in what it returns.

Calls from several threads are safe; changes are taken one at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tocsin.errors import ArgumentError
from tocsin.model import EventType, SubscriptionId
from tocsin.subjects import snapshot
from tocsin.subjects.asking import Asking
from tocsin.subjects.model import ObjectRegion, Publication
from tocsin.subjects.publishing_many import PublishingMany
from tocsin.subjects.records import Log
from tocsin.transitions.transition import PublicationKey, Transitions

_SHORT = 1 << 26
"""How many bytes a log may have beside those that it began with, at least."""


class SubjectSpace(PublishingMany, Asking):
    """Publications and subscriptions, and who matches whom.

    >>> space = SubjectSpace(EventType("Position", zone=str, speed=float))
    >>> space.subscribe("dispatch", "zone = 'harbour' AND speed > 0")
    Transitions(0 ENTER, 0 LEAVE)
    >>> space.publish("truck 7", {"zone": "harbour", "speed": 3.5})
    Transitions(1 ENTER, 0 LEAVE)

    Each of `spaces` declares some of its attributes, as an event type does; without any there is
    one space that declares none. An attribute that a publication lacks is absent; with
    `missing="any"` it may be anything, as in the paper. `clock` gives seconds since 1970.
    """

    recovered: tuple[Transitions, ...] = ()
    """After `open`: the transitions of the calls that were logged since the last compaction."""

    # Reading.

    def __len__(self) -> int:
        """How many publications there are."""
        with self._lock:
            self._read()
            return len(self._publications)

    def __contains__(self, key: object) -> bool:
        with self._lock:
            self._read()
            return key in self._publications

    @property
    def n_subscriptions(self) -> int:
        """How many subscriptions there are."""
        with self._lock:
            self._read()
            return len(self._subscribing.book)

    def _read(self) -> None:
        """End what is due; what that brings about is told by the next change."""
        self._journal.pending += self._end_due(self._journal.tick(self._clock))

    def get(self, key: PublicationKey) -> dict[str, Any] | Publication:
        """Return what a publication says now; nested values by their dotted paths.

        Numbers come back as integers where they are whole and not declared floats.
        """
        with self._lock:
            self._read()
            row = self._publications.row(key)
            several = self._state.several.get(row)
            if several is None:
                return self._values(row)
            regions = {
                name: ObjectRegion(self._values(int(of)), self.spaces[self._space_of(int(of))].name)
                for name, of in zip(several.names, several.rows, strict=True)
            }
            return Publication(regions, self._given[row])

    def _values(self, row: int) -> dict[str, Any]:
        space = self._space_of(row)
        cells = self._state.objects.cells[row]
        found = {}
        for dim in self._axes.dims_of(space):
            axis = self._axes.axes[dim]
            words = tuple(cells[dim].tolist())
            if axis.pattern is None and words != self._axes.missing:
                found[axis.attribute] = self._axes.decode(dim, words)
        return {name: value for name, value in found.items() if value is not None}

    def subscriptions_of(self, key: PublicationKey) -> list[SubscriptionId]:
        """Return the subscriptions that a publication matches."""
        with self._lock:
            self._read()
            dense = self._state.subscriptions_of(self._publications.row(key))
            return self._subscribing.book.names.to_list(dense)

    def publications_of(self, id: SubscriptionId) -> list[PublicationKey]:
        """Return the keys of the publications that a subscription matches."""
        with self._lock:
            self._read()
            rows = self._state.matched(self._subscribing.dense(id))
            return self._publications.keys(rows.tolist())

    @property
    def nbytes(self) -> int:
        """Bytes held by rows, boxes and lists, besides keys and texts."""
        with self._lock:
            return self._state.interests.nbytes + self._state.objects.cells.nbytes

    # On disk.

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *spaces: EventType,
        clock: Callable[[], float] = time.time,
        missing: str = "absent",
        sync: bool = True,
    ) -> SubjectSpace:
        """Return the space that is kept in a folder; make one where there is none.

        `spaces` and `missing` must be those that it was made with; without `spaces` they are taken
        as they are. A call returns when it is on disk; with `sync=False`, when the system has it,
        which outlives the process but not the machine.
        """
        folder = Path(path)
        log = Log(folder, sync)
        try:
            if log.path is None:
                space = cls(*spaces, clock=clock, missing=missing)
                log.start(snapshot.records_of(space))
            else:
                space = snapshot.read(cls, log, clock)
                if spaces and (spaces != space.spaces or missing != space.missing):
                    raise ArgumentError(f"{folder} holds other spaces: {space.spaces}")
        except BaseException:
            log.close()
            raise
        space._journal.log = log
        started = log.n_bytes

        def tidy() -> None:
            nonlocal started
            if log.n_bytes > max(_SHORT, 4 * started):
                log.start(snapshot.records_of(space))
                started = log.n_bytes

        space._journal.tidy = tidy
        return space

    @property
    def sequence(self) -> int:
        """How many calls have changed something, in a space on disk since it was made."""
        return self._journal.sequence

    def compact(self) -> None:
        """Write all that counts into a new log; the transitions of earlier calls are gone then."""
        with self._lock:
            if self._journal.log is None:
                raise ArgumentError("the space is not on disk")
            self._journal.log.check()
            self._read()
            self._journal.log.start(snapshot.records_of(self))

    def close(self) -> None:
        """Close the log; the space takes no more changes."""
        with self._lock:
            if self._journal.log is not None:
                self._journal.log.close()

    def __enter__(self) -> SubjectSpace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
