"""What release 0.1 wrote opens, answers as it did then, and goes on."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.formats.write import CONDITIONS, EVENTS, answers

import tocsin
from tocsin.broker.config import Config
from tocsin.broker.server import Server

WRITTEN = Path(__file__).parent.parent / "fixtures" / "formats" / "0.1"
ANSWERS: dict[str, Any] = json.loads((WRITTEN / "answers.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what was written, since opening may bring a folder to a newer format."""
    return Path(shutil.copytree(WRITTEN, tmp_path / "0.1"))


def test_a_matcher_saved_by_0_1_opens_and_is_saved_again(folder: Path) -> None:
    matcher = tocsin.Matcher.open(folder / "matcher")
    assert answers(matcher) == ANSWERS["matcher"]
    matcher.check()
    matcher.subscribe("new", "price = 1e10")
    matcher.save(folder / "matcher")
    expected = [
        sorted([*ids, "new"], key=str) if i == 5 else ids
        for i, ids in enumerate(ANSWERS["matcher"])
    ]
    assert answers(tocsin.Matcher.open(folder / "matcher")) == expected


def test_a_store_of_0_1_opens_with_all_its_changes_and_takes_more(folder: Path) -> None:
    store = tocsin.SubscriptionStore(folder / "store")
    assert answers(store.matcher()) == ANSWERS["store"]
    version = store.newest()
    assert store.subscribe("new", "price = 1e10") == version + 1
    store.compact()
    reopened = answers(tocsin.SubscriptionStore(folder / "store").matcher())
    assert reopened[5] == sorted([*ANSWERS["store"][5], "new"], key=str)
    assert reopened[:5] == ANSWERS["store"][:5]


def test_a_subject_space_of_0_1_opens_and_goes_on(folder: Path) -> None:
    with tocsin.SubjectSpace.open(folder / "space") as space:
        for key, ids in ANSWERS["space"].items():
            assert sorted(space.subscriptions_of(key)) == ids, key
        space.publish("new", EVENTS[0])
        assert sorted(space.subscriptions_of("new")) == ["either", "list"]
    with tocsin.SubjectSpace.open(folder / "space") as space:
        assert sorted(space.subscriptions_of("new")) == ["either", "list"]


async def _pending(folder: Path) -> dict[str, int]:
    """Return the backlogs of a broker that is started on a folder, before and after one event."""
    server = Server(Config(data=folder, http="127.0.0.1:0", stomp="127.0.0.1:0", warm=False), None)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}") as client:
            counts = {}
            for name, _ in CONDITIONS[:3]:
                answer = await client.get(f"/subscriptions/{name}")
                counts[name] = answer.json()["pending"]
            (await client.post("/events", json={"firm": "IBM", "price": 1})).raise_for_status()
            answer = await client.get("/subscriptions/cheap")
            counts["cheap, then"] = answer.json()["pending"]
            return counts
    finally:
        await server.stop()


@pytest.mark.filterwarnings("ignore:SQLite")
def test_a_broker_of_0_1_starts_with_its_backlogs_and_adds_to_them(folder: Path) -> None:
    counts = asyncio.run(_pending(folder / "broker"))
    assert counts.pop("cheap, then") == ANSWERS["broker"]["cheap"] + 1
    assert counts == ANSWERS["broker"]
