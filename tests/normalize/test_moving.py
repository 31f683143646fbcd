"""Moves: the bounds that new parameters give are those of the normal form."""

from __future__ import annotations

import datetime as dt
import random

import pytest

from tocsin.language import parse
from tocsin.model import EventType
from tocsin.normalize import bind, normalize
from tocsin.normalize.moving import Moves
from tocsin.normalize.table import from_forms

VALUES = [0, 1, -1, 7, 2**53, 2**53 + 1, -(2**63), 2**63 - 1, 0.0, -0.0, 0.5, 1.5, 1e300, 5e-324]
ODD = [
    float("inf"),
    float("-inf"),
    float("nan"),
    None,
    True,
    "text",
    2**70,
    dt.datetime(2020, 1, 1),
]
CONDITIONS = [
    *(f"x {op} :a AND s = 'k'" for op in ("=", "<", "<=", ">", ">=")),
    "x BETWEEN :a AND :b",
    "x BETWEEN 3 AND :a AND y > :b",
    "y < :b AND x BETWEEN :a AND 9.5 AND z IS NOT NULL",
]


@pytest.mark.parametrize("kind", [None, float, int])
@pytest.mark.parametrize("where", CONDITIONS)
def test_moves_are_the_bounds_of_the_normal_form(where: str, kind: object) -> None:
    declared = None if kind is None else EventType("T", x=kind, y=kind)
    expression, dice = parse(where), random.Random(1)
    moves = Moves(declared)
    n_moved = 0
    for _ in range(400):
        names = [name for name in ("a", "b") if f":{name}" in where]
        params: dict[str, object] = {name: dice.choice(VALUES) for name in names}
        if dice.random() < 0.2:
            params["a"] = dice.choice(ODD)
        old = {"a": dice.choice(VALUES), "b": params.get("b")}
        found = moves.of(dice.choice([where, expression]), {"a": params["a"]}, lambda: old)  # noqa: B023
        if found is None:
            continue
        n_moved += 1
        table = from_forms([normalize(bind(expression, params), declared)])
        (move,) = found
        assert move.attribute == "x"
        if not table.n_conjunctions:
            continue  # another condition can never hold; what is moved is for naught
        at = table.attribute.tolist().index(table.attributes.index("x"))
        first, last = table.piece_start[at : at + 2]
        assert (last - first, table.flags[at], table.line[first]) == (1, 0, move.line)
        assert (table.low_key[first], table.low_tail[first]) == move.low
        assert (table.high_key[first], table.high_tail[first]) == move.high
    assert n_moved > 0


def test_moments_move_too() -> None:
    declared, expression = EventType("T", t="timestamp"), parse("t >= :a")
    moment = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    (move,) = Moves(declared).of(expression, {"a": moment}, dict) or []
    table = from_forms([normalize(bind(expression, {"a": moment}), declared)])
    assert (table.low_key[0], table.low_tail[0]) == move.low
    assert (table.high_key[0], table.high_tail[0]) == move.high


@pytest.mark.parametrize(
    "where",
    [
        "x > :a OR y = 1",
        "NOT (x > :a)",
        "x > :a AND x < 5",
        "x <> :a",
        "x IN (:a, 2)",
        "x NOT BETWEEN :a AND 7",
        "s LIKE :a",
        "x > 1",
    ],
)
def test_what_is_more_than_a_bound_is_not_moved(where: str) -> None:
    assert Moves(None).of(where, {"a": 1}, dict) is None
    assert Moves(None).of(parse(where), {"a": 1}, dict) is None
