"""The publications of one bucket: old values and updates in, transitions and new values out.

Enters: the state of a bucket (the last values of each publication, and the pin of the subscriptions
that they were last matched against), the updates of a micro-batch, and the matchers of that pin and
of the current one. Leaves: the new state, and the transitions in order. Nothing here depends on
Spark; state and updates are Arrow tables, stored and sent as Arrow streams.

The last values of the updated publications and the updates are sorted by key and matched together,
once. The matches of each row are compared with those of the row before it, if both are of one
publication, by the kernel of `tocsin.transitions`. This is the update of Leung and Jacobsen (2003),
section 4, by sets of matches instead of bounds: values here are points, and a batch of them is
matched at once.
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
from tocsin.transitions import ENTER, LEAVE, BatchTransitions, difference, of_subscriptions

AT = "__tocsin_at"
"""The column of the time of a publication's last update, in seconds since 1970."""
_KINDS = pa.array([LEAVE.value, ENTER.value])

Open = Callable[[Pin], Matcher]
"""Returns the matcher of a pin; the same object for pins of the same subscriptions."""


@dataclass(frozen=True)
class Rules:
    """How events become publications.

    `key` is the column of publication keys, `order` the column by which updates are ordered,
    `retract` the boolean column that ends a publication. `ttl` is the seconds without an update
    after which a publication ends. With `partial`, a null leaves a value as it was.
    """

    key: str
    order: str | None = None
    retract: str | None = None
    ttl: float | None = None
    partial: bool = False


@dataclass(frozen=True)
class State:
    """The publications of a bucket, and the pin that they were last matched against."""

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


class TransitionLog:
    """Transitions in the order in which they happened."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._tables: list[pa.Table] = []

    def add(self, batch: BatchTransitions, keys: pa.Array) -> None:
        """Add the transitions of rows with these keys."""
        if len(batch.kind):
            ids = batch.names.take(batch.dense)
            kinds = _KINDS.take(pa.array(batch.kind > 0).cast(pa.int8()))
            columns = {self._key: keys.take(pa.array(batch.row)), "subscription": ids}
            self._tables.append(pa.table({**columns, "kind": kinds}))

    def add_leaves(self, matcher: Matcher, values: pa.Table) -> None:
        """Add a LEAVE for each match of some publications."""
        matches = matcher.match_batch(_events(values))
        rows = np.repeat(np.arange(len(matches)), np.diff(matches.offsets))
        kinds = np.full(len(rows), -1, np.int8)
        batch = BatchTransitions(kinds, rows, matches.dense.values, matches.names)
        self.add(batch, to_array(values.column(self._key)))

    def to_table(self, as_text: bool) -> pa.Table | None:
        """Return all transitions, with ids as strings or integers; None without any."""
        id_type = pa.string() if as_text else pa.int64()
        tables = []
        for table in self._tables:
            ids = table.column("subscription")
            if not as_text and ids.type != id_type:
                raise ArgumentError(
                    "the subscriptions now have string ids, but had only integers when the query "
                    "was made; make the query again, with string ids"
                )
            tables.append(table.set_column(1, "subscription", ids.cast(id_type)))
        return pa.concat_tables(tables) if tables else None


def step(
    state: State | None, updates: pa.Table | None, now: Pin, rules: Rules, open_at: Open
) -> tuple[State | None, TransitionLog]:
    """Return the state of a bucket after a micro-batch, and the transitions.

    First expired publications leave, then the subscriptions change, then updates are applied.
    """
    log = TransitionLog(rules.key)
    values = None
    if state is not None:
        values = _without_expired(state, now, rules, open_at, log)
        if open_at(state.pin) is not open_at(now):
            changed = of_subscriptions(open_at(state.pin), open_at(now), _events(values))
            log.add(changed, to_array(values.column(rules.key)))
        elif updates is None and values is state.values:
            return state, log
    if updates is not None:
        values = _update(values, updates, now, rules, open_at(now), log)
    if values is None or not len(values):
        return None, log
    return State(values.combine_chunks(), now), log


def _without_expired(
    state: State, now: Pin, rules: Rules, open_at: Open, log: TransitionLog
) -> pa.Table:
    """Return the publications that have not expired; the others leave what they match."""
    values = state.values
    if rules.ttl is None:
        return values
    is_expired = values.column(AT).to_numpy() + rules.ttl <= now.now
    if not is_expired.any():
        return values
    log.add_leaves(open_at(state.pin), values.filter(pa.array(is_expired)))
    return values.filter(pa.array(~is_expired))


def _events(values: pa.Table) -> pa.Table:
    return values.drop_columns([AT]) if AT in values.column_names else values


def _update(
    values: pa.Table | None,
    updates: pa.Table,
    now: Pin,
    rules: Rules,
    matcher: Matcher,
    log: TransitionLog,
) -> pa.Table:
    """Apply updates in order; return the values of all publications after them."""
    ordered = _in_order(updates, now, rules)
    is_touched = np.zeros(0 if values is None else len(values), np.bool_)
    rows, is_end = ordered.rows, ordered.is_end
    n_old = 0
    if values is not None:
        is_touched = pc.is_in(values.column(rules.key), to_array(rows.column(rules.key))).to_numpy(
            zero_copy_only=False
        )
        old = values.filter(pa.array(is_touched))
        n_old = len(old)
        rows = pa.concat_tables([old, rows], promote_options="permissive")
        is_end = np.concatenate([np.zeros(n_old, np.bool_), is_end])
    codes = to_array(rows.column(rules.key)).dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")  # old values first, then updates in order
    rows, is_end, is_old = rows.take(pa.array(order)), is_end[order], (order < n_old)
    same = np.concatenate([[False], codes[order][1:] == codes[order][:-1]])
    follows = same & ~np.concatenate([[False], is_end[:-1]])
    if rules.partial:
        rows = _fill_nulls(rows, follows, rules.key)
    _compare(matcher, rows, follows, is_end, is_old, log, rules.key)
    is_last = np.concatenate([~same[1:], [True]]) & ~is_end
    updated = rows.filter(pa.array(is_last))
    if values is None:
        return updated
    return pa.concat_tables(
        [values.filter(pa.array(~is_touched)), updated], promote_options="permissive"
    )


@dataclass(frozen=True)
class _OrderedUpdates:
    """Updates in order, with their time; some of them end a publication."""

    rows: pa.Table
    is_end: NDArray[np.bool_]


def _in_order(updates: pa.Table, now: Pin, rules: Rules) -> _OrderedUpdates:
    if rules.order is not None:
        indices = pc.sort_indices(updates, [(rules.order, "ascending")])
        updates = updates.take(indices)
    is_end = np.zeros(len(updates), np.bool_)
    if rules.retract is not None:
        is_end = updates.column(rules.retract).fill_null(False).to_numpy()
        updates = updates.drop_columns([rules.retract])
    moments = pa.array(np.full(len(updates), now.now))
    return _OrderedUpdates(updates.append_column(AT, moments), is_end)


def _fill_nulls(rows: pa.Table, follows: NDArray[np.bool_], key: str) -> pa.Table:
    """Replace each null by the last value before it of the same publication."""
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
    is_end: NDArray[np.bool_],
    is_old: NDArray[np.bool_],
    log: TransitionLog,
    key: str,
) -> None:
    """Add the differences between the matches of each row and those of the row before it.

    A row that does not follow another one of its publication is compared with no matches. Old
    values give no transitions by themselves.
    """
    matches = matcher.match_batch(_events(rows))
    offsets = np.concatenate([[0], matches.offsets])  # a row without matches before the first
    old = (offsets[:-1], matches.dense.values, follows)
    new = (offsets[1:], matches.dense.values, ~is_end & ~is_old)
    log.add(difference(old, new, matches.names), to_array(rows.column(key)))
