"""The commands under `tocsin subscriptions`, and their options.

Enters: arguments. Leaves: a call of `cli.subscriptions`. Only Typer is imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import guarded
from tocsin.cli.shared import EXIT_CODES, AsJson, Dialect, Engine, OnError, Types

app = typer.Typer(
    name="subscriptions",
    help="Change and inspect a subscription store.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)

Store = Annotated[str, typer.Argument(metavar="STORE", help="The store: a folder, or a URL.")]
Integers = Annotated[bool, typer.Option("--integers", help="Ids are integers, not strings.")]
ValidUntil = Annotated[
    str | None,
    typer.Option(
        "--valid-until", metavar="MOMENT", help="When it ends, such as 2030-01-01T12:00Z."
    ),
]
Params = Annotated[
    list[str],
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="A value for :NAME: a literal of the language, or else a string. Repeatable.",
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help=".txt, .jsonl, .csv or .parquet of subscriptions."),
]
QuarantineFile = Annotated[
    Path | None, typer.Option(help="Write the rows set aside to this file, as JSON lines.")
]
OnBadRows = Annotated[
    OnError, typer.Option(help="Stop at bad rows, or set them aside and add the others.")
]


@app.command(epilog=EXIT_CODES)
@guarded
def add(
    store: Store,
    files: Files = None,
    id: Annotated[str | None, typer.Option("--id", help="Add one subscription: its id.")] = None,
    where: Annotated[str | None, typer.Option("--where", help="… and its condition.")] = None,
    dialect: Dialect = "sql",
    params: Params = [],  # noqa: B006 - Typer copies it
    valid_until: ValidUntil = None,
    integers: Integers = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace subscriptions whose ids are taken.")
    ] = False,
    types: Types = [],  # noqa: B006
    on_error: OnBadRows = OnError.RAISE,
    quarantine: QuarantineFile = None,
    as_json: AsJson = False,
) -> int:
    """Add the subscriptions of files, or one. A store that does not exist is created."""
    from tocsin.arguments import to_written
    from tocsin.cli import subscriptions
    from tocsin.errors import ArgumentError

    if id is None and where is None:
        options = subscriptions.FileOptions(
            files or [], types, on_error.value, quarantine, as_json, dialect
        )
        return subscriptions.add_files(store, options, replaces=replace)
    if files or id is None or where is None:
        raise ArgumentError("give files, or one subscription with --id and --where")
    name = subscriptions.to_id(id, integers)
    one = subscriptions.OneOptions(name, to_written(where, dialect), params, valid_until)
    return subscriptions.add_one(store, one, types, as_json, replaces=replace)


@app.command(epilog=EXIT_CODES)
@guarded
def remove(
    store: Store,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids.")] = None,
    file: Annotated[
        Path | None, typer.Option("--ids", help="A file with one id a line, besides.")
    ] = None,
    integers: Integers = False,
    as_json: AsJson = False,
) -> int:
    """Remove subscriptions; where one is unknown, none is removed."""
    from tocsin.cli import subscriptions

    return subscriptions.remove(store, ids or [], file, integers, as_json)


@app.command(epilog=EXIT_CODES)
@guarded
def update(
    store: Store,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id.")],
    where: Annotated[str | None, typer.Option("--where", help="The new condition.")] = None,
    dialect: Dialect = "sql",
    params: Params = [],  # noqa: B006
    valid_until: Annotated[
        str | None,
        typer.Option("--valid-until", metavar="MOMENT", help="The new end; none for no end."),
    ] = None,
    integers: Integers = False,
    as_json: AsJson = False,
) -> int:
    """Change the condition of a subscription, some of its parameters, or its end."""
    from tocsin.arguments import to_written
    from tocsin.cli import subscriptions

    where = to_written(where, dialect)
    return subscriptions.update(store, id, where, params, valid_until, integers, as_json)


@app.command("list", epilog=EXIT_CODES)
@guarded
def list_(
    store: Store,
    limit: Annotated[int | None, typer.Option(min=0, help="List at most this many.")] = None,
    as_json: AsJson = False,
) -> int:
    """List the subscriptions of a store: id, condition, parameters and end."""
    from tocsin.cli import subscriptions

    return subscriptions.list_all(store, limit, as_json)


@app.command(epilog=EXIT_CODES)
@guarded
def export(
    store: Store,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A .jsonl file; by default standard output."),
    ] = None,
) -> int:
    """Write the subscriptions of a store as JSON lines, as `add` and `match` read them."""
    from tocsin.cli import subscriptions

    return subscriptions.export(store, file)


@app.command(epilog=EXIT_CODES)
@guarded
def show(
    store: Store,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id.")],
    integers: Integers = False,
    as_json: AsJson = False,
) -> int:
    """Show one subscription of a store."""
    from tocsin.cli import subscriptions

    return subscriptions.show(store, id, integers, as_json)


@app.command("compile", epilog=EXIT_CODES)
@guarded
def compile_(
    store: Store,
    files: Files = None,
    engine: Engine = "auto",
    types: Types = [],  # noqa: B006
    on_error: OnBadRows = OnError.RAISE,
    quarantine: QuarantineFile = None,
    dialect: Dialect = "sql",
    as_json: AsJson = False,
) -> int:
    """Build an index of the subscriptions of files; it replaces the contents of the store."""
    from tocsin.cli import subscriptions

    options = subscriptions.FileOptions(
        files or [], types, on_error.value, quarantine, as_json, dialect
    )
    return subscriptions.compile_files(store, engine, options)


@app.command(epilog=EXIT_CODES)
@guarded
def stats(
    store: Store,
    version: Annotated[
        int | None, typer.Option(min=1, help="The version; by default the newest.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Describe a version of a store."""
    from tocsin.cli import subscriptions

    return subscriptions.stats(store, version, as_json)


@app.command(epilog=EXIT_CODES)
@guarded
def compact(
    store: Store,
    grace: Annotated[
        float,
        typer.Option(min=0, help="Keep a version for this many seconds after it was replaced."),
    ] = 600.0,
    as_json: AsJson = False,
) -> int:
    """Join all changes into one index, and remove old versions."""
    from tocsin.cli import subscriptions

    return subscriptions.compact(store, grace, as_json)
