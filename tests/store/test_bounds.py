"""Numbers that lead out of an array are refused when a store is opened, whatever checksums say."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.store.stores import filled

import tocsin
from tocsin.bundle import Parts
from tocsin.engines.auto import bounds
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.serialization import put_together, take_apart
from tocsin.errors import DamagedStoreError
from tocsin.matcher import Matcher
from tocsin.storage import folder
from tocsin.storage.place import to_place


@cache
def segment_of_many() -> tuple[Any, int]:
    """Return a segment with columns, bitmaps, groups and entries of more than one table."""
    matcher = tocsin.Matcher()
    n = 3_000
    columns = {"id": range(n), "a": [i % 30 for i in range(n)], "b": [i % 7 for i in range(n)]}
    matcher.subscribe_many(columns, where="x = :a AND y > :b")
    wide = {"id": range(n, 2 * n), "a": range(n), "b": range(1, n + 1)}
    matcher.subscribe_many(wide, where="z BETWEEN :a AND :b AND x > 3")
    broad = {"id": range(2 * n, 3 * n), "a": range(n)}
    matcher.subscribe_many(broad, where="v < :a OR w > :a")
    mixed = {"id": range(3 * n, 4 * n), "a": [i % 40 for i in range(n)], "b": range(n)}
    matcher.subscribe_many(mixed, where="p = :a AND q = :b AND r > :a AND s < :b AND t <> 5")
    matcher.rebuild()
    engine: Any = matcher._engine
    (segment,) = engine.segments()
    return segment, engine._tombstones.stop


def changed(parts: Parts, name: str, at: int, value: int) -> Parts:
    array = parts.arrays[name].copy()
    array.reshape(-1)[at] = value
    return Parts(parts.facts, {**parts.arrays, name: array}, parts.columns)


CASES = [
    ("ids", 0, -1),
    ("ids", -1, 2**31 - 1),
    ("stream.start", 5, 2**32 - 1),
    ("entries", 1, 2**61 - 1),
    ("entries", 0, 0xFFFF),
    ("keys.start", -1, 2**32 - 1),
    ("keys.start", 3, 2**32 - 1),
    ("keys.member_attribute", 0, 2**40),
    ("keys.member_offset", 0, 2**40),
    ("keys.member_digit", 0, -5),
    ("keys.base", 0, 2**40),
    ("keys.member_start", -1, 2**40),
    ("coding.first", 0, -1),
    ("coding.digit", 3, 2**30),
]


@pytest.mark.parametrize(("name", "at", "value"), CASES)
def test_a_number_out_of_bounds_is_refused(name: str, at: int, value: int) -> None:
    segment, n_ids = segment_of_many()
    parts = take_apart(segment)
    bounds.check_bounds(put_together(parts, BufferPool()), n_ids)
    assert parts.arrays[name].size, "the case has something to change"
    with pytest.raises(ValueError, match="out of bounds"):
        bounds.check_bounds(put_together(changed(parts, name, at, value), BufferPool()), n_ids)


@pytest.mark.parametrize("verify", [True, False])
def test_a_store_with_sound_checksums_and_a_wrong_id_is_damaged(
    tmp_path: Path, verify: bool
) -> None:
    matcher = filled()
    contents = matcher.snapshot()

    def wrong(of: Callable[[], Parts]) -> Callable[[], Parts]:
        return lambda: changed(of(), "ids", -1, 2**31 - 1)

    segments = {name: wrong(of) for name, of in contents.segments.items()}
    folder.replace_store(to_place(tmp_path / "store"), contents._replace(segments=segments))
    with pytest.raises(DamagedStoreError, match="ids are out of bounds"):
        Matcher.open(tmp_path / "store", verify=verify)
