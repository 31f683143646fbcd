"""Killed at any moment, a space has what was acknowledged, and no transition is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tocsin.subjects.space import SubjectSpace

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def read_told(path: Path) -> dict[int, list[Any]]:
    told = {}
    for line in path.read_text().splitlines():
        sequence, pairs = json.loads(line)
        assert sequence not in told, "told twice"
        told[sequence] = pairs
    return told


def apply(told: dict[int, list[Any]]) -> set[tuple[Any, Any]]:
    """Return ENTER minus LEAVE; whatever enters must have been out, and the reverse."""
    relation: set[tuple[Any, Any]] = set()
    for sequence in sorted(told):
        for kind, key, id in told[sequence]:
            pair = (key, id)
            assert (pair in relation) is (kind == "LEAVE"), (sequence, kind, pair)
            relation ^= {pair}
    return relation


def test_enter_minus_leave_is_the_relation_after_every_kill(tmp_path: Path) -> None:
    folder = tmp_path / "space"
    ledger = folder.with_suffix(".told")
    r = Random(7)
    for seed in range(6):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.subjects.writer", str(folder), str(seed)], cwd=ROOT
        )
        size = ledger.stat().st_size if ledger.exists() else 0
        deadline = time.monotonic() + 120
        while not ledger.exists() or ledger.stat().st_size <= size:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(r.random())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        told = read_told(ledger)
        space = SubjectSpace.open(folder)
        # At most one call was logged without being acknowledged: its transitions are recovered.
        assert space.sequence - max(told) in (0, 1)
        with ledger.open("a") as file:
            for found in space.recovered:
                assert found.sequence is not None
                pairs = [[t.kind.value, t.key, t.subscription] for t in found]
                if found.sequence in told:
                    assert sorted(pairs) == sorted(told[found.sequence])
                else:
                    file.write(json.dumps([found.sequence, pairs]) + "\n")
                    told[found.sequence] = pairs
        assert sorted(told) == list(range(1, space.sequence + 1)), "no call is missing"
        ids = space._subscriptions.catalog.names.to_list(space._subscriptions.catalog.live())
        relation = {(key, id) for id in ids for key in space.publications_of(id)}
        assert apply(told) == relation
        space.close()
