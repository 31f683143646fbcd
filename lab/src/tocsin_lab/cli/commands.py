"""Commands of benchmarks: a frozen dataclass of settings → options, a run, and its figures.

A field is an option of the same name: a `tuple` is written with commas, a field with `choices`
takes one of them, and a field without a help text is no option (see `bench.settings`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from enum import StrEnum
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from tocsin.cli.console import BAD_ROWS, OK, Progress
from tocsin.cli.shared import AsJson
from tocsin.errors import ArgumentError

Show = Callable[[str, int, int], None]
Result = dict[str, Any]


def command_of(name: str, setting: type) -> Callable[..., int]:
    """Return the command that runs a benchmark with a setting made of its options."""
    types = get_type_hints(setting)
    options = [f for f in fields(setting) if "help" in f.metadata]

    def command(**values: Any) -> int:
        as_json = values.pop("as_json")
        chosen = setting(**{f.name: _read(f, types[f.name], values[f.name]) for f in options})
        module = import_module(f"tocsin_lab.bench.{name}")
        return measured(lambda show: module.run(chosen, progress=show), module.render, as_json)

    parameters = [_parameter(f, types[f.name]) for f in options]
    parameters.append(
        Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    )
    command.__name__ = f"bench {name}"
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameter(f: Field[Any], kind: Any) -> Parameter:
    """Return the option of a field, as Typer reads it."""
    metavar, default, choices = None, f.default, f.metadata["choices"]
    if choices:
        kind = _choice_of(f.name, choices)
        default = kind(default)
    elif get_origin(kind) is tuple:
        metavar = "N,N,..." if get_args(kind)[0] is int else "NAME,NAME,..."
        kind, default = str, ",".join(map(str, f.default))  # type: ignore[arg-type]
    option = typer.Option(help=f.metadata["help"], min=f.metadata["least"], metavar=metavar)
    return Parameter(
        f.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _choice_of(name: str, choices: Iterable[str]) -> Any:
    make: Any = StrEnum
    return make(name, {choice: choice for choice in choices})


def _read(f: Field[Any], kind: Any, value: Any) -> Any:
    """Return the value of a field from that of its option."""
    if f.metadata["choices"]:
        return str(value)
    if get_origin(kind) is not tuple:
        return value
    parts = [part.strip() for part in value.split(",")] if value.strip() else []
    try:
        return tuple(map(get_args(kind)[0], parts))
    except ValueError:
        option = f"--{f.name.replace('_', '-')}"
        raise ArgumentError(
            f"{option} takes numbers with commas between them, not {value!r}"
        ) from None


def measured(
    measure: Callable[[Show], Result], render: Callable[[Mapping[str, Any]], str], as_json: bool
) -> int:
    """Measure with a progress bar, and print the figures.

    Returns BAD_ROWS where a benchmark that compares outputs found them wrong (`verified`, `same`).
    """
    with Progress() as progress:

        def show(label: str, done: int, total: int) -> None:
            progress.show("measuring", done, total, label)

        result = measure(show)
    typer.echo(json.dumps(result) if as_json else render(result))
    is_right = result.get("verified", True) and result.get("same", True)
    return OK if is_right else BAD_ROWS
