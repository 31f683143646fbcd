"""The commands of the laboratory: `tocsin bench` and `tocsin report`.

Enters: arguments. Leaves: a call of the module that does the work. Only the standard library and
Typer are imported here, so that `tocsin --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import guarded
from tocsin.cli.shared import EXIT_CODES, AsJson, Engine, Seed
from tocsin_lab.cli.options import (
    Baseline,
    EventsOrNone,
    LoadForm,
    Missing,
    PipelineMode,
    Placement,
    Repeats,
    Scenario,
    Subscriptions,
    Workload,
)

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


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(bench_app)
    app.add_typer(report_app)


@bench_app.command("parse", epilog=EXIT_CODES)
@guarded
def bench_parse(
    subscriptions: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1_000_000,
    seed: Seed = 0,
    repeats: Repeats = 3,
    as_json: AsJson = False,
) -> int:
    """Time how subscriptions become normal forms: texts, templates and rows."""
    from tocsin_lab.cli.bench import run_parse

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
    from tocsin_lab.bench.load import Setting
    from tocsin_lab.cli.bench import run_match

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
    from tocsin_lab.cli.bench import run_latency

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
    from tocsin_lab.bench.load import Setting
    from tocsin_lab.cli.bench import run_scale

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
    from tocsin_lab.bench.churn import Churn
    from tocsin_lab.cli.bench import run_churn

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
    from tocsin_lab.bench.recovery import Recovery
    from tocsin_lab.cli.bench import run_recovery

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
    from tocsin_lab.cli.bench import run_update

    return run_update(subscriptions, updates, engine, workload, seed, as_json)


@bench_app.command("calibrate", epilog=EXIT_CODES)
@guarded
def bench_calibrate(repeats: Repeats = 20, as_json: AsJson = False) -> int:
    """Measure the cost constants of the planner on this machine, beside those in use."""
    from tocsin_lab.cli.bench import run_calibrate

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
    from tocsin_lab.bench.subjects import Setting
    from tocsin_lab.cli.bench import run_subjects, to_numbers

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
    from tocsin_lab.bench.adapt import Adapt
    from tocsin_lab.cli.bench import run_adapt

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
    from tocsin_lab.bench.spark import SparkSetting
    from tocsin_lab.cli.bench import run_placements, run_spark

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
    from tocsin_lab.bench.transitions import TransitionsSetting
    from tocsin_lab.cli.bench import run_transitions

    setting = TransitionsSetting(
        publications, subscriptions, batch, batches, baseline, seed=seed, warm_up=warm_up
    )
    return run_transitions(setting, as_json)


@bench_app.command("broker", epilog=EXIT_CODES)
@guarded
def bench_broker(
    subscriptions: Annotated[int, typer.Option(min=1, help="How many subscriptions.")] = 100_000,
    subscribers: Annotated[int, typer.Option(min=1, help="How many connections listen.")] = 100,
    publishers: Annotated[int, typer.Option(min=1, help="How many connections publish.")] = 4,
    rate: Annotated[int, typer.Option(min=1, help="Events a second, at full load.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each load lasts.")] = 10,
    batch: Annotated[
        int, typer.Option(min=1, help="Events in a request, or between receipts.")
    ] = 50,
    protocol: Annotated[str, typer.Option(help="http or stomp.")] = "http",
    seed: Annotated[int, typer.Option(min=0, help="The seed of the events.")] = 0,
    soak: Annotated[float, typer.Option(min=0, help="Go on at half load for so many seconds.")] = 0,
    beside: Annotated[
        str | None,
        typer.Option(
            help="activemq: STOMP with 5,000 selectors, beside an ActiveMQ that is installed."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Load a broker with events and notifications, at full and at half rate."""
    from tocsin.errors import ArgumentError
    from tocsin_lab.bench.beside import Beside
    from tocsin_lab.bench.broker import Load
    from tocsin_lab.cli.bench import run_beside, run_broker

    if beside is not None:
        if beside != "activemq":
            raise ArgumentError(f"beside is activemq, not {beside!r}")
        return run_beside(
            Beside(publishers=publishers, batch=batch, seconds=seconds, seed=seed), as_json
        )
    load = Load(subscriptions, subscribers, publishers, rate, seconds, batch, protocol, seed, soak)
    return run_broker(load, as_json)


@bench_app.command("overlay", epilog=EXIT_CODES)
@guarded
def bench_overlay(
    workload: Annotated[str, typer.Option(help="trading or highway.")] = "trading",
    subscribers: Annotated[int, typer.Option(min=1, help="How many subscribers.")] = 1_000,
    edges: Annotated[int, typer.Option(min=1, help="Brokers that they are with.")] = 10,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 2_000,
    updates: Annotated[float, typer.Option(min=0, help="Updates for each event.")] = 0.5,
    rate: Annotated[float, typer.Option(min=1, help="Events a second.")] = 1_000,
    placement: Annotated[
        str, typer.Option(help="home: with the edge of their firm or road; spread: anywhere.")
    ] = "home",
    vary_subscribers: Annotated[str, typer.Option(help="Others to try: N,N,…")] = "",
    vary_updates: Annotated[str, typer.Option(help="Others to try: N,N,… (hundredths).")] = "",
    variants: Annotated[
        str,
        typer.Option(help="Of lub, disjunction, exact, resubscribe, flooding, coded, coded-exact."),
    ] = "lub,disjunction,exact,resubscribe,flooding,coded,coded-exact",
    levels: Annotated[int, typer.Option(min=1, help="Levels where ranges are coded.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="The best of so many counts.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="The seed.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Load a simulated network of brokers, and the same without its parts."""
    from tocsin_lab.bench.overlay import Setting
    from tocsin_lab.cli.bench import run_overlay, to_numbers

    setting = Setting(workload, subscribers, edges, events, updates, rate, placement, seed, levels)
    others = to_numbers(vary_subscribers, "--vary-subscribers")
    hundredths = to_numbers(vary_updates, "--vary-updates")
    rates = [each / 100 for each in hundredths]
    return run_overlay(setting, variants.split(","), others, rates, repeats, as_json)


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
    from tocsin_lab.cli.report import run_papers

    return run_papers(out, quick, paper, largest, seed, as_json)
