"""Places: distances on the globe, and polygons written as WKT.

Enters: latitudes and longitudes in degrees; texts such as `POLYGON ((4 52, 5 52, 5 53, 4 52))`,
whose numbers are longitudes and latitudes. Leaves: metres; polygons, and whether a place is inside
one. A distance is a haversine on a sphere, made of operations that every processor rounds alike, so
that a value, a column of values and a compiled loop give the same bits.

An edge of a polygon is straight on the map of longitudes and latitudes, and goes the shorter way
around: from 179 to -179 it crosses the date line. A ring that goes once around the globe has the
pole in it that is nearer to its vertices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

RADIUS = 6_371_008.8
"""The mean radius of the Earth, in metres."""
MAX_VERTICES = 10_000
"""How many vertices a polygon may have, those of all its rings together."""
_MAX_LENGTH = 1 << 20
_SINE = tuple(float(Fraction((-1) ** k, math.factorial(2 * k + 1))) for k in range(11, -1, -1))
"""Coefficients of the series of the sine of up to a right angle, the last first."""
_ARCSINE = tuple(
    float(Fraction(math.factorial(2 * k), 4**k * math.factorial(k) ** 2 * (2 * k + 1)))
    for k in range(12, -1, -1)
)
"""The same of the arcsine of up to a sixteenth of a turn, halved."""
_RADIANS = math.pi / 180


def haversine(
    lat: Any, lon: Any, other_lat: Any, other_lon: Any, root: Callable[[Any], Any] = math.sqrt
) -> Any:
    """Return the metres between places, which are numbers, or arrays with a root of arrays.

    A quarter of the squared chord is an angle's squared sine; the angle is halved three times, so
    that a short series has its arc.
    """
    north = _sine(abs(lat - other_lat) * 0.5)
    east = _sine((180.0 - abs(180.0 - abs(lon - other_lon))) * 0.5)
    both = _sine(90.0 - abs(lat)) * _sine(90.0 - abs(other_lat))
    square = north * north + both * (east * east)
    sine, cosine = root(square), root(abs(1.0 - square))
    for _ in range(3):
        half = root((1.0 + cosine) * 0.5)
        sine, cosine = sine / (2.0 * half), half
    return (16.0 * RADIUS) * _series(sine, _ARCSINE)


def _sine(degrees: Any) -> Any:
    return _series(degrees * _RADIANS, _SINE)


def _series(x: Any, coefficients: tuple[float, ...]) -> Any:
    square, total = x * x, 0.0 * x
    for coefficient in coefficients:
        total = total * square + coefficient
    return x * total


def _is_place(lat: Any, lon: Any) -> bool:
    for value in (lat, lon):
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
    return bool(-90 <= lat <= 90 and -180 <= lon <= 180)


def distance(lat: Any, lon: Any, other_lat: Any, other_lon: Any) -> float | None:
    """Return the metres between two places; None where a coordinate is out of range."""
    if not (_is_place(lat, lon) and _is_place(other_lat, other_lon)):
        return None
    places = float(lat), float(lon), float(other_lat), float(other_lon)
    return float(haversine(*places))


class Ring(NamedTuple):
    """A closed line: its longitudes without a jump, from `west` on, and its latitudes."""

    west: float
    lons: tuple[float, ...]
    lats: tuple[float, ...]


Polygon = tuple[tuple[Ring, ...], ...]
"""Parts, each with an outer ring and holes."""


class PlaceError(ValueError):
    """A text that is no polygon of ours."""


def inside(lat: Any, lon: Any, text: Any) -> bool | None:
    """Whether a place is inside a polygon; None where either is none."""
    if not isinstance(text, str) or not _is_place(lat, lon):
        return None
    polygon = known_polygon(text)
    return None if polygon is None else contains(polygon, float(lat), float(lon))


def contains(polygon: Polygon, lat: float, lon: float) -> bool:
    """Whether a place is in one of a polygon's parts, and in none of its holes.

    A place on an edge belongs to what is to the north or to the east of it, so that of two
    polygons with a common edge one has it.
    """
    for rings in polygon:
        crossed = 0
        for west, lons, lats in rings:
            x = lon
            while x < west:
                x += 360.0
            while x - 360.0 >= west:
                x -= 360.0
            for i in range(len(lons) - 1):
                low, high = lats[i], lats[i + 1]
                if (low > lat) != (high > lat):
                    cut = lons[i] + (lat - low) / (high - low) * (lons[i + 1] - lons[i])
                    crossed += x < cut
        if crossed % 2:
            return True
    return False


@lru_cache(maxsize=4096)
def known_polygon(text: str) -> Polygon | None:
    """Return the polygon of a text, or None."""
    try:
        return parse_polygon(text)
    except PlaceError:
        return None


def polygon_problem(text: str) -> str | None:
    """Return why a text is no polygon that we take, or None."""
    try:
        parse_polygon(text)
    except PlaceError as error:
        return str(error)
    return None


_PIECE = re.compile(r"\s*(?:([(),])|([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(\S))", re.ASCII)
_DIGITS = tuple("0123456789.")
_START = re.compile(r"\s*(MULTI)?POLYGON\b", re.IGNORECASE)


def parse_polygon(text: str) -> Polygon:
    """Read the WKT of a POLYGON or a MULTIPOLYGON; raise PlaceError where it is none."""
    if len(text) > _MAX_LENGTH:
        raise PlaceError(f"a polygon's text has at most {_MAX_LENGTH:,} characters")
    start = _START.match(text)
    if start is None:
        raise PlaceError("write POLYGON ((lon lat, …)) or MULTIPOLYGON (((lon lat, …)))")
    depth = 3 if start[1] else 2
    reader = _Reader(text, start.end())
    parts = reader.listed(depth)
    reader.finish()
    return tuple(tuple(map(_ring, rings)) for rings in (parts if depth == 3 else [parts]))


class _Reader:
    """Reads lists in parentheses, in one pass over the text."""

    def __init__(self, text: str, at: int) -> None:
        self._pieces = self._cut(text, at)
        self._n_vertices = 0
        self._next = next(self._pieces)

    @staticmethod
    def _cut(text: str, at: int) -> Iterator[str]:
        for match in _PIECE.finditer(text, at):
            yield match[match.lastindex or 0]
        while True:
            yield ""

    def _take(self, expected: str) -> None:
        if self._next != expected:
            raise PlaceError(f"a polygon needs {expected!r} here, {self._shown()}")
        self._next = next(self._pieces)

    def _shown(self) -> str:
        return f"not {self._next[:20]!r}" if self._next else "but the text ends"

    def listed(self, depth: int) -> list[Any]:
        """Read what is in parentheses of some depth; innermost are points."""
        self._take("(")
        items = []
        while True:
            items.append(self._point() if depth == 1 else self.listed(depth - 1))
            if self._next != ",":
                break
            self._take(",")
        self._take(")")
        return items

    def _point(self) -> tuple[float, float]:
        self._n_vertices += 1
        if self._n_vertices > MAX_VERTICES:
            raise PlaceError(f"a polygon has at most {MAX_VERTICES:,} vertices")
        lon, lat = self._number("longitude", 360), self._number("latitude", 90)
        return lon, lat

    def _number(self, name: str, most: float) -> float:
        if self._next[-1:] not in _DIGITS:
            raise PlaceError(f"a polygon needs a {name} here, {self._shown()}")
        value = float(self._next)
        if not -most <= value <= most:
            raise PlaceError(f"a {name} is from -{most} to {most}, not {self._next[:20]}")
        self._next = next(self._pieces)
        return value

    def finish(self) -> None:
        """Refuse what follows."""
        if self._next:
            raise PlaceError(f"a polygon ends before {self._next[:20]!r}")


def _ring(points: Sequence[tuple[float, float]]) -> Ring:
    """Return a ring whose longitudes have no jump."""
    if len(points) < 4 or (points[0][0] - points[-1][0]) % 360 or points[0][1] != points[-1][1]:
        raise PlaceError("a ring has at least four points, and ends where it begins")
    lons, lats = [points[0][0]], [points[0][1]]
    for lon, lat in points[1:]:
        step = (lon - lons[-1] + 180.0) % 360.0 - 180.0
        if step == -180.0:
            raise PlaceError(
                "an edge goes halfway around the globe, so that it is not clear which way: "
                "write a vertex between"
            )
        if lats[-1] == lat == 90.0:  # along the pole: what is on it is to the south of the edge
            lons += [lons[-1], lons[-1] + step]
            lats += [91.0, 91.0]
        lons.append(lons[-1] if lats[-1] == 91.0 else lons[-1] + step)
        lats.append(lat)
    if max(lons) - min(lons) > 360.0 + 1e-6:
        raise PlaceError("a ring goes around the globe more than once")
    turn = lons[-1] - lons[0]
    if abs(turn) > 180.0:
        return _around_pole(lons, lats)
    if max(lons) == min(lons) or max(lats) == min(lats):
        raise PlaceError(
            "a ring has no area; an edge goes the shorter way around the globe, so write vertices "
            "less than 180 degrees apart"
        )
    lons[-1] = lons[0]
    return Ring(min(lons), tuple(lons), tuple(lats))


def _around_pole(lons: list[float], lats: list[float]) -> Ring:
    """Close a ring that goes around the globe over the pole that is nearer."""
    side = math.fsum(lats[:-1])
    if side == 0:
        raise PlaceError("a ring goes around the globe, and it is not clear which pole is in it")
    pole = math.copysign(91.0, side)
    lons[-1] = lons[0] + math.copysign(360.0, lons[-1] - lons[0])
    lons += [lons[-1], lons[0], lons[0]]
    lats += [pole, pole, lats[0]]
    return Ring(min(lons), tuple(lons), tuple(lats))


def box_of(polygon: Polygon) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """Return the latitudes that a polygon has, and its longitudes as intervals within 180."""
    rings = [rings[0] for rings in polygon]
    lats = [lat for ring in rings for lat in ring.lats]
    spans = [span for ring in rings for span in wrapped(min(ring.lons), max(ring.lons))]
    return (min(lats), max(lats)), joined_spans(spans)


def wrapped(low: float, high: float) -> list[tuple[float, float]]:
    """Return longitudes from one to another, which may be beyond 180, as intervals within it."""
    if high - low >= 360.0:
        return [(-180.0, 180.0)]
    while low < -180.0:
        low, high = low + 360.0, high + 360.0
    while low > 180.0:
        low, high = low - 360.0, high - 360.0
    if high < 180.0 and low > -180.0:
        return [(low, high)]
    if high < 180.0:  # 180 and -180 are one longitude
        return [(low, high), (180.0, 180.0)]
    return [(low, 180.0), (-180.0, high - 360.0)]


def joined_spans(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return intervals that do not overlap and have the same numbers."""
    joined: list[tuple[float, float]] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined
