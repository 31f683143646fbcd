"""The file layer: every call by which stores, subject spaces and pipelines touch a local disk.

Enters: paths and bytes. Leaves: files that are on the disk when a call returns, or the OSError that
the system gave. What a caller acknowledges rests on two rules: a file is synced before its name is
made known, and a folder is synced after a name in it was made, up to the first folder that was
there before. Tests make each of the calls of `os` in this module fail.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tocsin.errors import StoreError

_NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a file system says that has nothing to sync; any other error means that data may be lost."""
_PIECE = 1 << 30
"""How many bytes are written by one call, at most: Linux takes no more than 2 GiB."""
_READ = 1 << 20
"""How many are read by one call, for which there has to be room beforehand."""


class NewFile:
    """A file that is being written, unbuffered; it is not on the disk before `sync`."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        self.number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)

    def write(self, octets: bytes | memoryview) -> int:
        """Write all of some bytes, where the file is; return how many."""
        return write_all(self.number, octets)

    def seek(self, at: int) -> None:
        """Go to a place in the file."""
        os.lseek(self.number, at, os.SEEK_SET)

    def truncate(self, n_bytes: int) -> None:
        """Give the file a length."""
        truncate(self.number, n_bytes)

    def sync(self) -> None:
        """Have the file written to the disk."""
        sync(self.number)

    def detach(self) -> int:
        """Return the descriptor, which is the caller's to close from now on."""
        number, self.number = self.number, -1
        return number

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.number >= 0:
            os.close(self.detach())


def write_all(number: int, octets: bytes | memoryview) -> int:
    """Write all of some bytes to a descriptor; return how many."""
    rest = memoryview(octets)
    n_bytes = len(rest)
    while rest:
        rest = rest[os.write(number, rest[:_PIECE]) :]
    return n_bytes


def truncate(number: int, n_bytes: int) -> None:
    """Give the file of a descriptor a length."""
    os.ftruncate(number, n_bytes)


def sync(number: int) -> None:
    """Have what was written to a descriptor written to the disk."""
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_file(path: Path) -> None:
    """Have a file that another process wrote written to the disk."""
    with opened(path) as number:
        sync(number)


def sync_folder(path: Path) -> None:
    """Have the names in a folder written to the disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(folder)
    finally:
        os.close(folder)


def write_file(path: Path, pieces: Iterable[bytes | memoryview], mode: int = 0o666) -> int:
    """Write a file and sync it; remove it where that fails. Return its bytes."""
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
    """Make a file that is there whole and on the disk; raise FileExistsError if it is there.

    It is written as `draft`, in the same folder, and linked to its name, which one writer can.
    """
    make_folder(target.parent)
    try:
        write_file(draft, [octets])
        sync_folder(target.parent)  # what the new file names, before the file
        os.link(draft, target)
    finally:
        with suppress(OSError):  # a draft that stays does no harm
            remove(draft)
    sync_folder(target.parent)


def replace_file(target: Path, draft: Path, octets: bytes) -> None:
    """Put a file in the place of another, or of none; it is the old or the new one at any time."""
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
    """Give a file another name, in the place of what has it."""
    os.replace(old, new)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file for reading; give its descriptor."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield number
    finally:
        os.close(number)


def read_file(path: Path) -> bytes:
    """Return the bytes of a file."""
    with opened(path) as number:
        pieces = []
        while piece := os.read(number, _READ):
            pieces.append(piece)
    return b"".join(pieces)


def size(path: Path) -> int | None:
    """Return the bytes of a file, or None where there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def names(path: Path) -> list[str]:
    """Return the names in a folder, in order; none where there is no folder."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it, where they are missing, and sync what has a new name."""
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
        except BaseException:  # the next call is to make it again, and sync it
            with suppress(OSError):
                os.rmdir(folder)
            raise


def is_private(path: Path) -> bool:
    """Whether a folder is ours, and no one else can put files into it."""
    found = os.lstat(path)
    is_folder = (found.st_mode & 0o170000) == 0o040000
    return is_folder and found.st_uid == os.getuid() and not found.st_mode & 0o022


def private_folder(path: Path) -> Path:
    """Make a folder that only we can enter, or take one that is ours; StoreError otherwise."""
    make_folder(path.parent)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if not is_private(path):
        reason = "others can put files into this folder of copies, or it is not ours"
        raise StoreError(str(path), f"{reason}; name another in TOCSIN_CACHE")
    if os.lstat(path).st_mode & 0o077:
        os.chmod(path, 0o700)
    return path
