"""DuckDB's WHERE over the same rows: the independent oracle.

Events become a table with typed columns, a condition becomes SQL, and DuckDB says which rows
satisfy it. The SQL is written here from the expression, not by our printer, and differs from our
text only where DuckDB means something else by it (the table "Where we differ" in
docs/language.md):

- NaN: comparisons read a column in which NaN is NULL, IS NULL reads the raw one.
- Kinds: a literal of another kind than the column's is written as NULL, since DuckDB would cast.
- Exact numbers: a comparison that DuckDB would do in floating point is written as one that it
  does exactly, see `_exact`.

An attribute with values of many kinds has a column for each, at most one of which is not NULL;
`coalesce` joins what is said of them.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from tests.property.strategies import ANY, Event, World

from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    Or,
)
from tocsin.model import INT64_MAX, INT64_MIN, Kind, kind_of

_ARROW_TYPES = {
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us"),
}
_NUMBERS = (Kind.INTEGER, Kind.FLOAT)
_CONDITIONS_PER_QUERY = 100
_UNKNOWN = "CAST(NULL AS BOOLEAN)"


def verdicts(
    conditions: Sequence[Expression], events: Sequence[Event], world: World
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return, for each condition and event, whether DuckDB finds the condition true."""
    connection = duckdb.connect()
    try:
        # One thread and no rewriting: small tables, and an oracle as plain as can be.
        connection.execute("SET threads = 1; PRAGMA disable_optimizer")
        connection.register("arrow_rows", _table(events, world))
        connection.execute("CREATE TABLE rows AS SELECT * FROM arrow_rows")
        found: list[Any] = []
        for start in range(0, len(conditions), _CONDITIONS_PER_QUERY):
            part = conditions[start : start + _CONDITIONS_PER_QUERY]
            columns = ", ".join(f"({render(c, world)}) IS TRUE AS c{i}" for i, c in enumerate(part))
            answer = connection.execute(f"SELECT {columns} FROM rows ORDER BY row_id")
            arrays = answer.fetchnumpy()
            found.extend(np.asarray(arrays[f"c{i}"], dtype=np.bool_) for i in range(len(part)))
        return np.array(found).reshape(len(conditions), len(events))
    finally:
        connection.close()


def _table(events: Sequence[Event], world: World) -> pa.Table:
    columns: dict[str, pa.Array] = {"row_id": pa.array(range(len(events)), pa.int32())}
    for name in (*world.kinds, *world.ghosts):
        values = [event.get(name) for event in events]
        declared = world.kinds.get(name, ANY)
        present = [None if value is None else True for value in values]
        columns[_present(name)] = pa.array(present, pa.bool_())
        for kind in _kinds(name, world):
            kept = [_plain(value) if kind_of(value) is kind else None for value in values]
            columns[_column(name, kind)] = pa.array(kept, _ARROW_TYPES[kind])
        if declared is not ANY:
            raw = [_plain(value, keep_nan=True) for value in values]
            columns[name] = pa.array(raw, _ARROW_TYPES[declared])
    return pa.table(columns)


def _plain(value: Any, *, keep_nan: bool = False) -> Any:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    if isinstance(value, float) and math.isnan(value) and not keep_nan:
        return None
    return value


def _kinds(name: str, world: World) -> tuple[Kind, ...]:
    declared = world.kinds.get(name, ANY)
    return tuple(Kind) if declared is ANY else (declared,)


def _column(name: str, kind: Kind) -> str:
    return f"{name}:{kind.value}"


def _present(name: str) -> str:
    return f"{name}:present"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def render(condition: Expression, world: World) -> str:
    """Write a condition as SQL for DuckDB."""
    if isinstance(condition, And | Or):
        word = " AND " if isinstance(condition, And) else " OR "
        return word.join(f"({render(part, world)})" for part in condition.operands)
    if isinstance(condition, Not):
        return f"NOT ({render(condition.operand, world)})"
    if isinstance(condition, Constant):
        return {True: "TRUE", False: "FALSE", None: _UNKNOWN}[condition.value]
    name = condition.attribute
    if isinstance(condition, IsNull):
        column = _present(name) if world.kinds.get(name, ANY) is ANY else name
        return f"{_quoted(column)} IS {'NOT ' if condition.negated else ''}NULL"
    said = [_predicate(condition, _column(name, kind), kind) for kind in _kinds(name, world)]
    return said[0] if len(said) == 1 else f"coalesce({', '.join(said)})"


def _predicate(predicate: Expression, name: str, kind: Kind) -> str:
    column = _quoted(name)
    if isinstance(predicate, Comparison):
        return _comparison(column, kind, predicate.op, predicate.operand)
    if isinstance(predicate, Between):
        return _between(predicate, column, kind)
    if isinstance(predicate, In):
        return _membership(predicate, column, kind)
    if isinstance(predicate, Like):
        return _like(predicate, column, kind)
    return column if kind is Kind.BOOLEAN else _UNKNOWN


def _between(predicate: Between, column: str, kind: Kind) -> str:
    word = "NOT BETWEEN" if predicate.negated else "BETWEEN"
    low, high = _literal(predicate.low, kind), _literal(predicate.high, kind)
    if low is not None and high is not None:
        return f"{column} {word} {low} AND {high}"
    at_least = _comparison(column, kind, ">=", predicate.low)
    at_most = _comparison(column, kind, "<=", predicate.high)
    return f"{'NOT ' if predicate.negated else ''}({at_least} AND {at_most})"


def _membership(predicate: In, column: str, kind: Kind) -> str:
    word = "NOT IN" if predicate.negated else "IN"
    written = [_literal(operand, kind) for operand in predicate.operands]
    if None not in written:
        return f"{column} {word} ({', '.join(map(str, written))})"
    equal = [_comparison(column, kind, "=", operand) for operand in predicate.operands]
    return f"{'NOT ' if predicate.negated else ''}({' OR '.join(equal)})"


def _like(predicate: Like, column: str, kind: Kind) -> str:
    if kind is not Kind.STRING:
        return _UNKNOWN
    word = "NOT LIKE" if predicate.negated else "LIKE"
    escape = "" if predicate.escape is None else f" ESCAPE {_string(predicate.escape)}"
    return f"{column} {word} {_literal(predicate.pattern, kind)}{escape}"


def _comparison(column: str, kind: Kind, op: str, operand: Operand) -> str:
    written = _literal(operand, kind)
    if written is not None:
        return f"{column} {op} {written}"
    assert isinstance(operand, Literal)
    return _exact(column, kind, op, operand.value)


def _literal(operand: Operand, kind: Kind) -> str | None:
    """Write a literal to be compared with a column, or return None if DuckDB would round it."""
    assert isinstance(operand, Literal), "conditions for DuckDB have no parameters"
    value = operand.value
    mixed = operand.kind is not kind and not (operand.kind in _NUMBERS and kind in _NUMBERS)
    if operand.kind is None or mixed or value != value:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP '{_plain(value).isoformat(sep=' ')}'"
    assert isinstance(value, int | float)
    if kind is Kind.INTEGER:
        whole = isinstance(value, int) or value.is_integer()
        return str(int(value)) if whole and INT64_MIN <= value <= INT64_MAX else None
    return f"CAST('{float(value)!r}' AS DOUBLE)" if float(value) == value else None


def _exact(column: str, kind: Kind, op: str, value: Any) -> str:
    """Compare with a number that is not among the column's possible values.

    No integer lies between n and n + 1, so n + 0.5 (a DECIMAL, which DuckDB compares with integers
    exactly) can stand for a fraction between them. No float lies between two neighbours, so for an
    integer between them equality is false, and order is order with either neighbour.
    """
    if kind is Kind.INTEGER:
        if not INT64_MIN <= value <= INT64_MAX:
            return f"{column} {op} {'-' if value < 0 else ''}100000000000000000000"
        return f"{column} {op} {Decimal(math.floor(value)) + Decimal('0.5')}"
    near = float(value)
    below = near if near < value else math.nextafter(near, -math.inf)
    above = near if near > value else math.nextafter(near, math.inf)
    if op in ("=", "<>"):
        return f"{column} {'<>' if op == '=' else '='} {column}"
    if op in ("<", "<="):
        return f"{column} <= CAST('{below!r}' AS DOUBLE)"
    return f"{column} >= CAST('{above!r}' AS DOUBLE)"


def _string(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
