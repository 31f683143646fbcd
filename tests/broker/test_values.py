"""A value means the same whichever way an event comes to the broker."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.servers import RawStomp, Running
from tests.values import CASES, Case

import tocsin
from tocsin.model import to_plain

pytestmark = pytest.mark.slow
_types = itertools.count()


def to_json(value: Any) -> Any:
    plain = to_plain(value)
    return plain.isoformat() if isinstance(plain, dt.datetime) else plain


def by_client(broker: Running, type: str, value: Any) -> int:
    with tocsin.connect(broker.url) as client:
        return client.publish({"x": value}, type=type).matches


def by_async_client(broker: Running, type: str, value: Any) -> int:
    async def publish() -> int:
        async with tocsin.connect_async(broker.url) as client:
            return (await client.publish_many([{"x": value}], type=type)).matches

    return asyncio.run(publish())


def by_http(broker: Running, type: str, value: Any) -> int:
    with broker.client() as http:
        answer = http.post("/events", params={"type": type}, json={"x": to_json(value)})
        return answer.json()["matches"]


def by_json_lines(broker: Running, type: str, value: Any) -> int:
    lines = json.dumps({"y": 1}) + "\n" + json.dumps({"x": to_json(value)}) + "\n"
    headers = {"content-type": "application/x-ndjson"}
    with broker.client() as http:
        answer = http.post("/events", params={"type": type}, content=lines, headers=headers)
        return answer.json()["matches"]


def by_cloudevent(broker: Running, type: str, value: Any) -> int:
    data = {"x": to_json(value)}
    event = {"specversion": "1.0", "id": "1", "source": "t", "type": type, "data": data}
    headers = {"content-type": "application/cloudevents+json"}
    with broker.client() as http:
        answer = http.post("/events", content=json.dumps(event), headers=headers)
        return answer.json()["matches"]


ROADS = [by_client, by_async_client, by_http, by_json_lines, by_cloudevent]


@pytest.mark.parametrize("road", ROADS, ids=lambda road: road.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_value_means_the_same_by_every_road_to_the_broker(
    broker: Running, case: Case, road: Callable[[Running, str, Any], int]
) -> None:
    type = f"Value{next(_types)}"
    with tocsin.connect(broker.url) as client:
        id = client.subscribe(None, case.where, type=type)
        try:
            assert road(broker, type, case.value) == int(case.holds)
        finally:
            client.unsubscribe(id)


def test_a_stomp_header_that_is_a_timestamp_compares_with_timestamps(broker: Running) -> None:
    with tocsin.connect(broker.url) as client:
        client.subscribe("stomp-moment", "since > TIMESTAMP '2026-01-01'", durable=True)
        client.subscribe("stomp-text", "since LIKE '2026%'", durable=True)
        stomp = RawStomp(broker.stomp_port)
        headers = {"destination": "/topic/x", "since": "2026-02-02T00:00:00Z", "receipt": "1"}
        stomp.send("SEND", headers, b"{}")
        assert stomp.next().command == "RECEIPT"
        for id in ("stomp-moment", "stomp-text"):
            assert client.get(id)["pending"] == 1
            client.unsubscribe(id)
        stomp.socket.close()
