"""What `tocsin demo` shows while it runs: rates, latencies and what changes.

Enters: notes and the metrics of each micro-batch. Leaves: a view on the terminal that is redrawn;
where standard error is no terminal, a line every few seconds.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from tocsin.cli.console import say
from tocsin.spark.pipeline.metrics import BatchMetrics

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60
_LINE_EVERY = 5.0
"""Seconds between lines where there is no terminal."""


class DemoView:
    """The state of the demonstration, drawn after each batch."""

    def __init__(self, subscriptions: int, seconds: float) -> None:
        self.subscriptions = subscriptions
        self.seconds = seconds
        self.batches: list[BatchMetrics] = []
        self.rule = ""
        self._note = ""
        self._live: Any = None
        self._last_line = 0.0

    def __enter__(self) -> DemoView:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Show what is going on before the first batch."""
        self._note = text
        if self._live is None:
            say(text)
        else:
            self._draw()

    def added(self, where: str, version: int | None) -> None:
        """Show that a subscription was added."""
        self.rule = f"added while it runs: {where} (version {version})"
        if self._live is None:
            say(self.rule)
        else:
            self._draw()

    def batch(self, metrics: BatchMetrics) -> None:
        """Show a batch that has finished."""
        self.batches.append(metrics)
        if self._live is not None:
            self._draw()
        elif time.monotonic() - self._last_line >= _LINE_EVERY:
            self._last_line = time.monotonic()
            say(", ".join(f"{name} {value}" for name, value in self.figures()))

    def figures(self) -> list[tuple[str, str]]:
        """Return the figures of the last batch and the totals."""
        last = self.batches[-1]
        seconds = max(last.seconds, 1e-9)
        return [
            ("quotes/s", f"{last.events / seconds:,.0f}"),
            ("notifications/s", f"{last.matches / seconds:,.0f}"),
            ("notifications a quote", f"{last.matches / max(1, last.events):.2f}"),
            ("latency of a batch", f"{last.seconds:.2f} s"),
            ("quotes in all", f"{sum(batch.events for batch in self.batches):,}"),
            ("notifications in all", f"{sum(batch.matches for batch in self.batches):,}"),
        ]

    def _draw(self) -> None:
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold")
        grid.add_column(justify="right")
        grid.add_column()
        if not self.batches:
            grid.add_row(Text(self._note))
        else:
            sparklines = {
                "quotes/s": [b.events / max(b.seconds, 1e-9) for b in self.batches[1:]],
                "notifications a quote": [b.matches / max(1, b.events) for b in self.batches],
                "latency of a batch": [b.seconds for b in self.batches[1:]],
            }
            for name, value in self.figures():
                grid.add_row(name, value, Text(sparkline(sparklines.get(name, [])), style="cyan"))
            grid.add_row("", "", Text(self.rule, style="bold yellow"))
        title = f"a market against {self.subscriptions:,} subscriptions, on Spark"
        self._live.update(Panel(grid, title=title, subtitle=self._left(), width=100))

    def _left(self) -> str:
        """Return how long it goes on."""
        if not self.batches:
            return ""
        left = self.seconds - (time.time() - self.batches[0].finished)
        return f"{max(0.0, left):.0f} s to go"


def sparkline(values: list[float]) -> str:
    """Return the last values as bars of text, from zero up."""
    values = values[-_WIDTH:]
    highest = max(values, default=0.0)
    if highest <= 0.0:
        return ""
    steps = len(_BARS) - 1
    return "".join(_BARS[round(steps * value / highest)] for value in values)
