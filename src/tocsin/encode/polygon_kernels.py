"""Whether places are inside polygons, compiled: `language.places.contains` for flat arrays.

Enters: the arrays of `polygons.FlatPolygons`, and places with the polygon of each. Leaves: flags.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tocsin.jit import inlined, kernel


@inlined
def _is_crossed(lon_line: Any, lat_line: Any, first: Any, last: Any, x: Any, lat: Any) -> Any:
    """Whether a line is crossed an odd number of times from a place to the east."""
    odd = False
    for i in range(first, last):
        low, high = lat_line[i], lat_line[i + 1]
        if (low > lat) != (high > lat):
            cut = lon_line[i] + (lat - low) / (high - low) * (lon_line[i + 1] - lon_line[i])
            odd ^= x < cut
    return odd


@kernel
def contain(
    ring_start: NDArray[Any],
    part: NDArray[Any],
    west: NDArray[Any],
    start: NDArray[Any],
    lon_line: NDArray[Any],
    lat_line: NDArray[Any],
    lats: NDArray[Any],
    lons: NDArray[Any],
    which: NDArray[Any],
    inside: NDArray[Any],
) -> None:
    """Set `inside` where a place is inside its polygon."""
    for i in range(len(lats)):
        inside[i] = False
        if which[i] < 0:
            continue
        odd, last_part = False, 0
        for ring in range(ring_start[which[i]], ring_start[which[i] + 1]):
            if part[ring] != last_part:
                if odd:
                    break
                last_part = part[ring]
            x = lons[i]
            while x < west[ring]:
                x += 360.0
            while x - 360.0 >= west[ring]:
                x -= 360.0
            odd ^= _is_crossed(lon_line, lat_line, start[ring], start[ring + 1] - 1, x, lats[i])
        inside[i] = odd
