"""Interests of peers as text, for the console and `tocsin top`."""

from __future__ import annotations

from typing import Any

from tocsin.broker.overlay.links import Interest
from tocsin.normalize.describe import describe_conjunction

_MOST = 3
_LONG = 300


def describe_interest(
    topic: str | None, interest: Interest | None, is_pending: bool
) -> dict[str, Any]:
    """Return the interest of a peer in a topic."""
    slots = {} if interest is None else interest.slots
    shown = [
        describe_conjunction(conjunction)[:_LONG] for conjunction in list(slots.values())[:_MOST]
    ]
    if is_pending:
        shown = ["not known yet: everything"]
    return {
        "topic": "every type" if topic is None else topic,
        "slots": len(slots),
        "keep": interest is not None and interest.keep,
        "shown": shown,
    }
