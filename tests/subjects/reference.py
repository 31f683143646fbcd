"""The paper's own algorithms, to be read and to be compared with: slow and close to the text.

Enters: regions, each a mapping of dimensions to intervals. Leaves: the names of what begins or
ceases to match. After Leung and Jacobsen, "Efficient Matching for State-Persistent
Publish/Subscribe Systems": the operations of section 4 (figures 1 and 2), the index of section 5.5
and the searches of section 5.6 (figures 7 to 10), under the paper's names and with its
restrictions: a constraint is one interval, filters are conjunctive, a dimension without a
constraint may have any value.

Where we deviate: an ordered list of the standard library stands for a skip list; an interval is a
pair of cuts (`normalize.domains`), so that open and closed ends need no cases (figure 10 is one
comparison); an update also finds what ceases to match, by the same lists.

Glossary: o, object region; i, interest region; LB and UB, the lists of lower and upper bounds of a
dimension; Q_P, Q_S: what a publication or a subscription matches; M: the relation of the two.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tocsin.normalize.domains import Cut, Interval

Region: TypeAlias = Mapping[str, Interval]
"""A constraint for each of some dimensions."""
Name: TypeAlias = str | int
RegionName: TypeAlias = tuple[Name, int]
"""Whose region it is, and its number there."""


def overlap(a: Interval, b: Interval) -> bool:
    """Whether two constraints have a value in common (figure 10)."""
    return a[0] < b[1] and b[0] < a[1]


def matches(a: Region, b: Region) -> bool:
    """Whether two regions match: relation m (section 3.1)."""
    return all(overlap(interval, b[d]) for d, interval in a.items() if d in b)


class OrderedBounds:
    """One list of a dimension: bounds in order, each with the regions that end there."""

    def __init__(self) -> None:
        self._bounds: list[tuple[Cut, Any]] = []

    def insert(self, bound: Cut, region: RegionName) -> None:
        """Add the bound of a region."""
        insort(self._bounds, (bound, _Ordered(region)))

    def remove(self, bound: Cut, region: RegionName) -> None:
        """Remove the bound of a region."""
        del self._bounds[bisect_left(self._bounds, (bound, _Ordered(region)))]

    def collect(self, low: Cut | None, high: Cut | None) -> set[RegionName]:
        """Return the regions with a bound from one cut up to, but not at, another (figure 8)."""
        first = 0 if low is None else bisect_left(self._bounds, (low, _FIRST))
        last = len(self._bounds) if high is None else bisect_left(self._bounds, (high, _FIRST))
        return {of.name for _, of in self._bounds[first:last]}


class _Ordered:
    """Gives names of different kinds an order."""

    __slots__ = ("name",)

    def __init__(self, name: Any) -> None:
        self.name = name

    def __lt__(self, other: _Ordered) -> bool:
        return self is _FIRST or (other is not _FIRST and repr(self.name) < repr(other.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ordered) and self.name == other.name

    __hash__ = None  # type: ignore[assignment]


_FIRST = _Ordered(None)


@dataclass
class Dimension:
    """The index of one dimension for one kind of region (section 5.5)."""

    lower: OrderedBounds = field(default_factory=OrderedBounds)
    upper: OrderedBounds = field(default_factory=OrderedBounds)


def after(cut: Cut) -> Cut:
    """Return a place just behind a cut, so that a search includes what ends at it."""
    return (cut[0], cut[1] + 0.5)  # type: ignore[return-value]


class Index:
    """Regions of one kind, by name and by their bounds in each dimension."""

    def __init__(self) -> None:
        self.regions: dict[RegionName, Region] = {}
        self._dimensions: dict[str, Dimension] = {}

    def insert(self, name: RegionName, region: Region) -> None:
        """Add a region."""
        self.regions[name] = region
        for d, (low, high) in region.items():
            dimension = self._dimensions.setdefault(d, Dimension())
            dimension.lower.insert(low, name)
            dimension.upper.insert(high, name)

    def remove(self, name: RegionName) -> Region:
        """Remove a region, and return it."""
        region = self.regions.pop(name)
        for d, (low, high) in region.items():
            self._dimensions[d].lower.remove(low, name)
            self._dimensions[d].upper.remove(high, name)
        return region

    def find_all_matched(self, region: Region) -> set[RegionName]:
        """Return what matches a region: all but what fails in some dimension (figure 7)."""
        mismatched: set[RegionName] = set()
        for d, (low, high) in region.items():
            if d in self._dimensions:
                mismatched |= self._dimensions[d].lower.collect(high, None)
                mismatched |= self._dimensions[d].upper.collect(None, after(low))
        return set(self.regions) - mismatched

    def find_newly_matched(self, new: Region, old: Region) -> set[RegionName]:
        """Return what matches a region that has moved, and did not before (figure 9).

        With the regions exchanged: what matched and no longer does.
        """
        candidates: set[RegionName] = set()
        for d in {*old, *new}:
            dimension = self._dimensions.get(d)
            if dimension is None or d not in old:
                continue  # a new constraint makes nothing match
            if d not in new:
                candidates |= dimension.lower.collect(old[d][1], None)
                candidates |= dimension.upper.collect(None, after(old[d][0]))
                continue
            if old[d][1] < new[d][1]:
                candidates |= dimension.lower.collect(old[d][1], new[d][1])
            if old[d][0] > new[d][0]:
                candidates |= dimension.upper.collect(after(new[d][0]), after(old[d][0]))
        return {name for name in candidates if matches(self.regions[name], new)}


class Reference:
    """Publications and subscriptions of one space, and the operations of section 4."""

    def __init__(self) -> None:
        self._publications: dict[Name, list[Region]] = {}
        self._subscriptions: dict[Name, list[Region]] = {}
        self._objects = Index()
        self._interests = Index()

    def is_match(self, publication: Iterable[Region], subscription: Iterable[Region]) -> bool:
        """Whether a publication and a subscription are in M: each region has its match."""
        objects, interests = list(publication), list(subscription)
        return all(any(matches(o, i) for i in interests) for o in objects) and all(
            any(matches(o, i) for o in objects) for i in interests
        )

    def publish(self, name: Name, regions: list[Region]) -> set[Name]:
        """Add a publication; return the subscriptions that it matches: Q_P (figure 1)."""
        found: set[RegionName] = set()
        for at, o in enumerate(regions):
            self._objects.insert((name, at), o)
            found |= self._interests.find_all_matched(o)
        self._publications[name] = regions
        return {s for s, _ in found if self.is_match(regions, self._subscriptions[s])}

    def retract(self, name: Name) -> set[Name]:
        """Remove a publication; return the subscriptions that it matched."""
        regions = self._publications.pop(name)
        found: set[RegionName] = set()
        for at in range(len(regions)):
            found |= self._interests.find_all_matched(self._objects.remove((name, at)))
        return {s for s, _ in found if self.is_match(regions, self._subscriptions[s])}

    def update(self, name: Name, at: int, region: Region) -> tuple[set[Name], set[Name]]:
        """Move one region; return the subscriptions that begin and cease to match (figure 2)."""
        before = self._publications[name]
        old = self._objects.remove((name, at))
        self._objects.insert((name, at), region)
        now = [*before[:at], region, *before[at + 1 :]]
        self._publications[name] = now
        touched = self._interests.find_newly_matched(region, old)
        touched |= self._interests.find_newly_matched(old, region)
        held = {s for s, _ in touched if self.is_match(before, self._subscriptions[s])}
        holds = {s for s, _ in touched if self.is_match(now, self._subscriptions[s])}
        return holds - held, held - holds

    def subscribe(self, name: Name, regions: list[Region]) -> set[Name]:
        """Add a subscription; return the publications that it matches: Q_S."""
        found: set[RegionName] = set()
        for at, i in enumerate(regions):
            self._interests.insert((name, at), i)
            found |= self._objects.find_all_matched(i)
        self._subscriptions[name] = regions
        return {p for p, _ in found if self.is_match(self._publications[p], regions)}

    def update_subscription(
        self, name: Name, at: int, region: Region
    ) -> tuple[set[Name], set[Name]]:
        """Move one region; return the publications that begin and cease to match."""
        before = self._subscriptions[name]
        old = self._interests.remove((name, at))
        self._interests.insert((name, at), region)
        now = [*before[:at], region, *before[at + 1 :]]
        self._subscriptions[name] = now
        touched = self._objects.find_newly_matched(region, old)
        touched |= self._objects.find_newly_matched(old, region)
        held = {p for p, _ in touched if self.is_match(self._publications[p], before)}
        holds = {p for p, _ in touched if self.is_match(self._publications[p], now)}
        return holds - held, held - holds

    def unsubscribe(self, name: Name) -> None:
        """Remove a subscription; nobody is told."""
        for at in range(len(self._subscriptions.pop(name))):
            self._interests.remove((name, at))

    def relation(self) -> set[tuple[Name, Name]]:
        """Return M, by its definition."""
        return {
            (p, s)
            for p, objects in self._publications.items()
            for s, interests in self._subscriptions.items()
            if self.is_match(objects, interests)
        }
