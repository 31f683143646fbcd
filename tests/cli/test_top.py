"""`tocsin top` shows the network: links, what is wanted over them, rates."""

from __future__ import annotations

from typing import Any

from tocsin.cli.broker_top import _LEVELS, _RATES, _render, difference


def snapshot(at: float, events: int) -> dict[str, Any]:
    link = {
        "name": "b", "state": "active", "events_in": 0, "events_out": events, "bytes_in": 0,
        "bytes_out": 100 * events, "spurious": 3, "waiting": 7,
        "wants": [{"topic": "Quote", "slots": 1, "keep": True, "shown": ["price < 10"]}],
    }  # fmt: skip
    return {
        **dict.fromkeys((*_RATES, *_LEVELS), 0), "at": at, "bounds": [0.1], "to_notify": [0, 0],
        "to_acknowledge": [0, 0],
        "overlay": {"name": "a", "brokers": ["a", "b"], "spurious": 3, "links": [link]},
    }  # fmt: skip


def test_a_link_is_shown_with_its_rates_and_wants() -> None:
    found = difference(snapshot(1.0, 10), snapshot(3.0, 30))
    assert found["overlay"]["links"][0]["events_out_per_second"] == 10
    text = _render("http://x", found)
    assert "network: a, one of 2 brokers; 3 spurious events" in text
    assert "1,000.0" in text
    assert "wants Quote (1, kept): price < 10" in text


def test_a_broker_alone_shows_no_network() -> None:
    one = snapshot(1.0, 1)
    del one["overlay"]
    assert "network" not in _render("http://x", difference(one, one))
