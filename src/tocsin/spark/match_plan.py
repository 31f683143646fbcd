"""Matching DataFrames: events in, kept columns and subscriptions out.

Enters: a DataFrame of events, batch or streaming, and subscriptions: a matcher, a store, or a
DataFrame of conditions. Leaves: a DataFrame with a row for each match, or one for each event.

The store is opened on the driver first, so that one that is missing, damaged or too new stops the
query before there is any output, and so that what the columns silence is reported. Of a batch, the
version and the moment are fixed when the DataFrame is made. Of a stream, each micro-batch takes the
newest version when its first task runs, and pins it in the store under the query and the number of
the micro-batch; its other tasks and its replays use what is pinned (see `worker`).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.spark import columns, drift, placements, shipment, stores, subscription_source, worker
from tocsin.spark.placements import Mode, Placement
from tocsin.spark.routes import EVENT, PART, PIECES, TARGET, MergeTask, PartTask, RouteTask
from tocsin.spark.worker import MatchTask, Output, Source
from tocsin.store.subscription_store import StoreState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

IdType = Literal["auto", "integer", "string"]
Ship = Literal["auto", "path", "files"]


def match(
    events: DataFrame,
    subscriptions: Any,
    keep: Sequence[str] | None = None,
    mode: Mode = "auto",
    output: Output = "rows",
    ship: Ship = "auto",
    ids: IdType = "auto",
) -> DataFrame:
    """Return which subscriptions the events of a DataFrame match, batch or streaming.

    `subscriptions` is a `Matcher`, a `SubscriptionStore` or its path, or a DataFrame with columns
    `id` and `where`. The result has the columns named in `keep` (all when None) and, with
    `output="rows"`, a row for each match with the id in `subscription`; with `output="arrays"`, a
    row for each event with the ids in `subscriptions`. Ids are longs where the store holds only
    integers, else strings; `ids` says otherwise.

    `ship` says how executors come by the store: they read its path themselves ("path"), or Spark
    sends them a copy ("files"). By default a path is read, and anything else is sent, unless
    Spark runs in this process. A stream sees changes of the store only by its path.
    """
    path = stores.to_path(subscriptions)
    if mode == "partitioned" and (path is None or ship == "files"):
        raise ArgumentError("only a store that executors read by its path can be partitioned")
    if path is not None:
        if ship == "files":
            return _match_shipped(events, path, keep, output, ids)
        return matched(events, path, keep=keep, output=output, mode=mode, ids=ids)
    matcher = subscription_source.to_matcher(subscriptions)
    folder = tempfile.mkdtemp(prefix="tocsin-")
    shipment.remove_at_exit(folder)
    path = os.path.join(folder, "store")  # noqa: PTH118
    matcher.save(path)
    if ship == "path" or (ship == "auto" and shipment.is_local(events.sparkSession)):
        return matched(events, path, stores.newest(path), keep=keep, output=output, ids=ids)
    return _match_shipped(events, path, keep, output, ids)


def matched(
    events: DataFrame,
    store_path: str | os.PathLike[str],
    version: int | None = None,
    now: float | None = None,
    keep: Sequence[str] | None = None,
    output: Output = "rows",
    *,
    mode: Mode = "auto",
    ids: IdType = "auto",
    report_drift: bool = True,
) -> DataFrame:
    """Match against a version of a store, as of a moment in seconds since 1970.

    Without a version, a batch uses the newest one there is now; in a stream each micro-batch uses
    the newest there is then, and pins it.
    """
    path = os.fspath(store_path)
    is_pinned = version is None and events.isStreaming
    at = stores.newest(path) if version is None else version
    moment = time.time() if now is None else now
    state = stores.describe(path, at)
    placement = placements.choose(path, state, mode, events.sparkSession)
    source = Source(path, None, None) if is_pinned else Source(path, at, moment, verify=False)
    asked = _Asked(keep, output, ids, report_drift)
    return _apply(events, worker.opened(path, at, moment), state, source, asked, placement)


def _match_shipped(
    events: DataFrame, path: str, keep: Sequence[str] | None, output: Output, ids: IdType
) -> DataFrame:
    """Match against a copy of a store that Spark sends to the executors."""
    version, now = stores.newest(path), time.time()
    held = worker.opened(path, version, now)
    name = shipment.send(events.sparkSession, path)
    source = Source(name, version, now, shipped=True)
    state = stores.describe(path, version)
    return _apply(events, held, state, source, _Asked(keep, output, ids), None)


@dataclass(frozen=True)
class _Asked:
    """What the result is to be."""

    keep: Sequence[str] | None
    output: Output
    ids: IdType
    report_drift: bool = True


def _apply(
    events: DataFrame,
    held: worker.Opened,
    state: StoreState,
    source: Source,
    asked: _Asked,
    placement: Placement | None,
) -> DataFrame:
    from pyspark.sql import types as st

    if asked.output not in ("rows", "arrays"):
        raise ArgumentError(f"output must be 'rows' or 'arrays', not {asked.output!r}")
    schema, matcher = events.schema, held.matcher
    columns.check_names(schema)
    is_integer = _choose_ids(state, asked.ids)
    id_type = st.LongType() if is_integer else st.StringType()
    added = st.StructField("subscription", id_type, False)
    if asked.output == "arrays":
        added = st.StructField("subscriptions", st.ArrayType(id_type, False), False)
    kept = columns.kept_names(schema, asked.keep, [added.name])
    if asked.report_drift:
        drift.warn(drift.silenced_by(schema, matcher))
    hidden = _hidden(schema, matcher)
    names = _needed(schema, matcher, state, kept, hidden, source)
    hidden = [name for name in hidden if name in names]
    chosen = events.select(*map(columns.quoted, names))
    out = st.StructType([*(schema[name] for name in kept), added])
    task = MatchTask(source, kept, asked.output, is_integer, hidden)
    if placement is None or placement.mode == "replicated":
        return chosen.mapInArrow(task, out)
    plan = _Plan(source, kept, asked.output, is_integer, hidden)
    return _partitioned(chosen, matcher, plan, placement.n_parts, out)


@dataclass(frozen=True)
class _Plan:
    """What the tasks of a match are made with."""

    source: Source
    kept: Sequence[str]
    output: Output
    is_integer: bool
    hidden: Sequence[str]


def _partitioned(
    chosen: DataFrame, matcher: Matcher, plan: _Plan, n: int, out: StructType
) -> DataFrame:
    """Route events to parts, match them there, and join what belongs to one event."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    whole = plan.output == "arrays"
    numbers = [st.StructField(name, st.IntegerType(), False) for name in (PART, TARGET)]
    marks = [
        st.StructField(EVENT, st.LongType(), False),
        st.StructField(PIECES, st.IntegerType(), False),
    ]
    marks = marks if whole else []
    route = RouteTask(plan.source, matcher.event_type, n, plan.hidden, whole)
    routed = chosen.mapInArrow(route, st.StructType([*chosen.schema, *marks, *numbers]))
    kept = [*plan.kept, *(mark.name for mark in marks)]
    task = PartTask(plan.source, kept, plan.output, plan.is_integer, plan.hidden)
    *columns, added = out
    found = routed.repartitionById(n, TARGET).mapInArrow(
        task, st.StructType([*columns, *marks, added])
    )
    if not whole:
        return found
    place = sf.pmod(sf.xxhash64(EVENT), sf.lit(n)).cast("int")
    return found.repartitionById(n, place).mapInArrow(MergeTask(), out)


def _choose_ids(state: StoreState, ids: IdType) -> bool:
    """Whether ids are integers in the output."""
    if ids not in ("auto", "integer", "string"):
        raise ArgumentError(f"ids must be 'auto', 'integer' or 'string', not {ids!r}")
    return ids == "integer" or (ids == "auto" and state.ids == "integers")


def _needed(
    schema: Any,
    matcher: Matcher,
    state: StoreState,
    kept: Sequence[str],
    hidden: Sequence[str],
    source: Source,
) -> list[str]:
    """Return the columns that tasks need: all that new subscriptions may ask about, in a stream."""
    if source.version is None:
        names = [f.name for f in schema if f.name in kept or columns.is_readable(f.dataType)]
        return [name for name in names if name in kept or name not in hidden]
    mentioned = state.attributes
    if mentioned is None:
        mentioned = drift.attributes_of(matcher)
    declared = matcher.event_type.attributes if matcher.event_type else ()
    places = [columns.find(schema, name) for name in (*mentioned, *declared)]
    wanted = {place.column for place in places if place} - set(hidden) | set(kept)
    # A batch without columns has no rows either: something has to tell how many there are.
    return [n for n in schema.fieldNames() if n in wanted] or schema.fieldNames()[:1]


def _hidden(schema: Any, matcher: Matcher) -> list[str]:
    """Return the columns that the matcher may not see: they hold another kind than is declared."""
    found = columns.misfits(schema, matcher.event_type)
    for attribute, place in found.items():
        if place.column != attribute:
            raise ArgumentError(
                f"attribute {attribute!r} is declared otherwise than the events have it: "
                f"{place.type.simpleString()} within column {place.column!r}"
            )
    return sorted(found)
