"""The log of a subject space: checksummed records in one file, and who waits for the disk.

Enters: records, each a JSON object and perhaps octets beside it. Leaves: files of one generation
after another; and from a folder, whatever was there before the machine stopped.

A record is its length and CRC-32 (32 bits each), the length of the JSON, the JSON, the octets. A
record that ends beyond the file, or that is the last and does not fit its checksum, was being
written when the machine stopped: nobody was told of it, and it is cut off. Any other that does not
fit is damage. A new generation holds all that counts, and takes its name once it is on disk.

Group commit: records are written at once; whoever waits for the disk first has everything written
so far synced, and the others wait for that.
"""

from __future__ import annotations

import fcntl
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

FORMAT = "tocsin subject space"
VERSION = 1
_NAME = re.compile(r"space-(\d{16})\.log")
_HEAD = struct.Struct("<II")
_PART = struct.Struct("<I")


class Record(NamedTuple):
    """What a record says, and octets that go with it."""

    said: dict[str, Any]
    octets: bytes = b""


def write_record(record: Record) -> bytes:
    """Return a record as it stands in a file."""
    text = json.dumps(record.said, separators=(",", ":")).encode()
    body = _PART.pack(len(text)) + text + record.octets
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def read_records(path: Path) -> Iterator[tuple[Record, int]]:
    """Yield the records of a file, and where each ends; stop at one that was being written."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        end = at + _HEAD.size
        if end > len(data):
            return
        n_bytes, checksum = _HEAD.unpack_from(data, at)
        body = data[end : end + n_bytes]
        end += n_bytes
        if end > len(data):
            return
        if n_bytes < _PART.size or zlib.crc32(body) != checksum:
            if end == len(data) or not any(data[at:]):
                return
            raise DamagedStoreError(str(path), f"the record at byte {at} does not fit its checksum")
        (n_text,) = _PART.unpack_from(body)
        try:
            said = json.loads(body[_PART.size : _PART.size + n_text])
        except ValueError:
            raise DamagedStoreError(str(path), f"the record at byte {at} is no JSON") from None
        yield Record(said, body[_PART.size + n_text :]), end
        at = end


class Log:
    """The files of one folder; open for one process at a time."""

    def __init__(self, folder: Path, sync: bool = True) -> None:
        self.folder = folder
        self._sync = sync
        self._done = threading.Condition()
        self._written = self._synced = 0
        self._is_syncing = False
        self._failed: str | None = None
        self._file = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StoreError(str(folder), "it is open elsewhere") from None
        except OSError as error:
            raise StoreError(str(folder), f"cannot be opened: {error.strerror or error}") from error
        self.generation, self.path = self._newest()

    def _newest(self) -> tuple[int, Path | None]:
        names = [entry.name for entry in self.folder.iterdir()]
        found = [m for name in names if (m := _NAME.fullmatch(name))]
        if not found:
            strangers = [n for n in names if n != "lock" and ".log.new" not in n]
            if strangers:
                raise StoreError(str(self.folder), "the folder holds something else")
            return 0, None
        newest = max(found, key=lambda match: int(match[1]))
        for match in found:
            if match is not newest:
                (self.folder / match[0]).unlink()
        return int(newest[1]), self.folder / newest[0]

    def read(self) -> Iterator[Record]:
        """Yield what is there, and open the file behind the last whole record for what follows."""
        assert self.path is not None
        end = 0
        for at, (record, stop) in enumerate(read_records(self.path)):
            if at == 0:
                _check_head(self.path, record)
            end = stop
            yield record
        if end == 0:
            raise DamagedStoreError(str(self.path), "it has no first record")
        self._file = os.open(self.path, os.O_WRONLY)
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)
        os.fsync(self._file)
        self._written = self._synced = end

    def start(self, records: Iterable[Record]) -> None:
        """Begin a new generation with some records, in the place of the one before."""
        path = self.folder / f"space-{self.generation + 1:016d}.log"
        fresh = path.with_suffix(".log.new")
        try:
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            n_bytes = 0
            for record in records:
                n_bytes += _write_all(file, write_record(record))
            os.fsync(file)
            fresh.rename(path)
            self._sync_folder()
        except OSError as error:
            raise StoreError(str(path), f"cannot be written: {error.strerror or error}") from error
        with self._done:
            old, self._file = self._file, file
            self._written = self._synced = n_bytes
            self.generation += 1  # with the positions: a sync of the old file must not count here
            self._done.notify_all()
        if old >= 0:
            os.close(old)
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.path = path

    @property
    def n_bytes(self) -> int:
        """How long the file is."""
        return self._written

    def append(self, record: Record) -> tuple[int, int]:
        """Write a record; return what `wait` takes. Calls are not concurrent."""
        if self._failed is not None:
            raise StoreError(str(self.folder), self._failed)
        try:
            n_bytes = _write_all(self._file, write_record(record))
        except OSError as error:
            self._fail(f"cannot be written: {error.strerror or error}; open it again")
        with self._done:
            self._written += n_bytes
            return self.generation, self._written

    def _fail(self, reason: str) -> None:
        with self._done:
            self._failed = reason
            self._done.notify_all()
        raise StoreError(str(self.folder), reason)

    def wait(self, until: tuple[int, int]) -> None:
        """Return when what was appended is on disk."""
        if not self._sync:
            return
        generation, position = until
        while True:
            with self._done:
                while self._is_syncing and self._is_due(generation, position):
                    self._done.wait()
                if self._failed is not None:
                    raise StoreError(str(self.folder), self._failed)
                if not self._is_due(generation, position):
                    return
                self._is_syncing = True
                target, file, of = self._written, os.dup(self._file), self.generation
            try:
                os.fsync(file)
            except OSError as error:
                self._is_syncing = False
                self._fail(f"cannot be synced: {error.strerror or error}; open it again")
            finally:
                os.close(file)
            with self._done:
                self._is_syncing = False
                if of == self.generation:
                    self._synced = max(self._synced, target)
                self._done.notify_all()

    def _is_due(self, generation: int, position: int) -> bool:
        """Whether something is not on disk yet; a new generation has all that came before it."""
        if self._failed is not None:
            return False
        return generation == self.generation and self._synced < position

    def check(self) -> None:
        """Raise an error where an earlier write has failed."""
        if self._failed is not None:
            raise StoreError(str(self.folder), self._failed)

    def close(self) -> None:
        """Sync and close."""
        if self._file >= 0:
            if self._failed is None:
                os.fsync(self._file)
            os.close(self._file)
            self._file = -1
            self._failed = "it is closed"
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _sync_folder(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _check_head(path: Path, record: Record) -> None:
    if record.said.get("format") != FORMAT:
        raise DamagedStoreError(str(path), "it is not the log of a subject space")
    if record.said.get("version", 0) > VERSION:
        raise NewerStoreError(str(path), f"it has version {record.said['version']}")


def _write_all(file: int, octets: bytes) -> int:
    view = memoryview(octets)
    while view:
        view = view[os.write(file, view) :]
    return len(octets)
