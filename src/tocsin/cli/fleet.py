"""`tocsin demo fleet`: vehicles that cross zones on a road grid, and who is notified.

Enters: how many vehicles and moves, a seed. Leaves: transitions as they happen, figures, and a
picture: of the terminal's characters, and an SVG file where one is asked for. Every position report
goes to the space, which notifies of vehicles that enter or leave a zone.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa

from tocsin.cli.console import OK, Progress
from tocsin.model import EventType
from tocsin.subjects.model import Interest, InterestRegion
from tocsin.subjects.space import SubjectSpace

SIZE = 60
_BLOCK = 5
"""How far roads are apart."""
_SHOWN = 24
Zone = tuple[str, int, int, int, int]

ZONES: tuple[Zone, ...] = (
    ("harbour", 2, 2, 14, 12),
    ("airport", 40, 4, 56, 16),
    ("old town", 22, 22, 36, 36),
    ("market", 27, 27, 32, 32),
    ("depot", 4, 44, 16, 56),
    ("stadium", 42, 42, 52, 54),
)


@dataclass
class Figures:
    """The results of the demonstration."""

    vehicles: int = 0
    reports: int = 0
    enters: int = 0
    leaves: int = 0
    seconds_compiling: float = 0.0
    seconds_updating: float = 0.0
    by_subscription: dict[str, int] = field(default_factory=dict)
    inside: dict[str, int] = field(default_factory=dict)


class Fleet:
    """Vehicles on roads: along one until a crossing, then perhaps along another."""

    def __init__(self, n: int, seed: int) -> None:
        self.random = random.Random(seed)
        lanes = SIZE // _BLOCK
        self.x = [float(self.random.randrange(lanes + 1) * _BLOCK) for _ in range(n)]
        self.y = [float(self.random.randrange(lanes + 1) * _BLOCK) for _ in range(n)]
        self.way = [self.random.choice(((1, 0), (-1, 0), (0, 1), (0, -1))) for _ in range(n)]
        self.cold = [self.random.random() < 0.3 for _ in range(n)]
        self.keys = [f"{'reefer' if cold else 'truck'} {i}" for i, cold in enumerate(self.cold)]

    def move(self) -> None:
        """Move each vehicle by one."""
        for i in range(len(self.x)):
            if self.x[i] % _BLOCK == 0 and self.y[i] % _BLOCK == 0 and self.random.random() < 0.4:
                self.way[i] = self.random.choice(((1, 0), (-1, 0), (0, 1), (0, -1)))
            dx, dy = self.way[i]
            if not (0 <= self.x[i] + dx <= SIZE and 0 <= self.y[i] + dy <= SIZE):
                dx, dy = self.way[i] = (-dx, -dy)
            self.x[i] += dx
            self.y[i] += dy

    def table(self) -> pa.Table:
        """Return the vehicles with their positions."""
        return pa.table({"key": self.keys, "x": self.x, "y": self.y, "cold": self.cold})

    def positions(self) -> pa.Table:
        """Return the position reports."""
        return pa.table({"key": self.keys, "x": self.x, "y": self.y})


def _condition(zone: Zone) -> str:
    _, left, top, right, bottom = zone
    return f"x BETWEEN {left} AND {right} AND y BETWEEN {top} AND {bottom}"


def make_space() -> SubjectSpace:
    """Return a space with a subscription for each zone, and two others."""
    space = SubjectSpace(EventType("Position", x=float, y=float, cold=bool))
    for zone in ZONES:
        space.subscribe(zone[0], _condition(zone))
    space.subscribe("cold chain", f"cold AND ({_condition(ZONES[0])} OR {_condition(ZONES[4])})")
    town, market = InterestRegion(_condition(ZONES[2])), InterestRegion(_condition(ZONES[3]))
    ring = Interest({"town": town, "market": market}, "town AND NOT market")
    space.subscribe("old town, not the market", ring)
    return space


def run(vehicles: int, steps: int, seed: int, picture: Path | None, as_json: bool) -> int:
    """Run the demonstration and print its results."""
    figures = Figures(vehicles=vehicles)
    fleet = Fleet(vehicles, seed)
    with Progress() as progress:
        progress.show("compiling", 0, None, "only the first time")
        started = time.perf_counter()
        space = make_space()
        transitions = space.publish_many(fleet.table())
        space.update_publications(fleet.positions())
        figures.seconds_compiling = time.perf_counter() - started
        progress.show("compiling", 1, 1)
    counts: Counter[str] = Counter()
    is_live = not as_json and sys.stdout.isatty()
    for step in range(steps + 1):
        if step:
            fleet.move()
            started = time.perf_counter()
            transitions = space.update_publications(fleet.positions())
            figures.seconds_updating += time.perf_counter() - started
            figures.reports += vehicles
        _count(transitions, counts, figures)
        if not as_json:
            _show(step, transitions, is_live)
    figures.by_subscription = dict(counts.most_common())
    watched = [*(zone[0] for zone in ZONES), "cold chain", "old town, not the market"]
    figures.inside = {name: len(space.publications_of(name)) for name in watched}
    if picture is not None:
        picture.write_text(to_svg(fleet))
    _finish(figures, fleet, picture, as_json)
    return OK


def _count(transitions: Any, counts: Counter[str], figures: Figures) -> None:
    for transition in transitions:
        counts[str(transition.subscription)] += 1
        if transition.kind.value == "ENTER":
            figures.enters += 1
        else:
            figures.leaves += 1


def _show(step: int, transitions: Any, is_live: bool) -> None:
    """Print the transitions of a step; on a terminal slowly enough to be read."""
    import typer

    for at, transition in enumerate(transitions):
        if at == 3:
            typer.echo(f"{step:>4}  … and {len(transitions) - at} more")
            break
        arrow = "→ into  " if transition.kind.value == "ENTER" else "← out of"
        typer.echo(f"{step:>4}  {transition.key:<12} {arrow} {transition.subscription}")
    if is_live:
        time.sleep(0.05)


def _finish(figures: Figures, fleet: Fleet, picture: Path | None, as_json: bool) -> None:
    import typer

    if as_json:
        typer.echo(json.dumps(asdict(figures)))
        return
    each = 1e6 * figures.seconds_updating / max(1, figures.reports)
    n_transitions = figures.enters + figures.leaves
    typer.echo("\n" + to_text(fleet))
    typer.echo(
        f"\n{figures.reports:,} position reports ({each:.1f} µs each) made {n_transitions:,} "
        f"transitions: {figures.enters:,} ENTER, {figures.leaves:,} LEAVE"
    )
    for name, count in figures.by_subscription.items():
        typer.echo(f"  {name:<26}{count:>7,} notifications {figures.inside[name]:>5} inside now")
    if picture is not None:
        typer.echo(f"picture: {picture}")


def to_text(fleet: Fleet) -> str:
    """Return the map: zones by their first letter, vehicles by how many there are."""
    rows, columns = _SHOWN, 2 * _SHOWN
    grid = [[" "] * columns for _ in range(rows)]
    for name, left, top, right, bottom in ZONES:
        for r in range(top * rows // (SIZE + 1), bottom * rows // (SIZE + 1) + 1):
            for c in range(left * columns // (SIZE + 1), right * columns // (SIZE + 1) + 1):
                grid[r][c] = name[0]
    places = Counter(
        (int(y * rows // (SIZE + 1)), int(x * columns // (SIZE + 1)))
        for x, y in zip(fleet.x, fleet.y, strict=True)
    )
    for (r, c), count in places.items():
        grid[r][c] = str(count) if count < 10 else "#"
    edge = "+" + "-" * columns + "+"
    return "\n".join([edge, *("|" + "".join(row) + "|" for row in grid), edge])


def to_svg(fleet: Fleet) -> str:
    """Return the map as a picture."""
    scale = 10
    side = SIZE * scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 -10 {side + 20} {side + 20}" '
        f'font-family="sans-serif" font-size="14">',
        f'<rect x="-10" y="-10" width="{side + 20}" height="{side + 20}" fill="#f4f1ea"/>',
    ]
    for at in range(0, SIZE + 1, _BLOCK):
        along = f'stroke="white" stroke-width="4" x1="{at * scale}" x2="{at * scale}"'
        parts.append(f'<line {along} y1="0" y2="{side}"/>')
        across = f'stroke="white" stroke-width="4" y1="{at * scale}" y2="{at * scale}"'
        parts.append(f'<line {across} x1="0" x2="{side}"/>')
    for name, left, top, right, bottom in ZONES:
        size = f'width="{(right - left) * scale}" height="{(bottom - top) * scale}"'
        parts.append(
            f'<rect x="{left * scale}" y="{top * scale}" {size} fill="#1b6ca8" '
            f'fill-opacity="0.18" stroke="#1b6ca8"/>'
        )
        parts.append(f'<text x="{left * scale + 6}" y="{top * scale + 18}">{escape(name)}</text>')
    for x, y, cold in zip(fleet.x, fleet.y, fleet.cold, strict=True):
        colour = "#2a9d8f" if cold else "#d1495b"
        parts.append(f'<circle cx="{x * scale}" cy="{y * scale}" r="4" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
