"""One Spark session for all tests here: a local one with two cores."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tocsin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = Path(tocsin.__file__).parents[1]
NEED_NO_SPARK = {"test_config.py", "test_lines.py", "test_folders.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of Spark is slow, needs Java, and warns about what is not ours."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.name not in NEED_NO_SPARK:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            if shutil.which("java") is None:
                item.add_marker(pytest.mark.skip(reason="Spark needs a Java runtime"))


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Let sockets that PySpark left open be noticed here, where its warnings are ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Workers import the same Tocsin as this process, wherever it lies.
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    patch.setenv("PYTHONPATH", os.pathsep.join(paths))
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("tocsin-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.ansi.enabled", "false")
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
        .getOrCreate()
    )
    yield session
    session.stop()
    patch.undo()


@pytest.fixture
def hadoop_url(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A URL that only Hadoop reaches: a mount table of ViewFs over a local folder."""
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "disk").mkdir()
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    name = tmp_path.name.replace("_", "-")
    key = f"fs.viewfs.mounttable.{name}.link./data"
    conf.set(key, (tmp_path / "disk").as_uri())
    yield f"viewfs://{name}/data"
    conf.unset(key)
