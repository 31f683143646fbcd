"""Metrics of a running broker.

Enters: counts and durations from the event loop. Leaves: the Prometheus text format (0.0.4), and
the same as a mapping for the console and `tocsin top`.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from typing import Any

_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_COUNTERS = {
    "events": "Events published.",
    "matches": "Matches.",
    "transitions": "Transitions delivered: matches that began or ended.",
    "notifications": "Notifications written to outboxes.",
    "redelivered": "Notifications that may have been delivered before.",
    "acknowledged": "Notifications acknowledged.",
    "dropped": "Notifications lost by slow transient subscribers.",
    "overflowed": "Notifications dropped from full backlogs.",
    "refused": "Requests and frames refused.",
    "batches": "Batches matched.",
    "webhook_sent": "Webhook requests answered with success.",
    "webhook_failed": "Webhook requests that failed.",
    "dead": "Notifications moved to dead letters.",
    "dead_dropped": "Dead letters deleted because of their number, size or age.",
    "read_failures": "Reads of backlogs that failed and were retried.",
    "replayed": "Publishes repeated under an idempotency key.",
}


class Histogram:
    """Durations in seconds, counted by buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, n: int = 1) -> None:
        """Count `n` observations of a duration."""
        self.counts[bisect.bisect_left(_BOUNDS, seconds)] += n
        self.sum += seconds * n

    def render(self, name: str) -> list[str]:
        """Return the lines of Prometheus's text format."""
        lines, total = [f"# TYPE {name} histogram"], 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self.sum:.6f}", f"{name}_count {total}"]


class Metrics:
    """Counters, gauges that are read on demand, and two histograms."""

    def __init__(self) -> None:
        self.started = time.time()
        self.events = self.matches = self.notifications = self.redelivered = 0
        self.transitions = 0
        self.acknowledged = self.dropped = self.overflowed = self.refused = 0
        self.batches = self.webhook_sent = self.webhook_failed = self.dead = 0
        self.dead_dropped = self.read_failures = self.replayed = 0
        self.to_notify = Histogram()
        self.to_acknowledge = Histogram()
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self.families: dict[str, tuple[str, str, dict[str, int]]] = {}

    def family(self, name: str, text: str, label: str) -> dict[str, int]:
        """Return the counters of a name, by the value of a label.

        Values of labels are ours, never a client's: each one lives as long as the broker.
        """
        return self.families.setdefault(name, (text, label, {}))[2]

    def snapshot(self) -> dict[str, Any]:
        """Return all figures; rates are differences of two snapshots."""
        figures: dict[str, Any] = {name: getattr(self, name) for name in _COUNTERS}
        figures |= {name: read() for name, (_, read) in self.gauges.items()}
        figures |= {name: dict(counts) for name, (_, _, counts) in self.families.items()}
        figures |= {
            "at": time.time(),
            "started": self.started,
            "bounds": list(_BOUNDS),
            "to_notify": list(self.to_notify.counts),
            "to_acknowledge": list(self.to_acknowledge.counts),
        }
        return figures

    def render(self) -> str:
        """Return the Prometheus text format."""
        lines: list[str] = []
        for name, text in _COUNTERS.items():
            full = f"tocsin_{name}_total"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} counter"]
            lines.append(f"{full} {getattr(self, name)}")
        for name, (text, label, counts) in self.families.items():
            full = f"tocsin_{name}_total"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} counter"]
            for value, n in counts.items():
                shown = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
                lines.append(f'{full}{{{label}="{shown}"}} {n}')
        for name, (text, read) in self.gauges.items():
            full = f"tocsin_{name}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {read()}"]
        lines += self.to_notify.render("tocsin_publish_to_notify_seconds")
        lines += self.to_acknowledge.render("tocsin_publish_to_acknowledge_seconds")
        return "\n".join(lines) + "\n"
