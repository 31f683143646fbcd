"""What a space on disk acknowledged can be opened again; damage is an error, never silent."""

from __future__ import annotations

import math
import struct
import sys
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import ArgumentError, DamagedStoreError, EventError, StoreError, TocsinError
from tocsin.language.expression import Comparison, Literal
from tocsin.model import EventType, Kind
from tocsin.subjects import Range
from tocsin.subjects.log import MAGIC, Log, Record, encode_record, read_records
from tocsin.subjects.model import Interest, InterestRegion, Notify
from tocsin.subjects.space import SubjectSpace

BELOW_INFINITY = Comparison("x", "<", Literal(math.inf, Kind.FLOAT))


def log_of(folder: Path) -> Path:
    return next(folder.glob("*.log"))


def starts(path: Path) -> list[int]:
    """Return where the records of a log begin."""
    data = path.read_bytes()
    return [len(MAGIC), *(end for _, end in read_records(path, data))][:-1]


def a_space(folder: Path, n: int = 30) -> Path:
    with SubjectSpace.open(folder) as space:
        space.subscribe("small", "x < 10")
        for i in range(n):
            space.publish(i, {"x": i, "name": f"number {i}"})
    return log_of(folder)


def test_a_flipped_bit_of_a_length_in_the_middle_is_an_error_that_says_where(
    tmp_path: Path,
) -> None:
    path = a_space(tmp_path)
    data = bytearray(path.read_bytes())
    at = starts(path)[-20]
    data[at + 2] ^= 0x10  # the record seems to be a megabyte longer
    path.write_bytes(data)
    with pytest.raises(DamagedStoreError, match=f"the record at byte {at} "):
        SubjectSpace.open(tmp_path)
    assert path.read_bytes() == data, "nothing is cut off"


def test_a_flipped_bit_anywhere_in_a_log_is_an_error_or_harmless(tmp_path: Path) -> None:
    path = a_space(tmp_path, 12)
    octets = path.read_bytes()
    source = Random(3)
    last = starts(path)[-1]
    places = [*range(20), *range(last, len(octets)), *source.sample(range(len(octets)), 150)]
    for at in places:
        data = bytearray(octets)
        data[at] ^= 1 << source.randrange(8)
        path.write_bytes(data)
        with pytest.raises(StoreError, match=path.name):
            SubjectSpace.open(tmp_path)
        assert path.read_bytes() == data
    path.write_bytes(octets)
    assert len(SubjectSpace.open(tmp_path).publications) == 12


def test_a_log_that_ends_anywhere_in_its_last_record_opens_without_it(tmp_path: Path) -> None:
    path = a_space(tmp_path, 4)
    octets = path.read_bytes()
    last = starts(path)[-1]
    for n in range(last, len(octets)):
        path.write_bytes(octets[:n])
        with SubjectSpace.open(tmp_path) as space:
            assert len(space.publications) == 3


def test_a_last_record_of_which_a_sector_was_never_written_is_cut_off(tmp_path: Path) -> None:
    path = a_space(tmp_path, 4)
    with SubjectSpace.open(tmp_path) as space:
        space.publish("long", {"text": "x" * 3_000})
    octets = path.read_bytes()
    last = starts(path)[-1]
    for first in range(-(-last // 512) * 512, len(octets), 512):
        size = min(512, len(octets) - first)
        path.write_bytes(octets[:first] + bytes(size) + octets[first + size :])
        with SubjectSpace.open(tmp_path) as space:
            assert len(space.publications) == 4


def old_log(folder: Path, n: int) -> Path:
    """Write the log of a space as earlier releases did, without a checksum of lengths."""
    with SubjectSpace.open(folder) as space:
        for i in range(n):
            space.publish(i, {"x": i})
    path = log_of(folder)
    records = [record for record, _ in read_records(path, path.read_bytes())]
    records[0] = Record({**records[0].fields, "version": 1})
    written = []
    for record in records:
        octets = encode_record(record)
        written.append(octets[:8] + octets[12:])
        assert struct.unpack("<II", written[-1][:8])[1] == zlib.crc32(written[-1][8:])
    path.write_bytes(b"".join(written))
    return path


def test_a_log_of_an_earlier_release_is_opened_and_goes_on(tmp_path: Path) -> None:
    path = old_log(tmp_path, 5)
    with SubjectSpace.open(tmp_path) as space:
        assert len(space.publications) == 5
        space.publish("new", {"x": 1})
    assert not path.read_bytes().startswith(MAGIC)
    with SubjectSpace.open(tmp_path) as space:
        assert len(space.publications) == 6
        assert len(space.recovered) == 6
        space.compact()
        space.publish("newer", {"x": 1})
    assert log_of(tmp_path).read_bytes().startswith(MAGIC)
    with SubjectSpace.open(tmp_path) as space:
        assert len(space.publications) == 7


def test_a_flipped_length_in_a_log_of_an_earlier_release_is_an_error(tmp_path: Path) -> None:
    path = old_log(tmp_path, 20)
    data = bytearray(path.read_bytes())
    at = [0, *(end for _, end in read_records(path, bytes(data)))][-10]
    data[at + 2] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(DamagedStoreError, match=f"the record at byte {at} "):
        SubjectSpace.open(tmp_path)
    assert path.read_bytes() == data


def test_a_ttl_that_has_no_end_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with SubjectSpace.open(tmp_path) as space:
        space.publish("important", {"x": 1})
        table = pa.table({"key": ["k"], "x": [1]})
        calls: list[Any] = [
            lambda: space.publish("k", {"x": 1}, ttl=sys.maxsize),
            lambda: space.publish("k", {"x": 1}, ttl=1e300),
            lambda: space.publish_many(table, ttl=sys.maxsize),
            lambda: space.touch("important", sys.maxsize),
            lambda: space.subscribe("a", "x = 1", ttl=sys.maxsize),
        ]
        for call in calls:
            with pytest.raises(ArgumentError, match="year 9999"):
                call()
        assert len(space.publications) == 1
    with SubjectSpace.open(tmp_path) as space:
        assert len(space.publications) == 1


def test_a_ttl_without_an_end_that_an_earlier_release_logged_is_opened(tmp_path: Path) -> None:
    a_space(tmp_path, 1)
    log = Log(tmp_path)
    list(log.read())
    said = {"op": "publish", "now": 10**15, "key": "k", "values": {"x": 1}, "whole": None}
    log.wait(log.append(Record({**said, "until": 10**15 + sys.maxsize * 10**6})))
    log.close()
    with SubjectSpace.open(tmp_path) as space:
        assert "k" in space.publications


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_an_expression_with_a_float_that_has_no_literal_is_opened_again(
    tmp_path: Path, value: float
) -> None:
    where = Comparison("x", "<", Literal(value, Kind.FLOAT))
    with SubjectSpace.open(tmp_path) as space:
        space.publish("k", {"x": 1})
        space.subscribe("a", where)
        space.subscribe("b", "x = 5")
        space.update("b", where=where)
        space.subscribe("c", Interest({"r": InterestRegion(where)}))
        expected = space.subscriptions_of("k")
    with SubjectSpace.open(tmp_path) as space:
        assert space.subscriptions_of("k") == expected
        assert expected == (["a", "b", "c"] if value > 0 else [])
        space.compact()
    with SubjectSpace.open(tmp_path) as space:
        assert space.subscriptions_of("k") == expected


def test_notify_is_taken_as_a_member_of_its_enumeration(tmp_path: Path) -> None:
    notify: Any = Notify.ENTER
    with SubjectSpace.open(tmp_path) as space:
        space.subscribe("a", "x > 0", notify=notify)
        space.subscribe("b", "x > 0")
        space.update("b", notify=notify)
        space.subscribe_many(pa.table({"id": ["c"], "where": ["x > 0"]}), notify=notify)
    with SubjectSpace.open(tmp_path) as space:
        assert len(space) == 3
        assert len(space.publish("k", {"x": 1})) == 3
        assert len(space.retract("k")) == 0


def test_what_the_log_cannot_hold_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with SubjectSpace.open(tmp_path) as space:
        space.publish("k", {"x": 1})
        bad: Any = {1: "a number for a name"}
        for values in (bad, {"x": bad}):
            with pytest.raises(TocsinError):
                space.publish("k", values)
        assert space.publication("k") == {"x": 1}
        assert space.sequence == 1
    with SubjectSpace.open(tmp_path) as space:
        assert space.publication("k") == {"x": 1}


def test_a_table_of_ranges_is_taken_where_the_attribute_is_declared() -> None:
    table = pa.table({"key": ["a", "b"], "x": pa.array([{"low": 1.0, "high": 2.0}, None])})
    space = tocsin.SubjectSpace(EventType("P", x=float, name=str))
    space.subscribe("s", "x > 1.5")
    one = space.publish("one", {"x": Range(1.0, 2.0)})
    assert [t.kind for t in space.publish_many(table)] == [t.kind for t in one]
    assert space.publications_of("s") == ["one", "a"]
    wrong = pa.table({"key": ["c"], "x": pa.array([{"low": "a", "high": "b"}])})
    with pytest.raises(EventError, match="'x'"):
        space.publish_many(wrong)
    mixed = table.append_column("name", pa.array([1, 2]))
    with pytest.raises(EventError, match="declared string"):
        space.publish_many(mixed)
