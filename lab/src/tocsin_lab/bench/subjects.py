"""How long publications take to insert and update, by how much there is: the figures of a paper.

Enters: numbers of publications and subscriptions, a seed. Leaves: a dictionary ready for JSON, and
plots. After Leung and Jacobsen, section 7 (figures 11 to 14): a space of 50 dimensions, values from
0 to 99; a publication has 20 constraints where it is inserted and 25 where it is updated, a
subscription two. An update changes all 25, to random values or each by one. The paper does not say
what the constraints of its subscriptions are; ours are ranges between two random values.

In addition to the paper: updates of one attribute; batches; a compiled scan of all subscriptions,
in the same run; and numbers of subscriptions up to a million, with as many bounds crossed by an
update as before. Times are CPU time of one thread, so that they mean the same on a busy machine; a
single call is timed by itself, a batch as a whole. Before anything is timed, the relation of a
sample is checked pair by pair.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.errors import ArgumentError
from tocsin.model import EventType
from tocsin.subjects.arrays import RowUpdates
from tocsin.subjects.object_rows import NO_MASK
from tocsin.subjects.space import SubjectSpace
from tocsin.subjects.state import State
from tocsin_lab.bench.machine import machine, one_core, peak_rss_mb, versions
from tocsin_lab.bench.plot import Plot, Series
from tocsin_lab.bench.plot import render as render_plot
from tocsin_lab.bench.settings import SubjectsSetting
from tocsin_lab.bench.steps import Progress, Steps

DIMENSIONS = 50
INSERTED = 20
UPDATED = 25
VALUES = 100
_NAMES = [f"d{i}" for i in range(DIMENSIONS)]
_SINGLE = 200
_BATCH = 2000
_BATCH_RANDOM = 200


class Paper:
    """The paper's publications and subscriptions; values lie below `values`."""

    def __init__(self, seed: int, values: int = VALUES) -> None:
        self.random = np.random.Generator(np.random.Philox(seed))
        self.values = values

    def texts(self, n: int) -> pa.Table:
        """Return n subscriptions of two ranges each, as columns `id` and `where`."""
        dims = np.argsort(self.random.random((n, DIMENSIONS), np.float32), axis=1)[:, :2]
        return self._texts(dims, np.sort(self.random.integers(0, self.values, (n, 2, 2)), axis=2))

    @staticmethod
    def _texts(dims: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.Table:
        where = [
            f"d{a} BETWEEN {ends_a[0]} AND {ends_a[1]} AND d{b} BETWEEN {ends_b[0]} AND {ends_b[1]}"
            for (a, b), (ends_a, ends_b) in zip(dims.tolist(), ends.tolist(), strict=True)
        ]
        return pa.table({"id": np.arange(len(where)), "where": where})

    def matrix(self, n: int, constraints: int) -> NDArray[np.int64]:
        """Return n publications as rows, -1 where they have nothing."""
        result = np.full((n, DIMENSIONS), -1)
        order = np.argsort(self.random.random((n, DIMENSIONS), np.float32), axis=1)
        rows = np.arange(n)[:, None]
        chosen = order[:, :constraints]
        result[rows, chosen] = self.random.integers(0, self.values, chosen.shape)
        return result

    def moved(self, matrix: NDArray[np.int64], is_random: bool) -> NDArray[np.int64]:
        """Return publications with all their values changed: to random ones, or by one."""
        if is_random:
            fresh = self.random.integers(0, self.values, matrix.shape)
        else:
            step = self.random.integers(0, 2, matrix.shape) * 2 - 1
            fresh = matrix + np.where(matrix + step < 0, 1, step)
            fresh = np.where(fresh >= self.values, matrix - 1, fresh)
        return np.where(matrix < 0, -1, fresh)


def table_of(matrix: NDArray[np.int64], keys: NDArray[np.int64]) -> pa.Table:
    """Return rows as a table with a column of keys."""
    columns = {name: pa.array(matrix[:, i], mask=matrix[:, i] < 0) for i, name in enumerate(_NAMES)}
    return pa.table({"key": keys, **columns})


def mappings_of(matrix: NDArray[np.int64]) -> list[dict[str, int]]:
    """Return rows as mappings."""
    return [{_NAMES[i]: int(row[i]) for i in np.flatnonzero(row >= 0)} for row in matrix]


def make_space(setting: SubjectsSetting, paper: Paper, subscriptions: int) -> SubjectSpace:
    """Return a space with a number of subscriptions."""
    event_type = EventType("paper", dict.fromkeys(_NAMES, int))
    space = SubjectSpace(event_type, missing=setting.missing)
    space.subscribe_many(paper.texts(subscriptions), quiet=True)
    return space


def run(setting: SubjectsSetting | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Measure and return the figures; raises AssertionError when an answer is wrong."""
    setting = setting or SubjectsSetting()
    if not setting.publications or not setting.subscriptions:
        raise ArgumentError("this takes some publications and some subscriptions")
    steps = Steps(progress, len(setting.subscriptions) * 2 + len(setting.scale) + 1)
    with one_core():
        steps.start("check a sample")
        _check(setting)
        steps.finish()
        grid = []
        for n_subs in setting.subscriptions:
            steps.start(f"{n_subs:,} subscriptions")
            grid += _grid(setting, n_subs, INSERTED, _insert_times, steps)
            grid += _grid(setting, n_subs, UPDATED, _update_times, steps)
        curve = []
        for n_subs in setting.scale:
            steps.start(f"{n_subs:,} subscriptions, as many crossed")
            curve.append(_scaled(setting, n_subs))
            steps.finish()
    result = {
        "missing": setting.missing,
        "seed": setting.seed,
        "grid": grid,
        "scale": curve,
        "peak_rss_mb": peak_rss_mb(),
        "machine": machine(),
        "versions": versions(),
    }
    if setting.plots is not None:
        write_plots(result, Path(setting.plots))
    return result


def _check(setting: SubjectsSetting) -> None:
    """Compare what updates tell with the relation before and after, pair by pair."""
    paper = Paper(setting.seed + 1)
    space = make_space(setting, paper, 300)
    matrix = paper.matrix(40, UPDATED)
    keys = np.arange(40)
    space.publish_many(table_of(matrix, keys))
    for is_random in (True, False):
        before = {key: set(space.subscriptions_of(key)) for key in keys.tolist()}
        matrix = paper.moved(matrix, is_random)
        transitions = space.update_publications(table_of(matrix, keys))
        after: dict[int, set[Any]] = {key: set() for key in keys.tolist()}
        for id in range(300):
            for key in space.publications_of(id):
                after[int(key)].add(id)
        pairs = {(t.kind.value, t.key, t.subscription) for t in transitions}
        expected = {("LEAVE", k, i) for k in before for i in before[k] - after[k]}
        assert pairs == expected | {("ENTER", k, i) for k in before for i in after[k] - before[k]}


Times = Callable[[SubjectSpace, Paper, NDArray[np.int64]], dict[str, Any]]


def _grid(
    setting: SubjectsSetting, n_subs: int, constraints: int, measure: Times, steps: Steps
) -> list[dict[str, Any]]:
    """Measure with more and more publications."""
    paper = Paper(setting.seed)
    space = make_space(setting, paper, n_subs)
    rows = []
    matrix = np.empty((0, DIMENSIONS), np.int64)
    for n_pubs in sorted(setting.publications):
        more = paper.matrix(n_pubs - len(matrix), constraints)
        for first in range(0, len(more), 10_000):
            part = more[first : first + 10_000]
            keys = len(matrix) + np.arange(first, first + len(part))
            space.publish_many(table_of(part, keys), quiet=True)
        matrix = np.concatenate([matrix, more])
        figures = measure(space, paper, matrix)
        rows.append({"publications": n_pubs, "subscriptions": n_subs, **figures})
    steps.finish()
    return rows


def _each(calls: Sequence[Callable[[], Any]]) -> tuple[float, int]:
    """Return the median microseconds of a call, and how many transitions all had."""
    gc.collect()
    times, n_transitions = [], 0
    for call in calls:
        started = thread_time_ns()
        transitions = call()
        times.append(thread_time_ns() - started)
        n_transitions += len(transitions)
    return round(float(np.median(times)) / 1000, 2), n_transitions


def _insert_times(space: SubjectSpace, paper: Paper, matrix: NDArray[np.int64]) -> dict[str, Any]:
    """Time single inserts, and a batch of them; insertions are undone."""
    fresh = paper.matrix(_SINGLE, INSERTED)
    mappings = mappings_of(fresh)
    calls = [
        lambda key=f"new {i}", values=values: space.publish(key, values)
        for i, values in enumerate(mappings)
    ]
    calls[0]()
    single, n_transitions = _each(calls)
    space.retract_many([f"new {i}" for i in range(_SINGLE)])
    table = table_of(fresh, np.arange(_SINGLE) + 10**9)
    batch, _ = _each([lambda: space.publish_many(table)])
    space.retract_many((np.arange(_SINGLE) + 10**9).tolist())
    scan, _ = _each([lambda: _scan_rows(space.publication_table.state)] * 3)
    return {
        "figure": "insert",
        "single_us": single,
        "batch_us": round(batch / _SINGLE, 2),
        "scan_us": scan,
        "transitions": round(n_transitions / _SINGLE, 1),
    }


def _scan_rows(state: State) -> Any:
    """Find what one row matches by looking at every subscription."""
    return _unlisted(state, lambda: state.match(state.object_rows.cells, np.zeros(1, np.int32)).sub)


def _unlisted(state: State, call: Callable[[], Any]) -> Any:
    """Call something as if no box stood in a list."""
    segments, state.box_index.segments = state.box_index.segments, []
    try:
        return call()
    finally:
        state.box_index.segments = segments


def _update_times(space: SubjectSpace, paper: Paper, matrix: NDArray[np.int64]) -> dict[str, Any]:
    figures: dict[str, Any] = {"figure": "update"}
    for name, is_random in (("random", True), ("incremental", False)):
        n = min(_SINGLE, len(matrix))
        chosen = paper.random.choice(len(matrix), n, replace=False)
        fresh = paper.moved(matrix[chosen], is_random)
        calls = [
            lambda key=int(key), values=values: space.update_publication(key, values)
            for key, values in zip(chosen, mappings_of(fresh), strict=True)
        ]
        matrix[chosen] = fresh
        figures[f"{name}_us"], n_transitions = _each(calls)
        figures[f"{name}_transitions"] = round(n_transitions / n, 1)
        figures[f"{name}_batch_us"] = _batch_time(space, paper, matrix, is_random)
        figures[f"{name}_scan_us"] = _scan_time(space, paper, matrix, is_random)
    figures["one_batch_us"], figures["one_transitions"] = _one_time(space, paper, matrix)
    figures["one_us"] = _one_single(space, paper, matrix)
    figures["random_over_incremental"] = round(
        figures["random_batch_us"] / max(figures["incremental_batch_us"], 1e-9), 2
    )
    return figures


def _batch_time(
    space: SubjectSpace, paper: Paper, matrix: NDArray[np.int64], is_random: bool
) -> float:
    n = min(_BATCH_RANDOM if is_random else _BATCH, len(matrix))
    chosen = paper.random.choice(len(matrix), n, replace=False)
    fresh = paper.moved(matrix[chosen], is_random)
    matrix[chosen] = fresh
    table = table_of(fresh, chosen)
    return round(_each([lambda: space.update_publications(table, nulls="keep")])[0] / n, 3)


def _scan_time(
    space: SubjectSpace, paper: Paper, matrix: NDArray[np.int64], is_random: bool
) -> float:
    """Time what an update would take by looking at every subscription; nothing is changed."""
    fresh = paper.moved(matrix[:1], is_random)
    publications = space.publication_table
    cells = publications.dimensions.encode(0, mappings_of(fresh)[0])
    updates = RowUpdates(
        np.array([publications.keys.row_of[0]], np.int32),
        np.array(list(cells), np.int32),
        np.array(list(cells.values()), np.uint64).reshape(-1, 1, 3),
        NO_MASK,
    )
    state = publications.state
    return _each([lambda: _unlisted(state, lambda: state.cross(updates).sub)] * 3)[0]


def _one_time(space: SubjectSpace, paper: Paper, matrix: NDArray[np.int64]) -> tuple[float, float]:
    """Time updates of one attribute by one, in a batch of one column."""
    chosen, dim, values = _one_step(paper, matrix, _BATCH)
    table = pa.table({"key": chosen, _NAMES[dim]: values})
    took, n_transitions = _each([lambda: space.update_publications(table)])
    return round(took / len(chosen), 3), round(n_transitions / len(chosen), 2)


def _one_step(
    paper: Paper, matrix: NDArray[np.int64], n: int
) -> tuple[NDArray[np.int64], int, NDArray[np.int64]]:
    """Return publications that have an attribute, that one, and its values moved by one."""
    dim = int(np.argmax(np.count_nonzero(matrix >= 0, axis=0)))
    having = np.flatnonzero(matrix[:, dim] >= 0)
    chosen = paper.random.choice(having, min(n, len(having)), replace=False)
    values = paper.moved(matrix[chosen][:, [dim]], False)[:, 0]
    matrix[chosen, dim] = values
    return chosen, dim, values


def _one_single(space: SubjectSpace, paper: Paper, matrix: NDArray[np.int64]) -> float:
    chosen, dim, values = _one_step(paper, matrix, _SINGLE)
    calls = [
        lambda key=key, value=value: space.update_publication(key, {_NAMES[dim]: value})
        for key, value in zip(chosen.tolist(), values.tolist(), strict=True)
    ]
    return _each(calls)[0]


def _scaled(setting: SubjectsSetting, n_subs: int) -> dict[str, Any]:
    """Measure incremental updates where values lie as densely among the bounds as with 10,000."""
    values = max(VALUES, VALUES * n_subs // 10_000)
    paper = Paper(setting.seed, values)
    space = make_space(setting, paper, n_subs)
    n = 2000
    matrix = paper.matrix(n, UPDATED)
    space.publish_many(table_of(matrix, np.arange(n)), quiet=True)
    _batch_time(space, paper, matrix, False)
    took = min(_batch_time(space, paper, matrix, False) for _ in range(3))
    one = min(_one_time(space, paper, matrix)[0] for _ in range(3))
    return {
        "subscriptions": n_subs,
        "values": values,
        "crossed": round(2 * 2 * n_subs / DIMENSIONS / values * UPDATED, 1),
        "incremental_batch_us": took,
        "one_batch_us": one,
        "scan_us": _scan_time(space, paper, matrix, False),
    }


def _lines(series: Mapping[str, Any]) -> tuple[Series, ...]:
    return tuple(Series(name, tuple(sorted(points))) for name, points in series.items())


def write_plots(result: Mapping[str, Any], folder: Path) -> None:
    """Write the paper's figures as SVG files."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = [
        ("figure-11-insert", "insert", "single_us", "Inserting publications"),
        ("figure-12-random", "update", "random_us", "Updating publications (random)"),
        (
            "figure-13-incremental",
            "update",
            "incremental_us",
            "Updating publications (by one)",
        ),
    ]
    for name, figure, field, title in figures:
        series: dict[str, list[tuple[float, float]]] = {}
        for row in result["grid"]:
            if row["figure"] == figure:
                label = f"{row['publications']:,} publications"
                series.setdefault(label, []).append((row["subscriptions"], row[field]))
        plot = render_plot(Plot(title, "subscriptions", "µs", _lines(series), True, True))
        (folder / f"{name}.svg").write_text(plot)
    matches = {
        "random": [(r["random_transitions"], r["random_us"]) for r in _updates(result)],
        "incremental": [
            (r["incremental_transitions"], r["incremental_us"]) for r in _updates(result)
        ],
    }
    by_matches = Plot("Update time by matches", "transitions an update", "µs", _lines(matches))
    plot = render_plot(by_matches)
    (folder / "figure-14-matches.svg").write_text(plot)
    scale = {
        "all 25 attributes": [
            (row["subscriptions"], row["incremental_batch_us"]) for row in result["scale"]
        ],
        "one attribute": [(row["subscriptions"], row["one_batch_us"]) for row in result["scale"]],
        "scan": [(row["subscriptions"], row["scan_us"]) for row in result["scale"]],
    }
    title = "Incremental updates, as many bounds crossed"
    plot = render_plot(Plot(title, "subscriptions", "µs", _lines(scale), True, True))
    (folder / "scale.svg").write_text(plot)


def _updates(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in result["grid"] if row["figure"] == "update"]


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as plain tables."""
    lines = ["Figure 11: inserting a publication of 20 constraints, CPU µs"]
    lines.append(_row("publications", "subscriptions", "single", "batch", "scan", "matches"))
    for row in result["grid"]:
        if row["figure"] == "insert":
            values = (row[k] for k in ("single_us", "batch_us", "scan_us", "transitions"))
            lines.append(_row(row["publications"], row["subscriptions"], *values))
    for name, number in (("random", 12), ("incremental", 13)):
        lines += ["", f"Figure {number}: updating all 25 constraints, {name}, CPU µs"]
        lines.append(_row("publications", "subscriptions", "single", "batch", "scan", "matches"))
        for row in _updates(result):
            fields = (f"{name}_us", f"{name}_batch_us", f"{name}_scan_us", f"{name}_transitions")
            lines.append(_row(row["publications"], row["subscriptions"], *(row[k] for k in fields)))
    lines += ["", "One attribute, by one; and random over incremental"]
    lines.append(_row("publications", "subscriptions", "single", "batch", "ratio", "matches"))
    for row in _updates(result):
        fields = ("one_us", "one_batch_us", "random_over_incremental", "one_transitions")
        lines.append(_row(row["publications"], row["subscriptions"], *(row[k] for k in fields)))
    lines += ["", "Incremental updates in batches, as many bounds crossed, CPU µs"]
    lines.append(_row("subscriptions", "crossed", "all 25", "one", "scan"))
    for row in result["scale"]:
        columns = ("subscriptions", "crossed", "incremental_batch_us", "one_batch_us", "scan_us")
        lines.append(_row(*(row[k] for k in columns)))
    facts = result["machine"]
    versions_ = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines += ["", f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB; {versions_}"]
    return "\n".join(lines)


def _row(*cells: object) -> str:
    return "".join(f"{c:>15,}" if isinstance(c, int | float) else f"{c:>15}" for c in cells)
