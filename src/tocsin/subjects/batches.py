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

from tocsin.arrow import kind_of_type, to_array, to_canonical
from tocsin.encode.columns import Column
from tocsin.encode.events import to_batch
from tocsin.errors import ArgumentError, EventError
from tocsin.loading import to_table
from tocsin.model import EventType, Kind
from tocsin.subjects.axes import Axes, is_ranges
from tocsin.subjects.model import Range
from tocsin.subjects.places import OTHER, Words
from tocsin.transitions.transition import PublicationKey


class Batch(NamedTuple):
    """Publications by the column: `cells[j]` are those of dimension `dims[j]`."""

    keys: list[PublicationKey]
    dims: list[int]
    cells: Words
    here: NDArray[np.uint8]
    """Which of them are given, and not null."""

    def rows(self, chosen: NDArray[np.int64]) -> Words:
        """Return the cells of some rows, by dimension."""
        return np.ascontiguousarray(self.cells[:, chosen])


def read_batch(given: object, axes: Axes, space: int, key: str) -> tuple[Batch, pa.Table]:
    """Read a table; return it as it was taken, too."""
    table = to_table(given)
    if key not in table.column_names:
        raise ArgumentError(f"the table has no column {key}; it has {table.column_names}")
    keys = _read_keys(table.column(key), key)
    values = table.drop_columns([key])
    n = table.num_rows
    paths: list[tuple[str, pa.DataType]] = []
    for name in values.column_names:
        _walk(name, values.schema.field(name).type, paths)
    batch = to_batch(values, _without_ranges(axes.spaces[space], paths))
    cells: dict[int, Words] = {}
    here: dict[int, NDArray[np.bool_]] = {}
    for path, of in paths:
        dim = axes.dim(space, path)
        if is_ranges(of):
            cells[dim], here[dim] = _ranges(axes, space, path, values, n)
        elif pa.types.is_struct(of):
            here[dim] = _find(values, path).is_valid().to_numpy(zero_copy_only=False)
            cells[dim] = np.where(
                here[dim][:, None], np.array(OTHER, np.uint64), np.array(axes.missing, np.uint64)
            )
        else:
            column = batch.column(path)
            cells[dim] = axes.encode_column(dim, column, n)
            here[dim] = _is_here(column, n)
    for dim in list(cells):
        for derived in axes.axes[dim].patterns:
            cells[derived] = axes.fits(derived, cells[dim])
            here[derived] = here[dim]
    dims = list(cells)
    stacked = np.stack([cells[dim] for dim in dims]) if dims else np.zeros((0, n, 3), np.uint64)
    given_here = np.stack([here[dim] for dim in dims]) if dims else np.zeros((0, n), np.bool_)
    return Batch(keys, dims, stacked, given_here.astype(np.uint8)), table


def _without_ranges(declared: EventType, paths: list[tuple[str, pa.DataType]]) -> EventType:
    """Return the attributes that are declared and not ranges here: their ends are checked later."""
    ranges = {path for path, of in paths if is_ranges(of)}
    kinds = {name: kind for name, kind in declared.attributes.items() if name not in ranges}
    return EventType(declared.name, kinds) if ranges else declared


def _is_here(column: Column, n: int) -> NDArray[np.bool_]:
    """Return where a column has a value."""
    here = np.zeros(n, np.bool_) if column.other is None else column.other.copy()
    for part in column.parts:
        here |= True if part.here is None else part.here
    return here


def _walk(path: str, of: pa.DataType, found: list[tuple[str, pa.DataType]]) -> None:
    found.append((path, of))
    if pa.types.is_struct(of) and not is_ranges(of):
        for i in range(of.num_fields):
            _walk(f"{path}.{of.field(i).name}", of.field(i).type, found)


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
    axes: Axes, space: int, path: str, values: pa.Table, n: int
) -> tuple[Words, NDArray[np.bool_]]:
    """Encode a column of ranges, one after another; say where there are some."""
    given = _find(values, path).to_pylist()
    dim = axes.dim(space, path)
    texts = [row[end] for row in given if row for end in ("low", "high")]
    axes.learn(dim, [text for text in texts if isinstance(text, str)])
    cells = np.empty((n, 3), np.uint64)
    for at, row in enumerate(given):
        if row is None:
            cells[at] = axes.missing
            continue
        is_open = bool(row.get("low_open")), bool(row.get("high_open"))
        try:
            one = axes.encode(space, {path: Range(row["low"], row["high"], *is_open)})
        except EventError as error:
            raise EventError(error.message, attribute=path, row=at) from None
        cells[at] = one[dim]
    return cells, np.array([row is not None for row in given], np.bool_)


def _read_keys(column: pa.ChunkedArray, name: str) -> list[PublicationKey]:
    if kind_of_type(column.type) not in (Kind.STRING, Kind.INTEGER):
        if len(column):
            raise ArgumentError(f"the column {name} must hold strings or integers")
        return []
    try:
        found = to_canonical(column)
    except pa.ArrowInvalid:
        raise ArgumentError(f"the column {name} holds integers beyond 64 bits") from None
    assert found is not None
    if found[0].null_count:
        row = int(np.flatnonzero(found[0].is_null().to_numpy(zero_copy_only=False))[0])
        raise EventError("a publication has no key", attribute=name, row=row)
    return found[0].to_pylist()  # type: ignore[no-any-return]


def rounds(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Divide places so that no row stands twice in one part; a row's order is kept."""
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
