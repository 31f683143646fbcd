"""`tocsin bench broker`, small."""

from __future__ import annotations

import pytest

from tocsin.bench import broker


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["stomp"])
def test_every_notification_that_is_expected_is_counted(protocol: str) -> None:
    load = broker.Load(500, 3, 2, 400, 1.0, 20, protocol)
    result = broker.run(load)
    for name in ("full", "half"):
        assert result[name]["delivered_share"] == 1.0
        assert result[name]["latency_ms"]["p50"] > 0
    assert "500 subscriptions" in broker.render(result)
