"""The commands of the laboratory: `tocsin bench` and `tocsin report`.

Enters: arguments. Leaves: a call of the module that does the work. The benchmarks' commands are
generated from their settings. A benchmark is imported when its command runs, so that
`tocsin --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import guarded
from tocsin.cli.shared import EXIT_CODES, AsJson, Seed
from tocsin_lab.bench import settings
from tocsin_lab.cli.commands import command_of

bench_app = typer.Typer(
    name="bench", help="Measure.", epilog=EXIT_CODES, no_args_is_help=True, rich_markup_mode=None
)
report_app = typer.Typer(
    name="report",
    help="Measure, and write a page.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)

BENCHMARKS: dict[str, type] = {
    "parse": settings.ParseSetting,
    "match": settings.MatchSetting,
    "patterns": settings.PatternsSetting,
    "latency": settings.LatencySetting,
    "scale": settings.ScaleSetting,
    "churn": settings.ChurnSetting,
    "recovery": settings.RecoverySetting,
    "update": settings.UpdateSetting,
    "calibrate": settings.CalibrateSetting,
    "subjects": settings.SubjectsSetting,
    "adapt": settings.AdaptSetting,
    "spark": settings.SparkSetting,
    "transitions": settings.TransitionsSetting,
    "broker": settings.BrokerSetting,
    "overlay": settings.OverlaySetting,
}
"""The setting of each benchmark; the module of the same name has `run(setting)` and `render`."""

for _name, _setting in BENCHMARKS.items():
    bench_app.command(_name, help=_setting.__doc__, epilog=EXIT_CODES)(
        guarded(command_of(_name, _setting))
    )


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(bench_app)
    app.add_typer(report_app)


@report_app.callback()
def _report() -> None:
    pass


@report_app.command("papers", epilog=EXIT_CODES)
@guarded
def report_papers(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("report"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few subscriptions, to see that everything runs.")
    ] = False,
    paper: Annotated[
        str | None,
        typer.Option(
            help="Only this paper: aguilera-1999, fabret-2000, zhao-2011 or jayaram-2015."
        ),
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help="Subscriptions in place of the papers' six million; by default as many as "
            "memory allows.",
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Measure what the papers plotted; write a page with the plots, and tables as CSV files."""
    from tocsin_lab.cli.report import run_papers

    return run_papers(out, quick, paper, largest, seed, as_json)
