"""`tocsin match` and its options.

Enters: arguments. Leaves: a call of `cli.match`. Only Typer is imported here.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import guarded
from tocsin.cli.shared import EXIT_CODES, AsJson, Dialect, Engine, OnError, Types


class Format(StrEnum):
    """The formats of events."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"


class OutFormat(StrEnum):
    """The formats of matches."""

    TEXT = "text"
    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"


Events = Annotated[
    list[str],
    typer.Option(
        "--events",
        "-e",
        metavar="FILE",
        help=".jsonl, .csv, .tsv (also .gz) or .parquet; a pattern; - for standard input. "
        "Repeatable.",
    ),
]
Subscriptions = Annotated[
    str | None,
    typer.Option(
        "--subscriptions",
        "-s",
        metavar="FILE|STORE",
        help=".txt (a condition a line), .jsonl, .csv or .parquet (id, where); or a store.",
    ),
]
Store = Annotated[
    str | None, typer.Option("--store", help="A subscription store: a folder or a URL.")
]
Conditions = Annotated[
    list[str],
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="A condition, in place of a file; the first has id 1. Repeatable.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help=".jsonl, .csv, .tsv or .parquet; without it, or with -, standard output.",
    ),
]
Keep = Annotated[
    list[str],
    typer.Option(
        "--keep",
        "-k",
        metavar="ATTRIBUTE",
        help="Write this attribute of the event with each match. Repeatable, or with commas.",
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter", "-d", help="What separates fields: a character, tab, semicolon or bar."
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether CSV files have one; without it columns are c1, c2 … [default: found out]",
        show_default=False,
    ),
]
Nulls = Annotated[
    list[str],
    typer.Option("--null", metavar="TEXT", help="A field that means absent. Repeatable."),
]
FromFormat = Annotated[
    Format | None, typer.Option("--from", help="The format of the events, whatever the name.")
]
ToFormat = Annotated[
    OutFormat | None, typer.Option("--to", help="The format of the matches, whatever the name.")
]
OnBadRows = Annotated[OnError, typer.Option(help="Stop at bad rows, or set them aside and go on.")]
QuarantineFile = Annotated[
    Path | None, typer.Option(help="Write the rows set aside to this file, as JSON lines.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not say what files were taken for.")]


@guarded
def match(
    events: Events,
    subscriptions: Subscriptions = None,
    store: Store = None,
    conditions: Conditions = [],  # noqa: B006 - Typer copies it
    dialect: Dialect = "sql",
    out: Out = None,
    keep: Keep = [],  # noqa: B006
    delimiter: Delimiter = None,
    header: Header = None,
    nulls: Nulls = [],  # noqa: B006
    from_format: FromFormat = None,
    to_format: ToFormat = None,
    engine: Engine = "auto",
    types: Types = [],  # noqa: B006
    on_error: OnBadRows = OnError.RAISE,
    quarantine: QuarantineFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> int:
    """Match files of events against subscriptions: a file, a store, or conditions."""
    from tocsin.cli.match import MatchOptions, run

    return run(
        MatchOptions(
            events=events,
            subscriptions=subscriptions,
            store=store,
            conditions=conditions,
            dialect=dialect,
            out=None if out == Path("-") else out,
            engine=engine,
            types=types,
            on_error=on_error.value,
            quarantine=quarantine,
            keep=[name.strip() for part in keep for name in part.split(",") if name.strip()],
            delimiter=delimiter,
            has_header=header,
            nulls=nulls,
            from_format=from_format.value if from_format else None,
            to_format=to_format.value if to_format else None,
            is_quiet=quiet,
            as_json=as_json,
        )
    )


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog=EXIT_CODES)(match)
