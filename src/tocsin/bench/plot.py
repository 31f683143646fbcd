"""Line plots as SVG, with nothing but text.

Enters: named series of points, labels, which axes are logarithmic. Leaves: an SVG document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 170, 44, 56
_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97", "#c7832b", "#4a4e69", "#2a9d8f", "#7f7f7f")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Scale:
    """From values to places along one side."""

    low: float
    high: float
    is_log: bool
    start: float
    end: float

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        share = 0.5 if high == low else (at - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            found = [10.0**power for power in range(first, last + 1)]
        else:
            raw = (self.high - self.low) / 5 or 1.0
            size = 10 ** math.floor(math.log10(raw))
            step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
            first = math.ceil(self.low / step)
            found = [step * (first + at) for at in range(7)]
        margin = 1e-9 * (self.high - self.low)
        return [tick for tick in found if self.low - margin <= tick <= self.high + margin]


def line_plot(
    title: str,
    series: Mapping[str, Points],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """Return a plot of some series; a point that a logarithm cannot show is left out."""
    shown = {
        name: sorted((x, y) for x, y in points if (x > 0 or not log_x) and (y > 0 or not log_y))
        for name, points in series.items()
    }
    xs = [x for points in shown.values() for x, _ in points] or [1.0]
    ys = [y for points in shown.values() for _, y in points] or [1.0]
    across = _scale(xs, log_x, _LEFT, _WIDTH - _RIGHT)
    up = _scale(ys, log_y, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, title, size=15),
        *_axes(across, up, x_label, y_label),
    ]
    for at, (name, points) in enumerate(shown.items()):
        colour = _COLOURS[at % len(_COLOURS)]
        places = [(across.place(x), up.place(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = _TOP + 8 + 18 * at
        x = _WIDTH - _RIGHT + 14
        parts.append(f'<rect x="{x}" y="{y - 8}" width="14" height="4" fill="{colour}"/>')
        parts.append(_text(x + 20, y, name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _scale(values: Sequence[float], is_log: bool, start: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    if is_log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        high = high if high > low else low * 10
    else:
        low = min(0.0, low)
        high = high if high > low else low + 1
    return _Scale(low, high, is_log, start, end)


def _axes(across: _Scale, up: _Scale, x_label: str, y_label: str) -> list[str]:
    bottom, left = _HEIGHT - _BOTTOM, _LEFT
    parts = []
    for tick in across.ticks():
        x = across.place(tick)
        parts.append(_line(x, _TOP, x, bottom))
        parts.append(_text(x, bottom + 18, _number(tick), anchor="middle"))
    for tick in up.ticks():
        y = up.place(tick)
        parts.append(_line(left, y, _WIDTH - _RIGHT, y))
        parts.append(_text(left - 8, y + 4, _number(tick), anchor="end"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(_text(middle, _HEIGHT - 14, x_label, anchor="middle"))
    y = (_TOP + bottom) / 2
    label = escape(y_label)
    parts.append(
        f'<text x="18" y="{y}" text-anchor="middle" transform="rotate(-90 18 {y})">{label}</text>'
    )
    return parts


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )


def _number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-2):
        power = math.floor(math.log10(abs(value)) + 1e-9)
        digits = value / 10**power
        return f"10^{power}" if abs(digits - 1) < 1e-6 else f"{digits:g}·10^{power}"
    return f"{value:,g}"
