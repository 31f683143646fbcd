"""The log: whole records come back, one that was being written is cut off, damage is told."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tocsin.errors import DamagedStoreError, NewerStoreError, StoreError
from tocsin.subjects.log import FORMAT, VERSION, Log, Record, encode_record

HEAD = Record({"format": FORMAT, "version": VERSION})


def a_log(path: Path, n: int = 3) -> Path:
    log = Log(path)
    log.start([HEAD])
    for i in range(n):
        log.wait(log.append(Record({"op": i}, bytes([i]) * i)))
    log.close()
    assert log.path is not None
    return log.path


def ops(path: Path) -> list[int]:
    log = Log(path)
    try:
        found = list(log.read())
        assert found[0] == HEAD
        assert all(record.octets == bytes([record.fields["op"]]) * i for i, record in
                   enumerate(found[1:]))  # fmt: skip
        return [record.fields["op"] for record in found[1:]]
    finally:
        log.close()


def test_records_come_back_whole_and_in_order(tmp_path: Path) -> None:
    a_log(tmp_path)
    assert ops(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("cut", [1, 5, 9, 12])
def test_a_record_that_was_being_written_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = a_log(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert ops(tmp_path) == [0, 1]
    log = Log(tmp_path)
    list(log.read())
    log.wait(log.append(Record({"op": 2}, b"\2\2")))
    log.close()
    assert ops(tmp_path) == [0, 1, 2]


def test_zeroes_at_the_end_are_cut_off(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(100))
    assert ops(tmp_path) == [0, 1, 2]


def test_damage_in_the_middle_is_told_and_nothing_is_dropped(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    octets = bytearray(path.read_bytes())
    octets[len(encode_record(HEAD)) + 14] ^= 1
    path.write_bytes(octets)
    with pytest.raises(DamagedStoreError, match="checksum"):
        ops(tmp_path)
    assert path.read_bytes() == octets


def test_a_newer_or_foreign_log_is_refused(tmp_path: Path) -> None:
    newer, foreign, other = tmp_path / "newer", tmp_path / "foreign", tmp_path / "other"
    for path, said in (
        (newer, {**HEAD.fields, "version": VERSION + 1}),
        (foreign, {"format": "?"}),
    ):
        log = Log(path)
        log.start([Record(said)])
        log.close()
    with pytest.raises(NewerStoreError):
        ops(newer)
    with pytest.raises(DamagedStoreError):
        ops(foreign)
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="other files"):
        Log(other)


def test_a_folder_is_open_once_at_a_time(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with pytest.raises(StoreError, match="elsewhere"):
        Log(tmp_path)
    log.close()
    Log(tmp_path).close()


def test_a_new_generation_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    old = a_log(tmp_path)
    log = Log(tmp_path)
    list(log.read())
    log.start([HEAD, Record({"op": 0})])
    log.close()
    assert not old.exists()
    assert ops(tmp_path) == [0]


def test_many_threads_wait_for_the_disk_together(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.start([HEAD])
    lock = threading.Lock()

    def work() -> None:
        for _ in range(20):
            with lock:
                ticket = log.append(Record({"op": 0}))
            log.wait(ticket)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log._synced == log.n_bytes
    log.close()
    log = Log(tmp_path)
    assert len(list(log.read())) == 81
    log.close()


def test_a_sync_of_the_old_file_does_not_count_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file's sync ends just when the new file is in use and the old one is to go."""
    log = Log(tmp_path)
    log.start([HEAD])
    ticket = log.append(Record({"op": 0}, bytes(1000)))
    waiter = threading.Thread(target=log.wait, args=[ticket])
    is_syncing, may_end = threading.Event(), threading.Event()
    synced, sync, unlink = [], os.fsync, os.unlink

    def held_sync(file: int) -> None:
        sync(file)
        synced.append(file)
        if threading.current_thread() is waiter:
            is_syncing.set()
            assert may_end.wait(60)

    def late_unlink(path: Path) -> None:
        may_end.set()
        waiter.join()
        unlink(path)

    monkeypatch.setattr(os, "fsync", held_sync)
    monkeypatch.setattr(os, "unlink", late_unlink)
    waiter.start()
    assert is_syncing.wait(60)
    log.start([HEAD])
    assert not waiter.is_alive()
    n_synced = len(synced)
    log.wait(log.append(Record({"op": 1}, b"1")))
    assert len(synced) == n_synced + 1
    log.close()
