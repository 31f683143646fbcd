"""One broker for most tests of a module; ids keep them apart."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.broker.servers import Running, running


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from tocsin.model import EventType

    types = {"Quote": EventType("Quote", firm=str, price=float, at="timestamp")}
    data = tmp_path_factory.mktemp("broker")
    with running(data, types=types, heart_beat_ms=1000) as found:
        with found.client() as http:  # compiles what matching needs
            http.post("/subscriptions", json={"id": "first", "where": "first = 1"})
            http.post("/events", json={"first": 1})
        yield found


@pytest.fixture
def http(broker: Running) -> Iterator[httpx.Client]:
    with broker.client() as found:
        yield found
