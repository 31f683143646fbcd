"""Run every scenario with a fault at every call of the file layer.

Usage: python -m tests.faults [PART OF A NAME] [--every N]

Prints a line for each scenario and kind of fault, and what went wrong; exits 1 if anything did.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from tests.faults.scenarios import SCENARIOS, Scenario, kinds, n_calls, run


def main() -> int:
    """Run the scenarios that are asked for; return how many runs went wrong, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--every", type=int, default=1, help="run every so many-th call only")
    options = parser.parse_args()
    n_wrong = 0
    with tempfile.TemporaryDirectory() as root:
        for scenario in SCENARIOS:
            if options.name in scenario.name:
                n_wrong += run_all(scenario, Path(root), options.every)
    return min(n_wrong, 1)


def run_all(scenario: Scenario, root: Path, every: int) -> int:
    """Run a scenario with every fault at every call; print and return how many went wrong."""
    total = n_calls(scenario, root / "count")
    n_wrong = 0
    for fault, forever in kinds(scenario):
        wrong = []
        for n in range(0, total, every):
            try:
                run(scenario, root / f"{fault}-{forever}-{n}", n, fault, forever)
            except Exception:
                wrong.append((n, traceback.format_exc()))
        when = "from call n on" if forever else "at call n"
        print(f"{scenario.name}: {fault} {when}: {total} calls, {len(wrong)} wrong", flush=True)
        for n, trace in wrong[:3]:
            print(f"  n = {n}\n{trace}")
        n_wrong += len(wrong)
    return n_wrong


if __name__ == "__main__":
    sys.exit(main())
