"""Lucene's Monitor on the searches of workload X, with the same documents, in the same run.

Enters: searches, documents and how many searches fit each; Java 17 and Maven, where they are
installed. Leaves: documents a second. A small program next to this module registers the searches as
conjunctions of terms, counts what fits each document, and times the documents after that, which
also warms it up. Lucene comes from Maven Central once, into a folder of the user's cache.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.errors import UnavailableError
from tocsin_lab.bench.baselines import Measured
from tocsin_lab.bench.joins import Formulation
from tocsin_lab.bench.timing import Timing
from tocsin_lab.workloads import Searches

VERSION = "9.11.1"
_CACHE = Path.home() / ".cache" / "tocsin-lab"
_PROGRAM = Path(__file__).with_name("LuceneSearches.java")
_MOST_DOCUMENTS = 500
_TIMEOUT = 600.0
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>tocsin.lab</groupId><artifactId>lucene</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.lucene</groupId><artifactId>lucene-monitor</artifactId>
<version>{VERSION}</version>
</dependency></dependencies>
</project>
"""


def measure(
    chosen: Searches,
    of: tuple[int, int],
    checked: tuple[pa.Table, NDArray[np.int64]],
    timed: tuple[pa.Table, NDArray[np.int64]],
    repeats: int,
) -> Measured:
    """Count and time; `of` is how many searches, and the seed.

    Where Lucene counts otherwise, AssertionError is raised.
    """
    java, jars = _java(), _jars()
    [searches] = chosen.subscription_params(*of)
    n = min(len(timed[0]), _MOST_DOCUMENTS)
    bodies = [*checked[0]["body"].to_pylist(), *timed[0]["body"].slice(0, n).to_pylist()]
    with tempfile.TemporaryDirectory(prefix="tocsin-lucene-") as folder:
        files = [Path(folder) / name for name in ("searches", "documents")]
        for file, lines in zip(files, (searches["query"].to_pylist(), bodies), strict=True):
            file.write_text("\n".join(lines) + "\n")
        command = [java, "-Xmx3g", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
        arguments = [*map(str, files), str(len(checked[0])), str(repeats)]
        lines = _run([*command, str(_PROGRAM), *arguments]).splitlines()
    counts = np.array(lines[0].split(), np.int64)
    expected = np.concatenate([checked[1], timed[1][:n]])
    if not np.array_equal(counts, expected):
        raise AssertionError(f"Lucene counts {counts.sum()} matches, the matcher {expected.sum()}")
    seconds, cpu_seconds = np.array([line.split() for line in lines[1:]], np.float64).T.tolist()
    timing = Timing(tuple(seconds), tuple(cpu_seconds))
    how = Formulation("lucene-monitor", "plain", f"version {VERSION}, conjunctions of terms", "")
    return Measured(how, n, timing, {})


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise UnavailableError("Lucene needs Java 17 (apt-get install openjdk-17-jdk-headless)")
    return java


def _jars() -> Path:
    """Return the folder with Lucene, fetched if it is not there."""
    folder = _CACHE / f"lucene-{VERSION}"
    jars = folder / "jars"
    if not jars.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise UnavailableError("Lucene is fetched by Maven (apt-get install maven)")
        folder.mkdir(parents=True, exist_ok=True)
        pom, fetched = folder / "pom.xml", folder / "fetched"
        pom.write_text(_POM)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
        _run([maven, "-q", "-B", "-f", str(pom), goal, f"-DoutputDirectory={fetched}"])
        fetched.rename(jars)
    return jars


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{Path(command[0]).name} took too long") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise UnavailableError(f"{Path(command[0]).name} failed: {lines[-1]}")
    return done.stdout
