"""Expression → normal form: it means the same, and it is canonical."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.strategies import (
    AGREEING,
    MIXED,
    NUMERIC,
    STRINGY,
    TYPED,
    Drawn,
    Seeded,
    World,
    event,
    events,
    expression,
    expressions,
    many_disjuncts,
    with_parameters,
)

from tocsin.errors import KindClashError, ParameterError, TooManyConjunctionsError
from tocsin.language import parse, print_expression
from tocsin.language.evaluate import evaluate
from tocsin.language.expression import And, Constant, Expression, Not, Or, Parameter, map_operands
from tocsin.model import INT64_MAX, INT64_MIN, EventType, Kind, kind_of
from tocsin.normalize import MAX_CONJUNCTIONS, NormalForm, bind, covers, domains, normalize
from tocsin.normalize.bind import to_literal
from tocsin.normalize.condition import EVERYTHING, NOTHING, PRESENT, Condition, condition_covers
from tocsin.normalize.domains import FULL, HIGH, LOW, Domain
from tocsin.normalize.normal import conjunction_covers

DECLARED = EventType("Typed", dict(AGREEING.kinds))
WORLDS = {
    "typed": TYPED,
    "agreeing": AGREEING,
    "mixed": MIXED,
    "numeric": NUMERIC,
    "stringy": STRINGY,
}


def normal(text: str, event_type: EventType | None = None) -> NormalForm:
    return normalize(parse(text), event_type)


def check_canonical(form: NormalForm, declared: EventType | None = None) -> None:
    """Verify what a normal form promises of its shape."""
    for conjunction in form:
        for name, condition in conjunction.items():
            assert not condition.is_empty
            assert not condition.is_full
            assert condition != EVERYTHING
            kind = declared.kind_of(name) if declared else None
            check_condition(condition, kind)
    for a, b in itertools.permutations(form, 2):
        assert not conjunction_covers(a, b)
    if any(not conjunction for conjunction in form):
        assert len(form) == 1


def check_condition(condition: Condition, kind: Kind | None) -> None:
    for domain, intervals in zip(Domain, condition.intervals, strict=True):
        reached = None
        for low, high in intervals:
            assert LOW[domain] <= low < high <= HIGH[domain]
            assert reached is None or reached < low, "intervals are apart and in order"
            reached = high
    if condition.other:
        assert condition.intervals == FULL
        assert not condition.patterns
    if condition.patterns:
        assert not condition.absent
        assert [bool(i) for i in condition.intervals] == [False, True, False, False]
    if kind is Kind.INTEGER and not condition.other:
        for low, high in condition.intervals[Domain.NUMBER]:
            assert low == LOW[Domain.NUMBER] or (isinstance(low[0], int) and low[1] == 0)
            assert high == HIGH[Domain.NUMBER] or (isinstance(high[0], int) and high[1] == 0)


# Meaning.


@pytest.mark.parametrize("name", WORLDS)
def test_the_normal_form_means_what_the_evaluator_says(name: str) -> None:
    source = Seeded(4)
    world = WORLDS[name]
    declared = DECLARED if world is AGREEING else None
    rows = [event(source, world) for _ in range(30)]
    n_true = 0
    for _ in range(150):
        condition = expression(source, world, depth=4)
        form = normalize(condition, declared)
        check_canonical(form, declared)
        for row in rows:
            expected = evaluate(condition, row.get) is True
            n_true += expected
            assert form.holds(row) is expected, f"{print_expression(condition)} on {row}"
    assert 500 < n_true < 4_000


@given(expressions(MIXED), events(MIXED))
def test_the_normal_form_means_what_the_evaluator_says_of_mixed_kinds(
    condition: Expression, row: dict[str, Any]
) -> None:
    assert normalize(condition).holds(row) is (evaluate(condition, row.get) is True)


@given(expressions(AGREEING), events(AGREEING))
def test_what_is_declared_changes_the_form_but_not_the_meaning(
    condition: Expression, row: dict[str, Any]
) -> None:
    assert normalize(condition, DECLARED).holds(row) is normalize(condition).holds(row)


@given(st.data())
def test_parameters_mean_the_literals_that_they_hold(data: st.DataObject) -> None:
    source = Drawn(data.draw)
    condition, params = with_parameters(source, expression(source, MIXED))
    row = event(source, MIXED)

    def fill(operand: Any) -> Any:
        return to_literal(params[str(operand.name)]) if isinstance(operand, Parameter) else operand

    bound = bind(condition, params)
    assert repr(bound) == repr(map_operands(condition, fill))  # repr: NaN is not itself
    assert normalize(bound).holds(row) is (evaluate(bound, row.get) is True)


def test_unbound_parameters_are_found_missing() -> None:
    with pytest.raises(ParameterError) as caught:
        bind(parse("x = :a OR y = :b OR z = :a"), {"b": 1, "c": 2})
    assert caught.value.missing == ("a",)
    with pytest.raises(ParameterError) as caught:
        bind(parse("x = :a"), {"a": 1, "c": 2})
    assert caught.value.unknown == ("c",)


@pytest.mark.parametrize("value", [[1], {"a": 1}, b"x", 2**63, 1j, object()])
def test_a_parameter_of_no_kind_is_refused(value: object) -> None:
    with pytest.raises(ParameterError):
        bind(parse("x = :a"), {"a": value})


def test_a_parameter_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(ParameterError, match="Unicode"):
        bind(parse("x = :a"), {"a": "\ud800"})


def test_numpy_and_pandas_values_are_taken_as_what_they_are() -> None:
    moment = dt.datetime(2026, 7, 1, 12, 30, 15, 1, tzinfo=dt.UTC)
    for value, expected in (
        (np.int32(5), 5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.datetime64("2026-07-01T12:30:15.000001"), moment),
        (np.datetime64("2026-07-01T12:30:15.000001999"), moment),
        (pd.Timestamp("2026-07-01T14:30:15.000001+02:00"), moment),
        (np.datetime64("NaT"), None),
        (pd.NaT, None),
    ):
        literal = to_literal(value)
        assert literal.value == expected
        assert literal.kind == kind_of(expected)


def test_a_parameter_without_a_value_is_refused_by_normalize_and_covers_too() -> None:
    for text in ("x = :p", "x IN (1, :p)", "x LIKE :p", "NOT x BETWEEN 1 AND :p"):
        with pytest.raises(ParameterError, match="no value for parameter :p"):
            normal(text)
        with pytest.raises(ParameterError):
            covers(text, "x = 1")


# Laws.


@given(expressions(MIXED))
def test_two_negations_are_none(condition: Expression) -> None:
    assert normalize(Not(Not(condition))) == normalize(condition)


@given(expressions(MIXED, depth=2), expressions(MIXED, depth=2))
def test_a_negation_goes_through_and_and_or(a: Expression, b: Expression) -> None:
    assert normalize(Not(And((a, b)))) == normalize(Or((Not(a), Not(b))))
    assert normalize(Not(Or((a, b)))) == normalize(And((Not(a), Not(b))))


@given(expressions(MIXED), events(MIXED))
def test_no_event_matches_a_condition_and_its_negation(
    condition: Expression, row: dict[str, Any]
) -> None:
    assert not (normalize(condition).holds(row) and normalize(Not(condition)).holds(row))


@given(expressions(TYPED))
def test_a_condition_joined_with_itself_is_itself(condition: Expression) -> None:
    form = normalize(condition)
    assert normalize(Or((condition, condition))) == form
    assert normalize(Or((condition, Constant(False)))) == form
    assert normalize(And((condition, Constant(True)))) == form
    assert normalize(And((condition, Constant(None)))).is_never
    assert normalize(Or((condition, Constant(True)))) == NormalForm(({},))


# Shape.


@pytest.mark.parametrize(
    ("text", "n_conjunctions"),
    [
        ("FALSE", 0),
        ("x = NULL", 0),
        ("x > 5 AND x < 5", 0),
        ("TRUE", 1),
        ("x IS NULL OR x IS NOT NULL", 1),
        ("x = 1 OR x = 2", 1),
        ("x = 1 OR y = 2", 2),
        ("x = 1 AND y = 1 OR x = 1 AND y = 2", 1),
        ("x = 1 OR x = 1 AND y = 2", 1),
        ("(a OR b) AND (c OR d)", 4),
        ("(a OR b) AND (a OR b)", 2),
    ],
)
def test_a_form_has_as_few_conjunctions_as_this(text: str, n_conjunctions: int) -> None:
    form = normal(text)
    check_canonical(form)
    assert len(form) == n_conjunctions


def test_texts_that_mean_the_same_have_one_form() -> None:
    for texts in (
        ("x = 1", "x IN (1)", "x BETWEEN 1 AND 1", "x >= 1 AND x <= 1.0", "NOT x <> 1", "1 = x"),
        ("x <> 1", "x < 1 OR x > 1", "x NOT IN (1)", "NOT x = 1", "x NOT BETWEEN 1 AND 1"),
        ("x LIKE 'ab%'", "x >= 'ab' AND x < 'ac'"),
        ("x LIKE 'ab'", "x = 'ab'"),
        ("x", "x = TRUE", "x > FALSE", "NOT NOT x", "x <> FALSE"),
        ("x > 'a' AND x < 'a\0\0'", "x = 'a\0'"),
        ("x IS NOT NULL", "NOT x IS NULL"),
    ):
        forms = {normal(text).conjunctions[0]["x"] for text in texts}
        assert len(forms) == 1, texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n > 3", "n >= 4"),
        ("n < 4", "n <= 3"),
        ("n > 2.5 AND n < 3.5", "n = 3"),
        ("n = 1 OR n = 2 OR n = 3", "n BETWEEN 1 AND 3"),
        ("n <> 2.5", "n IS NOT NULL"),
        (f"n >= {INT64_MIN}", "n IS NOT NULL"),
        (f"n <= {INT64_MAX}", "n IS NOT NULL"),
        ("n < 1e300", "n IS NOT NULL"),
        (f"n > {INT64_MAX - 1}", f"n = {INT64_MAX}"),
        (f"n < {INT64_MIN + 1}", f"n = {INT64_MIN}"),
        ("n = 2.5", "FALSE"),
        (f"n > {INT64_MAX}", "FALSE"),
        ("n = 9223372036854775808.0", "FALSE"),
        (f"n >= {2**53 + 1}", f"n > {2**53}"),
    ],
)
def test_a_declared_integer_is_tightened(text: str, expected: str) -> None:
    declared = EventType("T", n=int)
    assert normal(text, declared) == normal(expected, declared)


def test_a_float_is_not_tightened() -> None:
    declared = EventType("T", n=float)
    assert normal("n > 3", declared) != normal("n >= 4", declared)
    assert normal("n < 5 OR n >= 5", declared) != normal("n IS NOT NULL", declared)  # NaN


def test_a_condition_is_one_of_a_few_constants_where_it_can_be() -> None:
    assert normal("x IS NOT NULL").conjunctions == ({"x": PRESENT},)
    assert normalize(parse("x = NULL")).conjunctions == ()
    assert NOTHING.is_empty
    assert EVERYTHING.is_full
    assert not PRESENT.is_full


@pytest.mark.parametrize(
    ("declared", "text", "found"),
    [
        (int, "x = 'a'", "string"),
        (int, "x = TRUE", "boolean"),
        (int, "x", "boolean"),
        (float, "x IN (1, 2.5, 'a')", "string"),
        (str, "x BETWEEN 'a' AND 5", "integer"),
        (str, "x = 1.5", "float"),
        (bool, "x = 1", "integer"),
        (bool, "x LIKE 'a'", "string"),
        (int, "x LIKE NULL", "string"),
        (dt.datetime, "x > '2026-07-01'", "string"),
        (dt.datetime, "NOT (y = 1 OR NOT x = 5)", "integer"),
    ],
)
def test_a_kind_that_does_not_fit_the_declared_one_is_refused(
    declared: type, text: str, found: str
) -> None:
    with pytest.raises(KindClashError) as caught:
        normal(text, EventType("T", x=declared))
    assert caught.value.attribute == "x"
    assert caught.value.kind == found
    normal(text.replace("x", "undeclared", 1) if text != "x" else "y", EventType("T", x=declared))


# The limit, and many disjuncts.


def test_a_form_may_have_as_many_conjunctions_as_the_limit_and_no_more() -> None:
    def disjunction(n: int) -> str:
        return " OR ".join(f"x = {i} AND y = {i}" for i in range(n))

    assert len(normal(disjunction(MAX_CONJUNCTIONS))) == MAX_CONJUNCTIONS == 4096
    with pytest.raises(TooManyConjunctionsError) as caught:
        normal(disjunction(MAX_CONJUNCTIONS + 1))
    assert caught.value.limit == MAX_CONJUNCTIONS
    with pytest.raises(TooManyConjunctionsError):
        normalize(parse(disjunction(3)), limit=2)


def product_of_disjunctions(n: int) -> str:
    return " AND ".join(f"(a{i} OR b{i})" for i in range(n))


def test_a_product_of_disjunctions_may_reach_the_limit_and_no_more() -> None:
    assert len(normalize(parse(product_of_disjunctions(8)), limit=256)) == 256
    with pytest.raises(TooManyConjunctionsError):
        normalize(parse(product_of_disjunctions(9)), limit=256)


@pytest.mark.slow
@pytest.mark.parametrize("n", [13, 64, 2_000])
def test_a_blow_up_is_refused_soon(n: int) -> None:
    with pytest.raises(TooManyConjunctionsError):
        normal(product_of_disjunctions(n))


def test_the_limit_counts_what_is_left_after_simplification() -> None:
    text = " OR ".join(f"x = {i}" for i in range(5_000))
    assert len(normal(text)) == 1
    assert len(normal(f"NOT ({text})")) == 1
    repeated = " AND ".join(["(a OR b)"] * 200)
    assert len(normal(repeated)) == 2


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(f"x{i} = {i}" for i in range(4_000)),
        " OR ".join(f"x{i} = {i} AND y{i % 7} > 2" for i in range(4_000)),
        " OR ".join(f"x LIKE '%a{i}%'" for i in range(4_000)),
        " AND ".join(f"x <> {i}" for i in range(5_000)),
        " AND ".join(f"x{i} = {i}" for i in range(5_000)),
        " AND ".join(f"x NOT LIKE '%a{i}%'" for i in range(4_000)),
    ],
    ids=["attributes", "pairs", "patterns", "excluded", "conjunction", "excluded patterns"],
)
def test_thousands_of_parts_take_no_time_to_speak_of(text: str) -> None:
    condition = parse(text)
    normalize(condition)


@pytest.mark.slow
@pytest.mark.parametrize("world", [TYPED, NUMERIC, STRINGY], ids=["typed", "numeric", "stringy"])
def test_thousands_of_disjuncts_mean_what_the_evaluator_says(world: World) -> None:
    source = Seeded(7)
    condition = many_disjuncts(source, world, 2_000 if world is TYPED else 500)
    form = normalize(condition)
    assert len(form) > 5
    n_true = 0
    for _ in range(15):
        row = event(source, world)
        expected = evaluate(condition, row.get) is True
        n_true += expected
        assert form.holds(row) is expected
    assert 0 < n_true < 15


# Intervals.

cuts = st.tuples(st.integers(0, 6), st.integers(0, 1))
interval_sets = st.lists(st.tuples(cuts, cuts), max_size=4).map(
    lambda pairs: domains.unite(tuple((a, b) for a, b in pairs if a < b), ())
)
KEYS = [k / 2 for k in range(-2, 16)]


@settings(max_examples=200)
@given(interval_sets, interval_sets)
def test_intervals_are_sets(a: domains.Intervals, b: domains.Intervals) -> None:
    number = Domain.NUMBER
    both, either, rest = domains.intersect(a, b), domains.unite(a, b), domains.complement(number, a)
    for key in KEYS:
        in_a, in_b = domains.holds(a, key), domains.holds(b, key)
        assert domains.holds(both, key) is (in_a and in_b)
        assert domains.holds(either, key) is (in_a or in_b)
        assert domains.holds(rest, key) is not in_a
    assert domains.complement(number, rest) == a
    assert domains.intersect(a, rest) == ()
    assert domains.unite(a, rest) == FULL[number]
    assert domains.contains(a, b) is (domains.intersect(a, b) == b)
    assert domains.contains(either, a)
    for intervals in (both, either, rest):
        check_condition(Condition(intervals=(intervals, (), (), ())), None)


def test_a_condition_covers_itself_and_what_is_narrower() -> None:
    wide = normal("x > 1").conjunctions[0]["x"]
    narrow = normal("x > 2").conjunctions[0]["x"]
    assert condition_covers(wide, wide)
    assert condition_covers(wide, narrow)
    assert not condition_covers(narrow, wide)
    assert condition_covers(EVERYTHING, wide)
    assert condition_covers(wide, NOTHING)
