"""Publications of one bucket: their values so far and updates in, transitions and new values out.

Enters: the state of a bucket (the last values of each publication, and which subscriptions they
were last held against), the updates of a micro-batch, and the matchers of those subscriptions and
of the ones that count now. Leaves: the new state, and what began or ceased to match, in order.
Nothing here knows Spark; state and updates are Arrow tables, kept and sent as Arrow streams.

The last values of the publications that are updated and the updates are put in the order of their
keys, and matched once, together. What a row matches is compared with what the row before it
matches, if both are of one publication. This is the update of subject spaces (seed 002, section 4)
by sets of matches instead of bounds: values here are points, and a batch of them is matched at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import to_array
from tocsin.errors import ArgumentError
from tocsin.matcher import Matcher
from tocsin.storage.pins import Pin
from tocsin.transitions import BatchTransitions, difference, of_subscriptions

AT = "__tocsin_at"
"""The column of the moment at which a publication was last updated, in seconds since 1970."""
ENTER, LEAVE = "ENTER", "LEAVE"
_KINDS = pa.array([LEAVE, ENTER])

Open = Callable[[Pin], Matcher]
"""Opens the subscriptions of a version, as of a moment; one matcher where they are the same."""


@dataclass(frozen=True)
class Rules:
    """How events are publications.

    `key` names the column of their keys, `order` that of what comes first, `retract` that of those
    that end a publication. `ttl` is for how many seconds one stays without an update. With
    `partial`, a null leaves a value as it was.
    """

    key: str
    order: str | None = None
    retract: str | None = None
    ttl: float | None = None
    partial: bool = False


@dataclass(frozen=True)
class State:
    """The publications of a bucket, and the subscriptions that they were last held against."""

    values: pa.Table
    pin: Pin

    def to_bytes(self) -> bytes:
        """Return a state as an Arrow stream."""
        facts = {b"version": str(self.pin.version).encode(), b"now": repr(self.pin.now).encode()}
        return to_bytes(self.values.replace_schema_metadata(facts))

    @staticmethod
    def from_bytes(octets: bytes) -> State:
        """Return the state that was written."""
        values = from_bytes(octets)
        facts = values.schema.metadata
        return State(
            values.replace_schema_metadata(None),
            Pin(int(facts[b"version"]), float(facts[b"now"])),
        )


def to_bytes(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(octets: bytes | pa.Buffer) -> pa.Table:
    """Return the table of an Arrow stream."""
    return pa.ipc.open_stream(pa.py_buffer(octets)).read_all()


class Found:
    """Transitions as they are found, in the order in which they happened."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._tables: list[pa.Table] = []

    def add(self, found: BatchTransitions, keys: pa.Array) -> None:
        """Add the transitions of some rows with these keys."""
        if len(found.kind):
            ids = found.names.take(found.dense)
            kinds = _KINDS.take(pa.array(found.kind > 0).cast(pa.int8()))
            columns = {self._key: keys.take(pa.array(found.row)), "subscription": ids}
            self._tables.append(pa.table({**columns, "kind": kinds}))

    def add_all(self, matcher: Matcher, values: pa.Table, key: str, kind: int) -> None:
        """Add a transition for all that some publications match."""
        matches = matcher.match_batch(_events(values))
        rows = np.repeat(np.arange(len(matches)), np.diff(matches.offsets))
        kinds = np.full(len(rows), kind, np.int8)
        found = BatchTransitions(kinds, rows, matches.dense.values, matches.names)
        self.add(found, to_array(values.column(key)))

    def to_table(self, as_text: bool) -> pa.Table | None:
        """Return all transitions; ids are strings, if they are to be, else integers."""
        wanted = pa.string() if as_text else pa.int64()
        tables = []
        for table in self._tables:
            ids = table.column("subscription")
            if not as_text and ids.type != wanted:
                raise ArgumentError(
                    "subscriptions have ids that are strings now, and all were integers when the "
                    "query was made; make it anew, with string ids"
                )
            tables.append(table.set_column(1, "subscription", ids.cast(wanted)))
        return pa.concat_tables(tables) if tables else None


def step(
    state: State | None, updates: pa.Table | None, now: Pin, rules: Rules, open_at: Open
) -> tuple[State | None, Found]:
    """Bring a bucket to what it is after a micro-batch; return it with the transitions.

    First what has ended by now ceases to match, then subscriptions are those of now, then
    publications are updated.
    """
    found = Found(rules.key)
    values = None
    if state is not None:
        values = _without_ended(state, now, rules, open_at, found)
        if open_at(state.pin) is not open_at(now):
            changed = of_subscriptions(open_at(state.pin), open_at(now), _events(values))
            found.add(changed, to_array(values.column(rules.key)))
        elif updates is None and values is state.values:
            return state, found
    if updates is not None:
        values = _update(values, updates, now, rules, open_at(now), found)
    if values is None or not len(values):
        return None, found
    return State(values.combine_chunks(), now), found


def _without_ended(state: State, now: Pin, rules: Rules, open_at: Open, found: Found) -> pa.Table:
    """Return the publications whose time is not over; the others leave what they match."""
    values = state.values
    if rules.ttl is None:
        return values
    is_over = values.column(AT).to_numpy() + rules.ttl <= now.now
    if not is_over.any():
        return values
    found.add_all(open_at(state.pin), values.filter(pa.array(is_over)), rules.key, -1)
    return values.filter(pa.array(~is_over))


def _events(values: pa.Table) -> pa.Table:
    return values.drop_columns([AT]) if AT in values.column_names else values


def _update(
    values: pa.Table | None,
    updates: pa.Table,
    now: Pin,
    rules: Rules,
    matcher: Matcher,
    found: Found,
) -> pa.Table:
    """Make updates in order; return the values of all publications after them."""
    arrived = _arrived(updates, now, rules)
    is_touched = np.zeros(0 if values is None else len(values), np.bool_)
    rows, gone = arrived.rows, arrived.is_end
    n_old = 0
    if values is not None:
        is_touched = pc.is_in(values.column(rules.key), to_array(rows.column(rules.key))).to_numpy(
            zero_copy_only=False
        )
        old = values.filter(pa.array(is_touched))
        n_old = len(old)
        rows = pa.concat_tables([old, rows], promote_options="permissive")
        gone = np.concatenate([np.zeros(n_old, np.bool_), gone])
    codes = to_array(rows.column(rules.key)).dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")  # what was before comes first, then as it arrived
    rows, gone, is_old = rows.take(pa.array(order)), gone[order], (order < n_old)
    same = np.concatenate([[False], codes[order][1:] == codes[order][:-1]])
    follows = same & ~np.concatenate([[False], gone[:-1]])
    if rules.partial:
        rows = _filled(rows, follows, rules.key)
    _compare(matcher, rows, follows, gone, is_old, found, rules.key)
    is_last = np.concatenate([~same[1:], [True]]) & ~gone
    kept = rows.filter(pa.array(is_last))
    if values is None:
        return kept
    return pa.concat_tables(
        [values.filter(pa.array(~is_touched)), kept], promote_options="permissive"
    )


@dataclass(frozen=True)
class _Arrived:
    """Updates in their order, with the moment of each; some of them end a publication."""

    rows: pa.Table
    is_end: NDArray[np.bool_]


def _arrived(updates: pa.Table, now: Pin, rules: Rules) -> _Arrived:
    if rules.order is not None:
        indices = pc.sort_indices(updates, [(rules.order, "ascending")])
        updates = updates.take(indices)
    is_end = np.zeros(len(updates), np.bool_)
    if rules.retract is not None:
        is_end = updates.column(rules.retract).fill_null(False).to_numpy()
        updates = updates.drop_columns([rules.retract])
    moments = pa.array(np.full(len(updates), now.now))
    return _Arrived(updates.append_column(AT, moments), is_end)


def _filled(rows: pa.Table, follows: NDArray[np.bool_], key: str) -> pa.Table:
    """Put the last value before it in the place of each null, within a publication."""
    n = len(rows)
    starts = np.maximum.accumulate(np.where(follows, 0, np.arange(n)))
    columns: dict[str, Any] = {}
    for name in rows.column_names:
        column = to_array(rows.column(name))
        if column.null_count and name not in (key, AT):
            is_valid = column.is_valid().to_numpy(zero_copy_only=False)
            last = np.maximum.accumulate(np.where(is_valid, np.arange(n), -1))
            column = column.take(pa.array(np.maximum(last, starts)))
        columns[name] = column
    return pa.table(columns)


def _compare(
    matcher: Matcher,
    rows: pa.Table,
    follows: NDArray[np.bool_],
    gone: NDArray[np.bool_],
    is_old: NDArray[np.bool_],
    found: Found,
    key: str,
) -> None:
    """Add the differences between what rows match and what the rows before them match.

    A row is compared with the one before it where it follows it, else with nothing. What was there
    before the micro-batch brings about nothing by itself.
    """
    matches = matcher.match_batch(_events(rows))
    offsets = np.concatenate([[0], matches.offsets])  # before the first is one that matches nothing
    old = (offsets[:-1], matches.dense.values, follows)
    new = (offsets[1:], matches.dense.values, ~gone & ~is_old)
    found.add(difference(old, new, matches.names), to_array(rows.column(key)))
