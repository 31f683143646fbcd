"""`tocsin pipeline`: write a configuration, run a pipeline, show its status.

Enters: the path of a configuration. Leaves: progress on a terminal while it runs (rate, lag,
matches, version), a summary at the end; with `--json` a line for each batch.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import typer

from tocsin.cli.console import BAD_ROWS, OK, printable, say
from tocsin.errors import NoStoreError
from tocsin.spark.pipeline import config as configs
from tocsin.spark.pipeline.metrics import BatchMetrics, Summary
from tocsin.spark.pipeline.status import Status, quarantine_reasons, rate, status
from tocsin.spark.pipeline.template import write_template
from tocsin.store.subscription_store import SubscriptionStore

_RECENT = 10


def init(path: Path) -> int:
    """Write a configuration to start from."""
    written = write_template(path)
    typer.echo(f"wrote {written}; change it, then: tocsin pipeline run {written}")
    return OK


def run(path: Path, once: bool, batches: int | None, seconds: float | None, as_json: bool) -> int:
    """Run a pipeline and show its progress."""
    from tocsin.spark.pipeline.run import Pipeline

    config = configs.load(path)
    if once:
        config = replace(config, trigger=None)
    _check_store(config.subscriptions)  # Spark takes long to start
    with Live(as_json) as live:
        live.note("starting Spark")
        with Pipeline(config, on_batch=live.batch) as pipeline:
            # Spark's own handler would cancel the current batch.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            live.note("waiting for events")
            try:
                summary = pipeline.run(batches=batches, seconds=seconds)
            except KeyboardInterrupt:
                live.note("stopping after this batch")
                pipeline.stop()
                raise
    if not as_json:
        typer.echo(_summary_text(summary, config.output))
    elif not summary.batches:
        typer.echo(json.dumps({"batches": 0, "seconds": round(summary.seconds, 3)}))
    return BAD_ROWS if summary.quarantined else OK


def _check_store(path: str) -> None:
    """Refuse a path without a store; one behind a URL is looked for with Spark's configuration."""
    if "://" not in path:
        try:
            SubscriptionStore(path).close()
        except NoStoreError as error:
            hint = f"make one with: tocsin subscriptions add {path} FILE"
            raise NoStoreError(error.path, f"{error.reason}; {hint}") from None


def _summary_text(summary: Summary, output: str) -> str:
    bad = f", {summary.quarantined:,} quarantined" if summary.quarantined else ""
    return (
        f"{summary.batches:,} batches in {summary.seconds:.1f} s: {summary.events:,} events, "
        f"{_counts(summary)}{bad}\nin {output}"
    )


def _counts(of: Summary | Status) -> str:
    """Return the number of matches, or of transitions."""
    if of.entered is None:
        return f"{of.matches:,} matches"
    return f"{of.entered:,} ENTER, {of.left or 0:,} LEAVE, {of.publications or 0:,} publications"


class Live:
    """The progress of a pipeline in one line on the terminal; drift is reported once."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.recent: deque[BatchMetrics] = deque(maxlen=_RECENT)
        self.totals = Summary()
        self.reported: set[str] = set()
        self.shown: Any = None

    def __enter__(self) -> Live:
        if sys.stderr.isatty():
            from rich.console import Console

            self.shown = Console(stderr=True).status("")
            self.shown.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.shown is not None:
            self.shown.stop()

    def note(self, text: str) -> None:
        """Show a text on the line."""
        if self.shown is not None:
            self.shown.update(text)

    def batch(self, metrics: BatchMetrics) -> None:
        """Show a batch that has finished."""
        self.recent.append(metrics)
        self.totals = self.totals.plus(metrics)
        for text in metrics.drift:
            if text not in self.reported:
                self.reported.add(text)
                say(f"drift in batch {metrics.batch}: {text}")
        if self.as_json:
            typer.echo(json.dumps(asdict(metrics)))
            sys.stdout.flush()
        self.note(self.line(metrics))

    def line(self, last: BatchMetrics) -> str:
        """Return the current figures in one line."""
        lag = "" if last.lag is None else f"lag {last.lag:.1f} s  "
        bad = f"{self.totals.quarantined:,} quarantined  " if self.totals.quarantined else ""
        return (
            f"batch {last.batch}  {rate(self.recent) or 0:,.0f} events/s  {lag}"
            f"{self.totals.events:,} events  {_counts(self.totals)}  {bad}"
            f"version {last.version}, {last.subscriptions:,} subscriptions"
        )


def show_status(path: Path, as_json: bool) -> int:
    """Print the status of a pipeline."""
    config = configs.load(path)
    current = status(config)
    if as_json:
        typer.echo(json.dumps(current.to_dict()))
        return OK
    for name, value in _facts(current):
        typer.echo(printable(f"{name:<14}{value}"))
    for code, n in quarantine_reasons(config) if current.quarantined else ():
        typer.echo(f"  {code:<12}{n:,}")
    return OK


def _facts(current: Status) -> list[tuple[str, str]]:
    state = f"running, process {current.pid}" if current.running else "not running"
    newest = current.problem or f"{current.newest_version}"
    facts = [
        ("pipeline", f"{current.name}, mode {current.mode}"),
        ("state", state),
        ("newest version", f" {newest}"),
    ]
    facts += [("batches", f"{current.batches:,}"), ("events", f"{current.events:,}")]
    if current.entered is None:
        facts += [("matches", f"{current.matches:,}")]
    else:
        facts += [("transitions", _counts(current))]
    last = current.last
    if last is not None:
        ago = time.time() - last.finished
        facts.append(("last batch", f"{last.batch}, {ago:,.0f} s ago, version {last.version}"))
        facts.append(("rate", f"{current.rate or 0:,.0f} events/s over the last batches"))
        stages = ", ".join(f"{name} {ms:,.0f}" for name, ms in last.ms.items())
        facts.append(("milliseconds", stages))
        if last.lag is not None:
            facts.append(("lag", f"{last.lag:.1f} s"))
        facts += [("drift", text) for text in last.drift]
    facts.append(("quarantined", f"{current.quarantined:,}"))
    return facts
