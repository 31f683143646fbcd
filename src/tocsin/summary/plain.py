"""Conditions without patterns ↔ JSON values, without loss.

Enters: a condition. Leaves: a dictionary with the entries that apply: `absent` and `other` (a
present value of no kind) when true, and for each domain a list of intervals. An interval is a pair
of cuts; a cut is null at the end of the domain, else `[value, side]` with side 0 just before the
value and 1 just after it. Integers beyond 2^53 and infinities are written as strings, since not
every reader of JSON keeps them; timestamps are microseconds since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from tocsin.errors import ArgumentError
from tocsin.model import INT64_MAX, INT64_MIN, is_unicode
from tocsin.normalize import domains
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import FULL, HIGH, LOW, Cut, Domain, Interval, Intervals

_TITLES = {
    Domain.NUMBER: "numbers",
    Domain.STRING: "strings",
    Domain.BOOLEAN: "booleans",
    Domain.TIMESTAMP: "timestamps",
}
_EXACT = 2**53


def condition_to_plain(condition: Condition) -> dict[str, Any]:
    """Return a condition as lists and dictionaries."""
    entries: dict[str, Any] = {}
    if condition.absent:
        entries["absent"] = True
    if condition.other:
        entries["other"] = True
        return entries
    for domain, title in _TITLES.items():
        if condition.intervals[domain]:
            entries[title] = [
                [_cut_to_plain(low, LOW[domain]), _cut_to_plain(high, HIGH[domain])]
                for low, high in condition.intervals[domain]
            ]
    return entries


def _cut_to_plain(cut: Cut, end: Cut) -> list[Any] | None:
    if cut == end:
        return None
    key, side = cut
    if isinstance(key, float) and math.isinf(key):
        key = "inf" if key > 0 else "-inf"
    elif isinstance(key, int) and abs(key) > _EXACT:
        key = str(key)
    return [key, side]


def condition_of_plain(name: object, source: object) -> Condition:
    """Return the condition of `condition_to_plain`; raise `ArgumentError` if it is ill-formed."""
    if not isinstance(name, str) or not isinstance(source, Mapping):
        refuse(f"{name!r}: {source!r} is no condition")
    known = {"absent", "other", *_TITLES.values()}
    unknown = sorted(str(key) for key in source if key not in known)
    if unknown:
        refuse(f"{name}: unknown entry {', '.join(unknown)}")
    absent = to_flag(source.get("absent", False), "absent")
    if to_flag(source.get("other", False), "other"):
        return Condition(FULL, absent, other=True)
    by_domain = tuple(_to_intervals(domain, source.get(_TITLES[domain], [])) for domain in Domain)
    return Condition(by_domain, absent)


def _to_intervals(domain: Domain, source: object) -> Intervals:
    if not isinstance(source, list | tuple):
        refuse(f"{source!r} is no list of intervals")
    return domains.unite(tuple(_to_interval(domain, pair) for pair in source), ())


def _to_interval(domain: Domain, source: object) -> Interval:
    if not isinstance(source, list | tuple) or len(source) != 2:
        refuse(f"{source!r} is no pair of cuts")
    low, high = _to_cut(domain, source[0], LOW[domain]), _to_cut(domain, source[1], HIGH[domain])
    if not low < high:
        refuse(f"{source!r} holds nothing")
    return low, high


def _to_cut(domain: Domain, source: object, end: Cut) -> Cut:
    if source is None:
        return end
    if not isinstance(source, list | tuple) or len(source) != 2:
        refuse(f"{source!r} is no cut")
    key, side = source
    if isinstance(side, bool) or side not in (0, 1):
        refuse(f"{side!r} is no side of a cut")
    if domain is Domain.STRING:
        if not isinstance(key, str) or not is_unicode(key):
            refuse(f"{key!r} is no string")
        value: Any = key
    else:
        value = _to_number(key, domain is not Domain.NUMBER)
    return domains.cut_after(domain, value) if side else domains.cut_before(domain, value)


def _to_number(key: object, whole: bool) -> int | float:
    number: int | float | None = None
    if isinstance(key, str):
        try:
            number = float(key) if key in ("inf", "-inf") else int(key)
        except ValueError:
            refuse(f"{key!r} is no number")
    elif isinstance(key, int | float) and not isinstance(key, bool) and not math.isnan(key):
        number = key
    if number is None or (whole and not isinstance(number, int)):
        refuse(f"{key!r} is no {'whole ' if whole else ''}number")
    if isinstance(number, int) and not INT64_MIN <= number <= INT64_MAX:
        if whole or not math.isfinite(_to_float(number)):
            refuse(f"{key!r} does not fit 64 bits")
        return _to_float(number)  # a float that was written without a point
    return number


def _to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def to_flag(value: object, name: str) -> bool:
    """Return a bool; raise `ArgumentError` for anything else."""
    if not isinstance(value, bool):
        refuse(f"{name} must be true or false, not {value!r}")
    return value


def to_items(mapping: object) -> Iterable[tuple[Any, Any]]:
    """Return the items of a mapping; raise `ArgumentError` for anything else."""
    if not isinstance(mapping, Mapping):
        refuse(f"attributes must be a mapping, not {mapping!r}")
    return mapping.items()


def check_keys(mapping: object, *names: str) -> None:
    """Raise `ArgumentError` unless this is a mapping with exactly these keys."""
    if not isinstance(mapping, Mapping) or set(mapping) != set(names):
        refuse(f"it must have the entries {', '.join(names)}")


def refuse(why: str) -> NoReturn:
    """Raise the error for an ill-formed summary."""
    raise ArgumentError(f"this is no summary: {why}")
