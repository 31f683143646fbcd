"""Kinds of value, event types and ids.

Enters: what a user declares in Python. Leaves: small immutable objects that every later module
uses. After the strong event typing of Jayaram et al. (Beretta, section 2): an event type
names its attributes and their kinds; here it is optional and open, so attributes that it does not
declare may still be used.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeAlias

from tocsin.errors import ArgumentError, InvalidIdError

Value: TypeAlias = int | float | str | bool | dt.datetime | None
SubscriptionId: TypeAlias = str | int

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
FIRST_MOMENT = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
"""The first timestamp there is. As a value in a choice it is a null that is there, as JSON has."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class Kind(Enum):
    """A kind of value."""

    INTEGER = "integer"
    FLOAT = "float"
    STRING = "string"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"


_KINDS_BY_PYTHON_TYPE: dict[Any, Kind] = {
    int: Kind.INTEGER,
    float: Kind.FLOAT,
    str: Kind.STRING,
    bool: Kind.BOOLEAN,
    dt.datetime: Kind.TIMESTAMP,
}
_USUAL: dict[Kind, type] = {Kind.INTEGER: int, Kind.FLOAT: float}


class EventType:
    """A named set of attributes with their kinds.

    >>> Quote = EventType("Quote", firm=str, price=float, volume=int)

    Attributes with a dot or another odd name go in a mapping:
    ``EventType("Order", {"order.total": float})``. Attributes that are not declared may be used
    too; their kind is then taken from each value. With ``strict=True`` they are refused, in
    conditions and in events. (``strict=str`` declares an attribute of this name.)
    """

    __slots__ = ("_attributes", "is_strict", "listed", "name")

    def __init__(
        self, name: str, attributes: Mapping[str, object] | None = None, /, **more: object
    ) -> None:
        self.name = name
        self.is_strict = more.pop("strict") is True if _is_flag(more.get("strict")) else False
        """Whether attributes that are not declared are refused."""
        declared = {**(attributes or {}), **more}
        self._attributes = MappingProxyType({k: _to_kind(k, v) for k, v in declared.items()})
        self.listed: tuple[tuple[str, Kind, Any, bool], ...] = tuple(
            (k, kind, _USUAL.get(kind), "." in k) for k, kind in self._attributes.items()
        )
        """Each attribute: its kind, the class that its numbers usually have, whether it is a path.

        So that single events are soon checked.
        """

    @property
    def moments(self) -> tuple[str, ...]:
        """The attributes that are declared timestamps."""
        return tuple(k for k, kind in self._attributes.items() if kind is Kind.TIMESTAMP)

    def has_within(self, path: str) -> bool:
        """Whether an attribute is declared within an object at a path."""
        return any(name.startswith(f"{path}.") for name in self._attributes)

    def undeclared(self, attribute: str) -> str:
        """Say that an attribute is not declared, and which was probably meant."""
        near = similar_name(attribute, self._attributes)
        return f"not declared by {self.name}" + (f"; did you mean {near!r}?" if near else "")

    @property
    def attributes(self) -> Mapping[str, Kind]:
        """The declared attributes, in order, with their kinds."""
        return self._attributes

    def kind_of(self, attribute: str) -> Kind | None:
        """Return the declared kind of an attribute, or None when it is not declared."""
        return self._attributes.get(attribute)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EventType):
            return NotImplemented
        return (
            self.name == other.name
            and self.is_strict == other.is_strict
            and dict(self._attributes) == dict(other._attributes)
        )

    def __hash__(self) -> int:
        return hash((self.name, tuple(self._attributes.items())))

    def __repr__(self) -> str:
        parts = [repr(self.name), *(f"{k}={v.value}" for k, v in self._attributes.items())]
        return f"EventType({', '.join([*parts, *(['strict=True'] if self.is_strict else [])])})"

    def __reduce__(self) -> tuple[Callable[..., EventType], tuple[str, dict[str, Kind], bool]]:
        return (_event_type, (self.name, dict(self._attributes), self.is_strict))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _event_type(name: str, attributes: dict[str, Kind], is_strict: bool) -> EventType:
    return EventType(name, attributes, strict=is_strict)


_LIKENESS = 0.75
"""How alike two names are, from 0 to 1, for one to be proposed instead of the other."""
_MOST_COMPARED = 2_000
"""Names that are compared for likeness, which takes some microseconds each."""


def similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant by a misspelt one, or None."""
    from difflib import get_close_matches

    known = [each for each in islice(names, _MOST_COMPARED) if each != name]
    folded = {each.casefold(): each for each in reversed(known)}
    near = get_close_matches(name.casefold(), folded, n=1, cutoff=_LIKENESS)
    return folded[near[0]] if near else None


def _to_kind(attribute: str, declared: object) -> Kind:
    if isinstance(declared, Kind):
        return declared
    if isinstance(declared, str):
        try:
            return Kind(declared)
        except ValueError:
            pass
    elif isinstance(declared, type) and declared in _KINDS_BY_PYTHON_TYPE:
        return _KINDS_BY_PYTHON_TYPE[declared]
    known = ", ".join(sorted(k.value for k in Kind))
    raise ArgumentError(
        f"attribute {attribute!r}: {declared!r} is not a kind; "
        f"use int, float, str, bool, datetime or one of {known}"
    )


def kind_of(value: object) -> Kind | None:
    """Return the kind of a Python value, or None where it has none (None, lists, …).

    An integer that does not fit 64 bits has no kind.
    """
    if isinstance(value, bool):
        return Kind.BOOLEAN
    if isinstance(value, int):
        return Kind.INTEGER if INT64_MIN <= value <= INT64_MAX else None
    if isinstance(value, float):
        return Kind.FLOAT
    if isinstance(value, str):
        return Kind.STRING
    if isinstance(value, dt.datetime):
        return Kind.TIMESTAMP
    return None


def to_microseconds(moment: dt.datetime) -> int:
    """Return UTC microseconds since 1970; a moment without a zone is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(microseconds: int) -> dt.datetime:
    """Return the UTC moment of a number of microseconds since 1970."""
    return _EPOCH + dt.timedelta(microseconds=microseconds)


def check_id(subscription: object) -> SubscriptionId:
    """Return a valid subscription id, or raise InvalidIdError."""
    if isinstance(subscription, str) and is_unicode(subscription):
        return subscription
    if (
        isinstance(subscription, int)
        and not isinstance(subscription, bool)
        and INT64_MIN <= subscription <= INT64_MAX
    ):
        return subscription
    raise InvalidIdError(subscription)


def is_unicode(text: str) -> bool:
    """Whether a string can be written as UTF-8: lone surrogates cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_PLAIN = frozenset((bool, int, float, str, dt.datetime, type(None)))


def to_plain(value: Any) -> object:
    """Turn scalars of NumPy and pandas into Python's; NaT and NA are null.

    A decimal becomes the integer that it equals where 64 bits hold it, else the nearest float; a
    date its midnight. What has no Python value of a kind we know is returned as it is.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Decimal):
        return _to_number(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        if value.dtype.kind == "M":
            moment = value.astype("datetime64[us]").item()
            return value if isinstance(moment, int) else moment  # an integer: beyond year 9999
        value = value if value.dtype.kind == "m" else value.item()
    return str.__str__(value) if isinstance(value, str) else value


_MAX_DIGITS = 19
"""No 64-bit integer has more digits."""


def _to_number(value: Decimal) -> int | float:
    if not value.is_finite():
        return float("nan") if value.is_nan() else float(value)
    if value.adjusted() < _MAX_DIGITS and value == value.to_integral_value():
        whole = int(value)
        if INT64_MIN <= whole <= INT64_MAX:
            return whole
    return float(value)
