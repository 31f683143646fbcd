"""Zhao and Wu 2011: what TAMA costs, how often it is wrong, and what its tables take.

Zhao and Wu, "Towards Approximate Event Processing in a Large-Scale Content-Based Network", ICDCS
2011, section V, figures 6 to 12. Enters: a scale. Leaves: outcomes, on workload T and its kin.

Deviations. The paper compares with Siena, we with `counting` (the algorithm that Siena extends) and
`auto`. With 1,000 attributes, 100 of them in an event, nothing matches that has more than two
ranges, so rates of error are measured with 50 attributes, all in every event, and at level 14: at
the paper's level 20 the cells are as small as the steps between our values, and nothing is wrong.
Figures 8 and 9 are surfaces there; here a line for each number of ranges. What is coded is decoded
in Python.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.broker.overlay.coding import decode_range
from tocsin.encode.events import to_batch
from tocsin.matcher import Matcher
from tocsin.workloads import workload
from tocsin_lab.bench.plot import Plot, Series
from tocsin_lab.bench.report.fabret import bench_of
from tocsin_lab.bench.report.outcome import Experiment, Figure, Finding, Outcome, Row, Scale, series
from tocsin_lab.bench.report.timing import MICRO, Bench, seconds
from tocsin_lab.bench.steps import Progress, Steps
from tocsin_lab.engines.tama.cells import Items
from tocsin_lab.engines.tama.table import Portion
from tocsin_lab.workloads.ranges import Ranges

_LEVELS = 14
"""The paper's effective level for ranges of width 0.01."""
_IN_A_BATCH = 4_000
"""A batch of a thousand columns costs something by itself, however few its events are."""
_SIZES = (1_000, 10_000, 100_000, 1_000_000)
_PAPER_MS = 3.23
_ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "tama": ("tama", {"levels": _LEVELS}),
    "tama, exact": ("tama", {}),
    "counting": ("counting", {}),
    "auto": ("auto", {}),
}
_STORED = 20_000
_INTERFACES = 10
_FEW_EVENTS = 500
_RATED_EVENTS = 2_000
_ENOUGH = 1_000
"""How much must be found for a share of it to say something."""
_CODED = 300
"""Of how many subscriptions the coded form is timed."""


def matching(scale: Scale, progress: Progress | None = None) -> Outcome:
    """Figures 6 and 12: time and memory against constraints."""
    sizes = scale.sizes(*_SIZES)
    steps = Steps(progress, len(sizes) * len(_ENGINES))
    rows: list[Row] = []
    for name, (engine, options) in _ENGINES.items():
        steps.start(f"T, {name}")
        bench = bench_of(workload("T"), engine, scale, **options)
        if scale.is_telling:
            bench.fewest = _IN_A_BATCH
        for size in sizes:
            bench.fill(size)
            table = bench.engine.table_nbytes if engine == "tama" else bench.matcher.nbytes
            rows.append(
                {
                    "engine": name,
                    "constraints": 20 * size,
                    "us_per_event": round(bench.microseconds(), 2),
                    "bytes": table,
                    "bytes_per_range": round(table / (10 * size), 1),
                }
            )
            steps.finish()
        del bench
    return Outcome(_matching_figures(rows), _matching_findings(scale, rows))


def _matching_figures(rows: list[Row]) -> tuple[Figure, ...]:
    title = "Matching time against primitive constraints, T"
    lines = series(rows, "constraints", "us_per_event", "engine")
    time = Plot(title, "primitive constraints", "µs an event", lines, x_log=True, y_log=True)
    own = [row for row in rows if str(row["engine"]).startswith("tama")]
    space = series(own, "constraints", "bytes", "engine")
    raw = Series(
        "raw", tuple((float(r["constraints"]), 8.0 * float(r["constraints"])) for r in own)
    )
    title_2 = "Memory of the matching table against primitive constraints, T"
    memory = Plot(title_2, "primitive constraints", "bytes", (*space, raw), x_log=True, y_log=True)
    text = "Figure 6. Ten ranges of width 0.01 are twenty primitive constraints."
    text_2 = "Figure 12. Cells and ids in the table; raw is two doubles for a range."
    return (
        Figure("zhao-2011-matching", title, text, tuple(rows), time),
        Figure("zhao-2011-memory", title_2, text_2, tuple(own), memory),
    )


def _matching_findings(scale: Scale, rows: list[Row]) -> tuple[Finding, ...]:
    def last(engine: str) -> Row:
        return [row for row in rows if row["engine"] == engine][-1]

    ours = float(last("tama")["us_per_event"]) / 1000
    each = float(last("tama")["bytes_per_range"])
    faster = float(last("counting")["us_per_event"]) / float(last("tama")["us_per_event"])
    return (
        Finding(
            "At 20 million constraints an event takes a tenth of the paper's 3.23 ms",
            f"{ours:.3f} ms at {int(last('tama')['constraints']):,} constraints",
            ours * 10 <= _PAPER_MS if scale.is_full else None,
        ),
        Finding("TAMA is faster than counting", f"{faster:.1f} times", faster > 1),
        Finding(
            "The table takes at most four times the raw ranges",
            f"{each:.1f} bytes for the 16 of a range",
            each <= 4 * 16 if scale.is_telling else None,
            "An entry takes the paper's eight bytes; the buckets add one or two.",
        ),
    )


def interfaces(scale: Scale, progress: Progress | None = None) -> Outcome:
    """Figure 7: which interfaces an event goes to, with and without dynamic matching."""
    n = scale.size(_STORED)
    settings = {
        "10 ranges of width 0.01": Ranges("T"),
        "10 ranges of width 0.5": Ranges("T", width=0.5),
        "2 ranges of width 0.5, all attributes": Ranges("T", 50, 50, 2, 0.5),
    }
    steps = Steps(progress, len(settings))
    rows: list[Row] = []
    for name, chosen in settings.items():
        steps.start(name)
        bench = bench_of(chosen, "tama", scale, levels=_LEVELS)
        bench.fill(n)
        rows += [{"subscriptions": name, **row} for row in _interface_rows(bench, n, scale)]
        steps.finish()
    title = f"Interface matching, {n:,} subscriptions at {_INTERFACES} interfaces"
    text = (
        "Figure 7. Dynamic matching looks at no deeper level for an interface that is decided. Ten "
        "ranges are hardly ever met by an event with a tenth of the attributes, so that nothing is "
        "decided early; the last rows are ours, with subscriptions that match."
    )
    slow, fast = (float(row["us_per_event"]) for row in rows[-2:])
    finding = Finding(
        "Dynamic matching saves time where much matches",
        f"{slow / fast:.2f} times with two wide ranges",
        fast < slow if scale.is_telling else None,
    )
    return Outcome((Figure("zhao-2011-interfaces", title, text, tuple(rows)),), (finding,))


def _interface_rows(bench: Bench, n: int, scale: Scale) -> list[Row]:
    events = to_batch(bench.events.slice(0, _FEW_EVENTS))
    interface_of = (np.arange(n) % _INTERFACES).astype(np.int32)
    rows: list[Row] = []
    for how, dynamic in (("all levels", False), ("dynamic", True)):
        ask = partial(bench.engine.match_interfaces, events, interface_of, dynamic=dynamic)
        taken = min(seconds(ask) for _ in range(scale.repeats))
        rows.append({"matching": how, "us_per_event": round(MICRO * taken / len(events), 2)})
    return rows


def errors(scale: Scale, progress: Progress | None = None) -> Outcome:
    """Figures 8 and 9: the share of wrong results."""
    counts, widths = (1, 2, 3), (0.01, 0.02, 0.05, 0.1)
    steps = Steps(progress, len(counts) * len(widths))
    rows: list[Row] = []
    for n_ranges in counts:
        for width in widths:
            steps.start(f"{n_ranges} ranges of width {width}")
            rows.append(_wrong(n_ranges, width, scale))
            steps.finish()
    figures = []
    for number, column, what in (
        ("8", "rate", "subscriptions"),
        ("9", "interface_rate", "interfaces"),
    ):
        title = f"What is wrong of the {what} found, against width"
        named = [{**row, "of": f"{row['ranges']} ranges"} for row in rows]
        plot = Plot(title, "width", "share that is wrong", series(named, "width", column, "of"))
        text = f"Figure {number}. Level {_LEVELS}; {scale.size(_STORED):,} subscriptions."
        figures.append(Figure(f"zhao-2011-wrong-{what}", title, text, tuple(rows), plot))
    worst = max(float(row["rate"]) for row in rows)
    falls = all(
        float(a["rate"]) >= float(b["rate"])
        for a, b in pairwise(rows)
        if a["ranges"] == b["ranges"]
    )
    findings = (
        Finding(
            "Wider ranges are wrong less often",
            f"at most {worst:.3%} of the results is wrong",
            falls if scale.is_telling else None,
        ),
        Finding(
            "Interfaces are wrong less often than subscriptions",
            f"at most {max(float(row['interface_rate']) for row in rows):.3%}",
            all(
                float(row["interface_rate"]) <= float(row["rate"])
                for row in rows
                if int(row["found"]) >= _ENOUGH
            )
            if scale.is_telling
            else None,
        ),
    )
    return Outcome(tuple(figures), findings)


def _wrong(n_ranges: int, width: float, scale: Scale) -> Row:
    """Return the share of wrong results, of subscriptions and of interfaces."""
    chosen = Ranges("T", n_attributes=50, n_present=50, n_ranges=n_ranges, width=width)
    n = scale.size(_STORED)
    events = chosen.events(_RATED_EVENTS, scale.seed)
    interface_of = (np.arange(n) % _INTERFACES).astype(np.int32)
    counts: list[int] = []
    reached: list[int] = []
    for levels in (_LEVELS, 0):  # without levels candidates are verified
        matcher = Matcher(chosen.event_type, engine="tama", levels=levels)
        matcher.subscribe_many(chosen.subscription_rows(n, scale.seed))
        matched = matcher.match_batch(events)
        counts.append(matched.n_matches)
        pairs = matched.to_table()
        at, ids = (pairs.column(i).to_numpy() for i in range(2))
        reached.append(len(np.unique(at * _INTERFACES + interface_of[ids])))
    return {
        "ranges": n_ranges,
        "width": width,
        "found": counts[0],
        "rate": (counts[0] - counts[1]) / max(counts[0], 1),
        "interface_rate": (reached[0] - reached[1]) / max(reached[0], 1),
    }


def changes(scale: Scale, progress: Progress | None = None) -> Outcome:
    """Figures 10 and 11: insertion three ways, and deletion."""
    sizes = scale.sizes(1_000, 10_000, 100_000)
    steps = Steps(progress, len(sizes))
    rows: list[Row] = []
    for size in sizes:
        steps.start(f"{size:,} subscriptions")
        rows += _changed(size, scale)
        steps.finish()
    title = "Insertion and deletion against primitive constraints"
    lines = series(rows, "constraints", "us_each", "how")
    plot = Plot(title, "primitive constraints", "µs a subscription", lines, x_log=True, y_log=True)
    text = (
        "Figures 10 and 11. Direct: ranges become cells, then entries; cached: cells are known; "
        f"coded: they are decoded first ({_CODED} subscriptions at the most)."
    )
    by = {row["how"]: float(row["us_each"]) for row in rows[-4:]}
    findings = (
        Finding(
            "Cells that are known are entered sooner than ranges",
            f"{by['direct'] / by['cached']:.1f} times",
            by["cached"] < by["direct"],
        ),
        Finding(
            "Decoding costs less than recomputing the cells",
            f"{by['coded']:.1f} µs a subscription against {by['direct']:.1f} µs",
            by["coded"] < by["direct"],
            "Ranges become cells by the column in compiled code; codes are read one by one in "
            "Python. They save bytes between processes, not time.",
        ),
    )
    return Outcome((Figure("zhao-2011-changes", title, text, tuple(rows), plot),), findings)


def _changed(size: int, scale: Scale) -> list[Row]:
    bench = bench_of(workload("T"), "tama", scale, levels=_LEVELS)
    bench.fill(size)
    engine = bench.engine
    slots, n_trees = np.arange(size), 8 * len(workload("T").event_type.attributes)
    items = engine.items(slots)
    few = min(size, _CODED)
    coded = [engine.coded(dense) for dense in range(few)]
    deleted = pa.array(range(size // 2))
    taken = {
        "direct": seconds(lambda: Portion(slots, n_trees, engine.items(slots))) / size,
        "cached": seconds(lambda: Portion(slots, n_trees, items)) / size,
        "coded": seconds(lambda: Portion(slots[:few], n_trees, _decoded(coded))) / few,
        "deletion": seconds(lambda: bench.matcher.unsubscribe_many(deleted)) / len(deleted),
    }
    return [
        {"how": how, "constraints": 20 * size, "us_each": round(MICRO * each, 3)}
        for how, each in taken.items()
    ]


def _decoded(coded: list[list[tuple[str, bytes]]]) -> Items:
    """Return what subscriptions that came as codes are entered under."""
    rows = [
        (slot, 8 * int(name[1:]), cell, cell, level)
        for slot, ranges in enumerate(coded)
        for name, code in ranges
        for level, cell in decode_range(code)
    ]
    return Items(*np.array(rows, np.int64).T.copy())


EXPERIMENTS = (
    Experiment("figures 6 and 12", matching),
    Experiment("figure 7", interfaces),
    Experiment("figures 8 and 9", errors),
    Experiment("figures 10 and 11", changes),
)
