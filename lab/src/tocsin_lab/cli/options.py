"""Options that several commands of the laboratory have."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


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


Workload = Annotated[str, typer.Option(help="W0, W1, W2, T, TW, M, G or H.")]
Subscriptions = Annotated[int, typer.Option(min=1, help="How many subscriptions.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often each is timed.")]
EventsOrNone = Annotated[
    int | None, typer.Option(min=1, help="How many events; by default as suits the workload.")
]
