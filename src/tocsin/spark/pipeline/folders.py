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
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tocsin.errors import PipelineError
from tocsin.storage import disk

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
        with self._refusing("read"):
            try:
                return disk.read_file(self.path / name)
            except FileNotFoundError:
                return None

    def create(self, name: str, content: bytes) -> bool:
        """Create a file at once; False when it was there already."""
        place = self.path / name
        with self._refusing("written"):
            if place.exists():
                return False
            try:
                disk.create_file(place, _draft(place), content)
            except FileExistsError:
                return False
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a file at once, whether or not it was there."""
        place = self.path / name
        with self._refusing("written"):
            disk.replace_file(place, _draft(place), content)

    def names(self, inner: str = "") -> list[str]:
        """Return the names in a folder, in order; none when it does not exist."""
        with self._refusing("read"):
            return [name for name in disk.names(self.path / inner) if name[0] != "."]

    def sizes(self, inner: str) -> dict[str, int]:
        """Return the files of a folder, synced to the disk, with their sizes."""
        sizes = {}
        with self._refusing("synced"):
            for name in self.names(inner):
                place = self.path / inner / name
                if place.is_file():
                    disk.sync_file(place)
                    sizes[name] = place.stat().st_size
            if sizes:  # Spark made the folder too: its name, and that of the one above
                for folder in (self.path / inner, *(self.path / inner).parents):
                    disk.sync_folder(folder)
                    if folder == self.path.parent:
                        break
        return sizes

    def remove(self, inner: str) -> None:
        """Remove a folder or file with all that is in it."""
        place = self.path / inner
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            with self._refusing("removed"):
                disk.remove(place)

    @contextlib.contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """Say of what the system refuses that the pipeline cannot go on."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise PipelineError(f"{self.url}: cannot be {what}: {reason}") from error


def _draft(place: Path) -> Path:
    return place.parent / f".{place.name}.{uuid.uuid4().hex}"


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
