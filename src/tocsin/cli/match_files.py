"""Matches → files (.jsonl, .csv, .tsv, .parquet) or standard output.

Enters: tables with columns `event` (the row in the event file, from 0), for text files `line` (from
1), where there are several `file`, then `subscription` and the columns that are kept of the events.
Leaves: a file that appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import FileFormatError

FORMATS = ("jsonl", "ndjson", "csv", "tsv", "parquet")
TEXT = "text"
_NEEDS_ESCAPE = r'["\\\x00-\x1f\x7f]'


class MatchWriter(Protocol):
    """Takes matches, table by table."""

    def write(self, matches: pa.Table) -> None:
        """Add matches."""

    def close(self) -> None:
        """Write buffered matches; the stream stays open."""

    def abort(self) -> None:
        """Forget what is buffered: the file will not be used."""


def check_output(path: Path, format: str | None, *inputs: Path) -> None:
    """Refuse an output that could not be written, before any work is done."""
    if format is None and path.suffix.lower()[1:] not in FORMATS:
        known = ", ".join("." + name for name in FORMATS)
        raise FileFormatError(str(path), f"unknown kind of file; its name must end in {known}")
    check_target(path, *inputs)


def check_target(path: Path, *inputs: Path) -> None:
    """Refuse to write over an input, or into a directory that is not there."""
    if path.is_dir() or not path.parent.is_dir():
        reason = "is a directory" if path.is_dir() else f"there is no directory {path.parent}"
        raise FileFormatError(str(path), reason)
    if any(path.resolve() == each.resolve() for each in inputs):
        raise FileFormatError(str(path), "is one of the inputs")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file under another name; it gets its own when all went well, else it goes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as stream:
            yield stream
        temporary.replace(path)
    except BrokenPipeError:  # of standard output, not of this file
        raise
    except OSError as error:
        raise FileFormatError(str(path), f"cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def open_matches(
    path: Path | None,
    format: str | None,
    *,
    ids_as_text: bool = False,
    columns: Sequence[str] = ("event", "subscription"),
) -> Iterator[MatchWriter]:
    """Open a file, or without a path standard output, for matches.

    Tables may differ in the type of their ids; with `ids_as_text` all are written as strings.
    `columns` are those of a file without matches.
    """
    if path is None:
        stream: Any = sys.stdout.buffer
        with _writing(stream, format or TEXT, ids_as_text, columns) as writer:
            yield writer
        return
    with replacing(path) as stream:
        name = format or path.suffix.lower()[1:]
        with _writing(stream, name, ids_as_text, columns) as writer:
            yield writer


@contextmanager
def _writing(
    stream: IO[bytes], format: str, ids_as_text: bool, columns: Sequence[str]
) -> Iterator[MatchWriter]:
    writer: MatchWriter
    if format == TEXT:
        writer = TextWriter(stream)
    elif format in ("csv", "tsv"):
        writer = CsvWriter(stream, ids_as_text, columns, "\t" if format == "tsv" else ",")
    elif format == "parquet":
        writer = ParquetWriter(stream, ids_as_text, columns)
    else:
        writer = JsonWriter(stream, ids_as_text)
    try:
        yield writer
    except BaseException:
        writer.abort()
        raise
    writer.close()


class TextWriter:
    """`event<TAB>subscription`, a line a match; before them the file, behind them what is kept."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def write(self, matches: pa.Table) -> None:
        """Write a line a match."""
        pieces: list[Any] = []
        for name in matches.column_names:
            if name != "line":
                pieces += ["\t", _escape_text(_to_text(_plain(matches[name])))]
        self.stream.write(_to_bytes(_concatenate(*pieces[1:], "\n")))

    def close(self) -> None:
        """Nothing is held back."""

    def abort(self) -> None:
        """Nothing is held back."""


class JsonWriter:
    """An object a line: `event`, `line` where there is one, `subscription`, what is kept."""

    def __init__(self, stream: IO[bytes], ids_as_text: bool = False) -> None:
        self.stream = stream
        self.ids_as_text = ids_as_text

    def write(self, matches: pa.Table) -> None:
        """Write a line a match."""
        table = _with_plain_columns(matches, self.ids_as_text)
        pieces: list[Any] = []
        for name in table.column_names:
            begin = f"{', ' if pieces else '{'}{json.dumps(name, ensure_ascii=False)}: "
            pieces += [begin, _to_json(table[name])]
        self.stream.write(_to_bytes(_concatenate(*pieces, "}\n")))

    def close(self) -> None:
        """Nothing is held back."""

    def abort(self) -> None:
        """Nothing is held back."""


class CsvWriter:
    """Columns under a header."""

    def __init__(
        self,
        stream: IO[bytes],
        ids_as_text: bool = False,
        columns: Sequence[str] = ("event", "subscription"),
        separator: str = ",",
    ) -> None:
        self.stream = stream
        self.ids_as_text = ids_as_text
        self.columns = columns
        self.separator = separator
        self.has_begun = False

    def write(self, matches: pa.Table) -> None:
        """Write a record a match."""
        import pyarrow.csv as pa_csv

        table = _with_plain_columns(matches, self.ids_as_text)
        nested = [at for at, field in enumerate(table.schema) if pa.types.is_nested(field.type)]
        for at in nested:
            table = table.set_column(at, table.column_names[at], _to_json(table.column(at)))
        if not self.has_begun:
            self._write_header(table.column_names)
        options = pa_csv.WriteOptions(include_header=False, delimiter=self.separator)
        pa_csv.write_csv(table, self.stream, options)

    def _write_header(self, names: Sequence[str]) -> None:
        special = (self.separator, '"', "\n", "\r")
        quoted = [
            '"' + name.replace('"', '""') + '"' if any(c in name for c in special) else name
            for name in names
        ]
        self.stream.write((self.separator.join(quoted) + "\n").encode())
        self.has_begun = True

    def close(self) -> None:
        """Without matches there still is a header."""
        if not self.has_begun:
            self._write_header(self.columns)

    def abort(self) -> None:
        """Nothing is held back."""


class ParquetWriter:
    """Columns; the ids are written with a dictionary."""

    def __init__(
        self,
        stream: IO[bytes],
        ids_as_text: bool = False,
        columns: Sequence[str] = ("event", "subscription"),
    ) -> None:
        self.stream = stream
        self.ids_as_text = ids_as_text
        self.columns = columns
        self.writer: Any = None

    def write(self, matches: pa.Table) -> None:
        """Write a row a match."""
        import pyarrow.parquet as pq

        table = _with_plain_columns(matches, self.ids_as_text)
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.stream, table.schema)
        schema = self.writer.schema
        if table.schema != schema:
            try:
                table = table.cast(schema)
            except (pa.ArrowInvalid, ValueError):
                differing = [
                    f"{one.name} ({one.type}, {other.type})"
                    for one, other in zip(schema, table.schema, strict=False)
                    if one != other
                ]
                raise FileFormatError(
                    "the Parquet file",
                    f"columns change their type: {', '.join(differing)}; write .jsonl or .csv",
                ) from None
        self.writer.write_table(table)

    def close(self) -> None:
        """Write the footer; without matches there still are columns."""
        if self.writer is None:
            types = {"event": pa.int64(), "line": pa.int64()}
            empty = {name: pa.array([], types.get(name, pa.string())) for name in self.columns}
            self.write(pa.table(empty))
        self.writer.close()

    def abort(self) -> None:
        """Keep the footer from being written to a file that is closed by then."""
        if self.writer is not None:
            self.writer.is_open = False


def _concatenate(*pieces: Any) -> pa.ChunkedArray:
    """Return the columns of texts and fixed texts, put together row by row."""
    texts = [pa.scalar(p, pa.large_string()) if isinstance(p, str) else p for p in (*pieces, "")]
    return pc.binary_join_element_wise(*texts)


def _with_plain_columns(matches: pa.Table, ids_as_text: bool) -> pa.Table:
    columns = {}
    for name, column in zip(matches.column_names, matches.columns, strict=True):
        column = _plain(column)
        if name == "subscription" and (ids_as_text or not pa.types.is_integer(column.type)):
            column = column.cast(pa.large_string())
        columns[name] = column
    return pa.table(columns)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without its dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _to_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as texts, as they are shown; nothing where there is no value."""
    if pa.types.is_timestamp(column.type):
        column = _moments(column)
    elif pa.types.is_nested(column.type):
        column = _to_json(column)
    return pc.fill_null(column.cast(pa.large_string()), "")


def _moments(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return timestamps in the form of ISO 8601, in UTC."""
    return pc.strftime(column.cast(pa.timestamp("us", tz="UTC")), "%Y-%m-%dT%H:%M:%SZ", "C")


def _to_json(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column in JSON."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        texts = _quote(_moments(column).cast(pa.large_string()))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = _quote(column.cast(pa.large_string()))
    elif pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, None)
        texts = finite.cast(pa.large_string())
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        texts = column.cast(pa.large_string())
    else:
        values = [json.dumps(v, ensure_ascii=False, default=str) for v in column.to_pylist()]
        texts = pa.chunked_array([pa.array(values, pa.large_string())])
    return pc.fill_null(texts, "null")


def _quote(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return strings as JSON, one by one only where there is something to escape."""
    if pc.any(pc.match_substring_regex(texts, _NEEDS_ESCAPE), min_count=0).as_py():
        quoted = [
            None if each is None else json.dumps(each, ensure_ascii=False)
            for each in texts.to_pylist()
        ]
        return pa.chunked_array([pa.array(quoted, pa.large_string())])
    return _concatenate('"', texts, '"')


def _escape_text(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    r"""Keep a text on its line: tab, line breaks and backslash become \t, \n, \r, \\."""
    for char, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        texts = pc.replace_substring(texts, char, written)
    return texts


def _to_bytes(lines: pa.ChunkedArray) -> bytes:
    """Return all lines in one piece: Arrow keeps them one after the other."""
    array = lines.combine_chunks()
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return b""
    starts = np.frombuffer(offsets, np.int64)
    return bytes(memoryview(data)[starts[array.offset] : starts[array.offset + len(array)]])
