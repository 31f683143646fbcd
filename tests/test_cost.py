"""A sample of the cost fuzzer; `python -m tests.cost` tries as many cases as you like."""

from __future__ import annotations

import pytest
from tests.cost import KINDS, run, warm_up

SLACK = 20
"""Machines differ, and others use them too: what is beyond this is no noise."""


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm_up()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_takes_more_than_its_budget(kind: str, seed: int) -> None:
    beyond = [str(cost) for cost in run(kind, seed, SLACK) if cost.share > 1]
    assert not beyond
