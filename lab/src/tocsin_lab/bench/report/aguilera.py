"""Aguilera et al. 1999: growth of the matching tree, and the effect of each optimisation.

Aguilera et al., "Matching Events in a Content-Based Subscription System", PODC 1999, the theorem of
section 3 and the simulations of the last section. Enters: a scale. Leaves: outcomes, on workload G.

The theorem bounds the expected number of nodes that a random event visits, for K attributes of V
values and any set S of subscriptions, by O(|S|^(1 - λ)) with λ = ln V / (ln V + ln K). The bound
that is drawn is the sum its proof takes: at most C(K + 1, j + 1) V^j nodes are reached by j tests,
each by V^-j of all events; a tree of as many nodes as ours costs most when they are those nearest
to the root.

Deviations: the paper counts edges; every node but a root has one that leads to it. Its text leaves
the numbers of the simulation open; see `tocsin_lab.workloads.popularity` for ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tocsin_lab.bench.plot import Plot, Series
from tocsin_lab.bench.report.fabret import bench_of
from tocsin_lab.bench.report.outcome import Experiment, Figure, Finding, Outcome, Row, Scale, series
from tocsin_lab.bench.report.timing import Bench
from tocsin_lab.bench.steps import Progress, Steps
from tocsin_lab.workloads import Popularity

_G = Popularity("G")
_SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
_SWITCHED = 100_000
_VISITED = 1_000
_SUBLINEAR = 0.7
_LINEAR = (0.85, 1.15)
_OPTIONS: dict[str, dict[str, object]] = {
    "none": {"collapse": False, "successors": False, "index_attributes": 0},
    "chains collapsed": {"index_attributes": 0},
    "chains collapsed, successors": {"successors": True, "index_attributes": 0},
    "chains collapsed, 1 index attribute": {"index_attributes": 1},
    "chains collapsed, 2 index attributes": {"index_attributes": 2},
    "chains collapsed, 3 index attributes": {"index_attributes": 3},
    "all, 1 index attribute": {"successors": True, "index_attributes": 1},
}


def bound(n_nodes: int, n_attributes: int = _G.n_attributes, n_values: int = _G.n_values) -> float:
    """Return how many nodes a random event may visit in a tree of `n_nodes` nodes."""
    visits, left = 0.0, float(n_nodes)
    for j in range(n_attributes + 1):
        there = min(left, float(math.comb(n_attributes + 1, j + 1)) * n_values**j)
        visits += there / n_values**j
        left -= there
    return visits


def theorem(n_attributes: int = _G.n_attributes, n_values: int = _G.n_values) -> float:
    """Return the exponent 1 - λ of the theorem."""
    return math.log(n_attributes) / (math.log(n_attributes) + math.log(n_values))


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the exponent of the power law that fits best, by least squares of logarithms."""
    if len(set(xs)) < 2:
        return math.nan
    slope, _ = np.polyfit(np.log(xs), np.log(ys), 1)
    return float(slope)


def growth(scale: Scale, progress: Progress | None = None) -> Outcome:
    """Time, visits, edges and space against subscriptions."""
    sizes, engines = scale.sizes(*_SIZES), ("tree", "auto")
    steps = Steps(progress, len(sizes) * len(engines))
    rows: list[Row] = []
    for engine in engines:
        steps.start(f"G, {engine}")
        bench = bench_of(_G, engine, scale)
        for size in sizes:
            bench.fill(size)
            rows.append({"engine": engine, "subscriptions": size, **_grown(bench, engine)})
            steps.finish()
        del bench
    trees = [row for row in rows if row["engine"] == "tree"]
    return Outcome(_growth_figures(rows, trees), _growth_findings(scale, trees))


def _grown(bench: Bench, engine: str) -> Row:
    row: Row = {
        "us_per_event": round(bench.microseconds(), 3),
        "bytes": bench.matcher.nbytes,
        "matches_per_event": round(bench.matches_per_event(), 3),
    }
    return row if engine != "tree" else {**row, **_shape(bench)}


def _shape(bench: Bench) -> Row:
    """Return the size of a tree, and how many nodes an event visits."""
    bench.matcher.match_batch(bench.events.slice(0, _VISITED))
    nodes = bench.engine.n_nodes
    return {
        "visits_per_event": round(bench.engine.n_visits / _VISITED, 2),
        "nodes": nodes,
        "bound": round(bound(nodes), 1),
    }


def _growth_figures(rows: list[Row], trees: list[Row]) -> tuple[Figure, ...]:
    def against(column: str, name: str) -> Series:
        points = [(float(row["subscriptions"]), float(row[column])) for row in trees]
        return Series(name, tuple(points))

    times = series(rows, "subscriptions", "us_per_event", "engine")
    titles = (
        "Matching time against subscriptions, G",
        "Nodes visited against subscriptions, G",
        "Edges and space against subscriptions, G",
    )
    plots = (
        Plot(titles[0], "subscriptions", "µs an event", times, x_log=True, y_log=True),
        Plot(
            titles[1],
            "subscriptions",
            "nodes an event",
            (
                against("visits_per_event", "visited"),
                against("matches_per_event", "matches"),
                against("bound", "bound of the proof"),
            ),
            x_log=True,
            y_log=True,
        ),
        Plot(
            titles[2],
            "subscriptions",
            "edges; bytes",
            (against("nodes", "edges"), against("bytes", "bytes")),
            x_log=True,
            y_log=True,
        ),
    )
    return (
        Figure(
            "aguilera-1999-time", titles[0], "30 attributes of 5 values.", tuple(rows), plots[0]
        ),
        Figure(
            "aguilera-1999-visits",
            titles[1],
            "The bound is the worst for a tree of as many nodes; see the theorem of section 3.",
            tuple(trees),
            plots[1],
        ),
        Figure("aguilera-1999-space", titles[2], "Both are in proportion.", tuple(trees), plots[2]),
    )


def _growth_findings(scale: Scale, trees: list[Row]) -> tuple[Finding, ...]:
    def fitted(column: str) -> float:
        sizes = [float(row["subscriptions"]) for row in trees]
        return exponent(sizes, [float(row[column]) for row in trees])

    time, visits = fitted("us_per_event"), fitted("visits_per_event")
    space, edges = fitted("bytes"), fitted("nodes")
    worst = max(float(row["visits_per_event"]) / float(row["bound"]) for row in trees)
    return (
        Finding(
            "The tree's matching time grows with an exponent below 0.7",
            f"time N^{time:.2f}, nodes visited N^{visits:.2f}; "
            f"the theorem has N^{theorem():.2f} at the most",
            time < _SUBLINEAR if scale.is_telling else None,
            "" if time < _SUBLINEAR else _why_faster(trees[0], trees[-1]),
        ),
        Finding(
            "No tree costs more than the bound of the proof",
            f"at the most {worst:.2f} of it",
            worst <= 1,
        ),
        Finding(
            "Space is linear in the subscriptions",
            f"bytes N^{space:.2f}, edges N^{edges:.2f}",
            _LINEAR[0] <= space <= _LINEAR[1] if scale.is_telling else None,
        ),
    )


def _why_faster(smallest: Row, largest: Row) -> str:
    """Say why time grows faster than the nodes visited."""

    def each(row: Row) -> str:
        taken = 1000 * float(row["us_per_event"]) / float(row["visits_per_event"])
        return f"{taken:.0f} ns with {float(row['bytes']) / 1e6:,.0f} MB"

    return (
        f"A visit takes longer where nodes come from memory: {each(smallest)}, {each(largest)}. "
        f"And {largest['matches_per_event']} subscriptions match an event in the end, "
        f"{smallest['matches_per_event']} in the beginning, which no search can save."
    )


def switches(scale: Scale, progress: Progress | None = None) -> Outcome:
    """Section 4: each optimisation on and off."""
    steps = Steps(progress, len(_OPTIONS))
    rows: list[Row] = []
    for name, options in _OPTIONS.items():
        steps.start(f"G, {name}")
        bench = bench_of(_G, "tree", scale, **options)
        bench.fill(scale.size(_SWITCHED))
        rows.append({"optimisations": name, **_grown(bench, "tree")})
        steps.finish()
    title = f"What the optimisations of the tree do, {scale.size(_SWITCHED):,} of G"
    text = (
        "Index attributes trade space for time; successors save visits, each of which then costs "
        "more."
    )
    figure = Figure("aguilera-1999-optimisations", title, text, tuple(rows))
    return Outcome((figure,), _switch_findings(rows))


def _switch_findings(rows: list[Row]) -> tuple[Finding, ...]:
    by_name = {str(row["optimisations"]): row for row in rows}

    def against(off: str, on: str, what: str) -> Finding:
        before, after = by_name[off], by_name[on]
        visits = float(after["visits_per_event"]) / float(before["visits_per_event"])
        time = float(after["us_per_event"]) / float(before["us_per_event"])
        nodes = float(after["nodes"]) / float(before["nodes"])
        return Finding(
            f"{what} saves visits",
            f"visits × {visits:.2f}, time × {time:.2f}, nodes × {nodes:.2f}",
            visits < 1,
        )

    collapsed = "chains collapsed"
    return (
        against("none", collapsed, "Collapsing chains of don't-care edges"),
        against(collapsed, f"{collapsed}, successors", "Annotating successors"),
        against(collapsed, f"{collapsed}, 2 index attributes", "Factoring two index attributes"),
    )


EXPERIMENTS = (Experiment("growth", growth), Experiment("section 4", switches))
