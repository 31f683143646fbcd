"""Matchers with something of every kind, and all that can be seen of a matcher."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import tocsin
from tocsin.matcher import Matcher

NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
QUOTE = tocsin.EventType("Quote", {"firm": str, "price": float, "volume": int, "at.once": bool})

EVENTS: list[dict[str, Any]] = [
    {"firm": "IBM", "price": 89.5, "volume": 100, "at.once": True},
    {"firm": "SAP", "price": 120.0},
    {"firm": "ÄÖ_%", "when": NOON, "x": 7},
    {"x": 2**60 + 1, "firm": ""},
    {"x": 0.5, "when": NOON - dt.timedelta(days=400)},
    {"x": "seven", "price": 7.0},
    {"x": True},
    {"x": 150},
    {},
]

TEXTS = [
    "firm = 'IBM' AND price < 100",
    "firm LIKE '%B_' AND NOT price > 1e300",
    "firm NOT LIKE '%!_!%' ESCAPE '!'",
    "firm IN ('IBM', 'SAP', '') OR x = 7",
    "when < TIMESTAMP '2026-01-01' OR when = TIMESTAMP '2026-07-01 12:00:00'",
    f"x = {2**60 + 1} OR x BETWEEN 0.25 AND 0.75",
    "x IS NULL AND price IS NULL",
    "x = TRUE OR at.once",
    "x = 'seven'",
    "TRUE",
    "FALSE",
    "x = 1 AND x = 2",
]


def filled(event_type: tocsin.EventType | None = None, **options: Any) -> Matcher:
    """Return a matcher with something of every kind, some of it gone or changed."""
    matcher = tocsin.Matcher(event_type, clock=lambda: 1_000.0, **options)
    for i, text in enumerate(TEXTS):
        matcher.subscribe(f"one {i}", text, valid_until=2_000_000_000 if i % 5 == 0 else None)
    matcher.subscribe(-1, "x = :v OR firm = :w", params={"v": 7, "w": "é"})
    matcher.match_batch(EVENTS)
    n = 120
    ids = [f"t{i}" for i in range(n)]
    where = [TEXTS[i % len(TEXTS)] for i in range(n)]
    ends = [1_500_000_000 if i % 3 == 0 else None for i in range(n)]
    matcher.subscribe_many({"id": ids, "where": where, "valid_until": ends})
    matcher.match_batch(EVENTS)
    columns = {"id": range(1_000, 1_000 + n), "a": range(100, 100 + n), "b": ["IBM", "SAP"] * 60}
    matcher.subscribe_many(columns, where="x = :a OR firm = :b AND price > :a")
    matcher.match_batch(EVENTS)
    rows = {
        "id": [2_000 + i // 2 for i in range(2 * n)],
        "attribute": ["x", "firm"] * n,
        "op": ["<", "LIKE"] * n,
        "number": [i if i % 2 == 0 else None for i in range(2 * n)],
        "text": [f"%{'AEIOU'[i % 5]}%" if i % 2 else None for i in range(2 * n)],
    }
    matcher.subscribe_many(rows)
    matcher.match_batch(EVENTS)
    matcher.unsubscribe_many([1_003, 1_004, 2_001, "t5", "one 2"])
    matcher.update(-1, params={"w": "SAP"})
    matcher.update("t8", where="price > 100")
    matcher.subscribe("pending", "volume = 100")
    return matcher


def seen(matcher: Matcher, events: list[dict[str, Any]] = EVENTS) -> dict[str, Any]:
    """Return all that can be seen of a matcher."""
    matcher.check()
    batch = [sorted(map(repr, found)) for found in matcher.match_batch(events)]
    assert [sorted(map(repr, matcher.match(event))) for event in events] == batch
    catalog = matcher._catalog
    dense = catalog.live().tolist()
    ids = catalog.names.to_list(catalog.live())
    is_written = matcher.engine == "auto"
    explained = {repr(id): matcher.explain(id) for id in ids[::7]}
    return {
        "matches": batch,
        "length": len(matcher),
        "explained": explained if is_written else [e.split("\n")[0] for e in explained.values()],
        "conditions": {repr(catalog.names[i]): catalog.expression(i) for i in dense},
        "ends": [catalog.valid_until(i) for i in dense],
        "known": [id in matcher for id in (*ids, "nobody", 1_003, 5)],
        "type": matcher.event_type,
        "engine": matcher.engine,
    }


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())
