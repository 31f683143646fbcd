"""Rows of subscription and event files that are set aside, and the loading of the others.

Enters: a subscription file and a matcher. Leaves: the matcher with all rows that are good, the
tables of these, warnings, and a `Quarantine` with the place, reason and text of the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from tocsin.cli.console import Progress
from tocsin.cli.subscription_files import SubscriptionFile
from tocsin.matcher import Matcher

MAX_SHOWN = 20
"""How many bad rows are listed on standard error."""


@dataclass
class Quarantine:
    """The rows set aside: counted, the first of them kept, all of them written if wanted."""

    stream: IO[bytes] | None = None
    n_rows: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, path: Path, place: str, number: int, reason: str, original: str) -> None:
        """Set a row aside."""
        self.n_rows += 1
        if len(self.shown) < MAX_SHOWN:
            self.shown.append(f"{path}: {place} {number}: {reason}")
        if self.stream is not None:
            facts = {"file": str(path), place: number, "reason": reason, "original": original}
            self.stream.write(json.dumps(facts, ensure_ascii=False).encode() + b"\n")

    def listing(self) -> str:
        """Return the rows as lines of text; the last says how many were left out."""
        more = self.n_rows - len(self.shown)
        return "\n".join([*self.shown, f"… and {more:,} more"] if more else self.shown)


def load_file(
    matcher: Matcher,
    file: SubscriptionFile,
    quarantine: Quarantine,
    progress: Progress,
    warnings: list[str],
    *,
    replaces: bool = False,
) -> Iterator[tuple[pa.Table, str | None]]:
    """Subscribe all good rows of a file; yield them as tables, with the text of parameters.

    Texts of what is suspect about them are added to `warnings`. `replaces`: ids may be taken.
    """
    load = matcher.put_many if replaces else matcher.subscribe_many
    for part in file:

        def show(n_read: int, before: float = file.fraction) -> None:
            progress.show("subscriptions", before, note=f"{len(matcher) + n_read:,}")

        report = load(part.table, where=part.where, on_error="quarantine", progress=show)
        warnings += map(str, report.warnings)
        for bad in report.bad:
            text = part.where if part.where is not None else part.table["where"][bad.row].as_py()
            place = int(part.places[bad.row])
            quarantine.add(file.path, file.place, place, bad.reason, str(text))
        progress.show("subscriptions", file.fraction, note=f"{len(matcher):,}")
        is_good = np.ones(part.table.num_rows, np.bool_)
        is_good[[bad.row for bad in report.bad]] = False
        yield (part.table.filter(pa.array(is_good)) if report.bad else part.table), part.where
    for line in sorted(file.bad):
        quarantine.add(file.path, file.place, line.line, line.reason, line.original)
