"""Transitions: how a subscription asks for them, and how they are written.

Enters: the parameter `notify` of a subscription. Leaves: a bit mask, as it is stored. A
subscription with a mask is notified when a publication begins or ceases to match (ENTER, LEAVE),
one without of every match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin.errors import ArgumentError
from tocsin.subjects.model import Notify

ENTER, LEAVE = 1, -1
KINDS = {ENTER: "ENTER", LEAVE: "LEAVE"}
_MASKS = {Notify.ENTER.value: 1, Notify.LEAVE.value: 2, Notify.BOTH.value: 3}
_NAMES = {mask: name for name, mask in _MASKS.items()}


def to_transition_mask(notify: object) -> int:
    """Return the mask of `notify`: 1 for ENTER, 2 for LEAVE, 3 for both; 0 where it is None."""
    if notify is None:
        return 0
    mask = _MASKS.get(notify) if isinstance(notify, str) else None
    if mask is None:
        raise ArgumentError('notify is "enter", "leave" or "both"; leave it out for every match')
    return mask


def to_notify(mask: int) -> str:
    """Return the value of `notify` that a mask stands for."""
    return _NAMES[mask]


def has(mask: int, kind: int) -> bool:
    """Return whether a mask includes ENTER or LEAVE."""
    return bool(mask & (1 if kind == ENTER else 2))


def refuse_old_name(parameters: Mapping[str, Any]) -> None:
    """Refuse the parameter `transitions` of version 0.1, and name the one that replaces it."""
    if "transitions" in parameters:
        raise ArgumentError(
            'transitions is called notify now: "enter", "leave" or "both" instead of true, '
            '["ENTER"] or ["LEAVE"]'
        )
