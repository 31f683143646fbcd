"""`tocsin top`: a broker's figures, live. Two snapshots → rates and percentiles → a table."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import typer

from tocsin.cli.console import OK

_RATES = (
    "events", "matches", "transitions", "notifications", "acknowledged", "dropped", "refused",
)  # fmt: skip
_LEVELS = (
    "subscriptions", "publications", "retained", "connections", "queue_events", "storage_waiting",
    "backlog", "dead",
)  # fmt: skip


def percentile(bounds: list[float], counts: list[int], share: float) -> float | None:
    """Return the bound below which a share of all lies; None where there is nothing."""
    wanted, seen = share * sum(counts), 0
    if not sum(counts):
        return None
    for bound, count in zip([*bounds, float("inf")], counts, strict=True):
        seen += count
        if seen >= wanted:
            return bound
    return None


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return rates, latencies in milliseconds, and levels."""
    seconds = max(now["at"] - before["at"], 1e-6)
    found: dict[str, Any] = {
        f"{name}_per_second": round((now[name] - before[name]) / seconds, 1) for name in _RATES
    }
    for name in ("to_notify", "to_acknowledge"):
        counts = [b - a for a, b in zip(before[name], now[name], strict=True)]
        for share in (0.5, 0.99):
            bound = percentile(now["bounds"], counts, share)
            label = f"{name}_p{round(share * 100)}_ms"
            found[label] = None if bound is None else bound * 1000
    return found | {name: now[name] for name in _LEVELS}


def run_top(url: str, token: str | None, seconds: float, count: int, as_json: bool) -> int:
    """Show figures until interrupted, or so many times."""
    from tocsin.broker.client import connect

    live = sys.stdout.isatty() and not as_json
    looks = 0
    with connect(url, token) as client:
        before = client.stats()
        while not count or looks < count:
            time.sleep(seconds)
            now = client.stats()
            found = difference(before, now)
            before, looks = now, looks + 1
            if as_json:
                typer.echo(json.dumps(found))
            else:
                typer.echo(("\x1b[2J\x1b[H" if live else "") + _render(url, found))
    return OK


def _render(url: str, found: Mapping[str, Any]) -> str:
    lines = [f"tocsin broker at {url}", ""]
    for name, value in found.items():
        shown = (
            "-" if value is None else f"{value:,}" if not name.endswith("_ms") else f"≤ {value:g}"
        )
        lines.append(f"{name.replace('_', ' '):<28}{shown:>14}")
    return "\n".join(lines)
