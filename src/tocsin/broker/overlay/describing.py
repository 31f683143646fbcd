"""What neighbours want, in words: for the console and `tocsin top`."""

from __future__ import annotations

from typing import Any

from tocsin.broker.overlay.links import Want
from tocsin.normalize.describe import describe_conjunction

_MOST = 3
_LONG = 300


def describe_want(topic: str | None, want: Want | None, is_pending: bool) -> dict[str, Any]:
    """Return what a neighbour wants of a topic."""
    slots = {} if want is None else want.slots
    shown = [describe_conjunction(held)[:_LONG] for held in list(slots.values())[:_MOST]]
    if is_pending:
        shown = ["not known yet: everything"]
    return {
        "topic": "every type" if topic is None else topic,
        "slots": len(slots),
        "keep": want is not None and want.keep,
        "shown": shown,
    }
