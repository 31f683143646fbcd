"""Transitions: the pairs of a publication and a subscription that begin or cease to match.

`transition` has the values that users see, `differences` computes the transitions of a batch from
the matches before and after, with one kernel for all callers. Values are kept by the callers: a
subject space (`tocsin.subjects`), the broker, or rows in the state of a Spark query.
"""

from __future__ import annotations

from tocsin.transitions.differences import (
    BatchTransitions,
    difference,
    of_batches,
    of_subscriptions,
)
from tocsin.transitions.transition import ENTER, LEAVE, Transition, TransitionKind, Transitions

__all__ = [
    "ENTER",
    "LEAVE",
    "BatchTransitions",
    "Transition",
    "TransitionKind",
    "Transitions",
    "difference",
    "of_batches",
    "of_subscriptions",
]
