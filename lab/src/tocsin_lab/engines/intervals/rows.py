"""Tables → rows, and events → where their values lie.

Enters: conjunction tables; event batches and single events. Leaves: `Rows` in the order of the
table's conditions, and `Events`. Numbers, booleans and timestamps are compared by their keys and
tails (`normalize.keys`), so that a new bound changes nothing that is there. Strings are compared by
cuts, whose numbers keep their meaning, and whose order is kept apart as marks (`tree.places`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.encode.columns import Column, Part
from tocsin.encode.events import EventBatch, read_value
from tocsin.model import INT64_MAX, INT64_MIN
from tocsin.normalize import domains
from tocsin.normalize.condition import domain_of
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import HIGH_CUT, LOW_CUT, float_keys, integer_keys, key_of_number
from tocsin.normalize.table import ABSENT as ABSENT_FLAG
from tocsin.normalize.table import PRESENT as PRESENT_FLAG
from tocsin.normalize.table import ConjunctionTable
from tocsin_lab.engines.intervals.arrays import (
    ABSENT,
    HIGH,
    LOW,
    POINT,
    PRESENT,
    STRING,
    WHAT,
    Events,
    Rows,
)
from tocsin_lab.engines.tree.places import FIRST_DOMAIN, N_FIXED, Places, StringCuts

_FEW = 64
"""Up to how many conditions and pieces a table is read one condition at a time."""
_ROW_TYPES = (np.int32, np.int8, np.int64, np.int64, np.int16, np.int16)


class Attributes:
    """The attributes by number, and the cuts of their strings."""

    def __init__(self) -> None:
        self.places = Places()

    def __len__(self) -> int:
        return len(self.places.attributes)

    @property
    def names(self) -> list[str]:
        """The attributes' names, by number."""
        return [attribute.name for attribute in self.places.attributes]

    def rows_of(self, table: ConjunctionTable) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rows of a table's conditions, and how many each conjunction has."""
        if table.n_conditions + len(table.domain) <= _FEW:
            return self._rows_of_few(table)
        numbers = np.array([self.places.attribute(name) for name in table.attributes], np.int32)
        attribute = numbers[table.attribute]
        is_absent = (table.flags & ABSENT_FLAG) > 0
        is_present = (table.flags & PRESENT_FLAG) > 0
        n_pieces = np.diff(table.piece_start)
        counts = n_pieces + is_absent + is_present
        start = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=start[1:])
        rows = _empty_rows(int(start[-1]))
        rows.attribute[:] = np.repeat(attribute, counts)
        at = np.arange(len(table.domain)) + np.repeat(start[:-1] - table.piece_start[:-1], n_pieces)
        rows.kind[at] = table.domain
        rows.low[at], rows.high[at] = table.low_key, table.high_key
        rows.low_offset[at], rows.high_offset[at] = table.low_offset, table.high_offset
        rows.kind[(start[:-1] + n_pieces)[is_absent]] = ABSENT
        rows.kind[(start[1:] - 1)[is_present]] = PRESENT
        self._number_strings(rows, table)
        return rows, start[table.condition_start[1:]] - start[table.condition_start[:-1]]

    def _rows_of_few(self, table: ConjunctionTable) -> tuple[Rows, NDArray[np.int64]]:
        """Return the same one condition at a time, which takes less for a small table."""
        numbers = [self.places.attribute(name) for name in table.attributes]
        domains_of, starts = table.domain.tolist(), table.piece_start.tolist()
        lows = list(zip(table.low_key.tolist(), table.low_offset.tolist(), strict=True))
        highs = list(zip(table.high_key.tolist(), table.high_offset.tolist(), strict=True))
        rows: list[tuple[int, int, int, int, int, int]] = []
        row_start = [0]
        for condition, flags in enumerate(table.flags.tolist()):
            number = numbers[table.attribute[condition]]
            for i in range(starts[condition], starts[condition + 1]):
                (low, low_offset), (high, high_offset) = lows[i], highs[i]
                if domains_of[i] == STRING:
                    kind, low, high = self._string_row(number, lows[i], highs[i], table.vocabulary)
                    rows.append((number, kind, low, high, 0, 0))
                else:
                    rows.append((number, domains_of[i], low, high, low_offset, high_offset))
            if flags & ABSENT_FLAG:
                rows.append((number, ABSENT, 0, 0, 0, 0))
            if flags & PRESENT_FLAG:
                rows.append((number, PRESENT, 0, 0, 0, 0))
            row_start.append(len(rows))
        columns = zip(*rows, strict=True) if rows else [()] * 6
        starts_of = np.array(row_start, np.int64)[table.condition_start]
        result = Rows._make(np.array(c, t) for c, t in zip(columns, _ROW_TYPES, strict=True))
        return result, starts_of[1:] - starts_of[:-1]

    def _string_row(
        self, number: int, low: tuple[int, int], high: tuple[int, int], vocabulary: pa.Array
    ) -> tuple[int, int, int]:
        """Return the kind and the cuts of an interval of strings, whose bounds are ranks."""
        first = self.places.attributes[number].first + FIRST_DOMAIN + Domain.STRING
        inner = [cut for cut in (low, high) if cut not in (LOW_CUT, HIGH_CUT)]
        bounds = [(vocabulary[rank].as_py(), side) for rank, side in inner]
        cuts = self.places.string_cuts(number, bounds).tolist() if bounds else []
        is_point = len(inner) == 2 and low[0] == high[0] and (low[1], high[1]) == (0, 1)
        return (
            POINT if is_point else STRING,
            first if low == LOW_CUT else cuts[0],
            first + 1 if high == HIGH_CUT else cuts[-1],
        )

    def _number_strings(self, rows: Rows, table: ConjunctionTable) -> None:
        """Replace the ranks of strings by the numbers of cuts."""
        strings = np.flatnonzero(rows.kind == STRING)
        if not len(strings):
            return
        attribute = rows.attribute[strings]
        for number in np.unique(attribute).tolist():
            own = strings[attribute == number]
            low, low_offset = rows.low[own], rows.low_offset[own]
            high, high_offset = rows.high[own], rows.high_offset[own]
            at_low = (low == INT64_MIN) & (low_offset == 0)
            at_high = (high == INT64_MAX) & (high_offset == 1)
            is_point = ~at_low & ~at_high & (low == high) & (low_offset == 0) & (high_offset == 1)
            start = self.places.attributes[number].first + FIRST_DOMAIN + Domain.STRING
            lows, highs = np.full(len(own), start), np.full(len(own), start + 1)
            inner = [np.flatnonzero(~at_low), np.flatnonzero(~at_high)]
            marked = np.concatenate(
                [
                    2 * low[inner[0]] + low_offset[inner[0]],
                    2 * high[inner[1]] + high_offset[inner[1]],
                ]
            )
            used, which = np.unique(marked, return_inverse=True)
            texts = table.vocabulary.take(used >> 1).to_pylist()
            bounds = list(zip(texts, (used & 1).tolist(), strict=True))
            cuts = self.places.string_cuts(number, bounds)[which] if bounds else which
            lows[inner[0]], highs[inner[1]] = cuts[: len(inner[0])], cuts[len(inner[0]) :]
            rows.kind[own[is_point]] = POINT
            rows.low[own], rows.high[own] = lows, highs
            rows.low_offset[own] = rows.high_offset[own] = 0

    def drop_cuts(self, packed: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Forget the cuts that no row at the given places uses, where most are such."""
        kinds = packed[at, WHAT] & 0xFF
        named = at[(kinds == STRING) | (kinds == POINT)]
        used = np.zeros(self.places.n_cuts, np.bool_)
        used[packed[named, LOW]] = used[packed[named, HIGH]] = True
        if 2 * np.count_nonzero(used) + 64 < self.places.n_cuts - N_FIXED * len(self):
            renumbered = self.places.keep(used)
            packed[named, LOW] = renumbered[packed[named, LOW]]
            packed[named, HIGH] = renumbered[packed[named, HIGH]]

    def encode(self, events: EventBatch, first: int, n: int) -> Events:
        """Encode n events of a batch from the first on."""
        encoded = _empty_events(n, len(self))
        for number, attribute in enumerate(self.places.attributes):
            self._encode_column(number, events.column(attribute.name), first, n, encoded)
        return encoded

    def _encode_column(
        self, number: int, column: Column, first: int, n: int, encoded: Events
    ) -> None:
        if column.other is not None:
            encoded.kind[column.other[first : first + n], number] = PRESENT
        for part in column.parts:
            here = slice(None) if part.here is None else part.here[first : first + n]
            keys, offsets = self._keys(number, part, first, n)
            encoded.kind[here, number] = part.domain
            encoded.key[here, number] = keys[here]
            if offsets is not None:
                encoded.offset[here, number] = offsets[here]

    def _keys(
        self, number: int, part: Part, first: int, n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int16] | None]:
        if part.domain is Domain.STRING:
            return self._string_keys(number, part, first, n), None
        values = part.values[first : first + n]
        if part.domain is not Domain.NUMBER:
            return values, None
        if values.dtype == np.float64:
            return float_keys(values), None
        return integer_keys(values)

    def _string_keys(self, number: int, part: Part, first: int, n: int) -> NDArray[np.int64]:
        attribute = self.places.attributes[number]
        strings = attribute.domains[Domain.STRING]
        assert isinstance(strings, StringCuts)
        start = attribute.first + FIRST_DOMAIN + Domain.STRING
        if not len(strings.cuts):
            return np.full(n, start, np.int64)
        places = np.empty(n, np.int32)
        strings.encode(Domain.STRING, part.values.slice(first, n), places)
        return np.concatenate([np.array([start], np.int64), strings.cuts])[places]

    def encode_one(self, event: Mapping[str, object]) -> Events:
        """Encode one event."""
        encoded = _empty_events(1, len(self))
        for number, attribute in enumerate(self.places.attributes):
            value = read_value(event, attribute.name)
            if value is None:
                continue
            domain = domain_of(value)
            if domain is None:
                encoded.kind[0, number] = PRESENT
                continue
            encoded.kind[0, number] = domain
            if domain is Domain.STRING:
                encoded.key[0, number] = attribute.cut_of(value)
                continue
            key = domains.to_key(value)
            if domain is Domain.NUMBER:
                key, encoded.offset[0, number] = key_of_number(key)
            encoded.key[0, number] = key
        return encoded


def _empty_rows(n: int) -> Rows:
    return Rows._make(np.zeros(n, dtype) for dtype in _ROW_TYPES)


def _empty_events(n: int, n_attributes: int) -> Events:
    return Events(
        np.full((n, n_attributes), ABSENT, np.int8),
        np.zeros((n, n_attributes), np.int64),
        np.zeros((n, n_attributes), np.int16),
    )
