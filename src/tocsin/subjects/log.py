"""The log of a subject space: checksummed records in one file, with group commit.

Enters: records, each a JSON object and optional octets. Leaves: files of one generation after
another; and from a folder, the records that were written before the process ended.

A file begins with eight bytes that identify its format. A record is its length, the CRC-32 of what
follows, and the CRC-32 of these two (32 bits each); then the length of the JSON, the JSON, the
octets. Files of the first format lack the first eight bytes and the checksum of the length.

A torn record was not acknowledged and is truncated: a last record that ends beyond the file, or
with sectors that were never written and are zero. Any other mismatch, and any that a valid record
follows, is damage: an error that names the offset, and nothing is truncated. A new generation is a
complete snapshot, and is renamed once it is on disk.

Group commit: records are written at once; the first caller that waits syncs everything written so
far, and the others wait for that sync.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tocsin.errors import DamagedStoreError, NewerStoreError, StoreError
from tocsin.storage import disk

FORMAT = "tocsin subject space"
VERSION = 2
MAGIC = b"\x89TCSPC2\n"
_NAME = re.compile(r"space-(\d{16})\.log")
_HEAD = struct.Struct("<III")
"""Length, checksum of the body, checksum of both."""
_OLD_HEAD = struct.Struct("<II")
_PART = struct.Struct("<I")
_SECTOR = 512
_OP = b'{"op":'
"""The first bytes of the JSON of every record except the first."""


class Record(NamedTuple):
    """The JSON fields of a record, and its octets."""

    fields: dict[str, Any]
    octets: bytes = b""


def encode_record(record: Record, version: int = VERSION) -> bytes:
    """Return the bytes of a record; raise TypeError or ValueError for fields that are not JSON."""
    text = json.dumps(record.fields, separators=(",", ":")).encode()
    body = _PART.pack(len(text)) + text + record.octets
    head = _OLD_HEAD.pack(len(body), zlib.crc32(body))
    return head + (b"" if version == 1 else _PART.pack(zlib.crc32(head))) + body


def version_of(data: bytes) -> int:
    """Return the format version of a file."""
    return 2 if data.startswith(MAGIC) else 1


def read_records(path: Path, data: bytes) -> Iterator[tuple[Record, int]]:
    """Yield the records of a file with their end offsets; stop at a torn record."""
    version = version_of(data)
    at = len(MAGIC) if version > 1 else 0
    while at < len(data):
        body = _body_at(data, at, version)
        if body is None:
            _check_torn(path, data, at, version)
            return
        (n_text,) = _PART.unpack_from(body)
        try:
            fields = json.loads(body[_PART.size : _PART.size + n_text])
        except (ValueError, RecursionError):
            raise DamagedStoreError(str(path), f"the record at byte {at} is not JSON") from None
        if not isinstance(fields, dict):
            raise DamagedStoreError(str(path), f"the record at byte {at} is not a JSON object")
        at += _head_size(version) + len(body)
        yield Record(fields, body[_PART.size + n_text :]), at


def _head_size(version: int) -> int:
    return _OLD_HEAD.size if version == 1 else _HEAD.size


def _length_at(data: bytes, at: int, version: int) -> int | None:
    """Return the length of the record at an offset; None if it is torn or damaged."""
    if at < 0 or at + _head_size(version) > len(data):
        return None
    if version == 1:
        return int(_OLD_HEAD.unpack_from(data, at)[0])
    n_bytes, _, checksum = _HEAD.unpack_from(data, at)
    is_valid = zlib.crc32(data[at : at + _OLD_HEAD.size]) == checksum
    return int(n_bytes) if is_valid else None


def _body_at(data: bytes, at: int, version: int) -> bytes | None:
    """Return the body of the record at an offset; None if it is torn or damaged."""
    n_bytes = _length_at(data, at, version)
    first = at + _head_size(version)
    if n_bytes is None or n_bytes < _PART.size or first + n_bytes > len(data):
        return None
    body = data[first : first + n_bytes]
    return body if zlib.crc32(body) == _OLD_HEAD.unpack_from(data, at)[1] else None


def _check_torn(path: Path, data: bytes, at: int, version: int) -> None:
    """Raise `DamagedStoreError` unless the record at an offset is torn."""
    if not any(data[at:]):
        return
    follows = _valid_after(data, at, version)
    if follows is not None:
        reason = f"a valid one follows at byte {follows}; nothing was changed"
        raise DamagedStoreError(
            str(path), f"the record at byte {at} does not match its checksum, and {reason}"
        )
    n_bytes = _length_at(data, at, version)
    end = len(data) if n_bytes is None else at + _head_size(version) + n_bytes
    is_cut = at + _head_size(version) > len(data) or end > len(data)
    if not is_cut and not _has_empty_sector(data, at, min(end, len(data))):
        raise DamagedStoreError(
            str(path), f"the record at byte {at}, the last one, does not match its checksum"
        )


def _valid_after(data: bytes, at: int, version: int) -> int | None:
    """Return the offset of the next valid record after an offset, or None."""
    before = _head_size(version) + _PART.size
    text = data.find(_OP, at + before + 1)
    while text >= 0:
        if _body_at(data, text - before, version) is not None:
            return text - before
        text = data.find(_OP, text + 1)
    return None


def _has_empty_sector(data: bytes, at: int, end: int) -> bool:
    """Whether some sector of a record is all zeros: a new sector that was never written."""
    cuts = [at, *range(at // _SECTOR * _SECTOR + _SECTOR, end, _SECTOR), end]
    return any(not any(data[a:b]) for a, b in itertools.pairwise(cuts) if b - a > 3)


class Log:
    """The log files of a folder, locked by one process."""

    def __init__(self, folder: Path, sync: bool = True) -> None:
        self.folder = folder
        self._sync = sync
        self._progress = threading.Condition()
        self._written = self._synced = 0
        self._is_syncing = False
        self._failed: str | None = None
        self._file = self._lock = -1
        self._version = VERSION
        try:
            disk.make_folder(folder)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.generation, self.path = self._newest()
        except BaseException as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise StoreError(str(folder), "it is open elsewhere") from None
            if isinstance(error, OSError):
                raise self._refused("opened", error) from error
            raise

    def _refused(self, what: str, error: OSError) -> StoreError:
        return StoreError(str(self.folder), f"cannot be {what}: {error.strerror or error}")

    def _newest(self) -> tuple[int, Path | None]:
        names = disk.names(self.folder)
        logs = [m for name in names if (m := _NAME.fullmatch(name))]
        if not logs:
            strangers = [n for n in names if n != "lock" and ".log.new" not in n]
            if strangers:
                raise StoreError(str(self.folder), "the folder has other files")
            return 0, None
        newest = max(logs, key=lambda match: int(match[1]))
        for match in logs:
            if match is not newest:
                disk.remove(self.folder / match[0])
        return int(newest[1]), self.folder / newest[0]

    def read(self) -> Iterator[Record]:
        """Yield the records, and open the file for appending after the last complete one."""
        assert self.path is not None
        try:
            data = disk.read_file(self.path)
        except OSError as error:
            raise self._refused("read", error) from error
        end = 0
        for at, (record, stop) in enumerate(read_records(self.path, data)):
            if at == 0:
                _check_head(self.path, record)
            end = stop
            yield record
        if end == 0:
            raise DamagedStoreError(str(self.path), "it has no first record")
        self._version = version_of(data)
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            if end < len(data):
                disk.truncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
            disk.sync(self._file)
        except OSError as error:
            raise self._refused("opened", error) from error
        self._written = self._synced = end

    def start(self, records: Iterable[Record]) -> None:
        """Replace the current generation by a new one that begins with some records.

        If it cannot be written, the current one stays in use.
        """
        path = self.folder / f"space-{self.generation + 1:016d}.log"
        fresh = path.with_suffix(".log.new")
        file = None
        try:
            with disk.NewFile(fresh, 0o644) as new:
                n_bytes = new.write(MAGIC)
                for record in records:
                    n_bytes += new.write(encode_record(record))
                new.sync()
                disk.rename(fresh, path)
                file = new.detach()
        except BaseException as error:
            with contextlib.suppress(OSError):
                disk.remove(fresh)
            if isinstance(error, OSError):
                raise self._refused("written", error) from error
            raise
        self._switch_to(file, n_bytes, path)

    def _switch_to(self, file: int, n_bytes: int, path: Path) -> None:
        """Switch to a renamed file, which a process that opens the folder takes as the newest.

        So nothing may be appended to the previous file, even if the rename is not on disk yet.
        """
        with self._progress:
            old, self._file = self._file, file
            self._written = self._synced = n_bytes
            self._version = VERSION
            self.generation += 1  # with the positions: a sync of the old file must not count here
            self._progress.notify_all()
        if old >= 0:
            os.close(old)
        before, self.path = self.path, path
        try:
            disk.sync_folder(self.folder)
        except OSError as error:
            self._fail(f"cannot be synced: {error.strerror or error}; open it again")
        if before is not None:
            with contextlib.suppress(OSError):  # removed when the folder is opened next
                disk.remove(before)

    @property
    def n_bytes(self) -> int:
        """Length of the file."""
        return self._written

    def encode(self, record: Record) -> bytes:
        """Return the bytes of a record; raise TypeError or ValueError if it is not JSON."""
        return encode_record(record, self._version)

    def append(self, record: Record | bytes) -> tuple[int, int]:
        """Write a record; return a ticket for `wait`. Calls must be serialized."""
        if self._failed is not None:
            raise StoreError(str(self.folder), self._failed)
        octets = self.encode(record) if isinstance(record, Record) else record
        try:
            n_bytes = disk.write_all(self._file, octets)
        except OSError as error:
            self._fail(f"cannot be written: {error.strerror or error}; open it again")
        with self._progress:
            self._written += n_bytes
            return self.generation, self._written

    def _fail(self, reason: str) -> None:
        with self._progress:
            self._failed = reason
            self._progress.notify_all()
        raise StoreError(str(self.folder), reason)

    def wait(self, until: tuple[int, int]) -> None:
        """Wait until the record of a ticket is on disk."""
        if not self._sync:
            return
        generation, position = until
        while True:
            with self._progress:
                while self._is_syncing and self._is_due(generation, position):
                    self._progress.wait()
                if self._failed is not None:
                    raise StoreError(str(self.folder), self._failed)
                if not self._is_due(generation, position):
                    return
                self._is_syncing = True
                target, file, of = self._written, os.dup(self._file), self.generation
            try:
                disk.sync(file)
            except OSError as error:
                self._is_syncing = False
                self._fail(f"cannot be synced: {error.strerror or error}; open it again")
            finally:
                os.close(file)
            with self._progress:
                self._is_syncing = False
                if of == self.generation:
                    self._synced = max(self._synced, target)
                self._progress.notify_all()

    def _is_due(self, generation: int, position: int) -> bool:
        """Whether a position is not on disk yet; a new generation contains all earlier records."""
        if self._failed is not None:
            return False
        return generation == self.generation and self._synced < position

    def check(self) -> None:
        """Raise an error if an earlier write has failed."""
        if self._failed is not None:
            raise StoreError(str(self.folder), self._failed)

    def close(self) -> None:
        """Sync and close; raise an error if records may not be on disk."""
        file, self._file = self._file, -1
        lock, self._lock = self._lock, -1
        try:
            if file >= 0 and self._failed is None:
                disk.sync(file)
        except OSError as error:
            raise self._refused("synced", error) from error
        finally:
            if file >= 0:
                self._failed = "it is closed"
                os.close(file)
            if lock >= 0:
                os.close(lock)


def _check_head(path: Path, record: Record) -> None:
    if record.fields.get("format") != FORMAT:
        raise DamagedStoreError(str(path), "it is not the log of a subject space")
    version = record.fields.get("version", 0)
    if not isinstance(version, int) or version < 1:
        raise DamagedStoreError(str(path), f"there is no version {version!r}")
    if version > VERSION:
        raise NewerStoreError(str(path), f"it has version {record.fields['version']}")
