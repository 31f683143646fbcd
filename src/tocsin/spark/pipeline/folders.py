"""Small files that are created whole, once and for all: on local disks, or on what Hadoop reaches.

Enters: a path or URL. Leaves: a folder in which a name is created by one writer only, however many
try, and is never seen half written. The files of a batch's data are written by Spark; these are the
few that say which of them count.

On a local disk a file is written under another name, synced, and linked to its own. Elsewhere it is
renamed through Hadoop's `FileContext`, as Spark does with its own checkpoints: what Spark asks of a
checkpoint's file system is what we ask too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tocsin.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder(Protocol):
    """A folder of small files."""

    url: str

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None when there is no such file."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a file at once; False when it was there already."""

    def replace(self, name: str, content: bytes) -> None:
        """Write a file at once, whether or not it was there."""

    def names(self, inner: str = "") -> list[str]:
        """Return the names in a folder, in order; none when it does not exist."""

    def sizes(self, inner: str) -> dict[str, int]:
        """Return the files of a folder, synced to the disk, with their sizes."""

    def remove(self, inner: str) -> None:
        """Remove a folder or file with all that is in it."""


def open_folder(url: str, spark: SparkSession | None = None) -> Folder:
    """Return the folder at a path or URL; what is not on a local disk needs a session."""
    local = to_local(url)
    if local is not None:
        return LocalFolder(local)
    if spark is None:
        raise PipelineError(f"{url} is not on a local disk: only a running pipeline can read it")
    return HadoopFolder(url, spark)


def to_local(url: str) -> Path | None:
    """Return the local path that a URL or path means, or None."""
    if url.startswith("file:"):
        return Path("/" + url.removeprefix("file:").lstrip("/"))
    return None if "://" in url else Path(url)


class LocalFolder:
    """A folder on a local disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None when there is no such file."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> bool:
        """Create a file at once; False when it was there already."""
        place = self.path / name
        if place.exists():
            return False
        draft = self._draft(place, content)
        try:
            os.link(draft, place)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        _sync_folder(place.parent)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a file at once, whether or not it was there."""
        place = self.path / name
        self._draft(place, content).replace(place)

    def _draft(self, place: Path, content: bytes) -> Path:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.parent / f".{place.name}.{uuid.uuid4().hex}"
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return draft

    def names(self, inner: str = "") -> list[str]:
        """Return the names in a folder, in order; none when it does not exist."""
        try:
            found = [each.name for each in (self.path / inner).iterdir()]
            return sorted(name for name in found if name[0] != ".")
        except FileNotFoundError:
            return []

    def sizes(self, inner: str) -> dict[str, int]:
        """Return the files of a folder, synced to the disk, with their sizes."""
        found = {}
        for name in self.names(inner):
            place = self.path / inner / name
            if place.is_file():
                with place.open("rb") as file:
                    os.fsync(file.fileno())
                found[name] = place.stat().st_size
        if found:
            _sync_folder(self.path / inner)
        return found

    def remove(self, inner: str) -> None:
        """Remove a folder or file with all that is in it."""
        place = self.path / inner
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system syncs folders
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


class HadoopFolder:
    """A folder on any file system that Hadoop knows, reached through the driver's JVM."""

    def __init__(self, url: str, spark: SparkSession) -> None:
        self.url = url.rstrip("/")
        self._jvm: Any = spark.sparkContext._jvm
        context: Any = spark.sparkContext
        conf = context._jsc.hadoopConfiguration()
        root = self._path("")
        self._files = root.getFileSystem(conf)
        hadoop: Any = self._jvm
        self._context = hadoop.org.apache.hadoop.fs.FileContext.getFileContext(
            self._files.getUri(), conf
        )

    def _path(self, name: str) -> Any:
        full = f"{self.url}/{name}" if name else self.url
        return self._jvm.org.apache.hadoop.fs.Path(full)

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None when there is no such file."""
        place = self._path(name)
        if not self._files.exists(place):
            return None
        stream = self._files.open(place)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, name: str, content: bytes) -> bool:
        """Create a file at once; False when it was there already."""
        place = self._path(name)
        if self._files.exists(place):
            return False
        draft = self._draft(place, content)
        options = self._rename_options("NONE")
        try:
            self._context.rename(draft, place, options)
        except Exception as error:
            self._files.delete(draft, False)
            if "FileAlreadyExists" in str(error):
                return False
            raise
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a file at once, whether or not it was there."""
        place = self._path(name)
        draft = self._draft(place, content)
        self._context.rename(draft, place, self._rename_options("OVERWRITE"))

    def _rename_options(self, name: str) -> Any:
        kind = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = self._jvm.py4j.reflection.ReflectionUtil.classForName(
            "org.apache.hadoop.fs.Options$Rename"
        )
        array = self._jvm.java.lang.reflect.Array.newInstance(options, 1)
        array[0] = getattr(kind, name)
        return array

    def _draft(self, place: Any, content: bytes) -> Any:
        self._files.mkdirs(place.getParent())
        draft = self._jvm.org.apache.hadoop.fs.Path(
            place.getParent(), f".{place.getName()}.{uuid.uuid4().hex}"
        )
        stream = self._files.create(draft, False)
        stream.write(bytearray(content))
        stream.close()
        return draft

    def names(self, inner: str = "") -> list[str]:
        """Return the names in a folder, in order; none when it does not exist."""
        return sorted(self._list(inner))

    def sizes(self, inner: str) -> dict[str, int]:
        """Return the files of a folder with their sizes."""
        return {name: status.getLen() for name, status in sorted(self._list(inner).items())}

    def _list(self, inner: str) -> dict[str, Any]:
        place = self._path(inner)
        if not self._files.exists(place):
            return {}
        found = {status.getPath().getName(): status for status in self._files.listStatus(place)}
        return {name: status for name, status in found.items() if name[0] != "."}

    def remove(self, inner: str) -> None:
        """Remove a folder or file with all that is in it."""
        self._files.delete(self._path(inner), True)
