"""Tables of publications → cells, a dimension at a time.

Enters: an Arrow table with a column of keys and columns of values; nested columns are taken by
their dotted paths, a struct of `low` and `high` (perhaps `low_open`, `high_open`) is a range.
Leaves: keys, dimensions and their cells.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arguments import to_table
from tocsin.arrow import kind_of_type, to_array, to_canonical
from tocsin.encode.columns import Column
from tocsin.encode.events import to_batch
from tocsin.errors import ArgumentError, EventError
from tocsin.model import EventType, Kind
from tocsin.subjects.dimensions import Dimensions, is_ranges
from tocsin.subjects.model import Range
from tocsin.subjects.positions import OTHER, Words
from tocsin.transitions.transition import PublicationKey


class Batch(NamedTuple):
    """Publications by the column: `cells[j]` are those of dimension `dims[j]`."""

    keys: list[PublicationKey]
    dims: list[int]
    cells: Words
    is_valid: NDArray[np.uint8]
    """Which values are present, by dimension and row."""

    def rows(self, items: NDArray[np.int64]) -> Words:
        """Return the cells of some rows, by dimension."""
        return np.ascontiguousarray(self.cells[:, items])


def read_batch(
    source: object, dimensions: Dimensions, space: int, key: str
) -> tuple[Batch, pa.Table]:
    """Return the batch of a table or frame, and the Arrow table it was read from."""
    table = to_table(source)
    if key not in table.column_names:
        raise ArgumentError(f"the table has no column {key}; it has {table.column_names}")
    keys = _read_keys(table.column(key), key)
    values = table.drop_columns([key])
    n = table.num_rows
    paths: list[tuple[str, pa.DataType]] = []
    for name in values.column_names:
        _walk(name, values.schema.field(name).type, paths)
    batch = to_batch(values, _without_ranges(dimensions.spaces[space], paths))
    cells: dict[int, Words] = {}
    valid: dict[int, NDArray[np.bool_]] = {}
    for path, of in paths:
        dim = dimensions.dim(space, path)
        if is_ranges(of):
            cells[dim], valid[dim] = _ranges(dimensions, space, path, values, n)
        elif pa.types.is_struct(of):
            valid[dim] = _find(values, path).is_valid().to_numpy(zero_copy_only=False)
            cells[dim] = np.where(
                valid[dim][:, None],
                np.array(OTHER, np.uint64),
                np.array(dimensions.missing, np.uint64),
            )
        else:
            column = batch.column(path)
            cells[dim] = dimensions.encode_column(dim, column, n)
            valid[dim] = _is_here(column, n)
    for dim in list(cells):
        for derived in dimensions.entries[dim].patterns:
            cells[derived] = dimensions.fits(derived, cells[dim])
            valid[derived] = valid[dim]
    dims = list(cells)
    stacked = np.stack([cells[dim] for dim in dims]) if dims else np.zeros((0, n, 3), np.uint64)
    is_valid = np.stack([valid[dim] for dim in dims]) if dims else np.zeros((0, n), np.bool_)
    return Batch(keys, dims, stacked, is_valid.astype(np.uint8)), table


def _without_ranges(declared: EventType, paths: list[tuple[str, pa.DataType]]) -> EventType:
    """Return the event type without the columns of ranges, whose ends are checked later."""
    ranges = {path for path, of in paths if is_ranges(of)}
    kinds = {name: kind for name, kind in declared.attributes.items() if name not in ranges}
    return EventType(declared.name, kinds) if ranges else declared


def _is_here(column: Column, n: int) -> NDArray[np.bool_]:
    """Return the rows in which a column has a value."""
    is_valid = np.zeros(n, np.bool_) if column.other is None else column.other.copy()
    for part in column.parts:
        is_valid |= True if part.here is None else part.here
    return is_valid


def _walk(path: str, of: pa.DataType, paths: list[tuple[str, pa.DataType]]) -> None:
    paths.append((path, of))
    if pa.types.is_struct(of) and not is_ranges(of):
        for i in range(of.num_fields):
            _walk(f"{path}.{of.field(i).name}", of.field(i).type, paths)


def _find(values: pa.Table, path: str) -> pa.Array:
    first, *rest = _split(values, path)
    column = to_array(values.column(first))
    for name in rest:
        column = pa.compute.struct_field(column, [name])
    return column


def _split(values: pa.Table, path: str) -> list[str]:
    for name in values.column_names:
        if path == name:
            return [name]
        if path.startswith(name + ".") and pa.types.is_struct(values.schema.field(name).type):
            return [name, *path[len(name) + 1 :].split(".")]
    raise ArgumentError(f"there is no column {path}")


def _ranges(
    dimensions: Dimensions, space: int, path: str, values: pa.Table, n: int
) -> tuple[Words, NDArray[np.bool_]]:
    """Return the cells of a column of ranges, and the rows that have one."""
    ranges = _find(values, path).to_pylist()
    dim = dimensions.dim(space, path)
    texts = [row[end] for row in ranges if row for end in ("low", "high")]
    dimensions.add_strings(dim, [text for text in texts if isinstance(text, str)])
    cells = np.empty((n, 3), np.uint64)
    for at, row in enumerate(ranges):
        if row is None:
            cells[at] = dimensions.missing
            continue
        is_open = bool(row.get("low_open")), bool(row.get("high_open"))
        try:
            one = dimensions.encode(space, {path: Range(row["low"], row["high"], *is_open)})
        except EventError as error:
            raise EventError(error.message, attribute=path, row=at) from None
        cells[at] = one[dim]
    return cells, np.array([row is not None for row in ranges], np.bool_)


def _read_keys(column: pa.ChunkedArray, name: str) -> list[PublicationKey]:
    if kind_of_type(column.type) not in (Kind.STRING, Kind.INTEGER):
        if len(column):
            raise ArgumentError(f"the column {name} must hold strings or integers")
        return []
    try:
        canonical = to_canonical(column)
    except pa.ArrowInvalid:
        raise ArgumentError(f"the column {name} holds integers beyond 64 bits") from None
    assert canonical is not None
    if canonical[0].null_count:
        row = int(np.flatnonzero(canonical[0].is_null().to_numpy(zero_copy_only=False))[0])
        raise EventError("a publication has no key", attribute=name, row=row)
    return canonical[0].to_pylist()  # type: ignore[no-any-return]


def rounds(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Divide indices into rounds in which no row occurs twice; the order of a row stays."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    if is_first.all():
        return [np.arange(len(rows))] if len(rows) else []
    first = np.flatnonzero(is_first)
    length = np.diff(first, append=len(rows))
    occurrence = np.empty(len(rows), np.int64)
    occurrence[order] = np.arange(len(rows)) - np.repeat(first, length)
    return [np.flatnonzero(occurrence == at) for at in range(int(occurrence.max()) + 1)]
