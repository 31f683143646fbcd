"""Segments: an immutable index of some subscriptions.

Enters: conjunctions and statistics of events. Leaves: the numbers of the conjunctions that events
satisfy. See `arrays` for what it is made of, `plan` for how tables are chosen, `match_kernels` for
the ways in which its parts are met with a batch.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import CellSpace
from tocsin.encode.events import EventBatch
from tocsin.encode.shares import guessed_shares, measured_shares
from tocsin.engines.auto import bitmap_kernels, group_kernels, member_kernels, row_kernels
from tocsin.engines.auto import match_kernels as kernels
from tocsin.engines.auto.arrays import IS_OPEN, NUMBER, Coding, GroupCosts, Stream
from tocsin.engines.auto.buffer_pool import Rooms
from tocsin.engines.auto.content import Content, PatternTable
from tocsin.engines.auto.layout import Layout, lay_out, read_stream
from tocsin.engines.auto.pairs import Pairs
from tocsin.engines.auto.plan import Costs, make_plan, plan_under
from tocsin.engines.auto.prepared import Prepared, Rows, to_rows
from tocsin.engines.patterns import PatternChecks
from tocsin.engines.ragged import RaggedIds
from tocsin.jit import LANES

_GROUP_FROM = 2048
"""From how many events on a batch is ordered before it is matched."""
_GROUP_TO = 16, 4
"""Up to how many matches an event it pays to order a batch, and how many more for each table.

They have to be put back; but the more tables there are, the more it saves to look for many events
at a time.
"""
_MEMBERS_FROM = 64
"""From how many events, and members of a family, on these are taken one after the other."""
_MEMBER_EVENTS = 4096
"""How many events are met with all members at a time."""
_MEMBER_CODES = 1 << 26
"""And how many of their codes at most: fewer events where there are very many attributes."""
_BITMAP_EVENTS = 2048
"""How many events are met with all words of the bitmaps at a time."""
_MOST_EXPECTED = 1 << 20
"""More matches than these, and than twice those of the last batch, are not expected."""
_GROUP_COSTS = GroupCosts(probe=9.0, far=40.0, check=1.2, few=2.2, many=2.7, mark=1.2, code=0.8)


class Segment:
    """The index of some subscriptions; never changed once built. `ids` are by conjunction.

    No other segment has its `name`, so what is written under it need not be written again.
    """

    def __init__(
        self,
        space: CellSpace,
        ids: NDArray[np.int32],
        patterns: PatternTable,
        coding: Coding,
        prefixes: tuple[tuple[int, ...], ...],
        layout: Layout,
        rooms: Rooms | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or uuid.uuid4().hex
        self.space = space
        self.ids = ids
        self.patterns = patterns
        self.coding = coding
        self.prefixes = prefixes
        self.layout = layout
        self.rooms = rooms or Rooms()
        is_new = ids[1:] != ids[:-1]
        self.has_siblings = not is_new.all()
        self.n_subscriptions = int(np.count_nonzero(is_new)) + min(len(ids), 1)
        self.first_id = _first_of_run(ids)
        has_columns = len(layout.columns.window) > 0
        self._needs_cells = has_columns or not coding.is_exact.all()
        self._no_cells = np.empty((0, max(len(coding.n_cells), 1)), np.int32)
        self._none_skipped = np.zeros(len(layout.keys.base), np.bool_)
        self._by_member = self._choose_by_member()
        self._group_to = self._choose_group_to()
        self._last = (0, 1)  # how much the last batch found, of how many events: one value
        self._room = 1024

    @classmethod
    def build(
        cls,
        content: Content,
        sample: EventBatch | None = None,
        costs: Costs | None = None,
        rooms: Rooms | None = None,
    ) -> Segment:
        """Plan and lay out some conjunctions for events like a sample, or as it can be guessed."""
        space, conditions = content.space, content.conditions
        if sample is None:
            shares = guessed_shares(space, *conditions[1:])
        else:
            shares = measured_shares(space, space.encode(sample))
        plan = make_plan(conditions, space.n_cells, shares, costs or Costs())
        layout = lay_out(conditions, plan)
        return cls(space, content.ids, content.patterns, plan.coding, plan.prefixes, layout, rooms)

    @classmethod
    def build_beside(cls, content: Content, other: Segment) -> Segment | None:
        """Lay out some conjunctions, in the cells of another segment, under its chief prefix.

        They need not be planned, and batches are prepared for both at once. None says that it
        cannot be: a conjunction has no such key.
        """
        if other.layout.grouped < 0:
            return None
        prefix = other.prefixes[other.layout.grouped]
        plan = plan_under(content.conditions, other.coding, prefix)
        if plan is None:
            return None
        layout = lay_out(content.conditions, plan, has_columns=False)
        return cls(
            other.space,
            content.ids,
            content.patterns,
            other.coding,
            (prefix,),
            layout,
            other.rooms,
        )

    def renumbered(self, kept: NDArray[np.int64]) -> Segment:
        """Return the same index with other ids: what was `kept[i]` is i. All else is shared."""
        segment = copy.copy(self)
        segment.name = uuid.uuid4().hex
        segment.ids = renumbered_ids(self.ids, kept)
        segment.first_id = _first_of_run(segment.ids)
        return segment

    def _choose_by_member(self) -> int:
        """Choose the family that is met member by member: one of many, without a prefix; or -1."""
        keys = self.layout.keys
        for f in range(len(keys.base)):
            n_members = keys.member_start[f + 1] - keys.member_start[f]
            if keys.prefix_start[f + 1] == keys.prefix_start[f] and n_members >= _MEMBERS_FROM:
                return f
        return -1

    def _choose_group_to(self) -> int:
        """Choose up to how many matches an event batches are ordered."""
        start, f = self.layout.keys.member_start, self.layout.grouped
        n_members = int(start[f + 1] - start[f]) if f >= 0 else 0
        return _GROUP_TO[0] + _GROUP_TO[1] * n_members

    @property
    def stream(self) -> Stream:
        """The conditions, by conjunction."""
        return self.layout.stream

    @property
    def n_words(self) -> int:
        """How many words of the stream there are."""
        return len(self.layout.stream.words)

    @property
    def needs_cells(self) -> bool:
        """Whether codes say less of an event than its cells do."""
        return self._needs_cells

    @property
    def is_patterned(self) -> bool:
        """Whether some conjunction has LIKE patterns."""
        return len(self.patterns.conjunction) > 0

    @cached_property
    def _pattern_checks(self) -> PatternChecks:
        return self.patterns.checks(self.space.attributes)

    def candidates(self, batch: Prepared, base: int = 0) -> RaggedIds:
        """Return the conjunctions that each event satisfies, each number plus a base."""
        n = len(batch.events)
        found = self._find(batch, base)
        self._last = (len(found.values), max(n, 1))
        if not self.is_patterned:
            return found
        return self._pattern_checks.keep(batch.events, found)

    def _find(self, batch: Prepared, base: int = 0) -> RaggedIds:
        layout, n = self.layout, len(batch.events)
        is_skipped = np.zeros(len(layout.keys.base), np.bool_)
        found = RaggedIds(np.zeros(n + 1, np.int64), np.empty(0, np.uint32))
        if self.groups(n):
            is_skipped[layout.grouped] = True
            found = join(found, self._find_in_groups(batch, base))
        if self._by_member >= 0 and n >= _MEMBERS_FROM:
            is_skipped[self._by_member] = True
            found = join(found, self._find_by_member(batch, base))
        if len(layout.columns.window) or not is_skipped.all():
            rows = batch.rows(self.coding, self._needs_cells)
            found = join(found, self._find_by_event(is_skipped, rows, base))
        if len(layout.bitmaps.number):
            found = join(found, self._find_in_bitmaps(batch.cells, base))
        return found

    def groups(self, n_events: int) -> bool:
        """Whether the next batch, of this size, is ordered."""
        n_found, n_tried = self._last
        is_few = n_found <= self._group_to * n_tried
        return n_events >= _GROUP_FROM and is_few and self.layout.grouped >= 0

    def _expect(self, n_events: int) -> int:
        """Return for how many matches to make room at first: a small batch says little."""
        n_found, n_tried = self._last
        return min(int(1.1 * n_events * n_found / n_tried), max(2 * n_found, _MOST_EXPECTED))

    def _room_for_pairs(
        self, n: int, keeps: bool = True
    ) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
        """Return room for n pairs, `keeps` for such as will be needed again."""
        if not keeps:
            return np.empty(n, np.int32), np.empty(n, np.uint32)
        return self.rooms.take(n, np.int32)[:n], self.rooms.take(n, np.uint32)[:n]

    def _find_by_event(
        self,
        is_skipped: NDArray[np.bool_],
        rows: Rows,
        base: int,
    ) -> RaggedIds:
        n, layout = len(rows.codes), self.layout
        offsets = np.zeros(n + 1, np.int64)
        out = self.rooms.take(max(self._room, self._expect(n)), np.uint32)
        reached = 0
        while True:
            reached = kernels.match(
                self.coding,
                layout.stream,
                layout.keys,
                layout.entries,
                is_skipped,
                layout.column_keys,
                layout.columns,
                *rows,
                reached,
                base,
                out,
                offsets,
            )
            if reached == n:
                self._room = max(self._room, min(len(out), 2 * len(self.ids)))
                return RaggedIds(offsets, out[: offsets[-1]])
            grown = self.rooms.take(2 * len(out) + len(self.ids), np.uint32)
            grown[: offsets[reached]] = out[: offsets[reached]]
            out = grown

    def _find_in_groups(self, batch: Prepared, base: int) -> RaggedIds:
        n, layout = len(batch.events), self.layout
        coding, keys = self.coding, layout.keys
        ordered = batch.ordered(coding, keys, layout.grouped, self._needs_cells)
        (codes, _), order, prefix_of = ordered
        is_met = np.zeros(n, np.bool_)
        room = max(4 * n, self._expect(n))
        pairs = Pairs(ordered, layout.stream, self._has_open_groups, room, self.rooms)
        if len(layout.slots.of_entry):
            pairs.collect(
                group_kernels.match_groups,
                keys,
                layout.entries,
                layout.slots,
                layout.grouped,
                self._is_pointed,
                _GROUP_COSTS,
                codes,
                order,
                prefix_of,
                is_met,
            )
        if not is_met.all():
            given = coding, keys, layout.entries, layout.grouped, codes, order, prefix_of, is_met
            pairs.collect(kernels.match_rows, *given)
        return spread((pairs.event, pairs.number), pairs.n, n, base, self.rooms)

    @cached_property
    def _grouped_entries(self) -> NDArray[np.uint64]:
        """The entries of the family that orders batches."""
        keys, f = self.layout.keys, self.layout.grouped
        end = keys.base[f + 1] if f + 1 < len(keys.base) else -1
        return self.layout.entries[keys.start[keys.base[f]] : keys.start[end]]

    @cached_property
    def _is_pointed(self) -> bool:
        """Whether these ask for three codes each."""
        slots = self.layout.slots
        if np.any(slots.high - slots.low > 1):
            return False
        return bool(group_kernels.are_points(self._grouped_entries))

    @cached_property
    def _has_open_groups(self) -> bool:
        """Whether these leave anything to check."""
        return bool(group_kernels.are_some_open(self._grouped_entries))

    @cached_property
    def _has_open_bitmaps(self) -> bool:
        """Whether the bitmaps leave anything to check."""
        return bool(np.any(self.layout.bitmaps.number > NUMBER))

    @cached_property
    def _asked(self) -> NDArray[np.uint32]:
        """The two attributes that each entry asks for, see `member_kernels.find_asked`."""
        asked = np.zeros(len(self.layout.entries) + LANES, np.uint32)
        member_kernels.find_asked(self.layout.entries, len(self.coding.n_cells), asked)
        return asked

    def _find_by_member(self, batch: Prepared, base: int) -> RaggedIds:
        n, layout = len(batch.events), self.layout
        room = expected = max(4 * n, self._expect(n))
        n_attributes = max(len(self.coding.n_cells), 1)
        size = min(_MEMBER_EVENTS, max(_MEMBER_CODES // n_attributes, 1))
        while True:
            pairs = self._room_for_pairs(room, room == expected)
            n_pairs = member_kernels.match_members(
                self.coding,
                layout.keys,
                layout.entries,
                self._asked,
                self._by_member,
                *batch.present,
                n,
                size,
                *pairs,
            )
            if n_pairs >= 0:
                break
            room *= 4
        event, number = self._close(batch, pairs[0][:n_pairs], pairs[1][:n_pairs])
        return spread((event, number), len(event), n, base, self.rooms)

    def _close(
        self, batch: Prepared, event: NDArray[np.int32], number: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
        """Check the open ones among pairs; return those that hold."""
        is_open = number >= IS_OPEN
        if not is_open.any():
            return event, number
        events = np.unique(event[is_open])
        rows = batch.rows_of(events)
        event_row = np.searchsorted(events, event[is_open]).astype(np.int32)
        open_number = number[is_open]
        n = kernels.close_pairs(self.layout.stream, rows, event_row, open_number, len(open_number))
        return (
            np.concatenate([event[~is_open], events[event_row[:n]]]),
            np.concatenate([number[~is_open], open_number[:n]]),
        )

    def _find_in_bitmaps(self, cells: NDArray[np.int32], base: int) -> RaggedIds:
        n, layout = cells.shape[1], self.layout
        bands = np.empty(cells.shape, np.uint8)
        rows = np.ascontiguousarray(cells.T)
        row_kernels.to_bands(self.coding.n_cells, cells, bands)
        offsets = np.zeros(n + 1, np.int64)
        out = self.rooms.take(max(1024, self._expect(n)), np.uint32)
        room = max(1 << 16, self._expect(min(n, _BITMAP_EVENTS)))
        for first in range(0, n, _BITMAP_EVENTS):
            last = min(first + _BITMAP_EVENTS, n)
            while True:
                pairs = self._room_for_pairs(room)
                n_pairs = bitmap_kernels.match_bitmaps(
                    layout.bitmaps, bands, rows, first, last, *pairs
                )
                if n_pairs >= 0:
                    break
                room *= 4
            if self._has_open_bitmaps:
                n_pairs = kernels.close_pairs(layout.stream, rows, *pairs, n_pairs)
            n_before = int(offsets[first])
            if n_before + n_pairs > len(out):
                grown = self.rooms.take(2 * (n_before + n_pairs), np.uint32)
                grown[:n_before] = out[:n_before]
                out = grown
            row_kernels.spread(*pairs, n_pairs, first, last, base, offsets, out)
        return RaggedIds(offsets, out[: offsets[-1]])

    def match_one(self, event: Mapping[str, object]) -> NDArray[np.int32]:
        """Return the ids (perhaps repeated) that one event matches."""
        cells = self.space.encode_event(event)
        if self._needs_cells or not cells:
            rows = to_rows(self.coding, _as_column(cells), needs_cells=self._needs_cells)
        else:  # codes are cells
            rows = Rows(np.array([cells], np.uint16), self._no_cells)
        found = self._find_by_event(self._none_skipped, rows, 0)
        if len(self.layout.bitmaps.number):
            found = join(found, self._find_in_bitmaps(_as_column(cells), 0))
        numbers = found.values
        if self.is_patterned:
            numbers = self._pattern_checks.keep_one(event, numbers)
        ids: NDArray[np.int32] = self.ids[numbers]
        return ids

    @property
    def nbytes(self) -> int:
        """Bytes held by the index."""
        coding = sum(array.nbytes for array in self.coding)
        patterns = sum(array.nbytes for array in self.patterns[1:])
        ids = 0 if self.first_id is not None else self.ids.nbytes
        return int(self.layout.nbytes + coding + patterns + ids + self.space.nbytes)

    def check(self) -> None:
        """Verify the invariants of the index."""
        layout = self.layout
        for keys, n in (
            (layout.keys, len(layout.entries)),
            (layout.column_keys, len(layout.columns.number)),
        ):
            start = keys.start.astype(np.int64)
            assert np.all(np.diff(start) >= 0), "clusters are out of order"
            assert start[-1] == n, "entries without a cluster"
        in_entries = (layout.entries[:, 1] >> np.uint64(32)) & np.uint64(NUMBER)
        in_bitmaps = layout.bitmaps.number
        numbers = [in_entries, layout.columns.number, in_bitmaps & NUMBER]
        present = np.unique(np.concatenate([part.astype(np.int64) for part in numbers]))
        assert len(present) == len(self.ids), "a conjunction is lost"
        conditions = read_stream(layout.stream, np.arange(len(self.ids), dtype=np.uint32))
        low, high = conditions.low, conditions.high
        starts = conditions.range_start[:-1][np.diff(conditions.range_start) > 0]
        assert np.all(low < high), "a range of cells is empty"
        inner = np.ones(len(low), np.bool_)
        inner[starts] = False
        assert np.all(low[inner] >= high[np.flatnonzero(inner) - 1]), "ranges overlap"


def join(a: RaggedIds, b: RaggedIds) -> RaggedIds:
    """Join what two parts found, event by event."""
    if not len(a.values) or not len(b.values):
        return a if len(a.values) else b
    offsets = a.offsets + b.offsets
    found = np.empty(len(a.values) + len(b.values), np.uint32)
    a_place = np.arange(len(a.values)) + np.repeat(b.offsets[:-1], np.diff(a.offsets))
    b_place = np.arange(len(b.values)) + np.repeat(a.offsets[1:], np.diff(b.offsets))
    found[a_place], found[b_place] = a.values, b.values
    return RaggedIds(offsets, found)


def spread(
    pairs: tuple[NDArray[np.int32], NDArray[np.uint32]],
    n_pairs: int,
    n_events: int,
    base: int,
    rooms: Rooms,
) -> RaggedIds:
    """Put pairs in the order of events, each number plus a base."""
    offsets = np.zeros(n_events + 1, np.int64)
    out = rooms.take(n_pairs, np.uint32)[:n_pairs]
    row_kernels.spread(*pairs, n_pairs, 0, n_events, base, offsets, out)
    return RaggedIds(offsets, out)


def _as_column(cells: list[int]) -> NDArray[np.int32]:
    """Return the cells of an event as those of a batch of one."""
    return np.array(cells, np.int32).reshape(-1, 1)


def renumbered_ids(ids: NDArray[np.int32], kept: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the places of ids, all of which are there, in a sorted list of ids."""
    return np.searchsorted(kept, ids).astype(np.int32)


def _first_of_run(ids: NDArray[np.int32]) -> int | None:
    """Return the first of ids that follow each other without a gap, else None."""
    if not len(ids) or ids[-1] - ids[0] != len(ids) - 1 or np.any(np.diff(ids) != 1):
        return None
    return int(ids[0])
