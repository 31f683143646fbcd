"""Where a store lies: a folder of this machine, or one behind a URL.

Enters: a path, or a URL that fsspec knows (`s3://…`, `hdfs://…`, `memory://…`). Leaves: the few
operations that a store needs. `create` makes a small file with all its bytes or fails because it is
there already: this is what orders the commits of several writers. Large files have names that are
used once; behind a URL they are copied to a local folder before they are mapped into memory, once
for all processes of a machine.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar

from tocsin.errors import ArgumentError, StoreError
from tocsin.storage import disk

T = TypeVar("T")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
CACHE = "TOCSIN_CACHE"
"""The environment variable that names the folder for copies of what lies behind URLs."""


class Place(Protocol):
    """A folder of files. Names may lead one folder down (`pins/a.json`)."""

    @property
    def is_local(self) -> bool:
        """Whether files lie where they can be mapped into memory."""

    def path_of(self, name: str) -> str:
        """Return where a file lies, in words."""

    def exists(self) -> bool:
        """Whether the folder is there."""

    def is_file(self) -> bool:
        """Whether there is a file instead of a folder."""

    def names(self, under: str = "") -> list[str]:
        """Return the names of the files in the folder, or in one below it."""

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file; raise FileNotFoundError."""

    def commit_once(self, name: str, octets: bytes) -> None:
        """Make a small file, whole and on the disk; raise FileExistsError if it is there."""

    def put(self, name: str, write: Callable[[Path], T]) -> T:
        """Have a large file written; return what `write` returns."""

    def local(self, name: str) -> Path:
        """Return where a large file can be mapped into memory; it need not be there."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def age(self, name: str) -> float:
        """Return for how many seconds a file has been there; 0 where that is not known."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, or None where there is none."""

    def is_trusted(self, name: str, checksum: int) -> bool:
        """Whether `local` gives a file that was verified where it was made."""

    def trust(self, name: str, checksum: int) -> None:
        """Note that the file that `local` gives was verified."""

    def locked(self) -> Any:
        """Return a context in which no other process of the machine commits, pins or tidies up."""


def to_place(path: object) -> Place:
    """Take a path in any of the forms that Python knows, or a URL."""
    if isinstance(path, LocalPlace | RemotePlace):
        return path
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"a path must be a string or a Path, not {path!r}")
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise ArgumentError(f"{text!r} is no path")
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    return RemotePlace(text) if _URL.match(text) else LocalPlace(Path(text))


class LocalPlace:
    """A folder of this machine, or one that a network file system shows as such."""

    is_local = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def path_of(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.path / name)

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self.path.is_dir()

    def is_file(self) -> bool:
        """Whether there is a file instead of a folder."""
        return self.path.is_file()

    def names(self, under: str = "") -> list[str]:
        """Return the names of all files and folders; none where there is no folder."""
        return disk.names(self.path / under)

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file."""
        return disk.read_file(self.path / name)

    def commit_once(self, name: str, octets: bytes) -> None:
        """Make a small file under another name first; a link shows it whole, or fails."""
        target = self.path / name
        disk.create_file(target, target.with_name(f"{target.name}.{uuid.uuid4().hex}.new"), octets)

    def put(self, name: str, write: Callable[[Path], T]) -> T:
        """Have a large file written where it will stay."""
        disk.make_folder(self.path)
        return write(self.path / name)

    def local(self, name: str) -> Path:
        """Return the path of a file."""
        return self.path / name

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        disk.remove(self.path / name)

    def age(self, name: str) -> float:
        """Return for how many seconds a file has been there."""
        try:
            return time.time() - (self.path / name).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, or None where there is none."""
        return disk.size(self.path / name)

    def is_trusted(self, name: str, checksum: int) -> bool:
        """Whether a file is the one that its writer made: there is no copy that could differ."""
        return True

    def trust(self, name: str, checksum: int) -> None:
        """Note nothing: whoever opens the store elsewhere opens the same file."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process commits, pins or tidies up here."""
        disk.make_folder(self.path)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


class RemotePlace:
    """A folder behind a URL, with a folder of copies on this machine."""

    is_local = False

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # type: ignore[import-untyped]
        except ImportError:
            raise StoreError(url, "stores behind URLs need the package fsspec") from None
        self.url = url.rstrip("/")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise StoreError(url, f"the URL cannot be used: {error}") from error
        self._copies = _folder_of_copies(self.url)
        self._opened: Path | None = None
        self._is_tested = _protocol(self._fs) in _EXCLUSIVE

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePlace, (self.url,)

    def path_of(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _here(self) -> Path:
        """Return the folder of copies, which is ours and closed to others.

        Its files are mapped into memory and trusted. One into which others can put files is
        refused where `TOCSIN_CACHE` names it; where its name is our choice, this process makes
        one of its own.
        """
        if self._opened is None:
            try:
                if not os.environ.get(CACHE):
                    disk.private_folder(self._copies.parent)
                self._opened = disk.private_folder(self._copies)
            except StoreError:
                if os.environ.get(CACHE):
                    raise
                self._opened = disk.private_folder(_own_folder() / self._copies.name)
            except OSError as error:
                reason = f"copies cannot be kept there: {error.strerror or error}"
                raise StoreError(str(self._copies), reason) from error
        return self._opened

    def exists(self) -> bool:
        """Whether the folder is there: object stores have none, only files in it."""
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self._root))

    def is_file(self) -> bool:
        """Whether there is a file instead of a folder."""
        return bool(self._fs.isfile(self._root))

    def names(self, under: str = "") -> list[str]:
        """Return the names of all files and folders; none where there is no folder."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._at(under).rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return sorted(PurePosixPath(name).name for name in found)

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file."""
        return bytes(self._fs.cat_file(self._at(name)))

    def commit_once(self, name: str, octets: bytes) -> None:
        """Make a small file, exclusively; a file system that cannot promise that is refused."""
        if not self._is_tested:
            self._test()
            self._is_tested = True
        target = self._at(name)
        if self._fs.exists(target):
            raise FileExistsError(target)
        self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._create(target, octets)
        if bytes(self._fs.cat_file(target)) != octets:  # another writer's took its place
            raise FileExistsError(target)

    def _create(self, target: str, octets: bytes) -> None:
        """Make a file that is not there, by the means that the file system has."""
        if _protocol(self._fs) in _RENAMED:
            self._create_by_name(target, octets)
            return
        try:
            with self._fs.open(target, "xb") as file:
                file.write(octets)
        except (ValueError, NotImplementedError) as error:
            reason = f"this file system cannot create files exclusively: {error}"
            raise StoreError(self.url, reason) from error

    def _create_by_name(self, target: str, octets: bytes) -> None:
        """Write a file under another name and rename it, which HDFS refuses where there is one."""
        draft = f"{target}.{uuid.uuid4().hex}.new"
        try:
            with self._fs.open(draft, "wb") as file:
                file.write(octets)
            try:
                self._fs.mv(draft, target)
            except OSError as error:
                if self._fs.exists(target):
                    raise FileExistsError(target) from error
                raise
        finally:
            with suppress(OSError):
                self._fs.rm_file(draft)

    def _test(self) -> None:
        """Create a file twice; refuse a file system where the second one takes its place."""
        name = self._at(f"probe-{uuid.uuid4().hex}.new")
        tokens = [uuid.uuid4().hex.encode() for _ in range(2)]
        self._fs.makedirs(self._root, exist_ok=True)
        try:
            self._create(name, tokens[0])
            try:
                self._create(name, tokens[1])
                is_refused = False
            except FileExistsError:
                is_refused = True
            is_whole = bytes(self._fs.cat_file(name)) == tokens[0]
        finally:
            with suppress(OSError):
                self._fs.rm_file(name)
        if not (is_refused and is_whole):
            reason = "this file system lets a second writer replace a file that is to be created"
            raise StoreError(self.url, f"{reason} once: two writers would lose changes")

    def put(self, name: str, write: Callable[[Path], T]) -> T:
        """Have a large file written here, then copy it there; the copy here stays."""
        copy = self._here() / name
        written = write(copy)
        self._fs.makedirs(self._root, exist_ok=True)
        self._fs.put_file(str(copy), self._at(name))
        return written

    def local(self, name: str) -> Path:
        """Copy a file to this machine, unless it is here."""
        copy = self._here() / name
        if not copy.exists():
            temporary = copy.with_name(f"{name}.{uuid.uuid4().hex}.new")
            try:
                self._fs.get_file(self._at(name), str(temporary))
                disk.rename(temporary, copy)
            except FileNotFoundError:
                pass  # whoever maps it says that it is missing
            finally:
                disk.remove(temporary)
        return copy

    def remove(self, name: str) -> None:
        """Remove a file and its copy, if they are there."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))
        disk.remove(self._here() / name)
        disk.remove(self._mark(name))

    def age(self, name: str) -> float:
        """Return for how many seconds a file has been there; 0 where that is not known."""
        try:
            return time.time() - float(self._fs.modified(self._at(name)).timestamp())
        except (FileNotFoundError, NotImplementedError, AttributeError):
            return 0.0

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, or None where there is none."""
        self._fs.invalidate_cache()
        try:
            return int(self._fs.info(self._at(name))["size"])
        except FileNotFoundError:
            return None

    def _mark(self, name: str) -> Path:
        return self._here() / f"{name}.verified"

    def _identity(self, name: str, checksum: int) -> bytes:
        """Return what a mark says: the checksum, and which file had it."""
        found = (self._here() / name).stat()
        return b"%d %d %d %d" % (checksum, found.st_ino, found.st_size, found.st_mtime_ns)

    def is_trusted(self, name: str, checksum: int) -> bool:
        """Whether the copy of this machine was verified since it was made."""
        try:
            return disk.read_file(self._mark(name)) == self._identity(name, checksum)
        except OSError:
            return False

    def trust(self, name: str, checksum: int) -> None:
        """Note beside the copy that it was verified; without the note it is verified again."""
        mark = self._mark(name)
        draft = mark.with_name(f"{mark.name}.{uuid.uuid4().hex}.new")
        with suppress(OSError):
            disk.replace_file(mark, draft, self._identity(name, checksum))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process of this machine tidies up; other machines are not seen."""
        with LocalPlace(self._here()).locked():
            yield


_EXCLUSIVE = frozenset({"memory", "s3", "gs", "abfs", "file"})
"""File systems whose packages create files exclusively; others are tested before the first one."""
_RENAMED = frozenset({"hdfs", "viewfs"})
"""File systems that cannot, but where a file is not renamed to a name that is taken."""


def _protocol(files: Any) -> str:
    """Return the first name of a file system's protocol."""
    protocol = files.protocol
    return str(protocol if isinstance(protocol, str) else protocol[0])


def _folder_of_copies(url: str) -> Path:
    """Return where copies of what lies behind a URL are kept, if that folder is ours."""
    base = os.environ.get(CACHE)
    root = Path(base) if base else Path(tempfile.gettempdir()) / f"tocsin-cache-{os.getuid()}"
    return root / re.sub(r"[^A-Za-z0-9.-]+", "_", url)


@functools.cache
def _own_folder() -> Path:
    """Return a folder of this process alone, which goes with it."""
    folder = tempfile.mkdtemp(prefix="tocsin-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
