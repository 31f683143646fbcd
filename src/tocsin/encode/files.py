"""Files of events: what all formats share.

Enters: a path; `-` is standard input. Leaves: chunks of bounded size with the number of every row,
lines of text with their numbers, and every failure to read as a FileFormatError.
"""

from __future__ import annotations

import gzip
import io
import shutil
import stat
import sys
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeAlias, cast

import numpy as np
import pyarrow as pa

from tocsin.errors import FileFormatError
from tocsin.model import EventType

CHUNK_BYTES = 1 << 22
"""How much text makes a chunk."""

CHUNK_ROWS = 1 << 16
"""How many rows of a Parquet file make a chunk."""

STDIN = "-"
_GZIP = b"\x1f\x8b"
_PEEKED = 512

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


class Input:
    """Where the bytes of a file come from: a path, or standard input, which is read once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.is_stdin = str(path) == STDIN
        self._copy: IO[bytes] | None = None
        self._n_copied = 0

    @property
    def name(self) -> str:
        """What messages call it."""
        return "standard input" if self.is_stdin else str(self.path)

    @property
    def is_file(self) -> bool:
        """Whether it can be read again from the beginning; a pipe cannot."""
        if self._copy is not None:
            return True
        with file_errors(self.path):
            return not self.is_stdin and stat.S_ISREG(self.path.stat().st_mode)

    @property
    def size(self) -> int:
        """The number of bytes; 0 where it is not known."""
        return self._n_copied or (self.path.stat().st_size if self.is_file else 0)

    @property
    def is_packed(self) -> bool:
        """Whether it is a gzip file: its name says so, or the first bytes of standard input."""
        return self.path.suffix.lower() == ".gz" or (
            self.is_stdin and self.peek().startswith(_GZIP)
        )

    def keep(self) -> None:
        """Copy what can be read only once into a temporary file, which is then read instead."""
        if self.is_file:
            return
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
        with self.open() as stream:
            shutil.copyfileobj(stream, copy, CHUNK_BYTES)
        self._n_copied = copy.tell()
        self._copy = copy

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader]:
        """Open it for reading: a file from the beginning, a pipe from where it is."""
        with file_errors(self.path):
            if self._copy is not None:
                self._copy.seek(0)
                yield cast("io.BufferedReader", self._copy)
            elif self.is_stdin:
                yield cast("io.BufferedReader", sys.stdin.buffer)
            else:
                with self.path.open("rb") as stream:
                    yield stream

    def peek(self) -> bytes:
        """Return the first bytes, which are read again later; nothing of a named pipe."""
        if not self.is_stdin and not self.is_file and not self.path.is_dir():
            return b""
        with self.open() as stream:
            return stream.peek(_PEEKED)[:_PEEKED]


class EventFile(ABC):
    """An event file; iterate over it for its chunks, as often as you like.

    With `on_error="raise"` the first bad line raises FileFormatError. With "quarantine" bad lines
    are added to `bad` and the rest goes on; a caller may empty that list between chunks.
    """

    def __init__(
        self, source: Input, event_type: EventType | None, on_error: str, chunk_bytes: int
    ) -> None:
        self.source = source
        self.path = Path(source.name)
        self.event_type = event_type
        self.on_error = on_error
        self.chunk_bytes = chunk_bytes
        self.bad: list[BadLine] = []
        self.on_progress: Callable[[float], None] | None = None
        """Called when more of the file has been read."""
        self._fraction = 0.0

    has_lines = True
    """Whether its events are on lines."""

    @property
    def fraction(self) -> float:
        """How much of the file has been read, from 0 to 1."""
        return self._fraction

    @fraction.setter
    def fraction(self, fraction: float) -> None:
        self._fraction = fraction
        if self.on_progress is not None:
            self.on_progress(fraction)

    @abstractmethod
    def __iter__(self) -> Iterator[Chunk]:
        """Yield the file's events, chunk by chunk."""

    def describe(self) -> str:
        """Say how the file was read, once it was: nothing where nothing was guessed."""
        return ""

    def refuse(self, bad: BadLine) -> None:
        """Raise for a bad line, or remember it."""
        if self.on_error == "raise":
            raise FileFormatError(str(self.path), bad.reason, bad.line)
        self.bad.append(bad)


_SUFFIXES = {"ndjson": "jsonl", "conditions": "txt", "tab": "tsv"}


def format_of(path: Path, known: Sequence[str]) -> str:
    """Return the format that a file's suffix names, and check that the file is there."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    last = suffixes[-2 if packed else -1 :][:1]
    name = _SUFFIXES.get(last[0][1:], last[0][1:]) if last else ""
    if name not in known or (packed and name == "parquet"):
        expected = ", ".join("." + each for each in known)
        raise FileFormatError(str(path), f"unknown kind of file; its name must end in {expected}")
    check_content(Input(path))
    return name


def guess_format(source: Input) -> str:
    """Return the format of standard input, or of a file without a suffix, by how it begins."""
    begin = source.peek()
    if begin.startswith(_GZIP):
        begin = zlib.decompressobj(wbits=31).decompress(begin, _PEEKED)
    begin = begin.lstrip(b"\xef\xbb\xbf \t\r\n")
    if begin.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if begin.startswith(b"{") else "csv"


def check_content(source: Input) -> None:
    """Refuse an empty file, before any work is done."""
    if not source.peek() and (source.is_stdin or source.is_file):
        fail(Path(source.name), "the file is empty")


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

    def __init__(
        self, path: Path, raw: io.BufferedReader, *, is_packed: bool = False, size: int = 0
    ) -> None:
        self.path = path
        self.raw = raw
        self.size = size
        self.stream: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
        if self.stream.peek(3).startswith(b"\xef\xbb\xbf"):
            self.stream.read(3)

    @property
    def fraction(self) -> float:
        """How much of the file has been read; 0 where its size is not known."""
        return min(1.0, self.raw.tell() / self.size) if self.size else 0.0

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
def open_text(source: Path | Input) -> Iterator[TextSource]:
    """Open a text file for reading."""
    if isinstance(source, Path):
        source = Input(source)
    with file_errors(source.path):
        is_packed, size = source.is_packed, source.size
    with source.open() as raw:
        yield TextSource(Path(source.name), raw, is_packed=is_packed, size=size)


def to_numbers(numbers: Sequence[int]) -> Numbers:
    """Return row or line numbers as an array."""
    return np.array(numbers, dtype=np.int64)
