"""`tocsin bench`: runs a benchmark with a progress bar and prints its figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from tocsin.cli.console import OK, Progress

if TYPE_CHECKING:
    from tocsin.bench.load import Setting


def run_parse(subscriptions: int, seed: int, repeats: int, as_json: bool) -> int:
    """Time how subscriptions become normal forms."""
    from tocsin.bench import parse

    with Progress() as progress:

        def show(label: str, done: int, total: int) -> None:
            progress.show("measuring", done, total, label)

        result = parse.run(subscriptions, seed, repeats, progress=show)
    typer.echo(json.dumps(result) if as_json else parse.render(result))
    return OK


def run_match(setting: Setting, as_json: bool) -> int:
    """Time how many events a second are matched, against a baseline."""
    from tocsin.bench import match

    with Progress() as progress:

        def show(label: str, done: int, total: int) -> None:
            progress.show("measuring", done, total, label)

        result = match.run(setting, progress=show)
    typer.echo(json.dumps(result) if as_json else match.render(result))
    return OK


def run_latency(
    workload: str, subscriptions: int, events: int, engine: str, seed: int, as_json: bool
) -> int:
    """Time single events."""
    from tocsin.bench import latency

    with Progress() as progress:

        def show(label: str, done: int, total: int) -> None:
            progress.show("measuring", done, total, label)

        result = latency.run(workload, subscriptions, events, engine, seed, progress=show)
    typer.echo(json.dumps(result) if as_json else latency.render(result))
    return OK
