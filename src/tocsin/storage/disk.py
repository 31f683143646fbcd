"""Every call by which stores, subject spaces and pipelines write and read a local disk.

Enters: paths and bytes. Leaves: files that are durable when a call returns, or the OSError of the
system. Two rules make them durable: a file is synced before its name is published, and a folder is
synced after a name was created in it, as is every parent that had to be created. Tests make each
call of `os` in this module fail.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tocsin.errors import StoreError

_NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of file systems without fsync. After any other error of fsync, data may be lost."""
_WRITE_BYTES = 1 << 30
"""Largest single write: Linux accepts less than 2 GiB."""
_READ_BYTES = 1 << 20
"""Size of the buffer of one read."""


class NewFile:
    """An unbuffered file opened for writing; durable after `sync`."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)

    def write(self, octets: bytes | memoryview) -> int:
        """Write all bytes at the current offset; return their count."""
        return write_all(self.descriptor, octets)

    def seek(self, offset: int) -> None:
        """Set the offset of the next write."""
        os.lseek(self.descriptor, offset, os.SEEK_SET)

    def truncate(self, n_bytes: int) -> None:
        """Set the length of the file."""
        truncate(self.descriptor, n_bytes)

    def sync(self) -> None:
        """Flush the file to the disk."""
        sync(self.descriptor)

    def detach(self) -> int:
        """Return the descriptor; the caller closes it."""
        descriptor, self.descriptor = self.descriptor, -1
        return descriptor

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.descriptor >= 0:
            os.close(self.detach())


def write_all(descriptor: int, octets: bytes | memoryview) -> int:
    """Write all bytes to a descriptor; return their count."""
    rest = memoryview(octets)
    n_bytes = len(rest)
    while rest:
        rest = rest[os.write(descriptor, rest[:_WRITE_BYTES]) :]
    return n_bytes


def truncate(descriptor: int, n_bytes: int) -> None:
    """Set the length of an open file."""
    os.ftruncate(descriptor, n_bytes)


def sync(descriptor: int) -> None:
    """Flush an open file or folder to the disk."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_file(path: Path) -> None:
    """Flush a file that another process wrote to the disk."""
    with opened(path) as descriptor:
        sync(descriptor)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(folder)
    finally:
        os.close(folder)


def write_file(path: Path, pieces: Iterable[bytes | memoryview], mode: int = 0o666) -> int:
    """Write and sync a file; return its size. A file that fails is removed."""
    try:
        with NewFile(path, mode) as file:
            n_bytes = sum(file.write(piece) for piece in pieces)
            file.sync()
    except BaseException:
        with suppress(OSError):
            remove(path)
        raise
    return n_bytes


def create_file(target: Path, draft: Path, octets: bytes) -> None:
    """Create a file atomically and durably; raise FileExistsError if the name is taken.

    The bytes are written to `draft`, in the same folder, and hard-linked to `target`: of several
    writers one succeeds.
    """
    if size(target) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    make_folder(target.parent)
    try:
        write_file(draft, [octets])
        sync_folder(target.parent)  # files that the new file refers to become durable first
        os.link(draft, target)
    finally:
        with suppress(OSError):  # a leftover draft does no harm
            remove(draft)
    sync_folder(target.parent)


def replace_file(target: Path, draft: Path, octets: bytes) -> None:
    """Create or replace a file atomically and durably: readers see the old bytes or the new."""
    make_folder(target.parent)
    write_file(draft, [octets])
    try:
        rename(draft, target)
    except BaseException:
        with suppress(OSError):
            remove(draft)
        raise
    sync_folder(target.parent)


def rename(old: Path, new: Path) -> None:
    """Rename a file; one that has the new name is replaced."""
    os.replace(old, new)


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file for reading; yield its descriptor."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(path: Path) -> bytes:
    """Return the content of a file."""
    with opened(path) as descriptor:
        pieces = []
        while piece := os.read(descriptor, _READ_BYTES):
            pieces.append(piece)
    return b"".join(pieces)


def size(path: Path) -> int | None:
    """Return the size of a file, or None if it does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def names(path: Path) -> list[str]:
    """Return the names in a folder, sorted; none if the folder does not exist."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with everything in it, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        remove(path)


def age(path: Path) -> float:
    """Return the seconds since a file was written; 0 if it does not exist."""
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing; wait until it is free."""
    make_folder(path)
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents, durably."""
    if path.is_dir():
        return
    missing = [path]
    while not missing[-1].parent.is_dir() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, mode)
        except FileExistsError:
            if not folder.is_dir():
                raise NotADirectoryError(
                    errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)
                ) from None
        try:
            sync_folder(folder.parent)
        except BaseException:  # the next call has to create and sync it again
            with suppress(OSError):
                os.rmdir(folder)
            raise


def is_private(path: Path) -> bool:
    """Whether a folder belongs to this user, and no other user can write to it."""
    status = os.lstat(path)
    is_folder = (status.st_mode & 0o170000) == 0o040000
    return is_folder and status.st_uid == os.getuid() and not status.st_mode & 0o022


def private_folder(path: Path) -> Path:
    """Create or reuse a folder that only this user can enter; raise StoreError for any other."""
    make_folder(path.parent)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if not is_private(path):
        reason = "other users can write to this folder of copies, or it belongs to another user"
        raise StoreError(str(path), f"{reason}; name another in TOCSIN_CACHE")
    if os.lstat(path).st_mode & 0o077:
        os.chmod(path, 0o700)
    return path
