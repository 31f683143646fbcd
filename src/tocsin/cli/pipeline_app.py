"""The commands under `tocsin pipeline`, and their options.

Enters: arguments. Leaves: a call of `cli.pipeline`. Only Typer is imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import guarded
from tocsin.cli.shared import EXIT_CODES, AsJson

app = typer.Typer(
    name="pipeline",
    help="Run a pipeline on Spark: events in, notifications out, each exactly once.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration.")]


@app.command(epilog=EXIT_CODES)
@guarded
def init(config: ConfigFile = Path("pipeline.toml")) -> int:
    """Write a configuration with every key explained."""
    from tocsin.cli import pipeline

    return pipeline.init(config)


@app.command(epilog=EXIT_CODES)
@guarded
def run(
    config: ConfigFile,
    once: Annotated[bool, typer.Option("--once", help="Process all events, then stop.")] = False,
    batches: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of micro-batches.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after this number of seconds.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write a line of JSON for each batch.")
    ] = False,
) -> int:
    """Run a pipeline until it is interrupted or all events are processed."""
    from tocsin.cli import pipeline

    return pipeline.run(config, once, batches, seconds, as_json)


@app.command(epilog=EXIT_CODES)
@guarded
def status(config: ConfigFile, as_json: AsJson = False) -> int:
    """Show whether a pipeline runs, and its totals."""
    from tocsin.cli import pipeline

    return pipeline.show_status(config, as_json)
