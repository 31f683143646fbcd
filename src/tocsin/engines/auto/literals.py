"""Literals: conjunctions under a LIKE pattern, found by the literals in a text; and pattern checks.

`title LIKE '%word%'` is no interval of strings, so no key of cells leads to it. Here the key is the
pattern: a text is read once, by an automaton of one literal of each pattern (see `pattern_set`),
which gives the patterns that it fits, and under each pattern are its conjunctions. Where these have
other conditions they are verified against the stream.

A conjunction may have several patterns, and one that is rarely satisfied otherwise is better found
by another key: the planner decides. What is left of its patterns is checked here, when all parts
have found their candidates: each distinct pattern once on each distinct text of a batch.

Patterns are compiled when they are first needed; no compiled form is stored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.cells import CellSpace
from tocsin.encode.events import EventBatch, read_value
from tocsin.encode.strings import Strings, one_string
from tocsin.engines.auto import pattern_row_kernels
from tocsin.engines.auto.arrays import NEEDS_CHECK, Flags, Integers, Numbers
from tocsin.engines.auto.batch import PreparedBatch, Rows
from tocsin.engines.auto.content import Content, PatternTable
from tocsin.engines.auto.layout import read_stream
from tocsin.engines.auto.output import Buffer, by_event, join
from tocsin.engines.auto.part import Part, Shared, TableReport
from tocsin.engines.auto.pattern_set import PatternSet, Scratch
from tocsin.engines.auto.plan import NO_PATTERNS, PatternKeys
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.domains import Domain
from tocsin.normalize.patterns import Pattern

_MIN_CAPACITY = 1024
_NO_ROWS = Rows(np.empty((0, 1), np.uint16), np.empty((0, 1), np.int32))


class Subject(NamedTuple):
    """What patterns are tried on: the strings of an attribute, as they are or in lower case."""

    attribute: int
    ignore_case: bool


class CompiledPatterns(NamedTuple):
    """The patterns of a subject, and by row of the `PatternTable` the number of its pattern there.

    `number` is -1 for the rows of other subjects.
    """

    subject: Subject
    patterns: PatternSet
    number: NDArray[np.int64]


def compile_patterns(table: PatternTable) -> list[CompiledPatterns]:
    """Compile the patterns of each subject."""
    compiled = []
    subjects = table.attribute.astype(np.int64) * 2 + table.ignore_case[table.number]
    for subject in np.unique(subjects).tolist():
        rows = np.flatnonzero(subjects == subject)
        used, local = np.unique(table.number[rows], return_inverse=True)
        ignore_case = bool(subject % 2)
        patterns = PatternSet([table.patterns[p] for p in used.tolist()], ignore_case=ignore_case)
        place = np.empty(len(patterns), np.int64)
        place[patterns.order] = np.arange(len(patterns))
        number = np.full(len(table.conjunction), -1, np.int64)
        number[rows] = place[local]
        compiled.append(CompiledPatterns(Subject(subject // 2, ignore_case), patterns, number))
    return compiled


def pattern_keys(
    content: Content, compiled: Sequence[CompiledPatterns], sample: EventBatch | None
) -> PatternKeys:
    """Return for each conjunction the pattern that fits the fewest events, if one can be a key."""
    table = content.patterns
    share = np.full(len(table.conjunction), np.inf)
    group = np.zeros(len(table.conjunction), np.int64)
    for at, (subject, patterns, number) in enumerate(compiled):
        rows = np.flatnonzero((number >= 0) & (table.negated == 0))
        rows = rows[number[rows] < patterns.n_with_literal]
        shares = patterns.guessed_shares
        if sample is not None:
            name = content.space.attributes[subject.attribute]
            strings = sample.strings(name, ignore_case=subject.ignore_case)
            shares = patterns.shares(strings, len(sample))
        share[rows], group[rows] = shares[number[rows]], at
    order = np.lexsort((share, table.conjunction))
    order = order[np.isfinite(share[order])]
    conjunction = table.conjunction[order]
    rows = order[np.flatnonzero(np.diff(conjunction, prepend=-1))]
    if not len(rows):
        return NO_PATTERNS
    return PatternKeys(table.conjunction[rows], rows, share[rows], group[rows])


class _Group(NamedTuple):
    """The patterns of a subject, the conjunctions under each, and what is checked besides.

    Under pattern p are `rows[row_start[p] : row_start[p + 1]]`, flagged `NEEDS_CHECK` where there
    are other conditions. The checks of conjunction c are `check[check_start[c] : ...]`: twice the
    pattern, plus 1 where it must not fit. `check_start` is empty where there are none.
    """

    name: str
    ignore_case: bool
    patterns: PatternSet
    row_start: Integers
    rows: Numbers
    check_start: Integers
    check: Integers

    def strings_of(self, events: EventBatch) -> Strings:
        return events.strings(self.name, ignore_case=self.ignore_case)

    def string_of(self, event: Mapping[str, object]) -> Strings | None:
        value = read_value(event, self.name)
        return (
            one_string(str(value), ignore_case=self.ignore_case) if isinstance(value, str) else None
        )


class Literals(Part):
    """Conjunctions under patterns, and the checks of all patterns; the last part of a segment."""

    def __init__(
        self,
        shared: Shared,
        space: CellSpace,
        table: PatternTable,
        key_rows: Integers,
        compiled: list[CompiledPatterns] | None = None,
    ) -> None:
        self._shared, self._space, self._table, self._key_rows = shared, space, table, key_rows
        self._compiled = compiled
        self._made: list[_Group] | None = None
        self._has_checks = True
        self._lock, self._scratch = threading.Lock(), Scratch()

    @property
    def _groups(self) -> list[_Group]:
        groups = self._made
        return self._make_groups() if groups is None else groups

    def _make_groups(self) -> list[_Group]:
        with self._lock:  # of several threads, one compiles
            if self._made is None:
                compiled = self._compiled or compile_patterns(self._table)
                self._made = [self._make_group(each) for each in compiled]
                self._has_checks = any(len(group.check) for group in self._made)
                self._compiled = None
            return self._made

    def _make_group(self, compiled: CompiledPatterns) -> _Group:
        subject, patterns, number = compiled
        table, n = self._table, len(self._shared.stream.start)
        is_key = np.zeros(len(number), np.bool_)
        is_key[self._key_rows] = True
        keys = np.flatnonzero(is_key & (number >= 0))
        keys = keys[np.argsort(number[keys], kind="stable")]
        rows = self._flagged(table.conjunction[keys], subject.attribute)
        others = np.flatnonzero(~is_key & (number >= 0))
        others = others[np.argsort(table.conjunction[others], kind="stable")]
        check_start = np.searchsorted(
            table.conjunction[others], np.arange(n + 1 if len(others) else 0)
        )
        return _Group(
            self._space.attributes[subject.attribute],
            subject.ignore_case,
            patterns,
            np.searchsorted(number[keys], np.arange(len(patterns) + 1)),
            rows,
            check_start.astype(np.int64),
            2 * number[others] + table.negated[others],
        )

    def _flagged(self, conjunctions: Integers, attribute: int) -> Numbers:
        """Return conjunctions, flagged where a string alone does not satisfy their conditions."""
        numbers = conjunctions.astype(np.uint32)
        conditions = read_stream(self._shared.stream, numbers)
        strings = self._space.domains[attribute].get(Domain.STRING)
        first = conditions.start[:-1]
        n_conditions = np.diff(conditions.start)
        is_free = n_conditions == 1
        if strings is not None and len(numbers):
            ranges = conditions.range_start[first]
            is_free &= conditions.range_start[first + 1] - ranges == 1
            is_free &= conditions.low[ranges] == strings.base
            is_free &= conditions.high[ranges] == strings.base + strings.n_cells
        numbers[~is_free] |= NEEDS_CHECK
        return numbers

    def match(self, batch: PreparedBatch, base: int, is_done: Flags, rows: RaggedIds) -> RaggedIds:
        """Add what is under patterns to the candidates of all parts, and check their patterns."""
        assert base == 0, "patterns are checked by the numbers of conjunctions"
        for group in self._groups:
            if len(group.rows):
                own = self._match_group(group, batch)
                rows = join(rows, own, self._shared.pool)
        return self._keep(rows, lambda group: group.strings_of(batch.events))

    def _match_group(self, group: _Group, batch: PreparedBatch) -> RaggedIds:
        shared = self._shared
        strings = group.strings_of(batch.events)
        hits = group.patterns.scan(strings, self._scratch, shared.pool)
        need_cells = bool(len(hits.values)) and bool(np.any(group.rows >= NEEDS_CHECK))
        rows = batch.rows(shared.coding, shared.needs_cells) if need_cells else _NO_ROWS
        return self._rows_under(group, strings, hits, rows)

    def _rows_under(
        self, group: _Group, strings: Strings, hits: RaggedIds, rows: Rows
    ) -> RaggedIds:
        n, shared = len(strings.of_event), self._shared
        buffer = Buffer(shared.pool, 2 * len(hits.values) + 1024, np.uint32)
        arguments = (strings.of_event, *hits, group.row_start, group.rows, shared.stream, *rows)
        kernel = pattern_row_kernels.match_rows
        return by_event(kernel, arguments, n, buffer, len(group.rows))

    def _keep(
        self, candidates: RaggedIds, strings_of: Callable[[_Group], Strings | None]
    ) -> RaggedIds:
        """Return the candidates whose patterns fit."""
        groups = [group for group in self._groups if len(group.check)]
        if not groups or not len(candidates.values):
            return candidates
        is_match = np.ones(len(candidates.values), np.bool_)
        for group in groups:
            strings = strings_of(group)
            if strings is None:
                continue
            scratch, n, patterns = self._scratch, strings.n, group.patterns
            pattern_row_kernels.check_patterns(
                *patterns.arrays,
                strings.start,
                strings.octets,
                strings.of_event,
                candidates.offsets,
                candidates.values,
                group.check_start,
                group.check,
                *scratch.pattern_stamps(len(patterns), n),
                *scratch.literal_stamps(len(patterns.automaton.shorter), n),
                is_match,
            )
        ends = np.zeros(len(candidates.offsets), np.int64)
        pattern_row_kernels.keep_marked(*candidates, is_match, ends[1:], candidates.values)
        return RaggedIds(ends, candidates.values[: ends[-1]])

    def match_one(self, event: Mapping[str, object], rows: Rows, numbers: Numbers) -> Numbers:
        """Add what is under patterns to the candidates of a single event, and check patterns."""
        parts = [numbers]
        for group in self._groups:
            if len(group.rows):
                strings = group.string_of(event)
                if strings is not None:
                    parts.append(self._match_text(group, strings, rows))
        candidates = numbers if len(parts) == 1 else np.concatenate(parts)
        if not self._has_checks or not len(candidates):
            return candidates
        offsets = np.array([0, len(candidates)], np.int64)
        return self._keep(RaggedIds(offsets, candidates), lambda g: g.string_of(event)).values

    def _match_text(self, group: _Group, strings: Strings, rows: Rows) -> Numbers:
        patterns, scratch = group.patterns, self._scratch
        hits, out = scratch.hits(len(patterns)), scratch.rows(_MIN_CAPACITY)
        while True:
            stamps = scratch.literal_stamps(len(patterns.automaton.shorter), 1)
            kernel = pattern_row_kernels.match_text
            n: int = kernel(
                *patterns.arrays,
                strings.octets,
                *stamps,
                group.row_start,
                group.rows,
                self._shared.stream,
                rows.codes,
                rows.cells,
                hits,
                out,
            )
            if n >= 0:
                return out[:n].copy()
            out = scratch.rows(-n)

    def numbers(self) -> Numbers:
        """Return the conjunctions under patterns."""
        numbers: Numbers = self._table.conjunction[self._key_rows].astype(np.uint32)
        return numbers

    def explain(self, conjunction: int, name: Callable[[int], str]) -> str | None:
        """Say under which pattern a conjunction is, if it is under one."""
        row = np.flatnonzero(self._table.conjunction[self._key_rows] == conjunction)
        if not len(row):
            return None
        text = self._text(int(self._key_rows[row[0]]), name)
        return f"kept under {text} with {len(self._key_rows)} conjunctions under patterns in all"

    def checked(self, conjunction: int, name: Callable[[int], str]) -> list[str]:
        """Return the patterns of a conjunction that are checked on its candidates."""
        rows = np.flatnonzero(self._table.conjunction == conjunction)
        return [self._text(row, name) for row in rows.tolist() if row not in self._key_rows]

    def _text(self, row: int, name: Callable[[int], str]) -> str:
        table = self._table
        number = int(table.number[row])
        word = ("NOT " if table.negated[row] else "") + ("I" if table.ignore_case[number] else "")
        pattern: Pattern = table.patterns[number]
        return f"{name(int(table.attribute[row]))} {word}LIKE '{pattern.text}'"

    def report(self, sample: EventBatch | None) -> list[TableReport]:
        """Report the conjunctions under the patterns of each subject, and the checks besides.

        They are counted for a sample of events; without one, they are guessed.
        """
        reports = []
        for group in self._groups:
            attribute = (self._space.attributes.index(group.name),)
            shares = group.patterns.guessed_shares
            if sample is not None:
                shares = group.patterns.shares(group.strings_of(sample), len(sample))
            word = "ILIKE" if group.ignore_case else "LIKE"
            if len(group.rows):
                counts = np.diff(group.row_start)
                n = int(np.count_nonzero(counts))
                form = f"under {n} {word} patterns, all looked for at once"
                expected = float(np.sum(shares * counts))
                reports.append(TableReport(attribute, len(group.rows), form, expected))
            if len(group.check):
                n = len(np.unique(group.check >> 1))
                form = f"checks of {n} {word} patterns on candidates"
                reports.append(TableReport(attribute, len(group.check), form, 0.0))
        return reports

    @property
    def nbytes(self) -> int:
        """The bytes of what is compiled by now."""
        if self._made is None:
            return 0
        return sum(
            group.patterns.nbytes
            + sum(array.nbytes for array in group if isinstance(array, np.ndarray))
            for group in self._made
        )
