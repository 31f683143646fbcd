"""Pending subscriptions: added, and not indexed yet.

Enters: conjunction tables, often of one subscription each. Leaves: all of them as one table, to be
indexed; and meanwhile the rows of a write buffer, for matches of a few events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.engines.auto.write_buffer import MAX_ROWS, BufferSnapshot, WriteBuffer
from tocsin.model import INT64_MAX, INT64_MIN
from tocsin.normalize.domains import Domain
from tocsin.normalize.table import ConjunctionTable, sort_vocabulary, stack, take

_FEW = 4
"""Up to this number of tables are joined as large ones are."""


class Pending:
    """Tables of conjunctions in the order in which they came; for one thread at a time."""

    def __init__(self, tables: Sequence[ConjunctionTable] = ()) -> None:
        self.tables = list(tables)
        self.n_conjunctions = sum(table.n_conjunctions for table in tables)
        self._buffer = WriteBuffer()
        self._n_buffered = 0
        self._is_full = False

    def __len__(self) -> int:
        return len(self.tables)

    def append(self, table: ConjunctionTable) -> None:
        """Add a table."""
        self.tables.append(table)
        self.n_conjunctions += table.n_conjunctions

    @property
    def n_new(self) -> int:
        """How many tables came since `buffered` was called."""
        return len(self.tables) - self._n_buffered

    def buffered(self) -> BufferSnapshot | None:
        """Return all conjunctions as rows of the write buffer, or None if they are too many."""
        if self._is_full or self.n_conjunctions > MAX_ROWS:
            return None
        while self._n_buffered < len(self.tables):
            if not self._buffer.append(self.tables[self._n_buffered]):
                self._is_full = True
                return None
            self._n_buffered += 1
        return self._buffer.snapshot()

    def table(self, are_live: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> ConjunctionTable:
        """Return the conjunctions of live subscriptions, given by number, as one table."""
        tables = self.tables
        live = are_live(np.concatenate([table.subscription for table in tables]))
        if live.all():
            return join_tables(tables)
        ends = np.cumsum([0, *(table.n_conjunctions for table in tables)])
        n_live = np.diff(np.concatenate([[0], np.cumsum(live)])[ends])
        # What only others mention must leave no trace: their tables are left out.
        kept = [table for table, n in zip(tables, n_live.tolist(), strict=True) if n]
        joined = join_tables(kept or tables[:1])
        live = are_live(joined.subscription)
        return joined if live.all() else take(joined, np.flatnonzero(live))

    @property
    def nbytes(self) -> int:
        """The bytes of the tables and of the write buffer."""
        return sum(table.nbytes for table in self.tables) + self._buffer.nbytes


def join_tables(tables: Sequence[ConjunctionTable]) -> ConjunctionTable:
    """Put the conjunctions of tables one after another, as `stack` does, also of very many."""
    n_subscriptions = sum(table.n_subscriptions for table in tables)
    if len(tables) <= _FEW:
        return stack(tables, [0] * len(tables), n_subscriptions)
    n_conditions = np.array([table.n_conditions for table in tables])
    n_pieces = np.array([len(table.domain) for table in tables])
    n_patterns = np.array([len(table.pattern_condition) for table in tables])
    names: dict[str, int] = {}
    attribute_of = [names.setdefault(n, len(names)) for table in tables for n in table.attributes]
    patterns: dict[Any, int] = {}
    pattern_of = [patterns.setdefault(p, len(patterns)) for t in tables for p in t.patterns]

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(table, name) for table in tables])

    def starts(name: str, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        tails = np.concatenate([getattr(table, name)[1:] for table in tables])
        n_tails = [len(getattr(table, name)) - 1 for table in tables]
        return np.concatenate([[0], tails + np.repeat(_before(counts), n_tails)])

    def renumbered(
        name: str, new: list[int], counts: list[int], n_rows: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        numbers = joined(name) + np.repeat(_before(np.array(counts)), n_rows)
        moved: NDArray[np.int32] = np.array(new, np.int32)[numbers]
        return moved

    vocabulary, low_key, high_key, domain = _joined_strings(tables, joined, n_pieces)
    moved = joined("pattern_condition") + np.repeat(_before(n_conditions), n_patterns)
    return ConjunctionTable(
        attributes=tuple(names),
        vocabulary=vocabulary,
        patterns=tuple(patterns),
        n_subscriptions=n_subscriptions,
        subscription=joined("subscription"),
        condition_start=starts("condition_start", n_conditions),
        attribute=renumbered(
            "attribute", attribute_of, [len(table.attributes) for table in tables], n_conditions
        ),
        flags=joined("flags"),
        piece_start=starts("piece_start", n_pieces),
        domain=domain,
        low_key=low_key,
        low_offset=joined("low_offset"),
        high_key=high_key,
        high_offset=joined("high_offset"),
        pattern_condition=moved,
        pattern_id=renumbered(
            "pattern_id", pattern_of, [len(table.patterns) for table in tables], n_patterns
        ),
        pattern_negated=joined("pattern_negated"),
    )


def _joined_strings(
    tables: Sequence[ConjunctionTable], joined: Any, n_pieces: NDArray[np.int64]
) -> tuple[pa.Array, NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return the vocabulary of all tables, and lower keys, upper keys and domains of all pieces."""
    strings = pa.chunked_array([t.vocabulary for t in tables], pa.large_string()).combine_chunks()
    vocabulary = sort_vocabulary(strings)
    rank_of = pc.index_in(strings, value_set=vocabulary).to_numpy(zero_copy_only=False)
    before = np.repeat(_before(np.array([len(t.vocabulary) for t in tables])), n_pieces)
    domain = joined("domain")
    low, high = joined("low_key"), joined("high_key")
    for keys, end in ((low, INT64_MIN), (high, INT64_MAX)):
        is_rank = np.flatnonzero((domain == Domain.STRING) & (keys != end))
        keys[is_rank] = rank_of[keys[is_rank] + before[is_rank]]
    return vocabulary, low, high, domain


def _before(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each count the sum of the earlier ones."""
    return np.cumsum(counts) - counts
