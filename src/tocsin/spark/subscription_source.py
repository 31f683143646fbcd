"""The arguments that name subscriptions: a store or its path, a matcher, a DataFrame of conditions.

Enters: such an argument. Leaves: the place of a store, or a matcher on the driver; and the type
that subscription ids have in the result.
"""

from __future__ import annotations

import os
import time
from typing import Any, Literal

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.spark import hadoop, worker
from tocsin.spark.worker import Moment
from tocsin.storage.place import Place
from tocsin.store.snapshot import StoreSnapshot, StoreState
from tocsin.store.subscription_store import SubscriptionStore

IdType = Literal["auto", "integer", "string"]


def to_place(subscriptions: object) -> Place | None:
    """Return the place of a store or of its path; None for anything else."""
    if isinstance(subscriptions, SubscriptionStore):
        return subscriptions.place
    if isinstance(subscriptions, str | os.PathLike):
        return hadoop.open_place(subscriptions)
    return None


def to_matcher(subscriptions: Any) -> Matcher:
    """Return a matcher as it is, or one of a DataFrame of conditions."""
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
    """Return a matcher of any argument that names subscriptions; a store's newest version."""
    place = to_place(subscriptions)
    if place is None:
        return to_matcher(subscriptions)
    snapshot = StoreSnapshot.open(place)
    moment = Moment.of(snapshot, time.time())
    return worker.open_matcher(moment, snapshot=snapshot).matcher


def has_integer_ids(ids: IdType, state: StoreState) -> bool:
    """Return whether ids are integers in the result; `auto` if all of the store's ids are."""
    if ids not in ("auto", "integer", "string"):
        raise ArgumentError(f"ids must be 'auto', 'integer' or 'string', not {ids!r}")
    return ids == "integer" or (ids == "auto" and state.ids == "integers")
