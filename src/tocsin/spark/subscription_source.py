"""What users give as subscriptions.

Enters: a matcher, a store, its path, or a DataFrame of conditions. Leaves: a matcher on the driver.
"""

from __future__ import annotations

import time
from typing import Any

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.spark import stores, worker


def to_matcher(subscriptions: Any) -> Matcher:
    """Return a matcher of what was given as subscriptions."""
    if isinstance(subscriptions, Matcher):
        return subscriptions
    if hasattr(subscriptions, "toArrow") and hasattr(subscriptions, "schema"):
        matcher = Matcher()
        matcher.subscribe_many(subscriptions.toArrow())
        return matcher
    raise ArgumentError(
        "subscriptions must be a Matcher, a store or its path, or a DataFrame with columns id and "
        f"where, not {type(subscriptions).__name__}"
    )


def open_on_driver(subscriptions: Any) -> Matcher:
    """Return a matcher of a matcher, a store, its path, or a DataFrame."""
    path = stores.to_path(subscriptions)
    if path is None:
        return to_matcher(subscriptions)
    return worker.opened(path, stores.newest(path), time.time()).matcher
