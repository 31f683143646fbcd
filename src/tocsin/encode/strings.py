"""The distinct strings of an attribute of a batch, as bytes.

Enters: a column of a batch. Leaves: its distinct strings in UTF-8, and which of them each event
has. What ignores case has them in lower case, character by character, as Arrow and DuckDB map them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.encode.columns import Column
from tocsin.normalize.domains import Domain


class Strings(NamedTuple):
    """Text t is `octets[start[t] : start[t + 1]]`; an event has text `of_event`, or none: -1."""

    start: NDArray[np.int64]
    octets: NDArray[np.uint8]
    of_event: NDArray[np.int32]

    @property
    def n(self) -> int:
        """The number of distinct strings."""
        return len(self.start) - 1


def distinct_strings(column: Column, n_events: int, *, ignore_case: bool = False) -> Strings:
    """Return the strings of a column, each once."""
    for part in column.parts:
        if part.domain is Domain.STRING:
            encoded = part.values.dictionary_encode()
            of_event = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            if part.here is not None:
                of_event = np.where(part.here, of_event, -1)
            return _from_arrow(encoded.dictionary, of_event.astype(np.int32), ignore_case)
    return _read_only(_NO_START, _NO_OCTETS, np.full(n_events, -1, np.int32))


def one_string(text: str, *, ignore_case: bool = False) -> Strings:
    """Return the string of a single event."""
    of_event = np.zeros(1, np.int32)
    if ignore_case and not text.isascii():
        return _from_arrow(pa.array([text], pa.large_string()), of_event, ignore_case)
    octets = np.frombuffer((text.lower() if ignore_case else text).encode(), np.uint8)
    return _read_only(np.array([0, len(octets)], np.int64), octets, of_event)


_NO_START = np.zeros(1, np.int64)
_NO_OCTETS = np.empty(0, np.uint8)


def _from_arrow(texts: pa.Array, of_event: NDArray[np.int32], ignore_case: bool) -> Strings:
    if ignore_case:
        texts = pc.utf8_lower(texts)
    _, offsets, data = texts.buffers()
    start = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return _read_only(start, np.frombuffer(data or b"", np.uint8), of_event)


def _read_only(
    start: NDArray[np.int64], octets: NDArray[np.uint8], of_event: NDArray[np.int32]
) -> Strings:
    """Return strings whose bytes are read-only, as Arrow's may be: one kernel does for all."""
    start.flags.writeable = octets.flags.writeable = False
    return Strings(start, octets, of_event)
