"""Tables that grow by one batch at a time, each batch once.

A table is a folder::

    data/<query>-<batch>-<attempt>/part-….parquet     written by Spark's tasks
    manifests/<query>-<batch>.json                    names the committed files

The files of an attempt are committed by their manifest, which one attempt of a batch can create.
Readers follow the manifests, so they never see the files of an attempt that was killed. The id of
the query is part of each name because Spark numbers batches from 0 again after its checkpoint was
deleted.

Enters: a frame and its batch. Leaves: files and a manifest; for readers, an Arrow table or a frame
of the committed batches.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.errors import PipelineError
from tocsin.spark.pipeline.batch import Batch
from tocsin.spark.pipeline.folders import Folder, open_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1


@dataclass(frozen=True)
class BatchManifest:
    """The committed files of one batch."""

    query: str
    batch: int
    version: int
    now: float
    rows: int
    files: dict[str, int]
    format: int = FORMAT


class Table:
    """A table that grows batch by batch."""

    def __init__(self, url: str, spark: SparkSession | None = None) -> None:
        self.folder: Folder = open_folder(url, spark)
        self.url = url.rstrip("/")

    def committed(self, batch: Batch) -> BatchManifest | None:
        """Return the manifest of a batch, or None if it is not committed."""
        content = self.folder.read(f"manifests/{batch.name}.json")
        return None if content is None else _to_manifest(content, self.url)

    def write(
        self, frame: DataFrame, batch: Batch, options: dict[str, str] | None = None
    ) -> BatchManifest:
        """Write a batch, unless it is committed; return its manifest."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        committed = self.committed(batch)
        if committed is not None:
            return committed
        seen = Observation()
        attempt = f"data/{batch.name}-{uuid.uuid4().hex[:12]}"
        counted = frame.observe(seen, f.count(f.lit(1)).alias("rows"))
        counted.write.options(**(options or {})).parquet(f"{self.url}/{attempt}")
        files = {
            f"{attempt}/{name}": size
            for name, size in self.folder.sizes(attempt).items()
            if name.endswith(".parquet")
        }
        rows = int(seen.get["rows"])
        manifest = BatchManifest(batch.query, batch.number, batch.version, batch.now, rows, files)
        content = json.dumps(asdict(manifest)).encode()
        if self.folder.create(f"manifests/{batch.name}.json", content):
            return manifest
        self.folder.remove(attempt)  # another driver was faster
        committed = self.committed(batch)
        if committed is None:
            raise PipelineError(f"{self.url}: the manifest of batch {batch.name} vanished")
        return committed

    def manifests(self) -> Iterator[BatchManifest]:
        """Yield the manifests of all batches, in the order of queries and batches."""
        for name in self.folder.names("manifests"):
            content = self.folder.read(f"manifests/{name}")
            if content is not None:
                yield _to_manifest(content, self.url)

    def sweep(self) -> int:
        """Remove the files of attempts that were not committed; return the number of attempts.

        Call it only while no pipeline writes to the table.
        """
        counted = {path.split("/")[1] for each in self.manifests() for path in each.files}
        left = [name for name in self.folder.names("data") if name not in counted]
        for name in left:
            self.folder.remove(f"data/{name}")
        return len(left)


def _to_manifest(content: bytes, url: str) -> BatchManifest:
    try:
        values: dict[str, Any] = json.loads(content)
        manifest = BatchManifest(**values)
    except (ValueError, TypeError):
        raise PipelineError(f"{url}: a manifest is damaged") from None
    if manifest.format > FORMAT:
        raise PipelineError(f"{url}: written by a newer version (format {manifest.format})")
    return manifest


def read_table(url: str, *, with_batch: bool = False) -> pa.Table:
    """Return the rows of a table, without Spark; none if nothing was written yet.

    URLs are reached through fsspec. `with_batch` adds the columns `query`, `batch` and `version`.
    Raises PipelineError for a damaged manifest, or one of a newer release.
    """
    table = Table(url)
    place = table.folder.place
    parts = []
    for manifest in table.manifests():
        for path in manifest.files:
            source = place.local(path) if place.is_local else pa.BufferReader(place.read(path))
            part = pq.ParquetFile(source).read()
            if with_batch:
                part = _with_batch(part, manifest)
            parts.append(part)
    if not parts:
        return pa.table({})
    return pa.concat_tables(parts, promote_options="permissive")


def _with_batch(part: pa.Table, manifest: BatchManifest) -> pa.Table:
    n = part.num_rows
    part = part.append_column("query", pa.array([manifest.query] * n, pa.string()))
    part = part.append_column("batch", pa.array([manifest.batch] * n, pa.int64()))
    return part.append_column("version", pa.array([manifest.version] * n, pa.int64()))


def read_frame(spark: SparkSession, url: str) -> DataFrame:
    """Return the rows of the batches committed so far as a DataFrame."""
    table = Table(url, spark)
    files = [f"{table.url}/{path}" for each in table.manifests() for path in each.files]
    if not files:
        raise PipelineError(f"{url}: nothing has been written there yet")
    return spark.read.option("mergeSchema", "true").parquet(*files)
