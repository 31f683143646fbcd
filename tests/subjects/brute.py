"""Relation M, by trying every pair: what the tests compare with.

Uses conditions as sets of values, and none of places, boxes, lists or kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.language import parse
from tocsin.model import EventType, Kind, kind_of
from tocsin.normalize import NormalForm, bind, domains, normalize
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import DOMAIN_OF_KIND, HIGH, LOW
from tocsin.subjects.model import (
    AtLeast,
    Filter,
    Interest,
    InterestRegion,
    ObjectRegion,
    Publication,
    Range,
)


def overlaps(condition: Condition, value: object, declared: Kind | None, missing: str) -> bool:
    """Whether a condition and what a publication says of an attribute have a value in common."""
    if value is None and missing == "absent":
        return condition.absent
    if value is None or value == Range():
        return condition.other or any(condition.intervals)
    if not isinstance(value, Range):
        return condition.holds(value)
    if value.low is not None and value.low == value.high:
        return condition.holds(value.low)
    kind = kind_of(value.low if value.low is not None else value.high)
    assert kind is not None
    domain = DOMAIN_OF_KIND[kind]
    low, high = LOW[domain], HIGH[domain]
    if value.low is not None:
        low = (domains.cut_after if value.low_open else domains.cut_before)(domain, value.low)
    if value.high is not None:
        high = (domains.cut_before if value.high_open else domains.cut_after)(domain, value.high)
    if declared is Kind.INTEGER:
        low, high = domains.tighten(low), domains.tighten(high)
    return bool(domains.intersect(condition.intervals[domain], ((low, high),)))


def enough(filter_: Filter, hit: Mapping[str, bool]) -> bool:
    """Whether a filter is satisfied, by evaluating it as Python would."""
    if isinstance(filter_, AtLeast):
        return sum(hit.values()) >= filter_.count
    if filter_ in ("all", "any"):
        return all(hit.values()) if filter_ == "all" else any(hit.values())
    words = {"AND": "and", "OR": "or", "NOT": "not"}
    text = filter_.replace("(", " ( ").replace(")", " ) ")
    return bool(eval(" ".join(words.get(w, w) for w in text.split()), {}, dict(hit)))


@dataclass
class _Region:
    space: str
    form: NormalForm


class Brute:
    """Publications and subscriptions, and relation M by its definition."""

    def __init__(self, *spaces: EventType, missing: str = "absent") -> None:
        self.spaces = {space.name: space for space in spaces}
        self.first = spaces[0].name
        self.missing = missing
        self.publications: dict[Any, Publication] = {}
        self.subscriptions: dict[Any, tuple[dict[str, _Region], Filter]] = {}

    def publish(self, key: Any, values: Mapping[str, Any] | Publication) -> None:
        if not isinstance(values, Publication):
            values = Publication({"": ObjectRegion(dict(values), self.first)})
        self.publications[key] = values

    def update(self, key: Any, changed: Mapping[str, Any], region: str = "") -> None:
        old = self.publications[key]
        regions = dict(old.regions)
        of = regions[region]
        regions[region] = ObjectRegion({**of.values, **changed}, of.space)
        self.publications[key] = Publication(regions, old.filter)

    def subscribe(
        self, id: Any, where: str | Interest, params: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(where, Interest):
            where = Interest({"": InterestRegion(where, params or {}, self.first)})
        regions = {}
        for name, region in where.regions.items():
            space = region.space or self.first
            expression = region.where
            assert isinstance(expression, str)
            form = normalize(bind(parse(expression), region.params), self.spaces[space])
            regions[name] = _Region(space, form)
        self.subscriptions[id] = (regions, where.filter)

    def meets(self, region: ObjectRegion, asked: _Region) -> bool:
        space = region.space or self.first
        if space != asked.space:
            return False
        declared = self.spaces[space]
        return any(
            all(
                overlaps(condition, region.values.get(name), declared.kind_of(name), self.missing)
                for name, condition in conjunction.items()
            )
            for conjunction in asked.form
        )

    def related(self, key: Any, id: Any) -> bool:
        publication = self.publications[key]
        regions, filter_ = self.subscriptions[id]
        met = {
            (o, i): self.meets(region, asked)
            for o, region in publication.regions.items()
            for i, asked in regions.items()
        }
        objects = {o: any(met[o, i] for i in regions) for o in publication.regions}
        interests = {i: any(met[o, i] for o in publication.regions) for i in regions}
        if len(publication.regions) > 1 and not enough(publication.filter, objects):
            return False
        if len(publication.regions) == 1 and not any(objects.values()):
            return False
        if len(regions) == 1:
            return any(interests.values())
        return enough(filter_, interests)

    def relation(self) -> set[tuple[Any, Any]]:
        return {
            (key, id)
            for key in self.publications
            for id in self.subscriptions
            if self.related(key, id)
        }


def difference(
    before: set[tuple[Any, Any]], after: set[tuple[Any, Any]]
) -> list[tuple[str, Any, Any]]:
    """Return the transitions between two relations, sorted."""
    found: Iterable[tuple[str, Any, Any]] = [
        *(("LEAVE", *pair) for pair in before - after),
        *(("ENTER", *pair) for pair in after - before),
    ]
    return sorted(found, key=repr)


Check = Callable[[], None]
