"""Rule tables → one conjunction table: one predicate a row, wholly columnar.

Enters: an Arrow table with columns `id`, `attribute`, `op`, and `value` (or, where kinds mix,
`number` and `text`, one of them null), optionally `disjunct`. Leaves: the distinct ids in order of
appearance, and a `BulkForm` whose subscription i is the i-th id. Rows of one id are ANDed, and ORed
between disjuncts; they need not stand together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import ArrowColumn, kind_of_type, to_array
from tocsin.errors import ArgumentError, SubscriptionError
from tocsin.language.expression import (
    Comparison,
    Expression,
    IsNull,
    Like,
    conjoin,
    disjoin,
)
from tocsin.model import EventType, Kind
from tocsin.normalize import fold_kernels as kernels
from tocsin.normalize.bind import to_literal
from tocsin.normalize.fold import Block, BulkForm, PredicateBatch
from tocsin.normalize.literals import NULL_LITERAL, canonical_values, column_literals

_OPS = {
    "=": kernels.EQ,
    "==": kernels.EQ,
    "<>": kernels.NE,
    "!=": kernels.NE,
    "<": kernels.LT,
    "<=": kernels.LE,
    ">": kernels.GT,
    ">=": kernels.GE,
    "LIKE": kernels.LIKE,
    "NOT LIKE": kernels.NOT_LIKE,
    "IS NULL": kernels.IS_NULL,
    "IS NOT NULL": kernels.NOT_NULL,
}
_SPELLINGS = {0: "=", 1: "<>", 2: "<", 3: "<=", 4: ">", 5: ">="}
_NO_OP = 255


@dataclass(frozen=True)
class RuleTable:
    """A rule table, its rows ordered by subscription and disjunct.

    `op` is 255 where a row's operator is not known. `problem` holds the rows that cannot be taken.
    """

    ids: pa.Array
    first_row: NDArray[np.int64]
    row: NDArray[np.int64]
    subscription: NDArray[np.int64]
    row_start: NDArray[np.int64]
    conjunction_start: NDArray[np.int64]
    names: list[str | None]
    attribute: NDArray[np.int32]
    op: NDArray[np.uint8]
    op_texts: pa.Array
    values: tuple[pa.Array, ...]
    problem: NDArray[np.bool_]

    def expression(self, subscription: int) -> Expression:
        """Return the condition of one subscription as an expression."""
        disjuncts: list[Expression] = []
        for c in range(
            self.conjunction_start[subscription], self.conjunction_start[subscription + 1]
        ):
            rows = range(self.row_start[c], self.row_start[c + 1])
            disjuncts.append(conjoin([self._predicate(int(at)) for at in rows]))
        return disjoin(disjuncts)

    def _predicate(self, at: int) -> Expression:
        row = int(self.row[at])
        name = self.names[self.attribute[at]]
        if name is None:
            raise SubscriptionError(f"row {row}: the attribute is missing, or begins with NUL")
        op = int(self.op[at])
        if op == _NO_OP:
            op_text = self.op_texts[row].as_py()
            raise SubscriptionError(
                f"row {row}: unknown operator {op_text!r}; expected one of {', '.join(_OPS)}"
            )
        if op in (kernels.IS_NULL, kernels.NOT_NULL):
            return IsNull(name, op == kernels.NOT_NULL)
        values = [v for v in (column[row].as_py() for column in self.values) if v is not None]
        if len(values) != 1:
            what = "the value is missing" if not values else "both number and text are given"
            raise SubscriptionError(f"row {row}: {what}")
        literal = to_literal(values[0], name)
        if op in (kernels.LIKE, kernels.NOT_LIKE):
            return Like(name, literal, None, op == kernels.NOT_LIKE)
        return Comparison(name, _SPELLINGS[op], literal)


def read_rows(table: pa.Table) -> RuleTable:
    """Order a rule table by subscription, and find out what its rows say."""
    columns = _columns(table)
    ids, subscription = _number_ids(columns["id"])
    conjunction = subscription
    if "disjunct" in columns:
        disjunct = _encode(columns["disjunct"], null_encoding="encode")
        conjunction = subscription * max(len(disjunct.dictionary), 1) + disjunct.indices.to_numpy()
    row = np.arange(len(subscription))
    if np.any(conjunction[1:] < conjunction[:-1]):
        row = np.argsort(conjunction, kind="stable")
        conjunction, subscription = conjunction[row], subscription[row]
    row_start = _starts(conjunction)
    attribute = _encode_strings(columns["attribute"], "attribute")
    names = attribute.dictionary.to_pylist()
    op_texts = _encode_strings(columns["op"], "op")
    codes = [_OPS.get(" ".join(str(text).upper().split()), _NO_OP) for text in op_texts.dictionary]
    ops = np.array([*codes, _NO_OP], np.uint8)[_codes(op_texts)[row]]
    values = tuple(_values(columns[n], n) for n in ("value", "number", "text") if n in columns)
    n_values = sum(v.is_valid().to_numpy(zero_copy_only=False).astype(np.int8) for v in values)
    needs_value = (ops != kernels.IS_NULL) & (ops != kernels.NOT_NULL)
    attributes = _codes(attribute)[row].astype(np.int32)
    unnamed = [at for at, name in enumerate(names) if not name or name.startswith("\0")]
    attributes[(attributes < 0) | np.isin(attributes, unnamed)] = len(names)
    return RuleTable(
        ids=ids,
        first_row=row[_starts(subscription)[:-1]],
        row=row,
        subscription=subscription[row_start[:-1]],
        row_start=row_start,
        conjunction_start=_starts(subscription[row_start[:-1]]),
        names=[*names, None],
        attribute=attributes,
        op=ops,
        op_texts=op_texts,
        values=values,
        problem=(ops == _NO_OP) | (attributes == len(names)) | (needs_value & (n_values[row] != 1)),
    )


def held_rules(rules: RuleTable) -> RuleTable:
    """Return a rule table without what only its loading needs: it still gives expressions."""
    none = np.empty(0, np.int64)
    return replace(
        rules,
        ids=rules.ids.slice(0, 0),
        first_row=none,
        subscription=none,
        op_texts=rules.op_texts.slice(0, 0),
        problem=np.empty(0, np.bool_),
    )


def take_rules(rules: RuleTable, subscriptions: NDArray[np.int64]) -> RuleTable:
    """Return the rules of some subscriptions, in their order; they still give expressions."""
    conjunctions, conjunction_start = _runs(rules.conjunction_start, subscriptions)
    at, row_start = _runs(rules.row_start, conjunctions)
    row = pa.array(rules.row[at])
    return replace(
        held_rules(rules),
        row=np.arange(len(at)),
        row_start=row_start,
        conjunction_start=conjunction_start,
        attribute=rules.attribute[at],
        op=rules.op[at],
        values=tuple(column.take(row) for column in rules.values),
    )


def _runs(
    starts: NDArray[np.int64], runs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the members of some runs, one run after the other, and the new starts."""
    counts = starts[runs + 1] - starts[runs]
    new_starts = np.concatenate([[0], np.cumsum(counts)])
    return np.arange(new_starts[-1]) + np.repeat(starts[runs] - new_starts[:-1], counts), (
        new_starts
    )


def normalize_rows(rules: RuleTable, event_type: EventType | None = None) -> BulkForm:
    """Bring a rule table into normal form; subscription i is the i-th id."""
    batch = PredicateBatch()
    literal = np.full(len(rules.row), NULL_LITERAL, np.int64)
    for values in rules.values:
        first = batch.literals.add(column_literals(values, batch.literals))
        here = values.is_valid().to_numpy(zero_copy_only=False)[rules.row]
        literal[here] = rules.row[here] + first
    row_counts = np.diff(rules.row_start)
    bad_rows = np.flatnonzero(rules.problem)
    bad = np.unique(rules.subscription[np.searchsorted(rules.row_start, bad_rows, "right") - 1])
    good = ~np.isin(rules.subscription, bad)
    is_good_row = np.repeat(good, row_counts) if len(bad) else slice(None)
    names = [name for name in rules.names if name is not None]
    batch.add(
        Block(
            rules.subscription[good],
            row_counts[good],
            batch.attribute_ids(names)[rules.attribute[is_good_row]],
            rules.op[is_good_row],
            literal[is_good_row],
            np.ones(len(rules.row), np.int32)[is_good_row],
        )
    )
    return batch.fold(len(rules.ids), event_type, rules.expression, bad.tolist())


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    columns = {name: table.column(name) for name in table.column_names}
    missing = [name for name in ("id", "attribute", "op") if name not in columns]
    if "value" not in columns and "number" not in columns and "text" not in columns:
        missing.append("value")
    if missing:
        raise ArgumentError(f"a rule table needs the column {', '.join(missing)}")
    return columns


def _number_ids(column: ArrowColumn) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the distinct ids by first appearance, and the number of each row's id.

    The rows of an id are mostly adjacent, so only the first of each run is hashed.
    """
    array = to_array(column)
    if pa.types.is_dictionary(array.type):  # it may have unused ids
        array = array.dictionary_decode()
    if array.null_count:
        raise ArgumentError(f"row {_first_null(array)}: the id is missing")
    if kind_of_type(array.type) not in (Kind.STRING, Kind.INTEGER):
        encoded = _encode(array)
        return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)
    if kind_of_type(array.type) is Kind.STRING:
        array = array.cast(pa.large_string())
    runs = pc.run_end_encode(array, run_end_type=pa.int64())
    encoded = runs.values.dictionary_encode()
    lengths = np.diff(runs.run_ends.to_numpy(), prepend=0)
    return encoded.dictionary, np.repeat(encoded.indices.to_numpy().astype(np.int64), lengths)


def _encode(column: ArrowColumn, null_encoding: str = "mask") -> pa.DictionaryArray:
    """Number the distinct values of a column by first appearance."""
    array = to_array(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        return array.dictionary_encode(null_encoding=null_encoding)
    except pa.ArrowNotImplementedError:
        raise ArgumentError(f"a column of type {array.type} cannot tell rows apart") from None


def _encode_strings(column: pa.ChunkedArray, name: str) -> pa.DictionaryArray:
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    if kind_of_type(column.type) is not Kind.STRING:
        raise ArgumentError(f"the column {name} must hold strings, not {column.type}")
    array = to_array(column)
    if (
        pa.types.is_dictionary(array.type)
        and not array.dictionary.null_count
        and len(array.dictionary) == len(pc.unique(array.dictionary))
    ):
        return array
    return _encode(array)


def _values(column: pa.ChunkedArray, name: str) -> pa.Array:
    """Return operands in the Arrow type of their kind, dictionary-encoded if they were."""
    array = to_array(column)
    if pa.types.is_null(array.type):
        return array
    if pa.types.is_dictionary(array.type) and not array.dictionary.null_count:
        distinct = canonical_values(name, array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, distinct)
    return canonical_values(name, array)


def _codes(encoded: pa.DictionaryArray) -> NDArray[np.int64]:
    return pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy()  # type: ignore[no-any-return]


def _starts(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each run of equal numbers starts, and the end."""
    if not len(groups):
        return np.zeros(1, np.int64)
    changes = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    return np.concatenate([[0], changes, [len(groups)]]).astype(np.int64)


def _first_null(array: pa.Array) -> int:
    return int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
