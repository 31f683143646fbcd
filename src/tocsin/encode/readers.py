"""Event files → chunks of events: JSON Lines, CSV (both also with .gz) and Parquet.

Enters: a path and, optionally, the event type. Leaves: chunks of bounded size with the number of
every row, and the lines that could not be read.

Nothing is guessed where a guess could change a match. JSON values keep their kinds row by row; an
integer that does not fit 64 bits is refused, not rounded. A text becomes a timestamp only where
the event type says so. A CSV column has one kind, found over the whole file: boolean if every
value is true or false, else integer, else float, else string; an empty field is absent. That
takes a first pass over the file, so the kinds do not depend on how it is cut into chunks.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from tocsin.errors import ArgumentError, FileFormatError
from tocsin.language.parser import parse_timestamp
from tocsin.model import INT64_MAX, INT64_MIN, EventType, Kind, kind_of

CHUNK_BYTES = 1 << 22
"""How much text makes a chunk."""

CHUNK_ROWS = 1 << 16
"""How many rows of a Parquet file make a chunk."""

MAX_LINE_BYTES = 1 << 26
"""A longer line is taken for a file that is not what its name says."""

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class BadLine(NamedTuple):
    """A line of a file that could not be read: its number from 1, why, and its text."""

    line: int
    reason: str
    original: str


class Chunk(NamedTuple):
    """Some consecutive events of a file.

    `rows` numbers them from 0 over the whole file, bad rows counted; `lines` says on which line
    each begins, from 1 (None for Parquet).
    """

    events: Any  # pa.Table | pa.RecordBatch | list[dict[str, object]]
    rows: Numbers
    lines: Numbers | None


class EventFile:
    """An event file; iterate over it for its chunks, as often as you like.

    With `on_error="raise"` the first bad line raises FileFormatError. With "quarantine" bad lines
    are added to `bad` and the rest goes on; a caller may empty that list between chunks.
    """

    def __init__(
        self, path: Path, event_type: EventType | None, on_error: str, chunk_bytes: int
    ) -> None:
        self.path = path
        self.event_type = event_type
        self.on_error = on_error
        self.chunk_bytes = chunk_bytes
        self.bad: list[BadLine] = []
        self.fraction = 0.0
        """How much of the file has been read, from 0 to 1."""

    def __iter__(self) -> Iterator[Chunk]:
        raise NotImplementedError

    def refuse(self, bad: BadLine) -> None:
        """Raise for a bad line, or remember it."""
        if self.on_error == "raise":
            raise FileFormatError(str(self.path), bad.reason, bad.line)
        self.bad.append(bad)


def read_events(
    path: str | Path,
    event_type: EventType | None = None,
    *,
    on_error: str = "raise",
    chunk_bytes: int = CHUNK_BYTES,
) -> EventFile:
    """Open an event file; its format is told by its suffix."""
    if on_error not in ("raise", "quarantine"):
        raise ArgumentError(f"on_error is 'raise' or 'quarantine', not {on_error!r}")
    path = Path(path)
    formats = {"jsonl": JsonLinesFile, "csv": CsvFile, "parquet": ParquetFile}
    return formats[format_of(path, tuple(formats))](path, event_type, on_error, chunk_bytes)


def format_of(path: Path, known: Sequence[str]) -> str:
    """Return the format that a file's suffix names, and check that the file is there."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    last = suffixes[-2 if packed else -1 :][:1]
    name = {"ndjson": "jsonl", "conditions": "txt"}.get(last[0][1:], last[0][1:]) if last else ""
    if name not in known or (packed and name == "parquet"):
        wanted = ", ".join("." + each for each in known)
        raise FileFormatError(str(path), f"unknown kind of file; its name must end in {wanted}")
    with file_errors(path), path.open("rb") as stream:
        if not stream.read(1):
            fail(path, "the file is empty")
    return name


def fail(path: Path, message: str, line: int | None = None) -> NoReturn:
    """Raise FileFormatError."""
    raise FileFormatError(str(path), message, line)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a file into FileFormatError."""
    try:
        yield
    except FileNotFoundError:
        fail(path, "there is no such file")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        fail(path, f"damaged gzip file: {error}")
    except pa.ArrowException as error:
        fail(path, f"not a readable Parquet file: {error}")
    except OSError as error:
        fail(path, error.strerror or f"cannot be read: {error}")


class TextSource:
    """The bytes of a text file, unpacked where needed, without a byte-order mark."""

    def __init__(self, path: Path, raw: io.BufferedReader) -> None:
        self.path = path
        self.raw = raw
        self.size = path.stat().st_size
        packed = path.suffix.lower() == ".gz"
        self.stream = gzip.GzipFile(fileobj=raw) if packed else raw
        if self.stream.peek(3).startswith(b"\xef\xbb\xbf"):
            self.stream.read(3)

    @property
    def fraction(self) -> float:
        """How much of the file has been read."""
        return min(1.0, self.raw.tell() / max(1, self.size))

    def read_line(self) -> bytes:
        """Return the next line with its end; nothing at the end of the file."""
        line: bytes = self.stream.readline(MAX_LINE_BYTES)
        if len(line) == MAX_LINE_BYTES:
            fail(self.path, f"a line is longer than {MAX_LINE_BYTES >> 20} MiB")
        return line

    def read_block(self, n_bytes: int) -> bytes:
        """Return about so many bytes, to the end of a line."""
        block: bytes = self.stream.read(n_bytes)
        return block if block.endswith(b"\n") else block + self.read_line()


@contextmanager
def open_text(path: Path) -> Iterator[TextSource]:
    """Open a text file for reading."""
    with file_errors(path), path.open("rb") as raw:
        yield TextSource(path, raw)


# --- JSON Lines ---


class JsonLinesFile(EventFile):
    """One JSON object a line; nested objects are kept. Chunks are lists of dictionaries."""

    def __iter__(self) -> Iterator[Chunk]:
        declared = declared_paths(self.event_type)
        events: list[dict[str, object]] = []
        rows: list[int] = []
        lines: list[int] = []
        n_bytes = line = n_rows = 0
        with open_text(self.path) as source:
            while raw := source.read_line():
                line += 1
                if raw.isspace():
                    continue
                n_rows += 1
                try:
                    event = parse_json_object(raw)
                    for place in declared:
                        fit(event, *place)
                except ValueError as error:
                    original = raw.decode(errors="replace").rstrip("\r\n")
                    self.refuse(BadLine(line, str(error), original))
                    continue
                events.append(event)
                rows.append(n_rows - 1)
                lines.append(line)
                n_bytes += len(raw)
                if n_bytes >= self.chunk_bytes:
                    self.fraction = source.fraction
                    yield Chunk(events, to_numbers(rows), to_numbers(lines))
                    events, rows, lines, n_bytes = [], [], [], 0
        if not n_rows:
            fail(self.path, "the file is empty")
        self.fraction = 1.0
        if events:
            yield Chunk(events, to_numbers(rows), to_numbers(lines))


def to_numbers(numbers: Sequence[int]) -> Numbers:
    """Return row or line numbers as an array."""
    return np.array(numbers, dtype=np.int64)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name}")


_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
# Only such a line can hold a number beyond 64 bits or half a surrogate pair.
_may_be_inexact = re.compile(rb"\d{19}|[eE]\+?0*[1-9]\d\d|\\u[dD]").search


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """Parse a line that holds one JSON object; ValueError says what is wrong with it."""
    try:
        text = raw.decode().strip(" \t\r\n")
        found, end = _decode_json(text)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except ValueError as error:
        known = str(error).startswith("not JSON")
        raise ValueError(str(error) if known else "an integer beyond 64 bits") from None
    if end != len(text):
        raise ValueError(f"not JSON: more text after the first value (column {end + 1})")
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    if _may_be_inexact(raw):
        _check_exact(found)
    return found


def _check_exact(value: object) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_exact(key)
            _check_exact(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_exact(inner)
    elif isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise ValueError("an integer beyond 64 bits")
    elif isinstance(value, float):
        if math.isinf(value):
            raise ValueError("a number beyond the range of 64-bit floats")
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("a string is not valid Unicode (half a surrogate pair)") from None


def declared_paths(event_type: EventType | None) -> list[tuple[str, list[str], Kind]]:
    """Return the declared attributes with the parts of their paths."""
    declared = event_type.attributes if event_type else {}
    return [(name, name.split("."), kind) for name, kind in declared.items()]


def fit(event: dict[str, Any], name: str, parts: list[str], kind: Kind) -> None:
    """Check that an event's value is of its declared kind; a text may become a timestamp."""
    place = _locate(event, parts)
    if place is None:
        return
    holder, key = place
    value = holder[key]
    found = kind_of(value)
    if value is None or found is kind:
        return
    if kind is Kind.TIMESTAMP and isinstance(value, str):
        holder[key] = _parse_text(value, kind, name)
    elif kind is Kind.INTEGER and isinstance(value, float) and value.is_integer():
        holder[key] = int(value)
        if kind_of(holder[key]) is None:
            raise ValueError(f"attribute {name!r}: an integer beyond 64 bits")
    elif not (kind is Kind.FLOAT and found is Kind.INTEGER):
        what = found.value if found else "an array or object"
        raise ValueError(f"attribute {name!r} is declared {kind.value}, not {what}")


def _locate(node: dict[str, Any], parts: list[str]) -> tuple[dict[str, Any], str] | None:
    """Return the object and key that a path leads to; keys may hold dots themselves."""
    for n_used in range(len(parts), 0, -1):
        key = ".".join(parts[:n_used])
        if node.get(key) is None:
            continue
        if n_used == len(parts):
            return node, key
        if isinstance(node[key], dict) and (found := _locate(node[key], parts[n_used:])):
            return found
    return None


# --- CSV ---


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
            columns.append(_convert(column, name, kind, reasons))
        at = {
            int(block.lines[i]): BadLine(int(block.lines[i]), reason, block.original(i))
            for i, reason in reasons.items()
        }
        for bad in sorted([*block.bad, *at.values()]):
            self.refuse(bad)
        table = pa.table(columns, names=list(kinds))
        if not reasons:
            return Chunk(table, block.rows, block.lines)
        kept = np.ones(len(block.rows), dtype=bool)
        kept[list(reasons)] = False
        return Chunk(table.filter(pa.array(kept)), block.rows[kept], block.lines[kept])


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
    quotes, blank lines or bad records, are left to Python's reader. Both read quotes alike.
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
        if block.count(b'"') % 2 or block.count(b"\r") != block.count(b"\r\n"):
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
        rows = np.arange(self.n_rows, self.n_rows + n_lines)
        lines = np.arange(self.n_lines + 1, self.n_lines + 1 + n_lines)
        self.n_rows += n_lines
        self.n_lines += n_lines
        columns = [column.combine_chunks() for column in table.columns]
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
        n, wanted = len(record), len(self.names) or len(record)
        return record, "" if n == wanted else f"{n} fields where the header names {wanted}"


@contextmanager
def _field_limit(n_chars: int) -> Iterator[None]:
    before = csv.field_size_limit(n_chars)
    try:
        yield
    finally:
        csv.field_size_limit(before)


class _LineFeed:
    """The lines of a block, and beyond its end those that its last record still needs."""

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


_INTEGER = r"[+-]?[0-9]+"
_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_NO_NUMBER = r"[+-]?([nN][aA][nN]|[iI][nN][fF]([iI][nN][iI][tT][yY])?)"
_BOOLEAN = r"[tT][rR][uU][eE]|[fF][aA][lL][sS][eE]"
_TEXTS = {
    Kind.BOOLEAN: rf"^[ \t]*({_BOOLEAN})[ \t]*$",
    Kind.INTEGER: rf"^[ \t]*({_INTEGER})[ \t]*$",
    Kind.FLOAT: rf"^[ \t]*({_NUMBER}|{_NO_NUMBER})[ \t]*$",
}
# Texts that Arrow casts just as we would, without a look at each of them.
_PLAIN_TEXTS = {
    Kind.INTEGER: r"^-?[0-9]{1,18}$",
    Kind.FLOAT: r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$",
    Kind.TIMESTAMP: r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$",
}
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
    possible = {name: dict(_TEXTS) for name in records.names if name not in declared}
    telling = set()  # columns with a value that is not just "nan" or "inf"
    for block in records.blocks():
        for name, column in zip(records.names, block.columns, strict=True):
            if not possible.get(name) or column.null_count == len(column):
                continue
            possible[name] = {k: t for k, t in possible[name].items() if _match(column, t)}
            if Kind.BOOLEAN in possible[name] or not _match(column, rf"^\s*({_NO_NUMBER})\s*$"):
                telling.add(name)
    found = {name: next(iter(kinds), Kind.STRING) for name, kinds in possible.items()}
    return {
        name: declared.get(name) or (found[name] if name in telling else Kind.STRING)
        for name in records.names
    }


def _match(column: pa.Array, pattern: str) -> bool:
    """Whether all texts of a column fit a pattern; nulls do."""
    fits = pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py()
    return bool(fits)


def _convert(column: pa.Array, name: str, kind: Kind, reasons: dict[int, str]) -> pa.Array:
    """Turn a column of texts into its kind; where one does not fit, say why and leave a null."""
    if kind is Kind.STRING:
        return column
    arrow_type = _ARROW_TYPES[kind]
    if kind in _PLAIN_TEXTS and _match(column, _PLAIN_TEXTS[kind]):
        try:
            plain = column.cast(pa.timestamp("us")) if kind is Kind.TIMESTAMP else column
            return plain.cast(arrow_type)
        except pa.ArrowInvalid:
            pass  # such as a 31st of June
    values: list[object] = []
    for i, text in enumerate(column.to_pylist()):
        try:
            values.append(None if text is None else _parse_text(text, kind, name))
        except ValueError as error:
            reasons.setdefault(i, str(error))
            values.append(None)
    return pa.array(values, arrow_type)


def _parse_text(text: str, kind: Kind, name: str) -> object:
    """Return the value of a kind that a text stands for."""
    if kind is Kind.TIMESTAMP:
        moment = parse_timestamp(text)
        if moment is not None:
            return moment
    elif re.match(_TEXTS[kind], text):
        if kind is Kind.BOOLEAN:
            return text.strip().lower() == "true"
        if kind is Kind.FLOAT:
            number = float(text)
            if math.isinf(number) and "n" not in text.lower():
                raise ValueError(f"attribute {name!r}: a number beyond the range of 64-bit floats")
            return number
        if len(text) < 40 and INT64_MIN <= int(text) <= INT64_MAX:
            return int(text)
        raise ValueError(f"attribute {name!r}: an integer beyond 64 bits")
    shown = text if len(text) <= 40 else text[:40] + "…"
    raise ValueError(f"attribute {name!r}: {shown!r} is not of kind {kind.value}")


# --- Parquet ---


class ParquetFile(EventFile):
    """A Parquet file. Chunks are record batches."""

    def __iter__(self) -> Iterator[Chunk]:
        first = 0
        with file_errors(self.path), pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=CHUNK_ROWS):
                end = first + batch.num_rows
                self.fraction = end / max(1, file.metadata.num_rows)
                yield Chunk(batch, np.arange(first, end), None)
                first = end
        self.fraction = 1.0
