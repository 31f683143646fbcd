"""The budget of a condition: what took hours takes few steps, what takes too many is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tocsin
from tocsin.errors import BadRowsError, ConditionCostError
from tocsin.language import parse
from tocsin.language.evaluate import evaluate
from tocsin.language.expression import And, Comparison, Expression, Literal, Or
from tocsin.model import Kind
from tocsin.normalize import normalize
from tocsin.normalize.budget import MAX_STEPS, Budget
from tocsin.normalize.diagnose import diagnose
from tocsin.normalize.normal import covers


def absorbing(n: int) -> str:
    """Return a condition of two conjunctions that has 2^n before anything is absorbed."""
    return " AND ".join(f"(a = 1 OR b{i} = 1)" for i in range(n))


def doubling_first(doubled: int, n: int) -> str:
    """Return disjunctions that double the conjunctions, before those that are absorbed."""
    doubling = [f"(p{i} = 1 OR q{i} = 1)" for i in range(doubled)]
    return " AND ".join([*doubling, *(f"(x = 1 OR c{i} = 1)" for i in range(n))])


def costly() -> str:
    """Return a condition of 64 kB that would take seconds: patterns to try on a list of strings."""
    strings = ", ".join(f"'{i}'" for i in range(3_000))
    patterns = " AND ".join(f"a NOT LIKE '%x{i}%'" for i in range(1_500))
    return f"a IN ({strings}) AND {patterns}"


def steps(text: str) -> float:
    budget = Budget()
    normalize(parse(text), budget=budget)
    return budget.spent


def test_what_is_absorbed_costs_no_more_than_it_is_long() -> None:
    assert len(normalize(parse(absorbing(3_000)))) == 2
    assert steps(absorbing(1_600)) < 6 * steps(absorbing(400))
    assert steps(absorbing(400)) < 100_000


@pytest.mark.parametrize(("doubled", "n"), [(6, 40), (6, 200), (7, 100)])
def test_disjunctions_that_double_cost_little_whatever_comes_after_them(
    doubled: int, n: int
) -> None:
    text = doubling_first(doubled, n)
    assert len(normalize(parse(text), limit=256)) == 2 ** (doubled + 1)
    assert steps(text) < 700_000


def test_a_condition_of_many_conjunctions_that_differ_in_little_is_within_the_budget() -> None:
    same = " AND ".join(f"a{i} = 1" for i in range(19))
    text = " OR ".join(f"({same} AND b{j} = 1)" for j in range(250))
    assert len(normalize(parse(text))) == 250
    assert steps(" OR ".join(f"a LIKE '%{i}%'" for i in range(255))) < 200_000


def test_a_condition_that_costs_too_much_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(ConditionCostError, match="fewer ORs within ANDs") as caught:
        normalize(parse(costly()))
    assert (caught.value.limit, caught.value.most) == ("steps", MAX_STEPS)
    assert caught.value.code == "condition-cost"


def test_steps_do_not_depend_on_the_machine() -> None:
    assert steps(doubling_first(5, 30)) == steps(doubling_first(5, 30))


def test_a_refused_condition_changes_nothing_by_any_road() -> None:
    matcher = tocsin.Matcher()
    matcher.subscribe("a", "x = 1")
    with pytest.raises(ConditionCostError):
        matcher.subscribe("b", costly())
    with pytest.raises(ConditionCostError):
        matcher.update("a", where=costly())
    with pytest.raises(BadRowsError):
        matcher.subscribe_many({"id": ["b"], "where": [costly()]})
    report = matcher.subscribe_many(
        {"id": ["b", "c"], "where": [costly(), "x = 1"]}, on_error="quarantine"
    )
    assert [(bad.id, bad.code) for bad in report.bad] == [("b", "condition-cost")]
    assert sorted(map(str, matcher.match({"x": 1}))) == ["a", "c"]


def test_a_budget_is_spent_by_all_that_share_it() -> None:
    budget, expression = Budget(250), parse("a = 1 AND (b = 2 OR c = 3)")
    normalize(expression, budget=budget)
    assert budget.spent > 125
    with pytest.raises(ConditionCostError):
        normalize(expression, budget=budget)


def test_warnings_end_with_the_budget() -> None:
    """Thousands of contradictions took minutes to list; those that are listed are certain."""
    text = " AND ".join(f"a{i} < 1 AND a{i} > 2" for i in range(2_000))
    found = diagnose(parse(text))
    assert found[0].code == "never"
    assert 0 < len(found) < 1_000


def test_covering_is_found_within_the_budget_or_not_at_all() -> None:
    wide = normalize(parse(" OR ".join(f"a > {i} AND b > {i} AND c < {i}" for i in range(3_000))))
    assert covers(wide, wide) in (True, False)
    with pytest.raises(ConditionCostError):
        covers(wide, wide, Budget(1_000))
    few = normalize(parse("a > 1 AND b > 1 AND c < 1"))
    assert covers(few, few)


COLLIDING = [-1, -2, 0, 1, 2**61 - 1, 2**61, 2**62 - 2]
"""Integers many of which have one hash in Python."""


def comparison(attribute: str, op: str, value: int) -> Expression:
    return Comparison(attribute, op, Literal(value, Kind.INTEGER))


leaves = st.builds(
    comparison,
    st.sampled_from("ab"),
    st.sampled_from(["=", "<>", "<", ">="]),
    st.sampled_from(COLLIDING),
)
disjunctions = st.lists(leaves, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts)))
products = st.lists(disjunctions | leaves, min_size=2, max_size=6).map(
    lambda parts: And(tuple(parts))
)
EVENTS = [
    {"a": a, "b": b} for a, b in itertools.product([None, *COLLIDING, 5], [None, *COLLIDING, 5])
]


@given(products)
def test_disjunctions_that_share_parts_mean_what_they_did(expression: Expression) -> None:
    form = normalize(expression)
    for event in EVENTS:
        assert form.holds(event) is (evaluate(expression, event.get) is True)


@given(st.lists(st.lists(leaves, min_size=1, max_size=2), min_size=2, max_size=8))
def test_values_with_one_hash_are_told_apart(terms: list[list[Expression]]) -> None:
    expression = Or(tuple(And(tuple(t)) if len(t) > 1 else t[0] for t in terms))
    form = normalize(expression)
    for event in EVENTS:
        assert form.holds(event) is (evaluate(expression, event.get) is True)
