"""State-persistent publish/subscribe: publications that stay, ranges, transitions.

After Leung and Jacobsen, "Efficient Matching for State-Persistent Publish/Subscribe Systems". The
names here are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "ANY": "tocsin.subjects.model",
    "AtLeast": "tocsin.subjects.model",
    "ENTER": "tocsin.transitions",
    "InterestRegion": "tocsin.subjects.model",
    "LEAVE": "tocsin.transitions",
    "ObjectRegion": "tocsin.subjects.model",
    "Publication": "tocsin.subjects.model",
    "Range": "tocsin.subjects.model",
    "SubjectSpace": "tocsin.subjects.space",
    "Interest": "tocsin.subjects.model",
    "Transition": "tocsin.transitions",
    "Transitions": "tocsin.transitions",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tocsin.subjects' has no attribute {name!r}")
