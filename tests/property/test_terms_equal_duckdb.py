"""Conditions with computed values, functions and lists match the rows that DuckDB selects."""

from __future__ import annotations

from random import Random

import pytest
from tests.property.terms import Terms, differences

from tocsin.language import parse, print_expression


@pytest.mark.parametrize("seed", range(6))
def test_terms_and_lists_mean_what_duckdb_says(seed: int) -> None:
    assert differences(seed, 40, 60) == []


@pytest.mark.parametrize("seed", range(6))
def test_terms_are_printed_so_that_they_are_read_again(seed: int) -> None:
    terms = Terms(Random(100 + seed))
    for _ in range(200):
        expression = parse(terms.condition(3).ours)
        assert parse(print_expression(expression)) == expression
