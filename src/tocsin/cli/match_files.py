"""Matches → files (.jsonl, .csv, .parquet) or standard output.

Enters: tables with columns `event` (the row in the event file, from 0), for text files `line` (from
1), and `subscription`. Leaves: a file that appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from tocsin.errors import FileFormatError

FORMATS = ("jsonl", "ndjson", "csv", "parquet")
_NEEDS_ESCAPE = r'["\\\x00-\x1f\x7f]'


class MatchWriter(Protocol):
    """Takes matches, table by table."""

    def write(self, matches: pa.Table) -> None:
        """Add matches."""

    def close(self) -> None:
        """Write buffered matches; the stream stays open."""


def check_output(path: Path, *inputs: Path) -> None:
    """Refuse an output that could not be written, before any work is done."""
    if path.suffix.lower()[1:] not in FORMATS:
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
    path: Path | None, as_json: bool, *, ids_as_text: bool = False
) -> Iterator[MatchWriter]:
    """Open a file, or without a path standard output, for matches.

    Tables may differ in the type of their ids; with `ids_as_text` all are written as strings.
    """
    if path is None:
        stream: Any = sys.stdout.buffer
        yield JsonWriter(stream, ids_as_text) if as_json else TextWriter(stream)
        return
    with replacing(path) as stream:
        suffix = path.suffix.lower()
        writer: MatchWriter
        if suffix == ".csv":
            writer = CsvWriter(stream, ids_as_text)
        elif suffix == ".parquet":
            writer = ParquetWriter(stream, ids_as_text)
        else:
            writer = JsonWriter(stream, ids_as_text)
        yield writer
        writer.close()


class TextWriter:
    """`event<TAB>subscription`, a line a match."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def write(self, matches: pa.Table) -> None:
        """Write a line a match."""
        events = matches["event"].cast(pa.large_string())
        shown = _escape_text(_plain(matches["subscription"], as_text=True))
        self.stream.write(_to_bytes(_concatenate(events, "\t", shown, "\n")))

    def close(self) -> None:
        """Nothing is held back."""


class JsonWriter:
    """An object a line: `event`, `line` where there is one, `subscription`."""

    def __init__(self, stream: IO[bytes], ids_as_text: bool = False) -> None:
        self.stream = stream
        self.ids_as_text = ids_as_text

    def write(self, matches: pa.Table) -> None:
        """Write a line a match."""
        ids = _plain(matches["subscription"], self.ids_as_text)
        ids = ids.cast(pa.large_string()) if pa.types.is_integer(ids.type) else _quote(ids)
        pieces: list[Any] = []
        for name in matches.column_names[:-1]:
            pieces += ['{"' if not pieces else ', "', name, '": ']
            pieces.append(matches[name].cast(pa.large_string()))
        pieces += [', "subscription": ', ids, "}\n"]
        self.stream.write(_to_bytes(_concatenate(*pieces)))

    def close(self) -> None:
        """Nothing is held back."""


class CsvWriter:
    """Columns under a header."""

    def __init__(self, stream: IO[bytes], ids_as_text: bool = False) -> None:
        self.stream = stream
        self.ids_as_text = ids_as_text
        self.begun = False

    def write(self, matches: pa.Table) -> None:
        """Write a record a match."""
        table = _with_plain_ids(matches, self.ids_as_text)
        options = pa_csv.WriteOptions(include_header=not self.begun, quoting_header="none")
        pa_csv.write_csv(table, self.stream, options)
        self.begun = True

    def close(self) -> None:
        """Without matches there still is a header."""
        if not self.begun:
            self.stream.write(b"event,subscription\n")


class ParquetWriter:
    """Columns; the ids are written with a dictionary."""

    def __init__(self, stream: IO[bytes], ids_as_text: bool = False) -> None:
        self.stream = stream
        self.ids_as_text = ids_as_text
        self.writer: Any = None

    def write(self, matches: pa.Table) -> None:
        """Write a row a match."""
        table = _with_plain_ids(matches, self.ids_as_text)
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.stream, table.schema)
        self.writer.write_table(table)

    def close(self) -> None:
        """Write the footer; without matches there still are columns."""
        if self.writer is None:
            empty = {"event": pa.array([], pa.int64()), "subscription": pa.array([], pa.string())}
            self.write(pa.table(empty))
        self.writer.close()


def _concatenate(*pieces: Any) -> pa.ChunkedArray:
    """Return the columns of texts and fixed texts, put together row by row."""
    texts = [pa.scalar(p, pa.large_string()) if isinstance(p, str) else p for p in (*pieces, "")]
    return pc.binary_join_element_wise(*texts)


def _with_plain_ids(matches: pa.Table, as_text: bool) -> pa.Table:
    at = matches.column_names.index("subscription")
    return matches.set_column(at, "subscription", _plain(matches["subscription"], as_text))


def _plain(ids: pa.ChunkedArray, as_text: bool) -> pa.ChunkedArray:
    """Return ids without their dictionary: integers, or where wanted all as text."""
    if pa.types.is_dictionary(ids.type):
        ids = ids.cast(ids.type.value_type)
    return ids.cast(pa.large_string()) if as_text or not pa.types.is_integer(ids.type) else ids


def _quote(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return strings as JSON, one by one only where there is something to escape."""
    if pc.any(pc.match_substring_regex(ids, _NEEDS_ESCAPE), min_count=0).as_py():
        quoted = [json.dumps(each, ensure_ascii=False) for each in ids.to_pylist()]
        return pa.chunked_array([pa.array(quoted, pa.large_string())])
    return _concatenate('"', ids, '"')


def _escape_text(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    r"""Keep an id on its line: tab, line breaks and backslash become \t, \n, \r, \\."""
    for char, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        ids = pc.replace_substring(ids, char, written)
    return ids


def _to_bytes(lines: pa.ChunkedArray) -> bytes:
    """Return all lines in one piece: Arrow keeps them one after the other."""
    array = lines.combine_chunks()
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return b""
    starts = np.frombuffer(offsets, np.int64)
    return bytes(memoryview(data)[starts[array.offset] : starts[array.offset + len(array)]])
