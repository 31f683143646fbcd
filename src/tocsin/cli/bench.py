"""`tocsin bench`: runs a benchmark with a progress bar and prints its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from tocsin.cli.console import OK, Progress
from tocsin.errors import ArgumentError

if TYPE_CHECKING:
    from tocsin.bench.adapt import Adapt
    from tocsin.bench.churn import Churn
    from tocsin.bench.load import Setting
    from tocsin.bench.subjects import Setting as Subjects

Show = Callable[[str, int, int], None]
Result = dict[str, Any]


def run_parse(subscriptions: int, seed: int, repeats: int, as_json: bool) -> int:
    """Time how subscriptions become normal forms."""
    from tocsin.bench import parse

    return _run(
        lambda show: parse.run(subscriptions, seed, repeats, progress=show), parse.render, as_json
    )


def run_match(setting: Setting, as_json: bool) -> int:
    """Time how many events a second are matched, against a baseline."""
    from tocsin.bench import match

    return _run(lambda show: match.run(setting, progress=show), match.render, as_json)


def run_latency(
    workload: str, subscriptions: int, events: int, engine: str, seed: int, as_json: bool
) -> int:
    """Time single events."""
    from tocsin.bench import latency

    return _run(
        lambda show: latency.run(workload, subscriptions, events, engine, seed, progress=show),
        latency.render,
        as_json,
    )


def run_scale(setting: Setting, numbers: str, as_json: bool) -> int:
    """Time matching with several numbers of subscriptions."""
    from tocsin.bench import scale

    try:
        sizes = [int(number) for number in numbers.split(",")]
    except ValueError:
        raise ArgumentError(
            f"--subscriptions takes numbers with commas between them, not {numbers!r}"
        ) from None
    return _run(lambda show: scale.run(setting, sizes, progress=show), scale.render, as_json)


def run_churn(setting: Churn, as_json: bool) -> int:
    """Time matching while subscriptions come and go."""
    from tocsin.bench import churn

    return _run(lambda show: churn.run(setting, progress=show), churn.render, as_json)


def run_adapt(setting: Adapt, as_json: bool) -> int:
    """Time matching through a change."""
    from tocsin.bench import adapt

    return _run(lambda show: adapt.run(setting, progress=show), adapt.render, as_json)


def run_subjects(setting: Subjects, as_json: bool) -> int:
    """Time inserts and updates of publications."""
    from tocsin.bench import subjects

    return _run(lambda show: subjects.run(setting, progress=show), subjects.render, as_json)


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
    from tocsin.bench import calibrate

    return _run(lambda show: calibrate.run(repeats, progress=show), calibrate.render, as_json)


def _run(
    measure: Callable[[Show], Result], render: Callable[[Mapping[str, Any]], str], as_json: bool
) -> int:
    with Progress() as progress:

        def show(label: str, done: int, total: int) -> None:
            progress.show("measuring", done, total, label)

        result = measure(show)
    typer.echo(json.dumps(result) if as_json else render(result))
    return OK
