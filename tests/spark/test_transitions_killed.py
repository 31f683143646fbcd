"""`ts.transitions` under `kill -9`, with the settings that the benchmark and the docs have.

The pipeline keeps publications by itself and has kill tests of its own; here they are in Spark's
state store.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tocsin
from tocsin.store.subscription_store import SubscriptionStore
from tocsin_lab.bench.killing import descendants, kill, wait_gone

FILES, ROWS, VEHICLES = 12, 400, 60
SCRIPT = Path(__file__).parent / "transitions_run.py"
PATIENCE = 120.0


def _prepare(folder: Path, dice: random.Random) -> list[list[dict[str, Any]]]:
    """Write a store and files of positions; return the positions, file by file."""
    texts = [
        f"x >= {x} AND x < {x + 15} AND y BETWEEN {y} AND {y + 20}"
        for x, y in ((dice.randrange(100), dice.randrange(100)) for _ in range(150))
    ]
    store = SubscriptionStore.create(folder / "store")
    store.subscribe_many({"id": list(range(len(texts))), "where": texts})
    (folder / "input").mkdir()
    files = []
    for number in range(FILES):
        rows = [
            {
                "vehicle": dice.randrange(VEHICLES),
                "x": dice.randrange(100),
                "y": dice.randrange(100),
                "n": number * ROWS + n,
                "gone": dice.random() < 0.05,
            }
            for n in range(ROWS)
        ]
        file = folder / "input" / f"{number:04}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        os.utime(file, (1_700_000_000 + number,) * 2)  # Spark takes files in the order of these
        files.append(rows)
    return files


def _start(folder: Path) -> subprocess.Popen[bytes]:
    source = str(Path(tocsin.__file__).parents[1])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder)],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path},
        )


def _n_committed(folder: Path) -> int:
    commits = folder / "checkpoint" / "commits"
    return sum(name.name.isdigit() for name in commits.iterdir()) if commits.is_dir() else 0


def _await_batch(folder: Path, query: subprocess.Popen[bytes], dice: random.Random) -> None:
    """Wait until a batch is committed, and then for a random moment of the next."""
    before, end = _n_committed(folder), time.monotonic() + PATIENCE
    while _n_committed(folder) == before:
        has_time = query.poll() is None and time.monotonic() < end
        assert has_time, (folder / "log").read_text()[-3000:]
        time.sleep(0.02)
    time.sleep(dice.uniform(0, 0.6))


def _kill_amid(folder: Path, roles: tuple[str, ...], dice: random.Random) -> None:
    """Start the query, kill its processes of some roles amid a batch each, and then all of it."""
    query = _start(folder)
    for role in roles:
        _await_batch(folder, query, dice)
        kill(each.pid for each in descendants(query.pid) if each.role == role)
    if "jvm" not in roles:
        _await_batch(folder, query, dice)  # what workers did not finish is tried again
    all_of_it = [query.pid, *(each.pid for each in descendants(query.pid))]
    kill(all_of_it)
    query.wait()
    assert wait_gone(all_of_it, 30) == []


def _expected(folder: Path, files: list[list[dict[str, Any]]]) -> tuple[Counter[Any], set[Any]]:
    """Return the transitions of all updates, and what matches in the end."""
    matcher = tocsin.Matcher.open(folder / "store")
    held: dict[int, set[Any]] = {}
    told: Counter[Any] = Counter()
    for row in (row for rows in files for row in rows):
        key = row["vehicle"]
        before = held.pop(key, set())
        after = set() if row["gone"] else set(matcher.match({"x": row["x"], "y": row["y"]}))
        told.update((key, id, "LEAVE") for id in before - after)
        told.update((key, id, "ENTER") for id in after - before)
        if not row["gone"]:
            held[key] = after
    return told, {(key, id) for key, ids in held.items() for id in ids}


@pytest.mark.timeout(900)
def test_no_transition_is_lost_or_doubled_when_a_query_is_killed(tmp_path: Path) -> None:
    dice = random.Random(5)
    files = _prepare(tmp_path, dice)
    for roles in (("worker",), ("jvm",)):
        _kill_amid(tmp_path, roles, dice)
    assert _n_committed(tmp_path) < FILES, "everything was done before the last kill"
    query = _start(tmp_path)
    assert query.wait(PATIENCE * 2) == 0, (tmp_path / "log").read_text()[-3000:]
    found = Counter(map(tuple, json.loads((tmp_path / "found.json").read_text())))
    told, live = _expected(tmp_path, files)
    assert found == told
    relation: Counter[Any] = Counter()
    for (key, id, kind), n in found.items():
        relation[key, id] += n if kind == "ENTER" else -n
    assert {pair for pair, n in relation.items() if n} == live
    assert set(relation.values()) <= {0, 1}
