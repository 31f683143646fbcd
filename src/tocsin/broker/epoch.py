"""Epochs: how a broker notices that its database is a restored backup.

Enters: the database of a folder and the file `epoch` next to it, which a backup of the database
does not bring back. Leaves: the first event number that may be used, and which numbers belong to
the current epoch.

Event numbers are reserved in blocks. The end of the last block is stored in the database first and
in the file afterwards, and only then are its numbers used. So a database that reserves less than
the file, has another epoch, is another file (by its inode), or has no file next to it or a copied
one, may have been restored. It then begins an epoch: its numbers start beyond every number that was
ever used, and the broker takes a new instance id, by which neighbours notice that it is not the one
they knew. Being wrong about this costs a few repeated deliveries; a number used twice would lose
events.

A file system gives the inode of a deleted file again, but then with another generation, so the
epoch file says which generation it has itself. (The database is never opened here: closing it would
give up SQLite's locks.)
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tocsin.broker import schema

FILE = "epoch"
_GET_VERSION = 0x80087601
"""Linux's FS_IOC_GETVERSION: the generation of an inode."""
_NO_INODE = -1
_AHEAD = 1 << 32
"""How far a new epoch is ahead of the last reserved number, whatever the clock says."""


class Record(NamedTuple):
    """What the file holds; `epoch` 0 says that the database has been restored."""

    epoch: int
    reserved: int
    inode: int


class Numbers(NamedTuple):
    """The numbers of an epoch: those from `first` on belong to it, those from `next` on are free.

    `reason` says why the epoch begins with this start; None where it goes on.
    """

    epoch: int
    first: int
    next: int
    reason: str | None = None


def make_private(path: Path) -> None:
    """Create a file that only its owner can read, or take the rights of others away."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _identify(handle: int) -> list[int]:
    """Return the inode of an open file and its generation, 0 where there are no generations."""
    try:
        answer = fcntl.ioctl(handle, _GET_VERSION, bytes(8))
    except OSError:
        answer = bytes(8)
    return [os.fstat(handle).st_ino, int.from_bytes(answer[:4], sys.byteorder)]


def read(folder: Path) -> Record | None:
    """Return what the file says; None where there is none, or none that can be read."""
    try:
        with (folder / FILE).open("rb") as file:
            fields = json.loads(file.read())
            own = _identify(file.fileno())
        is_copy = fields.get("own", own) != own
        inode = _NO_INODE if is_copy else int(fields["inode"])
        return Record(int(fields["epoch"]), int(fields["reserved"]), inode)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, record: Record) -> None:
    """Replace the file: it has the old or the new content, whenever the machine stops."""
    path, new = folder / FILE, folder / f"{FILE}.new"
    make_private(new)
    with new.open("wb") as file:
        fields = {**record._asdict(), "own": _identify(file.fileno())}
        file.write(json.dumps(fields).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(folder)


def begin(
    connection: sqlite3.Connection, record: Record | None, inode: int, block: int
) -> tuple[Numbers, Record]:
    """Reserve the first block of numbers of a start, in a new epoch where that is needed.

    Runs in a transaction; what is returned for the file is written when that is committed.
    """
    stored = schema.read_meta(connection)
    epoch, used = stored.get("epoch"), schema.first_free(connection)
    reason = _why_new(stored, record, inode, used)
    first, next = stored.get("epoch_first", 1), used
    if reason is not None:
        epoch = 1 + secrets.randbelow((1 << 62) - 1)
        if used > 1 or record is not None:
            used = max(used, 0 if record is None else record.reserved)
            next = max(time.time_ns() // 1000, used + _AHEAD)
        first = next
        schema.write_meta(connection, epoch=epoch, epoch_first=first)
        schema.renew_instance(connection, secrets.token_hex(8))
    schema.reserve(connection, next + block)
    assert epoch is not None
    fresh = reason is not None and next == 1
    numbers = Numbers(epoch, first, next, None if fresh else reason)
    return numbers, Record(epoch, next + block, inode)


def _why_new(
    stored: dict[str, int], record: Record | None, inode: int, used: int
) -> str | None:  # fmt: skip
    """Return why an epoch has to begin; None where the last one goes on."""
    if "epoch" not in stored and record is None and used == 1:
        return "the database is new"
    if record is None:
        return "there is no epoch file next to the database"
    if record.epoch == 0:
        return "a backup was restored"
    if stored.get("epoch") != record.epoch:
        return "the database is of another epoch"
    if stored.get("reserved", 1) < record.reserved:
        return "the database is older than the epoch file"
    if inode != record.inode:
        return "the database is a copy"
    return None
