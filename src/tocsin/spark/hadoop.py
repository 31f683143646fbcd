"""A place that Spark reaches through Hadoop: `hdfs://…`, `viewfs://…`, and all its other URLs.

Enters: a URL, on the driver of a classic session. Leaves: the interface of `tocsin.storage.place`,
configured by the Hadoop configuration of that session and nothing else. Small files pass through
Py4J; large ones are copied by the JVM between the file system and the folder of local copies.

A file is committed by writing it under a hidden name, flushing it to the disks of the file system
(`hsync`), and renaming it with `FileContext`, which refuses a name that is taken. Spark commits its
own checkpoints in this way. The test at the first commit does not detect object stores without an
atomic rename: have one writer there, or a URL that fsspec reaches.
"""

from __future__ import annotations

import atexit
import errno
import functools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tocsin.errors import StoreError
from tocsin.storage.folder import VersionChain
from tocsin.storage.local import LocalPlace, draft_of
from tocsin.storage.manifests import name_of as manifest_name
from tocsin.storage.place import Place, to_place
from tocsin.storage.remote import RemotePlace

_OWN = re.compile(r"(hdfs|viewfs|webhdfs|swebhdfs|ofs|o3fs)://")
"""URLs of Hadoop's own file systems, which need no configuration but that of Spark."""
_COPY_BYTES = 1 << 20


def open_place(path: object) -> Place:
    """Return the place of a path or URL, as the store of a query.

    On the driver of a classic session, Hadoop's own file systems are reached through its JVM. All
    other URLs, and all URLs elsewhere, are reached through fsspec.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    context = _active_context()
    if context is not None and isinstance(text, str) and _OWN.match(text):
        return HadoopPlace(text, context)
    return to_place(path)


def _active_context() -> Any:
    """Return the context of the driver's classic session; None without one, and in tasks."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


class HadoopPlace(RemotePlace):
    """A folder that the JVM of the driver reaches through Hadoop; see `Place` for the methods."""

    def __init__(self, url: str, context: Any) -> None:
        super().__init__(url)
        self._spark = context
        self._jvm = context._jvm
        self._conf = context._jsc.hadoopConfiguration()
        hadoop = self._jvm.org.apache.hadoop.fs
        try:
            self._root = hadoop.Path(self.url)
            self._files = self._root.getFileSystem(self._conf)
            uri = self._files.getUri()
            self._context = hadoop.FileContext.getFileContext(uri, self._conf)
        except Exception as error:
            raise StoreError(url, f"Hadoop cannot use the URL: {_reason(error)}") from error

    def send(self, name: str) -> None:
        """Have Spark send a file to all executors, unless it did before.

        Spark reads the file again for each new executor, so it gets a copy that a vacuum of the
        store does not remove.
        """
        path = _sent_folder(self._spark.applicationId) / name
        if not path.exists():
            copy = self.local(name)
            draft = draft_of(path)
            try:
                os.link(copy, draft)
            except OSError:  # another file system
                shutil.copyfile(copy, draft)
            draft.rename(path)
            self._spark.addFile(str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        """In a task there is no JVM to call: there the URL is reached through fsspec."""
        return to_place, (self.url,)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path_of(name)) if name else self._root

    def exists(self) -> bool:
        """Whether the folder exists."""
        with _as_os_errors():
            return bool(self._files.exists(self._root))

    def is_file(self) -> bool:
        """Whether there is a file where the folder should be."""
        return self._status("isFile") is True

    def _status(self, method: str, name: str = "") -> Any:
        """Return an answer of a file's status, or None if there is no such file."""
        try:
            with _as_os_errors():
                return getattr(self._files.getFileStatus(self._path(name)), method)()
        except FileNotFoundError:
            return None

    def _list(self, under: str) -> dict[str, Any]:
        try:
            with _as_os_errors():
                statuses = self._files.listStatus(self._path(under))
                return {status.getPath().getName(): status for status in statuses}
        except FileNotFoundError:
            return {}

    def names(self, under: str = "") -> list[str]:
        """Return the names of all files and folders; none if there is no folder."""
        return sorted(self._list(under))

    def synced_sizes(self, under: str) -> dict[str, int]:
        """Return the sizes of the files in a folder."""
        files = {name: status for name, status in self._list(under).items() if status.isFile()}
        return {name: int(files[name].getLen()) for name in sorted(files)}

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if it does not exist."""
        n_bytes = self._status("getLen", name)
        return None if n_bytes is None else int(n_bytes)

    def age(self, name: str) -> float:
        """Return the seconds since a file was written; 0 if it does not exist."""
        written = self._status("getModificationTime", name)
        return 0.0 if written is None else time.time() - written / 1000

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError."""
        with _as_os_errors():
            stream = self._files.open(self._path(name))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def replace(self, name: str, octets: bytes) -> None:
        """Create or replace a file, whole."""
        self._write_and_rename(name, octets, "OVERWRITE")

    def _create(self, name: str, octets: bytes) -> None:
        self._write_and_rename(name, octets, "NONE")

    def _write_and_rename(self, name: str, octets: bytes, mode: str) -> None:
        draft = str(draft_of(Path(name)))
        with _as_os_errors():
            self._files.mkdirs(self._path(name).getParent())
            try:
                with self._writing(draft) as stream:
                    stream.write(bytearray(octets))
                self._context.rename(self._path(draft), self._path(name), self._options(mode))
            except BaseException:
                with suppress(Exception):
                    self._files.delete(self._path(draft), False)
                raise

    @contextmanager
    def _writing(self, name: str) -> Iterator[Any]:
        """Yield a stream to a new file, which is flushed to the disks at the end."""
        stream = self._files.create(self._path(name), True)
        try:
            yield stream
            if stream.hasCapability("hsync"):
                stream.hsync()
        finally:
            stream.close()

    def _options(self, name: str) -> Any:
        """Return an array of one option of `FileContext.rename`."""
        kinds = self._jvm.org.apache.hadoop.fs.Options.Rename
        reflection = self._jvm.py4j.reflection.ReflectionUtil
        kind = reflection.classForName("org.apache.hadoop.fs.Options$Rename")
        array = self._jvm.java.lang.reflect.Array.newInstance(kind, 1)
        array[0] = getattr(kinds, name)
        return array

    def _remove(self, name: str) -> None:
        with _as_os_errors():
            self._files.delete(self._path(name), False)

    def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with everything in it, if it exists."""
        with _as_os_errors():
            self._files.delete(self._path(name), True)

    def _raw_local(self) -> Any:
        return self._jvm.org.apache.hadoop.fs.FileSystem.getLocal(self._conf).getRaw()

    def _upload(self, path: Path, name: str) -> None:
        with _as_os_errors():
            self._files.mkdirs(self._path(name).getParent())
            source = self._raw_local().open(self._jvm.org.apache.hadoop.fs.Path(path.as_uri()))
            try:
                with self._writing(name) as stream:
                    copy = self._jvm.org.apache.hadoop.io.IOUtils.copyBytes
                    copy(source, stream, _COPY_BYTES, False)
            finally:
                source.close()

    def _download(self, name: str, path: Path) -> None:
        target = self._jvm.org.apache.hadoop.fs.Path(path.as_uri())
        with _as_os_errors():
            self._files.copyToLocalFile(False, self._path(name), target, True)


class SentPlace(LocalPlace):
    """One version of a store in tasks: its manifests, and files that Spark sent to the executor."""

    def __init__(self, url: str, manifests: Mapping[str, bytes]) -> None:
        super().__init__(Path(url))
        self.url = url
        self.manifests = dict(manifests)

    def __str__(self) -> str:
        return self.url

    def path_of(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}"

    def exists(self) -> bool:
        """Return True: a version was sent."""
        return True

    def names(self, under: str = "") -> list[str]:
        """Return the names of the manifests."""
        return [] if under else sorted(self.manifests)

    def read(self, name: str) -> bytes:
        """Return the content of a manifest; raise FileNotFoundError for any other file."""
        if name not in self.manifests:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path_of(name))
        return self.manifests[name]

    def local(self, name: str) -> Path:
        """Return the path of a file that Spark sent."""
        from pyspark import SparkFiles

        return Path(SparkFiles.get(name))


def task_place(chain: VersionChain, place: Place) -> Place:
    """Return the place where tasks open a version; the files on one of Hadoop's are sent to them.

    Files have names that are used once, so each is sent once, whatever versions and queries use it.
    """
    if not isinstance(place, HadoopPlace):
        return place
    manifests = (chain.base, *chain.changes)
    names = [manifest_name(manifest.number) for manifest in manifests]
    for name in sorted({name for manifest in manifests for name in manifest.names()}):
        place.send(name)
    return SentPlace(str(place), {name: place.read(name) for name in names})


_ERRORS = {
    "FileNotFoundException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "AccessControlException": errno.EACCES,
    "ParentNotDirectoryException": errno.ENOTDIR,
}
"""Exceptions of Java and the errors of the system that they mean; all others mean EIO."""


@functools.cache
def _sent_folder(application: str) -> Path:
    """Return the folder of the files that this process has Spark send, which it removes at exit."""
    folder = tempfile.mkdtemp(prefix="tocsin-sent-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise an exception of Java as the OSError that it means."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        yield
    except Py4JJavaError as error:
        name = error.java_exception.getClass().getSimpleName()
        raise OSError(_ERRORS.get(name, errno.EIO), _reason(error)) from error


def _reason(error: BaseException) -> str:
    """Return the first line of an error's message, which Py4J puts after a line of its own."""
    cause = getattr(error, "java_exception", None)
    text = str(error) if cause is None else str(cause.toString())
    return text.partition("\n")[0]
