"""Jars from Maven coordinates, through Spark's own resolver, into a cache outside the repository.

`TOCSIN_JARS` names another place for the cache. Nothing but Java and PySpark is needed. What was
resolved once is not asked for again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

HOME = Path(pyspark.__file__).parent
CACHE = Path(os.environ.get("TOCSIN_JARS", Path.home() / ".cache" / "tocsin" / "jars"))
SCALA = "2.13"
KAFKA_SERVER = f"org.apache.kafka:kafka_{SCALA}:4.1.1"
_CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}"
_TRIES = 3
_TOKENS = f"org.apache.spark:spark-token-provider-kafka-0-10_{SCALA}"


class Unresolved(Exception):
    """Coordinates that no repository in reach has."""


def give_up(reason: str) -> None:
    """Skip a test, and say so; where tests must be complete, fail."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason} (in CI this is a failure)")
    pytest.skip(reason)


def resolve(coordinates: str, without: str = "") -> list[Path]:
    """Return the jars of coordinates and of all they depend on."""
    key = hashlib.sha256(f"{coordinates} {without}".encode()).hexdigest()[:16]
    folder = CACHE / key
    stamp = folder / "resolved.json"
    if stamp.exists():
        found = [Path(path) for path in json.loads(stamp.read_text())]
        if all(path.exists() for path in found):
            return found
    folder.mkdir(parents=True, exist_ok=True)
    nothing = folder / "nothing.py"
    nothing.write_text("")
    command = [str(HOME / "bin" / "spark-submit"), "--packages", coordinates]
    command += ["--exclude-packages", without] if without else []
    command += ["--conf", f"spark.jars.ivy={folder}", "--master", "local", str(nothing)]
    environment = {**os.environ, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable}
    for _ in range(_TRIES):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if not done.returncode or "download failed" not in done.stderr:
            break  # what a repository does not have is not asked for again
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "not found" in line]
        raise Unresolved(f"{coordinates}: {lines[-1].strip() if lines else 'not resolved'}")
    found = sorted((folder / "jars").glob("*.jar"))
    stamp.write_text(json.dumps([str(path) for path in found]))
    return found


def kafka_connector() -> list[Path]:
    """Return the jars with which Spark reads and writes Kafka.

    The connector of Spark's own version is best. Where a repository does not have it yet, the one
    of the version before does: what it needs of Spark has not changed.
    """
    tried = []
    for attempt in (_matching, _before):
        try:
            return attempt()
        except Unresolved as error:
            tried.append(str(error))
    raise Unresolved("; ".join(tried))


def _matching() -> list[Path]:
    return _without_sparks_own(resolve(f"{_CONNECTOR}:{pyspark.__version__}"))


def _before() -> list[Path]:
    connector = resolve(f"{_CONNECTOR}:4.2.0", without=_TOKENS)
    names = ("kafka-clients", "lz4", "snappy", "slf4j", "hadoop", "jsr305")
    tokens = [
        path
        for path in resolve(f"{_TOKENS}:4.1.0-preview1")
        if not any(name in path.name for name in names)
    ]
    return _without_sparks_own([*connector, *tokens])


def _without_sparks_own(found: Sequence[Path]) -> list[Path]:
    """Leave out what Spark brings along itself."""
    own = ("slf4j", "hadoop-client", "lz4", "snappy", "scala-parallel", "jsr305")
    kept = {path.name: path for path in found if not any(name in path.name for name in own)}
    return list(kept.values())


def scala_library() -> Path:
    """Return Spark's own Scala library, which the resolver leaves out."""
    return next((HOME / "jars").glob("scala-library-*.jar"))
