"""Bulk loads: a table of subscriptions → ids, conjunctions and the rows that are refused.

Enters: anything Arrow, in one of the three forms that `Matcher` takes. Leaves: a `Load`, computed
without touching a matcher, so that it can be refused whole.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import INT64, kind_of_type, to_array, to_canonical
from tocsin.errors import (
    ArgumentError,
    BadRow,
    DuplicateSubscriptionError,
    InvalidIdError,
    ParameterError,
    TocsinError,
)
from tocsin.language import parse
from tocsin.language.expression import Expression, parameter_names
from tocsin.model import EventType, Kind, SubscriptionId, to_microseconds
from tocsin.normalize.bulk import BulkForm, normalize_template, normalize_texts
from tocsin.normalize.literals import canonical_values
from tocsin.normalize.rows import normalize_rows, read_rows
from tocsin.normalize.table import ConjunctionTable, take
from tocsin.subscriptions import (
    RuleSource,
    Source,
    SubscriptionBook,
    TemplateSource,
    TextSource,
)

Moment: TypeAlias = dt.datetime | int
"""A point in time: a datetime (no zone: UTC) or microseconds since 1970."""


def to_moment(moment: object) -> int:
    """Return a moment in microseconds since 1970."""
    if isinstance(moment, dt.datetime):
        return to_microseconds(moment)
    if isinstance(moment, int) and not isinstance(moment, bool):
        return moment
    raise ArgumentError(f"valid_until must be a datetime or microseconds, not {moment!r}")


def to_expression(where: object) -> Expression:
    """Return a condition as an expression."""
    if isinstance(where, str):
        return parse(where)
    if isinstance(where, Expression):
        return where
    raise ArgumentError(f"a condition must be a text or an expression, not {where!r}")


def to_params(params: object) -> dict[str, object]:
    """Return parameters as a mapping of their own."""
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return dict(params)
    raise ArgumentError(f"params must be a mapping of names to values, not {params!r}")


class Load:
    """A bulk load before it is taken in. Refused rows are marked in `is_good`."""

    def __init__(
        self,
        names: list[SubscriptionId | None],
        rows: NDArray[np.int64],
        source: Source,
        form: BulkForm,
        moments: Mapping[int, int],
    ) -> None:
        self.names = names
        self.source = source
        self._rows = rows
        self._table = form.table
        self._moments = moments
        self._bad: dict[int, TocsinError] = {bad.row: bad.error for bad in form.bad}
        self.is_good = np.ones(len(names), np.bool_)
        self._refuse_odd_ids()

    def _refuse_odd_ids(self) -> None:
        names = self.names
        if _increases(names):
            return
        distinct = set(names)
        if len(distinct) == len(names) and None not in distinct:
            return
        first: dict[SubscriptionId, int] = {}
        for at, name in enumerate(names):
            if name is None:
                self._bad.setdefault(at, InvalidIdError(None))
            elif first.setdefault(name, at) != at:
                self._bad.setdefault(at, DuplicateSubscriptionError(name))

    def refuse_taken(self, book: SubscriptionBook) -> tuple[BadRow, ...]:
        """Refuse the ids that a book already has; return all refused rows in order."""
        if book.has_any(self.names):
            for at, name in enumerate(self.names):
                if name is not None and name in book:
                    self._bad.setdefault(at, DuplicateSubscriptionError(name))
        self.is_good[list(self._bad)] = False
        return tuple(
            BadRow(int(self._rows[at]), self.names[at], str(error), error.code)
            for at, error in sorted(self._bad.items())
        )

    def kept(self) -> NDArray[np.int64]:
        """Return the places of the subscriptions that can be taken in."""
        return np.flatnonzero(self.is_good)

    def names_of(self, kept: NDArray[np.int64]) -> list[SubscriptionId]:
        """Return the ids of some subscriptions."""
        if len(kept) == len(self.names):
            return self.names  # type: ignore[return-value]
        return [self.names[at] for at in kept.tolist()]

    def rows_of(self, kept: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the places in the source of some subscriptions; None for all, in order."""
        return None if len(kept) == len(self.names) else kept

    def moments_of(self, kept: NDArray[np.int64]) -> dict[int, int]:
        """Return until when subscriptions are valid, by their place among the kept."""
        if not self._moments:
            return {}
        return {
            place: self._moments[at]
            for place, at in enumerate(kept.tolist())
            if at in self._moments
        }

    def table_of(self, kept: NDArray[np.int64], first: int) -> ConjunctionTable:
        """Return the conjunctions of the kept ones, numbered from a first dense id on."""
        table = self._table
        if len(kept) < len(self.names):
            table = take(table, np.flatnonzero(self.is_good[table.subscription]))
        number = np.cumsum(self.is_good) - 1 + first
        return replace(table, subscription=number[table.subscription], n_subscriptions=len(kept))


def _increases(names: list[SubscriptionId | None]) -> bool:
    """Whether ids are integers that increase, as generated ones do; then none stands twice."""
    if not names or type(names[0]) is not int or type(names[-1]) is not int:
        return False
    try:
        numbers = np.array(names, np.int64)
    except (TypeError, ValueError, OverflowError):
        return False
    return bool(np.all(numbers[1:] > numbers[:-1]))


def load_table(
    given: object,
    where: str | Expression | None,
    event_type: EventType | None,
    progress: Callable[[int], None] | None,
) -> Load:
    """Read a table of texts, or of parameters for one text."""
    table = to_table(given)
    _need(table, ["id"] if where is not None else ["id", "where"])
    names = _names(table.column("id"))
    rows = np.arange(table.num_rows)
    moments = _moments(table)
    if where is None:
        texts = to_array(table.column("where"))
        if kind_of_type(texts.type) is not Kind.STRING and texts.null_count < len(texts):
            raise ArgumentError(f"the column where must hold texts, not {texts.type}")
        texts = texts.cast(pa.large_string())
        form = normalize_texts(texts, event_type, progress)
        return Load(names, rows, TextSource(texts), form, moments)
    expression = to_expression(where)
    wanted = parameter_names(expression)
    missing = [name for name in wanted if name not in table.column_names]
    if missing:
        raise ParameterError(
            f"the table has no column for parameter {', '.join(':' + n for n in missing)}",
            missing=missing,
        )
    columns = {name: _parameter(name, table.column(name)) for name in wanted}
    form = normalize_template(expression, columns, table.num_rows, event_type)
    return Load(names, rows, TemplateSource(expression, columns), form, moments)


def load_rows(given: object, event_type: EventType | None) -> Load:
    """Read a table with one predicate a row."""
    rules = read_rows(to_table(given))
    names = _names(rules.ids)
    form = normalize_rows(rules, event_type)
    return Load(names, rules.first_row, RuleSource(rules), form, {})


def to_table(given: object) -> pa.Table:
    """Take anything Arrow as a table."""
    try:
        if isinstance(given, pa.Table):
            table = given
        elif type(given).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(given, preserve_index=False)
        else:
            table = pa.table(given)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise ArgumentError(f"not a table: {error}") from None
    names = table.column_names
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ArgumentError(f"the table has several columns {', '.join(twice)}")
    return table


def _need(table: pa.Table, columns: list[str]) -> None:
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise ArgumentError(
            f"the table has no column {', '.join(missing)}; it has {', '.join(table.column_names)}"
        )


def _names(column: pa.Array | pa.ChunkedArray) -> list[SubscriptionId | None]:
    kind = kind_of_type(column.type)
    if kind not in (Kind.STRING, Kind.INTEGER) and column.null_count < len(column):
        raise ArgumentError(f"the column id must hold strings or integers, not {column.type}")
    try:
        array = column.cast(INT64) if kind is Kind.INTEGER else column
    except pa.ArrowInvalid:
        raise ArgumentError("the column id holds integers beyond 64 bits") from None
    return array.to_pylist()  # type: ignore[no-any-return]


def _parameter(name: str, column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_null(column.type):
        return to_array(column)
    return canonical_values(name, column)


def _moments(table: pa.Table) -> dict[int, int]:
    if "valid_until" not in table.column_names:
        return {}
    column = table.column("valid_until")
    if column.null_count == len(column):
        return {}
    if kind_of_type(column.type) not in (Kind.TIMESTAMP, Kind.INTEGER):
        raise ArgumentError(f"the column valid_until must hold timestamps, not {column.type}")
    try:
        found = to_canonical(column)
    except pa.ArrowInvalid:
        raise ArgumentError("the column valid_until holds moments beyond 64 bits") from None
    assert found is not None
    moments = found[0].cast(INT64).to_pylist()
    return {at: moment for at, moment in enumerate(moments) if moment is not None}
