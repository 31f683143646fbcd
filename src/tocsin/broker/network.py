"""What the core asks of a network of brokers: the seam to `overlay/`.

Enters: subscriptions as they come and go, events as they are published. Leaves: the numbers under
which neighbours get an event, as subscriptions do. A broker that is in no network has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tocsin.broker.events import Event
from tocsin.broker.subscription import Subscription


class Network(Protocol):
    """The other brokers, as this one sees them. Used within the event loop."""

    def restore(self) -> None:
        """Load what is stored, before the broker starts."""

    def publishing(self, events: Sequence[Event]) -> None:
        """Take note of what is about to be published."""

    def ahead(self, event: Event, is_wanted: bool) -> Sequence[int]:
        """Return the numbers of the neighbours that get an event; whether somebody here does."""

    def subscribed(self, found: Subscription) -> None:
        """Take note of a subscription that is new or changed."""

    def describe(self) -> dict[str, Any]:
        """Return what an operator may want to know."""

    def unsubscribed(self, found: Subscription) -> None:
        """Take note of a subscription that is gone."""


class Mark(NamedTuple):
    """What is stored with events that a neighbour sent, so that they are taken once."""

    store: Callable[..., None]
    peer: str
    seq: int
