"""Where subscriptions are kept: the lines that `explain` shows of a segment.

Enters: a segment, and perhaps the id of a subscription. Leaves: lines for people.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin.engines.auto.arrays import NUMBER, Keys
from tocsin.engines.auto.prepared import to_rows
from tocsin.engines.auto.segment import Segment


@dataclass(frozen=True)
class TableReport:
    """An access table: the attributes of its key, what it keeps, and what an event sees of it.

    `checks` is how many conjunctions an event is expected to find under its key.
    """

    key: tuple[str, ...]
    n_kept: int
    way: str
    checks: float

    def __str__(self) -> str:
        key = f"({', '.join(self.key)})" if self.key else "no key"
        return f"{key}: {self.n_kept} {self.way}, {self.checks:.3g} an event"


def explain_subscription(segment: Segment, dense: int) -> list[str]:
    """Say under which key each conjunction of a subscription is kept."""
    filled = _filled(segment)
    in_bitmaps = (segment.layout.bitmaps.number & NUMBER)[filled]
    return [
        _explain_conjunction(segment, int(c), in_bitmaps)
        for c in np.flatnonzero(segment.ids == dense).tolist()
    ]


def _explain_conjunction(segment: Segment, c: int, in_bitmaps: NDArray[np.uint32]) -> str:
    layout = segment.layout
    if np.any(in_bitmaps == c):
        n = len(in_bitmaps)
        return f"kept in bitmaps with {n} conjunctions in all: most events come near"
    numbers = (layout.entries[:, 1] >> np.uint64(32)).astype(np.uint32) & NUMBER
    for keys, held, way in (
        (layout.keys, numbers, ""),
        (layout.column_keys, layout.columns.number, ", in columns"),
    ):
        places = np.flatnonzero(held == c)
        if len(places):
            f, m = _table_of(keys, int(places[0]))
            names = _key_names(segment, keys, f, m)
            n = int(_sizes(keys, f, m).sum())
            if not names:
                return f"tried on every event with {n} conjunctions in all{way}"
            return f"kept under ({', '.join(names)}) with {n} conjunctions in all{way}"
    raise AssertionError(f"conjunction {c} is kept nowhere")


def _filled(segment: Segment) -> NDArray[np.bool_]:
    """Mark the places of the bitmaps that hold a conjunction: all but the last ones."""
    bitmaps = segment.layout.bitmaps
    n_in_tables = len(np.unique(_table_numbers(segment)))
    return np.arange(len(bitmaps.number)) < len(segment.ids) - n_in_tables


def _table_numbers(segment: Segment) -> NDArray[np.uint32]:
    entries = (segment.layout.entries[:, 1] >> np.uint64(32)).astype(np.uint32) & NUMBER
    return np.concatenate([entries, segment.layout.columns.number])


def _table_of(keys: Keys, place: int) -> tuple[int, int]:
    """Return the family and member of the table in which a place is."""
    key = int(np.searchsorted(keys.start, place, side="right")) - 1
    f = max(f for f in range(len(keys.base)) if keys.base[f] <= key and keys.stride[f])
    slot = (key - int(keys.base[f])) % int(keys.stride[f])
    members = range(int(keys.member_start[f]), int(keys.member_start[f + 1]))
    return f, max(m for m in members if keys.member_offset[m] <= slot)


def _key_names(segment: Segment, keys: Keys, f: int, m: int) -> list[str]:
    member = int(keys.member_attribute[m])
    attributes = [*segment.prefixes[f], *([member] if member >= 0 else [])]
    return [segment.space.attributes[a] for a in attributes]


def _sizes(keys: Keys, f: int, m: int) -> NDArray[np.int64]:
    """Return how many conjunctions each key of a table keeps."""
    stride, offset = int(keys.stride[f]), int(keys.member_offset[m])
    is_last = m + 1 == keys.member_start[f + 1]
    end = stride if is_last else int(keys.member_offset[m + 1])
    limit = int(keys.base[f + 1]) if f + 1 < len(keys.base) else len(keys.start) - 1
    n_prefixes = (limit - int(keys.base[f])) // stride
    first = int(keys.base[f]) + np.arange(n_prefixes)[:, None] * stride + np.arange(offset, end)
    sizes: NDArray[np.int64] = keys.start[first + 1].astype(np.int64) - keys.start[first]
    return sizes.ravel()


def describe_tables(segment: Segment, sample: EventBatch | None) -> list[TableReport]:
    """List the access tables of a segment, those that an event sees most of first.

    What it sees is counted for a sample of events; without one, all keys are thought to be equally
    likely.
    """
    cells = None if sample is None else segment.space.encode(sample)
    codes = None if cells is None else to_rows(segment.coding, cells).codes
    found = []
    for keys, way in (
        (segment.layout.keys, "entries"),
        (segment.layout.column_keys, "rows of columns"),
    ):
        for f in range(len(keys.base)):
            for m in range(int(keys.member_start[f]), int(keys.member_start[f + 1])):
                sizes = _sizes(keys, f, m)
                checks = sizes.mean() if codes is None else _seen(segment, keys, f, m, codes)
                names = tuple(_key_names(segment, keys, f, m))
                found.append(TableReport(names, int(sizes.sum()), way, float(checks)))
    n_words = len(segment.layout.bitmaps.start) - 1
    if n_words:
        n = int(np.count_nonzero(_filled(segment)))
        found.append(TableReport((), n, "in words of bitmaps", float(n_words)))
    return sorted(found, key=lambda table: -table.checks)


def _seen(segment: Segment, keys: Keys, f: int, m: int, codes: NDArray[np.uint16]) -> float:
    """Return how many conjunctions an event finds in a table, in the mean of some."""
    coding = segment.coding
    key = np.zeros(len(codes), np.int64)
    has_key = np.ones(len(codes), np.bool_)
    for a in segment.prefixes[f]:
        digit = coding.digit[coding.first[a] + codes[:, a]]
        has_key &= digit >= 0
        key = key * coding.n_digits[a] + digit
    place = keys.base[f] + key * keys.stride[f] + keys.member_offset[m]
    member = int(keys.member_attribute[m])
    if member >= 0:
        digit = coding.digit[coding.first[member] + codes[:, member]]
        has_key &= digit >= 0
        place = place + digit
    place = place[has_key]
    sizes = keys.start[place + 1].astype(np.int64) - keys.start[place]
    return float(sizes.sum() / max(len(codes), 1))
