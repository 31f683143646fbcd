"""Publications and subscriptions as a user writes them, in Python and in JSON.

Enters: values, ranges, regions and filters. Leaves: small immutable objects. After Leung and
Jacobsen, section 3.1: a publication is a set of object regions and a filter, a subscription is a
set of interest regions and a filter; both are conjunctive unless they say otherwise.

Where we deviate: a region lies in one space, which it names. An interest region is a condition of
the subscription language, so it may be several boxes at once. An attribute that a publication does
not have is absent, which only `IS NULL` holds for; the paper takes it for any value, as a space
made with `missing="any"` does.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tocsin.errors import ArgumentError
from tocsin.language.expression import Expression
from tocsin.language.printer import print_expression
from tocsin.model import Kind, Value, from_microseconds, kind_of, to_microseconds, to_plain

MAX_REGIONS = 64
"""Maximum number of regions of a publication or a subscription."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of values of one kind; an end that is None is open to that side.

    >>> Range(3, 5)                     # 3 <= x <= 5
    >>> Range(3, None, low_open=True)   # x > 3
    """

    low: Value = None
    high: Value = None
    low_open: bool = False
    high_open: bool = False


ANY = Range()
"""Any value."""


class Notify(Enum):
    """Which transitions a subscription asks for."""

    BOTH = "both"
    ENTER = "enter"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The filter that at least `count` regions must satisfy."""

    count: int


Filter = str | AtLeast
"""`"all"`, `"any"`, `AtLeast(k)`, or a boolean expression over the names of regions."""


@dataclass(frozen=True, slots=True)
class ObjectRegion:
    """The values and ranges of a publication in one space, by attribute."""

    values: Mapping[str, Any]
    space: str | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """Several object regions by name, and a filter over them.

    A region counts where it overlaps an interest region of the subscription.
    """

    regions: Mapping[str, ObjectRegion]
    filter: Filter = "all"


@dataclass(frozen=True, slots=True)
class InterestRegion:
    """A condition in one space."""

    where: str | Expression
    params: Mapping[str, Any] = field(default_factory=dict)
    space: str | None = None


@dataclass(frozen=True, slots=True)
class Interest:
    """Several interest regions by name, and a filter over them.

    A region counts where it overlaps an object region of the publication.
    """

    regions: Mapping[str, InterestRegion]
    filter: Filter = "all"


def check_regions(regions: object, kind: type) -> None:
    """Raise `ArgumentError` unless this maps names to regions of one kind."""
    if not isinstance(regions, Mapping) or not regions:
        raise ArgumentError(f"regions must be a non-empty mapping of names to {kind.__name__}s")
    if len(regions) > MAX_REGIONS:
        raise ArgumentError(f"{len(regions)} regions; at most {MAX_REGIONS} are allowed")
    for name, region in regions.items():
        if not isinstance(name, str) or not isinstance(region, kind):
            raise ArgumentError(f"region {name!r} must be a {kind.__name__}, not {region!r}")


# JSON. JSON's own values are themselves; others are {"timestamp": …}, {"float": …}, {"range": …}.


def value_to_json(value: object) -> Any:
    """Return the JSON of a value, a range or nested values."""
    if isinstance(value, Range):
        range_json: dict[str, Any] = {
            "range": [value_to_json(value.low), value_to_json(value.high)]
        }
        if value.low_open or value.high_open:
            range_json["open"] = [value.low_open, value.high_open]
        return range_json
    if isinstance(value, Mapping):
        return {"object": {name: value_to_json(inner) for name, inner in value.items()}}
    plain = to_plain(value)
    kind = kind_of(plain)
    if kind is Kind.FLOAT and not math.isfinite(plain):  # type: ignore[arg-type]
        return {"float": repr(plain)}
    if isinstance(plain, dt.datetime):
        return {"timestamp": to_microseconds(plain)}
    if plain is not None and kind is None:
        return {"other": True}
    return plain


def value_from_json(source: Any) -> Any:
    """Return the value that `value_to_json` wrote; a timestamp may also be ISO text."""
    if isinstance(source, list):
        return source
    if not isinstance(source, dict):
        return source
    try:
        if "range" in source:
            low, high = (value_from_json(end) for end in source["range"])
            opened = source.get("open", [False, False])
            return Range(low, high, bool(opened[0]), bool(opened[1]))
        if "object" in source:
            return {name: value_from_json(inner) for name, inner in source["object"].items()}
        if "float" in source:
            return float(source["float"])
        if "timestamp" in source:
            moment = source["timestamp"]
            if isinstance(moment, str):
                return dt.datetime.fromisoformat(moment)
            return from_microseconds(moment)
        if "other" in source:
            return []
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArgumentError(f"{json.dumps(source)} is not a value: {error}") from None
    raise ArgumentError(f"{json.dumps(source)} is not a value, range or object")


def to_json(whole: Publication | Interest) -> dict[str, Any]:
    """Return the JSON of a publication or a subscription."""
    regions: dict[str, Any] = {}
    for name, region in whole.regions.items():
        if isinstance(region, ObjectRegion):
            of = {"values": {k: value_to_json(v) for k, v in region.values.items()}}
        else:
            where = region.where
            text = where if isinstance(where, str) else print_expression(where)
            of = {"where": text}  # type: ignore[dict-item]
            if region.params:
                of["params"] = {k: value_to_json(v) for k, v in region.params.items()}
        regions[name] = of if region.space is None else {**of, "space": region.space}
    return {"regions": regions, "filter": filter_to_json(whole.filter)}


def from_json(source: str | Mapping[str, Any]) -> Publication | Interest:
    """Return the publication or subscription that a JSON object describes.

    Regions with `values` are object regions, those with `where` are interest regions.
    """
    try:
        fields = json.loads(source) if isinstance(source, str) else source
        regions = {name: _region_from_json(of) for name, of in fields["regions"].items()}
        filter_ = filter_from_json(fields.get("filter", "all"))
    except ArgumentError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(f"not a publication or subscription: {error}") from None
    if all(isinstance(region, ObjectRegion) for region in regions.values()):
        return Publication(regions, filter_)
    if all(isinstance(region, InterestRegion) for region in regions.values()):
        return Interest(regions, filter_)
    raise ArgumentError("regions are either object regions or interest regions, not both")


def _region_from_json(of: Mapping[str, Any]) -> Any:
    if "values" in of:
        values = {name: value_from_json(value) for name, value in of["values"].items()}
        return ObjectRegion(values, of.get("space"))
    params = {name: value_from_json(value) for name, value in of.get("params", {}).items()}
    return InterestRegion(of["where"], params, of.get("space"))


def filter_to_json(filter_: Filter) -> Any:
    """Return the JSON of a filter."""
    return {"at_least": filter_.count} if isinstance(filter_, AtLeast) else filter_


def filter_from_json(source: Any) -> Filter:
    """Return the filter that `filter_to_json` wrote."""
    if isinstance(source, dict):
        return AtLeast(source["at_least"])
    if isinstance(source, str):
        return source
    raise ArgumentError(f"a filter is a text or {{'at_least': k}}, not {source!r}")
