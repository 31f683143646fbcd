"""A sample of the faults that `python -m tests.faults` runs through: all calls, or every few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.faults.scenarios import SCENARIOS, Scenario, kinds, n_calls, run

from tocsin.storage import disk

MOST = 4
"""How many calls of a scenario fail in the suite, for each kind of fault."""


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_acknowledged_is_lost_whichever_call_of_the_disk_fails(
    scenario: Scenario, tmp_path: Path
) -> None:
    total = n_calls(scenario, tmp_path / "count")
    assert total > 1
    every = -(-total // MOST)
    for at, (fault, forever) in enumerate(kinds(scenario)):
        for n in range(at % every, total, every):
            run(scenario, tmp_path / f"{fault}-{forever}-{n}", n, fault, forever)


def run_all(scenario: Scenario, folder: Path, n_calls: int) -> None:
    for n in range(n_calls):
        run(scenario, folder / str(n), n, "EIO", False)


def test_the_harness_notices_a_file_that_is_not_made_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_file(target: Path, draft: Path, octets: bytes) -> None:
        disk.make_folder(target.parent)
        with disk.NewFile(target) as file:
            file.write(octets[:1])
            file.write(octets[1:])

    monkeypatch.setattr(disk, "create_file", create_file)
    scenario = next(one for one in SCENARIOS if one.name == "pipeline: create")
    with pytest.raises(AssertionError):
        run_all(scenario, tmp_path, 6)


def test_the_harness_notices_a_log_that_goes_on_in_a_file_that_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tocsin.subjects.log import Log

    take = Log._switch_to

    def forgiving(log: Log, file: int, n_bytes: int, path: Path) -> None:
        old, before = log._file, log.path
        try:
            disk.sync_folder(log.folder)
        except OSError:
            log._file, log.path = old, before
            return
        take(log, file, n_bytes, path)

    monkeypatch.setattr(Log, "_switch_to", forgiving)
    scenario: Any = next(one for one in SCENARIOS if one.name.endswith("then publish"))
    total = n_calls(scenario, tmp_path / "count")
    with pytest.raises(AssertionError):
        run_all(scenario, tmp_path, total)
