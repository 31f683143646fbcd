"""The broker on a database whose calls fail: a sample; `python -m tests.broker.faults` runs all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.faults import (
    SCENARIOS,
    Fault,
    attempt,
    injected,
    reference,
    template,
)

pytestmark = pytest.mark.slow

SAMPLE = [
    Fault("io", 1, False),
    Fault("full", 2, True),
    Fault("locked", 1, True),
    Fault("io", 5, True),
    Fault("full", 4, False),
    Fault("unknown", 1, False),
    Fault("unknown", 1, True),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with injected():
        yield template(tmp_path_factory.mktemp("faults") / "template")


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_whatever_call_fails_nothing_acknowledged_is_lost_and_nothing_refused_is_done(
    source: Path, scenario: str
) -> None:
    expected = reference(source, scenario)
    for fault in SAMPLE:
        attempt(source, scenario, fault, expected)


@pytest.mark.parametrize("at", [1, 7, 13, 19, 25, 31])
def test_a_start_on_a_disk_that_fails_ends_with_a_reason_and_leaves_all_as_it_was(
    source: Path, at: int
) -> None:
    attempt(source, "start", Fault("io", at, True), reference(source, "start"))
