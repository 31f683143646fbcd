"""What every engine can do: the one protocol behind `Matcher(engine=…)`.

Enters: conjunction tables whose `subscription` numbers are the matcher's dense ids, and event
batches. Leaves: for each event the dense ids that match, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tocsin.bundle import Parts
from tocsin.encode.events import EventBatch
from tocsin.engines.ragged import RaggedIds
from tocsin.language.expression import Expression
from tocsin.normalize.moving import Move
from tocsin.normalize.table import ConjunctionTable


class Expressions(Protocol):
    """Where an engine that evaluates expressions finds them."""

    def expression(self, dense: int) -> Expression:
        """Return the condition of a subscription, parameters bound."""


class Reader(Protocol):
    """The subscriptions as they were at one moment; calls may be concurrent, beside any others."""

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Return the subscriptions that each event matches."""

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Return the subscriptions that one event matches."""


class Engine(Protocol):
    """A matching algorithm. Calls are not concurrent; the matcher sees to that."""

    def reader(self) -> Reader | None:
        """Return what matches the subscriptions as they are now, beside later changes.

        None says that matches and changes have to wait for each other.
        """

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Take in subscriptions: their dense ids, and their conjunctions."""

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Forget subscriptions."""

    def profile(self, events: EventBatch) -> None:
        """Learn what events look like, for the next build."""

    def merge(self) -> None:
        """Plan and build everything anew, with what is known of events by now."""

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Return the subscriptions that each event matches."""

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Return the subscriptions that one event matches."""

    def explain(self, dense: int) -> str:
        """Say where a subscription is kept and how it is found."""

    def describe(self) -> str:
        """Say what the index is made of."""

    def check(self) -> None:
        """Verify every invariant; raise AssertionError where one fails."""

    @property
    def nbytes(self) -> int:
        """Bytes held by the index."""


class IndexParts(NamedTuple):
    """An index taken apart: its state, and segments that never change, by names used once."""

    state: Parts
    segments: dict[str, Callable[[], Parts]]
    sample: EventBatch | None
    """The events that `profile` kept."""
    attributes: list[str]
    """What the conditions mention: as many or more."""


@runtime_checkable
class Storable(Protocol):
    """What an engine can do besides, if its index can be written; others are filled anew."""

    def parts(self) -> IndexParts:
        """Return the index as it is now; later changes do not touch what is returned."""

    def restore(self, states: Sequence[Parts], segments: Sequence[Parts]) -> None:
        """Take over an index that was taken apart; the engine is new. Profiles come apart.

        Several states are of engines whose dense ids lie one after the other.
        """


@runtime_checkable
class Renumberable(Protocol):
    """What an engine can do besides, if dense ids can be changed; others are filled anew."""

    def buried(self) -> NDArray[np.int64]:
        """Return the dense ids of deleted subscriptions that are still in the index, in order."""

    def renumber(self, kept: NDArray[np.int64]) -> None:
        """Give subscriptions other dense ids: what was `kept[i]` is i from now on.

        `kept` has all live and buried ones, in order. Readers that were taken before keep the old
        numbers. Where it fails, nothing was changed.
        """


@runtime_checkable
class Updatable(Protocol):
    """What an engine can do besides, if a subscription can be changed where it is."""

    def replace(self, old: int, new: int, table: ConjunctionTable) -> None:
        """Put a subscription in the place of another; what both ask alike is left as it is."""

    def move(self, dense: int, moves: Sequence[Move]) -> bool:
        """Give conditions of a subscription other bounds; False where that cannot be, or not here.

        Then nothing was changed.
        """
