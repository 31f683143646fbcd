"""Normal form → words for people, and JSON for programs.

Enters: a normal form and, where one was declared, its event type. Leaves: one line of text per
conjunction with one phrase per attribute, in the order of their names; or plain lists and
dictionaries with every bound marked open or closed. Both are exact. Equal forms give equal phrases.

Bounds that sit between two neighbouring values can be written two ways. Integers are written
closed (`[4, 9]`); a timestamp's bound is written with the rounder of its two neighbours.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tocsin.language.computed import static_kind
from tocsin.language.expression import Literal
from tocsin.language.names import ALL_ELEMENTS, element_name, is_computed
from tocsin.language.printer import print_attribute, print_operand, print_string, print_subject
from tocsin.language.term_names import term_of
from tocsin.model import EventType, Kind, from_microseconds, to_microseconds
from tocsin.normalize import domains
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import FULL, HIGH, LOW, Domain, Interval, Intervals
from tocsin.normalize.normal import Conjunction, NormalForm
from tocsin.normalize.patterns import MANY, Pattern, interval_of, prefix_interval

NEVER = "never: no event can match"
ALWAYS = "always: every event matches"

MAX_RUN = 3
"""Length of a run of integers that is written value by value."""

_DOMAIN_NAMES = {
    Domain.NUMBER: "a number",
    Domain.STRING: "a string",
    Domain.BOOLEAN: "a boolean",
    Domain.TIMESTAMP: "a timestamp",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of an interval; `value` None means that the interval is not bounded there."""

    value: Any
    closed: bool


def describe(form: NormalForm, event_type: EventType | None = None) -> list[str]:
    """Return one line of text per conjunction."""
    if form.is_never:
        return [NEVER]
    if form.is_always:
        return [ALWAYS]
    known: dict[tuple[str, int], list[str]] = {}  # conjunctions of a form share conditions
    return [_describe_conjunction(conjunction, event_type, known) for conjunction in form]


def describe_conjunction(conjunction: Conjunction, event_type: EventType | None = None) -> str:
    """Return the phrases of a conjunction's attributes, joined by `and`."""
    return _describe_conjunction(conjunction, event_type, {})


def _describe_conjunction(
    conjunction: Conjunction,
    event_type: EventType | None,
    known: dict[tuple[str, int], list[str]],
) -> str:
    phrases = []
    for name in sorted(conjunction):
        condition = conjunction[name]
        alternatives = known.get((name, id(condition)))
        if alternatives is None:
            alternatives = _alternatives(name, condition, _declared(event_type, name))
            known[name, id(condition)] = alternatives
        phrase = " or ".join(alternatives)
        several = len(alternatives) > 1 and len(conjunction) > 1
        phrases.append(f"({phrase})" if several else phrase)
    return " and ".join(phrases) if phrases else ALWAYS


def describe_condition(name: str, condition: Condition, declared: Kind | None = None) -> str:
    """Return the phrase for one attribute's condition."""
    return " or ".join(_alternatives(name, condition, declared)) or f"{name} impossible"


def _declared(event_type: EventType | None, name: str) -> Kind | None:
    return None if event_type is None else event_type.kind_of(name)


def _alternatives(name: str, condition: Condition, declared: Kind | None) -> list[str]:
    """Return the alternative phrases of a condition."""
    subject = print_attribute(name)
    phrases: list[str] = []
    if condition.is_empty and name.startswith(ALL_ELEMENTS):
        return [f"cardinality({print_attribute(element_name(name).list)}) = 0"]
    if is_computed(name):
        truth = _truth_of(condition)
        if truth is not None and static_kind(term_of(name)) is Kind.BOOLEAN:
            phrases.append(subject if truth else f"not {subject}")
            return phrases + [f"{subject} absent"] * condition.absent
        subject = print_subject(name)
    if condition.other:
        phrases.append(f"{subject} present")
    else:
        for domain in Domain:
            intervals = condition.intervals[domain]
            if domain is Domain.STRING and condition.patterns:
                phrases.append(_patterned(subject, condition))
            elif intervals:
                phrases.extend(_on_domain(subject, domain, intervals, declared is Kind.INTEGER))
    if condition.absent:
        phrases.append(f"{subject} absent")
    return phrases


def _truth_of(condition: Condition) -> bool | None:
    """Return the one boolean that is in a condition, or None."""
    intervals = condition.intervals[Domain.BOOLEAN]
    if condition.other or len(intervals) != 1 or intervals == FULL[Domain.BOOLEAN]:
        return None
    points = points_of(Domain.BOOLEAN, intervals, False)
    return None if points is None else bool(points[0])


def _on_domain(subject: str, domain: Domain, intervals: Intervals, integer: bool) -> list[str]:
    if intervals == FULL[domain]:
        return [f"{subject} is {_DOMAIN_NAMES[domain]}"]
    rest = domains.complement(domain, intervals)
    write = _writer(domain)
    excluded = points_of(domain, rest, integer)
    if excluded is not None and len(intervals) > 1:
        return [f"{subject} not in {{{', '.join(map(write, excluded))}}}"]
    if domain is Domain.STRING and len(rest) == 1 and (prefix := _prefix_of(rest[0])):
        return [f"{subject} not {_like(prefix)}"]
    points = points_of(domain, intervals, integer) if len(intervals) > 1 else None
    if points is not None:
        return [f"{subject} in {{{', '.join(map(write, points))}}}"]
    phrases = []
    for interval in intervals:
        point = point_of(domain, interval, integer)
        single = point is not None
        phrases.append(
            f"{subject} = {write(point)}" if single else _span(subject, domain, interval, integer)
        )
    return phrases


def _span(subject: str, domain: Domain, interval: Interval, integer: bool) -> str:
    write = _writer(domain)
    if domain is Domain.STRING and (prefix := _prefix_of(interval)):
        return f"{subject} {_like(prefix)}"
    low, high = bounds_of(domain, interval, integer)
    if low.value is None:
        return f"{subject} {'<=' if high.closed else '<'} {write(high.value)}"
    if high.value is None:
        return f"{subject} {'>=' if low.closed else '>'} {write(low.value)}"
    left, right = "[" if low.closed else "(", "]" if high.closed else ")"
    return f"{subject} in {left}{write(low.value)}, {write(high.value)}{right}"


def _patterned(subject: str, condition: Condition) -> str:
    """Return the phrase for strings that must match patterns and be in intervals."""
    strings = condition.intervals[Domain.STRING]
    implied: Intervals = FULL[Domain.STRING]
    for pattern, negated in condition.patterns:
        if not negated:
            implied = domains.intersect(implied, (prefix_interval(pattern),))
    ordered = sorted(condition.patterns, key=lambda p: (p[1], p[0].text))
    phrases = [f"{subject} {'not ' * negated}{_like(pattern)}" for pattern, negated in ordered]
    if strings != implied:
        within = _on_domain(subject, Domain.STRING, strings, False)
        phrases.append(" or ".join(within) if len(within) == 1 else f"({' or '.join(within)})")
    return " and ".join(phrases)


def _like(pattern: Pattern) -> str:
    escape = " escape '\\'" if pattern.needs_escape else ""
    return f"like {print_string(pattern.text)}{escape}"


def _prefix_of(interval: Interval) -> Pattern | None:
    """Return the pattern `prefix%` that an interval of strings is, or None."""
    (prefix, side), _ = interval
    if side or not prefix:
        return None
    pattern = Pattern((prefix, MANY))
    return pattern if interval_of(pattern) == interval else None


def _writer(domain: Domain) -> Callable[[Any], str]:
    if domain is Domain.TIMESTAMP:
        return _write_timestamp
    kind = Kind.STRING if domain is Domain.STRING else Kind.FLOAT
    return lambda value: print_operand(
        Literal(bool(value) if domain is Domain.BOOLEAN else value, kind)
    )


def _write_timestamp(microseconds: int) -> str:
    try:
        return print_operand(Literal(from_microseconds(microseconds), Kind.TIMESTAMP))
    except OverflowError:  # beyond the years that Python's calendar knows
        return f"{microseconds} µs after 1970"


def point_of(domain: Domain, interval: Interval, integer: bool = False) -> Any:
    """Return the key of an interval that holds exactly one value, else None."""
    if domain is Domain.BOOLEAN:
        if interval == FULL[domain][0]:
            return None
        return 0 if interval[0] == LOW[domain] else 1
    if domain is Domain.TIMESTAMP or (domain is Domain.NUMBER and integer):
        low, high = bounds_of(domain, interval, True)
        if low.closed and high.closed and low.value is not None and low.value == high.value:
            return low.value
        (low_key, _), (high_key, _) = interval
        return low_key if high_key - low_key == 1 else None
    return domains.point_value(interval)


def points_of(domain: Domain, intervals: Intervals, integer: bool = False) -> list[Any] | None:
    """Return the keys of intervals that hold few values each, else None."""
    points: list[Any] = []
    for interval in intervals:
        point = point_of(domain, interval, integer)
        if point is not None:
            points.append(point)
            continue
        (low, _), (high, _) = interval
        if not (integer and domain is Domain.NUMBER) or high - low > MAX_RUN:
            return None
        points.extend(range(low, high))
    return points


def bounds_of(domain: Domain, interval: Interval, integer: bool = False) -> tuple[Bound, Bound]:
    """Return the two ends of an interval, with the keys of `domains` as values."""
    low, high = interval
    if domain is Domain.TIMESTAMP:
        return _timestamp_bound(low, lower=True), _timestamp_bound(high, lower=False)
    lower = Bound(None, False) if low == LOW[domain] else Bound(low[0], low[1] == 0)
    upper = Bound(None, False) if high == HIGH[domain] else Bound(high[0], high[1] == 1)
    if integer and domain is Domain.NUMBER and upper.value is not None:
        # Cuts of an integer attribute all lie before a value.
        upper = Bound(upper.value - 1, True)
    return lower, upper


def _timestamp_bound(cut: domains.Cut, *, lower: bool) -> Bound:
    """Return a bound just before a microsecond, written from whichever side is rounder."""
    key, _ = cut
    if math.isinf(key):
        return Bound(None, False)
    if (key - 1) % 1_000_000 == 0 or key > to_microseconds(dt.datetime.max):
        return Bound(key - 1, not lower)
    return Bound(key, lower)


def to_json(form: NormalForm, event_type: EventType | None = None) -> dict[str, Any]:
    """Return a normal form as lists and dictionaries that JSON can hold.

    Each attribute has the entries that apply: `numbers`, `strings` and `timestamps` (intervals
    with `low`, `low_closed`, `high`, `high_closed`; a bound of null is none), `booleans` (values),
    `patterns`, and `absent` and `other` (a present value of no kind, such as NaN), when true. An
    infinite number is written "inf" or "-inf"; a timestamp in ISO 8601.
    """
    return {
        "never": form.is_never,
        "always": form.is_always,
        "conjunctions": [
            {
                name: _condition_to_json(conjunction[name], _declared(event_type, name))
                for name in sorted(conjunction)
            }
            for conjunction in form
        ],
    }


def _condition_to_json(condition: Condition, declared: Kind | None) -> dict[str, Any]:
    integer = declared is Kind.INTEGER
    entries: dict[str, Any] = {}
    for domain, title in ((Domain.NUMBER, "numbers"), (Domain.STRING, "strings")):
        if condition.intervals[domain]:
            entries[title] = [
                _interval_to_json(domain, i, integer) for i in condition.intervals[domain]
            ]
    if condition.intervals[Domain.BOOLEAN]:
        truths = [value for value in (False, True) if condition.holds(value)]
        entries["booleans"] = truths
    if condition.intervals[Domain.TIMESTAMP]:
        entries["timestamps"] = [
            _interval_to_json(Domain.TIMESTAMP, i, False)
            for i in condition.intervals[Domain.TIMESTAMP]
        ]
    if condition.patterns:
        entries["patterns"] = [
            {"like": p.text, "escape": "\\" if p.needs_escape else None, "negated": negated}
            for p, negated in sorted(condition.patterns, key=lambda p: (p[1], p[0].text))
        ]
    if condition.absent:
        entries["absent"] = True
    if condition.other:
        entries["other"] = True
    return entries


def _interval_to_json(domain: Domain, interval: Interval, integer: bool) -> dict[str, Any]:
    low, high = bounds_of(domain, interval, integer)
    return {
        "low": _key_to_json(domain, low.value),
        "low_closed": low.closed,
        "high": _key_to_json(domain, high.value),
        "high_closed": high.closed,
    }


def _key_to_json(domain: Domain, key: Any) -> Any:
    if domain is Domain.TIMESTAMP and key is not None:
        try:
            return from_microseconds(key).isoformat()
        except OverflowError:
            return key
    if isinstance(key, float) and math.isinf(key):
        return repr(key)
    return key
