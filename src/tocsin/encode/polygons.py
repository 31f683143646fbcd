"""Polygons in flat arrays, for many places at once.

Enters: polygons, and places. Leaves: which places are inside; it is the same as
`language.places.contains`, compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode import polygon_kernels
from tocsin.language.places import Polygon


class FlatPolygons(NamedTuple):
    """The rings of polygon p are `ring_start[p] : ring_start[p + 1]`; a ring of each has a part.

    The line of ring r is `start[r] : start[r + 1]` of the longitudes and latitudes.
    """

    ring_start: NDArray[np.int64]
    part: NDArray[np.int32]
    west: NDArray[np.float64]
    start: NDArray[np.int64]
    lon: NDArray[np.float64]
    lat: NDArray[np.float64]


def flat_polygons(polygons: Sequence[Polygon]) -> FlatPolygons:
    """Lay out polygons in flat arrays."""
    rings = [(at, ring) for each in polygons for at, part in enumerate(each) for ring in part]
    n_rings = [sum(map(len, each)) for each in polygons]
    lons: list[float] = [lon for _, ring in rings for lon in ring.lons]
    lats: list[float] = [lat for _, ring in rings for lat in ring.lats]
    return FlatPolygons(
        np.cumsum([0, *n_rings]),
        np.array([part for part, _ in rings], np.int32),
        np.array([ring.west for _, ring in rings], np.float64),
        np.cumsum([0, *(len(ring.lons) for _, ring in rings)]),
        np.array(lons, np.float64),
        np.array(lats, np.float64),
    )


def contained(
    polygons: FlatPolygons,
    lats: NDArray[np.float64],
    lons: NDArray[np.float64],
    which: NDArray[Any],
) -> NDArray[np.bool_]:
    """Return whether each place is inside its polygon; -1 is no polygon."""
    inside = np.empty(len(lats), np.bool_)
    which = np.ascontiguousarray(which, np.int64)
    polygon_kernels.contain(*polygons, lats, lons, which, inside)
    return inside
