"""What an engine does: the protocol behind `Matcher(engine=…)`.

Enters: conjunction tables whose `subscription` column holds the matcher's dense ids, and event
batches. Leaves: for each event the dense ids of the subscriptions that match it, each once.

An engine inherits from `Engine` and implements five methods: `insert`, `delete`, `match_batch`,
`explain` and `describe`. The others have defaults. `Storable`, `Renumberable` and `Enumerable` are
optional: the matcher uses them where an engine has them, and does without otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tocsin.bundle import Parts
from tocsin.encode.events import EventBatch, to_batch
from tocsin.engines.conditions import IndexedConditions
from tocsin.engines.ragged import RaggedIds
from tocsin.language.expression import Expression
from tocsin.normalize.table import ConjunctionTable


class Expressions(Protocol):
    """Where an engine that evaluates expressions gets them."""

    def expression(self, dense: int) -> Expression:
        """Return the condition of a subscription, parameters bound."""


class Reader(Protocol):
    """The subscriptions at one moment."""

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Return the subscriptions that each event matches, each once, in any order."""

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Return the subscriptions that one event matches."""


class Engine(ABC):
    """A matching algorithm.

    The matcher makes one change at a time. A change that raises leaves the engine as it was.
    """

    is_concurrent: ClassVar[bool] = False
    """Whether readers match while the engine changes, several of them at once.

    Where not, the matcher makes matches and changes wait for each other.
    """

    def reader(self) -> Reader:
        """Return a snapshot of the subscriptions; the engine itself if it is not concurrent."""
        return self

    def reader_for(self, n_events: int) -> Reader:
        """Return a reader to match about `n_events` with; by default any does."""
        return self.reader()

    def current(self, n_events: int) -> Reader | None:
        """Return what `reader_for` would return, where that was made before; None where in doubt.

        Called without the matcher's lock, so that a match can do without it. The matcher keeps the
        ids that belong to a reader in its attribute `names`, which is None at first.
        """
        return None

    @abstractmethod
    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Add subscriptions: their dense ids, ascending, and their conjunctions.

        A dense id without a conjunction is of a subscription that never matches. Dense ids need
        not start at zero, nor follow each other.
        """

    @abstractmethod
    def delete(self, ids: NDArray[np.int64]) -> None:
        """Remove subscriptions."""

    def replace(
        self, old: NDArray[np.int64], ids: NDArray[np.int64], table: ConjunctionTable
    ) -> None:
        """Replace subscriptions by others, which have dense ids of their own.

        An engine that can do better than inserting and deleting overrides this.
        """
        self.insert(ids, table)
        self.delete(old)

    @abstractmethod
    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Return the subscriptions that each event matches, each once, in any order."""

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Return the subscriptions that one event matches."""
        ids: list[int] = self.match_batch(to_batch([event])).values.tolist()
        return ids

    @abstractmethod
    def explain(self, dense: int) -> str:
        """Say where a subscription is in the index and how a match reaches it."""

    @abstractmethod
    def describe(self) -> str:
        """Say what the index consists of."""

    def profile(self, events: EventBatch) -> None:  # noqa: B027 - statistics are optional
        """Learn from a sample of events, for the next build."""

    def rebuild(self) -> None:  # noqa: B027 - an engine may have nothing to lay out
        """Lay out the index from scratch, for the events last profiled."""

    def check(self) -> None:  # noqa: B027 - an engine may have no invariants
        """Verify the invariants; raise AssertionError where one fails."""

    @property
    def nbytes(self) -> int:
        """Bytes of the index; 0 where they are not counted."""
        return 0


class IndexParts(NamedTuple):
    """An index ready to be written: its state, and immutable segments by unique names."""

    state: Parts
    segments: dict[str, Callable[[], Parts]]
    sample: EventBatch | None
    """The events that `profile` kept."""
    attributes: list[str]
    """The attributes of the conditions; may include some of deleted subscriptions."""


@runtime_checkable
class Storable(Protocol):
    """An engine whose index can be written; others are filled again when a store is opened."""

    def parts(self) -> IndexParts:
        """Return the index as it is now; later changes do not affect the result."""

    def restore(self, states: Sequence[Parts], segments: Sequence[Parts]) -> None:
        """Load an index that `parts` returned into a new engine; profiles are restored separately.

        Several states are of engines whose dense ids lie one after the other.
        """


@runtime_checkable
class Renumberable(Protocol):
    """An engine whose dense ids can be changed; others are filled again."""

    def tombstones(self) -> NDArray[np.int64]:
        """Return the dense ids of deleted subscriptions that are still in the index, ascending."""

    def renumber(self, kept: NDArray[np.int64]) -> None:
        """Change dense ids: `kept[i]` becomes i.

        `kept` has the dense ids of all live subscriptions and all tombstones, ascending. Earlier
        readers keep the old ids. Where it fails, nothing was changed.
        """


@runtime_checkable
class Enumerable(Protocol):
    """An engine that can list its conditions; elsewhere they are parsed again."""

    def conditions(self) -> Iterable[IndexedConditions]:
        """Return the conditions of all subscriptions; may include deleted ones."""
