"""The commands under `tocsin demo`, and their options.

Enters: arguments. Leaves: a call of the module that does the work. A further demonstration is one
more command here. Only Typer is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import guarded
from tocsin.cli.shared import EXIT_CODES, AsJson, Engine, Seed

app = typer.Typer(name="demo", epilog=EXIT_CODES, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def pipeline(
    context: typer.Context,
    subscriptions: Annotated[int, typer.Option(min=1, help="How many subscriptions.")] = 1_000_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long quotes come in.")] = 20,
    rate: Annotated[int, typer.Option(min=1, help="How many quotes in a micro-batch.")] = 100_000,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder to write to; by default a new one."),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """See it work. Without a command: a pipeline on Spark, a market and people who watch prices.

    Subscriptions are added while it runs. Without Java, `tocsin demo match` is run instead.
    """
    if context.invoked_subcommand is None:
        from tocsin.cli.demo_pipeline import Demo, run

        guarded(run)(Demo(subscriptions, seconds, rate, out, seed, as_json))


@app.command(epilog=EXIT_CODES)
@guarded
def match(
    subscriptions: Annotated[int, typer.Option(min=1, help="How many subscriptions.")] = 100_000,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 30_000,
    seed: Seed = 0,
    engine: Engine = "auto",
    as_json: AsJson = False,
) -> int:
    """Match a generated market in this process: people watch prices, quotes come in."""
    from tocsin.cli.demo import run

    return run(subscriptions, events, seed, engine, as_json)


@app.command(epilog=EXIT_CODES)
@guarded
def fleet(
    vehicles: Annotated[int, typer.Option(min=1, help="How many vehicles.")] = 300,
    steps: Annotated[int, typer.Option(min=1, help="How many moves of each.")] = 120,
    seed: Seed = 0,
    picture: Annotated[
        Path | None, typer.Option(help="Write the picture at the end to this SVG file.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Vehicles that cross zones on a road grid: notifications when they enter and leave."""
    from tocsin.cli.fleet import run

    return run(vehicles, steps, seed, picture, as_json)
