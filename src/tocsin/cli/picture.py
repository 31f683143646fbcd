"""Throughput and latency over time as a picture: an SVG file, written by hand.

Enters: series of points and marks on the time axis. Leaves: the text of an SVG. No plotting library
is needed, so that a demonstration leaves a picture wherever it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _PANEL = 860, 210
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 78, 24, 64, 58, 48
_INK, _GRID, _MARK = "#1f2933", "#d9dee3", "#b4532a"
_FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True)
class Series:
    """One panel: points in time, drawn as a line with dots."""

    title: str
    unit: str
    points: Sequence[tuple[float, float]]
    color: str


@dataclass(frozen=True)
class Mark:
    """Something that happened at a moment."""

    at: float
    label: str


def draw(title: str, subtitle: str, panels: Sequence[Series], marks: Sequence[Mark]) -> str:
    """Return an SVG with one panel below the other over the same time."""
    height = _TOP + len(panels) * _PANEL + (len(panels) - 1) * _GAP + _BOTTOM
    end = max([x for panel in panels for x, _ in panel.points] + [1.0])
    step = _step(end)
    end = step * math.ceil(end / step)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' "
        f"width='{_WIDTH}' height='{height}'>",
        f"<rect width='{_WIDTH}' height='{height}' fill='white'/>",
        _text(_LEFT, 26, title, size=18, weight=600),
        _text(_LEFT, 46, subtitle, size=12, color="#616e7c"),
    ]
    for i, panel in enumerate(panels):
        top = _TOP + i * (_PANEL + _GAP)
        parts += _panel(panel, top, end, step, marks, is_last=i == len(panels) - 1)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    panel: Series, top: float, end: float, step: float, marks: Sequence[Mark], *, is_last: bool
) -> list[str]:
    highest = max([y for _, y in panel.points] + [1e-9])
    rise = _step(highest)
    ceiling = rise * math.ceil(highest / rise)
    bottom = top + _PANEL
    floor = bottom - 8

    def x_of(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / end

    def y_of(value: float) -> float:
        return floor - (floor - top - 26) * value / ceiling

    parts = [_text(_LEFT, top + 14, f"{panel.title} ({panel.unit})", size=13, weight=600)]
    for i in range(round(ceiling / rise) + 1):
        y = y_of(i * rise)
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, _GRID))
        parts.append(_text(_LEFT - 8, y + 4, _short(i * rise), anchor="end"))
    for i in range(round(end / step) + 1):
        x = x_of(i * step)
        parts.append(_line(x, floor, x, floor + 4, _INK))
        parts.append(_text(x, floor + 18, _short(i * step), anchor="middle"))
    if is_last:
        parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, floor + 38, "seconds", anchor="middle"))
    for mark in marks:
        x = x_of(mark.at)
        parts.append(_line(x, top + 20, x, floor, _MARK, dashed=True))
        near_end = x > _WIDTH * 0.7
        place = (x - 6, "end") if near_end else (x + 6, "start")
        parts.append(_text(place[0], top + 32, mark.label, anchor=place[1], color=_MARK))
    path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in panel.points)
    parts.append(f"<polyline points='{path}' fill='none' stroke='{panel.color}' stroke-width='2'/>")
    parts += [
        f"<circle cx='{x_of(x):.1f}' cy='{y_of(y):.1f}' r='3' fill='{panel.color}'/>"
        for x, y in panel.points
    ]
    return parts


def _step(highest: float) -> float:
    """Return a round step that divides up to a value into three to six."""
    rough = highest / 5
    scale: float = 10.0 ** math.floor(math.log10(max(rough, 1e-12)))
    return next(n * scale for n in (1, 2, 2.5, 5, 10) if n * scale >= rough)


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f} k"
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _line(x1: float, y1: float, x2: float, y2: float, color: str, *, dashed: bool = False) -> str:
    dash = " stroke-dasharray='4 4'" if dashed else ""
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{color}'{dash}/>"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 11,
    weight: int = 400,
    anchor: str = "start",
    color: str = _INK,
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' font-weight='{weight}' "
        f"text-anchor='{anchor}' fill='{color}' {_FONT}>{escape(text)}</text>"
    )
