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
_LINK_RATES = ("events_in", "events_out", "bytes_in", "bytes_out", "spurious")
_LEVELS = (
    "subscriptions", "publications", "retained", "connections", "queue_events", "storage_waiting",
    "backlog", "dead",
)  # fmt: skip


def percentile(bounds: list[float], counts: list[int], share: float) -> float | None:
    """Return the bound below which a share of all lies; None where there is nothing."""
    rank, seen = share * sum(counts), 0
    if not sum(counts):
        return None
    for bound, count in zip([*bounds, float("inf")], counts, strict=True):
        seen += count
        if seen >= rank:
            return bound
    return None


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return rates, latencies in milliseconds, and levels."""
    seconds = max(now["at"] - before["at"], 1e-6)
    figures: dict[str, Any] = {
        f"{name}_per_second": round((now[name] - before[name]) / seconds, 1) for name in _RATES
    }
    for name in ("to_notify", "to_acknowledge"):
        counts = [b - a for a, b in zip(before[name], now[name], strict=True)]
        for share in (0.5, 0.99):
            bound = percentile(now["bounds"], counts, share)
            label = f"{name}_p{round(share * 100)}_ms"
            figures[label] = None if bound is None else bound * 1000
    figures |= {name: now[name] for name in _LEVELS}
    if "overlay" in now:
        figures["overlay"] = _links(before.get("overlay", {}), now["overlay"], seconds)
    return figures


def _links(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the network: the rates and interests of each link."""
    known = {link["name"]: link for link in before.get("links", [])}
    links = []
    for link in now["links"]:
        old = known.get(link["name"], link)
        rates = {
            f"{name}_per_second": round((link[name] - old[name]) / seconds, 1)
            for name in _LINK_RATES
        }
        links.append({**link, **rates})
    return {**now, "links": links}


def run_top(url: str, token: str | None, seconds: float, count: int, as_json: bool) -> int:
    """Show figures until interrupted, or `count` times."""
    from tocsin.broker.client import connect

    live = sys.stdout.isatty() and not as_json
    looks = 0
    with connect(url, token) as client:
        before = client.stats()
        while not count or looks < count:
            time.sleep(seconds)
            now = client.stats()
            figures = difference(before, now)
            before, looks = now, looks + 1
            if as_json:
                typer.echo(json.dumps(figures))
            else:
                typer.echo(("\x1b[2J\x1b[H" if live else "") + _render(url, figures))
    return OK


def _render(url: str, figures: Mapping[str, Any]) -> str:
    lines = [f"tocsin broker at {url}", ""]
    for name, value in figures.items():
        if name == "overlay":
            continue
        shown = (
            "-" if value is None else f"{value:,}" if not name.endswith("_ms") else f"≤ {value:g}"
        )
        lines.append(f"{name.replace('_', ' '):<28}{shown:>14}")
    if "overlay" in figures:
        lines += ["", *_render_links(figures["overlay"])]
    return "\n".join(lines)


def _render_links(overlay: Mapping[str, Any]) -> list[str]:
    lines = [
        f"network: {overlay['name']}, one of {len(overlay['brokers'])} brokers; "
        f"{overlay['spurious']:,} spurious events",
        f"{'link':<16}{'state':<10}{'in/s':>9}{'out/s':>9}{'bytes in/s':>13}{'bytes out/s':>13}"
        f"{'spurious/s':>12}{'waiting':>9}",
    ]
    for link in overlay["links"]:
        lines.append(
            f"{link['name'][:15]:<16}{link['state']:<10}{link['events_in_per_second']:>9,}"
            f"{link['events_out_per_second']:>9,}{link['bytes_in_per_second']:>13,}"
            f"{link['bytes_out_per_second']:>13,}{link['spurious_per_second']:>12,}"
            f"{link['waiting']:>9,}"
        )
        lines += [
            f"  wants {want['topic']} ({want['slots']}{', kept' if want['keep'] else ''}): "
            + "; or ".join(want["shown"])[:100]
            for want in link["wants"]
        ]
    return lines
