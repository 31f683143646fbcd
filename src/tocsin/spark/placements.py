"""Placements: whether every task has the whole index, or events go to its parts.

Enters: a store, and what is asked for. Leaves: a `Placement`, which says which of the two it is to
be, and why. An index that fits is *replicated*: every task maps all of it into memory, and events
stay where they are. A larger one is *partitioned* where its parts are such that an event goes to
few of them (see `routing`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tocsin.errors import ArgumentError
from tocsin.spark import stores
from tocsin.store.subscription_store import StoreState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Mode = Literal["auto", "replicated", "partitioned"]

LIMIT = "spark.tocsin.replicated.limit"
"""The setting of a session that says up to how many bytes an index is replicated."""
_LIMIT_BYTES = 2 * 2**30
_log = logging.getLogger("tocsin.spark")


@dataclass(frozen=True)
class Placement:
    """How events and subscriptions come together, and why.

    `replication` is to how many parts an event goes on average, as far as that was profiled.
    """

    mode: Literal["replicated", "partitioned"]
    why: str
    n_bytes: int
    n_parts: int
    replication: float | None

    def __str__(self) -> str:
        return f"{self.mode}: {self.why}"


def placement(
    subscriptions: Any,
    version: int | None = None,
    *,
    mode: Mode = "auto",
    spark: SparkSession | None = None,
) -> Placement:
    """Say which placement `match` takes for a store, and why."""
    path = stores.to_path(subscriptions)
    if path is None:
        raise ArgumentError("a placement is that of a store: give a SubscriptionStore or its path")
    at = stores.newest(path) if version is None else version
    return choose(path, stores.describe(path, at), mode, spark)


def choose(path: str, state: StoreState, mode: Mode, session: SparkSession | None) -> Placement:
    """Choose the placement for a version of a store."""
    if mode not in ("auto", "replicated", "partitioned"):
        raise ArgumentError(f"mode must be auto, replicated or partitioned, not {mode!r}")
    parts = stores.parts_of(state)
    n_bytes = sum(part.n_bytes for part in parts)
    shares = [part.admitted for part in parts]
    replication = None if None in shares else sum(share for share in shares if share is not None)
    chosen, why = _judge(mode, parts, n_bytes, replication, _limit(session))
    found = Placement(chosen, why, n_bytes, len(parts), replication)
    _log.info("%s: %s", path, found)
    return found


def _judge(
    mode: Mode,
    parts: list[stores.PartFacts],
    n_bytes: int,
    replication: float | None,
    limit: int,
) -> tuple[Literal["replicated", "partitioned"], str]:
    obstacle = None
    if any(part.summary is None for part in parts):
        obstacle = "its parts have no summaries; spark.compile makes them"
    if mode == "partitioned":
        if obstacle:
            raise ArgumentError(f"the store cannot be partitioned: {obstacle}")
        return "partitioned", "as asked for"
    if mode == "replicated":
        return "replicated", "as asked for"
    size = f"the index has {_megabytes(n_bytes)}"
    if n_bytes <= limit:
        return "replicated", f"{size}, no more than the limit of {_megabytes(limit)}"
    over = f"{size}, more than the limit of {_megabytes(limit)}"
    if obstacle:
        return "replicated", f"{over}, but {obstacle}"
    if len(parts) == 1:
        return "replicated", f"{over}, but it is one part; compile it into several"
    if replication is None:
        return "partitioned", f"{over}; how many parts an event goes to was not profiled"
    sent = f"an event goes to {replication:.2f} of {len(parts)} parts on average"
    if replication > len(parts) / 2:
        return "replicated", f"{over}, but {sent}"
    return "partitioned", f"{over}, and {sent}"


def _limit(session: SparkSession | None) -> int:
    said = None if session is None else session.conf.get(LIMIT, None)
    try:
        return _LIMIT_BYTES if said is None else int(said)
    except ValueError:
        raise ArgumentError(f"{LIMIT} must be a number of bytes, not {said!r}") from None


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MB"
