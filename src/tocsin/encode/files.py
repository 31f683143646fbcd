"""Files of events: what all formats share.

Enters: a path. Leaves: chunks of bounded size with the number of every row, lines of text with
their numbers, and every failure to read as a FileFormatError.
"""

from __future__ import annotations

import gzip
import io
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa

from tocsin.errors import FileFormatError
from tocsin.model import EventType

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


class EventFile(ABC):
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

    @abstractmethod
    def __iter__(self) -> Iterator[Chunk]:
        """Yield the file's events, chunk by chunk."""

    def refuse(self, bad: BadLine) -> None:
        """Raise for a bad line, or remember it."""
        if self.on_error == "raise":
            raise FileFormatError(str(self.path), bad.reason, bad.line)
        self.bad.append(bad)


def format_of(path: Path, known: Sequence[str]) -> str:
    """Return the format that a file's suffix names, and check that the file is there."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    last = suffixes[-2 if packed else -1 :][:1]
    name = {"ndjson": "jsonl", "conditions": "txt"}.get(last[0][1:], last[0][1:]) if last else ""
    if name not in known or (packed and name == "parquet"):
        expected = ", ".join("." + each for each in known)
        raise FileFormatError(str(path), f"unknown kind of file; its name must end in {expected}")
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
        """Return about `n_bytes` bytes, to the end of a line."""
        block: bytes = self.stream.read(n_bytes)
        return block if block.endswith(b"\n") else block + self.read_line()


@contextmanager
def open_text(path: Path) -> Iterator[TextSource]:
    """Open a text file for reading."""
    with file_errors(path), path.open("rb") as raw:
        yield TextSource(path, raw)


def to_numbers(numbers: Sequence[int]) -> Numbers:
    """Return row or line numbers as an array."""
    return np.array(numbers, dtype=np.int64)
