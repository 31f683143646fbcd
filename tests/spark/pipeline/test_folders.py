"""Files that are created once, and tables that count a batch from its manifest on."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.errors import PipelineError
from tocsin.spark.pipeline.batch import Batch
from tocsin.spark.pipeline.folders import open_folder, to_local
from tocsin.spark.pipeline.metrics import BatchMetrics, load_metrics, read_metrics, write_metrics
from tocsin.spark.pipeline.tables import BatchManifest, Table, read_table


def test_a_name_is_created_by_one_writer_only(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    barrier = threading.Barrier(8)
    won: list[int] = []

    def write(i: int) -> None:
        barrier.wait()
        if folder.create("inner/name.json", b"%d" % i):
            won.append(i)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert folder.read("inner/name.json") == b"%d" % won[0]
    assert folder.names("inner") == ["name.json"]
    assert sorted(each.name for each in (tmp_path / "inner").iterdir()) == ["name.json"]


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "nowhere"))
    assert folder.read("x") is None
    assert folder.names() == []
    assert folder.sizes("x") == {}
    folder.remove("x")


def test_paths_and_file_urls_are_local() -> None:
    assert to_local("/a/b") == to_local("file:/a/b") == to_local("file:///a/b") == Path("/a/b")
    assert to_local("hdfs://host/a") is None


def test_a_url_that_nothing_reaches_is_an_error_of_the_pipeline() -> None:
    with pytest.raises(PipelineError, match="nothing://host/a: the URL cannot be used"):
        open_folder("nothing://host/a")


def test_without_a_session_a_url_is_reached_through_fsspec() -> None:
    pytest.importorskip("fsspec")
    folder = open_folder("memory://folders/a")
    assert folder.create("inner/a.json", b"one")
    assert not folder.create("inner/a.json", b"two")
    folder.replace("inner/a.json", b"three")
    assert folder.read("inner/a.json") == b"three"
    assert folder.names("inner") == ["a.json"]
    assert folder.sizes("inner") == {"a.json": 5}
    folder.remove("inner")
    assert folder.names("inner") == []


def put(table: Table, batch: Batch, attempt: str, values: list[int], *, counts: bool) -> None:
    """Write an attempt as Spark would, with a manifest or without."""
    folder = Path(table.url) / "data" / f"{batch.name}-{attempt}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"x": values}), folder / "part-0.parquet")
    if counts:
        path = f"data/{batch.name}-{attempt}/part-0.parquet"
        manifest = BatchManifest(batch.query, batch.number, 7, 1.5, len(values), {path: 1})
        content = json.dumps(asdict(manifest)).encode()
        assert table.folder.create(f"manifests/{batch.name}.json", content)


def test_only_what_a_manifest_names_is_read(tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    put(table, Batch("q", 0), "killed", [9, 9], counts=False)
    put(table, Batch("q", 0), "done", [1, 2], counts=True)
    put(table, Batch("q", 1), "killed", [9], counts=False)
    put(table, Batch("other", 0), "done", [3], counts=True)
    assert sorted(read_table(str(tmp_path))["x"].to_pylist()) == [1, 2, 3]
    rows = read_table(str(tmp_path), with_batch=True).to_pylist()
    assert {"x": 3, "query": "other", "batch": 0, "version": 7} in rows
    assert table.committed(Batch("q", 1)) is None
    assert table.sweep() == 2
    assert table.sweep() == 0
    assert sorted(read_table(str(tmp_path))["x"].to_pylist()) == [1, 2, 3]


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    assert read_table(str(tmp_path / "nothing")).num_rows == 0


def test_damaged_and_newer_manifests_are_refused(tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    table.folder.create("manifests/q-000000000.json", b"{}")
    with pytest.raises(PipelineError, match="damaged"):
        read_table(str(tmp_path))
    newer = asdict(BatchManifest("q", 0, 1, 1.0, 0, {}, format=99))
    table.folder.replace("manifests/q-000000000.json", json.dumps(newer).encode())
    with pytest.raises(PipelineError, match="newer version"):
        read_table(str(tmp_path))


def test_the_metrics_of_a_batch_are_kept_once(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    first = BatchMetrics("q", 0, 1.0, 2.0, 3, 1.0, 10, 5, 6, 1, None, 0.5, {"match": 7.0}, ("x",))
    again = BatchMetrics("q", 0, 8.0, 9.0, 3, 1.0, 10, 5, 6, 1, None, 0.5)
    write_metrics(folder, first)
    write_metrics(folder, again)
    assert load_metrics(str(tmp_path)) == [first]
    row = read_metrics(str(tmp_path)).to_pylist()[0]
    assert (row["matches"], row["seconds"], row["ms_match"]) == (6, 1.0, 7.0)
