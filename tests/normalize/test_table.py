"""Conjunction tables: the flat arrays hold the normal forms they were made of, however joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.strategies import (
    MIXED,
    NUMERIC,
    STRINGY,
    TYPED,
    Drawn,
    Seeded,
    World,
    expression,
    expressions,
)

from tocsin.language import parse
from tocsin.language.expression import Expression
from tocsin.normalize import NormalForm, normalize
from tocsin.normalize.domains import Domain
from tocsin.normalize.keys import HIGH_CUT, LOW_CUT
from tocsin.normalize.layout import from_forms
from tocsin.normalize.table import (
    ABSENT,
    PRESENT,
    ConjunctionTable,
    concatenate,
    sort_vocabulary,
    stack,
    take,
)

WORLDS = {"typed": TYPED, "mixed": MIXED, "numeric": NUMERIC, "stringy": STRINGY}
worlds = pytest.mark.parametrize("world", WORLDS.values(), ids=[*WORLDS])


def forms_of(conditions: Sequence[Expression]) -> list[NormalForm]:
    return [normalize(condition) for condition in conditions]


def random_forms(world: World, n: int, seed: int = 1) -> list[NormalForm]:
    source = Seeded(seed)
    return forms_of([expression(source, world) for _ in range(n)])


def check(table: ConjunctionTable) -> None:
    """Verify what a table promises of its arrays."""
    assert np.all(np.diff(table.subscription) >= 0)
    for starts, n in (
        (table.condition_start, table.n_conditions),
        (table.piece_start, len(table.domain)),
    ):
        assert starts[0] == 0
        assert starts[-1] == n
        assert np.all(np.diff(starts) >= 0)
    assert len(table.condition_start) == table.n_conjunctions + 1
    assert len(table.piece_start) == table.n_conditions + 1
    strings = table.vocabulary.to_pylist()
    assert strings == sorted(set(strings))
    for c in range(table.n_conjunctions):
        run = table.attribute[table.condition_start[c] : table.condition_start[c + 1]]
        assert len(np.unique(run)) == len(run), "one condition per attribute"
    cuts = zip(
        table.domain.tolist(),
        table.low_key.tolist(),
        table.low_offset.tolist(),
        table.high_key.tolist(),
        table.high_offset.tolist(),
        strict=True,
    )
    for domain, low_key, low_offset, high_key, high_offset in cuts:
        assert LOW_CUT <= (low_key, low_offset) < (high_key, high_offset) <= HIGH_CUT
        if domain == Domain.STRING:
            assert (low_key, low_offset) == LOW_CUT or 0 <= low_key < len(strings)
            assert (high_key, high_offset) == HIGH_CUT or 0 <= high_key < len(strings)
    is_full = (table.flags & PRESENT) > 0
    assert not np.any(np.diff(table.piece_start)[is_full]), "what is always so has no pieces"
    assert np.all(np.diff(table.pattern_condition) >= 0)
    for array in (table.subscription, table.low_key, table.high_key, table.attribute, table.domain):
        assert array.flags.c_contiguous


@worlds
def test_a_table_holds_the_forms_it_was_made_of(world: World) -> None:
    forms = random_forms(world, 150)
    table = from_forms(forms)
    check(table)
    assert table.n_subscriptions == len(forms)
    assert [table.form(i) for i in range(len(forms))] == forms
    for c in range(table.n_conjunctions):
        run = table.attribute[table.condition_start[c] : table.condition_start[c + 1]]
        assert np.all(np.diff(run) > 0), "conditions stand in the order of attributes"


@settings(max_examples=30)
@given(st.lists(expressions(MIXED), max_size=5))
def test_any_forms_come_back(conditions: list[Expression]) -> None:
    forms = forms_of(conditions)
    table = from_forms(forms)
    check(table)
    assert [table.form(i) for i in range(len(forms))] == forms


def test_no_forms_make_an_empty_table() -> None:
    for forms in ([], [NormalForm(())] * 3):
        table = from_forms(forms)
        check(table)
        assert table.n_conjunctions == 0
        assert table.n_subscriptions == len(forms)
        assert all(table.form(i) == NormalForm(()) for i in range(3))


def test_flags_say_what_holds_of_absent_and_of_all_present_values() -> None:
    texts = ["x IS NULL", "x IS NOT NULL", "x = 1", "x IS NULL OR x = 1"]
    table = from_forms(forms_of([parse(text) for text in texts]))
    assert table.flags.tolist() == [ABSENT, PRESENT, 0, ABSENT]


def test_strings_are_ranks_in_the_sorted_vocabulary() -> None:
    table = from_forms(forms_of([parse("x = 'b' AND y > 'a'"), parse("x > '😀' OR x = '\uffff'")]))
    assert table.vocabulary.to_pylist() == ["a", "b", "\uffff", "😀"]
    check(table)


@worlds
def test_tables_one_after_another_keep_their_forms(world: World) -> None:
    parts = [random_forms(world, n, seed=n) for n in (1, 0, 40, 3, 70)]
    joined = concatenate([from_forms(part) for part in parts])
    check(joined)
    forms = [form for part in parts for form in part]
    assert joined.n_subscriptions == len(forms)
    assert [joined.form(i) for i in range(len(forms))] == forms


@settings(max_examples=25)
@given(st.data())
def test_any_tables_one_after_another_keep_their_forms(data: st.DataObject) -> None:
    source = Drawn(data.draw)
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    parts = [forms_of([expression(source, MIXED, 2) for _ in range(n)]) for n in sizes]
    joined = concatenate([from_forms(part) for part in parts])
    check(joined)
    assert [joined.form(i) for i in range(sum(sizes))] == [form for part in parts for form in part]


@worlds
def test_stacked_tables_get_the_numbers_they_are_given(world: World) -> None:
    first, second = random_forms(world, 20), random_forms(world, 30, seed=2)
    stacked = stack([from_forms(first), from_forms(second)], [5, 100], 150)
    check(stacked)
    assert stacked.n_subscriptions == 150
    assert [stacked.form(5 + i) for i in range(20)] == first
    assert [stacked.form(100 + i) for i in range(30)] == second
    assert stacked.form(4) == stacked.form(50) == stacked.form(149) == NormalForm(())


def test_one_table_stacked_is_itself() -> None:
    forms = random_forms(TYPED, 10)
    table = from_forms(forms)
    for moved, first in ((stack([table], [0], 10), 0), (stack([table], [7], 17), 7)):
        check(moved)
        assert [moved.form(first + i) for i in range(10)] == forms


@worlds
def test_taken_conjunctions_are_what_they_were(world: World) -> None:
    table = from_forms(random_forms(world, 120))
    everything = np.arange(table.n_conjunctions)
    for chosen in (everything, everything[::3], everything[:0], everything[-1:], everything[5:50]):
        taken = take(table, chosen)
        check(taken)
        assert taken.n_conjunctions == len(chosen)
        assert taken.subscription.tolist() == table.subscription[chosen].tolist()
        for at, c in enumerate(chosen.tolist()):
            assert taken.conjunction(at) == table.conjunction(c)


@worlds
def test_conjunctions_may_be_taken_in_another_order(world: World) -> None:
    table = from_forms(random_forms(world, 60))
    order = np.random.default_rng(3).permutation(table.n_conjunctions)
    taken = take(table, order)
    for at, c in enumerate(order.tolist()):
        assert taken.conjunction(at) == table.conjunction(c)
    assert np.all(np.diff(taken.pattern_condition) >= 0)


def test_taking_and_joining_again_gives_the_same_forms() -> None:
    forms = random_forms(STRINGY, 80)
    table = from_forms(forms)
    half = np.searchsorted(table.subscription, 40)
    parts = [
        take(table, np.arange(half)),
        take(table, np.arange(half, table.n_conjunctions)),
    ]
    joined = stack(parts, [0, 0], 80)
    check(joined)
    assert [joined.form(i) for i in range(80)] == forms


def test_patterns_stay_with_their_conditions() -> None:
    texts = ["x LIKE '%a%'", "y = 1", "x NOT LIKE '%b%' AND y LIKE 'a_c'", "x LIKE '%a%' AND y > 2"]
    forms = forms_of([parse(text) for text in texts])
    table = concatenate([from_forms(forms[:2]), from_forms(forms[2:])])
    check(table)
    assert [table.form(i) for i in range(4)] == forms
    assert len(table.patterns) == 3, "equal patterns stand once"
    cut = take(table, np.array([3, 2]))
    assert [cut.conjunction(0), cut.conjunction(1)] == [*forms[3], *forms[2]]


def test_a_vocabulary_is_sorted_by_code_point() -> None:
    strings = ["b", "a", "😀", "\uffff", "é", "", "a\0", "a", "Z"]
    assert sort_vocabulary(pa.array(strings)).to_pylist() == sorted(set(strings))
    chunks = pa.chunked_array([strings[:4], strings[4:]])
    assert sort_vocabulary(chunks).to_pylist() == sorted(set(strings))


def test_the_bytes_held_are_counted() -> None:
    small, large = from_forms(random_forms(TYPED, 5)), from_forms(random_forms(TYPED, 50))
    assert 0 < small.nbytes < large.nbytes
