"""The write buffer: conjunctions that came a few at a time and are not indexed yet, as plain rows.

Enters: small conjunction tables. Leaves: the rows that events satisfy. Every event is compared with
every row, so that a new subscription costs microseconds, and is indexed with many others later. A
row is compared by values, not cells: nothing has to be laid out for it.

A row that asks a number or a string to equal one value is also under that value in a dictionary. If
all rows are, a single event is compared with those under its own values only.

Rows are appended in place. A `BufferSnapshot` is the buffer at one time: it knows how many rows
belong to it, and no earlier row is ever changed. Arrays that are full are replaced by larger ones;
snapshots keep the old ones. Strings have *labels*: integers in the order of the strings, with gaps
between, so that a new string gets a label and no other changes.

The comparison needs no kernel: NumPy does it where none is compiled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.encode.columns import Column
from tocsin.encode.events import EventBatch, read_value, value_at
from tocsin.engines.auto import write_buffer_kernels as kernels
from tocsin.engines.auto.write_buffer_kernels import (
    ABSENT_CODE,
    ABSENT_FLAG,
    FIRST_CODE,
    FLOAT_CODE,
    OTHER_CODE,
    PRESENT_FLAG,
)
from tocsin.engines.patterns import PatternChecks
from tocsin.engines.ragged import RaggedIds
from tocsin.language.names import is_computed
from tocsin.model import INT64_MAX, INT64_MIN, is_unicode
from tocsin.normalize.condition import domain_of
from tocsin.normalize.domains import Domain, to_key
from tocsin.normalize.keys import float_keys, integer_keys, key_of_number, number_of_key
from tocsin.normalize.normal import Conjunction
from tocsin.normalize.table import ConjunctionTable

MAX_ROWS = 1024
"""The most conjunctions of a buffer: each event is compared with all of them."""
_MAX_ATTRIBUTES = 64
_MAX_PIECES = 8192
_MAX_CANDIDATES = 4
"""An event with more candidates by value is compared with all rows by the kernel."""
_LABEL_STEP = 1 << 44
_LAST_LABEL = 1 << 62
_MAX_COMPARED = 1 << 18
"""As many values are compared at once without kernels."""
_EXACT = 1 << 53
"""Integers up to this are floats too."""
_STRING_CODE = FIRST_CODE + Domain.STRING
_NO_FLOATS = np.empty((0, 0))
_NO_IDS = np.empty(0, np.int32)


class Slot(NamedTuple):
    """An attribute of the buffer: its name, whether that is a path, and the rows by value."""

    name: str
    is_path: bool
    rows_of: dict[Any, list[int]]


class Rows(NamedTuple):
    """Conjunctions as matrices; the values of an event are compared with them.

    A row of `rows` is where the conditions of a conjunction begin and end, one of `conditions` the
    slot of its attribute, its flags (see `normalize.table`), and where its pieces begin and end,
    one of `pieces` a domain, and the cuts of an interval: key and offset of the lower one, of the
    upper one (see `normalize.keys`; the key of a string is its label).
    """

    rows: NDArray[np.int64]
    conditions: NDArray[np.int64]
    pieces: NDArray[np.int64]


class Values(NamedTuple):
    """The values of events, by event and slot.

    A code is `ABSENT_CODE`; `OTHER_CODE` for a present value of no domain; `FLOAT_CODE` for a
    number that is in `floats`; or 2 and the domain, and eight times the offset of the cut just
    before the value, whose key is in `keys`.
    """

    codes: NDArray[np.int64]
    keys: NDArray[np.int64]
    floats: NDArray[np.float64]


class _Labels(NamedTuple):
    """Strings in order, and the label of each; replaced as a whole."""

    texts: list[str]
    labels: list[int]

    def place_of(self, text: str) -> tuple[int, int]:
        """Return the cut at which a string that has no label lies: just after the one before."""
        at = bisect_right(self.texts, text)
        return (self.labels[at - 1] if at else INT64_MIN), 1

    def label_for(self, text: str) -> int | None:
        """Return a label for a new string; None where there is none between its neighbours."""
        at = bisect_left(self.texts, text)
        if at == len(self.texts):
            label = self.labels[-1] + _LABEL_STEP if self.labels else 0
            return label if label < _LAST_LABEL else None
        if at == 0:
            label = self.labels[0] - _LABEL_STEP
            return label if label > -_LAST_LABEL else None
        before, after = self.labels[at - 1], self.labels[at]
        label = (before + after) // 2
        return label if label > before else None

    def with_label(self, text: str, label: int) -> _Labels:
        """Return the labels with one more."""
        at = bisect_left(self.texts, text)
        texts, labels = self.texts.copy(), self.labels.copy()
        texts.insert(at, text)
        labels.insert(at, label)
        return _Labels(texts, labels)


class WriteBuffer:
    """Conjunctions as rows, to which more are appended by one thread at a time."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._n_conditions = self._n_pieces = 0
        self._rows = np.empty((16, 2), np.int64)
        self._conditions = np.empty((64, 4), np.int64)
        self._pieces = np.empty((64, 5), np.int64)
        self._ids = np.empty(16, np.int32)
        self._slots: list[Slot] = []
        self._slot_of: dict[str, int] = {}
        self.labels = _Labels([], [])
        self.label_of: dict[str, int] = {}
        self._patterns = PatternChecks()
        self._sources: list[tuple[ConjunctionTable, int]] = []
        self._conjunctions: dict[int, Conjunction] = {}
        self._has_keys = True

    def append(self, table: ConjunctionTable) -> bool:
        """Append the conjunctions of a table; False, and nothing is changed, if there is no room.

        The ids of its subscriptions are above all earlier ones.
        """
        n, n_pieces = table.n_conjunctions, len(table.domain)
        if (
            self.n_rows + n > MAX_ROWS
            or self._n_pieces + n_pieces > _MAX_PIECES
            or len(self._slot_of.keys() | set(table.attributes)) > _MAX_ATTRIBUTES
        ):
            return False
        labels = self._labels_of(table)
        if labels is None:
            return False
        slots = [self._slot(name) for name in table.attributes]
        self._append_pieces(table, labels)
        self._append_conditions(table, slots)
        first = self.n_rows
        self._rows = _with_capacity(self._rows, first, n)
        self._ids = _with_capacity(self._ids, first, n)
        starts = table.condition_start + self._n_conditions
        self._rows[first : first + n, 0] = starts[:-1]
        self._rows[first : first + n, 1] = starts[1:]
        self._ids[first : first + n] = table.subscription
        self._add_keys(table, first)
        if len(table.pattern_condition):
            self._patterns.add(table, np.arange(first, first + n))
        self._n_conditions += table.n_conditions
        self._n_pieces += n_pieces
        self.n_rows += n
        return True

    def _append_pieces(self, table: ConjunctionTable, labels: list[int]) -> None:
        first, end = self._n_pieces, self._n_pieces + len(table.domain)
        self._pieces = _with_capacity(self._pieces, first, end - first)
        pieces = self._pieces[first:end]
        pieces[:, 0] = table.domain
        pieces[:, 1], pieces[:, 2] = table.low_key, table.low_offset
        pieces[:, 3], pieces[:, 4] = table.high_key, table.high_offset
        strings = np.flatnonzero(table.domain == Domain.STRING)
        if len(strings):
            pieces[strings] = [
                (
                    domain,
                    low if low == INT64_MIN else labels[low],
                    low_offset,
                    high if high == INT64_MAX else labels[high],
                    high_offset,
                )
                for domain, low, low_offset, high, high_offset in pieces[strings].tolist()
            ]

    def _append_conditions(self, table: ConjunctionTable, slots: list[int]) -> None:
        first, end = self._n_conditions, self._n_conditions + table.n_conditions
        self._conditions = _with_capacity(self._conditions, first, end - first)
        conditions, starts = self._conditions[first:end], table.piece_start + self._n_pieces
        conditions[:, 0] = [slots[a] for a in table.attribute.tolist()]
        conditions[:, 1] = table.flags
        conditions[:, 2], conditions[:, 3] = starts[:-1], starts[1:]

    def _add_keys(self, table: ConjunctionTable, first: int) -> None:
        """Enter conjunctions under a value that each asks for, where all have one.

        The attribute of which most values are known tells most conjunctions apart.
        """
        starts, attributes = table.condition_start.tolist(), table.attribute.tolist()
        points = _points_of(table) if self._has_keys else []
        for at in range(table.n_conjunctions):
            self._sources.append((table, at))
            best: list[int] | None = None
            most = 0
            for c in range(starts[at], starts[at + 1] if points else 0):
                if points[c] is not None:
                    slot = self._slots[self._slot_of[table.attributes[attributes[c]]]]
                    rows = slot.rows_of.setdefault(points[c], [])
                    if len(slot.rows_of) > most:
                        most, best = len(slot.rows_of), rows
            if best is None:
                self._has_keys = False
            else:
                best.append(first + at)

    def holds(self, row: int, event: Mapping[str, object]) -> bool:
        """Whether an event satisfies a row."""
        conjunction = self._conjunctions.get(row)
        if conjunction is None:
            table, at = self._sources[row]
            conjunction = self._conjunctions[row] = table.conjunction(at)
        for name, condition in conjunction.items():
            if not condition.holds(read_value(event, name)):
                return False
        return True

    def _labels_of(self, table: ConjunctionTable) -> list[int] | None:
        """Return the labels of a table's strings, by rank; None if one can have none."""
        labels = []
        for text in table.strings:
            label = self.label_of.get(text)
            if label is None:
                label = self.labels.label_for(text)
                if label is None:
                    return None
                self.labels = self.labels.with_label(text, label)
                self.label_of[text] = label
            labels.append(label)
        return labels

    def _slot(self, name: str) -> int:
        slot = self._slot_of.get(name)
        if slot is None:
            slot = self._slot_of[name] = len(self._slots)
            self._slots = [*self._slots, Slot(name, "." in name or is_computed(name), {})]
        return slot

    def snapshot(self) -> BufferSnapshot:
        """Return the rows as they are now."""
        rows = Rows(self._rows, self._conditions, self._pieces)
        return BufferSnapshot(
            rows, self._ids, self.n_rows, self._slots, self, self._patterns, self._has_keys
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the rows."""
        arrays = (self._rows, self._conditions, self._pieces, self._ids)
        return sum(array.nbytes for array in arrays)


class BufferSnapshot:
    """The rows of a buffer at one time; immutable."""

    def __init__(
        self,
        rows: Rows,
        ids: NDArray[np.int32],
        n_rows: int,
        slots: list[Slot],
        buffer: WriteBuffer,
        patterns: PatternChecks,
        has_keys: bool,
    ) -> None:
        self.rows = rows
        self.n_rows = n_rows
        self._ids = ids
        self._slots = slots
        self._buffer = buffer
        self._patterns = patterns
        self._has_keys = has_keys

    def match_one(self, event: Mapping[str, object]) -> NDArray[np.int32]:
        """Return the dense ids, perhaps repeated, that one event matches."""
        if self._has_keys:
            candidates = self._candidates(event)
            if candidates is not None:
                if not candidates:
                    return _NO_IDS
                return self._ids[[row for row in candidates if self._buffer.holds(row, event)]]
        numbers = self._match(self._values_of(event))[1]
        if len(numbers) and len(self._patterns):
            numbers = self._patterns.keep_one(event, numbers)
        ids: NDArray[np.int32] = self._ids[numbers]
        return ids

    def _candidates(self, event: Mapping[str, object]) -> list[int] | None:
        """Return the rows under the values of an event, if they are few and all values are usual.

        Other values, and refused ones, are left to the comparison with all rows.
        """
        candidates: list[int] = []
        for name, is_path, rows_of in self._slots:
            value: Any = value_at(event, name) if is_path else event.get(name)
            kind = value.__class__
            if kind is str:
                if not value.isascii() and not is_unicode(value):
                    return None
            elif kind is int:
                if not INT64_MIN <= value <= INT64_MAX:
                    return None
            elif kind is not float:
                if value is None or kind is bool:
                    continue
                return None
            if rows_of and value in rows_of:
                candidates += rows_of[value]
        if len(candidates) > _MAX_CANDIDATES:
            return None
        return [row for row in candidates if row < self.n_rows]

    def match_batch(self, events: EventBatch) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return pairs of an event and a dense id, perhaps repeated, by event."""
        codes = np.empty((len(events), len(self._slots)), np.int64)
        values = Values(codes, np.zeros(codes.shape, np.int64), _NO_FLOATS)
        for slot, (name, *_) in enumerate(self._slots):
            self._write_values(events.column(name), values.codes[:, slot], values.keys[:, slot])
        event, numbers = self._match(values)
        if len(numbers) and len(self._patterns):
            counts = np.bincount(event, minlength=len(events))
            pairs = RaggedIds(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), numbers)
            pairs = self._patterns.keep(events, pairs)
            event, numbers = pairs.rows(), pairs.values
        return event, self._ids[numbers]

    def _values_of(self, event: Mapping[str, object]) -> Values:
        """Return the values of one event."""
        label_of, codes, keys, floats = self._buffer.label_of, [], [], []
        for name, is_path, _ in self._slots:
            value: Any = read_value(event, name) if is_path else event.get(name)
            kind = value.__class__
            code, key, number = FLOAT_CODE, 0, 0.0
            if kind is float or (kind is int and -_EXACT <= value <= _EXACT):
                number = value
            elif value is None:
                code = ABSENT_CODE
            elif kind is str and value in label_of:
                code, key = _STRING_CODE, label_of[value]
            else:
                code, key = self._value(read_value(event, name))
            codes.append(code)
            keys.append(key)
            floats.append(number)
        return Values(
            np.array([codes], np.int64), np.array([keys], np.int64), np.array([floats], np.float64)
        )

    def _value(self, value: object) -> tuple[int, int]:
        """Return the code and the key of any value."""
        domain = domain_of(value)
        if value is None or domain is None:
            return (ABSENT_CODE if value is None else OTHER_CODE), 0
        if domain is Domain.STRING:
            key, offset = self._string_key(str(value))
        elif domain is Domain.NUMBER:
            key, offset = key_of_number(to_key(value))
        else:
            key, offset = to_key(value), 0
        return FIRST_CODE + domain + 8 * offset, key

    def _string_key(self, text: str) -> tuple[int, int]:
        label = self._buffer.label_of.get(text)
        return self._buffer.labels.place_of(text) if label is None else (label, 0)

    def _write_values(
        self, column: Column, codes: NDArray[np.int64], keys: NDArray[np.int64]
    ) -> None:
        """Write codes and keys of the values of a column."""
        codes[:] = ABSENT_CODE
        if column.other is not None:
            codes[column.other] = OTHER_CODE
        for domain, values, here in column.parts:
            own_keys, offsets = self._keys_of(domain, values)
            own_codes = FIRST_CODE + int(domain) + 8 * offsets.astype(np.int64)
            where: Any = True if here is None else here
            np.copyto(keys, own_keys, where=where)
            np.copyto(codes, own_codes, where=where)

    def _keys_of(self, domain: Domain, values: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
        if domain is Domain.STRING:
            return self._string_keys(values)
        if domain is not Domain.NUMBER:
            return values, np.zeros(1, np.int64)
        if values.dtype == np.float64:
            return float_keys(values), np.zeros(1, np.int64)
        return integer_keys(values)

    def _string_keys(self, strings: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        encoded = strings.dictionary_encode()
        places = [(INT64_MIN, 0), *map(self._string_key, encoded.dictionary.to_pylist())]
        keys = np.array(places, np.int64)
        at = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False) + 1
        return keys[at, 0], keys[at, 1]

    def _match(self, values: Values) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the pairs of an event and a row that it satisfies, by event."""
        limit, first, n_events = self.n_rows, 0, len(values.codes)
        pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []
        capacity = limit * min(n_events, 64)
        while first < n_events:
            event, number = np.empty(capacity, np.int32), np.empty(capacity, np.uint32)
            n, first = kernels.match_rows(*values, *self.rows, limit, first, event, number)
            pairs.append((event[:n], number[:n]))
        return pairs[0] if len(pairs) == 1 else _joined(pairs)

    def _match_without_kernels(self, values: Values) -> tuple[NDArray[Any], NDArray[Any]]:
        """Do what the kernel does with NumPy."""
        rows, limit = self.rows, self.n_rows
        bounds = rows.rows[:limit]
        conditions = rows.conditions[: bounds[-1, 1] if limit else 0]
        pieces = rows.pieces[: conditions[-1, 3] if len(conditions) else 0]
        slots = np.repeat(conditions[:, 0], conditions[:, 3] - conditions[:, 2])
        step = max(_MAX_COMPARED // (len(pieces) + len(conditions) + 1), 1)
        domains, keys, offsets = _without_floats(values)
        pairs = []
        for first in range(0, len(domains), step):
            some = slice(first, first + step)
            satisfied = _satisfied(
                domains[some], keys[some], offsets[some], bounds, conditions, pieces, slots
            )
            event, number = np.nonzero(satisfied)
            pairs.append((event + first, number.astype(np.uint32)))
        return _joined(pairs)


def _points_of(table: ConjunctionTable) -> list[int | float | str | None]:
    """Return for each condition of a table the number or string that it asks for, if only one."""
    starts, flags = table.piece_start.tolist(), table.flags.tolist()
    pieces = [column.tolist() for column in (table.domain, *_bounds(table))]
    points: list[int | float | str | None] = []
    for c in range(table.n_conditions):
        points.append(None)
        if starts[c + 1] - starts[c] != 1 or flags[c]:
            continue
        domain, low, low_offset, high, high_offset = (column[starts[c]] for column in pieces)
        if (low, low_offset + 1) != (high, high_offset) or low_offset & 1:
            continue
        if domain == Domain.STRING:
            points[c] = table.strings[low]
        elif domain == Domain.NUMBER:
            points[c] = number_of_key(low, low_offset)
    return points


def _bounds(table: ConjunctionTable) -> tuple[NDArray[Any], ...]:
    return table.low_key, table.low_offset, table.high_key, table.high_offset


def _joined(pairs: list[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[NDArray[Any], NDArray[Any]]:
    events, numbers = zip(*pairs, strict=True) if pairs else ((), ())
    return (
        np.concatenate([np.empty(0, np.int32), *events]),
        np.concatenate([np.empty(0, np.uint32), *numbers]),
    )


def _without_floats(
    values: Values,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return domains (as codes), keys and offsets of values."""
    codes, keys, floats = values
    is_float = codes == FLOAT_CODE
    if not is_float.any():
        return codes & 7, keys, codes >> 3
    number = np.where(np.isnan(floats), OTHER_CODE, FIRST_CODE)
    domains = np.where(is_float, number, codes & 7)
    return domains, np.where(is_float, float_keys(floats), keys), np.where(is_float, 0, codes >> 3)


def _satisfied(
    domains: NDArray[np.int64],
    keys: NDArray[np.int64],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    conditions: NDArray[np.int64],
    pieces: NDArray[np.int64],
    slots: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return which rows events satisfy, by event; `slots` are those of the pieces."""
    key, offset = keys[:, slots], offsets[:, slots]
    _, low, low_offset, high, high_offset = pieces.T
    is_inside = domains[:, slots] == FIRST_CODE + pieces[:, 0]
    is_inside &= (low < key) | ((low == key) & (low_offset <= offset))
    is_inside &= (key < high) | ((key == high) & (offset < high_offset))
    holds = _count(is_inside, conditions[:, 2], conditions[:, 3]) > 0
    is_absent, flags = domains[:, conditions[:, 0]] == ABSENT_CODE, conditions[:, 1]
    holds |= (flags & PRESENT_FLAG) > 0
    holds = np.where(is_absent, (flags & ABSENT_FLAG) > 0, holds)
    satisfied: NDArray[np.bool_] = _count(holds, rows[:, 0], rows[:, 1]) == rows[:, 1] - rows[:, 0]
    return satisfied


def _count(
    flags: NDArray[np.bool_], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how many flags are set in runs of each line."""
    sums = np.zeros((len(flags), flags.shape[1] + 1), np.int64)
    np.cumsum(flags, axis=1, out=sums[:, 1:])
    counts: NDArray[np.int64] = sums[:, end] - sums[:, start]
    return counts


def _with_capacity(array: NDArray[Any], n_used: int, n_new: int) -> NDArray[Any]:
    """Return a matrix with capacity for more lines: this one, or a larger copy."""
    if n_used + n_new <= len(array):
        return array
    larger = np.empty((max(2 * len(array), n_used + n_new), *array.shape[1:]), array.dtype)
    larger[:n_used] = array[:n_used]
    return larger
