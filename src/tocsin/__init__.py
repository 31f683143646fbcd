"""Tocsin: content-based publish/subscribe for Python and Spark.

The public names are loaded on first use, so that `import tocsin` is fast and brings in neither
Numba nor PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tocsin import engines, errors
    from tocsin.broker.client import AsyncClient, Client, Notification, connect, connect_async
    from tocsin.catalog.records import Subscription
    from tocsin.language.expression import Expression
    from tocsin.language.parser import parse
    from tocsin.loading import LoadReport
    from tocsin.matcher import Matcher
    from tocsin.matches import Matches
    from tocsin.model import EventType, Kind
    from tocsin.normalize import covers
    from tocsin.store.subscription_store import SubscriptionStore
    from tocsin.subjects.space import SubjectSpace
    from tocsin.warm import warm_up

__version__ = "0.2.0.dev0"

_MODULES = ("engines", "errors")
_HOMES = {
    "AsyncClient": "tocsin.broker.client",
    "Client": "tocsin.broker.client",
    "EventType": "tocsin.model",
    "Expression": "tocsin.language.expression",
    "Kind": "tocsin.model",
    "LoadReport": "tocsin.loading",
    "Matcher": "tocsin.matcher",
    "Matches": "tocsin.matches",
    "Notification": "tocsin.broker.client",
    "SubjectSpace": "tocsin.subjects.space",
    "Subscription": "tocsin.catalog.records",
    "SubscriptionStore": "tocsin.store.subscription_store",
    "connect": "tocsin.broker.client",
    "connect_async": "tocsin.broker.client",
    "covers": "tocsin.normalize",
    "parse": "tocsin.language.parser",
    "warm_up": "tocsin.warm",
}

__all__ = [
    "AsyncClient",
    "Client",
    "EventType",
    "Expression",
    "Kind",
    "LoadReport",
    "Matcher",
    "Matches",
    "Notification",
    "SubjectSpace",
    "Subscription",
    "SubscriptionStore",
    "__version__",
    "connect",
    "connect_async",
    "covers",
    "engines",
    "errors",
    "parse",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tocsin.{name}")
    if name in _HOMES:
        from tocsin.extras import load

        return load(_HOMES[name], name, f"tocsin.{name}")
    raise AttributeError(f"module 'tocsin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
