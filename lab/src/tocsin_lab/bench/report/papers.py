"""The papers and their experiments; `run` measures and writes page and tables.

Enters: a folder, a scale, perhaps one paper. Leaves: `index.html`, a CSV file for each figure,
`findings.csv`, and each plot as an SVG file. A paper is added to `PAPERS`, an experiment to its
paper.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from tocsin.errors import ArgumentError
from tocsin_lab.bench.machine import machine, one_core, versions
from tocsin_lab.bench.plot import render as render_plot
from tocsin_lab.bench.report import adaptivity, aguilera, fabret, jayaram, zhao
from tocsin_lab.bench.report.outcome import PAPER_SIZE, Outcome, Paper, Scale
from tocsin_lab.bench.report.page import Section, finding_rows, render_page, to_csv
from tocsin_lab.bench.steps import Progress

_BYTES_EACH = 800
"""What a subscription takes at the most, in whichever engine, with the tables it is loaded from."""

PAPERS: tuple[Paper, ...] = (
    Paper(
        "aguilera-1999",
        "The matching tree",
        "M. K. Aguilera, R. E. Strom, D. C. Sturman, M. Astley, T. D. Chandra: Matching Events in "
        "a Content-Based Subscription System, PODC 1999.",
        aguilera.EXPERIMENTS,
    ),
    Paper(
        "fabret-2000",
        "Counting, propagation and clustering",
        "F. Fabret, F. Llirbat, A. Jacobsen, J. Pereira, K. Ross, D. Shasha: Efficient Matching "
        "Algorithms for Publish and Subscribe Systems, INRIA RR-4089, 2000.",
        fabret.EXPERIMENTS + adaptivity.EXPERIMENTS,
    ),
    Paper(
        "zhao-2011",
        "TAMA",
        "Y. Zhao, J. Wu: Towards Approximate Event Processing in a Large-Scale Content-Based "
        "Network, ICDCS 2011.",
        zhao.EXPERIMENTS,
    ),
    Paper(
        "jayaram-2015",
        "FASTINT",
        "K. R. Jayaram, W. Wang, P. Eugster: Subscription Normalization for Effective "
        "Content-Based Messaging, IEEE TPDS 2015.",
        jayaram.EXPERIMENTS,
    ),
)


def scale_of_machine(quick: bool = False, largest: int | None = None, seed: int = 0) -> Scale:
    """Return how large the experiments are to be: as in the papers, if memory allows."""
    plain = Scale.quick() if quick else Scale()
    if largest is None and not quick:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        largest = min(PAPER_SIZE, free // _BYTES_EACH)
    return Scale(largest or plain.largest, plain.seconds, plain.repeats, seed)


def chosen_papers(key: str | None) -> tuple[Paper, ...]:
    """Return all papers, or the one with a key.

    Raises `ArgumentError` when there is no such paper.
    """
    if key is None:
        return PAPERS
    papers = tuple(paper for paper in PAPERS if paper.key == key)
    if not papers:
        known = ", ".join(paper.key for paper in PAPERS)
        raise ArgumentError(f"there is no paper {key!r} in the report; choose {known}")
    return papers


def run(
    out: Path, scale: Scale, key: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure, write the files, and return the findings with the names of the files."""
    papers = chosen_papers(key)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"cannot write to {out}: {error.strerror}") from None
    started = perf_counter()
    sections: list[Section] = []
    files: list[str] = []
    with one_core():
        for paper in papers:
            outcomes: list[Outcome] = []
            for experiment in paper.experiments:
                outcomes.append(experiment.run(scale, _named(progress, paper, experiment.name)))
                files += _write_figures(out, outcomes[-1])
                done = [*sections, (paper, outcomes)]
                files_so_far = _write_page(out, done, scale, perf_counter() - started)
            sections.append((paper, outcomes))
    return {
        "report": "papers",
        "largest": scale.largest,
        "findings": finding_rows(sections),
        "files": sorted({*files, *files_so_far}),
        "seconds": round(perf_counter() - started, 1),
        "machine": machine(),
        "versions": versions(),
    }


def _named(progress: Progress | None, paper: Paper, name: str) -> Progress | None:
    """Return a progress that says which paper and figure it is about."""
    if progress is None:
        return None
    show = progress
    return lambda what, done, total: show(f"{paper.key}, {name}: {what}", done, total)


def _write_figures(out: Path, outcome: Outcome) -> list[str]:
    files = []
    for figure in outcome.figures:
        (out / f"{figure.name}.csv").write_text(to_csv(figure.rows))
        files.append(f"{figure.name}.csv")
        if figure.plot is not None:
            (out / f"{figure.name}.svg").write_text(render_plot(figure.plot) + "\n")
            files.append(f"{figure.name}.svg")
    return files


def _write_page(out: Path, sections: Sequence[Section], scale: Scale, spent: float) -> list[str]:
    """Write the page so far, so that an interruption loses only the current experiment."""
    (out / "findings.csv").write_text(to_csv(finding_rows(sections)))
    about = (
        "Each figure of the papers that could be measured again, with the published engines of "
        "Tocsin and its own. Times are processor time on one core, the least of some repeats."
    )
    if not scale.is_full:
        about += (
            f" Sizes are scaled: {scale.largest:,} subscriptions stand for the papers' "
            f"{PAPER_SIZE:,}, so claims about sizes are not judged."
        )
    (out / "index.html").write_text(render_page(sections, about, _facts(scale, spent)))
    return ["findings.csv", "index.html"]


def _facts(scale: Scale, spent: float) -> Mapping[str, str]:
    facts = machine()
    return {
        "processor": f"{facts['cpu']}, {facts['cores']} cores usable, one used",
        "memory": f"{facts['memory_gb']} GB",
        "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
        "largest size": f"{scale.largest:,} subscriptions; seed {scale.seed}",
        "measured": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, in {spent:,.0f} seconds",
    }


def render(result: Mapping[str, Any]) -> str:
    """Return the findings as text."""
    lines = []
    for finding in result["findings"]:
        lines.append(f"{finding['verdict']:<14}{finding['paper']}  {finding['claim']}")
        lines.append(f"{'':<14}     {finding['measured']}")
    return "\n".join([*lines, f"{len(result['files'])} files in {result['seconds']} s"])
