"""A subscription means the same by whichever path it came in.

One text at a time, many texts at once, a template with columns of parameters, a table with one
predicate a row: each is read by other code. All must find what the oracle finds when given one text
at a time, and that is held against DuckDB in `test_engines_equal_duckdb`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.property.samples import WORLDS, to_table
from tests.property.scribble import scribble
from tests.property.segmented import SEGMENTED, make
from tests.property.strategies import (
    COMPARISONS,
    MIXED,
    NUMERIC,
    ODD_FLOATS,
    STRINGY,
    TYPED,
    Seeded,
    Source,
    World,
    choose,
    event,
    expression,
    one_in,
    operand,
    pattern,
    with_parameters,
)

import tocsin
from tocsin.engines import names
from tocsin.errors import SubscriptionError
from tocsin.language import parse, print_expression
from tocsin.language.computed import parameter_names
from tocsin.language.expression import (
    Comparison,
    Expression,
    IsNull,
    Like,
    Literal,
    Operand,
    Parameter,
    conjoin,
    disjoin,
    map_operands,
    operands,
    predicates,
)
from tocsin.matcher import Matcher
from tocsin.model import Kind

ENGINES = names()
ALL = [*ENGINES, *(pytest.param(name, marks=pytest.mark.slow) for name in SEGMENTED)]
Matched = list[list[Any]]


def matches(matcher: Matcher, rows: Any) -> Matched:
    return [sorted(ids) for ids in matcher.match_batch(rows)]


def one_by_one(texts: list[str], engine: str = "oracle") -> Matcher:
    matcher = make(engine)
    for i, text in enumerate(texts):
        matcher.subscribe(i, text)
    return matcher


def in_bulk(texts: list[str], engine: str) -> Matcher:
    matcher = make(engine)
    matcher.subscribe_many(pa.table({"id": pa.array(range(len(texts))), "where": pa.array(texts)}))
    return matcher


def rows_of(world: World, source: Source, n: int) -> Any:
    rows = [event(source, world) for _ in range(n)]
    return rows if world is MIXED else to_table(rows, world, source)


# Texts.


@pytest.mark.parametrize("name", WORLDS)
def test_a_condition_is_read_the_same_however_it_is_written(name: str) -> None:
    source = Seeded(31)
    for _ in range(150):
        made = expression(source, WORLDS[name])
        assert parse(scribble(made, source)) == made


def varied(skeleton: Expression, source: Source, world: World) -> Expression:
    """Return the same shape with other literals."""

    def put(given: Operand) -> Operand:
        assert isinstance(given, Literal)
        if given.kind in (None, Kind.BOOLEAN):
            return given
        kind = given.kind if not one_in(source, 8) else choose(source, tuple(Kind))
        other = operand(source, world, kind)
        return given if other.kind in (None, Kind.BOOLEAN) else other

    def put_pattern(given: Operand) -> Operand:
        assert isinstance(given, Literal)
        return given if given.kind is None else Literal(pattern(source, None), Kind.STRING)

    plain = map_operands(skeleton, lambda o: o)
    if any(isinstance(p, Like) for p in predicates(plain)):
        if all(isinstance(p, Like) and p.escape is None for p in predicates(plain)):
            return map_operands(plain, put_pattern)
        return plain
    return map_operands(plain, put)


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize(
    "world", [TYPED, MIXED, NUMERIC, STRINGY], ids=["typed", "mixed", "numeric", "stringy"]
)
def test_texts_of_one_shape_in_bulk_are_what_they_are_one_by_one(world: World, engine: str) -> None:
    source = Seeded(33)
    texts = []
    for _ in range(25):
        skeleton = expression(source, world, depth=2)
        for _ in range(8):
            made = varied(skeleton, source, world)
            texts.append(scribble(made, source) if one_in(source, 3) else print_expression(made))
    rows = rows_of(world, source, 20)
    assert matches(in_bulk(texts, engine), rows) == matches(one_by_one(texts), rows)


BAD_TEXTS = (
    "", " ", "(", "x = 'a", "x = y =", "f(x) = 1", "x = \t 1 )", "x BETWEEN 1", "x = 1 AND",
    "x IN (1, 9223372036854775808)", "x = 1e999", "x = 5AND y = 1", "x = 5é", "x = ٣", "x = 1_0",
    "x = 1.5.5", "x LIKE 'a!b' ESCAPE '!'", "x LIKE 'a' ESCAPE 'ab'", "x = :p", "1 = :p",
    "x = TIMESTAMP '2026-02-30'", "x =\u00a01", "x = TIMESTAMP\u2003'2026-07-01'", "x = 1 # y",
    "x = 1 AND y = 2 z", "x NOT = 1", "1 < x < 2", "x = 'a' 'b'", "x = --1", "and = 1", "x.y. = 1",
)  # fmt: skip
GOOD_TEXTS = (
    "x = 5 AND y = 1", "x = 'a'AND y=1", "x = 1.5", "x=.5", "x=-.5e1", "x IN(1,2)", "x=TRUE",
    "x LIKE 'a!!b' ESCAPE '!'", "x LIKE 'a!%' ESCAPE'!'", "x = TIMESTAMP'2026-02-28'", "x", "1=1",
    "x = 1 AND 2 = 3", "NULL OR x = 1", "timestamp = 1", "select = 1 AND match = 2", "a.and = 1",
    '"and" = 1', "`a``b` = 1", '"a.b" = 1', "a . b = 1", "été = 1", "x = 'été'", "x = ''",
)  # fmt: skip


def test_bulk_refuses_the_texts_that_are_refused_one_by_one_and_says_the_same() -> None:
    source = Seeded(34)
    texts: list[str | None] = [None, *BAD_TEXTS, *GOOD_TEXTS]
    pieces = ["", "(", ")", "'", '"', " AND ", " 5 ", " x ", "?", "--", ":p", ",", "\0", "e", "."]
    for i in range(600):
        text = scribble(expression(source, TYPED, depth=2), source)
        place = source.below(len(text) + 1)
        damaged = text[:place] + choose(source, pieces) + text[place + source.below(4) :]
        texts.append(damaged if i % 3 else text)
    expected: dict[int, tuple[str, str]] = {}
    kept: list[int] = []
    for i, given_text in enumerate(texts):
        if given_text is None:
            continue
        try:
            tocsin.Matcher(engine="oracle").subscribe(i, given_text)
            kept.append(i)
        except SubscriptionError as error:
            expected[i] = (str(error), error.code)
    assert set(range(1, len(BAD_TEXTS) + 1)) <= expected.keys()
    assert len(expected) > 200
    assert len(kept) > 200
    for engine in ENGINES:
        matcher = tocsin.Matcher(engine=engine)
        table = pa.table({"id": pa.array(range(len(texts))), "where": pa.array(texts)})
        report = matcher.subscribe_many(table, on_error="quarantine")
        assert [row.row for row in report.bad] == [0, *expected]
        found = {row.row: (row.reason, row.code) for row in report.bad[1:]}
        assert found == expected
        rows = rows_of(TYPED, source, 30)
        again = tocsin.Matcher(engine="oracle")
        for i in kept:
            again.subscribe(i, str(texts[i]))
        assert matches(matcher, rows) == matches(again, rows)


# Templates.


def parameter_columns(
    condition: Expression, source: Source, world: World, n: int
) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Return n rows of values for a condition's parameters, each column of one kind."""
    columns: dict[str, list[Any]] = {}
    types: dict[str, Any] = {}
    escapes = {
        o.name: p.escape
        for p in predicates(condition)
        if isinstance(p, Like)
        for o in operands(p)
        if isinstance(o, Parameter)
    }
    arrow = {
        Kind.INTEGER: pa.int64(),
        Kind.FLOAT: pa.float64(),
        Kind.STRING: pa.string(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    }
    for name in parameter_names(condition):
        kind = choose(source, tuple(Kind))
        if name in escapes and not one_in(source, 5):
            kind = Kind.STRING
            values: list[Any] = [pattern(source, escapes[name]) for _ in range(n)]
        else:
            values = [choose(source, world.pools[kind]) for _ in range(n)]
            if name in escapes and kind is Kind.STRING:
                values = [pattern(source, escapes[name]) for _ in range(n)]
        if kind is Kind.FLOAT:
            values = [choose(source, ODD_FLOATS) if one_in(source, 8) else v for v in values]
        columns[name] = [None if one_in(source, 10) else v for v in values]
        types[name] = arrow[kind]
    rows = [{name: columns[name][i] for name in columns} for i in range(n)]
    arrays = {name: pa.array(columns[name], types[name]) for name in columns}
    return pa.table({"id": pa.array(range(n)), **arrays}), rows


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize("world", [TYPED, MIXED], ids=["typed", "mixed"])
def test_a_template_with_columns_is_what_its_rows_are_one_by_one(world: World, engine: str) -> None:
    source = Seeded(35)
    rows = rows_of(world, source, 30)
    n_matches = 0
    for _ in range(15):
        condition, _ = with_parameters(source, expression(source, world, depth=2))
        text = scribble(condition, source)
        table, params = parameter_columns(condition, source, world, 12)
        template, plain = make(engine), tocsin.Matcher(engine="oracle")
        template.subscribe_many(table, where=text)
        for i, values in enumerate(params):
            plain.subscribe(i, text, params=values)
        found = matches(template, rows)
        assert found == matches(plain, rows), text
        n_matches += sum(map(len, found))
    assert n_matches > 200


# Rows.


def rule(source: Source, world: World) -> tuple[Expression, dict[str, Any]]:
    """Return a predicate, and the row that says it."""
    attribute = choose(source, world.mentioned)
    kind = world.kinds.get(attribute) or choose(source, tuple(Kind))
    dice = source.below(8)
    if dice == 0:
        negated = one_in(source, 2)
        op = "IS NOT NULL" if negated else "is  null"
        return IsNull(attribute, negated), {"attribute": attribute, "op": op}
    if dice == 1:
        negated, text = one_in(source, 2), pattern(source, None)
        op = "NOT LIKE" if negated else "like"
        row = {"attribute": attribute, "op": op, "value": text}
        return Like(attribute, Literal(text, Kind.STRING), None, negated), row
    op = choose(source, COMPARISONS)
    value = operand(source, world, kind)
    while value.kind is None:
        value = operand(source, world, kind)
    written = choose(source, {"=": ("=", "=="), "<>": ("<>", "!=")}.get(op, (op,)))
    said: dict[str, Any] = {"attribute": attribute, "op": written, "value": value.value}
    return Comparison(attribute, op, value), said


def rule_table(rows: list[dict[str, Any]], kind: Kind, source: Source) -> pa.Table:
    columns = {
        "id": pa.array([row["id"] for row in rows]),
        "attribute": pa.array([row["attribute"] for row in rows]),
        "op": pa.array([row["op"] for row in rows]),
        "disjunct": pa.array([row["disjunct"] for row in rows]),
    }
    values = [row.get("value") for row in rows]
    numbers = {Kind.INTEGER: pa.int64(), Kind.FLOAT: pa.float64()}
    if kind in numbers:
        text = [v if isinstance(v, str) else None for v in values]
        number = [None if isinstance(v, str) else v for v in values]
        columns |= {"number": pa.array(number, numbers[kind]), "text": pa.array(text, pa.string())}
    else:
        columns["value"] = pa.array(values)
    return pa.table(columns)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kind", [Kind.INTEGER, Kind.FLOAT, Kind.STRING, Kind.BOOLEAN, Kind.TIMESTAMP]
)
def test_a_table_of_rows_is_what_its_texts_are_one_by_one(kind: Kind, engine: str) -> None:
    source = Seeded(36)
    allowed = {kind, Kind.STRING} if kind in (Kind.INTEGER, Kind.FLOAT) else {kind}
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    for i in range(80):
        disjuncts: list[Expression] = []
        for d in range(1 + source.below(3)):
            parts: list[Expression] = []
            while not parts or one_in(source, 2):
                made, row = rule(source, TYPED)
                value = made.operand if isinstance(made, Comparison) else None
                value = made.pattern if isinstance(made, Like) else value
                if isinstance(value, Literal) and value.kind not in allowed:
                    continue
                parts.append(made)
                rows.append({"id": i, "disjunct": d, **row})
            disjuncts.append(conjoin(parts))
        texts.append(print_expression(disjoin(disjuncts)))
    if source.below(2):
        rows = [rows[i] for i in sorted(range(len(rows)), key=lambda i: (i * 7919) % len(rows))]
    matcher = tocsin.Matcher(engine=engine)
    matcher.subscribe_many(rule_table(rows, kind, source))
    events = rows_of(TYPED, source, 30)
    assert matches(matcher, events) == matches(one_by_one(texts), events)


# Changes.


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize("world", [TYPED, MIXED], ids=["typed", "mixed"])
def test_what_was_changed_is_what_it_would_be_had_it_come_so(world: World, engine: str) -> None:
    source = Seeded(37)
    rows = rows_of(world, source, 25)
    matcher = in_bulk([print_expression(expression(source, world)) for _ in range(60)], engine)
    now: dict[int, tuple[str, dict[str, Any]]] = {}
    for i in range(60):
        if i % 3 == 0:
            matcher.unsubscribe(i)
            continue
        condition, params = with_parameters(source, expression(source, world, depth=2))
        now[i] = (print_expression(condition), params)
        matcher.update(i, where=now[i][0], params=params)
    for i, (text, params) in list(now.items()):
        if params and i % 2:
            name = choose(source, sorted(params))
            pattern_names = {
                o.name
                for p in predicates(parse(text))
                if isinstance(p, Like)
                for o in operands(p)
                if isinstance(o, Parameter)
            }
            if name not in pattern_names:
                changed = {name: choose(source, world.pools[choose(source, tuple(Kind))])}
                now[i] = (text, params | changed)
                matcher.update(i, params=changed)
    for i in range(100, 120):
        now[i] = (print_expression(expression(source, world)), {})
        matcher.subscribe(i, now[i][0])
    fresh = tocsin.Matcher(engine="oracle")
    for i, (text, params) in now.items():
        fresh.subscribe(i, text, params=params)
    matcher.check()
    assert len(matcher) == len(fresh) == len(now)
    assert matches(matcher, rows) == matches(fresh, rows)
