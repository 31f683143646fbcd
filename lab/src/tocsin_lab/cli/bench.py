"""`tocsin bench`: runs a benchmark with a progress bar and prints its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from tocsin.cli.console import BAD_ROWS, OK, Progress
from tocsin.errors import ArgumentError

if TYPE_CHECKING:
    from tocsin_lab.bench.adapt import Adapt
    from tocsin_lab.bench.beside import Beside
    from tocsin_lab.bench.broker import Load
    from tocsin_lab.bench.churn import Churn
    from tocsin_lab.bench.load import Setting
    from tocsin_lab.bench.overlay import Setting as Overlay
    from tocsin_lab.bench.recovery import Recovery
    from tocsin_lab.bench.spark import SparkSetting
    from tocsin_lab.bench.subjects import Setting as Subjects
    from tocsin_lab.bench.transitions import TransitionsSetting

Show = Callable[[str, int, int], None]
Result = dict[str, Any]


def run_parse(subscriptions: int, seed: int, repeats: int, as_json: bool) -> int:
    """Time how subscriptions become normal forms."""
    from tocsin_lab.bench import parse

    return measured(
        lambda show: parse.run(subscriptions, seed, repeats, progress=show), parse.render, as_json
    )


def run_match(setting: Setting, as_json: bool) -> int:
    """Time how many events a second are matched, against a baseline."""
    from tocsin_lab.bench import match

    return measured(lambda show: match.run(setting, progress=show), match.render, as_json)


def run_latency(
    workload: str, subscriptions: int, events: int, engine: str, seed: int, as_json: bool
) -> int:
    """Time single events."""
    from tocsin_lab.bench import latency

    return measured(
        lambda show: latency.run(workload, subscriptions, events, engine, seed, progress=show),
        latency.render,
        as_json,
    )


def run_scale(setting: Setting, numbers: str, as_json: bool) -> int:
    """Time matching with several numbers of subscriptions."""
    from tocsin_lab.bench import scale

    try:
        sizes = [int(number) for number in numbers.split(",")]
    except ValueError:
        raise ArgumentError(
            f"--subscriptions takes numbers with commas between them, not {numbers!r}"
        ) from None
    return measured(lambda show: scale.run(setting, sizes, progress=show), scale.render, as_json)


def run_churn(setting: Churn, as_json: bool) -> int:
    """Time matching while subscriptions come and go."""
    from tocsin_lab.bench import churn

    return measured(lambda show: churn.run(setting, progress=show), churn.render, as_json)


def run_adapt(setting: Adapt, as_json: bool) -> int:
    """Time matching through a change."""
    from tocsin_lab.bench import adapt

    return measured(lambda show: adapt.run(setting, progress=show), adapt.render, as_json)


def run_recovery(setting: Recovery, as_json: bool) -> int:
    """Kill a pipeline again and again; an exit code of 1 says that its output is wrong."""
    from tocsin_lab.bench import recovery

    found: list[Result] = []

    def measure(show: Show) -> Result:
        found.append(recovery.run(setting, progress=show))
        return found[0]

    measured(measure, recovery.render, as_json)
    return OK if found[0]["verified"] else BAD_ROWS


def run_update(
    subscriptions: int, updates: int, engine: str, name: str, seed: int, as_json: bool
) -> int:
    """Time parametric updates against new subscriptions."""
    from tocsin_lab.bench import update

    return measured(
        lambda show: update.run(subscriptions, updates, engine, seed, show, name=name),
        update.render,
        as_json,
    )


def run_subjects(setting: Subjects, as_json: bool) -> int:
    """Time inserts and updates of publications."""
    from tocsin_lab.bench import subjects

    return measured(lambda show: subjects.run(setting, progress=show), subjects.render, as_json)


def to_numbers(given: str, option: str) -> list[int]:
    """Return the numbers of an option, which stand between commas; there may be none."""
    try:
        return [int(number) for number in given.split(",") if number.strip()]
    except ValueError:
        raise ArgumentError(
            f"{option} takes numbers with commas between them, not {given!r}"
        ) from None


def run_calibrate(repeats: int, as_json: bool) -> int:
    """Measure the planner's cost constants."""
    from tocsin_lab.bench import calibrate

    return measured(lambda show: calibrate.run(repeats, progress=show), calibrate.render, as_json)


def run_spark(setting: SparkSetting, as_json: bool) -> int:
    """Measure what matching costs on Spark."""
    try:
        from tocsin_lab.bench import spark
    except ModuleNotFoundError as error:
        raise ArgumentError(f"this needs tocsin[spark]: {error}") from None

    return measured(lambda show: spark.run(setting, progress=show), spark.render, as_json)


def run_placements(subscriptions: int, events: int, parts: int, seed: int, as_json: bool) -> int:
    """Hold partitioned matching on a cluster against replicated; exit with 1 if they differ."""
    try:
        from tocsin_lab.bench import placements
    except ModuleNotFoundError as error:
        raise ArgumentError(f"this needs tocsin[spark]: {error}") from None

    setting = placements.PlacementSetting(subscriptions, events, parts, seed=seed)
    found: list[Result] = []

    def measure(show: Show) -> Result:
        found.append(placements.run(setting, progress=show))
        return found[0]

    measured(measure, placements.render, as_json)
    return OK if found[0]["same"] else BAD_ROWS


def run_transitions(setting: TransitionsSetting, as_json: bool) -> int:
    """Measure what an update of a publication costs on Spark."""
    try:
        from tocsin_lab.bench import transitions
    except ModuleNotFoundError as error:
        raise ArgumentError(f"this needs tocsin[spark]: {error}") from None

    return measured(
        lambda show: transitions.run(setting, progress=show), transitions.render, as_json
    )


def run_broker(load: Load, as_json: bool) -> int:
    """Load a broker."""
    from tocsin_lab.bench import broker

    return measured(lambda show: broker.run(load, progress=show), broker.render, as_json)


def run_beside(load: Beside, as_json: bool) -> int:
    """Load a broker and another one."""
    from tocsin_lab.bench import beside

    return measured(lambda show: beside.run(load, progress=show), beside.render, as_json)


def run_overlay(
    setting: Overlay,
    variants: list[str],
    subscribers: list[int],
    updates: list[float],
    repeats: int,
    as_json: bool,
) -> int:
    """Load a simulated network of brokers."""
    from tocsin_lab.bench import overlay

    return measured(
        lambda show: overlay.run(setting, variants, subscribers, updates, repeats, progress=show),
        overlay.render,
        as_json,
    )


def measured(
    measure: Callable[[Show], Result], render: Callable[[Mapping[str, Any]], str], as_json: bool
) -> int:
    """Measure with a progress bar, and print the figures."""
    with Progress() as progress:

        def show(label: str, done: int, total: int) -> None:
            progress.show("measuring", done, total, label)

        result = measure(show)
    typer.echo(json.dumps(result) if as_json else render(result))
    return OK
