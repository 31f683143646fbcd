"""CSV → chunks of events.

Enters: a file, and what is known of it: attributes that are declared, or that conditions mention.
Leaves: tables. A column has one kind, found over the whole file: boolean if its values are true or
false, else integer, else float, else string; an empty field is absent. Where fewer than one in ten
values of a column do not fit, they are bad and not the column: their rows are refused.

Arrow reads a block of text into columns of the kinds that its columns had so far; where a value
does not fit, the block is read as texts, and the kinds are found again. Blocks are kept until the
kinds are known, up to `KEPT_BYTES` of text; a longer file is read a second time.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from tocsin.encode.dialects import SAMPLE_BYTES, Dialect, find_dialect
from tocsin.encode.files import (
    MAX_LINE_BYTES,
    BadLine,
    Chunk,
    EventFile,
    Input,
    Numbers,
    TextSource,
    fail,
    open_text,
    to_numbers,
)
from tocsin.encode.tallies import NO_HINTS, Hints, Tally, all_match
from tocsin.encode.texts import PLAIN_TEXTS, parse_text
from tocsin.model import EventType, Kind

_COMMAS = Dialect()


KEPT_BYTES = 1 << 28
"""A file with more text than this is read twice."""


class CsvFile(EventFile):
    """Values with a separator between them, mostly under a header. Chunks are tables."""

    def __init__(
        self,
        source: Input,
        event_type: EventType | None,
        on_error: str,
        chunk_bytes: int,
        hints: Hints = NO_HINTS,
    ) -> None:
        super().__init__(source, event_type, on_error, chunk_bytes)
        self.hints = hints
        self.dialect = Dialect()
        self._tallies: list[Tally] = []

    def __iter__(self) -> Iterator[Chunk]:
        self.source.keep()
        self.dialect = self._find_dialect()
        blocks, is_whole = self._read_tallied()
        if not is_whole:
            blocks = self._read_again()
        for block, fraction in blocks:
            chunk = self._to_chunk(block)
            self.fraction = 0.5 + fraction / 2
            if len(chunk.rows):
                yield chunk
        self.fraction = 1.0

    def describe(self) -> str:
        """Say what the file was taken for."""
        columns = ", ".join(map(str, self._tallies)) or "no columns"
        return f"{self.dialect}; {columns}"

    def _find_dialect(self) -> Dialect:
        with open_text(self.source) as source:
            sample = source.read_block(SAMPLE_BYTES)
        hints = self.hints
        return find_dialect(sample, separator=hints.separator, has_header=hints.has_header)

    def _records(self, source: TextSource) -> CsvRecords:
        return CsvRecords(source, self.chunk_bytes, self.dialect, self.hints.nulls)

    def _read_tallied(self) -> tuple[Iterable[tuple[CsvBlock, float]], bool]:
        """Find the kinds of all columns; return the blocks, and whether they can be used so."""
        kept: list[tuple[CsvBlock, float]] = []
        n_bytes = 0
        self._tallies = self._learn()
        with open_text(self.source) as source:
            records = self._records(source)
            for block in records.blocks(self._expected):
                for tally, column in zip(self._tallies, block.columns, strict=True):
                    tally.add(column)
                n_bytes += block.n_bytes
                if n_bytes <= KEPT_BYTES:
                    kept.append((block, source.fraction))
                else:
                    kept = []
                self.fraction = source.fraction / 2
        is_whole = n_bytes <= KEPT_BYTES and all(
            tally.can_use(block.columns[at])
            for at, tally in enumerate(self._tallies)
            for block, _ in kept
        )
        return kept, is_whole

    def _learn(self) -> list[Tally]:
        """Look at the first records, so that the first block is read with likely kinds."""
        declared = self.event_type.attributes if self.event_type else {}
        with open_text(self.source) as source:
            records = CsvRecords(source, SAMPLE_BYTES, self.dialect, self.hints.nulls)
            tallies = [
                Tally(name, declared.get(name), self.hints.needs(name)) for name in records.names
            ]
            for tally, column in zip(
                tallies, next(records.blocks(), _NO_BLOCK).columns, strict=False
            ):
                tally.guess(column)
        return tallies

    def _expected(self) -> list[Kind | None]:
        return [tally.expected for tally in self._tallies]

    def _read_again(self) -> Iterator[tuple[CsvBlock, float]]:
        kinds = [tally.kind for tally in self._tallies]
        with open_text(self.source) as source:
            for block in self._records(source).blocks(lambda: kinds):
                yield block, source.fraction

    def _to_chunk(self, block: CsvBlock) -> Chunk:
        reasons: dict[int, str] = {}
        names, columns = [], []
        for tally, column in zip(self._tallies, block.columns, strict=True):
            if column is not None and tally.kind is not None:
                names.append(tally.name)
                columns.append(_to_kind(column, tally, reasons))
        at = {
            int(block.lines[i]): BadLine(int(block.lines[i]), reason, block.original(i))
            for i, reason in reasons.items()
        }
        for bad in sorted([*block.bad, *at.values()]):
            self.refuse(bad)
        table = _to_table(columns, names, len(block.rows))
        if not reasons:
            return Chunk(table, block.rows, block.lines)
        is_good = np.ones(len(block.rows), dtype=bool)
        is_good[list(reasons)] = False
        return Chunk(table.filter(pa.array(is_good)), block.rows[is_good], block.lines[is_good])


def _to_table(columns: list[pa.Array], names: list[str], n: int) -> pa.Table:
    """Return columns as a table; one without columns still has rows."""
    if columns:
        return pa.table(columns, names=names)
    return pa.table({"": pa.nulls(n)})


def _to_kind(column: pa.Array, tally: Tally, reasons: dict[int, str]) -> pa.Array:
    """Return a column in its final kind; where a text does not fit, say why."""
    kind = cast("Kind", tally.kind)
    if pa.types.is_string(column.type):
        its_reasons: dict[int, str] = {}
        column = convert_texts(column, tally.name, kind, its_reasons)
        for row, reason in its_reasons.items():
            reasons.setdefault(row, tally.explain(reason))
        return column
    return column if column.type == _ARROW_TYPES[kind] else column.cast(pa.float64(), safe=False)


class CsvBlock(NamedTuple):
    """Some records, and the records that were none.

    Columns hold texts, or values of the kinds that were expected; None for those not read.
    """

    columns: list[pa.Array | None]
    n_bytes: int
    rows: Numbers
    lines: Numbers
    original: Callable[[int], str]
    bad: list[BadLine]


_NO_BLOCK = CsvBlock([], 0, to_numbers([]), to_numbers([]), lambda i: "", [])


class CsvRecords:
    """The records of a CSV source, block by block.

    Arrow parses the blocks in which every line is one record; the others, with line breaks inside
    quotes, blank lines or bad records, are left to Python's reader. Where quotes are not just
    around fields, Python's reader says what a line holds, and Arrow has to agree.
    """

    def __init__(
        self,
        source: TextSource,
        chunk_bytes: int,
        dialect: Dialect = _COMMAS,
        nulls: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.chunk_bytes = chunk_bytes
        self.dialect = dialect
        self.nulls = frozenset(("", *nulls))
        self.n_lines = 0
        self.n_rows = 0
        self.names: list[str] = []
        self._first = b""
        """The first line, where it is a record and no header."""
        self.names = self._read_header()

    def _read_header(self) -> list[str]:
        path = self.source.path
        feed = _LineFeed(self.source, self.source.read_line())
        names, reason = self._next_record(self._reader(feed), feed)
        if not names or reason:
            fail(path, reason or "the first line must name the columns", 1)
        if not self.dialect.has_header:
            self._first = b"".join(feed.taken)
            return [f"c{i + 1}" for i in range(len(names))]
        self.n_lines = len(feed.taken)
        for i, name in enumerate(names):
            if not name:
                fail(path, f"column {i + 1} has no name", 1)
            if name in names[:i]:
                fail(path, f"column {name!r} appears twice", 1)
        return names

    def _reader(self, feed: _LineFeed) -> Any:
        return csv.reader(feed, delimiter=self.dialect.separator)

    def blocks(
        self, expected: Callable[[], Sequence[Kind | None]] | None = None
    ) -> Iterator[CsvBlock]:
        """Yield the records, about `chunk_bytes` of text at a time.

        `expected` is called before each block and returns the kind that each column will have,
        None for columns that are not read. Without it all columns are texts.
        """
        kinds: Sequence[Kind | None] = [Kind.STRING] * len(self.names)
        while block := self._first + self.source.read_block(self.chunk_bytes):
            self._first = b""
            if expected is not None:
                kinds = expected()
            yield self._read_plain(block, kinds) or self._read_any(block, kinds)

    def _read_plain(self, block: bytes, kinds: Sequence[Kind | None]) -> CsvBlock | None:
        """Parse a block in which every line is one record; None when it is not so."""
        octets = np.frombuffer(block, np.uint8)
        n_lines = int(np.count_nonzero(octets == _BREAK)) + (not block.endswith(b"\n"))
        if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
            return None
        odd = _odd_lines(block, self.dialect.separator)
        if odd is None:
            return None
        texts = [None if kind is None else Kind.STRING for kind in kinds]
        are_texts = texts == list(kinds)
        columns = None if odd or are_texts else self._parse(block, kinds, n_lines)
        if columns is None:
            columns = self._parse(block, texts, n_lines)
        if columns is None or (odd and not self._agrees(columns, odd)):
            return None
        rows = np.arange(self.n_rows, self.n_rows + n_lines)
        lines = np.arange(self.n_lines + 1, self.n_lines + 1 + n_lines)
        self.n_rows += n_lines
        self.n_lines += n_lines
        split = cache(partial(block.split, b"\n"))
        return CsvBlock(columns, len(block), rows, lines, lambda i: _to_text([split()[i]]), [])

    def _parse(
        self, block: bytes, kinds: Sequence[Kind | None], n_lines: int
    ) -> list[pa.Array | None] | None:
        """Return the columns that Arrow reads in a block; None where it does not fit them."""
        names = [str(i) for i in range(len(self.names))]
        types = {
            name: _PARSED_TYPES[kind]
            for name, kind in zip(names, kinds, strict=True)
            if kind is not None
        }
        try:
            table = pa_csv.read_csv(
                pa.BufferReader(block),
                pa_csv.ReadOptions(
                    column_names=names, use_threads=False, block_size=len(block) + 1
                ),
                pa_csv.ParseOptions(
                    delimiter=self.dialect.separator, newlines_in_values=b'"' in block
                ),
                pa_csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types) or names[:1],
                    null_values=list(self.nulls),
                    strings_can_be_null=True,
                    true_values=["true", "True", "TRUE"],
                    false_values=["false", "False", "FALSE"],
                    timestamp_parsers=[],
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != n_lines:
            return None
        columns: list[pa.Array | None] = [None] * len(names)
        for name, column in zip(table.column_names, table.columns, strict=True):
            if name in types:
                columns[int(name)] = column.combine_chunks()
        return None if any(map(_may_be_beyond, columns)) else columns

    def _agrees(self, columns: list[pa.Array | None], odd: Mapping[int, list[str]]) -> bool:
        """Whether Arrow read the records of odd lines as Python does."""
        places = pa.array(list(odd), pa.int64())
        for at, column in enumerate(columns):
            if column is not None:
                parsed = column.take(places).to_pylist()
                if any(
                    (text or "") != ("" if record[at] in self.nulls else record[at])
                    for text, record in zip(parsed, odd.values(), strict=True)
                ):
                    return False
        return all(len(record) == len(columns) for record in odd.values())

    def _read_any(self, block: bytes, kinds: Sequence[Kind | None]) -> CsvBlock:
        """Parse a block, and as many more lines as its last record takes."""
        records: list[list[str]] = []
        rows: list[int] = []
        lines: list[int] = []
        originals: list[list[bytes]] = []
        bad: list[BadLine] = []
        feed = _LineFeed(self.source, block)
        with _field_limit(MAX_LINE_BYTES):
            reader = self._reader(feed)
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
        columns = [
            None
            if kind is None
            else pa.array([None if v in self.nulls else v for v in column], pa.string())
            for kind, column in zip(kinds, values, strict=True)
        ]
        return CsvBlock(
            columns,
            len(block),
            to_numbers(rows),
            to_numbers(lines),
            lambda i: _to_text(originals[i]),
            bad,
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


_QUOTE, _BREAK, _RETURN = b'"\n\r'
_STEP = 1 << 16


@cache
def _neighbours(separator: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the bytes before a quote that may open a field, and those after one that may close it.

    A quote may also be the first or the second of a doubled one.
    """
    octets, between = np.arange(256), (_QUOTE, ord(separator), _BREAK)
    return np.isin(octets, between), np.isin(octets, (*between, _RETURN))


def _odd_lines(block: bytes, separator: str) -> dict[int, list[str]] | None:
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
    may_open, may_close = _neighbours(separator)
    if _are_around_fields(framed, may_open, may_close):
        return {}
    quotes = np.flatnonzero(octets == _QUOTE)
    line = np.searchsorted(np.flatnonzero(octets == _BREAK), quotes)
    first = np.flatnonzero(np.diff(line, prepend=-1))
    counts = np.diff(first, append=len(quotes))
    opens = (np.arange(len(quotes)) - np.repeat(first, counts)) % 2 == 0
    is_even = np.where(opens, may_open[framed[quotes - 1]], may_close[framed[quotes + 1]])
    odd = np.union1d(line[~is_even], line[first][counts % 2 == 1])
    if not len(odd):
        return {}
    lines = block.split(b"\n")
    records = {}
    for at in odd.tolist():
        record = _record_of(lines[at], separator)
        if record is None:
            return None
        records[at] = record
    return records


def _are_around_fields(
    framed: NDArray[np.uint8], may_open: NDArray[np.bool_], may_close: NDArray[np.bool_]
) -> bool:
    """Whether every quote opens a field, closes one or is doubled; a line break follows the last.

    The block is processed in steps that fit into the cache.
    """
    n_before = 0
    for start in range(0, len(framed), _STEP):
        quotes = start + np.flatnonzero(framed[start : start + _STEP] == _QUOTE)
        opens, closes = quotes[n_before % 2 :: 2], quotes[1 - n_before % 2 :: 2]
        if not (may_open[framed[opens - 1]].all() and may_close[framed[closes + 1]].all()):
            return False
        n_before += len(quotes)
    return n_before % 2 == 0


def _record_of(line: bytes, separator: str) -> list[str] | None:
    """Return the record on a line, or None where it goes on beyond the line or is none."""
    goes_on = False

    def feed() -> Iterator[str]:
        nonlocal goes_on
        yield line.decode()
        goes_on = True

    try:
        record = next(csv.reader(feed(), delimiter=separator))
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


_PARSED_TYPES = {**_ARROW_TYPES, Kind.TIMESTAMP: pa.string()}
"""What Arrow reads columns into; moments are read from texts, which may have zones."""


def _may_be_beyond(column: pa.Array | None) -> bool:
    """Whether a float may stand for a number that is too large: such texts are looked at."""
    if column is None or not pa.types.is_floating(column.type):
        return False
    return bool(pc.any(pc.is_inf(column), min_count=0).as_py())


def convert_texts(column: pa.Array, name: str, kind: Kind, reasons: dict[int, str]) -> pa.Array:
    """Turn a column of texts into its kind; where one does not fit, say why and leave a null."""
    if kind is Kind.STRING:
        return column
    arrow_type = _ARROW_TYPES[kind]
    if kind in PLAIN_TEXTS and all_match(column, PLAIN_TEXTS[kind]):
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
