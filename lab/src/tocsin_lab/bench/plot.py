"""Line plots as SVG, without a plotting library.

Enters: named series of (x, y). Leaves: an SVG that stands alone, readable on light and on dark
ground: it takes its colours from the reader's preference. Series differ by colour, dash and marker,
so that they differ without colours; the names and the range of each are in its
description, for those who cannot see it. Values that an axis cannot show (zero or less on a
logarithmic one, NaN) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 168, 16, 52
_COLOURS = (
    ("#1b6ca8", "#6cb6ff"),
    ("#b3420a", "#ff9e64"),
    ("#3a7d27", "#8ddb71"),
    ("#8a2f8a", "#e29be2"),
    ("#8f6a00", "#e5c04d"),
    ("#00777a", "#5fd7d7"),
    ("#a8203c", "#ff8fa3"),
    ("#4b4b4b", "#c4c4c4"),
)
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
_MARKERS = ("circle", "square", "diamond", "triangle")
_TICKS = 5


@dataclass(frozen=True)
class Series:
    """A line: its name and its points, in the order of x."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Plot:
    """What to draw."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_log: bool = False
    y_log: bool = False


@dataclass(frozen=True)
class _Axis:
    """From values to places: `low` and `high` are values, `start` and `end` places."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.is_log:
            return _log_ticks(self.low, self.high)
        step = _nice((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _nice(step: float) -> float:
    """Return a round number at or above a step."""
    unit = 10.0 ** math.floor(math.log10(step))
    return next(unit * n for n in (1, 2, 5, 10) if unit * n >= step * (1 - 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5)):
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        ticks = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(ticks) >= 3:
            break
    return ticks


def short(value: float) -> str:
    """Return a number as a label of an axis: 3 M, 100 k, 0.5."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _axis(values: Sequence[float], start: float, end: float, is_log: bool) -> _Axis:
    """Return an axis that holds all values; a linear one begins at 0 where none is below it."""
    if not values:
        return _Axis(1.0, 10.0, start, end, is_log)
    low, high = min(values), max(values)
    if is_log:
        low, high = (low / 2, high * 2) if low == high else (low / 1.15, high * 1.15)
        return _Axis(low, high, start, end, is_log)
    low = min(low, 0.0)
    high = high if high > low else low + 1.0
    return _Axis(low, high + 0.04 * (high - low), start, end, is_log)


def _shown(plot: Plot, series: Series) -> list[tuple[float, float]]:
    return [
        (x, y)
        for x, y in series.points
        if math.isfinite(x)
        and math.isfinite(y)
        and (x > 0 or not plot.x_log)
        and (y > 0 or not plot.y_log)
    ]


def render(plot: Plot) -> str:
    """Return the plot as SVG."""
    lines = [(each, _shown(plot, each)) for each in plot.series]
    xs = [x for _, points in lines for x, _ in points]
    ys = [y for _, points in lines for _, y in points]
    across = _axis(xs, _LEFT, _WIDTH - _RIGHT, plot.x_log)
    up = _axis(ys, _HEIGHT - _BOTTOM, _TOP, plot.y_log)
    parts = [
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{escape(plot.title)}">',
        f"<title>{escape(plot.title)}</title>",
        f"<desc>{escape(_description(plot, lines))}</desc>",
        f"<style>{_style()}</style>",
        *_grid(plot, across, up),
    ]
    for number, (each, points) in enumerate(lines):
        places = [(across.place(x), up.place(y)) for x, y in points]
        parts += _line(number, places, points, each.name)
        parts += _legend(number, each.name)
    return "\n".join([*parts, "</svg>"])


def _description(plot: Plot, lines: Sequence[tuple[Series, list[tuple[float, float]]]]) -> str:
    said = [f"{plot.y_label} against {plot.x_label}."]
    for each, points in lines:
        if points:
            (x0, y0), (x1, y1) = points[0], points[-1]
            at = f"{short(y0)} at {short(x0)}, {short(y1)} at {short(x1)}"
            said.append(f"{each.name}: from {at}.")
    return " ".join(said)


def _style() -> str:
    light = "".join(f".s{i}{{--c:{pair[0]}}}" for i, pair in enumerate(_COLOURS))
    dark = "".join(f".s{i}{{--c:{pair[1]}}}" for i, pair in enumerate(_COLOURS))
    return (
        ".plot{--ink:#222;--rule:#ddd;font:13px system-ui,sans-serif}"
        ".plot text{fill:var(--ink)}.plot .rule{stroke:var(--rule)}.plot .axis{stroke:var(--ink)}"
        ".plot .line{fill:none;stroke:var(--c);stroke-width:2}.plot .mark{fill:var(--c)}"
        f"{light}@media(prefers-color-scheme:dark){{.plot{{--ink:#ddd;--rule:#444}}{dark}}}"
    )


def _grid(plot: Plot, across: _Axis, up: _Axis) -> list[str]:
    left, right, bottom, top = across.start, across.end, up.start, up.end
    parts = []
    for tick in up.ticks():
        y = up.place(tick)
        parts.append(f'<path class="rule" d="M{left} {y:.1f}H{right}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    for tick in across.ticks():
        x = across.place(tick)
        parts.append(f'<path class="rule" d="M{x:.1f} {top}V{bottom}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{short(tick)}</text>'
        )
    middle = (left + right) / 2
    return [
        *parts,
        f'<path class="axis" fill="none" d="M{left} {top}V{bottom}H{right}"/>',
        f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(plot.x_label)}</text>',
        f'<text transform="translate(16 {(top + bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(plot.y_label)}</text>',
    ]


def _line(
    number: int, places: list[tuple[float, float]], points: list[tuple[float, float]], name: str
) -> list[str]:
    colour, dash = number % len(_COLOURS), _DASHES[number % len(_DASHES)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<g class="s{colour}">']
    parts.append(f'<polyline class="line" stroke-dasharray="{dash}" points="{path}"/>')
    for (x, y), (value_x, value_y) in zip(places, points, strict=True):
        label = escape(f"{name}: {value_y:.4g} at {short(value_x)}")
        parts.append(_mark(number, x, y, label))
    return [*parts, "</g>"]


def _mark(number: int, x: float, y: float, label: str = "") -> str:
    title = f"<title>{label}</title>" if label else ""
    kind = _MARKERS[number % len(_MARKERS)]
    if kind == "circle":
        return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="4">{title}</circle>'
    corners = {
        "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
        "triangle": ((0, -5), (5, 4), (-5, 4)),
    }[kind]
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon class="mark" points="{path}">{title}</polygon>'


def _legend(number: int, name: str) -> list[str]:
    x, y = _WIDTH - _RIGHT + 12, _TOP + 10 + 20 * number
    dash = _DASHES[number % len(_DASHES)]
    return [
        f'<g class="s{number % len(_COLOURS)}">'
        f'<path class="line" stroke-dasharray="{dash}" d="M{x} {y}h24"/>'
        f"{_mark(number, x + 12, y)}"
        f'<text x="{x + 30}" y="{y + 4}">{escape(name)}</text></g>'
    ]
