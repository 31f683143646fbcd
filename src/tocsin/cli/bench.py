"""`tocsin bench`: runs a benchmark with a progress bar and prints its figures."""

from __future__ import annotations

import json

import typer

from tocsin.cli.console import OK, Progress


def run_parse(subscriptions: int, seed: int, repeats: int, as_json: bool) -> int:
    """Time how subscriptions become normal forms."""
    from tocsin.bench import parse

    with Progress() as progress:

        def show(label: str, done: int, total: int) -> None:
            progress.show("measuring", done, total, label)

        result = parse.run(subscriptions, seed, repeats, progress=show)
    typer.echo(json.dumps(result) if as_json else parse.render(result))
    return OK
