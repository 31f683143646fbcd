"""Conditions without patterns ↔ what JSON can hold, exactly.

Enters: a condition. Leaves: a dictionary with the entries that apply: `absent` and `other` (a
present value of no kind) when true, and for each line a list of intervals. An interval is a pair of
cuts; a cut is null at the end of the line, else `[value, side]` with side 0 just before the value
and 1 just after it. Integers beyond 2^53 and infinities are written as strings, since not every
reader of JSON keeps them; timestamps are microseconds since 1970.
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
    found: dict[str, Any] = {}
    if condition.absent:
        found["absent"] = True
    if condition.other:
        found["other"] = True
        return found
    for domain, title in _TITLES.items():
        if condition.intervals[domain]:
            found[title] = [
                [_cut_to_plain(low, LOW[domain]), _cut_to_plain(high, HIGH[domain])]
                for low, high in condition.intervals[domain]
            ]
    return found


def _cut_to_plain(cut: Cut, end: Cut) -> list[Any] | None:
    if cut == end:
        return None
    key, side = cut
    if isinstance(key, float) and math.isinf(key):
        key = "inf" if key > 0 else "-inf"
    elif isinstance(key, int) and abs(key) > _EXACT:
        key = str(key)
    return [key, side]


def condition_of_plain(name: object, given: object) -> Condition:
    """Undo `condition_to_plain`, or refuse what is ill-formed."""
    if not isinstance(name, str) or not isinstance(given, Mapping):
        refuse(f"{name!r}: {given!r} is no condition")
    known = {"absent", "other", *_TITLES.values()}
    unknown = sorted(str(key) for key in given if key not in known)
    if unknown:
        refuse(f"{name}: unknown entry {', '.join(unknown)}")
    absent = to_flag(given.get("absent", False), "absent")
    if to_flag(given.get("other", False), "other"):
        return Condition(FULL, absent, other=True)
    by_domain = tuple(_to_intervals(domain, given.get(_TITLES[domain], [])) for domain in Domain)
    return Condition(by_domain, absent)


def _to_intervals(domain: Domain, given: object) -> Intervals:
    if not isinstance(given, list | tuple):
        refuse(f"{given!r} is no list of intervals")
    return domains.unite(tuple(_to_interval(domain, pair) for pair in given), ())


def _to_interval(domain: Domain, given: object) -> Interval:
    if not isinstance(given, list | tuple) or len(given) != 2:
        refuse(f"{given!r} is no pair of cuts")
    low, high = _to_cut(domain, given[0], LOW[domain]), _to_cut(domain, given[1], HIGH[domain])
    if not low < high:
        refuse(f"{given!r} holds nothing")
    return low, high


def _to_cut(domain: Domain, given: object, end: Cut) -> Cut:
    if given is None:
        return end
    if not isinstance(given, list | tuple) or len(given) != 2:
        refuse(f"{given!r} is no cut")
    key, side = given
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
    found: int | float | None = None
    if isinstance(key, str):
        try:
            found = float(key) if key in ("inf", "-inf") else int(key)
        except ValueError:
            refuse(f"{key!r} is no number")
    elif isinstance(key, int | float) and not isinstance(key, bool) and not math.isnan(key):
        found = key
    if found is None or (whole and not isinstance(found, int)):
        refuse(f"{key!r} is no {'whole ' if whole else ''}number")
    if isinstance(found, int) and not INT64_MIN <= found <= INT64_MAX:
        if whole or not math.isfinite(_to_float(found)):
            refuse(f"{key!r} does not fit 64 bits")
        return _to_float(found)  # a float that was written without a point
    return found


def _to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def to_flag(given: object, name: str) -> bool:
    """Return True or False, or refuse what is neither."""
    if not isinstance(given, bool):
        refuse(f"{name} must be true or false, not {given!r}")
    return given


def to_items(given: object) -> Iterable[tuple[Any, Any]]:
    """Return the entries of a mapping, or refuse what is none."""
    if not isinstance(given, Mapping):
        refuse(f"attributes must be a mapping, not {given!r}")
    return given.items()


def check_keys(given: object, *names: str) -> None:
    """Refuse what is no mapping with these entries and no others."""
    if not isinstance(given, Mapping) or set(given) != set(names):
        refuse(f"it must have the entries {', '.join(names)}")


def refuse(why: str) -> NoReturn:
    """Raise the error for an ill-formed summary."""
    raise ArgumentError(f"this is no summary: {why}")
