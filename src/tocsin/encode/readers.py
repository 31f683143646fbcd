"""Event files → chunks of events: JSON Lines, CSV (both also with .gz) and Parquet.

Enters: a path and, optionally, the event type. Leaves: chunks of bounded size with the number of
every row, and the lines that could not be read.

Nothing is guessed where a guess could change a match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tocsin.encode.csv_files import CsvFile
from tocsin.encode.files import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    BadLine,
    Chunk,
    EventFile,
    file_errors,
    format_of,
)
from tocsin.encode.json_lines import JsonLinesFile
from tocsin.errors import ArgumentError
from tocsin.model import EventType

__all__ = ["BadLine", "Chunk", "EventFile", "read_events"]


def read_events(
    path: str | Path,
    event_type: EventType | None = None,
    *,
    on_error: str = "raise",
    chunk_bytes: int = CHUNK_BYTES,
) -> EventFile:
    """Open an event file; its suffix names the format."""
    if on_error not in ("raise", "quarantine"):
        raise ArgumentError(f"on_error is 'raise' or 'quarantine', not {on_error!r}")
    path = Path(path)
    formats: dict[str, Callable[[Path, EventType | None, str, int], EventFile]] = {
        "jsonl": JsonLinesFile,
        "csv": CsvFile,
        "parquet": ParquetFile,
    }
    return formats[format_of(path, tuple(formats))](path, event_type, on_error, chunk_bytes)


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
