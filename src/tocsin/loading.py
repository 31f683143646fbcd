"""Bulk loads: a table of subscriptions → ids, conjunctions and the rows that are refused.

Enters: anything Arrow, in one of the three forms that `Matcher` takes. Leaves: a `Load`, computed
without touching a matcher, so that it can be refused whole. A book that was opened is loaded again
by `load_book`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import (
    INT64,
    ArrowColumn,
    decoded,
    kind_of_type,
    to_array,
    to_canonical,
    to_plain_table,
)
from tocsin.catalog.blocks import NEVER
from tocsin.catalog.id_index import IdTable
from tocsin.catalog.ids import FEW, Ids
from tocsin.catalog.sources import OneSource, RuleSource, Source, TemplateSource, TextSource
from tocsin.catalog.subscriptions import SubscriptionBook
from tocsin.errors import (
    ArgumentError,
    BadRow,
    DuplicateSubscriptionError,
    InvalidIdError,
    ParameterError,
    TocsinError,
    UnknownSubscriptionError,
)
from tocsin.language import parse
from tocsin.language.expression import Expression, parameter_names
from tocsin.model import EventType, Kind, SubscriptionId, check_id, to_microseconds
from tocsin.normalize import MAX_CONJUNCTIONS, NormalForm, bind, normalize
from tocsin.normalize.budget import Budget
from tocsin.normalize.bulk import BulkForm, normalize_template, normalize_texts
from tocsin.normalize.literals import canonical_values
from tocsin.normalize.rows import held_rules, normalize_rows, read_rows
from tocsin.normalize.table import ConjunctionTable, from_forms, take

Moment: TypeAlias = dt.datetime | int
"""A point in time: a datetime (no zone: UTC) or microseconds since 1970."""

_SOME = 10_000
_INTEGERS = tuple(map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4")))


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


class PreparedCondition(NamedTuple):
    """A condition that is ready to be indexed: as it came, and in normal form."""

    source: OneSource
    form: NormalForm
    table: ConjunctionTable


def prepare(
    where: object,
    params: object,
    event_type: EventType | None,
    *,
    limit: int = MAX_CONJUNCTIONS,
    budget: Budget | None = None,
) -> PreparedCondition:
    """Parse a condition and bring it into normal form, or refuse it; touches no matcher."""
    expression, values = to_expression(where), to_params(params)
    form = normalize(bind(expression, values), event_type, limit=limit, budget=budget)
    source = OneSource(where, values)  # type: ignore[arg-type]
    return PreparedCondition(source, form, from_forms([form]))


class Load:
    """A bulk load before it is taken in: its ids, and which rows are refused."""

    def __init__(
        self,
        ids: Ids,
        missing: NDArray[np.bool_] | None,
        source: Source,
        form: BulkForm,
        *,
        rows: NDArray[np.int64] | None = None,
        until: NDArray[np.int64] | None = None,
    ) -> None:
        self.table = IdTable(ids, missing)
        self.source = source
        self._rows = rows
        self._until = until
        self._form = form.table
        self._bad: dict[int, TocsinError] = {bad.row: bad.error for bad in form.bad}
        if missing is not None:
            for at in np.flatnonzero(missing).tolist():
                self._bad.setdefault(at, InvalidIdError(None))
        self._refuse(self.table.repeated)

    @property
    def attributes(self) -> tuple[str, ...]:
        """What the conditions mention."""
        return self._form.attributes

    def _refuse(self, twice: NDArray[np.int64]) -> None:
        for at in twice.tolist():
            self._bad.setdefault(at, DuplicateSubscriptionError(self.table.ids[at]))

    def refuse_taken(self, book: SubscriptionBook) -> tuple[BadRow, ...]:
        """Refuse the ids that a book already has; return all refused rows in order."""
        if len(book):
            self._refuse(np.flatnonzero(book.find(self.table) >= 0))
        return tuple(
            BadRow(self._row(at), self._name(at), str(error), error.code)
            for at, error in sorted(self._bad.items())
        )

    def _row(self, at: int) -> int:
        return at if self._rows is None else int(self._rows[at])

    def _name(self, at: int) -> SubscriptionId | None:
        missing = self.table.missing
        return None if missing is not None and missing[at] else self.table.ids[at]

    def add_to(self, book: SubscriptionBook) -> tuple[NDArray[np.int64], ConjunctionTable]:
        """Register what is not refused; return its dense ids and its conjunctions."""
        until, form = self._until, self._form
        if not self._bad:
            dense = book.add_many(self.table, self.source, None, until)
            first = int(dense[0]) if len(dense) else 0
            if first:
                form = replace(form, subscription=form.subscription + first)
            return dense, form
        is_good = np.ones(len(self.table.ids), np.bool_)
        is_good[list(self._bad)] = False
        kept = np.flatnonzero(is_good)
        until = None if until is None else until[kept]
        dense = book.add_many(self.table, self.source, kept, until)
        number = np.zeros(len(is_good), np.int64)
        number[kept] = dense
        form = take(form, np.flatnonzero(is_good[form.subscription]))
        subscription = number[form.subscription]
        return dense, replace(form, subscription=subscription, n_subscriptions=len(kept))


def load_table(
    given: object,
    where: str | Expression | None,
    event_type: EventType | None,
    progress: Callable[[int], None] | None,
    *,
    is_bounded: bool = True,
) -> Load:
    """Read a table of texts, or of parameters for one text.

    Where they are to be bounded, conditions that would take too much work are refused.
    """
    table = to_table(given)
    _need(table, ["id"] if where is not None else ["id", "where"])
    ids, missing = _ids(table.column("id"))
    until = _until(table)
    if where is None:
        texts = to_array(table.column("where"))
        if kind_of_type(texts.type) is not Kind.STRING and texts.null_count < len(texts):
            raise ArgumentError(f"the column where must hold texts, not {texts.type}")
        texts = texts.cast(pa.large_string())
        form = normalize_texts(texts, event_type, progress, is_bounded=is_bounded)
        return Load(ids, missing, TextSource(texts), form, until=until)
    expression = to_expression(where)
    wanted = parameter_names(expression)
    lacking = [name for name in wanted if name not in table.column_names]
    if lacking:
        raise ParameterError(
            f"the table has no column for parameter {', '.join(':' + n for n in lacking)}",
            missing=lacking,
        )
    columns = {name: _parameter(name, table.column(name)) for name in wanted}
    form = normalize_template(
        expression, columns, table.num_rows, event_type, is_bounded=is_bounded
    )
    source = TemplateSource(expression, columns, {})
    return Load(ids, missing, source, form, until=until)


def load_rows(given: object, event_type: EventType | None) -> Load:
    """Read a table with one predicate a row."""
    rules = read_rows(to_table(given))
    ids, missing = _ids(rules.ids)
    form = normalize_rows(rules, event_type)
    return Load(ids, missing, RuleSource(held_rules(rules)), form, rows=rules.first_row)


def load_book(
    book: SubscriptionBook, event_type: EventType | None
) -> Iterator[tuple[NDArray[np.int64], ConjunctionTable]]:
    """Yield the dense ids and conjunctions of all that a book holds, some at a time.

    Conditions are parsed one by one: this is for engines whose index is not written. They were
    accepted before, so that their work is not bounded.
    """
    unbounded = Budget.unlimited()
    live = book.live()
    for first in range(0, len(live), _SOME):
        ids = live[first : first + _SOME]
        table = from_forms(
            [normalize(book.expression(i), event_type, budget=unbounded) for i in ids.tolist()]
        )
        yield ids, replace(table, subscription=ids[table.subscription])


def find_all(book: SubscriptionBook, ids: Ids | list[SubscriptionId]) -> NDArray[np.int64]:
    """Return the dense ids of all ids of a list or column; raise for the first that has none.

    An id that stands twice is unknown the second time.
    """
    if isinstance(ids, Ids) and len(ids) > FEW:
        dense = book.find(IdTable(ids))
        unknown = np.flatnonzero(dense < 0)
        if len(unknown):
            raise UnknownSubscriptionError(ids[int(unknown[0])])
        return dense
    found: dict[int, None] = {}
    for name in ids.to_list() if isinstance(ids, Ids) else ids:
        number = book.dense(check_id(name))
        if number is None or number in found:
            raise UnknownSubscriptionError(name)
        found[number] = None
    return np.array(list(found), np.int64)


def to_ids(asked: Any) -> Ids | list[SubscriptionId]:
    """Return a list or column of ids as a column of one kind, or as a list when it is none."""
    if isinstance(asked, pa.Array | pa.ChunkedArray):
        asked = decoded(to_array(asked))
        if kind_of_type(asked.type) in (Kind.STRING, Kind.INTEGER) and not asked.null_count:
            try:
                return _ids(asked)[0]
            except ArgumentError:
                pass  # beyond 64 bits: refused one by one
    elif isinstance(asked, np.ndarray) and asked.ndim == 1 and asked.dtype in _INTEGERS:
        return Ids(asked.astype(np.int64))
    for convert in ("to_pylist", "tolist"):  # Arrow; NumPy, pandas
        if hasattr(asked, convert):
            asked = getattr(asked, convert)()
    if isinstance(asked, str | bytes | Mapping) or not isinstance(asked, Iterable):
        raise ArgumentError(f"ids must be a list of ids, not {asked!r}")
    names = list(asked)
    if len(names) > FEW and set(map(type, names)) in ({int}, {str}):
        try:
            return Ids.of(names)
        except (OverflowError, UnicodeEncodeError, pa.ArrowException):
            pass  # no ids: refused one by one
    return names


def to_table(given: object) -> pa.Table:
    """Take anything Arrow as a table, without views and run ends."""
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
    return to_plain_table(table)


def _need(table: pa.Table, columns: list[str]) -> None:
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise ArgumentError(
            f"the table has no column {', '.join(missing)}; it has {', '.join(table.column_names)}"
        )


def _ids(column: ArrowColumn) -> tuple[Ids, NDArray[np.bool_] | None]:
    """Return a column of ids, and which of them are missing."""
    n_missing = column.null_count
    if kind_of_type(column.type) not in (Kind.STRING, Kind.INTEGER):
        if n_missing < len(column):
            raise ArgumentError(f"the column id must hold strings or integers, not {column.type}")
        return Ids(np.zeros(n_missing, np.int64)), np.ones(n_missing, np.bool_)
    try:
        found = to_canonical(column)
    except pa.ArrowInvalid:
        raise ArgumentError("the column id holds integers beyond 64 bits") from None
    assert found is not None
    array, kind = found
    missing = None
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        array = array.fill_null(0 if kind is Kind.INTEGER else "")
    if kind is Kind.STRING:
        return Ids(None, array), missing
    return Ids(array.to_numpy().copy()), missing  # it may be an array that its owner changes


def _parameter(name: str, column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_null(column.type):
        return to_array(column)
    return canonical_values(name, column)


def _until(table: pa.Table) -> NDArray[np.int64] | None:
    """Return the moments of the ends, NEVER where there is none."""
    if "valid_until" not in table.column_names:
        return None
    column = table.column("valid_until")
    if column.null_count == len(column):
        return None
    if kind_of_type(column.type) not in (Kind.TIMESTAMP, Kind.INTEGER):
        raise ArgumentError(f"the column valid_until must hold timestamps, not {column.type}")
    try:
        found = to_canonical(column)
    except pa.ArrowInvalid:
        raise ArgumentError("the column valid_until holds moments beyond 64 bits") from None
    assert found is not None
    return found[0].cast(INT64).fill_null(NEVER).to_numpy()  # type: ignore[no-any-return]
