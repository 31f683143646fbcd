"""Segments: an immutable index of some subscriptions.

Enters: a conjunction table and statistics. Leaves: access tables, and with them the matches of
event batches and single events. See `kernels` for the layout and `plan` for how tables are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import CellSpace
from tocsin.encode.events import EventBatch, read_value
from tocsin.encode.shares import guessed_shares, measured_shares
from tocsin.engines.auto import kernels
from tocsin.engines.auto.kernels import Checks, Conditions, Tables
from tocsin.engines.auto.plan import MAX_DIGITS, MAX_PREFIX, Costs, Plan, make_plan
from tocsin.normalize.lines import Line
from tocsin.normalize.table import ConjunctionTable

_SORT_FROM = 2048
"""From how many events on a batch is ordered before it is matched."""
_MAX_SORT_KEYS = 1 << 20
_SORT_TO = 32
"""Up to how many matches an event it pays to order a batch: they have to be put back."""


class Candidates(NamedTuple):
    """Conjunctions found: those of the event at place k of `order` are `found[offsets[k] : …]`.

    `is_sorted`: the order is not that of the batch.
    """

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]
    found: NDArray[np.uint32]
    is_sorted: bool


class Segment:
    """The index of some subscriptions; never changed once built."""

    def __init__(
        self, table: ConjunctionTable, sample: EventBatch | None = None, costs: Costs | None = None
    ) -> None:
        self.table = table
        self.space = space = CellSpace(table)
        self.n_subscriptions = table.n_subscriptions
        self.has_siblings = bool(np.any(table.subscription[1:] == table.subscription[:-1]))
        self.first_id = _first_of_run(table.subscription)
        shares = (
            guessed_shares(space, table.attribute)
            if sample is None
            else measured_shares(space, space.encode(sample))
        )
        conditions = Conditions(
            table.condition_start,
            table.attribute,
            space.range_start,
            space.range_low,
            space.range_high,
        )
        self.plan = make_plan(conditions, space.n_cells, shares, costs or Costs())
        self._patterned = np.unique(
            np.searchsorted(table.condition_start, table.pattern_condition, side="right") - 1
        )
        self.tables = _build(conditions, self.plan)
        self.checks = _make_checks(conditions)
        self._codes_are_cells = bool(self.plan.coding.is_exact.all())
        self._sort_prefix = self._choose_order()
        self._n_found, self._n_tried = 0, 1
        self._room = np.empty(1024, np.uint32)

    def candidates(self, events: EventBatch) -> Candidates:
        """Return the conjunctions that each event satisfies; they are valid until the next call."""
        cells = self.space.encode(events)
        found = self._find(cells)
        self._n_found, self._n_tried = len(found.found), max(len(events), 1)
        return self._check_patterns(events, found) if len(self._patterned) else found

    def _find(self, cells: NDArray[np.int32]) -> Candidates:
        n_attributes, n = cells.shape
        codes = np.empty((n, n_attributes), np.uint16)
        kept = np.empty((0 if self._codes_are_cells else n, n_attributes), np.int32)
        kernels.to_rows(self.plan.coding, cells, codes, kept)
        order = np.arange(n)
        is_sorted = not self.keeps_order(n)
        if is_sorted:
            kernels.sort_events(self.plan.coding, self._sort_prefix, codes, order)
        offsets = np.zeros(n + 1, np.int64)
        out = self._room
        reached = 0
        while True:
            reached = kernels.match(
                self.plan.coding,
                self.checks,
                self.tables,
                codes,
                kept,
                order,
                reached,
                out,
                offsets,
            )
            if reached == n:
                return Candidates(order, offsets, out[: offsets[-1]], is_sorted)
            grown = np.empty(2 * len(out) + self.table.n_conjunctions, np.uint32)
            grown[: offsets[reached]] = out[: offsets[reached]]
            self._room = out = grown

    def keeps_order(self, n_events: int) -> bool:
        """Whether the next batch, of this size, is matched in its own order."""
        is_many = self._n_found > _SORT_TO * self._n_tried
        return n_events < _SORT_FROM or is_many or not len(self._sort_prefix)

    def _choose_order(self) -> NDArray[np.int64]:
        """Choose the attributes to order a batch by: the prefix of the largest family."""
        sizes = np.bincount(self.plan.family, minlength=len(self.plan.prefixes))
        prefix = self.plan.prefixes[int(sizes.argmax())] if len(sizes) else ()
        n_digits = self.plan.coding.n_digits[list(prefix)] + 1
        if np.prod(n_digits.astype(float)) > _MAX_SORT_KEYS:
            return np.empty(0, np.int64)
        return np.array(prefix, np.int64)

    def match_one(self, event: Mapping[str, object]) -> NDArray[np.int64]:
        """Return the ids (perhaps repeated) that one event matches."""
        values = [read_value(event, name) for name in self.space.attributes]
        row = [self.space.encode_value(at, value) for at, value in enumerate(values)]
        found = self._find(np.array(row, np.int32).reshape(-1, 1)).found
        if len(self._patterned):
            by_name = dict(zip(self.space.attributes, values, strict=True))
            found = found[[self._fits(c, by_name) for c in found.tolist()]]
        return self.table.subscription[found]

    def _check_patterns(self, events: EventBatch, given: Candidates) -> Candidates:
        """Drop the candidates whose LIKE patterns do not fit; each string is tried once."""
        keep = np.ones(len(given.found), np.bool_)
        row = np.repeat(given.order, np.diff(given.offsets))
        known: dict[tuple[int, str], bool] = {}
        strings: dict[int, list[str | None]] = {}
        for at in np.flatnonzero(np.isin(given.found, self._patterned)).tolist():
            for attribute, pattern, negated in self._patterns_of(int(given.found[at])):
                if attribute not in strings:
                    strings[attribute] = _strings(events, self.table.attributes[attribute])
                text = strings[attribute][row[at]]
                assert text is not None, "a pattern's condition holds on strings only"
                if (pattern, text) not in known:
                    known[pattern, text] = self.table.patterns[pattern].matches(text)
                keep[at] &= known[pattern, text] is not negated
        place = np.repeat(np.arange(len(given.order)), np.diff(given.offsets))
        counts = np.bincount(place[keep], minlength=len(given.order))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Candidates(given.order, offsets, given.found[keep], given.is_sorted)

    def _patterns_of(self, conjunction: int) -> list[tuple[int, int, bool]]:
        table = self.table
        first, last = table.condition_start[conjunction], table.condition_start[conjunction + 1]
        low, high = np.searchsorted(table.pattern_condition, [first, last])
        return [
            (
                int(table.attribute[table.pattern_condition[i]]),
                int(table.pattern_id[i]),
                bool(table.pattern_negated[i]),
            )
            for i in range(low, high)
        ]

    def _fits(self, conjunction: int, values: Mapping[str, object]) -> bool:
        return all(
            self.table.patterns[pattern].matches(str(values[self.table.attributes[attribute]]))
            is not negated
            for attribute, pattern, negated in self._patterns_of(conjunction)
        )

    def explain(self, dense: int) -> list[str]:
        """Say under which key each conjunction of a subscription is kept."""
        first, last = np.searchsorted(self.table.subscription, [dense, dense + 1])
        lines = []
        for c in range(first, last):
            prefix = self.plan.prefixes[self.plan.family[c]]
            member = int(self.plan.member[c])
            names = [self.table.attributes[a] for a in (*prefix, *([member] * (member >= 0)))]
            if not names:
                lines.append("tried on every event: no condition is selective enough")
                continue
            n = np.count_nonzero(
                (self.plan.family == self.plan.family[c]) & (self.plan.member == member)
            )
            lines.append(f"kept under ({', '.join(names)}) with {n} conjunctions in all")
        return lines

    @property
    def nbytes(self) -> int:
        """Bytes held by the index and the table it was built from."""
        tables = sum(array.nbytes for array in self.tables)
        coding = sum(array.nbytes for array in self.plan.coding)
        return int(tables + coding + self.table.nbytes + self.space.nbytes)

    def check(self) -> None:
        """Verify the invariants of the index."""
        starts, low, high = self.space.range_start, self.space.range_low, self.space.range_high
        assert np.all(low < high), "a range of cells is empty"
        inner = np.ones(len(low), np.bool_)
        inner[starts[:-1][starts[:-1] < len(inner)]] = False
        assert np.all(low[inner] >= high[np.flatnonzero(inner) - 1]), "ranges overlap"
        clusters = self.tables.cluster_start.astype(np.int64)
        assert np.all(np.diff(clusters) >= 0), "clusters are out of order"
        numbers = (self.tables.entries[:, 1] >> np.uint64(32)) & np.uint64(kernels.NUMBER)
        assert clusters[-1] == len(numbers), "entries without a cluster"
        present = np.unique(numbers)
        assert len(present) == self.table.n_conjunctions, "a conjunction is lost"


def _first_of_run(ids: NDArray[np.int64]) -> int | None:
    """Return the first of ids that follow each other without a gap, else None."""
    if not len(ids) or ids[-1] - ids[0] != len(ids) - 1 or np.any(np.diff(ids) != 1):
        return None
    return int(ids[0])


def _strings(events: EventBatch, attribute: str) -> list[str | None]:
    for part in events.column(attribute).parts:
        if part.line is Line.STRING:
            return part.values.to_pylist()  # type: ignore[no-any-return]
    return [None] * len(events)


def _make_checks(conditions: Conditions) -> Checks:
    n_words = 2 * len(conditions.attribute) + 2 * len(conditions.low)
    checks = Checks(np.empty(len(conditions.start), np.int64), np.empty(n_words, np.int32))
    kernels.write_checks(conditions, checks)
    return checks


def _build(conditions: Conditions, plan: Plan) -> Tables:
    """Lay out the access tables of a plan."""
    empty, n_keys = _empty_tables(conditions, plan)
    counts = np.zeros(n_keys + 1, np.int64)
    digits = np.zeros((MAX_PREFIX + 1, 2 * MAX_DIGITS), np.int64)
    member_of = _member_numbers(empty, plan)
    none = np.empty(0, np.uint32)
    kernels.place(plan.coding, conditions, empty, plan.family, member_of, digits, counts, none)
    cluster_start = np.cumsum(counts)
    order = np.empty(cluster_start[-1], np.uint32)
    if len(order):
        kernels.place(
            plan.coding,
            conditions,
            empty,
            plan.family,
            member_of,
            digits,
            cluster_start.copy(),
            order,
        )
    tables = empty._replace(
        cluster_start=cluster_start.astype(np.uint32),
        entries=np.empty((len(order), 2), np.uint64),
        reach=np.zeros(len(order), np.uint16),
    )
    kernels.fill_entries(
        plan.coding,
        conditions,
        tables,
        plan.selectivity,
        plan.family,
        member_of,
        order,
    )
    _order_windows(tables, plan)
    return tables


def _order_windows(tables: Tables, plan: Plan) -> None:
    """In tables with a window attribute, order the large clusters by their first lower bound."""
    starts = tables.cluster_start.astype(np.int64)
    has_window = np.zeros(len(starts) - 1, np.bool_)
    for f, prefix in enumerate(plan.prefixes):
        n_prefixes = int(np.prod(plan.coding.n_digits[list(prefix)], dtype=np.int64))
        first, stride = int(tables.base[f]), int(tables.stride[f])
        keys = has_window[first : first + n_prefixes * stride].reshape(n_prefixes, stride)
        members = range(tables.member_start[f], tables.member_start[f + 1])
        ends = [*tables.member_offset[members.start + 1 : members.stop].tolist(), stride]
        for m, end in zip(members, ends, strict=True):
            keys[:, tables.member_offset[m] : end] = tables.member_window[m] >= 0
    sizes = np.diff(starts)
    chosen = np.repeat(has_window & (sizes >= kernels.WINDOW_FROM), sizes)
    if not chosen.any():
        return
    at = np.flatnonzero(chosen)
    low = (tables.entries[at, 0] >> np.uint64(16)) & np.uint64(0xFFFF)
    cluster = np.repeat(np.arange(len(sizes)), sizes)[at]
    tables.entries[at] = tables.entries[at[np.lexsort((low, cluster))]]
    kernels.fill_reach(tables.cluster_start, tables.entries, tables.reach)


def _empty_tables(conditions: Conditions, plan: Plan) -> tuple[Tables, int]:
    """Number the keys of a plan's tables; return the tables without entries, and how many keys."""
    n_digits = plan.coding.n_digits
    member_start, attributes, offsets, windows = [0], [], [], []
    bases, strides = [], []
    base = 0
    for f, prefix in enumerate(plan.prefixes):
        inside = plan.family == f
        stride = 0
        for member in np.unique(plan.member[inside]).tolist():
            attributes.append(member)
            offsets.append(stride)
            windows.append(_window_attribute(conditions, plan, f, member))
            stride += int(n_digits[member]) if member >= 0 else 1
        member_start.append(len(attributes))
        bases.append(base)
        strides.append(stride)
        base += stride * int(np.prod(n_digits[list(prefix)], dtype=np.int64))
    tables = Tables(
        prefix_start=np.cumsum([0, *(len(p) for p in plan.prefixes)]).astype(np.int64),
        prefix=np.array([a for p in plan.prefixes for a in p], np.int64),
        member_start=np.array(member_start, np.int64),
        member_attribute=np.array(attributes, np.int64),
        member_offset=np.array(offsets, np.int64),
        member_digit=np.array([plan.coding.first[max(a, 0)] for a in attributes], np.int64),
        member_window=np.array(windows, np.int64),
        base=np.array(bases, np.int64),
        stride=np.array(strides, np.int64),
        cluster_start=np.zeros(1, np.uint32),
        entries=np.empty((0, 2), np.uint64),
        reach=np.empty(0, np.uint16),
    )
    return tables, base


def _window_attribute(conditions: Conditions, plan: Plan, f: int, member: int) -> int:
    """Choose the attribute by which a table's large clusters are ordered, or -1.

    It is the one that most of the table's conjunctions have besides the key, as one range.
    """
    chosen = np.flatnonzero((plan.family == f) & (plan.member == member))
    if len(chosen) < kernels.WINDOW_FROM:
        return -1
    chosen = chosen[:: max(len(chosen) // 1000, 1)]
    votes: dict[int, int] = {}
    key = (*plan.prefixes[f], member)
    for c in chosen.tolist():
        for i in range(conditions.start[c], conditions.start[c + 1]):
            attribute = int(conditions.attribute[i])
            is_single = conditions.range_start[i + 1] - conditions.range_start[i] == 1
            is_key = attribute in key and bool(
                plan.coding.is_point[attribute] and plan.coding.is_exact[attribute]
            )
            if is_single and not is_key and plan.selectivity[i] < 0.5:
                votes[attribute] = votes.get(attribute, 0) + 1
    if not votes:
        return -1
    winner = max(votes, key=votes.__getitem__)
    return winner if votes[winner] > 0.9 * len(chosen) else -1


def _member_numbers(tables: Tables, plan: Plan) -> NDArray[np.int32]:
    """Return for each conjunction the number of its family's member."""
    numbers = np.zeros(len(plan.family), np.int32)
    for f in range(len(plan.prefixes)):
        inside = np.flatnonzero(plan.family == f)
        first, last = tables.member_start[f], tables.member_start[f + 1]
        members = tables.member_attribute[first:last]
        numbers[inside] = first + np.searchsorted(members, plan.member[inside])
    return numbers
