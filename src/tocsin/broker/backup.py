"""Backups of a broker's database, and how they are put back.

Enters: a broker's folder and a file. Leaves: a checked copy of the database, also while the broker
runs; or the folder with the copy in place of its database, marked so that the next start begins an
epoch (`epoch.py`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from tocsin.broker import epoch, schema
from tocsin.broker.epoch import make_private, sync_folder
from tocsin.broker.storage import FILE, connect, explained, take_lock
from tocsin.errors import ArgumentError, DamagedStoreError, NoStoreError, StoreError

BEFORE = f"{FILE}.before-restore"
_PAGES = 4_096


def back_up(folder: Path, target: Path) -> int:
    """Copy the database of a folder to a new file, and check the copy; return its bytes."""
    source = folder / FILE
    if not source.exists():
        raise NoStoreError(str(source), "there is no broker's database")
    if target.exists():
        raise ArgumentError(f"{target} exists already")
    with explained(source), contextlib.closing(connect(source)) as connection:
        _copy(connection, target)
    sync_folder(target.parent)
    return target.stat().st_size


def restore(folder: Path, source: Path | None) -> None:
    """Put a backup in the place of a folder's database; the next start begins an epoch.

    Without a file the database stays: it was put there by other means. The database that was there
    is kept as `broker.db.before-restore`. No broker may run on the folder.
    """
    path = folder / FILE
    if source is None and not path.exists():
        raise NoStoreError(str(path), "there is no broker's database")
    with contextlib.closing(take_lock(folder)):
        new = path.with_name(f"{FILE}.restoring")
        if source is not None:
            _take_copy(source, new)
        with explained(folder / epoch.FILE):
            record = epoch.read(folder)
            reserved = max(_reserved(path), 0 if record is None else record.reserved)
            epoch.write(folder, epoch.Record(0, reserved, 0))
        if source is not None:
            with explained(path):
                _set_aside(path)
                new.replace(path)
                sync_folder(folder)


def _take_copy(source: Path, new: Path) -> None:
    """Copy a backup next to the database, and check that it is one that this version reads."""
    if not source.exists():
        raise NoStoreError(str(source), "there is no such file")
    new.unlink(missing_ok=True)
    with explained(source), contextlib.closing(_open_read_only(source)) as old:
        names = {name for (name,) in old.execute("SELECT name FROM sqlite_master")}
        if not {"meta", "subscriptions", "events", "notifications"} <= names:
            raise StoreError(str(source), "this is no broker's database")
        schema.check_version(old, str(source))
        _copy(old, new)


def _open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    """Copy a database to a file that only its owner can read, and check the copy."""
    make_private(target)
    try:
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            connection.backup(copy, pages=_PAGES)
            copy.execute("PRAGMA journal_mode=DELETE")  # all is in the one file
            rows = copy.execute("PRAGMA quick_check(1)").fetchall()
        if rows != [("ok",)]:
            raise DamagedStoreError(str(target), f"the copy is damaged: {rows[0][0]}")
        with target.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _reserved(path: Path) -> int:
    """Return the numbers that the database being replaced has reserved, where it can be read."""
    if not path.exists():
        return 0
    with contextlib.suppress(sqlite3.Error), contextlib.closing(connect(path)) as connection:
        return schema.first_free(connection)
    return 0


def _set_aside(path: Path) -> None:
    """Rename the old database, after a checkpoint of its log."""
    if not path.exists():
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.with_name(f"{FILE}-shm").unlink(missing_ok=True)
    for end in ("", "-wal"):
        path.with_name(f"{BEFORE}{end}").unlink(missing_ok=True)
    path.with_name(BEFORE).hardlink_to(path)
    remains = path.with_name(f"{FILE}-wal")
    if remains.exists():  # of a database that cannot be read; it must not meet the new one
        remains.replace(path.with_name(f"{BEFORE}-wal"))
