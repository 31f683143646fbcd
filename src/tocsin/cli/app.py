"""Commands and their options.

Enters: arguments. Leaves: a call of the module that does the work. Only the standard library, Typer
and the names of the engines are imported here.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import guarded
from tocsin.engines import names

_EXIT_CODES = (
    "Exit codes: 0 success; 1 finished, but bad rows were set aside; "
    "2 bad input or usage; 130 interrupted."
)

app = typer.Typer(
    name="tocsin",
    help="Content-based publish/subscribe: which subscriptions does an event match?",
    epilog=_EXIT_CODES,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(
    name="bench", help="Measure.", epilog=_EXIT_CODES, no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(bench_app)


class OnError(StrEnum):
    """What to do with bad rows."""

    RAISE = "raise"
    QUARANTINE = "quarantine"


class Baseline(StrEnum):
    """What to compare with."""

    DUCKDB = "duckdb"
    NONE = "none"


class Scenario(StrEnum):
    """What changes."""

    INTERESTS = "interests"
    SKEW = "skew"


class Missing(StrEnum):
    """What a missing attribute is."""

    ABSENT = "absent"
    ANY = "any"


class DemoName(StrEnum):
    """What is shown."""

    MARKET = "market"
    FLEET = "fleet"


class LoadForm(StrEnum):
    """The form in which subscriptions are loaded."""

    ROWS = "rows"
    TEXTS = "texts"


AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
Types = Annotated[
    list[str],
    typer.Option(
        "--type",
        metavar="NAME=KIND",
        help="Declare an attribute: integer, float, string, boolean or timestamp. Repeatable.",
    ),
]
Engine = Annotated[str, typer.Option(help=f"The matching algorithm: {', '.join(names())}.")]
Seed = Annotated[int, typer.Option(min=0, help="The seed of the generated data.")]
Workload = Annotated[str, typer.Option(help="W0, W1, W2, T, TW, M or G.")]
Subscriptions = Annotated[int, typer.Option(min=1, help="How many subscriptions.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often each is timed.")]
EventsOrNone = Annotated[
    int | None, typer.Option(min=1, help="How many events; by default as suits the workload.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        import tocsin

        typer.echo(f"tocsin {tocsin.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command(epilog=_EXIT_CODES)
@guarded
def check(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Conditions.")],
    types: Types = [],  # noqa: B006 - Typer copies it
    params: Annotated[
        list[str],
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="A value for :NAME: a literal of the language, or else a string. Repeatable.",
        ),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> int:
    """Show how conditions are read, their normal form, and what looks wrong with them."""
    from tocsin.cli.check import check as run

    return run(texts, types, params, as_json)


@app.command(epilog=_EXIT_CODES)
@guarded
def match(
    subscriptions: Annotated[
        Path,
        typer.Option(
            "--subscriptions",
            "-s",
            help=".txt (a condition a line), .jsonl, .csv or .parquet (id, where).",
        ),
    ],
    events: Annotated[
        Path, typer.Option("--events", "-e", help=".jsonl, .csv (also .gz) or .parquet.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help=".jsonl, .csv or .parquet; without it, standard output."),
    ] = None,
    engine: Engine = "auto",
    types: Types = [],  # noqa: B006
    on_error: Annotated[
        OnError, typer.Option(help="Stop at bad rows, or set them aside and go on.")
    ] = OnError.RAISE,
    quarantine: Annotated[
        Path | None,
        typer.Option(help="Write the rows set aside to this file, as JSON lines."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Match a file of events against a file of subscriptions."""
    from tocsin.cli.match import MatchOptions, run

    return run(
        MatchOptions(
            subscriptions, events, out, engine, tuple(types), on_error.value, quarantine, as_json
        )
    )


@app.command(epilog=_EXIT_CODES)
@guarded
def demo(
    name: Annotated[
        DemoName, typer.Argument(help="market: quotes and watchers; fleet: vehicles and zones.")
    ] = DemoName.MARKET,
    subscriptions: Annotated[int, typer.Option(min=1, help="How many subscriptions.")] = 100_000,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 30_000,
    seed: Seed = 0,
    engine: Engine = "auto",
    vehicles: Annotated[int, typer.Option(min=1, help="fleet: how many vehicles.")] = 300,
    steps: Annotated[int, typer.Option(min=1, help="fleet: how many moves of each.")] = 120,
    picture: Annotated[
        Path | None, typer.Option(help="fleet: write the picture at the end to this SVG file.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show what it does: a market whose quotes people watch, or a fleet that crosses zones."""
    if name is DemoName.FLEET:
        from tocsin.cli.fleet import run as run_fleet

        return run_fleet(vehicles, steps, seed, picture, as_json)
    from tocsin.cli.demo import run

    return run(subscriptions, events, seed, engine, as_json)


@bench_app.command("parse", epilog=_EXIT_CODES)
@guarded
def bench_parse(
    subscriptions: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1_000_000,
    seed: Seed = 0,
    repeats: Repeats = 3,
    as_json: AsJson = False,
) -> int:
    """Time how subscriptions become normal forms: texts, templates and rows."""
    from tocsin.cli.bench import run_parse

    return run_parse(subscriptions, seed, repeats, as_json)


@bench_app.command("match", epilog=_EXIT_CODES)
@guarded
def bench_match(
    workload: Workload = "W0",
    subscriptions: Subscriptions = 100_000,
    events: EventsOrNone = None,
    engine: Engine = "auto",
    baseline: Annotated[Baseline, typer.Option(help="What to compare with.")] = Baseline.DUCKDB,
    threads: Annotated[int, typer.Option(min=1, help="Threads, each with a part of a batch.")] = 1,
    load: Annotated[LoadForm, typer.Option(help="The form of the load.")] = LoadForm.ROWS,
    seed: Seed = 0,
    repeats: Repeats = 3,
    as_json: AsJson = False,
) -> int:
    """Time how many events a second are matched, against joins in DuckDB."""
    from tocsin.bench.load import Setting
    from tocsin.cli.bench import run_match

    setting = Setting(
        workload=workload,
        subscriptions=subscriptions,
        events=events,
        engine=engine,
        baseline=baseline.value,
        threads=threads,
        seed=seed,
        repeats=repeats,
        load=load.value,
    )
    return run_match(setting, as_json)


@bench_app.command("latency", epilog=_EXIT_CODES)
@guarded
def bench_latency(
    workload: Workload = "W0",
    subscriptions: Subscriptions = 100_000,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 20_000,
    engine: Engine = "auto",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Time single events: a mapping in, ids out."""
    from tocsin.cli.bench import run_latency

    return run_latency(workload, subscriptions, events, engine, seed, as_json)


@bench_app.command("scale", epilog=_EXIT_CODES)
@guarded
def bench_scale(
    workload: Workload = "W0",
    subscriptions: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of subscriptions.")
    ] = "100000,1000000,6000000",
    events: EventsOrNone = None,
    engine: Engine = "auto",
    baseline: Annotated[Baseline, typer.Option(help="What to compare with.")] = Baseline.NONE,
    seed: Seed = 0,
    repeats: Repeats = 3,
    as_json: AsJson = False,
) -> int:
    """Time matching with more and more subscriptions, each number in a process of its own."""
    from tocsin.bench.load import Setting
    from tocsin.cli.bench import run_scale

    setting = Setting(
        workload=workload,
        events=events,
        engine=engine,
        baseline=baseline.value,
        seed=seed,
        repeats=repeats,
    )
    return run_scale(setting, subscriptions, as_json)


@bench_app.command("churn", epilog=_EXIT_CODES)
@guarded
def bench_churn(
    workload: Workload = "W0",
    subscriptions: Subscriptions = 100_000,
    rate: Annotated[int, typer.Option(min=1, help="How many changes a second.")] = 1000,
    seconds: Annotated[float, typer.Option(min=0.01, help="For how long.")] = 60,
    batch: Annotated[int, typer.Option(min=1, help="Events in a batch.")] = 10_000,
    chunk: Annotated[
        int,
        typer.Option(min=1, help="Changes in a call; from 2 on by the calls that take many."),
    ] = 1,
    engine: Engine = "auto",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Time matching while a second thread subscribes and unsubscribes, half and half."""
    from tocsin.bench.churn import Churn
    from tocsin.cli.bench import run_churn

    return run_churn(
        Churn(workload, subscriptions, rate, seconds, batch, chunk, engine, seed), as_json
    )


@bench_app.command("calibrate", epilog=_EXIT_CODES)
@guarded
def bench_calibrate(repeats: Repeats = 20, as_json: AsJson = False) -> int:
    """Measure the cost constants of the planner on this machine, beside those in use."""
    from tocsin.cli.bench import run_calibrate

    return run_calibrate(repeats, as_json)


@bench_app.command("subjects", epilog=_EXIT_CODES)
@guarded
def bench_subjects(
    publications: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of publications.")
    ] = "10,100,1000,10000,100000",
    subscriptions: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of subscriptions.")
    ] = "10,100,1000,10000,100000",
    scale: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Numbers of subscriptions for the curve with as many bounds crossed.",
        ),
    ] = "10000,100000,1000000",
    missing: Annotated[
        Missing,
        typer.Option(help="What an attribute is that a publication lacks; in the paper, any."),
    ] = Missing.ABSENT,
    plots: Annotated[
        Path | None, typer.Option(help="Write the paper's figures into this folder, as SVG.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Time inserts and updates of publications that stay, after Leung and Jacobsen."""
    from tocsin.bench.subjects import Setting
    from tocsin.cli.bench import run_subjects, to_numbers

    setting = Setting(
        publications=to_numbers(publications, "--publications"),
        subscriptions=to_numbers(subscriptions, "--subscriptions"),
        scale=to_numbers(scale, "--scale"),
        missing=missing.value,
        seed=seed,
        plots=None if plots is None else str(plots),
    )
    return run_subjects(setting, as_json)


@bench_app.command("adapt", epilog=_EXIT_CODES)
@guarded
def bench_adapt(
    scenario: Annotated[
        Scenario,
        typer.Option(
            help="interests: subscriptions turn to other attributes; "
            "skew: an attribute that all test comes to have two values."
        ),
    ] = Scenario.INTERESTS,
    subscriptions: Subscriptions = 100_000,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 200_000,
    parts: Annotated[
        int, typer.Option(min=1, help="In how many parts subscriptions are replaced.")
    ] = 8,
    engine: Engine = "auto",
    seed: Seed = 0,
    repeats: Repeats = 3,
    as_json: AsJson = False,
) -> int:
    """Time matching before, during and after a change of what is asked for or published."""
    from tocsin.bench.adapt import Adapt
    from tocsin.cli.bench import run_adapt

    return run_adapt(
        Adapt(scenario.value, subscriptions, events, parts, engine, seed, repeats), as_json
    )
