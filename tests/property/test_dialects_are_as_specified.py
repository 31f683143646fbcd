"""Conditions of the dialects match what an evaluator of the specification selects.

`python -m tests.property.test_dialects_are_as_specified 200` tries as many seeds.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.property import dialects as drawn

from tocsin import Matcher
from tocsin.errors import ConditionCostError
from tocsin.language import parse, print_expression
from tocsin.language.dialects import write


class Dialect(NamedTuple):
    """How conditions of a dialect are drawn, written and evaluated."""

    name: str
    draw: Callable[[Random], drawn.Tree]
    write: Callable[[drawn.Tree], str]
    passes: Callable[[drawn.Tree, drawn.Event], bool | None]
    has_all_numbers: bool


DIALECTS = (
    Dialect("cesql", drawn.draw_cesql, drawn.write_cesql, drawn.passes_cesql, False),
    Dialect("jms", drawn.draw_selector, drawn.write_selector, drawn.evaluate_selector, True),
)


def draw(dialect: Dialect, random: Random) -> drawn.Tree:
    """Draw a condition; another one where it would take too much work."""
    while True:
        tree = dialect.draw(random)
        with contextlib.suppress(ConditionCostError):
            parse(write(dialect.write(tree), dialect.name))
            return tree


def differences(dialect: Dialect, seed: int, n_conditions: int, n_events: int) -> list[str]:
    random = Random(seed)
    trees = [draw(dialect, random) for _ in range(n_conditions)]
    has_all = dialect.has_all_numbers
    events = [drawn.draw_event(random, all_numbers=has_all) for _ in range(n_events)]
    texts = [dialect.write(tree) for tree in trees]
    expected = [[dialect.passes(tree, event) is True for tree in trees] for event in events]
    problems = []
    for engine in ("auto", "oracle"):
        matcher = Matcher(engine=engine)
        table = {"id": list(range(n_conditions)), "where": texts}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            matcher.subscribe_many(table, dialect=dialect.name)
            by_event: list[Any] = list(matcher.match_batch(events))
            alone = [matcher.match(event) for event in events]
        for event, row, *ways in zip(events, expected, by_event, alone, strict=True):
            for ids in ways:
                wrong = {at for at, should in enumerate(row) if should} ^ set(ids)
                problems += [f"{engine} {dialect.name}: {texts[at]}\n    {event}" for at in wrong]
    return problems


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("seed", range(3))
def test_a_condition_selects_what_the_specification_says(dialect: Dialect, seed: int) -> None:
    assert differences(dialect, seed, 60, 40) == []


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_condition_of_a_dialect_can_be_written_in_our_language(dialect: Dialect) -> None:
    random = Random(7)
    for _ in range(200):
        expression = parse(write(dialect.write(draw(dialect, random)), dialect.name))
        printed = print_expression(expression)
        assert print_expression(parse(printed)) == printed


def main() -> None:
    for seed in range(int(sys.argv[1])):
        for dialect in DIALECTS:
            for problem in differences(dialect, 1000 + seed, 60, 40)[:3]:
                print(seed, problem)


if __name__ == "__main__":
    main()
