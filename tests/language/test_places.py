"""Distances and polygons: against other formulas, exact arithmetic, and hostile texts."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from tocsin import Matcher
from tocsin.encode.polygons import contained, flat_polygons
from tocsin.errors import ConditionSyntaxError, ParameterError
from tocsin.language.places import (
    MAX_VERTICES,
    RADIUS,
    contains,
    distance,
    haversine,
    parse_polygon,
    polygon_problem,
)

Point = tuple[float, float]


def ring_text(points: list[Point]) -> str:
    return "(" + ", ".join(f"{lon!r} {lat!r}" for lon, lat in [*points, points[0]]) + ")"


def is_crossed(points: list[Point], lon: float, lat: float) -> bool:
    """Whether a place is in a ring that does not cross the date line, in exact arithmetic."""
    x, y, odd = Fraction(lon), Fraction(lat), False
    for a, b in zip(points, [*points[1:], points[0]], strict=True):
        (x1, y1), (x2, y2) = (tuple(map(Fraction, each)) for each in (a, b))
        if (y1 > y) != (y2 > y):
            odd ^= x < x1 + (y - y1) / (y2 - y1) * (x2 - x1)
    return odd


def test_a_distance_is_the_length_of_the_arc_and_the_same_for_columns_and_values() -> None:
    random = np.random.default_rng(0)
    lat, lon = random.uniform(-90, 90, 5_000), random.uniform(-180, 180, 5_000)
    step = random.normal(0, 1, (2, 5_000)) * 10 ** random.uniform(-6, 2, 5_000)
    other = np.clip(lat + step[0], -90, 90), np.clip(lon + step[1], -180, 180)
    metres = haversine(lat, lon, *other, np.sqrt)
    rows = zip(lat.tolist(), lon.tolist(), *(each.tolist() for each in other), strict=True)
    assert metres.tolist() == [distance(*row) for row in rows]
    points = []
    for north, east in ((lat, lon), other):
        north, east = np.radians(north), np.radians(east)
        parts = np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)
        points.append(np.stack(parts))
    cross = np.linalg.norm(np.cross(points[0], points[1], axis=0), axis=0)
    arc = RADIUS * np.arctan2(cross, (points[0] * points[1]).sum(axis=0))
    assert np.allclose(metres, arc, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize(
    ("places", "metres"),
    [
        ((0, 0, 0, 180), math.pi * RADIUS),
        ((90, 17, -90, -60), math.pi * RADIUS),
        ((90, 17, 90, -60), 0.0),
        ((0, 179.5, 0, -179.5), math.pi * RADIUS / 180),
        ((50, 8, 50, 8), 0.0),
        ((90.5, 0, 0, 0), None),
        ((0, 0, 0, 180.5), None),
        ((0, float("nan"), 0, 0), None),
        ((0, True, 0, 0), None),
        ((0, "1", 0, 0), None),
    ],
)
def test_distances_across_the_date_line_at_poles_and_of_no_places(
    places: tuple[object, ...], metres: float | None
) -> None:
    result = distance(*places)
    assert result == metres if metres is None else result == pytest.approx(metres, abs=1e-6)


def test_polygons_with_holes_contain_what_exact_arithmetic_says() -> None:
    random = Random(1)
    for _ in range(40):
        outline, hole = (
            [(random.randrange(-8, 9) / 2, random.randrange(-8, 9) / 2) for _ in range(n)]
            for n in (6, 4)
        )
        rings = [
            ring
            for ring in (outline, hole)
            if polygon_problem(f"POLYGON ({ring_text(ring)})") is None
        ]
        if not rings:
            continue
        polygon = parse_polygon(f"POLYGON ({', '.join(map(ring_text, rings))})")
        lons, lats = (
            np.array([random.randrange(-18, 19) / 4 for _ in range(60)]) for _ in range(2)
        )
        expected = [
            sum(is_crossed(ring, lon, lat) for ring in rings) % 2 == 1
            for lon, lat in zip(lons, lats, strict=True)
        ]
        places = zip(lats, lons, strict=True)
        assert [contains(polygon, lat, lon) for lat, lon in places] == expected
        flat = flat_polygons([(), polygon])
        assert contained(flat, lats, lons, np.ones(60, np.int64)).tolist() == expected


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (  # across the date line, written in either way
            "POLYGON ((170 -10, -170 -10, -170 10, 170 10, 170 -10))",
            [(0, 180), (0, -180), (5, 171), (5, -171)],
            [(0, 169), (0, -169), (0, 0), (11, 180)],
        ),
        (
            "POLYGON ((170 -10, 190 -10, 190 10, 170 10, 170 -10))",
            [(0, 180), (0, -180), (5, 171), (5, -171)],
            [(0, 169), (0, -169), (0, 0)],
        ),
        (  # around a pole, with a hole across the date line
            "polygon((0 70, 90 70, 179 70, -90 70, 0 70), "
            "(170 80, -170 80, -170 85, 170 85, 170 80))",
            [(90, 0), (90, -180), (75, 123), (75, -179), (82, 0)],
            [(69, 0), (-90, 0), (82, 180), (82, -175)],
        ),
        (
            "POLYGON ((0 -70, -90 -70, 179 -70, 90 -70, 0 -70))",
            [(-90, 10), (-71, -179), (-89, 180)],
            [(-69, 0), (90, 0)],
        ),
        ("POLYGON ((0 80, 90 80, 90 90, 0 90, 0 80))", [(90, 45), (85, 1)], [(85, -1)]),
        (
            "MULTIPOLYGON (((0 0, 2 0, 2 2, 0 2, 0 0)), ((1 1, 3 1, 3 3, 1 3, 1 1)))",
            [(0.5, 0.5), (1.5, 1.5), (2.5, 2.5)],
            [(0.5, 2.5)],
        ),
    ],
)
def test_the_date_line_poles_and_parts(
    text: str, inside: list[Point], outside: list[Point]
) -> None:
    polygon = parse_polygon(text)
    assert all(contains(polygon, lat, lon) for lat, lon in inside)
    assert not any(contains(polygon, lat, lon) for lat, lon in outside)
    lats, lons = np.array([*inside, *outside], np.float64).T.copy()
    result = contained(flat_polygons([polygon]), lats, lons, np.zeros(len(lats), np.int64))
    assert result.tolist() == [True] * len(inside) + [False] * len(outside)


def test_a_condition_has_a_bounded_number_of_polygons() -> None:
    inside = "inside(lat, lon, 'POLYGON ((0 0, 1 0, 1 1, 0 0))')"
    matcher = Matcher()
    matcher.subscribe("a", " OR ".join([inside] * 32))
    with pytest.raises(ConditionSyntaxError, match="more than 32 polygons"):
        matcher.subscribe("b", " OR ".join([inside] * 33))


def test_a_place_on_a_common_edge_is_in_one_of_two_polygons() -> None:
    west, east, north = (
        parse_polygon(f"POLYGON ({ring_text(points)})")
        for points in (
            [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)],
            [(1.0, 0.0), (2.0, 0.0), (2.0, 1.0), (1.0, 1.0)],
            [(0.0, 1.0), (2.0, 1.0), (2.0, 2.0), (0.0, 2.0)],
        )
    )
    assert [contains(p, 0.5, 1.0) for p in (west, east)] == [False, True]
    assert [contains(p, 1.0, 0.5) for p in (west, north)] == [False, True]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "write POLYGON"),
        ("POINT (1 2)", "write POLYGON"),
        ("POLYGON EMPTY", "needs '('"),
        ("POLYGON ((", "needs a longitude"),
        ("POLYGON ((0 0, 1 0, 1 1, 0 0)", "needs ')'"),
        ("POLYGON ((0 0, 1 0, 1 1, 0 0)) x", "ends before 'x'"),
        ("POLYGON ((0 0 7, 1 0, 1 1, 0 0))", "needs ')'"),
        ("POLYGON ((0 0, 1 0, 1 1, 0 1))", "ends where it begins"),
        ("POLYGON ((0 0, 1 1, 0 0))", "at least four points"),
        ("POLYGON ((0 0, 1 0, 1 95, 0 0))", "a latitude is from -90 to 90, not 95"),
        ("POLYGON ((0 0, 1e999 0, 1 1, 0 0))", "a longitude is from -360 to 360"),
        ("POLYGON ((0 0, nan 0, 1 1, 0 0))", "needs a longitude here, not 'n'"),
        ("POLYGON ((0 0, 180 0, 180 9, 0 9, 0 0))", "halfway around the globe"),
        ("POLYGON ((-180 -9, 180 -9, 180 9, -180 9, -180 -9))", "has no area"),
        ("POLYGON ((0 0, 120 0, -120 0, 0 0))", "which pole"),
        ("POLYGON ((" + "1 1, " * MAX_VERTICES + "1 1))", "at most 10,000 vertices"),
        ("POLYGON " + "(" * 500_000, "needs a longitude"),
        ("POLYGON ((" + " " * 2_000_000, "at most 1,048,576 characters"),
    ],
)
def test_what_is_no_polygon_is_refused_in_linear_time(text: str, problem: str) -> None:
    started = time.process_time()
    assert problem in (polygon_problem(text) or "")
    assert time.process_time() - started < 5
    quoted = text.replace("'", "''")
    with pytest.raises(ConditionSyntaxError, match=r"polygon|POLYGON|ring|edge|latitude|longitude"):
        Matcher().subscribe("a", f"inside(lat, lon, '{quoted}')")
    with pytest.raises(ParameterError):
        Matcher().subscribe("a", "inside(lat, lon, :zone)", params={"zone": text})
