"""Conditions: the set of values that a conjunction admits for one attribute.

A condition has intervals in each domain, flags for an absent value and for a present value of no
domain (NaN, a list, …), and the LIKE patterns that are no intervals, which every string must match
(or not match). This is the interval and set form of Jayaram et al. (Beretta, section 4.1), with
absence as a value of its own and several intervals allowed.

Enters: predicates with bound operands. Leaves: canonical conditions, closed under intersection; and
under union if there are no patterns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tocsin.errors import KindClashError, ParameterError
from tocsin.language.expression import (
    Between,
    Comparison,
    Distinct,
    In,
    IsNull,
    Like,
    Literal,
    Operand,
    Predicate,
)
from tocsin.language.functions import MAX_PATTERN
from tocsin.language.printer import print_attribute
from tocsin.model import Kind, kind_of
from tocsin.normalize import domains
from tocsin.normalize.budget import Budget
from tocsin.normalize.domains import DOMAIN_OF_KIND, FULL, HIGH, LOW, Domain, Intervals
from tocsin.normalize.patterns import (
    Pattern,
    interval_of,
    parse_pattern,
    prefix_interval,
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A set of values of one attribute."""

    intervals: tuple[Intervals, ...] = ((), (), (), ())
    absent: bool = False
    other: bool = False
    patterns: frozenset[tuple[Pattern, bool]] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether no value is in it."""
        return not (self.absent or self.other or any(self.intervals))

    @property
    def is_full(self) -> bool:
        """Whether every value is in it, an absent one too."""
        return self.absent and self.other

    @property
    def is_point(self) -> bool:
        """Whether exactly one number or one string is in it."""
        numbers, strings, booleans, timestamps = self.intervals
        if self.absent or self.other or booleans or timestamps or self.patterns:
            return False
        if len(numbers) + len(strings) != 1:
            return False
        return domains.point_value((numbers or strings)[0]) is not None

    def holds(self, value: object) -> bool:
        """Whether a Python value is in the set."""
        if value is None:
            return self.absent
        domain = domain_of(value)
        if domain is None:
            return self.other
        if not domains.holds(self.intervals[domain], domains.to_key(value)):
            return False
        return all(p.matches(str(value)) is not negated for p, negated in self.patterns)


PRESENT = Condition(intervals=FULL, other=True)
ABSENT = Condition(absent=True)
NOTHING = Condition()
EVERYTHING = Condition(intervals=FULL, absent=True, other=True)


def domain_of(value: object) -> Domain | None:
    """Return the domain of a Python value, or None."""
    kind = kind_of(value)
    if kind is None or (kind is Kind.FLOAT and math.isnan(value)):  # type: ignore[arg-type]
        return None
    return DOMAIN_OF_KIND[kind]


def on_domain(domain: Domain, intervals: Intervals) -> Condition:
    """Return the condition of some intervals of one domain."""
    by_domain: list[Intervals] = [(), (), (), ()]
    by_domain[domain] = intervals
    return Condition(intervals=tuple(by_domain))


def canonical(condition: Condition, declared: Kind | None) -> Condition:
    """Return the canonical form of a condition, given the declared kind of its attribute."""
    if declared is Kind.INTEGER:
        numbers = domains.tighten_intervals(condition.intervals[Domain.NUMBER])
        condition = Condition(
            (numbers, *condition.intervals[1:]),
            condition.absent,
            condition.other,
            condition.patterns,
        )
    if condition.patterns:
        return _decide_points(condition)
    if condition.other:
        return condition
    if declared is Kind.FLOAT or declared is None:
        return condition
    domain = DOMAIN_OF_KIND[declared]
    if condition.intervals[domain] == FULL[domain]:  # any present value is in this domain
        return Condition(FULL, condition.absent, other=True)
    return condition


def _decide_points(condition: Condition, budget: Budget | None = None) -> Condition:
    """If all strings are single values, match them against the patterns now."""
    strings = condition.intervals[Domain.STRING]
    points = [domains.point_value(interval) for interval in strings]
    if any(point is None for point in points):
        return condition
    matching = tuple(
        interval
        for interval, point in zip(strings, points, strict=True)
        if _fits_patterns(condition, point, budget)
    )
    return Condition(((), matching, (), ()), condition.absent)


def _fits_patterns(condition: Condition, text: str, budget: Budget | None) -> bool:
    """Whether a string matches a condition's patterns."""
    for pattern, negated in condition.patterns:
        if budget is not None:
            budget.spend(pattern.steps(len(text)))
        if pattern.matches(text) is negated:
            return False
    return True


def intersect(a: Condition, b: Condition, budget: Budget | None = None) -> Condition:
    """Return the intersection; its steps are spent from the budget, if any."""
    if budget is not None:
        budget.spend(condition_steps(a) + condition_steps(b))
    by_domain = tuple(map(domains.intersect, a.intervals, b.intervals))
    patterns = a.patterns | b.patterns
    if patterns and any((p, not negated) in patterns for p, negated in patterns):
        by_domain = ((), (), (), ())
    both = Condition(by_domain, a.absent and b.absent, a.other and b.other, patterns)
    return _decide_points(both, budget) if patterns else both


def unite(a: Condition, b: Condition) -> Condition | None:
    """Return the union, or None if there are patterns."""
    if a.patterns or b.patterns:
        return None
    by_domain = tuple(map(domains.unite, a.intervals, b.intervals))
    return Condition(by_domain, a.absent or b.absent, a.other or b.other)


def condition_covers(a: Condition, b: Condition, budget: Budget | None = None) -> bool:
    """Whether every value in b is in a; with patterns, sound but not complete."""
    if budget is not None:
        budget.spend(condition_steps(a) + condition_steps(b))
    if (b.absent and not a.absent) or (b.other and not a.other):
        return False
    if not all(map(domains.contains, a.intervals, b.intervals)):
        return False
    if a.patterns <= b.patterns:
        return True
    values = [domains.point_value(interval) for interval in b.intervals[Domain.STRING]]
    if any(value is None for value in values):
        return False
    return all(_fits_patterns(a, value, budget) for value in values)


def condition_steps(condition: Condition) -> int:
    """Estimate the steps to read a condition once."""
    numbers, strings, booleans, timestamps = condition.intervals
    n_pieces = len(numbers) + len(strings) + len(booleans) + len(timestamps)
    return 4 + 2 * n_pieces + 2 * len(condition.patterns)


def predicate_steps(predicate: Predicate) -> int:
    """Estimate the steps to make a predicate's condition."""
    if isinstance(predicate, In):
        return 20 + 8 * len(predicate.operands)
    if isinstance(predicate, Like) and isinstance(predicate.pattern, Literal):
        value = predicate.pattern.value
        return 20 + (4 * min(len(value), MAX_PATTERN) if isinstance(value, str) else 0)
    return 20


def condition_of(
    predicate: Predicate, negated: bool, declared: Kind | None, *, is_bounded: bool = True
) -> Condition:
    """Return the values that make a predicate true (or, negated, false).

    Under three-valued logic a predicate on an absent value is unknown, which is neither. LIKE
    patterns that are costly to match are refused if bounded.
    """
    if isinstance(predicate, Comparison):
        op = _NEGATED[predicate.op] if negated else predicate.op
        condition = _comparison(op, predicate.operand)
    elif isinstance(predicate, Between):
        low, high = predicate.low, predicate.high
        if predicate.negated is negated:
            condition = intersect(_comparison(">=", low), _comparison("<=", high))
        else:
            condition = _union(_comparison("<", low), _comparison(">", high))
    elif isinstance(predicate, In):
        condition = _membership(predicate.operands, predicate.negated is not negated)
    elif isinstance(predicate, Like):
        condition = _like(predicate, predicate.negated is not negated, is_bounded)
    elif isinstance(predicate, IsNull):
        return PRESENT if predicate.negated is not negated else ABSENT
    else:
        condition = _comparison("=", Literal(not negated, Kind.BOOLEAN))
    return canonical(condition, declared)


_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _bound(operand: Operand) -> Literal | None:
    """Return an operand's literal, or None when it compares with nothing (NULL, NaN)."""
    if not isinstance(operand, Literal):
        name = str(operand.name)
        raise ParameterError(f"no value for parameter :{name}", missing=[name])
    value = operand.value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return operand


def _comparison(op: str, operand: Operand) -> Condition:
    literal = _bound(operand)
    if literal is None or literal.kind is None:
        return NOTHING
    domain = DOMAIN_OF_KIND[literal.kind]
    before = domains.cut_before(domain, literal.value)
    after = domains.cut_after(domain, literal.value)
    low, high = LOW[domain], HIGH[domain]
    if op == "=":
        pieces = [(before, after)]
    elif op == "<>":
        pieces = [(low, before), (after, high)]
    elif op == "<":
        pieces = [(low, before)]
    elif op == "<=":
        pieces = [(low, after)]
    elif op == ">":
        pieces = [(after, high)]
    else:
        pieces = [(before, high)]
    return on_domain(domain, tuple(piece for piece in pieces if piece[0] < piece[1]))


def _membership(operands: tuple[Operand, ...], negated: bool) -> Condition:
    """IN is a disjunction of equalities, NOT IN a conjunction of inequalities."""
    points: list[list[domains.Interval]] = [[], [], [], []]
    comparable = 0
    for operand in operands:
        literal = _bound(operand)
        if literal is None or literal.kind is None:
            continue
        comparable += 1
        domain = DOMAIN_OF_KIND[literal.kind]
        points[domain].append(
            (domains.cut_before(domain, literal.value), domains.cut_after(domain, literal.value))
        )
    if not negated:
        return Condition(tuple(domains.unite(tuple(p), ()) for p in points))
    used = [domain for domain in Domain if points[domain]]
    if comparable < len(operands) or len(used) != 1:
        return NOTHING  # unknown for every value, or no value differs from all of them
    (domain,) = used
    return on_domain(domain, domains.complement(domain, domains.unite(tuple(points[domain]), ())))


def _like(predicate: Like, negated: bool, is_bounded: bool) -> Condition:
    literal = _bound(predicate.pattern)
    if literal is None or not isinstance(literal.value, str):
        return NOTHING
    pattern = parse_pattern(literal.value, predicate.escape, is_bounded=is_bounded)
    interval = interval_of(pattern)
    if interval is not None:
        inside: Intervals = (interval,)
        return on_domain(
            Domain.STRING, domains.complement(Domain.STRING, inside) if negated else inside
        )
    span = FULL[Domain.STRING] if negated else (prefix_interval(pattern),)
    return Condition(((), span, (), ()), patterns=frozenset(((pattern, negated),)))


def _union(a: Condition, b: Condition) -> Condition:
    united = unite(a, b)
    assert united is not None, "comparisons have no patterns"
    return united


def check_kind(predicate: Predicate, declared: Kind) -> None:
    """Refuse a predicate whose literals do not fit the declared kind of its attribute."""
    name = predicate.attribute
    if name.startswith("\0"):
        name = print_attribute(name)
    if isinstance(predicate, Like) and declared is not Kind.STRING:
        raise KindClashError(name, declared.value, "string")
    kinds: list[Kind | None] = []
    if isinstance(predicate, Comparison | Distinct):
        kinds = [_kind(predicate.operand)]
    elif isinstance(predicate, Between):
        kinds = [_kind(predicate.low), _kind(predicate.high)]
    elif isinstance(predicate, In):
        kinds = [_kind(operand) for operand in predicate.operands]
    elif isinstance(predicate, Like):
        kinds = [_kind(predicate.pattern)]
    elif not isinstance(predicate, IsNull):
        kinds = [Kind.BOOLEAN]
    for kind in kinds:
        if kind is not None and DOMAIN_OF_KIND[kind] is not DOMAIN_OF_KIND[declared]:
            raise KindClashError(name, declared.value, kind.value)


def _kind(operand: Operand) -> Kind | None:
    return operand.kind if isinstance(operand, Literal) else None
