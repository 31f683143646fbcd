"""Event files → chunks of events: JSON Lines, CSV, TSV (all also with .gz) and Parquet.

Enters: a path and, optionally, the event type and what else is known of the file. Leaves: chunks of
bounded size with the number of every row, and the lines that could not be read.

Where the kind of a column or the dialect of a file is a guess, the file can `describe` it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
    Input,
    check_content,
    format_of,
    guess_format,
)
from tocsin.encode.json_lines import JsonLinesFile
from tocsin.encode.tallies import NO_HINTS, Hints
from tocsin.errors import ArgumentError
from tocsin.model import EventType

__all__ = ["BadLine", "Chunk", "EventFile", "Hints", "read_events"]


_FORMATS = ("jsonl", "csv", "tsv", "parquet")


def read_events(
    path: str | Path,
    event_type: EventType | None = None,
    *,
    on_error: str = "raise",
    chunk_bytes: int = CHUNK_BYTES,
    format: str | None = None,
    hints: Hints = NO_HINTS,
) -> EventFile:
    """Open an event file; `-` is standard input.

    Parameters:
        format: one of jsonl, csv, tsv and parquet; by default the suffix says, and the first bytes
            of standard input.
        hints: what is known of the file; how a CSV file is written is found out otherwise.
    """
    if on_error not in ("raise", "quarantine"):
        raise ArgumentError(f"on_error is 'raise' or 'quarantine', not {on_error!r}")
    source = Input(path)
    if format is None and not source.is_stdin:
        format = format_of(source.path, _FORMATS)
    else:
        check_content(source)
        format = format or guess_format(source)
    if format == "tsv":
        hints = replace(hints, separator=hints.separator or "\t")
    if format in ("csv", "tsv"):
        return CsvFile(source, event_type, on_error, chunk_bytes, hints)
    if format == "jsonl":
        return JsonLinesFile(source, event_type, on_error, chunk_bytes)
    if format != "parquet":
        raise ArgumentError(f"the format of events is {', '.join(_FORMATS)}, not {format!r}")
    return ParquetFile(source, event_type, on_error, chunk_bytes)


class ParquetFile(EventFile):
    """A Parquet file. Chunks are record batches."""

    has_lines = False

    def __iter__(self) -> Iterator[Chunk]:
        self.source.keep()
        first = 0
        with self.source.open() as stream, pq.ParquetFile(stream) as file:
            for batch in file.iter_batches(batch_size=CHUNK_ROWS):
                end = first + batch.num_rows
                self.fraction = end / max(1, file.metadata.num_rows)
                yield Chunk(batch, np.arange(first, end), None)
                first = end
        self.fraction = 1.0
