"""Tocsin: content-based publish/subscribe for Python and Spark.

The public names are loaded on first use, so that `import tocsin` is fast and brings in neither
Numba nor PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tocsin.broker.client import connect, connect_async
    from tocsin.matcher import LoadReport, Matcher
    from tocsin.matches import Matches
    from tocsin.model import EventType, Kind
    from tocsin.normalize import covers
    from tocsin.store.subscription_store import SubscriptionStore
    from tocsin.subjects.space import SubjectSpace
    from tocsin.warm import warm_up

__version__ = "0.1.0"

_HOMES = {
    "EventType": "tocsin.model",
    "Kind": "tocsin.model",
    "LoadReport": "tocsin.matcher",
    "Matcher": "tocsin.matcher",
    "Matches": "tocsin.matches",
    "SubscriptionStore": "tocsin.store.subscription_store",
    "connect": "tocsin.broker.client",
    "connect_async": "tocsin.broker.client",
    "SubjectSpace": "tocsin.subjects.space",
    "covers": "tocsin.normalize",
    "warm_up": "tocsin.warm",
}

__all__ = [
    "EventType",
    "Kind",
    "LoadReport",
    "Matcher",
    "Matches",
    "SubjectSpace",
    "SubscriptionStore",
    "__version__",
    "connect",
    "connect_async",
    "covers",
    "errors",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("tocsin.errors")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tocsin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
