"""`tocsin bench broker`, small."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.broker.servers import running

from tocsin.errors import UnavailableError
from tocsin_lab.bench import activemq, broker
from tocsin_lab.bench.settings import ActiveMQSetting, BrokerSetting


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["stomp"])
def test_every_notification_that_is_expected_is_counted(protocol: str) -> None:
    load = BrokerSetting(500, 3, 2, 400, 1.0, 20, protocol, soak=0.4)
    result = broker.run(load)
    for name in ("full", "half"):
        assert result[name]["delivered_share"] == 1.0
        assert result[name]["latency_ms"]["p50"] > 0
    assert result["soak"]["delivered_share"] == 1.0
    assert len(result["soak"]["rss_mb"]) == 4
    assert "500 subscriptions" in broker.render(result)
    assert "memory during the soak" in broker.render(result)


@pytest.mark.slow
def test_a_broker_is_compared_with_another_by_the_same_client(tmp_path: Path) -> None:
    load = ActiveMQSetting(60, 5, 2, 10, 0.4)
    with running(tmp_path, http="") as ours:
        measured = asyncio.run(activemq._measure(load, ours.stomp_port))
    assert measured["delivered_share"] == 1.0
    assert measured["notifications_per_second"] > measured["events_per_second"]
    result = {"load": asdict(load), "activemq": measured, "tocsin": measured, "times": 1.0}
    assert "60 selectors over 5" in activemq.render(result)


def test_what_is_not_installed_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activemq, "_JARS", ("/nowhere/activemq.jar",))
    with pytest.raises(UnavailableError, match="not installed"):
        activemq.run(ActiveMQSetting())
