"""Conditions on the elements of lists → boolean computed values, which every index takes.

Enters: the conjunctions of a table with conditions on elements, in the normal form. Leaves: the
same with conditions on computed values such as `ANY(tags) = 'x'`, each of which must be true.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.language.computed import canonical
from tocsin.language.expression import (
    Between,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Operand,
    conjoin,
    disjoin,
)
from tocsin.language.names import element_name, is_elements
from tocsin.language.printer import name_of
from tocsin.language.term_names import term_of
from tocsin.language.terms import Exists, Test
from tocsin.model import Kind, from_microseconds, to_microseconds
from tocsin.normalize import domains
from tocsin.normalize.condition import Condition, on_domain
from tocsin.normalize.domains import FULL, HIGH, LOW, Domain, Interval, Intervals
from tocsin.normalize.keys import flatten_cut
from tocsin.normalize.table import ConjunctionTable

_VARIABLE = "element"
_FIRST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
_LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
TRUE = on_domain(
    Domain.BOOLEAN,
    ((domains.cut_before(Domain.BOOLEAN, True), domains.cut_after(Domain.BOOLEAN, True)),),
)


def is_truth(table: ConjunctionTable) -> NDArray[np.bool_]:
    """Return which conditions of a table are that a boolean is true."""
    (interval,) = TRUE.intervals[Domain.BOOLEAN]
    (low, low_offset), (high, high_offset) = (
        flatten_cut(Domain.BOOLEAN, cut, int) for cut in interval
    )
    first = table.piece_start[:-1]
    is_single = (np.diff(table.piece_start) == 1) & (table.flags == 0)
    at = np.where(is_single, first, 0)
    if not len(table.domain):
        return np.asarray(is_single)
    fits = (
        is_single
        & (table.domain[at] == Domain.BOOLEAN)
        & (table.low_key[at] == low)
        & (table.low_offset[at] == low_offset)
        & (table.high_key[at] == high)
        & (table.high_offset[at] == high_offset)
    )
    return np.asarray(fits)


def truth_name(name: str, condition: Condition) -> str:
    """Return the name of the boolean that says whether elements satisfy a condition."""
    of = element_name(name)._replace(slot=0)
    expression = expression_of(of.name, condition)
    if isinstance(expression, Comparison | Between | In | Like | IsNull):
        return name_of(Test(expression))
    test = expression_of(_VARIABLE, condition)
    return name_of(canonical(Exists(term_of(of.list), _VARIABLE, test, of.quantifier == "all")))


def expression_of(name: str, condition: Condition) -> Expression:
    """Return an expression that is true of just the values in a condition."""
    if condition.other:
        present = IsNull(name, negated=True)
        return Constant(True) if condition.absent else present
    options: list[Expression] = []
    for domain in Domain:
        intervals = condition.intervals[domain]
        points = [domains.point_value(interval) for interval in intervals]
        excluded = _excluded(domain, intervals)
        if excluded and not condition.patterns:
            literals = tuple(_literal(domain, point) for point in excluded)
            options.append(
                Comparison(name, "<>", literals[0])
                if len(literals) == 1
                else In(name, literals, negated=True)
            )
        elif len(points) > 1 and domain in (Domain.NUMBER, Domain.STRING) and None not in points:
            options.append(In(name, tuple(_literal(domain, point) for point in points)))
        else:
            options += [_on_interval(name, domain, interval) for interval in intervals]
        if domain is Domain.STRING and condition.patterns and intervals:
            fits = [
                Like(name, Literal(pattern.text, Kind.STRING), "\\", negated)
                for pattern, negated in sorted(condition.patterns, key=repr)
            ]
            n = len(intervals)
            inside = options[-n:] if len(options) >= n else options
            is_full = intervals == FULL[domain]
            options[len(options) - len(inside) :] = [
                conjoin([*fits] if is_full else [disjoin(inside), *fits])
            ]
    if condition.absent:
        options.append(IsNull(name))
    return disjoin(options) if options else Constant(False)


def _excluded(domain: Domain, intervals: Intervals) -> list[object]:
    """Return the values that are missing from a domain, or none where these are not so few."""
    if domain not in (Domain.NUMBER, Domain.STRING) or len(intervals) < 2:
        return []
    missing = [domains.point_value(each) for each in domains.complement(domain, intervals)]
    return [] if None in missing else missing


def _on_interval(name: str, domain: Domain, interval: Interval) -> Expression:
    point = domains.point_value(interval) if domain in (Domain.NUMBER, Domain.STRING) else None
    if point is not None:
        return Comparison(name, "=", _literal(domain, point))
    (low, low_side), (high, high_side) = interval
    has_low, has_high = interval[0] != LOW[domain], interval[1] != HIGH[domain]
    if domain is Domain.TIMESTAMP:
        if low > to_microseconds(_LAST) or high <= to_microseconds(_FIRST):
            return Constant(False)  # beyond what a timestamp may be
        has_low = has_low and low > to_microseconds(_FIRST)
        has_high = has_high and high <= to_microseconds(_LAST)
    if domain in (Domain.BOOLEAN, Domain.TIMESTAMP):  # discrete: cuts are before values
        if has_low and has_high and high == low + 1:
            return Comparison(name, "=", _literal(domain, low))
        if domain is Domain.BOOLEAN and has_low != has_high:
            return Comparison(name, "=", _literal(domain, 1 if has_low else 0))
    if has_low and has_high and low_side == 0 and high_side == 1:
        return Between(name, _literal(domain, low), _literal(domain, high))
    parts: list[Expression] = []
    if has_low:
        parts.append(Comparison(name, ">=" if low_side == 0 else ">", _literal(domain, low)))
    if has_high:
        parts.append(Comparison(name, "<" if high_side == 0 else "<=", _literal(domain, high)))
    if not parts:  # all values of the domain
        if domain is Domain.NUMBER:
            zero = Literal(0, Kind.INTEGER)
            return disjoin([Comparison(name, "<", zero), Comparison(name, ">=", zero)])
        if domain is Domain.STRING:
            return Comparison(name, ">=", Literal("", Kind.STRING))
        if domain is Domain.BOOLEAN:
            return In(name, (Literal(False, Kind.BOOLEAN), Literal(True, Kind.BOOLEAN)))
        return Comparison(name, ">=", Literal(_FIRST, Kind.TIMESTAMP))
    return conjoin(parts)


_KIND = {
    Domain.NUMBER: Kind.FLOAT,
    Domain.STRING: Kind.STRING,
    Domain.BOOLEAN: Kind.BOOLEAN,
    Domain.TIMESTAMP: Kind.TIMESTAMP,
}


def _literal(domain: Domain, key: object) -> Operand:
    if domain is Domain.BOOLEAN:
        return Literal(bool(key), Kind.BOOLEAN)
    if domain is Domain.TIMESTAMP:
        assert isinstance(key, int)
        return Literal(from_microseconds(key), Kind.TIMESTAMP)
    kind = Kind.INTEGER if isinstance(key, int) else _KIND[domain]
    return Literal(key, kind)  # type: ignore[arg-type]


def elements_as_truths(table: ConjunctionTable) -> ConjunctionTable:
    """Return a table in which conditions on elements are booleans that must be true."""
    is_of = np.array([is_elements(name) for name in table.attributes], np.bool_)
    if not is_of.any():
        return table
    conditions = np.flatnonzero(is_of[table.attribute])
    kept = np.flatnonzero(~is_of)
    names = {table.attributes[at]: number for number, at in enumerate(kept.tolist())}
    attribute_of = np.full(len(table.attributes), -1, np.int32)
    attribute_of[kept] = np.arange(len(kept))
    attribute = attribute_of[table.attribute]
    first, same_as = _same_conditions(table, conditions)
    numbers = [
        names.setdefault(
            truth_name(_name(table, condition), table.condition(condition)), len(names)
        )
        for condition in conditions[first].tolist()
    ]
    attribute[conditions] = np.array(numbers, np.int32)[same_as]

    owner = np.repeat(np.arange(table.n_conjunctions), np.diff(table.condition_start))
    order = np.lexsort((attribute, owner))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (np.diff(owner[order]) != 0) | (np.diff(attribute[order]) != 0)
    order = order[is_new]
    is_truth = np.zeros(table.n_conditions, np.bool_)
    is_truth[conditions] = True
    is_truth = is_truth[order]
    counts = np.where(is_truth, 1, np.diff(table.piece_start)[order])
    piece_start = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    source = np.repeat(table.piece_start[order] - piece_start[:-1], counts)
    source += np.arange(piece_start[-1])
    truths = piece_start[:-1][is_truth]
    source[truths] = 0
    if not len(table.domain):  # no condition had a piece
        source = np.empty(0, np.int64)
    moved_to = np.full(table.n_conditions, -1, np.int64)
    moved_to[order[~is_truth]] = np.flatnonzero(~is_truth)
    moved = moved_to[table.pattern_condition]
    patterned = np.argsort(moved, kind="stable")[np.count_nonzero(moved < 0) :]
    condition_start = np.zeros(table.n_conjunctions + 1, np.int64)
    np.cumsum(np.bincount(owner[order], minlength=table.n_conjunctions), out=condition_start[1:])
    return replace(
        table,
        attributes=tuple(names),
        condition_start=condition_start,
        attribute=attribute[order],
        flags=np.where(is_truth, 0, table.flags[order]).astype(np.uint8),
        piece_start=piece_start,
        **_pieces_of(table, source, truths, piece_start[-1]),
        pattern_condition=moved[patterned],
        pattern_id=table.pattern_id[patterned],
        pattern_negated=table.pattern_negated[patterned],
    )


def _pieces_of(
    table: ConjunctionTable, source: NDArray[np.int64], truths: NDArray[np.int64], n: int
) -> dict[str, Any]:
    """Return columns of n pieces, taken from a table but for those of truths."""
    (interval,) = TRUE.intervals[Domain.BOOLEAN]
    low, high = (flatten_cut(Domain.BOOLEAN, cut, int) for cut in interval)
    columns: dict[str, Any] = {}
    for name, value in zip(_PIECES, (int(Domain.BOOLEAN), *low, *high), strict=True):
        old = getattr(table, name)
        column = old[source] if len(source) else np.zeros(n, old.dtype)
        column[truths] = value
        columns[name] = column
    return columns


_PIECES = ("domain", "low_key", "low_offset", "high_key", "high_offset")


def _name(table: ConjunctionTable, condition: int) -> str:
    return table.attributes[int(table.attribute[condition])]


def _same_conditions(
    table: ConjunctionTable, conditions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first of each kind of condition, and the kind of each."""
    bases: dict[str, int] = {}
    base_of = np.array(
        [
            bases.setdefault(element_name(name)._replace(slot=0).name, len(bases))
            if is_elements(name)
            else -1
            for name in table.attributes
        ]
    )
    has_pattern = np.zeros(table.n_conditions, np.bool_)
    has_pattern[table.pattern_condition] = True
    is_single = (np.diff(table.piece_start)[conditions] == 1) & ~has_pattern[conditions]
    keys = np.full((len(conditions), 7), -1, np.int64)
    keys[:, 0] = base_of[table.attribute[conditions]]
    keys[:, 1] = table.flags[conditions]
    pieces = table.piece_start[conditions[is_single]]
    for at, name in enumerate(_PIECES):
        keys[is_single, 2 + at] = getattr(table, name)[pieces]
    keys[~is_single, 2] = -2 - np.flatnonzero(~is_single)  # each is of its own kind
    packed = np.ascontiguousarray(keys).view(np.dtype((np.void, 56))).reshape(-1)
    _, first, same_as = np.unique(packed, return_index=True, return_inverse=True)
    return first, same_as
