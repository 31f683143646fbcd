"""`tocsin match`: a subscription file and an event file → matches.

Enters: the options. Leaves: the matches in a file or on standard output, a summary (on standard
output when the matches went to a file, else on standard error), and the exit code. Events are
matched in slices whose number of matches is about the same, so that memory stays bounded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import typer

from tocsin.cli.console import BAD_ROWS, OK, Progress, say
from tocsin.cli.match_files import (
    MatchWriter,
    check_output,
    check_target,
    open_matches,
    replacing,
)
from tocsin.cli.options import to_event_type
from tocsin.cli.quarantine import Quarantine, load_file
from tocsin.cli.subscription_files import SubscriptionFile
from tocsin.encode.readers import Chunk, EventFile, read_events
from tocsin.errors import ArgumentError, EventError, FileFormatError
from tocsin.matcher import Matcher

FIRST_SLICE = 1024
MAX_SLICE = 1 << 16
SLICE_MATCHES = 1 << 22
"""How many matches a slice of events should have, about."""


@dataclass(frozen=True)
class MatchOptions:
    """The options of `tocsin match`."""

    subscriptions: Path | None
    store: str | None
    events: Path
    out: Path | None
    engine: str
    types: tuple[str, ...]
    on_error: str
    quarantine: Path | None
    as_json: bool


@dataclass
class Summary:
    """What was done, and how fast."""

    subscriptions: int = 0
    events: int = 0
    matches: int = 0
    matched_events: int = 0
    seconds_loading: float = 0.0
    seconds_matching: float = 0.0
    bad_rows: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        rate = self.events / self.seconds_matching if self.seconds_matching else None
        return {
            **{key: round(value, 6) for key, value in vars(self).items()},
            "events_per_second": None if rate is None else round(rate, 1),
        }

    def to_text(self) -> str:
        """Return the figures in words."""
        rate = self.events / max(self.seconds_matching, 1e-9)
        text = (
            f"{self.events:,} events against {self.subscriptions:,} subscriptions: "
            f"{self.matches:,} matches, {self.matched_events:,} events matched; "
            f"loaded in {self.seconds_loading:.2f} s, "
            f"matched in {self.seconds_matching:.2f} s ({rate:,.0f} events/s)"
        )
        return f"{text}; {self.bad_rows:,} bad rows set aside" if self.bad_rows else text


def run(options: MatchOptions) -> int:
    """Match, and return the exit code."""
    if (options.subscriptions is None) == (options.store is None):
        raise ArgumentError("give --subscriptions or --store")
    inputs = tuple(filter(None, [options.subscriptions, options.events]))
    if options.out is not None:
        check_output(options.out, *inputs)
    if options.quarantine is not None:
        check_target(options.quarantine, *inputs, *filter(None, [options.out]))
    matcher = _open(options)
    subscriptions = (
        None if options.subscriptions is None else SubscriptionFile(options.subscriptions)
    )
    events = read_events(options.events, matcher.event_type, on_error=options.on_error)
    summary = Summary()
    with ExitStack() as stack:
        stream = stack.enter_context(replacing(options.quarantine)) if options.quarantine else None
        quarantine = Quarantine(stream)
        with Progress() as progress:
            start = time.perf_counter()
            if subscriptions is not None:
                for _ in load_file(matcher, subscriptions, quarantine, progress):
                    pass
            summary.seconds_loading = time.perf_counter() - start
            summary.subscriptions = len(matcher)
            if quarantine.n_rows and options.on_error == "raise":
                message = f"{quarantine.n_rows:,} bad rows; nothing was matched"
                raise FileFormatError(
                    str(options.subscriptions), f"{message}\n{quarantine.listing()}"
                )
            as_text = matcher.catalog.names.has_strings
            if subscriptions is not None:
                as_text = not subscriptions.has_integer_ids
            with open_matches(options.out, options.as_json, ids_as_text=as_text) as writer:
                _match(matcher, events, writer, quarantine, summary, progress)
    summary.bad_rows = quarantine.n_rows
    if quarantine.n_rows and options.quarantine is None:
        say(quarantine.listing())
    text = json.dumps(summary.to_json()) if options.as_json else summary.to_text()
    typer.echo(text, err=options.out is None)
    return BAD_ROWS if quarantine.n_rows else OK


def _open(options: MatchOptions) -> Matcher:
    """Return the matcher of a store, or an empty one for a file."""
    if options.store is None:
        return Matcher(to_event_type(options.types), engine=options.engine)
    if options.types or options.engine != "auto":
        raise ArgumentError("a store has its own event type and engine: leave out both options")
    return Matcher.open(options.store)


def _match(
    matcher: Matcher,
    file: EventFile,
    writer: MatchWriter,
    quarantine: Quarantine,
    summary: Summary,
    progress: Progress,
) -> None:
    size = FIRST_SLICE
    for chunk in file:
        first = 0
        while first < len(chunk.rows):
            part = _slice(chunk, first, size)
            first += size
            start = time.perf_counter()
            n_matches = 0
            for kept, matches in _match_slice(matcher, part, file, quarantine):
                summary.events += len(kept.rows)
                summary.matched_events += int(np.count_nonzero(np.diff(matches.offsets)))
                n_matches += int(matches.offsets[-1])
                summary.seconds_matching += time.perf_counter() - start
                if matches.offsets[-1]:
                    writer.write(_to_table(kept, matches))
                start = time.perf_counter()
            summary.matches += n_matches
            size = _next_size(size, n_matches)
        for bad in file.bad:
            quarantine.add(file.path, "line", bad.line, bad.reason, bad.original)
        file.bad.clear()
        progress.show("events", file.fraction, note=f"{summary.matches:,} matches")
    for bad in file.bad:
        quarantine.add(file.path, "line", bad.line, bad.reason, bad.original)


def _slice(chunk: Chunk, first: int, size: int) -> Chunk:
    events = chunk.events
    part = events[first : first + size] if isinstance(events, list) else events.slice(first, size)
    lines = None if chunk.lines is None else chunk.lines[first : first + size]
    return Chunk(part, chunk.rows[first : first + size], lines)


def _next_size(size: int, n_matches: int) -> int:
    target = size * SLICE_MATCHES // max(1, n_matches)
    return max(1, min(target, 4 * size, MAX_SLICE))


def _match_slice(
    matcher: Matcher, part: Chunk, file: EventFile, quarantine: Quarantine
) -> Iterator[tuple[Chunk, Any]]:
    """Match events together; if one of them is refused, one by one, and set the bad ones aside."""
    try:
        yield part, matcher.match_batch(part.events)
        return
    except EventError as error:
        if file.on_error == "raise" or error.row is None:
            raise _located(error, part, file) from error
    for at in range(len(part.rows)):
        single = _slice(part, at, 1)
        try:
            yield single, matcher.match_batch(single.events)
        except EventError as error:
            place, number = _place(single, 0)
            quarantine.add(file.path, place, number, str(error), str(single.events))


def _place(part: Chunk, at: int) -> tuple[str, int]:
    if part.lines is None:
        return "row", int(part.rows[at])
    return "line", int(part.lines[at])


def _located(error: EventError, part: Chunk, file: EventFile) -> FileFormatError:
    """Return the error with the place in the file instead of that in the slice."""
    if error.row is None:
        return FileFormatError(str(file.path), str(error))
    place, number = _place(part, error.row)
    named = f"attribute {error.attribute!r}: " if error.attribute is not None else ""
    return FileFormatError(str(file.path), f"{place} {number}: {named}{error.message}")


def _to_table(part: Chunk, matches: Any) -> pa.Table:
    """Return matches with the numbers of the file's rows, and lines where it has them."""
    table = matches.to_table()
    at = table["event"].to_numpy()
    columns = {"event": pa.array(part.rows[at])}
    if part.lines is not None:
        columns["line"] = pa.array(part.lines[at])
    return pa.table({**columns, "subscription": table["subscription"]})
