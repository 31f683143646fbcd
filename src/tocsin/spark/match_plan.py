"""`match`: a DataFrame of events and subscriptions in, a DataFrame of matches out.

Enters: events, batch or streaming, and subscriptions: a matcher, a store, or a DataFrame of
conditions. Leaves: a DataFrame with a row for each match, or one for each event.

The driver opens the store first, so that one that is missing, damaged or too new stops the query
before there is any output, and so that schema issues are reported. A batch uses the version and the
time at which the DataFrame was made. In a stream, the first task of each micro-batch pins the
newest version and the time in the store, under the query and the number of the micro-batch; its
other tasks and its replays use that pin (see `worker`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tocsin.errors import ArgumentError
from tocsin.language.computed import attributes_of
from tocsin.matcher import Matcher
from tocsin.spark import columns, drift, hadoop, placements, shipment, subscription_source, worker
from tocsin.spark.match_task import MatchSpec, MatchTask, Output
from tocsin.spark.placements import PlacementKind
from tocsin.spark.routes import EVENT, PART, PIECES, TARGET, MergeTask, PartTask, RouteTask
from tocsin.spark.subscription_source import IdType
from tocsin.spark.worker import Moment, Source
from tocsin.storage.place import to_place
from tocsin.store.snapshot import StoreSnapshot, StoreState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Ship = Literal["auto", "path", "files"]


def match(
    events: DataFrame,
    subscriptions: Any,
    keep: Sequence[str] | None = None,
    *,
    output: Output = "rows",
    placement: PlacementKind = "auto",
    ship: Ship = "auto",
    ids: IdType = "auto",
    version: int | None = None,
    now: float | None = None,
) -> DataFrame:
    """Return the matches of the events of a DataFrame, batch or streaming.

    Parameters:
        events: a column for each attribute; structs are reached by dotted paths.
        subscriptions: a `SubscriptionStore` or its path, a `Matcher`, or a DataFrame with columns
            `id` and `where`.
        keep: the event columns of the result; by default all.
        output: "rows" gives a row for each match, with the id in `subscription`; "arrays" a row
            for each event, with the ids in `subscriptions`.
        placement: "replicated", "partitioned", or "auto"; see `placement`.
        ship: how executors get the store: they read its path ("path") or Spark sends them a copy
            ("files"). By default a path is read, and anything else is sent unless Spark runs in
            this process. A stream sees changes of the store only by its path.
        ids: the type of ids in the result; by default integer if the store has only integers.
        version: the version of the store; by default the newest. In a stream, each micro-batch
            uses the newest version at its start.
        now: the time by which expiry is judged, in seconds since 1970; by default the current one.
            In a stream only together with `version`.

    A store that is missing, damaged or too new raises a StoreError; wrong arguments raise an
    ArgumentError. Schema issues are reported as a SchemaDriftWarning.
    """
    place = subscription_source.to_place(subscriptions)
    if placement == "partitioned" and (place is None or ship == "files"):
        raise ArgumentError("only a store that executors read by its path can be partitioned")
    if events.isStreaming and now is not None and version is None:
        raise ArgumentError("in a stream, now is used together with version only")
    if place is None:
        if version is not None:
            raise ArgumentError("version is that of a store; these subscriptions have none")
        place = to_place(_save(subscription_source.to_matcher(subscriptions)))
        by_path = ship == "path" or (ship == "auto" and shipment.is_local(events.sparkSession))
        is_fixed = True
    else:
        by_path = ship != "files"
        is_fixed = not by_path or version is not None or not events.isStreaming
    snapshot = StoreSnapshot.open(place, version)
    moment = Moment.of(snapshot, time.time() if now is None else now)
    if by_path:
        source = _fixed_source(snapshot, moment) if is_fixed else Source(place)
        chosen = placements.choose(snapshot, placement, events.sparkSession)
        n_parts = chosen.n_parts if chosen.kind == "partitioned" else 0
    else:
        source = Source(place, moment, shipped=shipment.send(events.sparkSession, str(place)))
        n_parts = 0
    matcher = worker.open_matcher(moment, snapshot=snapshot).matcher
    drift.warn(drift.find_issues(events.schema, matcher))
    return plan(events, snapshot, matcher, source, keep, output, ids, n_parts)


def match_pinned(
    events: DataFrame,
    snapshot: StoreSnapshot,
    now: float,
    keep: Sequence[str],
    output: Output,
    *,
    ids: IdType,
    placement: PlacementKind,
) -> DataFrame:
    """Match against a snapshot that the caller has pinned; schema issues are left to the caller."""
    moment = Moment.of(snapshot, now)
    chosen = placements.choose(snapshot, placement, events.sparkSession)
    n_parts = chosen.n_parts if chosen.kind == "partitioned" else 0
    matcher = worker.open_matcher(moment, snapshot=snapshot).matcher
    source = _fixed_source(snapshot, moment)
    return plan(events, snapshot, matcher, source, keep, output, ids, n_parts)


def _fixed_source(snapshot: StoreSnapshot, moment: Moment) -> Source:
    """Return the source of tasks that use one version, whose files the driver has verified."""
    place = hadoop.task_place(snapshot.chain, snapshot.place)
    return Source(place, moment._replace(place=place), verify=False)


def _save(matcher: Matcher) -> str:
    """Save a matcher in a temporary folder, as a store; return its path."""
    folder = tempfile.mkdtemp(prefix="tocsin-")
    shipment.remove_at_exit(folder)
    path = str(Path(folder) / "store")
    matcher.save(path)
    return path


def plan(
    events: DataFrame,
    snapshot: StoreSnapshot,
    matcher: Matcher,
    source: Source,
    keep: Sequence[str] | None,
    output: Output,
    ids: IdType,
    n_parts: int,
) -> DataFrame:
    """Return the DataFrame that matches events; partitioned if `n_parts` is not 0."""
    from pyspark.sql import types as st

    if output not in ("rows", "arrays"):
        raise ArgumentError(f"output must be 'rows' or 'arrays', not {output!r}")
    schema = events.schema
    columns.check_names(schema)
    integer_ids = subscription_source.has_integer_ids(ids, snapshot.state)
    id_type = st.LongType() if integer_ids else st.StringType()
    added = st.StructField("subscription", id_type, False)
    if output == "arrays":
        added = st.StructField("subscriptions", st.ArrayType(id_type, False), False)
    kept = columns.kept_names(schema, keep, [added.name])
    hidden = _hidden_columns(schema, matcher)
    names = _input_columns(schema, matcher, snapshot.state, kept, hidden, source)
    hidden = [name for name in hidden if name in names]
    selected = events.select(*map(columns.quoted, names))
    spec = MatchSpec(source, tuple(kept), output, integer_ids, tuple(hidden))
    result = st.StructType([*(schema[name] for name in kept), added])
    if n_parts:
        return _partitioned(selected, matcher, spec, n_parts, result)
    return selected.mapInArrow(MatchTask(spec), result)


def _partitioned(
    events: DataFrame, matcher: Matcher, spec: MatchSpec, n: int, result: StructType
) -> DataFrame:
    """Route events to parts, match them there, and join the pieces of each event."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    numbers = [st.StructField(name, st.IntegerType(), False) for name in (PART, TARGET)]
    marks = []
    if spec.output == "arrays":
        marks.append(st.StructField(EVENT, st.LongType(), False))
        marks.append(st.StructField(PIECES, st.IntegerType(), False))
    route = RouteTask(spec, matcher.event_type, n)
    routed = events.mapInArrow(route, st.StructType([*events.schema, *marks, *numbers]))
    task = PartTask(replace(spec, keep=(*spec.keep, *(mark.name for mark in marks))))
    *kept, added = result
    matches = routed.repartitionById(n, TARGET).mapInArrow(
        task, st.StructType([*kept, *marks, added])
    )
    if not marks:
        return matches
    target = sf.pmod(sf.xxhash64(EVENT), sf.lit(n)).cast("int")
    return matches.repartitionById(n, target).mapInArrow(MergeTask(), result)


def _input_columns(
    schema: StructType,
    matcher: Matcher,
    state: StoreState,
    kept: Sequence[str],
    hidden: Sequence[str],
    source: Source,
) -> list[str]:
    """Return the columns that tasks read: kept ones, and all that conditions may mention.

    In a stream, later subscriptions may mention any readable column.
    """
    if source.moment is None:
        names = [f.name for f in schema if f.name in kept or columns.is_readable(f.dataType)]
        return [name for name in names if name in kept or name not in hidden]
    mentioned = state.attributes
    if mentioned is None:
        mentioned = drift.attributes_of(matcher)
    declared = matcher.event_type.attributes if matcher.event_type else ()
    read = {name for each in mentioned for name in attributes_of(each)}
    locations = [columns.find(schema, name) for name in (*read, *declared)]
    needed = {location.column for location in locations if location} - set(hidden) | set(kept)
    # A batch without columns has no rows either: one column must tell their number.
    return [n for n in schema.fieldNames() if n in needed] or schema.fieldNames()[:1]


def _hidden_columns(schema: StructType, matcher: Matcher) -> list[str]:
    """Return the columns that the matcher must not see: their kind is not the declared one."""
    misfits = columns.misfits(schema, matcher.event_type)
    for attribute, location in misfits.items():
        if location.column != attribute:
            raise ArgumentError(
                f"attribute {attribute!r} is declared as another kind than the events have: "
                f"{location.type.simpleString()} within column {location.column!r}"
            )
    return sorted(misfits)
