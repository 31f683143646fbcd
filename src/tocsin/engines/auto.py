"""The `auto` engine: cells, buckets by each conjunction's most selective condition, exact checks.

Enters and leaves: see `protocol`. Each conjunction is kept under one attribute, the one on which it
allows the smallest share of cells; cells are grouped into buckets (2^shift neighbouring cells) so
that a range falls into one or two of them. An event looks into one bucket per attribute and checks
the conjunctions there. This is the propagation algorithm of Fabret et al. (section 2) with ranges
as access predicates beside equalities.

Subscriptions arrive in segments, which are merged by size: a merge costs each subscription a
logarithmic number of rebuilds. Deleted ones are marked, and dropped at the next merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import CellSpace
from tocsin.encode.events import EventBatch, read_value
from tocsin.engines import auto_kernels as kernels
from tocsin.engines.protocol import Found
from tocsin.normalize.lines import Line
from tocsin.normalize.table import ConjunctionTable, stack, take

_MOST_CELLS = 0.5
"""A condition that allows more than this share of its attribute's cells is no way to be found."""


class Segment:
    """The index of some subscriptions; never changed once built."""

    def __init__(self, table: ConjunctionTable) -> None:
        self.table = table
        self.space = CellSpace(table)
        self.index = _build(table, self.space)
        self.n_subscriptions = table.n_subscriptions
        self.has_siblings = bool(np.any(table.subscription[1:] == table.subscription[:-1]))
        self._patterned = np.unique(
            np.searchsorted(table.condition_start, table.pattern_condition, side="right") - 1
        )

    def match(self, events: EventBatch, is_live: NDArray[np.bool_]) -> Found:
        """Return the ids (repeated where several conjunctions hold) that each event matches."""
        offsets, conjunctions = self._candidates(self.space.encode(events), is_live)
        if len(self._patterned):
            offsets, conjunctions = self._check_patterns(events, offsets, conjunctions)
        return Found(offsets, self.table.subscription[conjunctions])

    def match_one(self, event: Mapping[str, object], is_live: NDArray[np.bool_]) -> list[int]:
        """Return the ids (perhaps repeated) that one event matches."""
        values = [read_value(event, name) for name in self.space.attributes]
        row = [self.space.encode_value(at, value) for at, value in enumerate(values)]
        cells = np.array([row], np.int32)
        _, conjunctions = self._candidates(cells, is_live)
        if len(self._patterned):
            by_name = dict(zip(self.space.attributes, values, strict=True))
            conjunctions = conjunctions[[self._fits(c, by_name) for c in conjunctions.tolist()]]
        return self.table.subscription[conjunctions].tolist()  # type: ignore[no-any-return]

    def _candidates(
        self, cells: NDArray[np.int32], is_live: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        offsets = np.zeros(len(cells) + 1, np.int64)
        out = np.empty(self.table.n_conjunctions + 16 * len(cells) + 1024, np.int32)
        reached = 0
        while True:
            reached = kernels.match(self.index, cells, reached, is_live, out, offsets)
            if reached == len(cells):
                return offsets, out[: offsets[-1]]
            out = np.concatenate([out, np.empty(len(out), np.int32)])

    def _check_patterns(
        self, events: EventBatch, offsets: NDArray[np.int64], conjunctions: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Drop the candidates whose LIKE patterns do not fit; each string is tried once."""
        keep = np.ones(len(conjunctions), np.bool_)
        row = np.repeat(np.arange(len(events)), np.diff(offsets))
        suspects = np.flatnonzero(np.isin(conjunctions, self._patterned))
        known: dict[tuple[int, str], bool] = {}
        strings: dict[int, list[str | None]] = {}
        for at in suspects.tolist():
            for attribute, pattern, negated in self._patterns_of(int(conjunctions[at])):
                if attribute not in strings:
                    strings[attribute] = _strings(events, self.table.attributes[attribute])
                text = strings[attribute][row[at]]
                assert text is not None, "a pattern's condition holds on strings only"
                if (pattern, text) not in known:
                    known[pattern, text] = self.table.patterns[pattern].matches(text)
                keep[at] &= known[pattern, text] is not negated
        counts = np.bincount(row[keep], minlength=len(events))
        return np.concatenate([[0], np.cumsum(counts)]), conjunctions[keep]

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
        """Say under which attribute each conjunction of a subscription is kept."""
        table = self.table
        first, last = np.searchsorted(table.subscription, [dense, dense + 1])
        rest = set(self.index.rest.tolist()) if last > first else set()
        lines = []
        for c in range(first, last):
            if c in rest:
                lines.append("tried on every event: no condition is selective enough")
                continue
            best = int(self.index.attribute[self.index.condition_start[c]])
            start, end = self._buckets(c, best)
            size = int(self.index.member_start[end] - self.index.member_start[start])
            lines.append(
                f"kept under {table.attributes[best]}, in {end - start} bucket(s) "
                f"with {size} entries in all"
            )
        return lines

    def _buckets(self, conjunction: int, attribute: int) -> tuple[int, int]:
        index = self.index
        condition = index.condition_start[conjunction]
        base, shift = index.first_bucket[attribute], index.shift[attribute]
        low = index.low[index.range_start[condition]]
        high = index.high[index.range_start[condition + 1] - 1]
        return int(base + (low >> shift)), int(base + ((high - 1) >> shift) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes held by the index and the table it was built from."""
        return sum(array.nbytes for array in self.index) + self.table.nbytes + self.space.nbytes

    def check(self) -> None:
        """Verify the invariants of the index."""
        index = self.index
        starts = index.range_start
        assert np.all(index.low < index.high), "a range of cells is empty"
        inner = np.ones(len(index.low), np.bool_)
        inner[starts[:-1][starts[:-1] < len(inner)]] = False
        assert np.all(index.low[inner] >= index.high[np.flatnonzero(inner) - 1]), "ranges overlap"
        placed = np.zeros(self.table.n_conjunctions, np.bool_)
        placed[index.members] = True
        assert not placed[index.rest].any(), "a conjunction is kept twice"
        placed[index.rest] = True
        assert placed.all(), "a conjunction is lost"


def _strings(events: EventBatch, attribute: str) -> list[str | None]:
    for part in events.column(attribute).parts:
        if part.line is Line.STRING:
            return part.values.to_pylist()  # type: ignore[no-any-return]
    return [None] * len(events)


def _build(table: ConjunctionTable, space: CellSpace) -> kernels.Index:
    n = table.n_conjunctions
    order = np.empty(table.n_conditions, np.int64)
    access, width = np.empty(n, np.int32), np.zeros(n, np.int32)
    kernels.choose_access(
        table.condition_start,
        table.attribute,
        space.range_start,
        space.range_low,
        space.range_high,
        space.n_cells,
        _MOST_CELLS,
        order,
        access,
        width,
    )
    n_attributes = len(table.attributes)
    shift = _choose_shifts(access, width, n_attributes)
    n_buckets = (space.n_cells >> shift) + 1
    first_bucket = np.concatenate([[0], np.cumsum(n_buckets)]).astype(np.int64)
    found = np.flatnonzero(access != kernels.NOWHERE)
    best = np.zeros(n, np.int64)
    best[found] = order[table.condition_start[:-1][found]]
    counts = np.zeros(first_bucket[-1] + 2, np.int64)
    bounds = (space.range_start, space.range_low, space.range_high)
    none = np.empty(0, np.int32)
    kernels.fill_buckets(found, access, best, *bounds, shift, first_bucket, counts, none)
    member_start = np.cumsum(counts)
    members = np.empty(max(int(member_start[-1]), 1), np.int32)
    places = member_start.copy()
    kernels.fill_buckets(found, access, best, *bounds, shift, first_bucket, places, members)
    ranges = _reordered(space.range_start, order)
    return kernels.Index(
        probe_attributes=np.unique(access[found]),
        first_bucket=first_bucket,
        shift=shift,
        member_start=member_start,
        members=members[: member_start[-1]],
        rest=np.flatnonzero(access == kernels.NOWHERE).astype(np.int32),
        condition_start=table.condition_start,
        attribute=table.attribute[order],
        range_start=ranges[0],
        low=space.range_low[ranges[1]],
        high=space.range_high[ranges[1]],
        subscription=table.subscription,
    )


def _reordered(
    starts: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts of runs put in another order, and where each of their items was."""
    lengths = np.diff(starts)[order]
    new_starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    items = np.arange(new_starts[-1]) + np.repeat(starts[:-1][order] - new_starts[:-1], lengths)
    return new_starts, items


def _choose_shifts(
    access: NDArray[np.int32], width: NDArray[np.int32], n_attributes: int
) -> NDArray[np.int32]:
    """Choose each attribute's bucket so that a condition of mean width falls into one or two."""
    chosen = access[access != kernels.NOWHERE]
    total = np.bincount(chosen, width[access != kernels.NOWHERE], n_attributes)
    mean = total / np.maximum(np.bincount(chosen, minlength=n_attributes), 1)
    return np.floor(np.log2(np.maximum(mean, 1))).astype(np.int32)


class AutoEngine:
    """Segments, merged by size, and marks on what was deleted."""

    def __init__(self) -> None:
        self._pending: list[ConjunctionTable] = []
        self._segments: list[Segment] = []
        self._is_live = np.zeros(1024, np.bool_)
        self._last_event = np.full(1024, -1, np.int64)
        self._stamp = 0
        self._n_deleted = 0

    def insert(self, ids: NDArray[np.int64], table: ConjunctionTable) -> None:
        """Take in subscriptions; they are indexed at the next match."""
        highest = int(ids[-1]) if len(ids) else -1
        if highest >= len(self._is_live):
            room = max(highest + 1, 2 * len(self._is_live))
            self._is_live = np.concatenate([self._is_live, np.zeros(room, np.bool_)])
            self._last_event = np.concatenate([self._last_event, np.full(room, -1, np.int64)])
        self._is_live[ids] = True
        self._pending.append(table)

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Mark subscriptions as gone."""
        self._is_live[ids] = False
        self._n_deleted += len(ids)

    def match_batch(self, events: EventBatch) -> Found:
        """Match a batch against every segment."""
        self._flush()
        found = Found(np.zeros(len(events) + 1, np.int64), np.empty(0, np.int64))
        for at, segment in enumerate(self._segments):
            part = segment.match(events, self._is_live)
            if segment.has_siblings:
                n = kernels.drop_repeats(*part, self._last_event, self._stamp)
                self._stamp += len(events)
                part = Found(part.offsets, part.ids[:n])
            found = part if at == 0 else _join(found, part)
        return found

    def match_one(self, event: Mapping[str, object]) -> list[int]:
        """Match one event against every segment."""
        self._flush()
        found: dict[int, None] = {}
        for segment in self._segments:
            found.update(dict.fromkeys(segment.match_one(event, self._is_live)))
        return list(found)

    def _flush(self) -> None:
        """Index what arrived; merge segments until each is twice the size of the next."""
        if self._pending:
            table = stack(
                self._pending,
                [0] * len(self._pending),
                sum(table.n_subscriptions for table in self._pending),
            )
            self._pending.clear()
            self._segments.append(Segment(table))
        n_held = sum(segment.n_subscriptions for segment in self._segments)
        if self._n_deleted > max(n_held // 2, 1024):
            self._merge(len(self._segments))
            self._n_deleted = 0
        while len(self._segments) > 1 and (
            self._segments[-2].n_subscriptions < 2 * self._segments[-1].n_subscriptions
        ):
            self._merge(2)

    def _merge(self, n: int) -> None:
        tables = []
        for segment in self._segments[len(self._segments) - n :]:
            live = np.flatnonzero(self._is_live[segment.table.subscription])
            table = take(segment.table, live)
            held = np.count_nonzero(np.diff(table.subscription, prepend=-1))
            tables.append(replace(table, n_subscriptions=int(held)))
        del self._segments[len(self._segments) - n :]
        total = sum(table.n_subscriptions for table in tables)
        self._segments.append(Segment(stack(tables, [0] * n, total)))

    def explain(self, dense: int) -> str:
        """Say where a subscription is kept."""
        self._flush()
        lines = [line for segment in self._segments for line in segment.explain(dense)]
        return "\n".join(lines) if lines else "not kept: it can never match"

    def check(self) -> None:
        """Verify the invariants of every segment."""
        self._flush()
        for segment in self._segments:
            segment.check()

    @property
    def nbytes(self) -> int:
        """Bytes held by the segments."""
        return sum(segment.nbytes for segment in self._segments) + sum(
            table.nbytes for table in self._pending
        )


def _join(a: Found, b: Found) -> Found:
    offsets = np.empty_like(a.offsets)
    ids = np.empty(len(a.ids) + len(b.ids), np.int64)
    kernels.interleave(a.offsets, a.ids, b.offsets, b.ids, offsets, ids)
    return Found(offsets, ids)
