"""CSV → chunks of events.

Enters: a file with a header. Leaves: tables. A column has one kind, found over the whole file:
boolean if every value is true or false, else integer, else float, else string; an empty field is
absent. That takes a first pass over the file, so the kinds do not depend on how it is cut into
chunks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from tocsin.encode.files import (
    MAX_LINE_BYTES,
    BadLine,
    Chunk,
    EventFile,
    Numbers,
    TextSource,
    fail,
    open_text,
    to_numbers,
)
from tocsin.encode.texts import NO_NUMBER, PLAIN_TEXTS, TEXTS, parse_text
from tocsin.model import Kind


class CsvFile(EventFile):
    """Comma-separated values under a header. Chunks are tables."""

    def __iter__(self) -> Iterator[Chunk]:
        declared = self.event_type.attributes if self.event_type else {}
        with open_text(self.path) as source:
            kinds = infer_kinds(CsvRecords(source, self.chunk_bytes), declared)
        with open_text(self.path) as source:
            for block in CsvRecords(source, self.chunk_bytes).blocks():
                chunk = self._to_chunk(block, kinds)
                self.fraction = source.fraction
                if len(chunk.rows):
                    yield chunk
        self.fraction = 1.0

    def _to_chunk(self, block: CsvBlock, kinds: Mapping[str, Kind]) -> Chunk:
        reasons: dict[int, str] = {}
        columns = []
        for (name, kind), column in zip(kinds.items(), block.columns, strict=True):
            columns.append(convert_texts(column, name, kind, reasons))
        at = {
            int(block.lines[i]): BadLine(int(block.lines[i]), reason, block.original(i))
            for i, reason in reasons.items()
        }
        for bad in sorted([*block.bad, *at.values()]):
            self.refuse(bad)
        table = pa.table(columns, names=list(kinds))
        if not reasons:
            return Chunk(table, block.rows, block.lines)
        is_good = np.ones(len(block.rows), dtype=bool)
        is_good[list(reasons)] = False
        return Chunk(table.filter(pa.array(is_good)), block.rows[is_good], block.lines[is_good])


class CsvBlock(NamedTuple):
    """Some records: their columns as strings, and the records that were none."""

    columns: list[pa.Array]
    rows: Numbers
    lines: Numbers
    original: Callable[[int], str]
    bad: list[BadLine]


class CsvRecords:
    """The records of a CSV source, block by block.

    Arrow parses the blocks in which every line is one record; the others, with line breaks inside
    quotes, blank lines or bad records, are left to Python's reader. Where quotes are not just
    around fields, Python's reader says what a line holds, and Arrow has to agree.
    """

    def __init__(self, source: TextSource, chunk_bytes: int) -> None:
        self.source = source
        self.chunk_bytes = chunk_bytes
        self.n_lines = 0
        self.n_rows = 0
        self.names: list[str] = []
        self.names = self._read_header()

    def _read_header(self) -> list[str]:
        path = self.source.path
        feed = _LineFeed(self.source, self.source.read_line())
        names, reason = self._next_record(csv.reader(feed), feed)
        self.n_lines = len(feed.taken)
        if not names or reason:
            fail(path, reason or "the first line must name the columns", 1)
        for i, name in enumerate(names):
            if not name:
                fail(path, f"column {i + 1} has no name", 1)
            if name in names[:i]:
                fail(path, f"column {name!r} appears twice", 1)
        return names

    def blocks(self) -> Iterator[CsvBlock]:
        """Yield the records, about `chunk_bytes` of text at a time."""
        while block := self.source.read_block(self.chunk_bytes):
            yield self._read_plain(block) or self._read_any(block)

    def _read_plain(self, block: bytes) -> CsvBlock | None:
        """Parse a block in which every line is one record; None when it is not so."""
        n_lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if block.count(b"\r") != block.count(b"\r\n"):
            return None
        odd = _odd_lines(block)
        if odd is None:
            return None
        names = [str(i) for i in range(len(self.names))]
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(block),
                pa_csv.ReadOptions(
                    column_names=names, use_threads=False, block_size=len(block) + 1
                ),
                pa_csv.ParseOptions(newlines_in_values=True),
                pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != n_lines:
            return None
        columns = [column.combine_chunks() for column in table.columns]
        if odd:
            places = pa.array(list(odd), pa.int64())
            parsed = zip(*(column.take(places).to_pylist() for column in columns), strict=True)
            if any(
                [text or "" for text in row] != record
                for row, record in zip(parsed, odd.values(), strict=True)
            ):
                return None
        rows = np.arange(self.n_rows, self.n_rows + n_lines)
        lines = np.arange(self.n_lines + 1, self.n_lines + 1 + n_lines)
        self.n_rows += n_lines
        self.n_lines += n_lines
        split = cache(partial(block.split, b"\n"))
        return CsvBlock(columns, rows, lines, lambda i: _to_text([split()[i]]), [])

    def _read_any(self, block: bytes) -> CsvBlock:
        """Parse a block, and as many more lines as its last record takes."""
        records: list[list[str]] = []
        rows: list[int] = []
        lines: list[int] = []
        originals: list[list[bytes]] = []
        bad: list[BadLine] = []
        feed = _LineFeed(self.source, block)
        with _field_limit(MAX_LINE_BYTES):
            reader = csv.reader(feed)
            while True:
                feed.taken = []
                record, reason = self._next_record(reader, feed)
                if record is None:
                    break
                line = self.n_lines + 1
                self.n_lines += len(feed.taken)
                if not record and not reason:
                    continue
                self.n_rows += 1
                if reason:
                    bad.append(BadLine(line, reason, _to_text(feed.taken)))
                    continue
                records.append(record)
                rows.append(self.n_rows - 1)
                lines.append(line)
                originals.append(feed.taken)
        values = zip(*records, strict=True) if records else [()] * len(self.names)
        columns = [pa.array([value or None for value in column], pa.string()) for column in values]
        return CsvBlock(
            columns, to_numbers(rows), to_numbers(lines), lambda i: _to_text(originals[i]), bad
        )

    def _next_record(self, reader: Any, feed: _LineFeed) -> tuple[list[str] | None, str]:
        """Return the next record and what is wrong with it; None at the end of the block."""
        feed.not_utf8 = feed.unclosed = False
        try:
            record: list[str] | None = next(reader, None)
        except csv.Error as error:
            bare = "new-line character" in str(error)
            return [], "a carriage return outside quotes" if bare else str(error)
        if record is None or not record:
            return record, ""
        if feed.unclosed:
            return record, "a quote is not closed"
        if feed.not_utf8:
            return record, "not UTF-8"
        n, n_fields = len(record), len(self.names) or len(record)
        return record, "" if n == n_fields else f"{n} fields where the header names {n_fields}"


_QUOTE, _COMMA, _BREAK, _RETURN = b'",\n\r'
_MAY_OPEN = np.isin(np.arange(256), (_QUOTE, _COMMA, _BREAK))
"""Whether a quote after this byte may open a field, or be the second of a doubled one."""
_MAY_CLOSE = np.isin(np.arange(256), (_QUOTE, _COMMA, _BREAK, _RETURN))
"""Whether a quote before this byte may close a field, or be the first of a doubled one."""
_STEP = 1 << 16


def _odd_lines(block: bytes) -> dict[int, list[str]] | None:
    """Return the records of the lines whose quotes are not just around fields, by their number.

    None where such a line is not a record by itself, since a quoted field goes on beyond its end.
    In all other lines each quote opens a field, closes one, or is doubled inside one. Where that
    holds for all quotes, the lines are not parsed here: the reader finds as many records as lines
    unless a line break is quoted.
    """
    if b'"' not in block:
        return {}
    octets = np.frombuffer(block, np.uint8)
    framed = np.append(octets, np.uint8(_BREAK))  # so both ends have a neighbour
    if _are_around_fields(framed):
        return {}
    quotes = np.flatnonzero(octets == _QUOTE)
    line = np.searchsorted(np.flatnonzero(octets == _BREAK), quotes)
    first = np.flatnonzero(np.diff(line, prepend=-1))
    counts = np.diff(first, append=len(quotes))
    opens = (np.arange(len(quotes)) - np.repeat(first, counts)) % 2 == 0
    is_even = np.where(opens, _MAY_OPEN[framed[quotes - 1]], _MAY_CLOSE[framed[quotes + 1]])
    odd = np.union1d(line[~is_even], line[first][counts % 2 == 1])
    if not len(odd):
        return {}
    lines = block.split(b"\n")
    records = {}
    for at in odd.tolist():
        record = _record_of(lines[at])
        if record is None:
            return None
        records[at] = record
    return records


def _are_around_fields(framed: NDArray[np.uint8]) -> bool:
    """Whether every quote opens a field, closes one or is doubled; a line break follows the last.

    The block is processed in steps that fit into the cache.
    """
    n_before = 0
    for start in range(0, len(framed), _STEP):
        quotes = start + np.flatnonzero(framed[start : start + _STEP] == _QUOTE)
        opens, closes = quotes[n_before % 2 :: 2], quotes[1 - n_before % 2 :: 2]
        if not (_MAY_OPEN[framed[opens - 1]].all() and _MAY_CLOSE[framed[closes + 1]].all()):
            return False
        n_before += len(quotes)
    return n_before % 2 == 0


def _record_of(line: bytes) -> list[str] | None:
    """Return the record on a line, or None where it goes on beyond the line or is none."""
    goes_on = False

    def feed() -> Iterator[str]:
        nonlocal goes_on
        yield line.decode()
        goes_on = True

    try:
        record = next(csv.reader(feed()))
    except (csv.Error, UnicodeDecodeError):
        return None
    return None if goes_on else record


@contextmanager
def _field_limit(n_chars: int) -> Iterator[None]:
    before = csv.field_size_limit(n_chars)
    try:
        yield
    finally:
        csv.field_size_limit(before)


class _LineFeed:
    """The lines of a block, and the lines after it that its last record continues in."""

    def __init__(self, source: TextSource, block: bytes) -> None:
        self.source = source
        self.lines = io.BytesIO(block)
        self.taken: list[bytes] = []
        self.not_utf8 = False
        self.unclosed = False

    def __iter__(self) -> _LineFeed:
        return self

    def __next__(self) -> str:
        raw = self.lines.readline()
        if not raw and self.taken:
            raw = self.source.read_line()
            self.unclosed = not raw
        if not raw:
            raise StopIteration
        self.taken.append(raw)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.not_utf8 = True
            return raw.decode(errors="replace")


def _to_text(lines: Sequence[bytes]) -> str:
    return b"".join(lines).decode(errors="replace").rstrip("\r\n")


_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW_TYPES = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.TIMESTAMP: _TIMESTAMP,
}


def infer_kinds(records: CsvRecords, declared: Mapping[str, Kind]) -> dict[str, Kind]:
    """Read all records and return the kind of every column, declared or found."""
    possible = {name: dict(TEXTS) for name in records.names if name not in declared}
    telling = set()  # columns with a value that is not just "nan" or "inf"
    for block in records.blocks():
        for name, column in zip(records.names, block.columns, strict=True):
            if not possible.get(name) or column.null_count == len(column):
                continue
            possible[name] = {k: t for k, t in possible[name].items() if _match(column, t)}
            if Kind.BOOLEAN in possible[name] or not _match(column, rf"^\s*({NO_NUMBER})\s*$"):
                telling.add(name)
    kind_of = {name: next(iter(kinds), Kind.STRING) for name, kinds in possible.items()}
    return {
        name: declared.get(name) or (kind_of[name] if name in telling else Kind.STRING)
        for name in records.names
    }


def _match(column: pa.Array, pattern: str) -> bool:
    """Whether all texts of a column fit a pattern; nulls do."""
    fits = pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py()
    return bool(fits)


def convert_texts(column: pa.Array, name: str, kind: Kind, reasons: dict[int, str]) -> pa.Array:
    """Turn a column of texts into its kind; where one does not fit, say why and leave a null."""
    if kind is Kind.STRING:
        return column
    arrow_type = _ARROW_TYPES[kind]
    if kind in PLAIN_TEXTS and _match(column, PLAIN_TEXTS[kind]):
        try:
            plain = column.cast(pa.timestamp("us")) if kind is Kind.TIMESTAMP else column
            return plain.cast(arrow_type)
        except pa.ArrowInvalid:
            pass  # such as a 31st of June
    values: list[object] = []
    for i, text in enumerate(column.to_pylist()):
        try:
            values.append(None if text is None else parse_text(text, kind, name))
        except ValueError as error:
            reasons.setdefault(i, str(error))
            values.append(None)
    return pa.array(values, arrow_type)
