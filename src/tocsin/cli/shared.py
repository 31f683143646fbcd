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


class Baseline(StrEnum):
    """What to compare with."""

    DUCKDB = "duckdb"
    NONE = "none"


class Scenario(StrEnum):
    """What changes."""

    INTERESTS = "interests"
    SKEW = "skew"


class PipelineMode(StrEnum):
    """What a pipeline tells of."""

    MATCHES = "matches"
    TRANSITIONS = "transitions"


class Placement(StrEnum):
    """Whether every worker has the whole index, or parts of it."""

    REPLICATED = "replicated"
    PARTITIONED = "partitioned"


class Missing(StrEnum):
    """What a missing attribute is."""

    ABSENT = "absent"
    ANY = "any"


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
