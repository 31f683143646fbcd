"""Shipment of a store to executors that cannot read its path, as an archive that Spark distributes.

Enters: a session and the path of a store. Leaves: the name of the store's folder among Spark's
files on each executor. It works in classic sessions and through Spark Connect.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_local(session: SparkSession) -> bool:
    """Return whether the executors run in the process of a classic session's driver."""
    context = getattr(session, "_jsc", None)
    if context is None:  # Spark Connect: the server may be anywhere
        return False
    master = session.conf.get("spark.master", "")
    return master is not None and master.startswith("local") and "cluster" not in master


def send(session: SparkSession, path: str) -> str:
    """Have Spark distribute the folder of a store; return its name among Spark's files."""
    name = f"tocsin-{uuid.uuid4().hex}"
    folder = tempfile.mkdtemp(prefix="tocsin-")
    remove_at_exit(folder)
    archive = Path(folder) / f"{name}.zip"
    root = Path(path)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for file in sorted(root.rglob("*")):
            if file.is_file():
                packed.write(file, file.relative_to(root))
    session.addArtifacts(f"{archive}#{name}", archive=True)
    return name


def remove_at_exit(folder: str) -> None:
    """Remove a temporary folder when this process ends."""
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
