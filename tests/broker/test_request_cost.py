"""A sample of the cost harness (`cost.py`): nothing that one client sends holds the others up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.cost import costs, hosting

pytestmark = pytest.mark.slow
SAMPLE = {
    "POST /events, exact numbers": "200",
    "POST /events, empty events": "413",
    "POST /subscriptions, names": "400",
    "POST ack, too many ids": "413",
    "GET /subscriptions?order=matched&limit=1000": "200",
    "WebSocket ack": "limit",
    "WebSocket publish, small numbers": "publish",
    "STOMP small frames": "RECEIPT",
    "STOMP transaction": "RECEIPT",
}
GENEROUS = 2.0  # seconds; the aim is 0.05, which a busy machine cannot be held to


def test_no_input_at_the_limits_holds_others_up(tmp_path: Path) -> None:
    with hosting(tmp_path / "data", 1_000, 500) as broker:
        found = {cost.name: cost for cost in costs(broker, SAMPLE.__contains__)}
    assert {name: cost.outcome for name, cost in found.items()} == SAMPLE
    slow = [cost for cost in found.values() if cost.pause > GENEROUS]
    assert not slow, slow
