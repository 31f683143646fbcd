"""The network of brokers, as a broker sees it: the seam to `overlay/`.

Enters: subscriptions that are added, changed and removed; events as they are published. Leaves: the
numbers under which peers get an event, as subscriptions do. A broker without links has no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tocsin.broker.events import Event
from tocsin.broker.subscription import Subscription


class Network(Protocol):
    """The other brokers. Used within the event loop."""

    def restore(self) -> None:
        """Load stored peers, before the broker starts."""

    def publishing(self, events: Sequence[Event]) -> None:
        """Handle events that are about to be published."""

    def route(self, event: Event, is_matched: bool) -> Sequence[int]:
        """Return the numbers of the peers that get an event.

        `is_matched` says whether a subscription of this broker matches it.
        """

    def subscribed(self, subscription: Subscription) -> None:
        """Handle a subscription that is new or changed."""

    def unsubscribed(self, subscription: Subscription) -> None:
        """Handle a subscription that is removed or suspended."""

    def describe(self) -> dict[str, Any]:
        """Return the state of the links, for operators."""


class Mark(NamedTuple):
    """The position in a peer's events that is stored with them, so that they are taken once."""

    store: Callable[..., None]
    peer: str
    seq: int
