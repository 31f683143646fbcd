"""`tocsin match`: subscriptions and event files → matches.

Enters: the options. Leaves: the matches in a file or on standard output; what was guessed of the
files, what conditions ask for and no row has, and a summary (on standard output when the matches
went to a file, else on standard error); and the exit code. Events are matched in slices whose
number of matches is about the same, so that memory stays bounded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import typer

from tocsin.cli.clock import STARTED
from tocsin.cli.console import BAD_ROWS, OK, Progress, say
from tocsin.cli.coverage import Coverage
from tocsin.cli.inputs import expand, is_store
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
from tocsin.encode.dialects import to_separator
from tocsin.encode.events import EventBatch, lookup, to_batch
from tocsin.encode.files import STDIN, Chunk, EventFile
from tocsin.encode.readers import read_events
from tocsin.encode.tallies import Hints
from tocsin.errors import ArgumentError, EventError, FileFormatError
from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.model import kind_of

FIRST_SLICE = 1024
MAX_SLICE = 1 << 16
SLICE_MATCHES = 1 << 22
"""How many matches a slice of events should have, about."""
_OWN_COLUMNS = ("file", "event", "line", "subscription")


@dataclass(frozen=True)
class MatchOptions:
    """The options of `tocsin match`."""

    events: Sequence[str]
    subscriptions: str | None = None
    store: str | None = None
    conditions: Sequence[str] = ()
    dialect: str = "sql"
    out: Path | None = None
    engine: str = "auto"
    types: Sequence[str] = ()
    on_error: str = "raise"
    quarantine: Path | None = None
    keep: Sequence[str] = ()
    delimiter: str | None = None
    has_header: bool | None = None
    nulls: Sequence[str] = ()
    from_format: str | None = None
    to_format: str | None = None
    is_quiet: bool = False
    as_json: bool = False


@dataclass
class Summary:
    """What was done, and how long it took."""

    subscriptions: int = 0
    events: int = 0
    matches: int = 0
    matched_events: int = 0
    seconds_loading: float = 0.0
    seconds_reading: float = 0.0
    seconds_matching: float = 0.0
    seconds_writing: float = 0.0
    bad_rows: int = 0
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        seconds = time.perf_counter() - STARTED
        facts = {k: round(v, 6) if isinstance(v, float) else v for k, v in vars(self).items()}
        warnings = facts.pop("warnings")
        return {
            **facts,
            "seconds": round(seconds, 6),
            "seconds_of_processor": round(time.process_time(), 6),
            "events_per_second": round(self.events / seconds, 1),
            "warnings": warnings,
        }

    def to_text(self) -> str:
        """Return the figures in words."""
        seconds = time.perf_counter() - STARTED
        text = (
            f"{self.events:,} events against {self.subscriptions:,} subscriptions: "
            f"{self.matches:,} matches, {self.matched_events:,} events matched; "
            f"{seconds:.2f} s in all ({self.events / seconds:,.0f} events/s): "
            f"loading {self.seconds_loading:.2f} s, reading {self.seconds_reading:.2f} s, "
            f"matching {self.seconds_matching:.2f} s, writing {self.seconds_writing:.2f} s; "
            f"{time.process_time():.2f} s of processor time"
        )
        return f"{text}; {self.bad_rows:,} bad rows set aside" if self.bad_rows else text


def run(options: MatchOptions) -> int:
    """Match, and return the exit code."""
    paths = expand(options.events)
    _check(options, paths)
    summary = Summary()
    with ExitStack() as stack:
        stream = stack.enter_context(replacing(options.quarantine)) if options.quarantine else None
        quarantine = Quarantine(stream)
        progress = stack.enter_context(Progress())
        progress.show("subscriptions", 0.0)
        progress.show("events", 0.0)
        start = time.perf_counter()
        matcher, ids_as_text = _load(options, quarantine, progress, summary)
        progress.show("subscriptions", 1.0, note=f"{len(matcher):,}")
        matcher.configure_events(warns=False, reads_moments=True)  # it is said at the end
        coverage = Coverage(matcher)
        summary.seconds_loading = time.perf_counter() - start
        summary.subscriptions = len(matcher)
        run = _Run(options, matcher, coverage, quarantine, summary, progress, len(paths) > 1)
        files = [run.open(path) for path in paths]
        format = options.to_format or ("jsonl" if options.as_json and not options.out else None)
        columns = _columns(options, files)
        with open_matches(options.out, format, ids_as_text=ids_as_text, columns=columns) as writer:
            for at, file in enumerate(files):
                run.match_file(file, at, len(files), writer)
    summary.bad_rows = quarantine.n_rows
    summary.warnings += map(str, coverage.issues())
    if quarantine.n_rows and options.quarantine is None:
        say(quarantine.listing())
    if summary.warnings and not options.as_json:
        say("\n".join(f"warning: {text}" for text in summary.warnings))
    text = json.dumps(summary.to_json()) if options.as_json else summary.to_text()
    typer.echo(text, err=options.out is None)
    return BAD_ROWS if quarantine.n_rows else OK


def _check(options: MatchOptions, paths: Sequence[str]) -> None:
    """Refuse options that do not go together, before any work is done."""
    sources = [options.subscriptions, options.store, options.conditions or None]
    if sum(source is not None for source in sources) != 1:
        raise ArgumentError("give one of --subscriptions, --store and --where")
    if STDIN in paths and options.subscriptions == STDIN:
        raise ArgumentError("standard input can be read once only")
    for name in options.keep:
        if name in _OWN_COLUMNS or options.keep.count(name) > 1:
            raise ArgumentError(f"--keep {name}: there is a column of this name")
    inputs = [Path(path) for path in [*paths, *filter(None, [options.subscriptions])]]
    if options.out is not None:
        check_output(options.out, options.to_format, *inputs)
    if options.quarantine is not None:
        check_target(options.quarantine, *inputs, *filter(None, [options.out]))


def _columns(options: MatchOptions, files: Sequence[EventFile]) -> list[str]:
    """Return the columns of the matches, for an output without any."""
    has_lines = any(file.has_lines for file in files)
    own = [
        name
        for name in _OWN_COLUMNS
        if (name != "file" or len(files) > 1) and (name != "line" or has_lines)
    ]
    return [*own, *options.keep]


def _load(
    options: MatchOptions, quarantine: Quarantine, progress: Progress, summary: Summary
) -> tuple[Matcher, bool]:
    """Return the matcher of a store, a file or conditions, and whether ids are written as texts."""
    store = options.store
    if store is None and options.subscriptions is not None and is_store(options.subscriptions):
        store = options.subscriptions
    if store is not None:
        if options.types or options.engine != "auto":
            raise ArgumentError("a store has its own event type and engine: leave out both options")
        matcher = Matcher.open(store)
        return matcher, matcher.catalog.names.has_strings
    matcher = Matcher(to_event_type(options.types), engine=options.engine)
    if options.subscriptions is None:
        ids = list(range(1, len(options.conditions) + 1))
        table = {"id": ids, "where": list(options.conditions)}
        report = matcher.subscribe_many(table, dialect=options.dialect)
        summary.warnings += map(str, report.warnings)
        return matcher, False
    file = SubscriptionFile(options.subscriptions, options.dialect)
    for _ in load_file(matcher, file, quarantine, progress, summary.warnings):
        pass
    if quarantine.n_rows and options.on_error == "raise":
        message = f"{quarantine.n_rows:,} bad rows; nothing was matched"
        raise FileFormatError(str(file.path), f"{message}\n{quarantine.listing()}")
    return matcher, not file.has_integer_ids


@dataclass
class _Run:
    """What the matching of all files shares."""

    options: MatchOptions
    matcher: Matcher
    coverage: Coverage
    quarantine: Quarantine
    summary: Summary
    progress: Progress
    are_several: bool
    size: int = FIRST_SLICE

    def open(self, path: str) -> EventFile:
        """Open an event file, with what is known of it."""
        options = self.options
        known = {*self.coverage.reads, *options.keep} if self.coverage.is_known else None
        hints = Hints(
            separator=None if options.delimiter is None else to_separator(options.delimiter),
            has_header=options.has_header,
            nulls=tuple(options.nulls),
            attributes=known,
        )
        return read_events(
            path,
            self.matcher.event_type,
            on_error=options.on_error,
            format=options.from_format,
            hints=hints,
        )

    def match_file(self, file: EventFile, at: int, n_files: int, writer: MatchWriter) -> None:
        """Match all events of a file; `at` is its number among all."""

        def show(fraction: float) -> None:
            note = f"{self.summary.events:,} read, {self.summary.matches:,} matches"
            self.progress.show("events", (at + fraction) / n_files, note=note)

        file.on_progress = show
        chunks = iter(file)
        while True:
            start = time.perf_counter()
            chunk = next(chunks, None)
            self.summary.seconds_reading += time.perf_counter() - start
            if chunk is None:
                break
            self._match_chunk(chunk, file, writer)
            self._set_aside(file)
            show(file.fraction)
        self._set_aside(file)
        described = file.describe()
        if described and not self.options.is_quiet and not self.options.as_json:
            say(f"{file.path}: {described}")

    def _set_aside(self, file: EventFile) -> None:
        for bad in file.bad:
            self.quarantine.add(file.path, "line", bad.line, bad.reason, bad.original)
        file.bad.clear()

    def _match_chunk(self, chunk: Chunk, file: EventFile, writer: MatchWriter) -> None:
        first = 0
        while first < len(chunk.rows):
            part = _slice(chunk, first, self.size)
            first += self.size
            n_matches = 0
            start = time.perf_counter()
            for kept, batch, matches in self._match_slice(part, file):
                self.summary.events += len(kept.rows)
                self.summary.matched_events += int(np.count_nonzero(np.diff(matches.offsets)))
                n_matches += int(matches.offsets[-1])
                self.coverage.add(batch)
                now = time.perf_counter()
                self.summary.seconds_matching += now - start
                if matches.offsets[-1]:
                    writer.write(self._to_table(kept, matches, file))
                start = time.perf_counter()
                self.summary.seconds_writing += start - now
            self.summary.matches += n_matches
            self.size = _next_size(self.size, n_matches)

    def _match_slice(
        self, part: Chunk, file: EventFile
    ) -> Iterator[tuple[Chunk, EventBatch, Matches]]:
        """Match events together; if one is refused, one by one, and set the bad ones aside."""
        try:
            batch = self._to_batch(part)
            yield part, batch, self.matcher.match_batch(batch)
            return
        except EventError as error:
            if file.on_error == "raise" or error.row is None:
                raise _located(error, part, file) from error
        for at in range(len(part.rows)):
            single = _slice(part, at, 1)
            try:
                batch = self._to_batch(single)
                yield single, batch, self.matcher.match_batch(batch)
            except EventError as error:
                place, number = _place(single, 0)
                self.quarantine.add(file.path, place, number, str(error), str(single.events))

    def _to_batch(self, part: Chunk) -> EventBatch:
        return to_batch(part.events, self.matcher.event_type, self.coverage.moments)

    def _to_table(self, part: Chunk, matches: Matches, file: EventFile) -> pa.Table:
        """Return matches with the numbers of their events in the file, and what is kept."""
        table = matches.to_table()
        rows = table["event"].to_numpy()
        columns: dict[str, Any] = {}
        if self.are_several:
            columns["file"] = pa.DictionaryArray.from_arrays(
                np.zeros(len(rows), np.int32), [str(file.path)]
            )
        columns["event"] = part.rows[rows]
        if part.lines is not None:
            columns["line"] = part.lines[rows]
        columns["subscription"] = table["subscription"]
        for name in self.options.keep:
            columns[name] = _kept(part.events, name, rows)
        return pa.table(columns)


def _kept(events: Any, name: str, rows: Any) -> Any:
    """Return the values of an attribute in some of the events."""
    if isinstance(events, list):
        return _to_column([lookup(events[row], name) for row in rows.tolist()])
    table = events if isinstance(events, pa.Table) else pa.Table.from_batches([events])
    if name in table.column_names:
        return table[name].take(pa.array(rows))
    values = [lookup(event, name) for event in table.to_pylist()]  # a path into a struct
    return _to_column([values[row] for row in rows.tolist()])


def _to_column(values: list[Any]) -> pa.Array:
    """Return values as a column; where their kinds differ, as texts."""
    kinds = {kind_of(value) for value in values if value is not None}
    if len(kinds) == 1 and None not in kinds:
        return pa.array(values)
    texts = [
        value if value is None or isinstance(value, str) else json.dumps(value, default=str)
        for value in values
    ]
    return pa.array(texts, pa.string())


def _slice(chunk: Chunk, first: int, size: int) -> Chunk:
    events = chunk.events
    part = events[first : first + size] if isinstance(events, list) else events.slice(first, size)
    lines = None if chunk.lines is None else chunk.lines[first : first + size]
    return Chunk(part, chunk.rows[first : first + size], lines)


def _next_size(size: int, n_matches: int) -> int:
    target = size * SLICE_MATCHES // max(1, n_matches)
    return max(1, min(target, 4 * size, MAX_SLICE))


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
