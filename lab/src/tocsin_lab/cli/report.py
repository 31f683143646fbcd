"""`tocsin report`: measures with a progress bar and writes a page."""

from __future__ import annotations

from pathlib import Path

from tocsin_lab.cli.commands import measured


def run_papers(
    out: Path, quick: bool, paper: str | None, largest: int | None, seed: int, as_json: bool
) -> int:
    """Measure what the papers plotted."""
    from tocsin_lab.bench.report import papers

    scale = papers.scale_of_machine(quick, largest, seed)
    return measured(
        lambda show: papers.run(out, scale, paper, progress=show), papers.render, as_json
    )
