"""What the command groups share: exit codes, and options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tocsin.engines import names

EXIT_CODES = (
    "Exit codes: 0 success; 1 finished, but bad rows were set aside; "
    "2 bad input or usage; 130 interrupted."
)


class OnError(StrEnum):
    """What to do with bad rows."""

    RAISE = "raise"
    QUARANTINE = "quarantine"


AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
Types = Annotated[
    list[str],
    typer.Option(
        "--attribute",
        metavar="NAME=KIND",
        help="Declare an attribute: integer, float, string, boolean or timestamp. Repeatable.",
    ),
]
Dialect = Annotated[
    str, typer.Option("--dialect", help="The language of conditions: sql, cesql, jms, ….")
]
Engine = Annotated[str, typer.Option(help=f"The matching algorithm: {', '.join(names())}.")]
Seed = Annotated[int, typer.Option(min=0, help="The seed of the generated data.")]
