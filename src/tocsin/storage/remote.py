"""Places behind URLs, and the local copies through which their large files are mapped.

`RemotePlace` has what every file system behind a URL needs: small files are committed exclusively,
and a file system that cannot promise that is refused at the first commit; large files are copied to
a private folder of this machine before they are mapped, once for all its processes. `FsspecPlace`
reaches the file systems of fsspec. The one of Hadoop needs Spark, and is in `tocsin.spark.hadoop`.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from tocsin.errors import StoreError
from tocsin.storage import disk
from tocsin.storage.local import draft_of

T = TypeVar("T")
CACHE = "TOCSIN_CACHE"
"""The environment variable that names the folder of local copies."""


class Copies:
    """Local copies of the files of one URL, in a folder that only this user can enter.

    The files are mapped into memory and trusted, so other users must not be able to replace them.
    A folder named by `TOCSIN_CACHE` that they can write to is refused. In place of a default folder
    like that, this process makes a folder of its own, which is removed when it exits.
    """

    def __init__(self, url: str) -> None:
        base = os.environ.get(CACHE)
        root = Path(base) if base else Path(tempfile.gettempdir()) / f"tocsin-cache-{os.getuid()}"
        self.path = root / re.sub(r"[^A-Za-z0-9.-]+", "_", url)
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder, which is created and checked at first use."""
        if self._folder is None:
            is_named = bool(os.environ.get(CACHE))
            try:
                if not is_named:
                    disk.private_folder(self.path.parent)
                self._folder = disk.private_folder(self.path)
            except StoreError:
                if is_named:
                    raise
                self._folder = disk.private_folder(_process_folder() / self.path.name)
            except OSError as error:
                reason = f"copies cannot be written there: {error.strerror or error}"
                raise StoreError(str(self.path), reason) from error
        return self._folder

    def path_of(self, name: str) -> Path:
        """Return the path of a copy, which need not exist."""
        return self.folder / name

    def remove(self, name: str) -> None:
        """Remove a copy and its mark, if they exist."""
        disk.remove(self.path_of(name))
        disk.remove(self._mark(name))

    def is_trusted(self, name: str, checksum: int) -> bool:
        """Whether this copy was verified since it was made."""
        try:
            return disk.read_file(self._mark(name)) == self._identity(name, checksum)
        except OSError:
            return False

    def trust(self, name: str, checksum: int) -> None:
        """Mark a copy as verified; a copy without a mark is verified again."""
        mark = self._mark(name)
        with suppress(OSError):
            disk.replace_file(mark, draft_of(mark), self._identity(name, checksum))

    def _mark(self, name: str) -> Path:
        return self.folder / f"{name}.verified"

    def _identity(self, name: str, checksum: int) -> bytes:
        """Return the content of a mark: the checksum, and the identity of the file that has it."""
        status = self.path_of(name).stat()
        return b"%d %d %d %d" % (checksum, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.cache
def _process_folder() -> Path:
    """Return a folder of this process, which is removed when it exits."""
    folder = tempfile.mkdtemp(prefix="tocsin-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


class RemotePlace(ABC):
    """A folder behind a URL; subclasses say how its file system is called.

    See `Place` for the methods.
    """

    is_local = False
    is_exclusive = False
    """Whether the file system is known to create files exclusively; otherwise it is tested."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.copies = Copies(self.url)

    def __str__(self) -> str:
        return self.url

    def path_of(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    # What a file system has to do.

    @abstractmethod
    def exists(self) -> bool:
        """Whether the folder exists; object stores have none, only the files in it."""

    @abstractmethod
    def is_file(self) -> bool:
        """Whether there is a file where the folder should be."""

    @abstractmethod
    def names(self, under: str = "") -> list[str]:
        """Return the names of all files and folders; none if there is no folder."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError."""

    @abstractmethod
    def replace(self, name: str, octets: bytes) -> None:
        """Create or replace a file."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if it does not exist."""

    @abstractmethod
    def synced_sizes(self, under: str) -> dict[str, int]:
        """Return the sizes of the files in a folder, which are durable."""

    @abstractmethod
    def age(self, name: str) -> float:
        """Return the seconds since a file was written; 0 if that is unknown."""

    @abstractmethod
    def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with everything in it, if it exists."""

    @abstractmethod
    def _create(self, name: str, octets: bytes) -> None:
        """Create a file in a folder that may be missing; raise FileExistsError."""

    @abstractmethod
    def _remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    @abstractmethod
    def _upload(self, path: Path, name: str) -> None:
        """Copy a file of this machine to the folder."""

    @abstractmethod
    def _download(self, name: str, path: Path) -> None:
        """Copy a file to this machine; raise FileNotFoundError."""

    # What follows from that.

    def commit_once(self, name: str, octets: bytes) -> None:
        """Create a file, whole; raise FileExistsError if the name is taken.

        Raises StoreError on a file system where a second writer replaces the file of the first.
        """
        if not self.is_exclusive:
            self._test()
            self.is_exclusive = True
        if self.size(name) is not None:
            raise FileExistsError(self.path_of(name))
        self._create(name, octets)
        if self.read(name) != octets:  # another writer replaced it
            raise FileExistsError(self.path_of(name))

    def _test(self) -> None:
        """Create one file twice; refuse a file system where the second call succeeds."""
        name = f"probe-{uuid.uuid4().hex}.new"
        tokens = [uuid.uuid4().hex.encode() for _ in range(2)]
        try:
            self._create(name, tokens[0])
            try:
                self._create(name, tokens[1])
                is_refused = False
            except FileExistsError:
                is_refused = True
            is_whole = self.read(name) == tokens[0]
        finally:
            with suppress(OSError):
                self._remove(name)
        if not (is_refused and is_whole):
            reason = "this file system lets a second writer replace a file that is created once"
            raise StoreError(self.url, f"{reason}: two writers would lose changes")

    def put(self, name: str, write: Callable[[Path], T]) -> T:
        """Have `write` write a large file here, and copy it there; the local copy stays."""
        copy = self.copies.path_of(name)
        result = write(copy)
        self._upload(copy, name)
        return result

    def local(self, name: str) -> Path:
        """Return the path of the local copy of a file, which is made if it is missing."""
        copy = self.copies.path_of(name)
        if not copy.exists():
            draft = draft_of(copy)
            try:
                self._download(name, draft)
                disk.rename(draft, copy)
            except FileNotFoundError:
                pass  # the caller finds out when it opens the copy
            finally:
                disk.remove(draft)
        return copy

    def remove(self, name: str) -> None:
        """Remove a file and its local copy, if they exist."""
        self._remove(name)
        self.copies.remove(name)

    def is_trusted(self, name: str, checksum: int) -> bool:
        """Whether the local copy of a file was verified since it was made."""
        return self.copies.is_trusted(name, checksum)

    def trust(self, name: str, checksum: int) -> None:
        """Mark the local copy of a file as verified."""
        self.copies.trust(name, checksum)

    def locked(self) -> AbstractContextManager[None]:
        """Hold a lock against the other processes of this machine; other machines see none."""
        return disk.locked(self.copies.folder)


_EXCLUSIVE = frozenset({"memory", "s3", "gs", "abfs", "file"})
"""File systems whose packages create files exclusively; others are tested at the first commit."""
_RENAMED = frozenset({"hdfs", "viewfs"})
"""File systems that create no file exclusively, but refuse to rename to a name that is taken."""


class FsspecPlace(RemotePlace):
    """A folder on a file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec  # type: ignore[import-untyped]
        except ImportError:
            raise StoreError(url, "places behind URLs need the package fsspec") from None
        super().__init__(url)
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError, OSError) as error:
            raise StoreError(url, f"the URL cannot be used: {error}") from error
        self.protocol = _protocol(self._fs)
        self.is_exclusive = self.protocol in _EXCLUSIVE

    def __reduce__(self) -> tuple[Any, ...]:
        return FsspecPlace, (self.url,)

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def exists(self) -> bool:
        """Whether the folder exists; object stores have none, only the files in it."""
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self._root))

    def is_file(self) -> bool:
        """Whether there is a file where the folder should be."""
        return bool(self._fs.isfile(self._root))

    def names(self, under: str = "") -> list[str]:
        """Return the names of all files and folders; none if there is no folder."""
        self._fs.invalidate_cache()
        try:
            paths = self._fs.ls(self._at(under).rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return sorted(PurePosixPath(path).name for path in paths)

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError."""
        return bytes(self._fs.cat_file(self._at(name)))

    def replace(self, name: str, octets: bytes) -> None:
        """Create or replace a file; atomically on object stores."""
        self._make_folder_of(name)
        self._fs.pipe_file(self._at(name), octets)

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if it does not exist."""
        self._fs.invalidate_cache()
        try:
            return int(self._fs.info(self._at(name))["size"])
        except FileNotFoundError:
            return None

    def synced_sizes(self, under: str) -> dict[str, int]:
        """Return the sizes of the files in a folder."""
        self._fs.invalidate_cache()
        try:
            entries = self._fs.ls(self._at(under), detail=True)
        except FileNotFoundError:
            return {}
        files = [each for each in entries if each["type"] == "file"]
        return {PurePosixPath(each["name"]).name: int(each["size"]) for each in files}

    def age(self, name: str) -> float:
        """Return the seconds since a file was written; 0 if that is unknown."""
        try:
            return time.time() - float(self._fs.modified(self._at(name)).timestamp())
        except (FileNotFoundError, NotImplementedError, AttributeError):
            return 0.0

    def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with everything in it, if it exists."""
        with suppress(FileNotFoundError):
            self._fs.rm(self._at(name), recursive=True)

    def _make_folder_of(self, name: str) -> None:
        self._fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)

    def _create(self, name: str, octets: bytes) -> None:
        self._make_folder_of(name)
        if self.protocol in _RENAMED:
            self._create_by_rename(name, octets)
            return
        try:
            with self._fs.open(self._at(name), "xb") as file:
                file.write(octets)
        except (ValueError, NotImplementedError) as error:
            reason = f"this file system cannot create files exclusively: {error}"
            raise StoreError(self.url, reason) from error

    def _create_by_rename(self, name: str, octets: bytes) -> None:
        target = self._at(name)
        draft = str(draft_of(Path(target)))
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

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def _upload(self, path: Path, name: str) -> None:
        self._make_folder_of(name)
        self._fs.put_file(str(path), self._at(name))

    def _download(self, name: str, path: Path) -> None:
        self._fs.get_file(self._at(name), str(path))


def _protocol(files: Any) -> str:
    """Return the first name of a file system's protocol."""
    protocol = files.protocol
    return str(protocol if isinstance(protocol, str) else protocol[0])
