"""The small files of a pipeline: manifests, metrics, what it learned, and who runs it.

Enters: the path or URL of a folder. Leaves: a `Folder` over a place, whose errors are those of a
pipeline. Spark writes the files of a batch's data through Hadoop; so all URLs are reached through
Hadoop here too, with the configuration of the session. Without a session, fsspec reaches them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tocsin.errors import PipelineError, StoreError
from tocsin.spark.hadoop import HadoopPlace
from tocsin.storage.place import Place, to_local_path, to_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

to_local = to_local_path


def open_place(url: str, spark: SparkSession | None = None) -> Place:
    """Return the place of a folder that Spark uses too; raise PipelineError if it is unusable."""
    try:
        if spark is None or to_local_path(url) is not None:
            return to_place(url)
        return HadoopPlace(url, spark.sparkContext)
    except StoreError as error:
        raise PipelineError(str(error)) from error


def open_folder(url: str, spark: SparkSession | None = None) -> Folder:
    """Return the folder at a path or URL; raise PipelineError for a URL that cannot be used."""
    return Folder(open_place(url, spark))


class Folder:
    """A place with the errors of a pipeline."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.url = str(place)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        with self._as_pipeline_errors("read"):
            try:
                return self.place.read(name)
            except FileNotFoundError:
                return None

    def create(self, name: str, content: bytes) -> bool:
        """Create a file, whole and durable; return False if the name is taken."""
        with self._as_pipeline_errors("written"):
            try:
                self.place.commit_once(name, content)
            except FileExistsError:
                return False
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace a file."""
        with self._as_pipeline_errors("written"):
            self.place.replace(name, content)

    def names(self, inner: str = "") -> list[str]:
        """Return the names in a folder, sorted, without hidden ones; none if there is no folder."""
        with self._as_pipeline_errors("read"):
            return [name for name in self.place.names(inner) if name[0] != "."]

    def sizes(self, inner: str) -> dict[str, int]:
        """Return the sizes of the files in a folder, made durable."""
        with self._as_pipeline_errors("synced"):
            sizes = self.place.synced_sizes(inner)
        return {name: size for name, size in sizes.items() if name[0] != "."}

    def remove(self, inner: str) -> None:
        """Remove a file, or a folder with everything in it, if it exists."""
        with self._as_pipeline_errors("removed"):
            self.place.remove_tree(inner)

    @contextlib.contextmanager
    def _as_pipeline_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise PipelineError(f"{self.url}: cannot be {action}: {reason}") from error
