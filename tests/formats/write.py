"""Writes one folder of each format on disk, with the version of Tocsin that is imported.

`python tests/formats/write.py FOLDER` writes a saved matcher, a store with a base and every kind of
change, a subject space, a broker's folder, and `answers.json`: what each of them said when it was
written. `tests/fixtures/formats/0.1` was written by release 0.1; `test_formats` opens a copy of it.
The script uses only names that release 0.1 has.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

import tocsin

DAY = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
FOREVER = 4_000_000_000_000_000
TYPE = tocsin.EventType(
    "Quote", firm=str, price=float, volume=int, halted=bool, at=dt.datetime, note=str
)

CONDITIONS: list[tuple[str, str]] = [
    ("cheap", "firm = 'IBM' AND price < 100"),
    ("either", "firm = 'IBM' OR firm = 'SUN' AND volume BETWEEN 10 AND 20"),
    ("list", "firm IN ('A', 'B', 'IBM', 'Ünïcode') AND NOT volume IN (1, 2, 3)"),
    ("pattern", "note LIKE 'a_c%x%' AND price >= 0.5"),
    ("no pattern", "note NOT LIKE '%z' AND firm = 'SUN'"),
    ("prefix", "note LIKE 'abc%'"),
    ("unknown", "note IS NULL AND firm IS NOT NULL"),
    ("halted", "halted AND price <> 3.25"),
    ("not halted", "halted = FALSE"),
    ("late", "at > TIMESTAMP '2026-01-02 00:00:00'"),
    ("large", "volume > 9007199254740993"),
    ("never", "volume > 5 AND volume < 5"),
    ("range", "price > 1e-300 AND price <= 1.7976931348623157e308"),
    ("absent", "missing = 1 OR other LIKE '%q%'"),
]

EVENTS: list[dict[str, Any]] = [
    {"firm": "IBM", "price": 99.5, "volume": 15, "halted": False, "at": DAY, "note": "abcx"},
    {"firm": "SUN", "price": 3.25, "volume": 15, "halted": True, "note": "a1c2x3"},
    {"firm": "SUN", "price": 100.0, "volume": 2, "halted": True, "note": "zz"},
    {"firm": "B", "volume": 9007199254740994, "at": DAY - dt.timedelta(days=3)},
    {"firm": "Ünïcode", "price": 0.5, "volume": 21, "note": "abc"},
    {"price": 1e10, "volume": -5},
    {"firm": "F7", "price": 7.0, "volume": 107},
    {"firm": "F11", "price": 11.0, "volume": 111},
]


def answers(matcher: tocsin.Matcher) -> list[list[Any]]:
    """Return the ids that each event matches."""
    return [sorted(ids, key=str) for ids in matcher.match_batch(EVENTS)]


def fill(matcher: tocsin.Matcher) -> None:
    """Subscribe one by one, by texts, by a template, and by predicate rows."""
    for name, where in CONDITIONS[:5]:
        matcher.subscribe(name, where)
    matcher.subscribe("until", "volume > :least", params={"least": 10}, valid_until=FOREVER)
    rest = CONDITIONS[5:]
    matcher.subscribe_many({"id": [name for name, _ in rest], "where": [text for _, text in rest]})
    numbers = list(range(1_000, 1_200))
    matcher.subscribe_many(
        {"id": numbers, "firm": [f"F{i % 20}" for i in numbers], "v": numbers},
        where="firm = :firm AND volume < :v",
    )


def write_matcher(folder: Path) -> list[list[Any]]:
    """Save a matcher that was matched, changed and matched."""
    matcher = tocsin.Matcher(TYPE)
    fill(matcher)
    matcher.match_batch(EVENTS)
    matcher.unsubscribe_many([1_001, 1_002, "either"])
    matcher.update("until", params={"least": 14})
    matcher.profile(EVENTS)
    matcher.save(folder)
    return answers(matcher)


def write_store(folder: Path) -> list[list[Any]]:
    """Write a base, and changes of every kind."""
    matcher = tocsin.Matcher()
    fill(matcher)
    matcher.save(folder)
    store = tocsin.SubscriptionStore(folder)
    store.subscribe("one", "price < :most", params={"most": 50}, valid_until=FOREVER)
    store.subscribe_many({"id": ["t1", "t2"], "where": ["firm = 'SUN'", "volume = 15"]})
    store.subscribe_many({"id": [1, 2], "v": [15, 2]}, where="volume = :v")
    store.subscribe_many(
        {
            "id": ["r", "r", "s"],
            "attribute": ["firm", "volume", "firm"],
            "op": ["=", ">", "<>"],
            "number": [None, 10.0, None],
            "text": ["IBM", None, "IBM"],
        }
    )
    store.unsubscribe_many(["t2", 1_003])
    store.update("one", params={"most": 60})
    store.update("cheap", where="firm = 'IBM' AND price < 10")
    return answers(store.matcher())


def write_space(folder: Path) -> dict[str, list[Any]]:
    """Write publications and subscriptions of a subject space."""
    space = tocsin.SubjectSpace.open(folder)
    for name, where in CONDITIONS[:3]:
        space.subscribe(name, where)
    for number, event in enumerate(EVENTS):
        space.publish(f"k{number}", {k: v for k, v in event.items() if k in ("firm", "volume")})
    space.update_publication("k1", {"volume": 500})
    space.retract("k2")
    space.compact()
    space.publish("after", {"firm": "IBM", "volume": 4})
    space.unsubscribe("cheap")
    matches = {f"k{n}": sorted(space.subscriptions_of(f"k{n}")) for n in range(8) if n != 2}
    matches["after"] = sorted(space.subscriptions_of("after"))
    space.close()
    return matches


async def write_broker(folder: Path) -> dict[str, int]:
    """Write durable subscriptions with their backlogs; return how much each has pending."""
    import httpx

    from tocsin.broker.config import Config
    from tocsin.broker.server import Server

    config = Config(data=folder, http="127.0.0.1:0", stomp="127.0.0.1:0", warm=False)
    server = Server(config, None)
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}") as client:
        for name, where in CONDITIONS[:3]:
            body = {"id": name, "where": where, "durable": True}
            (await client.post("/subscriptions", json=body)).raise_for_status()
        for event in EVENTS[:3]:
            plain = {name: value for name, value in event.items() if name != "at"}
            (await client.post("/events", json=plain)).raise_for_status()
        pending = {}
        for name, _ in CONDITIONS[:3]:
            pending[name] = (await client.get(f"/subscriptions/{name}")).json()["pending"]
    await server.stop()
    return pending


def main(folder: Path) -> None:
    """Write all of them."""
    folder.mkdir(parents=True)
    said: dict[str, Any] = {
        "matcher": write_matcher(folder / "matcher"),
        "store": write_store(folder / "store"),
        "space": write_space(folder / "space"),
        "broker": asyncio.run(write_broker(folder / "broker")),
    }
    (folder / "answers.json").write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
