"""Random conditions and events that love the edges.

Everything is drawn from one small source of choices, which is either a seeded random generator
(fast: for comparing millions of pairs) or Hypothesis (slow: for finding and shrinking a
counterexample). A *world* says which attributes there are and of what kind their values are;
`ANY` marks an attribute whose values are of all kinds.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from tocsin.language.expression import (
    Between,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    Parameter,
    Truth,
    conjoin,
    disjoin,
    map_operands,
)
from tocsin.model import INT64_MAX, INT64_MIN, Kind

T = TypeVar("T")
Event = dict[str, Any]


class Source(Protocol):
    """Where random choices come from."""

    def below(self, n: int) -> int:
        """Return a number from 0 to n - 1; smaller is simpler."""
        ...


class Seeded:
    """Choices by a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, n: int) -> int:
        return int(self._random.random() * n)


class Drawn:
    """Choices by Hypothesis."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def below(self, n: int) -> int:
        return self._draw(st.integers(0, n - 1)) if n > 1 else 0


def choose(source: Source, options: Sequence[T]) -> T:
    return options[source.below(len(options))]


def one_in(source: Source, n: int) -> bool:
    """Whether something that happens once in n times happens; not happening is simpler."""
    return source.below(n) == n - 1


# Values: each pool starts with the plainest.

INTEGERS: tuple[int, ...] = (
    0, 1, 2, 3, 5, -1, -2, 10, 2**31, -(2**31) - 1, 10**18,
    2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**53 + 3, -(2**53), -(2**53) - 1, -(2**53) - 2,
    2**62 + 1, INT64_MAX - 512, INT64_MAX - 1, INT64_MAX, INT64_MIN + 1, INT64_MIN,
)  # fmt: skip
FLOATS: tuple[float, ...] = (
    0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.5, -1.0, -0.5, -0.0, 5.0, 10.0, 0.1, 0.2, 0.3,
    0.1 + 0.2, math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0), 5e-324, -5e-324,
    2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308, 1e18, 1e22,
    2.0**53, 2.0**53 + 2, -(2.0**53), -(2.0**53) - 2, 2.0**62,
    2.0**63, math.nextafter(2.0**63, 0.0), -(2.0**63), math.nextafter(-(2.0**63), -math.inf),
)  # fmt: skip
ODD_FLOATS: tuple[float, ...] = (math.nan, math.inf, -math.inf)
"""Floats that have no literal: they come by events and parameters only."""
STRINGS: tuple[str, ...] = (
    "", "a", "b", "ab", "abc", "A", "a'b", "'", "''", "%", "_", "\\", "a%b", "a_b", "a\\b", "%%",
    " ", "a ", " a", "\n", "a\nb", "\t", "0", "1", "true", "NULL", "--", "/*", ":p", '"', "`",
    "é", "e\u0301", "ß", "ss", "ab\u00e9", "\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000",
    "\uffff", "\U00010000", "😀", "😀😀", "a😀b", "\U0010ffff", "a\U0010ffff", "\U0010ffffa",
    "\0", "a\0", "a\0b", "\0a", "a\0\0", "x" * 13, "x" * 300,
)  # fmt: skip
TIMESTAMPS: tuple[dt.datetime, ...] = tuple(
    moment.replace(tzinfo=dt.UTC)
    for moment in (
        dt.datetime(1970, 1, 1),
        dt.datetime(2026, 7, 1),
        dt.datetime(2026, 7, 1, 12, 30, 15),
        dt.datetime(2026, 7, 1, 12, 30, 15, 1),
        dt.datetime(1970, 1, 1, 0, 0, 0, 1),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.datetime(2024, 2, 29, 23, 59, 59),
        dt.datetime(1, 1, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    )
)
BOOLEANS = (False, True)
POOLS: Mapping[Kind, Sequence[Any]] = {
    Kind.INTEGER: INTEGERS,
    Kind.FLOAT: FLOATS,
    Kind.STRING: STRINGS,
    Kind.BOOLEAN: BOOLEANS,
    Kind.TIMESTAMP: TIMESTAMPS,
}
KINDS = tuple(Kind)
ANY = None
"""In a world: values of every kind, and values of no kind."""
OF_NO_KIND: tuple[Any, ...] = ([], [1, 2], {1}, b"a", 1j, dt.time(12, 30))


# Worlds.


@dataclass(frozen=True)
class World:
    """The attributes of events, and those that only conditions mention."""

    kinds: Mapping[str, Kind | None]
    ghosts: tuple[str, ...] = ("ghost",)
    unmentioned: tuple[str, ...] = ("extra",)
    clashes: bool = True
    """Whether conditions may hold literals of another kind than the attribute."""
    pools: Mapping[Kind, Sequence[Any]] = field(default_factory=lambda: POOLS)
    """The values of each kind."""

    @property
    def mentioned(self) -> tuple[str, ...]:
        return tuple(n for n in self.kinds if n not in self.unmentioned) + self.ghosts


TYPED = World(
    {
        "i": Kind.INTEGER,
        "f": Kind.FLOAT,
        "s": Kind.STRING,
        "b": Kind.BOOLEAN,
        "t": Kind.TIMESTAMP,
        "j": Kind.INTEGER,
        "order.total": Kind.FLOAT,
        "odd name": Kind.STRING,
        "été": Kind.STRING,
        "select": Kind.INTEGER,
        "extra": Kind.INTEGER,
    }
)
"""One kind an attribute, as in a table of events."""

AGREEING = World(TYPED.kinds, clashes=False)
"""The same, with conditions that an event type accepts."""

MIXED = World({"x": ANY, "y": ANY, "i": Kind.INTEGER, "extra": ANY})
"""Attributes whose values are of all kinds, which only single events can hold."""

NUMERIC = World({"i": Kind.INTEGER, "f": Kind.FLOAT}, ghosts=(), unmentioned=(), clashes=False)
"""Integers against floats, and nothing else."""

STRINGY = World({"s": Kind.STRING, "u": Kind.STRING}, ghosts=(), unmentioned=(), clashes=False)
"""Strings and patterns, and nothing else."""

MARKET = World(
    {"firm": Kind.STRING, "price": Kind.FLOAT, "volume": Kind.INTEGER},
    ghosts=(),
    unmentioned=(),
    clashes=False,
    pools={
        Kind.STRING: tuple(f"firm {n}" for n in range(12)),
        Kind.FLOAT: tuple(n / 2 for n in range(80)),
        Kind.INTEGER: tuple(range(60)),
    },
)
"""Quotes: few firms, many prices; with `quote` conditions, an everyday workload."""


# Events.


def event(source: Source, world: World) -> Event:
    """Return an event: each attribute is there, null, or missing."""
    found: Event = {}
    for name, kind in world.kinds.items():
        dice = source.below(12)
        if dice == 10:
            found[name] = None
        elif dice < 10:
            found[name] = value(source, world, kind)
    return found


def value(source: Source, world: World, kind: Kind | None) -> Any:
    """Return a value that an event may hold."""
    if kind is ANY:
        if one_in(source, 12):
            return choose(source, OF_NO_KIND)
        kind = choose(source, KINDS)
    if kind is Kind.FLOAT and one_in(source, 8):
        return choose(source, ODD_FLOATS)
    return choose(source, world.pools[kind])


# Conditions.

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
ESCAPES = ("\\", "!", "%", "_", "'", "a")
"""DuckDB takes only ASCII escape characters; we take any."""
FRAGMENTS = (
    "a", "%", "_", "b", "", "%", "ab", "%", "_", "\\", "'", "é", "e\u0301", "😀", "\n", "\0",
    "\U0010ffff", " ", "A", "\ud7ff",
)  # fmt: skip


def operand(source: Source, world: World, kind: Kind | None) -> Literal:
    """Return a literal for an attribute: mostly of its kind, now and then NULL or another."""
    if one_in(source, 24):
        return Literal(None, None)
    if kind is ANY or (world.clashes and one_in(source, 16)):
        kind = choose(source, KINDS)
    if kind in (Kind.INTEGER, Kind.FLOAT):
        kind = choose(source, (Kind.INTEGER, Kind.FLOAT))
    return Literal(choose(source, world.pools[kind]), kind)


def pattern(source: Source, escape: str | None) -> str:
    """Return a LIKE pattern in which the escape character stands where it may."""
    parts = [choose(source, FRAGMENTS) for _ in range(source.below(6))]
    if escape is None:
        return "".join(parts)
    whole = "".join(parts).replace(escape, escape + escape)
    if one_in(source, 2):
        whole += escape + choose(source, ("%", "_", escape))
    if one_in(source, 2):
        whole = escape + choose(source, ("%", "_", escape)) + whole
    return whole


def like(source: Source, attribute: str) -> Expression:
    escape = choose(source, ESCAPES) if one_in(source, 3) else None
    if one_in(source, 20):
        return Like(attribute, Literal(None, None), escape, one_in(source, 2))
    text = pattern(source, escape)
    return Like(attribute, Literal(text, Kind.STRING), escape, one_in(source, 2))


def predicate(source: Source, world: World) -> Expression:
    attribute = choose(source, world.mentioned)
    kind = world.kinds.get(attribute, ANY)
    dice = source.below(20)
    if dice < 9:
        return Comparison(attribute, choose(source, COMPARISONS), operand(source, world, kind))
    negated = one_in(source, 3)
    if dice < 12:
        low = operand(source, world, kind)
        return Between(attribute, low, operand(source, world, kind), negated)
    if dice < 15:
        size = 1 + source.below(5)
        held = tuple(operand(source, world, kind) for _ in range(size))
        return In(attribute, held, negated)
    if dice < 17 and (world.clashes or kind in (Kind.STRING, ANY)):
        return like(source, attribute)
    if dice == 17 and (world.clashes or kind in (Kind.BOOLEAN, ANY)):
        return Truth(attribute)
    return IsNull(attribute, negated)


def expression(source: Source, world: World, depth: int = 3) -> Expression:
    """Return a condition: NOTs, ANDs and ORs of predicates, nested at random."""
    dice = source.below(20)
    if depth == 0 or dice < 7:
        if one_in(source, 40):
            return Constant(choose(source, (True, False, None)))
        return predicate(source, world)
    if dice < 11:
        return Not(expression(source, world, depth - 1))
    parts = [expression(source, world, depth - 1) for _ in range(2 + source.below(3))]
    return conjoin(parts) if dice < 15 else disjoin(parts)


def conjunction(source: Source, world: World) -> Expression:
    """Return predicates without patterns joined by AND: what `covers` decides exactly."""
    parts: list[Expression] = []
    for _ in range(1 + source.below(4)):
        found = predicate(source, world)
        if isinstance(found, Like):
            found = IsNull(found.attribute, found.negated)
        parts.append(Not(found) if one_in(source, 4) else found)
    return conjoin(parts)


def quote(source: Source, world: World) -> Expression:
    """Return an everyday conjunction for MARKET: a firm, a range of prices, a least volume."""
    parts: list[Expression] = []
    if source.below(8):
        firms = [operand(source, world, Kind.STRING) for _ in range(1 + source.below(2))]
        single = len(firms) == 1
        parts.append(Comparison("firm", "=", firms[0]) if single else In("firm", tuple(firms)))
    low = choose(source, world.pools[Kind.FLOAT])
    high = low + choose(source, (0.0, 0.5, 1.0, 2.0, 5.0, 20.0))
    least, most = Literal(low, Kind.FLOAT), Literal(high, Kind.FLOAT)
    dice = source.below(4)
    if dice == 0:
        parts.append(Between("price", least, most))
    if dice == 1:
        parts += [Comparison("price", ">", least), Comparison("price", "<", most)]
    if dice == 2:
        parts.append(Comparison("price", choose(source, ("<", "<=", ">", ">=")), least))
    if not parts or source.below(2):
        parts.append(Comparison("volume", ">", operand(source, world, Kind.INTEGER)))
    return conjoin(parts)


def narrow(source: Source, world: World) -> Expression:
    """Return a predicate that few values satisfy."""
    attribute = choose(source, world.mentioned)
    kind = world.kinds.get(attribute, ANY)
    dice = source.below(8)
    if dice == 7:
        return IsNull(attribute)
    if dice == 6 and kind in (Kind.STRING, ANY):
        return Like(attribute, Literal(pattern(source, None), Kind.STRING))
    if dice > 3:
        return In(attribute, tuple(operand(source, world, kind) for _ in range(2)))
    return Comparison(attribute, "=", operand(source, world, kind))


def many_disjuncts(source: Source, world: World, n: int) -> Expression:
    """Return a disjunction of n small conjunctions."""
    return disjoin([conjoin([narrow(source, world) for _ in range(3)]) for _ in range(n)])


def with_parameters(
    source: Source, condition: Expression, *, share: int = 2
) -> tuple[Expression, dict[str, Any]]:
    """Replace some literals by parameters; return the condition and the parameters' values.

    Numbers may become NaN or infinite, which no literal can.
    """
    params: dict[str, Any] = {}

    def put(given: Operand) -> Operand:
        if not isinstance(given, Literal) or not one_in(source, share):
            return given
        name = f"p{len(params)}"
        held: Any = given.value
        if given.kind is Kind.FLOAT and one_in(source, 4):
            held = choose(source, ODD_FLOATS)
        params[name] = held
        return Parameter(name)

    return map_operands(condition, put), params


# For Hypothesis.


@st.composite
def expressions(draw: Any, world: World = TYPED, depth: int = 3) -> Expression:
    return expression(Drawn(draw), world, depth)


@st.composite
def conjunctions(draw: Any, world: World = TYPED) -> Expression:
    return conjunction(Drawn(draw), world)


@st.composite
def events(draw: Any, world: World = TYPED) -> Event:
    return event(Drawn(draw), world)
