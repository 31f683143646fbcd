"""Quotes and subscriptions that several tests use, and what they match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tocsin
from tocsin.store.subscription_store import SubscriptionStore

FIRMS = ["IBM", "SAP", "O'Neil"]
CONDITIONS = {
    "cheap": "price < 20",
    "ibm": "firm = 'IBM' AND price BETWEEN 10 AND 60",
    "quoted": "firm = 'O''Neil'",
    "never": "price < 0",
}
LATE = ("late", "price >= 70")
BAD = ["{", '{"price": "high"}', "[]"]


def quotes(first: int, end: int) -> list[dict[str, Any]]:
    """Return some quotes, each with its number."""
    return [
        {"number": i, "firm": FIRMS[i % len(FIRMS)], "price": float(i)} for i in range(first, end)
    ]


def make_store(path: Path, conditions: Mapping[str, str] = CONDITIONS) -> SubscriptionStore:
    """Return a store of the subscriptions."""
    store = SubscriptionStore.create(path)
    store.subscribe_many({"id": list(conditions), "where": list(conditions.values())})
    return store


def pairs(
    events: Iterable[Mapping[str, Any]], conditions: Mapping[str, str] = CONDITIONS
) -> list[tuple[int, str]]:
    """Return which numbers match which subscriptions, in order, without Spark."""
    matcher = tocsin.Matcher(engine="oracle")
    for name, where in conditions.items():
        matcher.subscribe(name, where)
    return sorted((event["number"], str(id)) for event in events for id in matcher.match(event))
