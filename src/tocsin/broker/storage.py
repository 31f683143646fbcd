"""Storage: changes in, one transaction for all that wait, acknowledgements out.

Enters: functions that change the database, from the event loop. Leaves: futures that are done when
the change is on disk. One thread writes. It takes all that waits, runs it in one transaction,
commits, and only then tells anybody (group commit). Where one function fails, the others are run
again without it, so nobody fails for another's fault. A second thread and connection read.

A lock on a file beside the database keeps a second broker away from the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

from tocsin.broker import schema
from tocsin.errors import StoreError, UnavailableError

T = TypeVar("T")
FILE = "broker.db"
_MOST = 4_096
_STOP = None


def connect(path: Path, synchronous: str = "full", *, wait: float = 5.0) -> sqlite3.Connection:
    """Open a database in WAL mode; transactions are begun by hand."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=wait, cached_statements=256
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("PRAGMA busy_timeout=5000")
    return connection


def open_folder(folder: Path, synchronous: str = "full") -> sqlite3.Connection:
    """Make a broker's folder where there is none, and open its database."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        connection = connect(path, synchronous)
        schema.prepare(connection, str(path))
    except (OSError, sqlite3.Error) as error:
        raise StoreError(str(path), str(error)) from None
    return connection


class Storage:
    """A broker's database. `submit` and `read` are called from the event loop only."""

    def __init__(self, folder: Path, synchronous: str = "full") -> None:
        self.folder = folder
        self.path = folder / FILE
        self.n_commits = 0
        self.n_changes = 0
        self.failure: str | None = None
        self._writer = open_folder(folder, synchronous)
        self._lock = self._take_lock()
        self._reader = connect(self.path, synchronous)
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reading = ThreadPoolExecutor(1, "tocsin-read")
        self._thread = threading.Thread(target=self._run, name="tocsin-write", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def _take_lock(self) -> IO[bytes]:
        file = (self.folder / "lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            self._writer.close()
            raise StoreError(str(self.folder), "another broker uses this folder") from None
        return file

    def start(self) -> None:
        """Begin to write; from within the event loop that gets the answers."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def first(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function at once, before anything was submitted."""
        with self._writer:
            return ask(self._writer)

    def submit(self, change: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Have a change made; the future is done when it is on disk."""
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.put((change, args, future))
        return future

    def forget(self, change: Callable[..., object], *args: object) -> None:
        """Have a change made that nobody waits for."""
        self._waiting.put((change, args, None))

    async def read(self, ask: Callable[..., T], *args: object) -> T:
        """Run a query in the reading thread."""
        assert self._loop is not None
        return await self._loop.run_in_executor(self._reading, ask, self._reader, *args)

    @property
    def n_waiting(self) -> int:
        """How many changes wait."""
        return self._waiting.qsize()

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
                self._tell(self._write(group))

    def _write(self, group: list[Any]) -> list[tuple[Any, Any, Exception | None]]:
        try:
            return self._transact(group)
        except Exception as error:
            if len(group) == 1:
                return [(group[0][2], None, self._explain(error))]
            return [done for each in group for done in self._write([each])]

    def _transact(self, group: list[Any]) -> list[tuple[Any, Any, Exception | None]]:
        writer = self._writer
        writer.execute("BEGIN IMMEDIATE")
        try:
            done: list[tuple[Any, Any, Exception | None]] = [
                (future, change(writer, *args), None) for change, args, future in group
            ]
            writer.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                writer.execute("ROLLBACK")
            raise
        self.n_commits += 1
        self.n_changes += len(group)
        self.failure = None
        return done

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.IntegrityError):
            return error
        self.failure = f"{type(error).__name__}: {error}"
        return UnavailableError(f"the broker cannot write to its database: {error}")

    def _tell(self, done: list[tuple[Any, Any, Exception | None]]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_resolve, done)

    def close(self) -> None:
        """Write all that waits, and close."""
        if self._thread.is_alive():
            self._waiting.put(_STOP)
            self._thread.join()
        self._reading.shutdown()
        with contextlib.suppress(sqlite3.Error):
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._reader.close()
        self._writer.close()
        self._lock.close()

    def size(self) -> int:
        """Return how many bytes the database takes on disk."""
        files = [self.path, self.path.with_name(FILE + "-wal")]
        return sum(file.stat().st_size for file in files if file.exists())


def _resolve(done: list[tuple[Any, Any, Exception | None]]) -> None:
    for future, result, error in done:
        if future is None or future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
