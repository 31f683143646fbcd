"""Commands and their options.

Enters: arguments. Leaves: a call of the module that does the work. Only the standard library, Typer
and the names of the engines are imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli import broker_app, demo_app, pipeline_app, subscriptions_app
from tocsin.cli.console import guarded
from tocsin.cli.shared import (
    EXIT_CODES,
    AsJson,
    Baseline,
    Engine,
    EventsOrNone,
    LoadForm,
    Missing,
    OnError,
    PipelineMode,
    Placement,
    Repeats,
    Scenario,
    Seed,
    Subscriptions,
    Types,
    Workload,
)

app = typer.Typer(
    name="tocsin",
    help="Content-based publish/subscribe: which subscriptions does an event match?",
    epilog=EXIT_CODES,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(
    name="bench", help="Measure.", epilog=EXIT_CODES, no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(bench_app)
app.add_typer(subscriptions_app.app)
app.add_typer(pipeline_app.app)
app.add_typer(demo_app.app)
broker_app.register(app, bench_app, EXIT_CODES)
report_app = typer.Typer(
    name="report",
    help="Measure, and write a page.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(report_app)


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


@app.command(epilog=EXIT_CODES)
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


@app.command(epilog=EXIT_CODES)
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


@bench_app.command("parse", epilog=EXIT_CODES)
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


@bench_app.command("match", epilog=EXIT_CODES)
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


@bench_app.command("latency", epilog=EXIT_CODES)
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


@bench_app.command("scale", epilog=EXIT_CODES)
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


@bench_app.command("churn", epilog=EXIT_CODES)
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


@bench_app.command("recovery", epilog=EXIT_CODES)
@guarded
def bench_recovery(
    kills: Annotated[int, typer.Option(min=0, help="How many processes to kill.")] = 30,
    events: Annotated[int, typer.Option(min=1, help="Events in a file.")] = 300,
    subscriptions: Subscriptions = 2_000,
    mode: Annotated[PipelineMode, typer.Option(help="What it tells of.")] = PipelineMode.MATCHES,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Kill a running pipeline again and again, then hold its output against a recomputation."""
    from tocsin.bench.recovery import Recovery
    from tocsin.cli.bench import run_recovery

    return run_recovery(Recovery(kills, events, subscriptions, seed, mode=mode.value), as_json)


@bench_app.command("update", epilog=EXIT_CODES)
@guarded
def bench_update(
    subscriptions: Subscriptions = 100_000,
    updates: Annotated[int, typer.Option(min=1, help="How many updates.")] = 200,
    engine: Engine = "auto",
    workload: Annotated[str, typer.Option(help="M or H, which have parameters.")] = "M",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Time parametric updates against unsubscribing and subscribing again."""
    from tocsin.cli.bench import run_update

    return run_update(subscriptions, updates, engine, workload, seed, as_json)


@bench_app.command("calibrate", epilog=EXIT_CODES)
@guarded
def bench_calibrate(repeats: Repeats = 20, as_json: AsJson = False) -> int:
    """Measure the cost constants of the planner on this machine, beside those in use."""
    from tocsin.cli.bench import run_calibrate

    return run_calibrate(repeats, as_json)


@bench_app.command("subjects", epilog=EXIT_CODES)
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


@bench_app.command("adapt", epilog=EXIT_CODES)
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


@bench_app.command("spark", epilog=EXIT_CODES)
@guarded
def bench_spark(
    subscriptions: Subscriptions = 1_000_000,
    events: Annotated[
        int | None, typer.Option(min=1, help="How many events: 1,000,000, or 1,000 in parts.")
    ] = None,
    placement: Annotated[
        Placement,
        typer.Option(help="partitioned: on a cluster of two workers, held against replicated."),
    ] = Placement.REPLICATED,
    parts: Annotated[int, typer.Option(min=1, help="Into how many parts.")] = 4,
    join_events: Annotated[int, typer.Option(min=1, help="How many of them are joined.")] = 50_000,
    memory_mb: Annotated[
        int, typer.Option(min=0, help="Size of the index for the memory of workers; 0: none.")
    ] = 500,
    seed: Seed = 0,
    repeats: Repeats = 3,
    as_json: AsJson = False,
) -> int:
    """Measure the processor time of a match on Spark, of moving the events, and of a join."""
    from tocsin.bench.spark import SparkSetting
    from tocsin.cli.bench import run_placements, run_spark

    if placement is Placement.PARTITIONED:
        return run_placements(subscriptions, events or 1_000, parts, seed, as_json)
    n = events or 1_000_000
    return run_spark(
        SparkSetting(subscriptions, n, join_events, memory_mb, seed=seed, repeats=repeats),
        as_json,
    )


@bench_app.command("transitions", epilog=EXIT_CODES)
@guarded
def bench_transitions(
    publications: Annotated[int, typer.Option(min=1, help="How many publications.")] = 100_000,
    subscriptions: Subscriptions = 100_000,
    batch: Annotated[int, typer.Option(min=1, help="Updates in a micro-batch.")] = 200_000,
    batches: Annotated[int, typer.Option(min=1, help="How many micro-batches.")] = 9,
    warm_up: Annotated[
        int, typer.Option(min=0, help="How many micro-batches come before, unmeasured.")
    ] = 24,
    baseline: Annotated[int, typer.Option(min=0, help="Updates for the baseline.")] = 10_000,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Measure what an update of a publication costs on Spark, against one key a group."""
    from tocsin.bench.transitions import TransitionsSetting
    from tocsin.cli.bench import run_transitions

    setting = TransitionsSetting(
        publications, subscriptions, batch, batches, baseline, seed=seed, warm_up=warm_up
    )
    return run_transitions(setting, as_json)


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
        str | None, typer.Option(help="Only this paper, by its number: 000, 001, 003 or 004.")
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help="Subscriptions that stand for the papers' six million; by default as many as "
            "memory allows.",
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Measure what the papers plotted, and write a page with the plots and tables beside it."""
    from tocsin.cli.report import run_papers

    return run_papers(out, quick, paper, largest, seed, as_json)
