"""Matchers of `auto` whose subscriptions are in a given number of segments.

`make` takes the name of an engine, or one of `SEGMENTED`: then nothing is merged, changes end
segments, and a bulk load comes in portions, of which each is a segment.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tocsin.matcher import LoadReport, Matcher
from tocsin.model import EventType

SEGMENTED = {"auto in 2 segments": 2, "auto in many segments": 20}


class Segmented(Matcher):
    """A matcher that keeps what comes in a number of segments."""

    def __init__(self, event_type: EventType | None, n_portions: int, **options: Any) -> None:
        super().__init__(event_type, engine="auto", merges=False, **options)
        self.n_portions = n_portions

    def subscribe(self, *args: Any, **named: Any) -> None:
        super().subscribe(*args, **named)
        if self.n_portions > 2 or len(self) % 7 == 0:
            self.flush()

    def update(self, *args: Any, **named: Any) -> None:
        super().update(*args, **named)
        self.flush()

    def subscribe_many(self, table: Any, where: Any = None, **named: Any) -> LoadReport:
        whole = table if isinstance(table, pa.Table) else pa.table(table)
        if named or (where is None and "where" not in whole.column_names):
            return super().subscribe_many(
                whole, where, **named
            )  # rows have numbers, or go together
        step = max(-(-len(whole) // self.n_portions), 1)
        for first in range(0, len(whole), step):
            super().subscribe_many(whole.slice(first, step), where)
            self.flush()
        return LoadReport(len(whole))

    def flush(self) -> None:
        """End a segment."""
        self._engine.reader()

    @property
    def n_segments(self) -> int:
        return len(self._engine.reader().segments)  # type: ignore[attr-defined]


def make(engine: str, event_type: EventType | None = None, **options: Any) -> Matcher:
    """Make a matcher with an engine, or with `auto` in a number of segments."""
    if engine in SEGMENTED:
        return Segmented(event_type, SEGMENTED[engine], **options)
    return Matcher(event_type, engine=engine, **options)
