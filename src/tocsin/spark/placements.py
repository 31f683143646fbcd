"""Placements: whether each task has the whole index, or events are sent to its parts.

Enters: the snapshot of a store, and the placement that the user asks for. Leaves: a `Placement`
with the reason. An index that fits is *replicated*: each task maps all of it into memory, and
events stay where they are. A larger one is *partitioned* if an event goes to few of its parts (see
`routes`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tocsin.errors import ArgumentError
from tocsin.spark import subscription_source
from tocsin.store.snapshot import StoreSnapshot, StoreState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PlacementKind = Literal["auto", "replicated", "partitioned"]

LIMIT = "spark.tocsin.replicated.limit"
"""The session setting for the maximum bytes of an index that is replicated."""
_LIMIT_BYTES = 2 * 2**30
_log = logging.getLogger("tocsin.spark")


@dataclass(frozen=True)
class PartFacts:
    """Facts of a part. `admitted` is the share of the profiled events that it may match."""

    n_subscriptions: int
    n_bytes: int
    summary: Mapping[str, Any] | None
    admitted: float | None


def parts_of(state: StoreState) -> list[PartFacts]:
    """Return the facts of the parts of a version."""
    return [
        PartFacts(
            part.facts["n_subscriptions"],
            part.n_bytes,
            part.facts.get("summary"),
            part.facts.get("admitted"),
        )
        for part in state.parts
    ]


@dataclass(frozen=True)
class Placement:
    """How events and subscriptions come together, and why.

    `replication` is the average number of parts that a profiled event goes to; None if unknown.
    """

    kind: Literal["replicated", "partitioned"]
    why: str
    n_bytes: int
    n_parts: int
    replication: float | None

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"


def placement(
    subscriptions: Any,
    version: int | None = None,
    *,
    placement: PlacementKind = "auto",
    spark: SparkSession | None = None,
) -> Placement:
    """Return the placement that `match` uses for a store, with the reason.

    `spark` is the session whose limit counts; by default the limit is 2 GB. Raises ArgumentError if
    `subscriptions` is not a store or the store cannot be partitioned as asked.
    """
    place = subscription_source.to_place(subscriptions)
    if place is None:
        raise ArgumentError("a placement is that of a store: give a SubscriptionStore or its path")
    return choose(StoreSnapshot.open(place, version), placement, spark)


def choose(
    snapshot: StoreSnapshot, placement: PlacementKind, session: SparkSession | None
) -> Placement:
    """Choose the placement for a version of a store."""
    if placement not in ("auto", "replicated", "partitioned"):
        raise ArgumentError(f"placement must be auto, replicated or partitioned, not {placement!r}")
    parts = parts_of(snapshot.state)
    n_bytes = sum(part.n_bytes for part in parts)
    shares = [part.admitted for part in parts]
    replication = None if None in shares else sum(share for share in shares if share is not None)
    kind, why = _judge(placement, parts, n_bytes, replication, _limit(session))
    choice = Placement(kind, why, n_bytes, len(parts), replication)
    _log.info("%s: %s", snapshot.place, choice)
    return choice


def _judge(
    placement: PlacementKind,
    parts: list[PartFacts],
    n_bytes: int,
    replication: float | None,
    limit: int,
) -> tuple[Literal["replicated", "partitioned"], str]:
    obstacle = None
    if any(part.summary is None for part in parts):
        obstacle = "its parts have no summaries; spark.compile makes them"
    if placement == "partitioned":
        if obstacle:
            raise ArgumentError(f"the store cannot be partitioned: {obstacle}")
        return "partitioned", "as asked for"
    if placement == "replicated":
        return "replicated", "as asked for"
    size = f"the index has {_megabytes(n_bytes)}"
    if n_bytes <= limit:
        return "replicated", f"{size}, no more than the limit of {_megabytes(limit)}"
    over = f"{size}, more than the limit of {_megabytes(limit)}"
    if obstacle:
        return "replicated", f"{over}, but {obstacle}"
    if len(parts) == 1:
        return "replicated", f"{over}, but it has one part; compile it into several"
    if replication is None:
        return "partitioned", f"{over}; the events were not profiled"
    sent = f"an event goes to {replication:.2f} of {len(parts)} parts on average"
    if replication > len(parts) / 2:
        return "replicated", f"{over}, but {sent}"
    return "partitioned", f"{over}, and {sent}"


def _limit(session: SparkSession | None) -> int:
    text = None if session is None else session.conf.get(LIMIT, None)
    try:
        return _LIMIT_BYTES if text is None else int(text)
    except ValueError:
        raise ArgumentError(f"{LIMIT} must be a number of bytes, not {text!r}") from None


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MB"
