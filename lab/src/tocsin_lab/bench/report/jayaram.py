"""Jayaram et al. 2015: FASTINT's matching time, and its updates against re-subscription.

Jayaram, Wang, Eugster, "Subscription Normalization for Effective Content-Based Messaging", IEEE
TPDS 2015, sections 5 and 6. Enters: a scale. Leaves: outcomes, on the trading workload M and on
ranges that get narrower as they get more.

Deviations. The paper's figures are of whole networks, which `tocsin bench overlay` measures; here
is what one broker's matcher does. Its claim that a look-up is logarithmic is about finding a leaf,
so it is tried with ranges of which an event meets ten, however many there are.
"""

from __future__ import annotations

import math

from tocsin.workloads import workload
from tocsin_lab.bench import update
from tocsin_lab.bench.plot import Plot
from tocsin_lab.bench.report.aguilera import exponent
from tocsin_lab.bench.report.fabret import bench_of
from tocsin_lab.bench.report.outcome import Experiment, Figure, Finding, Outcome, Row, Scale, series
from tocsin_lab.bench.settings import UpdateSetting
from tocsin_lab.bench.steps import Progress, Steps
from tocsin_lab.workloads.ranges import Ranges

_SIZES = (10_000, 30_000, 100_000, 300_000)
_LOOKED_UP = (1_000, 10_000, 100_000, 1_000_000)
_MET = 10
_GRID = 1_000_000
_ENGINES = ("fastint", "counting", "tree", "auto")
_UPDATED = ("fastint", "dynamic", "auto")
_CHEAPER = 10
_COLUMNS = (
    "update_us",
    "update_delay_us",
    "resubscribe_us",
    "resubscribe_delay_us",
    "ratio",
    "delay_ratio",
    "index_update_us",
    "index_resubscribe_us",
    "index_ratio",
    "index_parametric_us",
    "index_parametric_ratio",
    "parametric_us",
    "parametric_delay_us",
    "parametric_ratio",
)


def matching(scale: Scale, progress: Progress | None = None) -> Outcome:
    """Matching time and memory against subscriptions, on trading."""
    sizes = scale.sizes(*_SIZES)
    steps = Steps(progress, len(sizes) * len(_ENGINES))
    rows: list[Row] = []
    for engine in _ENGINES:
        steps.start(f"M, {engine}")
        bench = bench_of(workload("M"), engine, scale)
        for size in sizes:
            bench.fill(size)
            rows.append(
                {
                    "engine": engine,
                    "subscriptions": size,
                    "us_per_event": round(bench.microseconds(), 2),
                    "bytes": bench.matcher.nbytes,
                    "matches_per_event": round(bench.matches_per_event(), 1),
                }
            )
            steps.finish()
        del bench
    title = "Matching time against subscriptions, M"
    lines = series(rows, "subscriptions", "us_per_event", "engine")
    plot = Plot(title, "subscriptions", "µs an event", lines, x_log=True, y_log=True)
    text = "An event of M matches about a third of a percent of the subscriptions."
    last = {
        row["engine"]: float(row["us_per_event"])
        for row in rows
        if row["subscriptions"] == sizes[-1]
    }
    finding = Finding(
        "FASTINT is faster than counting",
        f"{last['counting'] / last['fastint']:.2f} times at {sizes[-1]:,}",
        last["fastint"] < last["counting"] if scale.is_telling else None,
    )
    return Outcome((Figure("jayaram-2015-matching", title, text, tuple(rows), plot),), (finding,))


def looking_up(scale: Scale, progress: Progress | None = None) -> Outcome:
    """The cost of a look-up, where the number of matches stays the same."""
    sizes = scale.sizes(*_LOOKED_UP)
    steps = Steps(progress, len(sizes))
    rows: list[Row] = []
    for size in sizes:
        steps.start(f"{size:,} ranges")
        width = max(round(_GRID * _MET / size), 1) / _GRID
        bench = bench_of(Ranges("L", 1, 1, 1, width), "fastint", scale)
        bench.fill(size)
        us, met = bench.microseconds(), bench.matches_per_event()
        rows.append(
            {
                "engine": "fastint",
                "subscriptions": size,
                "us_per_event": round(us, 3),
                "matches_per_event": round(met, 2),
            }
        )
        steps.finish()
    title = "A look-up against ranges, ten of which are met"
    lines = series(rows, "subscriptions", "us_per_event", "engine")
    plot = Plot(title, "ranges", "µs an event", lines, x_log=True)
    sizes_and_times = [(float(r["subscriptions"]), float(r["us_per_event"])) for r in rows]
    grown = exponent(*zip(*sizes_and_times, strict=True))
    finding = Finding(
        "A look-up costs about the logarithm of the number of ranges",
        f"time N^{grown:.2f}; {sizes_and_times[-1][1] / sizes_and_times[0][1]:.1f} times for "
        f"{sizes_and_times[-1][0] / sizes_and_times[0][0]:,.0f} times as many",
        grown < 0.35 if scale.is_telling and not math.isnan(grown) else None,
    )
    return Outcome((Figure("jayaram-2015-look-up", title, "", tuple(rows), plot),), (finding,))


def updating(scale: Scale, progress: Progress | None = None) -> Outcome:
    """A parametric update against unsubscribing and subscribing again, on trading and highway."""
    n, cases = scale.size(1_000_000), [(name, engine) for engine in _UPDATED for name in "MH"]
    steps = Steps(progress, len(cases))
    rows: list[Row] = []
    for name, engine in cases:
        steps.start(f"{name}, {engine}")
        figures = update.run(UpdateSetting(n, 200, engine, name, scale.seed))
        times = {column: float(figures[column]) for column in _COLUMNS if column in figures}
        rows.append({"workload": name, "engine": engine, "subscriptions": n, **times})
        steps.finish()
    title = f"A parametric update against re-subscription, {n:,} subscriptions"
    text = (
        "The delay is that of the change and of the first match after it, over a quiet match. A "
        "change brings its condition into normal form; the index alone is what the engine takes. "
        "Parametric is the interface of fastint, which moves bounds and reads no condition."
    )
    measured = [row for row in rows if "parametric_ratio" in row]
    ratios = [
        f"{row['workload']}: {row['index_parametric_ratio']} times in the index, "
        f"{row['parametric_ratio']} times in all"
        for row in measured
    ]
    is_cheaper = all(float(row["index_parametric_ratio"]) >= _CHEAPER for row in measured)
    finding = Finding(
        "Moving bounds in the index costs a tenth of deleting and inserting",
        "; ".join(ratios),
        is_cheaper if scale.is_full else None,
    )
    return Outcome((Figure("jayaram-2015-updates", title, text, tuple(rows)),), (finding,))


EXPERIMENTS = (
    Experiment("matching", matching),
    Experiment("look-up", looking_up),
    Experiment("updates", updating),
)
