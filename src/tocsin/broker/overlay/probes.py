"""Conditions made ready to be asked of single events.

Enters: conjunctions. Leaves: functions that say whether an event may satisfy them. Sets of strings
are looked up by hash, intervals by bisection, so that what a link wants of hundreds of firms costs
no more than what it wants of one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tocsin.encode.events import lookup
from tocsin.language.timestamps import parse_timestamp
from tocsin.normalize import domains
from tocsin.normalize.condition import Condition, domain_of
from tocsin.normalize.domains import Domain, point_value
from tocsin.normalize.normal import Conjunction

Holds: TypeAlias = Callable[[object], bool]
Values: TypeAlias = Callable[[str], Sequence[object]]
"""From an attribute to the values that it may stand for: mostly one."""


class Probe:
    """A conjunction that events are tried on."""

    __slots__ = ("_tests",)

    def __init__(self, conjunction: Conjunction) -> None:
        # Sets of strings rule out most, so they come first.
        ready = sorted(conjunction.items(), key=lambda item: not item[1].intervals[Domain.STRING])
        self._tests = [(name, _ready(condition)) for name, condition in ready]

    def holds(self, event: Mapping[str, object]) -> bool:
        """Whether an event satisfies the conjunction."""
        for name, holds in self._tests:
            value = event.get(name)
            if value is None and "." in name:
                value = lookup(event, name)
            if not holds(value):
                return False
        return True

    def may_hold(self, values: Values) -> bool:
        """The same for an event whose attributes may stand for several values."""
        return all(any(map(holds, values(name))) for name, holds in self._tests)


def _ready(condition: Condition) -> Holds:
    if not condition.intervals[Domain.TIMESTAMP] or condition.other:
        return _ready_of_kind(condition)
    holds_kind = _ready_of_kind(condition)

    def holds(value: object) -> bool:
        if holds_kind(value):
            return True
        moment = parse_timestamp(value) if value.__class__ is str else None
        return moment is not None and holds_kind(moment)

    return holds


def _ready_of_kind(condition: Condition) -> Holds:
    strings = condition.intervals[Domain.STRING]
    points = {point_value(each) for each in strings}
    if condition.other or None in points or not strings:
        return _by_domain(condition)
    rest = _by_domain(condition)

    def holds(value: object) -> bool:
        return value in points if value.__class__ is str else rest(value)

    return holds


def _by_domain(condition: Condition) -> Holds:
    lows = [[low for low, _ in intervals] for intervals in condition.intervals]
    highs = [[high for _, high in intervals] for intervals in condition.intervals]
    absent, other = condition.absent, condition.other

    def holds(value: Any) -> bool:
        if value is None:
            return absent
        kind = value.__class__
        domain = Domain.NUMBER if kind is int else domain_of(value)
        if domain is None:
            return other
        if other:
            return True
        place = (value if kind is int else domains.to_key(value), 0)
        at = bisect_right(lows[domain], place) - 1
        return at >= 0 and place < highs[domain][at]

    return holds
