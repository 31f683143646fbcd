"""How matching depends on the number of subscriptions.

Enters: a setting of `bench.match` and several numbers of subscriptions. Leaves: a dictionary
ready for JSON with the figures of each size. Each size is measured by a process of its own, so that
its memory is its own. This module, run as a program, is that process: it takes a setting as JSON
and prints the figures.

Fabret et al., section 6.2.1: there the matching time of the dynamic algorithm does not depend on
the number of subscriptions. `ratio` says how near we come: the events a second of the largest size
over those of the smallest.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tocsin.errors import ArgumentError, TocsinError
from tocsin.matcher import Matcher
from tocsin.workloads import workload
from tocsin_lab.bench import match
from tocsin_lab.bench.load import check_setting
from tocsin_lab.bench.settings import MatchSetting, ScaleSetting
from tocsin_lab.bench.steps import Progress, Steps

_REFUSED = 2
_SHARED = ("machine", "versions", "workload", "engine", "seed", "threads", "repeats")
"""Settings that are the same for all sizes."""


def run(setting: ScaleSetting, progress: Progress | None = None) -> dict[str, Any]:
    """Measure every size, the smallest first, and return the figures.

    Raises AssertionError when an answer is wrong.
    """
    if not setting.subscriptions:
        raise ArgumentError("--subscriptions takes numbers with commas between them, at least one")
    settings = [setting.of_size(n) for n in sorted(set(setting.subscriptions))]
    for each in settings:
        check_setting(each)
    workload(setting.workload)
    Matcher(engine=setting.engine)  # refuses an unknown one
    steps = Steps(progress, len(settings))
    results = []
    for each in settings:
        steps.start(f"{each.subscriptions:,} subscriptions")
        results.append(_run_apart(each))
        steps.finish()
    return {
        "benchmark": "scale",
        **{name: results[0][name] for name in _SHARED},
        "sizes": [
            {name: value for name, value in result.items() if name not in _SHARED}
            for result in results
        ],
        "ratio": round(results[-1]["events_per_s"] / results[0]["events_per_s"], 4),
    }


def _run_apart(setting: MatchSetting) -> dict[str, Any]:
    """Measure one size in a process of its own."""
    command = [sys.executable, "-m", "tocsin_lab.bench.scale", json.dumps(asdict(setting))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, said = process.communicate()
        except BaseException:  # an interruption, mostly: the figures have no reader
            process.kill()
            raise
    if process.returncode == _REFUSED:
        raise ArgumentError(said.strip())
    if process.returncode == -signal.SIGKILL:
        raise ArgumentError(
            f"the process with {setting.subscriptions:,} subscriptions was killed; perhaps they "
            "take more memory than there is"
        )
    if process.returncode:
        raise AssertionError(f"{setting.subscriptions:,} subscriptions:\n{said.strip()}")
    figures: dict[str, Any] = json.loads(printed)
    return figures


def render(result: Mapping[str, Any]) -> str:
    """Return the figures as a plain table."""
    lines = [
        f"{result['workload']}, engine {result['engine']}, {result['threads']} thread(s)",
        f"{'subscriptions':>13}{'events/s':>12}{'bytes each':>12}{'load s':>9}{'build s':>9}"
        f"{'peak MB':>10}{'ratio':>9}{'keyed':>9}",
    ]
    for size in result["sizes"]:
        against = [_or_dash(size[name]) for name in ("ratio", "ratio_keyed")]
        lines.append(
            f"{size['subscriptions']:>13,}{size['events_per_s']:>12,.0f}"
            f"{size['bytes_per_subscription']:>12,}{size['load_s']:>9.2f}{size['build_s']:>9.2f}"
            f"{size['peak_rss_mb']:>10,.0f}{against[0]:>9}{against[1]:>9}"
        )
    facts = result["machine"]
    lines += [
        f"largest over smallest: {result['ratio']} of the events/s",
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB; "
        + ", ".join(f"{name} {number}" for name, number in result["versions"].items()),
    ]
    return "\n".join(lines)


def _or_dash(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:,}"


def _main() -> None:
    try:
        figures = match.run(MatchSetting(**json.loads(sys.argv[1])))
    except TocsinError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(_REFUSED) from None
    sys.stdout.write(json.dumps(figures))


if __name__ == "__main__":
    _main()
