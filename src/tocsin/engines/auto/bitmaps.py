"""Bitmaps: conjunctions that many events satisfy, 64 at a time.

A key saves nothing for a conjunction that a good part of the events satisfies. Such conjunctions
are put into words of 64, those with the same attributes together. The cells of an attribute fall
into up to 64 bands; a word has for each of its attributes and each band a bit mask of the
conjunctions that the band admits. An event intersects the masks of its bands, one load per
attribute for 64 conjunctions; the few that are left are compared in exact cells, eight ranges at a
time. What has more attributes, or several ranges on one, is verified.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tocsin.engines.auto import bitmap_kernels, row_kernels, verify_kernels
from tocsin.engines.auto.arrays import (
    N_BANDS,
    NUMBER,
    BitmapArrays,
    Cells,
    Codes,
    Coding,
    Conditions,
    Flags,
    Integers,
    Numbers,
)
from tocsin.engines.auto.batch import PreparedBatch, Rows
from tocsin.engines.auto.output import Buffer, join
from tocsin.engines.auto.part import Part, Shared, TableReport
from tocsin.engines.ragged import RaggedIds
from tocsin.jit import RANGES

_BLOCK_EVENTS = 2048
"""How many events are matched with all words at a time."""
_NO_CELL = 0xFFFFFFFF
"""The lower bounds of a place without a conjunction, which no cell reaches."""


def order(conditions: Conditions, selected: Numbers) -> Numbers:
    """Order conjunctions so that those with the same attributes come into the same word."""
    signatures = np.empty((2, len(selected)), np.uint64)
    bitmap_kernels.attribute_signatures(conditions, selected, signatures)
    ordered: Numbers = selected[np.lexsort((signatures[1], signatures[0]))]
    return ordered


def build(conditions: Conditions, coding: Coding, selected: Numbers) -> BitmapArrays:
    """Put conjunctions into words of 64, in their order."""
    n_words = -(-len(selected) // 64)
    start = np.zeros(n_words + 1, np.int64)
    attributes: Integers = np.empty(0, np.int64)
    for _ in range(2):  # count them, then write them
        last_word = np.full(len(coding.n_cells), -1, np.int64)
        n = bitmap_kernels.find_word_attributes(conditions, selected, last_word, start, attributes)
        attributes = np.empty(n, np.int64) if not len(attributes) else attributes
    arrays = BitmapArrays(
        start,
        attributes,
        np.empty(n * N_BANDS, np.uint64),
        np.zeros(n_words * 64, np.uint32),
        np.zeros(n_words * RANGES, np.int32),
        np.full(n_words * 64 * RANGES, _NO_CELL, np.uint32),
        np.zeros(n_words * 64 * RANGES, np.uint32),
    )
    bitmap_kernels.fill_bitmaps(conditions, coding.n_cells, selected, arrays)
    return arrays


class Bitmaps(Part):
    """Conjunctions in words of 64, matched with all events of a batch."""

    def __init__(self, shared: Shared, arrays: BitmapArrays) -> None:
        self._shared, self._arrays = shared, arrays
        self._need_checks = bool(np.any(arrays.number > NUMBER))

    def match(self, batch: PreparedBatch, base: int, is_done: Flags, rows: RaggedIds) -> RaggedIds:
        """Match all words."""
        return join(rows, self._match(batch.cells, base), self._shared.pool)

    def match_event(self, rows: Rows, cells: list[int]) -> Numbers:
        """Match one event."""
        return self._match(np.array(cells, np.int32).reshape(-1, 1), 0).values

    def _match(self, cells: Cells, base: int) -> RaggedIds:
        shared, arrays, n = self._shared, self._arrays, cells.shape[1]
        bands = np.empty(cells.shape, np.uint8)
        rows = np.ascontiguousarray(cells.T)
        bitmap_kernels.to_bands(shared.coding.n_cells, cells, bands)
        offsets = np.zeros(n + 1, np.int64)
        out = Buffer(shared.pool, max(1024, shared.rate.expected(n)), np.uint32)
        n_pairs = max(1 << 16, shared.rate.expected(min(n, _BLOCK_EVENTS)))
        pairs = Buffer(shared.pool, n_pairs, np.int32, np.uint32)
        for first in range(0, n, _BLOCK_EVENTS):
            last = min(first + _BLOCK_EVENTS, n)
            n_pairs = pairs.fill(bitmap_kernels.match_bitmaps, arrays, bands, rows, first, last)
            if self._need_checks:
                n_pairs = verify_kernels.verify_pairs(shared.stream, rows, n_pairs, *pairs.arrays)
            n_before = int(offsets[first])
            if n_before + n_pairs > len(out):
                out.grow(n_before, 2 * (n_before + n_pairs))
            event, number = pairs.arrays
            row_kernels.pairs_to_ragged(
                event, number, n_pairs, first, last, base, offsets, out.arrays[0]
            )
        return RaggedIds(offsets, out.arrays[0][: offsets[-1]])

    def numbers(self) -> Numbers:
        """Return the conjunctions."""
        numbers: Numbers = self._arrays.number[self._arrays.low[::RANGES] != _NO_CELL] & NUMBER
        return numbers

    def explain(self, conjunction: int, name: Callable[[int], str]) -> str | None:
        """Say that a conjunction is in bitmaps."""
        numbers = self.numbers()
        if not np.any(numbers == conjunction):
            return None
        return f"kept in bitmaps with {len(numbers)} conjunctions in all: most events come near"

    def describe(self, codes: Codes | None) -> list[TableReport]:
        """Report the words as one table: an event checks each of them."""
        n_words = len(self._arrays.start) - 1
        return [TableReport((), len(self.numbers()), "in words of bitmaps", float(n_words))]
