"""Where a store lies: a folder of this machine, or one behind a URL.

Enters: a path, or a URL that fsspec knows (`s3://…`, `hdfs://…`, `memory://…`). Leaves: the few
operations that a store needs. `create` makes a small file with all its bytes or fails because it is
there already: this is what orders the commits of several writers. Large files have names that are
used once; behind a URL they are copied to a local folder before they are mapped into memory, once
for all processes of a machine.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar

from tocsin.errors import ArgumentError, StoreError

T = TypeVar("T")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
CACHE = "TOCSIN_CACHE"
"""The environment variable that names the folder for copies of what lies behind URLs."""


class Place(Protocol):
    """A folder of files. Names may lead one folder down (`pins/a.json`)."""

    @property
    def is_local(self) -> bool:
        """Whether files lie where they can be mapped into memory."""

    def of(self, name: str) -> str:
        """Return where a file lies, in words."""

    def exists(self) -> bool:
        """Whether the folder is there."""

    def is_file(self) -> bool:
        """Whether there is a file instead of a folder."""

    def names(self, under: str = "") -> list[str]:
        """Return the names of the files in the folder, or in one below it."""

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file; raise FileNotFoundError."""

    def create(self, name: str, octets: bytes) -> None:
        """Make a small file, whole and on the disk; raise FileExistsError if it is there."""

    def put(self, name: str, write: Callable[[Path], T]) -> T:
        """Have a large file written; return what `write` returns."""

    def local(self, name: str) -> Path:
        """Return where a large file can be mapped into memory; it need not be there."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def age(self, name: str) -> float:
        """Return for how many seconds a file has been there; 0 where that is not known."""

    def alone(self) -> Any:
        """Return a context in which no other process of the machine tidies up."""


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

    def of(self, name: str) -> str:
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
        try:
            return sorted(entry.name for entry in (self.path / under).iterdir())
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file."""
        return (self.path / name).read_bytes()

    def create(self, name: str, octets: bytes) -> None:
        """Make a small file under another name first; a link shows it whole, or fails."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex}.new")
        try:
            with temporary.open("wb") as file:
                file.write(octets)
                file.flush()
                os.fsync(file.fileno())
            _sync(target.parent)  # the names of the files, before a manifest names them
            os.link(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        _sync(target.parent)

    def put(self, name: str, write: Callable[[Path], T]) -> T:
        """Have a large file written where it will stay."""
        self.path.mkdir(parents=True, exist_ok=True)
        return write(self.path / name)

    def local(self, name: str) -> Path:
        """Return the path of a file."""
        return self.path / name

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def age(self, name: str) -> float:
        """Return for how many seconds a file has been there."""
        try:
            return time.time() - (self.path / name).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process tidies up here."""
        self.path.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _sync(path: Path) -> None:
    """Have the names in a folder written to the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
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
        self._copies = _copies(self.url)

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePlace, (self.url,)

    def of(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

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

    def create(self, name: str, octets: bytes) -> None:
        """Make a small file, exclusively; a file system that cannot promise that is refused."""
        target = self._at(name)
        if self._fs.exists(target):
            raise FileExistsError(target)
        self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        try:
            with self._fs.open(target, "xb") as file:
                file.write(octets)
        except (ValueError, NotImplementedError) as error:
            reason = f"this file system cannot create files exclusively: {error}"
            raise StoreError(self.url, reason) from error

    def put(self, name: str, write: Callable[[Path], T]) -> T:
        """Have a large file written here, then copy it there; the copy here stays."""
        self._copies.mkdir(parents=True, exist_ok=True)
        written = write(self._copies / name)
        self._fs.makedirs(self._root, exist_ok=True)
        self._fs.put_file(str(self._copies / name), self._at(name))
        return written

    def local(self, name: str) -> Path:
        """Copy a file to this machine, unless it is here."""
        copy = self._copies / name
        if not copy.exists():
            self._copies.mkdir(parents=True, exist_ok=True)
            temporary = copy.with_name(f"{name}.{uuid.uuid4().hex}.new")
            try:
                self._fs.get_file(self._at(name), str(temporary))
                temporary.replace(copy)
            except FileNotFoundError:
                pass  # whoever maps it says that it is missing
            finally:
                temporary.unlink(missing_ok=True)
        return copy

    def remove(self, name: str) -> None:
        """Remove a file and its copy, if they are there."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))
        (self._copies / name).unlink(missing_ok=True)

    def age(self, name: str) -> float:
        """Return for how many seconds a file has been there; 0 where that is not known."""
        try:
            return time.time() - float(self._fs.modified(self._at(name)).timestamp())
        except (FileNotFoundError, NotImplementedError, AttributeError):
            return 0.0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process of this machine tidies up; other machines are not seen."""
        with LocalPlace(self._copies).alone():
            yield


def _copies(url: str) -> Path:
    """Return the folder for copies of what lies behind a URL."""
    base = os.environ.get(CACHE)
    root = Path(base) if base else Path(tempfile.gettempdir()) / f"tocsin-cache-{os.getuid()}"
    return root / re.sub(r"[^A-Za-z0-9.-]+", "_", url)
