"""Storage: changes of the database, with group commit.

Enters: functions that change the database, from the event loop. Leaves: futures that are done when
the change is on disk. One thread writes. It takes all waiting changes, runs them in one
transaction, commits, and only then answers. Where one function fails, the others are run again
without it, so that each fails for its own faults only. A second thread and connection read.

Each transaction stores its number. If COMMIT itself fails, the number shows whether the transaction
is stored all the same. If it is not, the recovery after a crash could still find it, so another is
committed over its remains in the log. If neither can be done, the outcome is unknown; the storage
then takes no more changes, and the broker has to be started again.

A lock on a file next to the database keeps a second broker away from the folder. It is taken before
the format of the database is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

from tocsin.broker import epoch, schema
from tocsin.broker.epoch import make_private
from tocsin.errors import (
    DamagedStoreError,
    EventError,
    StoreError,
    UnavailableError,
    UnknownOutcomeError,
)

T = TypeVar("T")
Outcome = tuple[Any, Any, Exception | None]
FILE = "broker.db"
LOCK = "lock"
SOUND = (3, 51, 3)
"""From this version on, SQLite keeps a database whole when two processes write and checkpoint."""
_MOST = 4_096
_STOP = None
_LOG_BYTES = 64 << 20
_CHECKED_EVERY = 100_000
_TIDY_EVERY, _TIDY_PAGES, _TIDY_LAST, _FEW_PAGES = 64, 256, 65_536, 1_024
"""The commits between two releases of space, and the pages that each releases."""
_PAUSES = (0.0, 0.05, 0.2, 0.5)
_REFUSED = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""Errors of COMMIT after which nothing of the transaction is in the log."""
log = logging.getLogger("tocsin.storage")


def connect(
    path: Path, synchronous: str = "full", *, wait: float = 5.0, is_writer: bool = False
) -> sqlite3.Connection:
    """Open a database in WAL mode; transactions are begun by hand.

    Only the broker's writer makes checkpoints: two processes that do so at the same time can damage
    the database (SQLite before 3.51.3).
    """
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=wait, cached_statements=256
    )
    try:
        connection.execute("PRAGMA busy_timeout=5000")
        if is_writer:
            connection.execute("PRAGMA auto_vacuum=incremental")  # counts for a new file only
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
        if not is_writer:
            connection.execute("PRAGMA wal_autocheckpoint=0")
    except BaseException:
        connection.close()
        raise
    return connection


def take_lock(folder: Path) -> IO[bytes]:
    """Lock a broker's folder, made where there is none, until the file is closed."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_private(folder / LOCK)
        file = (folder / LOCK).open("ab")
    except OSError as error:
        raise StoreError(str(folder), str(error)) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise StoreError(str(folder), "another broker uses this folder") from None
    return file


def open_folder(folder: Path, synchronous: str = "full") -> sqlite3.Connection:
    """Open the database of a folder for a command; make it where there is none.

    An older format is upgraded only where no broker runs: a running one may be of the version that
    wrote it.
    """
    path = folder / FILE
    with explained(path):
        if path.exists():
            connection = _open(path, synchronous)
            if schema.is_current(connection, str(path)):
                return connection
            connection.close()
        with contextlib.closing(_lock_to_upgrade(folder)):
            return _open_prepared(path, synchronous)


def _lock_to_upgrade(folder: Path) -> IO[bytes]:
    try:
        return take_lock(folder)
    except StoreError:
        raise StoreError(
            str(folder),
            "the database has an older format and a broker is running on it; "
            "stop the broker, then start this version, which upgrades the format",
        ) from None


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite or the file system says into an error of ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            raise DamagedStoreError(
                str(path), f"the database is damaged ({error}); `tocsin restore` puts a backup back"
            ) from None
        raise StoreError(str(path), str(error)) from None
    except OSError as error:
        raise StoreError(str(path), str(error)) from None


@contextlib.contextmanager
def decoded(path: Path, rows: str) -> Iterator[None]:
    """Report rows that cannot be what was written as damage of the database."""
    try:
        yield
    except StoreError:
        raise
    except (AttributeError, EventError, LookupError, TypeError, ValueError) as error:
        raise DamagedStoreError(
            str(path),
            f"the database is damaged ({rows} cannot be read: {error!r}); "
            "`tocsin restore` puts a backup back",
        ) from error


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the content of the file is wrong."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return "malformed" in str(error) or "not a database" in str(error)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _open(path: Path, synchronous: str, *, is_writer: bool = False) -> sqlite3.Connection:
    """Open a database whose files only their owner can read."""
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        file = path.with_name(name)
        if name == FILE or file.exists():
            make_private(file)
    return connect(path, synchronous, is_writer=is_writer)


def _open_prepared(
    path: Path, synchronous: str, *, is_writer: bool = False
) -> sqlite3.Connection:  # fmt: skip
    connection = _open(path, synchronous, is_writer=is_writer)
    try:
        schema.prepare(connection, str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def lock_folder(folder: Path) -> IO[bytes] | None:
    """Lock a folder until the file is closed; return None where a broker has the lock."""
    try:
        return take_lock(folder)
    except StoreError:
        return None


def check(connection: sqlite3.Connection, seconds: float) -> str | None:
    """Check for damage, for some seconds at most; return the first problem, or None.

    A check that does not come to its end says so in the log.
    """
    if seconds <= 0:
        return None
    end = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > end, _CHECKED_EVERY)
    try:
        rows = connection.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
            raise
        log.warning("the database was not checked whole within %g s (check_seconds)", seconds)
        return None
    finally:
        connection.set_progress_handler(None, 0)
    return None if rows == [("ok",)] else str(rows[0][0])


class _NotBegun(Exception):
    """A transaction could not begin: nothing of the group was tried."""


class Storage:
    """A broker's database. `submit` and `read` are called from the event loop only."""

    def __init__(
        self,
        folder: Path,
        synchronous: str = "full",
        *,
        check_seconds: float = 0.0,
        on_fatal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.path = folder / FILE
        self.n_commits = 0
        self.n_changes = 0
        self.failure: str | None = None
        self.fatal: str | None = None
        """Why no more changes are taken: the broker has to be started again."""
        self.on_fatal = on_fatal
        self._synchronous = synchronous
        self._lock = take_lock(folder)
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reading = ThreadPoolExecutor(1, "tocsin-read")
        self._thread = threading.Thread(target=self._run, name="tocsin-write", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._open(check_seconds)
        except BaseException:
            self._lock.close()
            raise

    def _open(self, check_seconds: float) -> None:
        with contextlib.ExitStack() as opened, explained(self.path):
            self._writer = _open_prepared(self.path, self._synchronous, is_writer=True)
            opened.callback(lambda: self._writer.close())
            wrong = check(self._writer, check_seconds)
            if wrong is not None:
                raise sqlite3.DatabaseError(f"malformed: {wrong}")
            with decoded(self.path, "the sequence numbers"):
                self._number = schema.last_stamp(self._writer)
            self._reader = connect(self.path, self._synchronous)
            opened.pop_all()

    def start(self) -> None:
        """Begin to write; from within the event loop that gets the answers."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def first(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function in a transaction at once, before anything was submitted."""
        with explained(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                result = work(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
                raise
        return result

    def begin_numbers(self, block: int) -> epoch.Numbers:
        """Reserve the first event numbers of this start, before anything was submitted."""
        inode = self.path.stat().st_ino
        record = epoch.read(self.folder)
        numbers, new = self.first(lambda c: epoch.begin(c, record, inode, block))
        with explained(self.folder / epoch.FILE):
            epoch.write(self.folder, new)
        return numbers

    async def reserve(self, current: int, upto: int) -> None:
        """Reserve event numbers of an epoch up to one; they may be used when this returns."""
        assert self._loop is not None
        await self.submit(schema.reserve, upto)
        record = epoch.Record(current, upto, self.path.stat().st_ino)
        try:
            await self._loop.run_in_executor(self._reading, epoch.write, self.folder, record)
        except OSError as error:
            raise UnavailableError(f"the epoch file cannot be written: {error}") from None

    def submit(self, change: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Have a change made; the future is done when it is on disk."""
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.put((change, args, future))
        return future

    def forget(self, change: Callable[..., object], *args: object) -> None:
        """Make a change without a future."""
        self._waiting.put((change, args, None))

    async def read(self, ask: Callable[..., T], *args: object) -> T:
        """Run a query in the reading thread."""
        assert self._loop is not None
        try:
            return await self._loop.run_in_executor(self._reading, ask, self._reader, *args)
        except sqlite3.Error as error:
            log.error("the database cannot be read: %s", error)
            raise UnavailableError(f"the broker cannot read its database: {error}") from None

    def find_problem(self) -> str | None:
        """Return the problem of the writing thread, or None."""
        return None if self._thread.is_alive() else "its thread has stopped"

    @property
    def n_waiting(self) -> int:
        """How many changes wait."""
        return self._waiting.qsize()

    # The writing thread.

    def _run(self) -> None:
        going = True
        while going:
            group = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(group) < _MOST:
                    group.append(self._waiting.get_nowait())
            going = _STOP not in group
            group = [each for each in group if each is not _STOP]
            if group:
                self._answer(self._write(group))
                if self.n_commits % _TIDY_EVERY == 0 and self._waiting.empty():
                    self._give_back(_TIDY_PAGES)

    def _give_back(self, most: int) -> None:
        """Give free pages back to the file system, where more than a quarter of all are free."""
        with contextlib.suppress(sqlite3.Error):
            (free,) = self._writer.execute("PRAGMA freelist_count").fetchone()
            (whole,) = self._writer.execute("PRAGMA page_count").fetchone()
            if free > max(_FEW_PAGES, whole // 4):
                n = min(most, free - whole // 8)
                # A row without columns comes for each page; `execute` would stop at the first.
                self._writer.executescript(f"PRAGMA incremental_vacuum({n})")

    def _write(self, group: list[Any]) -> list[Outcome]:
        """Make changes in one transaction; where it fails, each in one of its own."""
        try:
            if self.fatal is not None:
                raise _NotBegun from sqlite3.OperationalError(self.fatal)
            return self._transact(group)
        except _NotBegun as error:
            failure = self._explain(error.__cause__)
        except UnknownOutcomeError as error:
            failure = error
        except Exception as error:
            if len(group) > 1:
                return [outcome for each in group for outcome in self._write([each])]
            failure = self._explain(error)
        return [(future, None, failure) for _, _, future in group]

    def _transact(self, group: list[Any]) -> list[Outcome]:
        writer = self._begin()
        try:
            outcomes: list[Outcome] = [
                (future, change(writer, *args), None) for change, args, future in group
            ]
            schema.stamp(writer, self._number + 1)
        except BaseException:
            self._roll_back()
            raise
        try:
            writer.execute("COMMIT")
            self._number += 1
        except sqlite3.Error as error:
            self._settle_commit(error)
        self.n_commits += 1
        self.n_changes += len(group)
        self.failure = None
        return outcomes

    def _begin(self) -> sqlite3.Connection:
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise _NotBegun from error
        return self._writer

    def _roll_back(self) -> None:
        """Take a transaction back; a connection that cannot do so is replaced."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                self._reopen()

    def _reopen(self) -> None:
        writer = connect(self.path, self._synchronous, is_writer=True)
        old, self._writer = self._writer, writer
        with contextlib.suppress(sqlite3.Error):
            old.close()

    def _settle_commit(self, error: sqlite3.Error) -> None:
        """Find out what became of a transaction whose COMMIT failed.

        Returns where it is on disk, raises the error where it certainly is not, and stops the
        storage where neither can be said.
        """
        for pause in _PAUSES:
            time.sleep(pause)
            with contextlib.suppress(sqlite3.Error):
                self._roll_back()
                is_there = schema.last_stamp(self._writer) > self._number
                if is_there:
                    self._number += 1
                    return
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _REFUSED:
                    self._overwrite()
                raise _Refused(error)
            with contextlib.suppress(sqlite3.Error):
                self._reopen()
        self._stop_for_good(f"a commit failed, and whether it is on disk is not known: {error}")
        raise UnknownOutcomeError(
            f"the broker cannot say whether this was stored; it stops: {error}"
        )

    def _overwrite(self) -> None:
        """Commit over what a failed transaction may have left in the log."""
        self._writer.execute("BEGIN IMMEDIATE")
        schema.stamp(self._writer, self._number)
        self._writer.execute("COMMIT")

    def _stop_for_good(self, reason: str) -> None:
        self.fatal = self.failure = f"{reason}; start the broker again when the disk is well"
        log.critical("%s: %s", self.path, self.fatal)
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.on_fatal, self.fatal)

    def _explain(self, error: BaseException | None) -> Exception:
        if isinstance(error, sqlite3.IntegrityError):
            return error
        if isinstance(error, _Refused):
            error = error.error
        self.failure = f"{type(error).__name__}: {error}"
        return UnavailableError(f"the broker cannot write to its database: {error}")

    def _answer(self, outcomes: list[Outcome]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_resolve, outcomes)

    def close(self) -> None:
        """Write all that waits, and close."""
        if self._thread.is_alive():
            self._waiting.put(_STOP)
            self._thread.join()
        self._reading.shutdown()
        if self.fatal is None:
            self._give_back(_TIDY_LAST)
        with contextlib.suppress(sqlite3.Error):
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for connection in (self._reader, self._writer):
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        self._lock.close()

    def size(self) -> int:
        """Return how many bytes the database takes on disk."""
        files = [self.path, self.path.with_name(FILE + "-wal")]
        return sum(file.stat().st_size for file in files if file.exists())


class _Refused(Exception):
    """A commit failed, and nothing of it is on disk."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__(str(error))
        self.error = error


def _resolve(outcomes: list[Outcome]) -> None:
    for future, result, error in outcomes:
        if future is None:
            if error is not None:
                log.warning("a change that nothing waits for failed: %s", error)
            continue
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
