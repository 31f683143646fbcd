"""Segments: an immutable index of some subscriptions, as a tuple of parts.

Enters: conjunctions and statistics of events. Leaves: for each event the numbers of the
conjunctions that it satisfies. A segment matches a batch part by part (see `part`): `Groups` and
`Members` take a family of the entries if the batch is large enough, `Entries` the other families,
`Columns` and `Bitmaps` the conjunctions that are laid out so; `Literals` comes last, has those
under LIKE patterns, and checks the patterns of what the others found.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import CellSpace
from tocsin.encode.events import EventBatch
from tocsin.encode.shares import guessed_shares, measured_shares
from tocsin.engines.auto import members
from tocsin.engines.auto.arrays import NUMBER, Coding, Stream
from tocsin.engines.auto.batch import PreparedBatch, Rows, to_rows
from tocsin.engines.auto.bitmaps import Bitmaps
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.columns import Columns
from tocsin.engines.auto.content import Content, PatternTable
from tocsin.engines.auto.entries import Entries
from tocsin.engines.auto.groups import Groups
from tocsin.engines.auto.layout import Layout, lay_out, read_stream
from tocsin.engines.auto.literals import (
    CompiledPatterns,
    Literals,
    compile_patterns,
    pattern_keys,
)
from tocsin.engines.auto.members import Members
from tocsin.engines.auto.output import MatchRate, no_rows
from tocsin.engines.auto.part import Part, Shared, TableReport
from tocsin.engines.auto.plan import Costs, make_plan, plan_under
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.demands import shown_name


class Segment:
    """The index of some subscriptions, immutable. `ids` are dense ids by conjunction, ascending.

    The name is unique, so that a store need not write a segment again.
    """

    def __init__(
        self,
        space: CellSpace,
        ids: NDArray[np.int32],
        patterns: PatternTable,
        coding: Coding,
        prefixes: tuple[tuple[int, ...], ...],
        layout: Layout,
        pool: BufferPool | None = None,
        name: str | None = None,
        compiled: list[CompiledPatterns] | None = None,
    ) -> None:
        self.name = name or uuid.uuid4().hex
        self.space = space
        self.ids = ids
        self.patterns = patterns
        self.coding = coding
        self.prefixes = prefixes
        self.layout = layout
        self.pool = pool or BufferPool()
        self.needs_cells = not coding.is_exact.all()
        is_new = ids[1:] != ids[:-1]
        self.has_siblings = not is_new.all()
        self.n_subscriptions = int(np.count_nonzero(is_new)) + min(len(ids), 1)
        self.first_id = _first_of_run(ids)
        self._rate = MatchRate()
        self._literals: Literals | None = None
        self.parts = self._make_parts(compiled)
        self._event_parts = [
            part for part in self.parts if not isinstance(part, Groups | Members | Literals)
        ]
        self._n_spread: list[int] = np.where(coding.is_exact, 0, coding.n_cells - 2).tolist()
        self._no_cells = np.empty((0, max(len(coding.n_cells), 1)), np.int32)

    def _make_parts(self, compiled: list[CompiledPatterns] | None) -> tuple[Part, ...]:
        """Return the parts of the layout that have conjunctions, in the order of matching."""
        layout, parts = self.layout, list[Part]()
        shared = Shared(
            self.coding, layout.stream, self.prefixes, self.pool, self._rate, self.needs_cells
        )
        if len(layout.entries):
            tables = layout.keys, layout.entries
            if layout.grouped >= 0:
                parts.append(Groups(shared, *tables, layout.slots, layout.grouped))
            family = members.choose_family(layout.keys)
            if family >= 0:
                parts.append(Members(shared, *tables, family))
            parts.append(Entries(shared, *tables))
        if len(layout.columns.number):
            parts.append(Columns(shared, layout.column_keys, layout.columns))
        if len(layout.bitmaps.number):
            parts.append(Bitmaps(shared, layout.bitmaps))
        if self.is_patterned:
            arguments = self.space, self.patterns, layout.pattern_rows, compiled
            self._literals = Literals(shared, *arguments)
            parts.append(self._literals)
        return tuple(parts)

    @classmethod
    def build(
        cls,
        content: Content,
        sample: EventBatch | None = None,
        costs: Costs | None = None,
        pool: BufferPool | None = None,
    ) -> Segment:
        """Plan and lay out conjunctions, for events like a sample or by guessed statistics."""
        space, conditions = content.space, content.conditions
        if sample is None:
            shares = guessed_shares(space, *conditions[1:])
        else:
            shares = measured_shares(space, space.encode(sample))
        compiled = compile_patterns(content.patterns)
        keys = pattern_keys(content, compiled, sample)
        plan = make_plan(conditions, space.n_cells, shares, costs or Costs(), keys)
        arguments = content.patterns, plan.coding, plan.prefixes, lay_out(conditions, plan), pool
        return cls(space, content.ids, *arguments, compiled=compiled)

    @classmethod
    def build_beside(cls, content: Content, base: Segment) -> Segment | None:
        """Lay out conjunctions in the cells of another segment, under the prefix of its groups.

        They need no plan, and batches are prepared for both segments at once. Returns None where
        a conjunction has no key with that prefix.
        """
        prefix = base.group_prefix
        plan = None if prefix is None else plan_under(content.conditions, base.coding, prefix)
        if prefix is None or plan is None:
            return None
        layout = lay_out(content.conditions, plan, has_columns=False)
        return cls(
            base.space, content.ids, content.patterns, base.coding, (prefix,), layout, base.pool
        )

    def renumbered(self, kept: NDArray[np.int64]) -> Segment:
        """Return the same index with other dense ids: `kept[i]` becomes i. The rest is shared."""
        segment = copy.copy(self)
        segment.name = uuid.uuid4().hex
        segment.ids = renumbered_ids(self.ids, kept)
        segment.first_id = _first_of_run(segment.ids)
        return segment

    @property
    def group_prefix(self) -> tuple[int, ...] | None:
        """The attributes by which large batches are sorted."""
        return None if self.layout.grouped < 0 else self.prefixes[self.layout.grouped]

    @property
    def stream(self) -> Stream:
        """The conditions, by conjunction."""
        return self.layout.stream

    @property
    def n_words(self) -> int:
        """The number of words of the stream."""
        return len(self.layout.stream.words)

    @property
    def is_patterned(self) -> bool:
        """Whether some conjunction has LIKE patterns."""
        return len(self.patterns.conjunction) > 0

    def match(self, batch: PreparedBatch, base: int = 0) -> RaggedIds:
        """Return the conjunctions that each event satisfies, each number plus a base."""
        n = len(batch.events)
        is_done = np.zeros(len(self.layout.keys.base), np.bool_)
        rows = no_rows(n)
        for part in self.parts:
            if part.takes(n):
                rows = part.match(batch, base, is_done, rows)
        self._rate.update(len(rows.values), n)
        return rows

    def match_one(self, event: Mapping[str, object]) -> NDArray[np.int32]:
        """Return the dense ids, perhaps repeated, that one event matches."""
        ids: NDArray[np.int32] = self.ids[self.numbers_of(event)]
        return ids

    def numbers_of(self, event: Mapping[str, object]) -> NDArray[np.uint32]:
        """Return the conjunctions that one event satisfies."""
        cells = self.space.encode_event(event)
        if not cells:
            rows = to_rows(self.coding, as_column(cells))
        elif self.needs_cells:
            codes = [  # see `code_kernels.code_of`
                cell if not n or cell < 2 else 2 + (cell - 2) * 65533 // n
                for cell, n in zip(cells, self._n_spread, strict=True)
            ]
            rows = Rows(np.array([codes], np.uint16), np.array([cells], np.int32))
        else:  # codes are cells
            rows = Rows(np.array([cells], np.uint16), self._no_cells)
        if len(self._event_parts) == 1:
            numbers = self._event_parts[0].match_event(rows, cells)
        else:
            of_parts = [part.match_event(rows, cells) for part in self._event_parts]
            numbers = np.concatenate([np.empty(0, np.uint32), *of_parts])
        if self._literals is not None:
            numbers = self._literals.match_one(event, rows, numbers)
        return numbers

    def explain(self, dense: int) -> list[str]:
        """Say under which key each conjunction of a subscription is."""
        return [self.explain_conjunction(c) for c in np.flatnonzero(self.ids == dense).tolist()]

    def explain_conjunction(self, conjunction: int) -> str:
        """Say under which key a conjunction is, and which patterns are checked."""
        for part in self.parts:
            text = part.explain(conjunction, self._shown_name)
            if text is not None:
                return text + self._explain_checks(conjunction)
        raise AssertionError(f"conjunction {conjunction} is in no part")

    def _explain_checks(self, conjunction: int) -> str:
        """Say which patterns are checked on the candidates of a conjunction."""
        if self._literals is None:
            return ""
        checks = self._literals.checked(conjunction, self._shown_name)
        return f", then checked: {' AND '.join(checks)}" if checks else ""

    def _shown_name(self, attribute: int) -> str:
        return shown_name(self.space.attributes[attribute])

    def describe(self, sample: EventBatch | None) -> list[TableReport]:
        """Report the tables, the one of which events check most rows first.

        Rows are counted for a sample of events; without one, all keys are thought equally likely.
        """
        codes = None
        if sample is not None:
            codes = to_rows(self.coding, self.space.encode(sample)).codes
        reports = [report for part in self.parts for report in part.describe(codes)]
        reports += [] if self._literals is None else self._literals.report(sample)
        return sorted(reports, key=lambda report: -report.checks)

    @property
    def nbytes(self) -> int:
        """The bytes of the index."""
        coding = sum(array.nbytes for array in self.coding)
        patterns = sum(array.nbytes for array in self.patterns[1:])
        patterns += 0 if self._literals is None else self._literals.nbytes
        ids = 0 if self.first_id is not None else self.ids.nbytes
        return int(self.layout.nbytes + coding + patterns + ids + self.space.nbytes)

    def check(self) -> None:
        """Verify the invariants of the index; raise AssertionError where one fails."""
        for part in self.parts:
            part.check()
        numbers = [np.empty(0, np.int64), *(part.numbers() & NUMBER for part in self.parts)]
        present = np.unique(np.concatenate([each.astype(np.int64) for each in numbers]))
        assert len(present) == len(self.ids), "a conjunction is lost"
        conditions = read_stream(self.stream, np.arange(len(self.ids), dtype=np.uint32))
        low, high = conditions.low, conditions.high
        starts = conditions.range_start[:-1][np.diff(conditions.range_start) > 0]
        assert np.all(low < high), "a range of cells is empty"
        inner = np.ones(len(low), np.bool_)
        inner[starts] = False
        assert np.all(low[inner] >= high[np.flatnonzero(inner) - 1]), "ranges overlap"


def as_column(cells: list[int]) -> NDArray[np.int32]:
    """Return the cells of an event as those of a batch of one."""
    return np.array(cells, np.int32).reshape(-1, 1)


def renumbered_ids(ids: NDArray[np.int32], kept: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the positions of ids in a sorted list that has them all."""
    return np.searchsorted(kept, ids).astype(np.int32)


def _first_of_run(ids: NDArray[np.int32]) -> int | None:
    """Return the first of ids that follow each other without a gap, else None."""
    if not len(ids) or ids[-1] - ids[0] != len(ids) - 1 or np.any(np.diff(ids) != 1):
        return None
    return int(ids[0])
