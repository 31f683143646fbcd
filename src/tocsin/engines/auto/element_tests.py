"""Conditions on elements that are no equalities: ranges, prefixes, `exists(items, i -> …)`.

Enters: the names of such conditions, each a boolean computed value; batches of events. Leaves:
which of them the elements of an event satisfy, or which pairs of an event and a conjunction satisfy
theirs. An element is an event of its own here: its conditions have cells, which are looked at for
candidates only, or an index, where nothing else leads to a conjunction.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch, read_value
from tocsin.engines.auto import element_kernels
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.content import from_table
from tocsin.engines.auto.segment import Segment
from tocsin.engines.ragged import RaggedIds
from tocsin.errors import SubscriptionError
from tocsin.language.evaluate import read_list
from tocsin.language.expression import And, Constant, Expression, Not, Or
from tocsin.language.names import elements_of, is_computed, is_path
from tocsin.language.printer import name_of
from tocsin.language.term_names import term_of
from tocsin.language.terms import Exists, Test
from tocsin.normalize.layout import from_forms
from tocsin.normalize.normal import NormalForm, normalize

_VARIABLE = "element"
_MOST_CONJUNCTIONS = 64


class ElementTest(NamedTuple):
    """That some element of a list, called `variable`, satisfies a normal form."""

    list: str
    variable: str
    form: NormalForm


@lru_cache(maxsize=1 << 17)
def element_test(name: str) -> ElementTest | None:
    """Return the test that a computed value is, or None where it is of another sort."""
    if not is_computed(name):
        return None
    term = term_of(name)
    expression: Expression
    if isinstance(term, Exists) and not term.every:
        source, variable, expression = name_of(term.list), term.variable, term.condition
    elif isinstance(term, Test) and not isinstance(term.condition, And | Or | Not | Constant):
        of = elements_of(term.condition.attribute)
        if of is None or of.quantifier != "any":
            return None
        source, variable = of.list, _VARIABLE
        expression = replace(term.condition, attribute=_VARIABLE)
    else:
        return None
    try:
        form = normalize(expression, limit=_MOST_CONJUNCTIONS)
    except SubscriptionError:
        return None
    is_plain = all(
        is_path(attribute) and not condition.patterns
        for conjunction in form
        for attribute, condition in conjunction.items()
    )
    return ElementTest(source, variable, form) if is_plain and not form.is_always else None


class _Group:
    """The tests of one list: `names` of conditions, all with one variable."""

    def __init__(self, list: str, variable: str, names: Sequence[str]) -> None:
        self.list, self.variable, self.names = list, variable, names
        forms = [test.form for name in names if (test := element_test(name)) is not None]
        self.table = from_forms(forms)
        self.start = np.searchsorted(self.table.subscription, np.arange(len(names) + 1))
        content = from_table(self.table)
        self.space, self.conditions = content.space, content.conditions

    def index(self, first: int) -> Segment:
        """Return an index of the tests, which are numbered from `first` on."""
        numbers = self.table.subscription + first
        return Segment.build(from_table(replace(self.table, subscription=numbers)))


def groups_of(names: Sequence[str]) -> list[_Group]:
    """Return tests by the list that they are about."""
    by_list: dict[tuple[str, str], list[str]] = {}
    for name in names:
        test = element_test(name)
        assert test is not None
        by_list.setdefault((test.list, test.variable), []).append(name)
    return [_Group(*of, members) for of, members in by_list.items()]


class ElementKeys:
    """An index of tests: the codes of the tests that an element satisfies, from `first` on."""

    def __init__(self, names: Sequence[str], first: int) -> None:
        self.codes: dict[str, int] = {}
        self._indexes: list[tuple[_Group, Segment]] = []
        for group in groups_of(names):
            index = group.index(first + len(self.codes))
            self.codes.update((name, first + len(self.codes)) for name in group.names)
            if group.table.n_conjunctions:
                self._indexes.append((group, index))

    def of_batch(self, events: EventBatch) -> list[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Return for each list the codes of all elements, and where those of each event begin."""
        parts = []
        for group, index in self._indexes:
            elements = events.computed.elements(term_of(group.list))
            if elements is not None and len(elements):
                batch = events.of_elements(elements, group.variable)
                offsets, values = index.match(PreparedBatch(batch, index.space))
                parts.append((offsets[elements.start], index.ids[values]))
        return parts

    def of_event(self, event: Mapping[str, object]) -> list[int]:
        """Return the codes of the elements of one event."""
        codes: dict[int, None] = {}
        for group, index in self._indexes:
            of = term_of(group.list)
            for element in read_list(of, lambda path: read_value(event, path)) or ():
                one = ChainMap({group.variable: element}, event)  # type: ignore[arg-type]
                codes.update(dict.fromkeys(index.match_one(one).tolist()))
        return list(codes)


class ElementTests:
    """The tests of some conjunctions, as pairs of a conjunction and the name of a test."""

    def __init__(self, n: int, owner: NDArray[np.int64], name: Sequence[str]) -> None:
        self.n = len(name)
        self._names: dict[int, list[str]] = {}
        for conjunction, each in zip(owner.tolist(), name, strict=True):
            self._names.setdefault(conjunction, []).append(each)
        self._parts: list[tuple[_Group, NDArray[np.int64], NDArray[np.int64]]] = []
        for group in groups_of(list(dict.fromkeys(name))):
            number = {each: at for at, each in enumerate(group.names)}
            test = np.array([number.get(each, -1) for each in name], np.int64)
            chosen = np.flatnonzero(test >= 0)
            chosen = chosen[np.argsort(owner[chosen], kind="stable")]
            start = np.zeros(n + 1, np.int64)
            np.cumsum(np.bincount(owner[chosen], minlength=n), out=start[1:])
            self._parts.append((group, start, test[chosen]))

    def __bool__(self) -> bool:
        return bool(self._parts)

    def names_of(self, conjunction: int) -> list[str]:
        """Return the tests of a conjunction."""
        return self._names.get(conjunction, [])

    def keep(self, events: EventBatch, rows: RaggedIds) -> RaggedIds:
        """Keep the pairs of an event and a conjunction that satisfy all tests."""
        for group, start, tests in self._parts:
            if not len(rows.values):
                break
            elements = events.computed.elements(term_of(group.list))
            if elements is None:
                holds = np.diff(start)[rows.values] == 0
            else:
                cells = group.space.encode(events.of_elements(elements, group.variable))
                holds = np.empty(len(rows.values), np.bool_)
                element_kernels.test_elements(
                    rows.offsets,
                    rows.values,
                    start,
                    tests,
                    group.start,
                    *group.conditions,
                    elements.start,
                    cells,
                    holds,
                )
            before = np.zeros(len(holds) + 1, np.int64)
            np.cumsum(holds, out=before[1:])
            rows = RaggedIds(before[rows.offsets], rows.values[holds])
        return rows

    def keep_one(
        self, event: Mapping[str, object], conjunctions: NDArray[np.uint32]
    ) -> NDArray[np.uint32]:
        """Keep the conjunctions that one event satisfies."""
        holds = [
            all(read_value(event, name) is True for name in self._names.get(number, ()))
            for number in conjunctions.tolist()
        ]
        return conjunctions[np.array(holds, np.bool_)]
