"""State-persistent publish/subscribe: publications that stay, ranges, transitions.

After Leung and Jacobsen, "Efficient Matching for State-Persistent Publish/Subscribe Systems". The
names here are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "ANY": "model",
    "AtLeast": "model",
    "ENTER": "transitions",
    "InterestRegion": "model",
    "LEAVE": "transitions",
    "ObjectRegion": "model",
    "Publication": "model",
    "Range": "model",
    "SubjectSpace": "space",
    "Subscription": "model",
    "Transition": "transitions",
    "Transitions": "transitions",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"tocsin.subjects.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tocsin.subjects' has no attribute {name!r}")
