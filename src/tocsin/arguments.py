"""Arguments of public calls → the types that the package works with, or an ArgumentError.

Enters: whatever a user passed. Leaves: expressions, parameters, moments, tables and columns of ids.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import (
    ArrowColumn,
    decoded,
    kind_of_type,
    to_array,
    to_canonical,
    to_plain_table,
)
from tocsin.catalog.ids import FEW, Ids
from tocsin.catalog.records import write_json
from tocsin.errors import ArgumentError
from tocsin.language import parse
from tocsin.language.dialects import SQL, check, write
from tocsin.language.expression import Expression
from tocsin.model import Kind, SubscriptionId, to_microseconds

Moment: TypeAlias = dt.datetime | int
"""A point in time: a datetime (no zone: UTC) or microseconds since 1970."""

IdsArgument: TypeAlias = Iterable[SubscriptionId] | pa.Array | pa.ChunkedArray
"""Many ids: a list, or a column of NumPy, pandas or Arrow."""
OnError: TypeAlias = Literal["raise", "quarantine"]
"""What a bulk call does with bad rows: refuse the call, or set them aside."""


class Unchanged(Enum):
    """The type of UNCHANGED."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""The default of arguments of `update` for which None has a meaning of its own."""

_INTEGERS = tuple(map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4")))


def to_moment(moment: object) -> int:
    """Return a moment in microseconds since 1970; a datetime without a zone is UTC."""
    if isinstance(moment, dt.datetime):
        return to_microseconds(moment)
    if isinstance(moment, int) and not isinstance(moment, bool):
        return moment
    raise ArgumentError(f"valid_until must be a datetime or microseconds, not {moment!r}")


def to_expression(where: object) -> Expression:
    """Return a condition as an expression; a text is parsed."""
    if isinstance(where, str):
        return parse(where)
    if isinstance(where, Expression):
        return where
    raise ArgumentError(f"a condition must be a text or an expression, not {where!r}")


def to_written(where: Any, dialect: object) -> Any:
    """Return a condition with its dialect; an expression is of no dialect."""
    name = check(dialect)
    if name == SQL or where is None:
        return where
    if not isinstance(where, str):
        raise ArgumentError(f"a condition in the dialect {name} must be a text, not {where!r}")
    return write(where, name)


def to_params(params: object) -> dict[str, object]:
    """Return parameters as a dictionary of the caller's own."""
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return {name: _to_list(value) for name, value in params.items()}
    raise ArgumentError(f"params must be a mapping of names to values, not {params!r}")


def _to_list(value: object) -> object:
    """Return a list for a list of any type, and other values as they are."""
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    for convert in ("to_pylist", "tolist", "to_list"):  # Arrow; NumPy, pandas; Polars
        if hasattr(value, convert) and hasattr(value, "__len__"):
            return getattr(value, convert)()
    return value


def to_end(valid_until: object) -> int | None:
    """Return `valid_until` in microseconds since 1970, None for a subscription that never ends."""
    return None if valid_until is None else to_moment(valid_until)


def check_on_error(on_error: object) -> None:
    """Refuse a value of `on_error` that is neither of the two."""
    if on_error not in ("raise", "quarantine"):
        raise ArgumentError(f"on_error must be 'raise' or 'quarantine', not {on_error!r}")


def to_ids(ids: Any) -> Ids | list[SubscriptionId]:
    """Return ids as a column of one kind, or as a list where they are few or of several kinds."""
    if isinstance(ids, pa.Array | pa.ChunkedArray):
        ids = decoded(to_array(ids))
        if kind_of_type(ids.type) in (Kind.STRING, Kind.INTEGER) and not ids.null_count:
            try:
                return id_column(ids)[0]
            except ArgumentError:
                pass  # beyond 64 bits: each is refused by name
    elif isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype in _INTEGERS:
        return Ids(ids.astype(np.int64))
    for convert in ("to_pylist", "tolist"):  # Arrow; NumPy, pandas
        if hasattr(ids, convert):
            ids = getattr(ids, convert)()
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise ArgumentError(f"ids must be a list of ids, not {ids!r}")
    names = list(ids)
    if len(names) > FEW and set(map(type, names)) in ({int}, {str}):
        try:
            return Ids.of(names)
        except (OverflowError, UnicodeEncodeError, pa.ArrowException):
            pass  # not ids: each is refused by name
    return names


def to_table(data: object) -> pa.Table:
    """Return anything Arrow as a table, without string views and run-end encoding."""
    try:
        if isinstance(data, pa.Table):
            table = data
        elif isinstance(data, list | Iterator) and not hasattr(data, "__arrow_c_stream__"):
            table = _table_of_rows(list(data))
        elif type(data).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(data, preserve_index=False)
        else:
            table = pa.table(data)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise ArgumentError(f"not a table: {error}") from None
    names = table.column_names
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ArgumentError(f"the table has several columns {', '.join(repeated)}")
    return to_plain_table(table)


def _table_of_rows(rows: list[Any]) -> pa.Table:
    """Return a table of mappings, with a column for each name that one of them has."""
    if not all(isinstance(row, Mapping) for row in rows):
        raise TypeError("a list has mappings, such as {'id': 1, 'where': 'price < 100'}")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names or ("id", "where")}
    if any(isinstance(params, Mapping) for params in columns.get("params", ())):
        columns["params"] = [
            None if params is None else write_json(to_params(params))
            for params in columns["params"]
        ]
    return pa.table(columns)


def id_column(column: ArrowColumn) -> tuple[Ids, NDArray[np.bool_] | None]:
    """Return a column of ids, and a mask of the rows that have none."""
    n_missing = column.null_count
    if kind_of_type(column.type) not in (Kind.STRING, Kind.INTEGER):
        if n_missing < len(column):
            raise ArgumentError(f"the column id must hold strings or integers, not {column.type}")
        return Ids(np.zeros(n_missing, np.int64)), np.ones(n_missing, np.bool_)
    try:
        canonical = to_canonical(column)
    except pa.ArrowInvalid:
        raise ArgumentError("the column id holds integers beyond 64 bits") from None
    assert canonical is not None
    array, kind = canonical
    missing = None
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        array = array.fill_null(0 if kind is Kind.INTEGER else "")
    if kind is Kind.STRING:
        return Ids(None, array), missing
    return Ids(array.to_numpy().copy()), missing  # it may be an array that its owner changes
