"""Bulk loads: by whichever way texts and parameters are read, the normal form is the same.

Of a conjunction the bulk form is *equal* to the one-by-one form. Of a disjunction it means the same
and every conjunction of it lies within the one-by-one form, but siblings that differ in one
attribute are not always united.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.strategies import (
    AGREEING,
    FLOATS,
    INTEGERS,
    MIXED,
    NUMERIC,
    STRINGS,
    STRINGY,
    TIMESTAMPS,
    TYPED,
    Event,
    Seeded,
    World,
    conjunction,
    conjunctions,
    event,
    expression,
    expressions,
    with_parameters,
)

from tocsin.errors import ParameterError, SubscriptionError
from tocsin.language import parse, print_expression
from tocsin.language.computed import parameter_names
from tocsin.language.expression import Comparison, Expression, Literal, disjoin
from tocsin.model import EventType, kind_of
from tocsin.normalize import NormalForm, bind, covers, normalize
from tocsin.normalize.bulk import normalize_template, normalize_texts
from tocsin.normalize.fold import BulkForm
from tocsin.normalize.rows import normalize_rows, read_rows

DECLARED = EventType("Typed", dict(AGREEING.kinds))
WORLDS = {
    "typed": TYPED,
    "agreeing": AGREEING,
    "mixed": MIXED,
    "numeric": NUMERIC,
    "stringy": STRINGY,
}


def declared(world: World) -> EventType | None:
    return EventType("Typed", dict(world.kinds)) if world is AGREEING else None


def forms(bulk: BulkForm) -> list[NormalForm]:
    return [bulk.table.form(i) for i in range(bulk.table.n_subscriptions)]


def texts_of(conditions: Sequence[Expression]) -> pa.Array:
    return pa.array([print_expression(condition) for condition in conditions], pa.string())


def check_equal(texts: Sequence[str], event_type: EventType | None = None) -> None:
    """Verify that the bulk form is the very form that each text has by itself."""
    bulk = normalize_texts(pa.array(texts, pa.string()), event_type)
    assert bulk.bad == ()
    for text, found in zip(texts, forms(bulk), strict=True):
        assert found == normalize(parse(text), event_type), text


def check_same_meaning(
    condition: Expression, found: NormalForm, rows: Sequence[Event], event_type: EventType | None
) -> None:
    expected = normalize(condition, event_type)
    text = print_expression(condition)
    for row in rows:
        assert found.holds(row) is expected.holds(row), f"{text} on {row}"
    for conjunction_found in found:
        plain = not any(c.patterns for c in conjunction_found.values())
        assert not plain or covers(expected, NormalForm((conjunction_found,))), text


# Texts.


@pytest.mark.parametrize("name", WORLDS)
def test_in_bulk_a_conjunction_has_the_form_it_has_alone(name: str) -> None:
    source, world = Seeded(11), WORLDS[name]
    conditions = [conjunction(source, world) for _ in range(400)]
    check_equal([print_expression(c) for c in conditions], declared(world))


@settings(max_examples=40)
@given(st.lists(conjunctions(TYPED), min_size=1, max_size=6))
def test_in_bulk_any_conjunction_has_the_form_it_has_alone(conditions: list[Expression]) -> None:
    check_equal([print_expression(c) for c in conditions])


@pytest.mark.parametrize("name", WORLDS)
def test_in_bulk_a_condition_means_what_it_means_alone(name: str) -> None:
    source, world = Seeded(12), WORLDS[name]
    conditions = [expression(source, world) for _ in range(300)]
    bulk = normalize_texts(texts_of(conditions), declared(world))
    assert bulk.bad == ()
    rows = [event(source, world) for _ in range(15)]
    for condition, found in zip(conditions, forms(bulk), strict=True):
        check_same_meaning(condition, found, rows, declared(world))


@settings(max_examples=40)
@given(st.lists(expressions(MIXED), min_size=1, max_size=5), st.integers(0, 1000))
def test_in_bulk_any_condition_means_what_it_means_alone(
    conditions: list[Expression], seed: int
) -> None:
    source = Seeded(seed)
    rows = [event(source, MIXED) for _ in range(10)]
    found = forms(normalize_texts(texts_of(conditions)))
    for condition, form in zip(conditions, found, strict=True):
        check_same_meaning(condition, form, rows, None)


def test_in_bulk_what_is_declared_counts() -> None:
    source = Seeded(13)
    conditions = [expression(source, AGREEING) for _ in range(200)]
    rows = [event(source, AGREEING) for _ in range(10)]
    bulk = normalize_texts(texts_of(conditions), DECLARED)
    for condition, found in zip(conditions, forms(bulk), strict=True):
        check_same_meaning(condition, found, rows, DECLARED)


NUMBERS = [
    "0", "-0", "+7", "- 3", "007", "1.", ".5", "-.5", "+.5e1", "1e3", "1E+3", "1.5e-3", "0.1",
    "123456789012345678", "9223372036854775807", "-9223372036854775808", "9007199254740993",
    "9007199254740993.0", "0.30000000000000004", "1.7976931348623157e308", "5e-324", "2.5e-324",
    "1e-400", "0e999", "0.0e-999", "12345678901234567890.0", "123456789012345678901234567890e-20",
    "0.1234567890123456789012345678901234567890", "1e22", "1e23", "8.5e22", "9007199254740992e5",
    "00000000000000000000000000000001.5", "-  1e30", "1.e5", "0." + "0" * 30 + "1",
]  # fmt: skip
STRING_LITERALS = [
    "''", "'a'", "''''", "'it''s'", "'a''''b'", "'%'", "'_'", "'\\'", "'\n'", "'é'", "'😀'", "'\0'",
    "'a\0'", "'AND'", "' OR 1=1 --'", "'\"'", "'/*'", "'x'", "'" + "y" * 500 + "'",
]  # fmt: skip
OTHERS = [
    "TRUE", "false", "NULL", "TIMESTAMP '2026-07-01'", "timestamp'2026-07-01 12:30:15.000001'",
    "Timestamp  '2026-07-01T12:30+02:00'", "TIMESTAMP '0001-01-01'",
    "TIMESTAMP '9999-12-31 23:59:59.999999'", "TIMESTAMP ' 2026-07-01 '",
]  # fmt: skip


@pytest.mark.parametrize(
    "frame", ["x {op} {v}", "x {op} {v} AND y = 1", "NOT (x {op} {v} OR y = 1)"]
)
def test_every_literal_is_read_the_same(frame: str) -> None:
    texts = [
        frame.format(op=op, v=literal)
        for literal in NUMBERS + STRING_LITERALS + OTHERS
        for op in ("=", "<", ">=", "<>")
    ]
    check_equal(texts)


def test_every_literal_is_read_the_same_in_lists_and_ranges() -> None:
    literals = NUMBERS + STRING_LITERALS + OTHERS
    pairs = list(zip(literals, literals[1:] + literals[:1], strict=True))
    check_equal([f"x IN ({a}, {b}) AND y = {a}" for a, b in pairs])
    check_equal([f"x NOT IN ({a},{b},{a})" for a, b in pairs])
    check_equal([f"x BETWEEN {a} AND {b}" for a, b in pairs])
    check_equal([f"x NOT BETWEEN {a} AND {b} AND y" for a, b in pairs])
    check_equal([f"NOT x BETWEEN {a} AND {b}" for a, b in pairs])
    check_equal([f"x IN ({', '.join(literals)})"])
    check_equal([f"NOT x IN ({', '.join(literals)})"])


@pytest.mark.parametrize(
    "text",
    [
        "x=1", " x  =\t1\n", "x='a'AND y=1", "x = 1 and Y = 2 AND\fz = 3",
        "x.y.z = 1", "x . y = 1", "x.and = 1", "x.select = 1 AND in1 = 2", "_x$1 = 1",
        "timestamp = 1",
        "TIMESTAMP = TIMESTAMP '2026-07-01'", "timestamp IS NULL AND timestamp", "été = 1",
        '"x" = 1', '"x y" = 1 AND `z` = 2', '"a""b" = 1', "`a``b` IS NULL", '"and" = 1',
        "x", "x AND y", "NOT x", "x AND NOT y", "(x)", "((x = 1))", "(x = 1) AND (y = 2)",
        "x == 1", "x != 1", "x <> 1", "1 = x", "1 < x AND 'a' >= y", "x < - 1", "x <-1", "x>+1",
        "x IS NULL", "x IS NOT NULL", "x is  not\nnull AND y IS NULL", "x LIKE 'a%'", "x LIKE NULL",
        "x NOT LIKE '%'", "x LIKE 'a!%' ESCAPE '!'", "x LIKE 'a''%' ESCAPE ''''",
        "x LIKE '%a%' AND x LIKE '%b%'", "x LIKE 'a%' AND x = 'ab'", "x LIKE 'a_' AND y LIKE '_b'",
        "x LIKE '%a%' AND x NOT LIKE '%a%'", "x NOT LIKE 'a%' AND x > 'a'",
        "x = 1 AND x = 2", "x > 1 AND x < 5 AND x <> 3", "x = 1 AND x = 1.0", "x = 'a' AND x > 1",
        "x IS NULL AND x = 1", "x IS NOT NULL AND x = 1", "x IS NULL AND x IS NOT NULL",
        "x BETWEEN 5 AND 1", "x BETWEEN 1 AND 'a'", "x NOT BETWEEN 1 AND 'a'",
        "x IN (1, 'a', TRUE)",
        "x NOT IN (1, 'a')", "x NOT IN (1, NULL)", "x IN (NULL)", "x IN (1, NULL)",
        "x IN (1, 1, 2)",
        "TRUE", "FALSE", "NULL", "NOT NULL", "TRUE AND x = 1", "FALSE OR x = 1", "NULL AND x = 1",
        "1 = 1", "1 = 2 OR x = 1", "'a' < 'b' AND x = 1", "NOT (1 = NULL)", "TRUE = x", "NULL = x",
        "x = 1 OR x = 2", "x = 1 OR x = 2 OR x IN (3, 4)", "x = 1 OR y = 1",
        "x < 1 OR x > 2 AND y = 1",
        "NOT NOT x = 1", "NOT (x = 1 AND y = 2)", "NOT (x = 1 OR y = 2)", "x = 'OR' OR y = ' OR '",
    ],
)  # fmt: skip
def test_however_it_is_written_a_text_means_in_bulk_what_it_means_alone(text: str) -> None:
    bulk = normalize_texts(pa.array([text, text, "z = 9"]))
    assert bulk.bad == ()
    values: list[Any] = [None, 0, 1, 1.0, 2, 3, 5, "", "a", "ab", "b", "OR", True, False, math.nan]
    rows = [
        {
            "x": x,
            "y": y,
            "x.y": x,
            "x y": x,
            "été": x,
            "timestamp": TIMESTAMPS[1],
            "and": x,
            'a"b': x,
        }
        for x in values
        for y in (None, 1, 2, "b", True)
    ]
    for i in (0, 1):
        check_same_meaning(parse(text), bulk.table.form(i), rows, None)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "x =", "= 1", "x = 1 AND", "x = 1 AND AND y = 2", "AND", "x = 1 y = 2",
        "x == == 1",
        "x = 1.2.3", "x = 1e", "x = 1x", "x = 1é", "x = 99999999999999999999", "x = 1e999",
        "x = 'a",
        "x = 'a' 'b'", "x IN ()", "x IN (1,)", "x IN 1", "x BETWEEN 1", "x BETWEEN 1 OR 2",
        "x IS 1", "x GLOB 'a'", "x NOT NULL", "x LIKE 1", "x LIKE 'a!' ESCAPE '!'",
        "x LIKE 'a' ESCAPE 'ab'", "x = TIMESTAMP 'never'", "x + = 2", "x = 1 -- y\n z",
        "x = 1 /* no", "x = 1; y = 2", "f(x) = 1", "x <=> 1", "x = :p", "x = DATE 'never'",
        "CASE = ", "SELECT 1", "x = (1", "(x = 1", "x = 1)", "x..y = 1", ".x = 1", "x. = 1",
        '"" = 1', '"x = 1', "x = @", "x = 1\0", "NOT", "\u00e9\u0301", "x = - -", "x LIKE -x",
        "x=1AND y=2", "x = 1 AND\u00a0y = 2",
    ],
)  # fmt: skip
def test_in_bulk_a_bad_text_is_refused_as_it_is_alone(text: str) -> None:
    with pytest.raises(SubscriptionError) as alone:
        bind(parse(text), None)
    bulk = normalize_texts(pa.array(["z = 1", text, "z = 2", text]))
    assert [bad.row for bad in bulk.bad] == [1, 3]
    for bad in bulk.bad:
        assert type(bad.error) is type(alone.value)
        assert str(bad.error) == str(alone.value)
        assert bulk.table.form(bad.row).is_never
    assert bulk.table.form(2) == normalize(parse("z = 2"))


def test_a_missing_text_is_refused() -> None:
    bulk = normalize_texts(pa.array(["x = 1", None, "x = 1 OR y = 2", None]))
    assert [(bad.row, str(bad.error)) for bad in bulk.bad] == [
        (1, "the condition is missing"),
        (3, "the condition is missing"),
    ]
    assert normalize_texts(pa.nulls(2)).table.n_conjunctions == 0
    assert len(normalize_texts(pa.nulls(2)).bad) == 2


def test_no_texts_make_an_empty_table() -> None:
    for empty in (pa.array([], pa.string()), pa.chunked_array([], pa.string())):
        bulk = normalize_texts(empty)
        assert bulk.bad == ()
        assert bulk.table.n_subscriptions == 0


def test_texts_may_be_chunked_and_cut() -> None:
    texts = [f"x = {i} AND s = 'text {i}'" for i in range(10)] + [
        f"x = {i} OR y = 1" for i in (1, 2)
    ]
    whole = forms(normalize_texts(pa.array(texts)))
    parts = pa.chunked_array([pa.array(texts[:3]), pa.array([], pa.string()), pa.array(texts[3:])])
    assert forms(normalize_texts(parts)) == whole
    assert forms(normalize_texts(pa.array(texts).slice(2, 9))) == whole[2:11]
    assert forms(normalize_texts(pa.array(texts).dictionary_encode())) == whole


def test_texts_of_many_chunks_of_work_keep_their_order() -> None:
    n = 40_000  # more than two of the chunks in which texts are read
    texts = [f"x = {i}" if i % 3 else f"x = {i} OR NOT y > {i}" for i in range(n)]
    texts[20_000] = "x ="
    bulk = normalize_texts(pa.array(texts))
    assert [bad.row for bad in bulk.bad] == [20_000]
    for i in (0, 1, 2, 16_383, 16_384, 16_385, 19_999, 20_001, 32_767, 32_768, n - 1):
        assert bulk.table.form(i) == normalize(parse(texts[i]))
    assert bulk.table.subscription.tolist() == sorted(bulk.table.subscription.tolist())


def test_thousands_of_attributes_and_disjuncts_are_read() -> None:
    wide = " AND ".join(f"attribute_{i} = {i}" for i in range(6_000))
    many = " OR ".join(f"a{i} = {i} AND b = 'x'" for i in range(1_000))
    bulk = normalize_texts(pa.array([wide, many, "x = 1"]))
    assert bulk.bad == ()
    (conjunction_found,) = bulk.table.form(0)
    assert len(conjunction_found) == 6_000
    assert len(bulk.table.form(1)) == 1_000
    assert bulk.table.form(2) == normalize(parse("x = 1"))


def test_progress_is_told_up_to_the_end() -> None:
    told: list[int] = []
    normalize_texts(pa.array(["x = 1"] * 20_000), progress=told.append)
    assert told[-1] == 20_000


# Templates.


@pytest.mark.parametrize("name", ["typed", "mixed", "numeric", "stringy"])
def test_a_template_has_the_forms_that_its_rows_have_alone(name: str) -> None:
    source, world = Seeded(14), WORLDS[name]
    rows = [event(source, world) for _ in range(10)]
    for _ in range(60):
        condition, params = with_parameters(source, expression(source, world, 2))
        columns = {n: pa.array([v, None, v]) for n, v in params.items()}
        bulk = normalize_template(condition, columns, 3)
        for i in (0, 1, 2):
            values = {n: None if i == 1 else v for n, v in params.items()}
            bound = bind(condition, values)
            refused = [str(bad.error) for bad in bulk.bad if bad.row == i]
            if refused:
                with pytest.raises(SubscriptionError, match=re.escape(refused[0])):
                    normalize(bound)
            else:
                check_same_meaning(bound, bulk.table.form(i), rows, None)


VALUE_COLUMNS: dict[str, list[Any]] = {
    "integers": [*INTEGERS, None],
    "floats": [*FLOATS, math.inf, -math.inf, math.nan, None],
    "strings": [*STRINGS, None],
    "booleans": [True, False, None],
    "moments": [*TIMESTAMPS, None],
}


@pytest.mark.parametrize("kind", VALUE_COLUMNS)
@pytest.mark.parametrize("op", ["=", "<>", "<", "<=", ">", ">="])
def test_texts_templates_and_rows_have_the_same_forms(kind: str, op: str) -> None:
    values = VALUE_COLUMNS[kind]
    n = len(values)
    expressions_found: list[Expression] = [
        Comparison("x", op, Literal(v, kind_of(v))) for v in values
    ]
    expected = [normalize(e) for e in expressions_found]
    template = normalize_template(f"x {op} :v", {"v": pa.array(values)}, n)
    assert forms(template) == expected
    encoded = normalize_template(f"x {op} :v", {"v": pa.array(values).dictionary_encode()}, n)
    assert forms(encoded) == expected
    rows = pa.table({"id": range(n), "attribute": ["x"] * n, "op": [op] * n, "value": values})
    ruled = normalize_rows(read_rows(rows))
    missing = [i for i, v in enumerate(values) if v is None]
    assert [bad.row for bad in ruled.bad] == missing
    assert [f for i, f in enumerate(forms(ruled)) if i not in missing] == [
        f for i, f in enumerate(expected) if i not in missing
    ]
    has_literal = [
        i for i, v in enumerate(values) if not (isinstance(v, float) and not math.isfinite(v))
    ]
    texts = texts_of([expressions_found[i] for i in has_literal])
    assert forms(normalize_texts(texts)) == [expected[i] for i in has_literal]


def test_a_template_needs_its_columns() -> None:
    with pytest.raises(ParameterError) as caught:
        normalize_template("x = :a AND y = :b", {"a": pa.array([1])}, 1)
    assert caught.value.missing == ("b",)


@pytest.mark.parametrize(
    "text",
    [
        "x IN (:a, :b, 3)", "x BETWEEN :a AND :b", "x NOT BETWEEN 1 AND :b", "x = :a OR x = :a",
        "x = :a AND (y = :b OR y = 7)", "x IN (:a, NULL)", "x = :a OR TRUE",
        "NOT (x = :a AND y = :b)",
        "x BETWEEN :a AND NULL", "x = 1.5 AND y = :a", "x < TIMESTAMP '2026-07-01' OR x = :a",
        "x = :a AND y", "x = TRUE AND y = :b", "x NOT IN (:a, :b)", "x IS NULL OR x > :b",
    ],
)  # fmt: skip
def test_templates_may_mix_parameters_and_constants(text: str) -> None:
    condition = parse(text)
    columns = {"a": pa.array([1, 2, None, 7]), "b": pa.array([5.5, 1.0, 2.0, None])}
    used = {name: columns[name] for name in parameter_names(condition)}
    bulk = normalize_template(condition, used, 4)
    assert bulk.bad == ()
    rows = [{"x": x, "y": y} for x in (None, 1, 1.5, 2, 3, True) for y in (None, 1, 5.5, 7, True)]
    for i in range(4):
        bound = bind(condition, {name: column[i].as_py() for name, column in used.items()})
        check_same_meaning(bound, bulk.table.form(i), rows, None)


def test_a_template_may_be_large() -> None:
    disjuncts = disjoin([parse(f"a{i} = :v AND b = {i}") for i in range(100)])
    bulk = normalize_template(disjuncts, {"v": pa.array([1, 2])}, 2)
    assert [len(form) for form in forms(bulk)] == [100, 100]
    assert forms(bulk)[1] == normalize(bind(disjuncts, {"v": 2}))


def test_moments_without_a_zone_are_utc() -> None:
    naive = pa.array([dt.datetime(2026, 7, 1, 12)])
    aware = pa.array([dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)])
    expected = normalize(parse("x = TIMESTAMP '2026-07-01 12:00'"))
    for column in (naive, aware, naive.cast(pa.timestamp("ns")), naive.cast(pa.timestamp("s"))):
        assert forms(normalize_template("x = :v", {"v": column}, 1)) == [expected]
