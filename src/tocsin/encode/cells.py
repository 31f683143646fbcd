"""Bounds → cells: the integer code of values and conditions within one segment.

Enters: a conjunction table. Leaves: a `CellSpace`: the cuts that the conditions on an attribute use
divide each domain into cells; a condition becomes a few ranges of cells, an event a row of cell
numbers. From there on kinds do not matter and every comparison is one of small integers.

Cells of an attribute: 0 is absent, 1 a present value in a domain that no condition cuts (or in
none: NaN, lists), then domain by domain the cells between neighbouring cuts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.encode import cell_kernels as kernels
from tocsin.encode.columns import Column, Part
from tocsin.encode.domain_cells import DomainCells
from tocsin.encode.events import EventBatch, read_value
from tocsin.encode.plain import Plain
from tocsin.model import INT64_MAX, INT64_MIN
from tocsin.normalize import domains
from tocsin.normalize.condition import domain_of
from tocsin.normalize.domains import Domain
from tocsin.normalize.table import ABSENT, PRESENT, ConjunctionTable

ABSENT_CELL = 0
OTHER_CELL = 1
FIRST_CELL = 2
_MAX_VALUES = 4096
"""Maximum number of cached values of an attribute."""
_MAX_LISTED = 1 << 16
"""Up to this number, the cuts of an attribute's strings are kept as Python objects too."""
_MAX_VALUE_BYTES = 1024
"""Larger values are not cached."""
_MAX_MEMORY_BYTES = 32 << 20
"""Maximum size of all cached values of a space."""
_BEYOND = 2**63
"""An integer this great is refused."""
_ENTRY_BYTES = 128
"""Overhead of a cached value, rounded up."""
ALL_HERE = np.empty(0, np.bool_)
"""Marks all values."""


class Ranges(NamedTuple):
    """Conditions in cells: the attribute of each, and its half-open ranges."""

    attribute: NDArray[np.int32]
    start: NDArray[np.int64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]


class Present(NamedTuple):
    """The values of a batch that are not absent, by attribute: their events and cells.

    Those of attribute a are `start[a] : start[a + 1]`, in the order of events.
    """

    start: NDArray[np.int64]
    event: NDArray[np.int32]
    cell: NDArray[np.int32]


class CellSpace:
    """The cells of every attribute that a conjunction table mentions."""

    def __init__(self, table: ConjunctionTable) -> None:
        cuts = _find_cuts(table)
        self._set(table.attributes, table.vocabulary, cuts.domains)
        self.range_start, self.range_low, self.range_high = _condition_ranges(
            table, cuts, self.n_cells
        )

    def _set(
        self,
        attributes: tuple[str, ...],
        vocabulary: pa.Array,
        domains: list[dict[Domain, DomainCells]],
    ) -> None:
        self.attributes = attributes
        self.vocabulary = vocabulary
        self.domains = domains
        self.n_cells = np.array(
            [
                FIRST_CELL + sum(cells.n_cells for cells in by_domain.values())
                for by_domain in domains
            ],
            np.int32,
        )

    @classmethod
    def from_domains(
        cls,
        attributes: tuple[str, ...],
        vocabulary: pa.Array,
        domains: list[dict[Domain, DomainCells]],
    ) -> CellSpace:
        """Make a space from cuts by attribute and domain, without conditions."""
        space = cls.__new__(cls)
        space._set(attributes, vocabulary, domains)
        space.forget_conditions()
        return space

    def forget_conditions(self) -> None:
        """Drop the ranges of the table's conditions, which are larger than the cuts."""
        self.range_start = np.zeros(1, np.int64)
        self.range_low = self.range_high = np.empty(0, np.int32)

    def encode(
        self, events: EventBatch, cells: NDArray[np.int32] | None = None
    ) -> NDArray[np.int32]:
        """Return the cells of a batch, one row for each attribute; written to `cells` if given."""
        if cells is None:
            cells = np.empty((len(self.attributes), len(events)), np.int32)
        looked_up = []
        for at, name in enumerate(self.attributes):
            plain, space = events.plain(name), self.domains[at].get(Domain.NUMBER)
            if plain is None or space is None or not plain.is_whole or plain.n_here < len(events):
                self.encode_column(at, events.column(name), cells[at])
            elif space.table_place is None:
                encode_numbers(space, plain.values, ALL_HERE, cells[at])
            else:
                looked_up.append((at, plain.address, *space.table_place))
        if looked_up:
            kernels.look_up_columns(np.array(looked_up, np.int64), cells)
        return cells

    def encode_present(self, events: EventBatch) -> Present:
        """Return the cells of the present values, by attribute."""
        columns = [events.plain(name) for name in self.attributes]
        n = sum(len(events) if plain is None else plain.n_here for plain in columns)
        rows, cells = np.empty(n, np.int32), np.empty(n, np.int32)
        start = np.zeros(len(columns) + 1, np.int64)
        n_found = 0
        for at, plain in enumerate(columns):
            space = self.domains[at].get(Domain.NUMBER)
            if plain is None or space is None:
                row = np.empty(len(events), np.int32)
                self.encode_column(at, events.column(self.attributes[at]), row)
                n_found = kernels.keep_present(row, n_found, rows, cells)
            elif plain.n_here:
                n_found = search_present(space, plain, n_found, rows, cells)
            start[at + 1] = n_found
        return Present(start, rows[:n_found], cells[:n_found])

    def encode_column(self, at: int, column: Column, cells: NDArray[np.int32]) -> None:
        """Write the cells of the values of an attribute."""
        if not column.parts or column.parts[0].here is not None:
            cells[:] = ABSENT_CELL
        if column.other is not None:
            cells[column.other] = OTHER_CELL
        for part in column.parts:
            self._encode_part(at, part, cells)

    def _encode_part(self, at: int, part: Part, cells: NDArray[np.int32]) -> None:
        """Write the cells of the marked values."""
        space = self.domains[at].get(part.domain)
        here = ALL_HERE if part.here is None else part.here
        if space is None:
            cells[slice(None) if part.here is None else part.here] = OTHER_CELL
        elif part.domain is Domain.STRING:
            encoded = self._encode_strings(space, part.values)
            np.copyto(cells, encoded, where=True if part.here is None else part.here)
        elif part.domain is not Domain.NUMBER:
            encoded = (np.searchsorted(space.keys, part.values, side="right") + space.base).astype(
                np.int32
            )
            np.copyto(cells, encoded, where=True if part.here is None else part.here)
        else:
            encode_numbers(space, part.values, here, cells)

    def _encode_strings(self, space: DomainCells, strings: pa.Array) -> NDArray[np.int32]:
        encoded = strings.dictionary_encode()
        starts, data = _string_buffers(encoded.dictionary)
        cell_of = np.empty(len(encoded.dictionary) + 1, np.int32)
        cell_of[-1] = OTHER_CELL
        bound_starts, bound_data = self._vocabulary_buffers
        kernels.search_strings(
            starts, data, bound_starts, bound_data, space.keys, space.offsets, space.base, cell_of
        )
        indices: NDArray[np.int32] = encoded.indices.fill_null(-1).to_numpy()
        return cell_of[indices]

    @cached_property
    def _vocabulary_buffers(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        return _string_buffers(self.vocabulary)

    def encode_event(self, event: Mapping[str, object]) -> list[int]:
        """Return the cells of one event, by attribute.

        Numbers are searched for, the cells of strings are cached.
        """
        row = []
        for at, (name, is_path, known, base, floats, integers) in enumerate(self._memory.values):
            value: Any = read_value(event, name) if is_path else event.get(name)
            kind = value.__class__
            if kind is float and floats is not None and value == value:
                row.append(base + bisect_right(floats, value))
            elif kind is int and integers is not None and -_BEYOND < value < _BEYOND:
                row.append(base + bisect_right(integers, value))
            elif value is None:
                row.append(ABSENT_CELL)
            else:  # another thread may clear the cache at any time
                cell = known.get(value) if kind is str or kind is bool else None
                row.append(self._encode_new(at, event) if cell is None else cell)
        return row

    @cached_property
    def _memory(self) -> _Memory:
        return _Memory(self.attributes)

    def _encode_new(self, at: int, event: Mapping[str, object]) -> int:
        value = read_value(event, self.attributes[at])
        cell = self.encode_value(at, value)
        if isinstance(value, str | bool):
            self._memory.add(at, value, cell)
        elif isinstance(value, int | float):
            self._memory.search(at, type(value), self.domains[at].get(Domain.NUMBER))
        return cell

    def encode_value(self, at: int, value: object) -> int:
        """Return the cell of one Python value."""
        if value is None:
            return ABSENT_CELL
        domain = domain_of(value)
        space = None if domain is None else self.domains[at].get(domain)
        if space is None or domain is None:
            return OTHER_CELL
        if domain is Domain.STRING:
            return self._string_cell(space, str(value))
        key = domains.to_key(value)
        return space.base + bisect_right(space.bounds_for(domain, key), key)

    def _string_cell(self, space: DomainCells, value: str) -> int:
        if len(space.keys) > _MAX_LISTED:
            return self._search_string(space, value)
        cuts = self._listed.get(id(space))
        if cuts is None:
            listed = self.vocabulary.take(pa.array(space.keys)).to_pylist()
            cuts = self._listed[id(space)] = listed, space.offsets.tolist()
        strings, offsets = cuts
        at = bisect_left(strings, value)
        while at < len(strings) and strings[at] == value and not offsets[at]:
            at += 1
        return space.base + at

    @cached_property
    def _listed(self) -> dict[int, tuple[list[str], list[int]]]:
        """The cuts of strings as Python objects, by domain cells."""
        return {}

    def _search_string(self, space: DomainCells, value: str) -> int:
        """Search the cuts where they lie."""
        low, high = 0, len(space.keys)
        strings = self.vocabulary
        while low < high:
            middle = (low + high) // 2
            bound = strings[int(space.keys[middle])].as_py()
            passed = value > bound if space.offsets[middle] else value >= bound
            low, high = (middle + 1, high) if passed else (low, middle)
        return space.base + low

    def ranges_of(self, table: ConjunctionTable) -> Ranges | None:
        """Return another table's conditions in these cells, or None if a cut is missing."""
        number = {name: at for at, name in enumerate(self.attributes)}
        attribute = np.array([number.get(name, -1) for name in table.attributes], np.int32)
        if np.any(attribute < 0):
            return None
        low_key, high_key = table.low_key, table.high_key
        is_string = table.domain == Domain.STRING
        if is_string.any():
            ranks = pc.index_in(table.vocabulary, value_set=self.vocabulary).fill_null(-1)
            rank_of = ranks.to_numpy(zero_copy_only=False).astype(np.int64)
            low_key = _reranked(low_key, is_string & (low_key != INT64_MIN), rank_of)
            high_key = _reranked(high_key, is_string & (high_key != INT64_MAX), rank_of)
        owner = np.repeat(attribute[table.attribute], np.diff(table.piece_start))
        group = owner.astype(np.int64) * 4 + table.domain
        cells = np.empty((2, len(group)), np.int32)
        ends = (INT64_MIN, 0), (INT64_MAX, 1)
        bounds = (low_key, table.low_offset), (high_key, table.high_offset)
        for at in range(2):
            if not kernels.find_bounds(
                group, *bounds[at], ends[at], *self._flat_cuts, at == 1, cells[at]
            ):
                return None
        cuts = _Cuts(self.domains, *cells)
        ranges = _condition_ranges(table, cuts, self.n_cells[attribute])
        return Ranges(attribute[table.attribute], *ranges)

    @cached_property
    def _flat_cuts(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Keys and offsets of all cuts; their starts by attribute and domain; their bases."""
        groups = [by_domain.get(domain) for by_domain in self.domains for domain in Domain]
        present = [cells for cells in groups if cells is not None]
        counts = [0 if cells is None else len(cells.keys) for cells in groups]
        return (
            np.concatenate([np.empty(0, np.int64), *(cells.keys for cells in present)]),
            np.concatenate([np.empty(0, np.int16), *(cells.offsets for cells in present)]),
            np.cumsum([0, *counts]).astype(np.int64),
            np.array([-1 if cells is None else cells.base for cells in groups], np.int32),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the cuts and ranges."""
        cuts = sum(
            cells.keys.nbytes + cells.offsets.nbytes
            for by_domain in self.domains
            for cells in by_domain.values()
        )
        ranges = self.range_start.nbytes + self.range_low.nbytes + self.range_high.nbytes
        return int(cuts + ranges + self.vocabulary.nbytes)


class _Values(NamedTuple):
    """How values of an attribute are looked up: cached cells, and the bounds between cells.

    The bounds are None until a float or an integer was seen.
    """

    name: str
    is_path: bool
    known: dict[object, int]
    base: int
    floats: list[float] | None
    integers: list[int] | None


class _Memory:
    """What the values of single events are looked up in, by attribute.

    The cells of strings are cached, bounded by the memory of the values. Several threads may add at
    once; the count of bytes is then approximate.
    """

    def __init__(self, attributes: tuple[str, ...]) -> None:
        self.values: list[_Values] = [
            _Values(name, "." in name or name.startswith("\0"), {}, OTHER_CELL, None, None)
            for name in attributes
        ]
        self.n_bytes = 0

    def search(self, at: int, kind: type, space: DomainCells | None) -> None:
        """Have floats or integers searched for from now on."""
        values = self.values[at]
        if space is not None:
            values = values._replace(base=space.base)
        if kind is float:
            floats = [] if space is None else space.bounds_for(Domain.NUMBER, 0.5)
            self.values[at] = values._replace(floats=floats)
        else:
            integers = [] if space is None else space.bounds_for(Domain.NUMBER, 0)
            self.values[at] = values._replace(integers=integers)

    def add(self, at: int, value: object, cell: int) -> None:
        """Cache a value's cell; if the cache is full, clear it."""
        n_bytes = getsizeof(value)
        if n_bytes > _MAX_VALUE_BYTES:
            return
        cells = self.values[at].known
        if len(cells) >= _MAX_VALUES:
            self.n_bytes -= sum(map(getsizeof, list(cells))) + _ENTRY_BYTES * len(cells)
            cells.clear()
        self.n_bytes += n_bytes + _ENTRY_BYTES
        if self.n_bytes > _MAX_MEMORY_BYTES:
            for values in self.values:
                values.known.clear()
            self.n_bytes = n_bytes + _ENTRY_BYTES
        cells[value] = cell


def _reranked(
    keys: NDArray[np.int64], is_string: NDArray[np.bool_], rank_of: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return keys with some of them, ranks of strings, in terms of another vocabulary."""
    moved = keys.copy()
    moved[is_string] = rank_of[keys[is_string]]
    return moved


def encode_numbers(
    space: DomainCells, numbers: NDArray[Any], here: NDArray[np.bool_], cells: NDArray[np.int32]
) -> None:
    """Write the cells of numbers; where `here` is empty, all of them count."""
    values = numbers.view()
    values.flags.writeable = False  # whatever they were: a kernel is compiled for either
    if values.dtype == np.float64:
        kernels.search_numbers(values, here, space.floats, *space.float_marks, space.base, cells)
    elif space.integer_table is not None:
        kernels.look_up_integers(values, here, *space.integer_table, cells)
    else:
        kernels.search_numbers(
            values, here, space.integers, *space.integer_marks, space.base, cells
        )


def search_present(
    space: DomainCells, plain: Plain, n: int, rows: NDArray[np.int32], cells: NDArray[np.int32]
) -> int:
    """Write rows and cells of the numbers there are, from the n-th on; return where it ends."""
    is_float = plain.values.dtype == np.float64
    marks = space.float_marks if is_float else space.integer_marks
    bounds = space.floats if is_float else space.integers
    values, bits, offset = plain[:3]
    end: int = kernels.search_present(
        values, bits, offset, bounds, *marks, space.base, OTHER_CELL, n, rows, cells
    )
    return end


def _string_buffers(strings: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    _, offsets, data = strings.buffers()
    starts = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    octets = np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)
    return starts, octets


@dataclass(frozen=True)
class _Cuts:
    """Where the cuts of each attribute and line are, and the place of each piece's bounds."""

    domains: list[dict[Domain, DomainCells]]
    low_cell: NDArray[np.int32]
    high_cell: NDArray[np.int32]


def _find_cuts(table: ConjunctionTable) -> _Cuts:
    """Sort the cuts that the pieces use, by attribute and line, and rank the pieces' bounds."""
    n_pieces = len(table.domain)
    per_condition = np.diff(table.piece_start)
    group = np.repeat(table.attribute.astype(np.int64) * 4, per_condition) + table.domain
    n_groups = 4 * len(table.attributes)
    counts = np.bincount(group, minlength=n_groups)
    order = np.argsort(group, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    low_cell = np.empty(n_pieces, np.int32)
    high_cell = np.empty(n_pieces, np.int32)
    by_attribute: list[dict[Domain, DomainCells]] = [{} for _ in table.attributes]
    bases = np.full(len(table.attributes), FIRST_CELL)
    for at in np.flatnonzero(counts):
        members = order[starts[at] : starts[at + 1]]
        keys, offsets, low, high = _rank_cuts(table, members)
        attribute, domain = divmod(int(at), 4)
        base = int(bases[attribute])
        by_attribute[attribute][Domain(domain)] = DomainCells(base, keys, offsets)
        low_cell[members] = low + base
        high_cell[members] = high + base
        bases[attribute] += len(keys) + 1
    return _Cuts(by_attribute, low_cell, high_cell)


def _rank_cuts(
    table: ConjunctionTable, members: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct inner cuts of some pieces in order, and the ranks of their bounds."""
    keys = np.concatenate([table.low_key[members], table.high_key[members]])
    offsets = np.concatenate([table.low_offset[members], table.high_offset[members]])
    order = np.lexsort((offsets, keys)) if offsets.any() else np.argsort(keys, kind="stable")
    keys, offsets = keys[order], offsets[order]
    is_new = np.empty(len(keys), np.bool_)
    is_new[:1] = True
    is_new[1:] = (keys[1:] != keys[:-1]) | (offsets[1:] != offsets[:-1])
    at_low = (keys == INT64_MIN) & (offsets == 0)
    at_high = (keys == INT64_MAX) & (offsets == 1)
    inner = is_new & ~at_low & ~at_high
    sorted_rank = np.cumsum(inner)
    sorted_rank[at_high] = np.count_nonzero(inner) + 1
    rank = np.empty(len(keys), np.int64)
    rank[order] = sorted_rank
    return keys[inner], offsets[inner], rank[: len(members)], rank[len(members) :]


def _condition_ranges(
    table: ConjunctionTable, cuts: _Cuts, n_cells: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Return each condition's ranges of cells, in order: half-open, as starts, lows and highs."""
    if not table.flags.any():
        return table.piece_start, cuts.low_cell, cuts.high_cell
    is_absent = (table.flags & ABSENT) > 0
    is_present = (table.flags & PRESENT) > 0
    counts = np.diff(table.piece_start) + is_absent + is_present
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    low = np.empty(starts[-1], np.int32)
    high = np.empty(starts[-1], np.int32)
    shift = np.repeat(starts[:-1] + is_absent - table.piece_start[:-1], np.diff(table.piece_start))
    places = np.arange(len(cuts.low_cell)) + shift
    low[places], high[places] = cuts.low_cell, cuts.high_cell
    low[starts[:-1][is_absent]], high[starts[:-1][is_absent]] = ABSENT_CELL, OTHER_CELL
    last = starts[1:][is_present] - 1
    low[last], high[last] = OTHER_CELL, n_cells[table.attribute[is_present]]
    return starts, low, high
