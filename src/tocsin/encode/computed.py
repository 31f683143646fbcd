"""Computed values: terms → their values for every event of a batch.

Enters: terms, and a batch of events. Leaves: vectors of values, truths of conditions, and for a
list of each event its elements as a batch of their own. Each term is computed once for a batch,
whatever the number of subscriptions that use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.encode import vectors
from tocsin.encode.lists import Elements, python_elements, word_elements
from tocsin.encode.vectors import Mask, Vector
from tocsin.language import functions
from tocsin.language.computed import mentions
from tocsin.language.evaluate import SPECIAL, evaluate_term, moment, now
from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Constant,
    Distinct,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Predicate,
)
from tocsin.language.names import element_name, is_computed, is_elements
from tocsin.language.term_names import term_of
from tocsin.language.terms import Attribute, Call, Case, Cast, Exists, Interval, Term, Test
from tocsin.model import Kind, from_microseconds, to_microseconds

if TYPE_CHECKING:
    from tocsin.encode.events import EventBatch


class Truths(NamedTuple):
    """Where a condition is true, and where it is false; elsewhere it is unknown."""

    true: Mask
    false: Mask


class ComputedColumns:
    """The computed values of a batch, each kept once it was computed."""

    def __init__(self, batch: EventBatch, moment: int | None = None) -> None:
        self._batch = batch
        self.moment = now() if moment is None else moment
        """What `now()` is, in microseconds since 1970."""
        self._vectors: dict[Term, Vector] = {}
        self._elements: dict[Term, Elements | None] = {}

    def vector(self, term: Term) -> Vector:
        """Return the values of a term."""
        vector = self._vectors.get(term)
        if vector is None:
            vector = self._vectors[term] = self._compute(term)
        return vector

    def elements(self, term: Term) -> Elements | None:
        """Return the elements of a list of each event, or None where no event has one."""
        if term not in self._elements:
            self._elements[term] = self._list(term)
        return self._elements[term]

    def _compute(self, term: Term) -> Vector:
        n = len(self._batch)
        if isinstance(term, Literal):
            return vectors.constant(term.value, term.kind, n)
        if isinstance(term, Attribute):
            return self._attribute(term.name)
        if isinstance(term, Call):
            return self._call(term)
        if isinstance(term, Cast):
            return _cast(self.vector(term.term), term.kind)
        if isinstance(term, Test):
            return _as_vector(self.truths(term.condition))
        if isinstance(term, Exists):
            return _as_vector(self._exists(term))
        if isinstance(term, Case):
            return self._case(term)
        assert isinstance(term, Interval), "parameters are bound before evaluation"
        value = None if term.months else term.microseconds * functions.MICROSECOND
        return Vector(None, [value] * n)

    def _attribute(self, name: str) -> Vector:
        if is_computed(name):
            return self.vector(term_of(name))
        vector = vectors.from_column(self._batch.column(name), len(self._batch))
        return Vector(None, self._batch.values(name)) if vector is None else vector

    def _call(self, term: Call) -> Vector:
        name, arguments = term.function, term.arguments
        if name == "now":
            return vectors.constant(
                from_microseconds(self.moment), Kind.TIMESTAMP, len(self._batch)
            )
        if name == "cardinality":
            return self._cardinality(arguments[0])
        if name in ("+", "-") and isinstance(arguments[1], Interval | Literal):
            shifted = self._shifted(term)
            if shifted is not None:
                return shifted
        if name in SPECIAL or any(isinstance(part, Interval) for part in arguments):
            return self._row_by_row(term)
        return vectors.call(name, [self.vector(part) for part in arguments])

    def _shifted(self, term: Call) -> Vector | None:
        """Add a constant interval to timestamps."""
        moments, interval = term.arguments
        if not isinstance(interval, Interval) or interval.months:
            return None
        by = interval.microseconds * (1 if term.function == "+" else -1)
        return vectors.shift(self.vector(moments), by)

    def _row_by_row(self, term: Term) -> Vector:
        """Compute a term event by event."""
        token = moment.set(self.moment)
        try:
            values = [evaluate_term(term, of) for of in self._batch.readers()]
        finally:
            moment.reset(token)
        return vectors.from_objects(values)

    def _case(self, term: Case) -> Vector:
        n = len(self._batch)
        undecided = np.ones(n, np.bool_)
        chosen: list[tuple[Mask, Vector]] = []
        for condition, value in term.branches:
            mask = undecided & self.truths(condition).true
            undecided &= ~mask
            chosen.append((mask, self.vector(value)))
        chosen.append((undecided, self.vector(term.otherwise)))
        kinds = {vector.kind for _, vector in chosen}
        if len(kinds) > 1 or None in kinds or Kind.STRING in kinds:
            values: list[object] = [None] * n
            for mask, vector in chosen:
                objects = vectors.to_objects(vector)
                for row in np.flatnonzero(mask).tolist():
                    values[row] = objects[row]
            return vectors.from_objects(values)
        kind = chosen[0][1].kind
        numbers, here = np.zeros(n, chosen[0][1].values.dtype), np.zeros(n, np.bool_)
        for mask, vector in chosen:
            np.copyto(numbers, vector.values, where=mask)
            here |= mask if vector.here is None else mask & vector.here
        return Vector(kind, numbers, None if here.all() else here)

    # Conditions.

    def truths(self, condition: Expression) -> Truths:
        """Return where a condition is true and where it is false."""
        n = len(self._batch)
        if isinstance(condition, Constant):
            value = condition.value
            return Truths(np.full(n, value is True), np.full(n, value is False))
        if isinstance(condition, Not):
            inner = self.truths(condition.operand)
            return Truths(inner.false, inner.true)
        if isinstance(condition, And | Or):
            parts = [self.truths(part) for part in condition.operands]
            true = [part.true for part in parts]
            false = [part.false for part in parts]
            if isinstance(condition, And):
                return Truths(np.logical_and.reduce(true), np.logical_or.reduce(false))
            return Truths(np.logical_or.reduce(true), np.logical_and.reduce(false))
        if is_elements(condition.attribute):
            return self._of_elements(condition)
        return self._decide(condition, self._attribute(condition.attribute))

    def _decide(self, predicate: Predicate, vector: Vector) -> Truths:
        """Decide a predicate on values."""
        if isinstance(predicate, IsNull):
            here = self._is_here(vector)
            return Truths(here, ~here) if predicate.negated else Truths(~here, here)
        if isinstance(predicate, Comparison):
            return _compared(predicate.op, vector, predicate.operand)
        if isinstance(predicate, Between):
            low = _compared(">=", vector, predicate.low)
            high = _compared("<=", vector, predicate.high)
            return _negated(predicate.negated, low.true & high.true, low.false | high.false)
        if isinstance(predicate, In):
            equal = [_compared("=", vector, operand) for operand in predicate.operands]
            true = np.logical_or.reduce([part.true for part in equal])
            false = np.logical_and.reduce([part.false for part in equal])
            return _negated(predicate.negated, true, false)
        if isinstance(predicate, Distinct):
            operand = predicate.operand
            assert isinstance(operand, Literal)
            if operand.value is None:
                differ = self._is_here(vector)
            else:
                differ = ~_compared("=", vector, operand).true
            return _negated(predicate.negated, differ, ~differ)
        if isinstance(predicate, Like):
            return _like(predicate, vector)
        return _compared("=", vector, Literal(True, Kind.BOOLEAN))

    @staticmethod
    def _is_here(vector: Vector) -> Mask:
        if vector.kind is None:
            return np.array([value is not None for value in vector.values], np.bool_)
        return np.ones(len(vector), np.bool_) if vector.here is None else vector.here

    # Lists.

    def _list(self, term: Term) -> Elements | None:
        outer = self._batch.outer
        if outer is not None and not mentions(term, outer.variable):
            elements = outer.batch.computed.elements(term)
            return None if elements is None else elements.repeated(outer.rows, outer.sizes)
        if isinstance(term, Attribute):
            return self._batch.list(term.name)
        if isinstance(term, Call) and term.function == "words":
            vector = self.vector(term.arguments[0])
            if vector.kind is Kind.STRING:
                return word_elements(vector)
        return python_elements([evaluate_term(term, of) for of in self._batch.readers()])

    def _cardinality(self, term: Term) -> Vector:
        elements = self.elements(term)
        if elements is None:
            return vectors.absent(len(self._batch))
        return Vector(Kind.INTEGER, np.diff(elements.start), elements.here)

    def _of_elements(self, predicate: Predicate) -> Truths:
        of = element_name(predicate.attribute)
        elements = self.elements(term_of(of.list))
        if elements is None:
            return Truths(*_nowhere(len(self._batch)))
        inner = self._decide(predicate, self._batch.values_of(elements))
        return quantified(elements, inner, every=of.quantifier == "all")

    def _exists(self, term: Exists) -> Truths:
        elements = self.elements(term.list)
        if elements is None:
            return Truths(*_nowhere(len(self._batch)))
        batch = self._batch.of_elements(elements, term.variable)
        return quantified(elements, batch.computed.truths(term.condition), every=term.every)


def _nowhere(n: int) -> tuple[Mask, Mask]:
    return np.zeros(n, np.bool_), np.zeros(n, np.bool_)


def quantified(elements: Elements, truths: Truths, *, every: bool) -> Truths:
    """Return where any element of a list satisfies a condition, or all do."""
    n_true = _counts(elements.start, truths.true)
    n_false = _counts(elements.start, truths.false)
    n = np.diff(elements.start)
    if every:
        true, false = n_true == n, n_false > 0
    else:
        true, false = n_true > 0, n_false == n
    if elements.here is None:
        return Truths(true, false)
    return Truths(true & elements.here, false & elements.here)


def _counts(start: NDArray[np.int64], flags: Mask) -> NDArray[np.int64]:
    total = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=total[1:])
    return np.diff(total[start])


def _negated(negated: bool, true: Mask, false: Mask) -> Truths:
    return Truths(false, true) if negated else Truths(true, false)


def _as_vector(truths: Truths) -> Vector:
    known = truths.true | truths.false
    return Vector(Kind.BOOLEAN, truths.true, None if known.all() else known)


def _compared(op: str, vector: Vector, operand: object) -> Truths:
    assert isinstance(operand, Literal), "operands are bound before evaluation"
    if vector.kind is None or operand.kind is None:
        answers = [functions.compare(op, v, operand.value) for v in vectors.to_objects(vector)]
        true = np.array([answer is True for answer in answers], np.bool_)
        return Truths(true, np.array([answer is False for answer in answers], np.bool_))
    decided = vectors.call(op, [vector, vectors.constant(operand.value, operand.kind, len(vector))])
    if decided.kind is None:
        return Truths(*_nowhere(len(vector)))
    here = decided.here
    values = decided.values
    return Truths(values, ~values) if here is None else Truths(values & here, ~values & here)


def _like(predicate: Like, vector: Vector) -> Truths:
    pattern = predicate.pattern
    assert isinstance(pattern, Literal), "operands are bound before evaluation"
    if vector.kind is not Kind.STRING or not isinstance(pattern.value, str):
        if vector.kind is not None:
            return Truths(*_nowhere(len(vector)))
        values = vector.values
        fits = [_fits(predicate, value) for value in values]
    else:

        def change(strings: pa.Array) -> pa.Array:
            return pa.array([_fits(predicate, text) for text in strings.to_pylist()], pa.bool_())

        decided = vectors.on_distinct(vector, change, Kind.BOOLEAN)
        fits = vectors.to_objects(decided)
    true = np.array([fit is True for fit in fits], np.bool_)
    false = np.array([fit is False for fit in fits], np.bool_)
    return _negated(predicate.negated, true, false)


def _fits(predicate: Like, value: object) -> bool | None:
    pattern = predicate.pattern
    assert isinstance(pattern, Literal)
    return functions.like(value, pattern.value, predicate.escape, ignore_case=predicate.ignore_case)


def _cast(vector: Vector, kind: Kind) -> Vector:
    if vector.kind is kind:
        return vector
    if vector.kind is Kind.INTEGER and kind is Kind.FLOAT:
        return Vector(kind, vector.values.astype(np.float64), vector.here)
    if vector.kind is Kind.STRING:

        def change(strings: pa.Array) -> pa.Array:
            values = [functions.cast(text, kind) for text in strings.to_pylist()]
            if kind is Kind.TIMESTAMP:
                values = [None if v is None else to_microseconds(v) for v in values]
            return pa.array(values, _ARROW[kind])

        return vectors.on_distinct(vector, change, kind)
    return vectors.from_objects([functions.cast(v, kind) for v in vectors.to_objects(vector)])


_ARROW = {
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.int64(),
}
