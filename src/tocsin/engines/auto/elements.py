"""Conjunctions that are reached through the elements of a list: `ANY(tags) = 'x'`, words in texts.

Enters: a conjunction table, in which such a condition is a boolean computed value. Leaves: a
`ElementIndex`: an event asks once for each of its elements for the conjunctions that have the
rarest value they require under it, and these are verified: that the other values are among the
elements too, and all other conditions. Boolean columns would cost every event every value that any
subscription has. Conditions on elements that are no equalities are tests (see `element_tests`):
a conjunction without a value is reached by its conditions on attributes, or else by a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch, read_value, texts_of
from tocsin.encode.lists import Elements
from tocsin.encode.vectors import Vector, plain_strings, to_objects
from tocsin.engines.auto import element_kernels
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.content import Content, from_table
from tocsin.engines.auto.element_tests import ElementKeys, ElementTests, element_test
from tocsin.engines.auto.residual import Residuals
from tocsin.engines.auto.segment import Segment
from tocsin.engines.patterns import PatternChecks
from tocsin.engines.ragged import RaggedIds
from tocsin.language.computed import moments_of
from tocsin.language.evaluate import read_list
from tocsin.language.expression import Comparison, In, Literal
from tocsin.language.names import COMPUTED, elements_of, is_computed
from tocsin.language.term_names import term_of
from tocsin.language.terms import Call, Term, Test
from tocsin.language.words import StringCodes
from tocsin.model import Kind
from tocsin.normalize.condition import domain_of
from tocsin.normalize.domains import Domain, to_key
from tocsin.normalize.elements import is_truth
from tocsin.normalize.table import ConjunctionTable, take, without_conditions

_COMMON = 256
"""A value that more conjunctions require, and more than a part of all, is no good key."""
_COMMON_PART = 50
_SHARED = 64
"""A test that as many conjunctions share is a column, unless that is a small part of all."""


_ABOUT_ELEMENTS = f"{COMPUTED}(ANY(", f"{COMPUTED}(ALL("
"""How the names of comparisons with elements begin."""


class Key(NamedTuple):
    """A value that some element of a list must have."""

    list: str
    domain: Domain
    value: object


@lru_cache(maxsize=1 << 17)
def _values_of(name: str) -> tuple[tuple[Key, ...], bool]:
    """Return the value that a computed value requires of elements, or the ones that it forbids."""
    none = (), False
    if not name.startswith(_ABOUT_ELEMENTS):  # most names need not be parsed
        return none
    term = term_of(name)
    if not isinstance(term, Test) or not isinstance(term.condition, Comparison | In):
        return none
    predicate = term.condition
    of = elements_of(predicate.attribute)
    if of is None:
        return none
    operands = predicate.operands if isinstance(predicate, In) else (predicate.operand,)
    keys = []
    for operand in operands:
        domain = domain_of(operand.value) if isinstance(operand, Literal) else None
        if domain is None or not isinstance(operand, Literal):
            return none
        keys.append(Key(of.list, domain, to_key(operand.value)))
    if of.quantifier == "any" and isinstance(predicate, Comparison) and predicate.op == "=":
        return tuple(keys), False
    # With a list that may hold null or several kinds, ALL can be unknown; words are all texts.
    is_words = of.list.startswith(f"{COMPUTED}words(")
    is_words &= all(key.domain is Domain.STRING for key in keys)
    is_negated = predicate.negated if isinstance(predicate, In) else predicate.op == "<>"
    if of.quantifier == "all" and is_negated and is_words:
        return tuple(keys), True
    return none


def key_of(name: str) -> Key | None:
    """Return the key that a computed value is about, such as `ANY(tags) = 'x'`."""
    keys, is_forbidden = _values_of(name)
    return keys[0] if keys and not is_forbidden else None


def forbidden_of(name: str) -> tuple[Key, ...]:
    """Return what `ALL(words(body)) NOT IN ('x', 'y')` forbids."""
    keys, is_forbidden = _values_of(name)
    return keys if is_forbidden else ()


def divide(table: ConjunctionTable) -> tuple[ConjunctionTable, ConjunctionTable | None]:
    """Divide a table into what other parts index, and what is reached through elements.

    The conjunctions of a subscription stay together. One that has other conditions goes by these if
    the values that it asks of elements are asked by many; and by a boolean column, if it has no
    value and a test that many share.
    """
    is_key = np.array([key_of(name) is not None for name in table.attributes], np.bool_)
    is_test = np.array([_is_test(name) for name in table.attributes], np.bool_)
    if not (is_key.any() or is_test.any()):
        return table, None
    truths = is_truth(table)
    counts = np.bincount(table.attribute[truths], minlength=len(table.attributes))
    owner = np.repeat(np.arange(table.n_conjunctions), np.diff(table.condition_start))
    keyed, tested = is_key[table.attribute] & truths, is_test[table.attribute] & truths
    tested &= (counts < max(_SHARED, table.n_conjunctions // _COMMON_PART))[table.attribute]
    rarest = np.full(table.n_conjunctions, np.iinfo(np.int64).max)
    np.minimum.at(rarest, owner[keyed], counts[table.attribute[keyed]])
    n_keyed = np.bincount(owner[keyed], minlength=table.n_conjunctions)
    n_tested = np.bincount(owner[tested], minlength=table.n_conjunctions)
    is_common = rarest > max(_COMMON, table.n_conjunctions // _COMMON_PART)
    has_others = np.diff(table.condition_start) > n_keyed
    by_others = ((n_keyed == 0) & (n_tested == 0)) | (is_common & has_others & (n_keyed > 0))
    stays = np.isin(table.subscription, table.subscription[by_others])
    if stays.all():
        return table, None
    rest = take(table, np.flatnonzero(stays))
    return rest, take(table, np.flatnonzero(~stays))


def _is_test(name: str) -> bool:
    """Whether a computed value is a condition on elements that is no key."""
    return key_of(name) is None and element_test(name) is not None


class ElementIndex:
    """The index of some conjunctions; immutable. `ids` are dense ids, ascending."""

    def __init__(self, table: ConjunctionTable) -> None:
        self.table = table
        self.ids = table.subscription.astype(np.int32)
        self.n_subscriptions = len(np.unique(self.ids))
        self.has_siblings = self.n_subscriptions < len(self.ids)
        keys = [key_of(name) for name in table.attributes]
        not_these = [forbidden_of(name) for name in table.attributes]
        forbidden_keys = [key for each in not_these for key in each]
        values = dict.fromkeys(key for key in (*keys, *forbidden_keys) if key is not None)
        codes = {key: code for code, key in enumerate(values)}
        truths = is_truth(table)
        code = np.where(truths, _codes_of(keys, codes)[table.attribute], -1)
        owner = np.repeat(np.arange(len(self.ids)), np.diff(table.condition_start))
        forbids = np.array([len(each) for each in not_these], np.int64)
        is_forbidding = truths & (forbids > 0)[table.attribute]
        is_test = np.array([_is_test(name) for name in table.attributes], np.bool_)
        is_test = is_test[table.attribute] & truths
        computed = np.array([is_computed(name) for name in table.attributes], np.bool_)
        computed = computed[table.attribute]
        by_test = self._tests_as_keys(owner, (code >= 0) | ~computed, is_test)
        names = [table.attributes[at] for at in table.attribute[by_test].tolist()]
        self._codes = _Codes(codes, ElementKeys(list(dict.fromkeys(names)), len(codes)))
        code[by_test] = [self._codes.tests.codes[name] for name in names]
        is_test[by_test] = False
        self._set_keys(owner, code, self._codes.n)
        forbidding = table.attribute[is_forbidding]
        forbidden = [codes[key] for at in forbidding.tolist() for key in not_these[at]]
        self.forbidden_start, self.forbidden = self._by_place(
            np.repeat(owner[is_forbidding], forbids[forbidding]), np.array(forbidden, np.int32)
        )
        names = [table.attributes[at] for at in table.attribute[is_test].tolist()]
        self._element_tests = ElementTests(len(self.ids), owner[is_test], names)
        tested = computed & (code < 0) & ~is_forbidding & ~is_test
        tested[table.pattern_condition] = False
        reads_moments = np.array([bool(moments_of(name)) for name in table.attributes], np.bool_)
        tested &= ~reads_moments[table.attribute]  # a column knows which texts are timestamps
        self._tests = Residuals(table, tested)
        others = without_conditions(table, (code >= 0) | is_forbidding | is_test | tested)
        content: Content = from_table(others)
        self.space = content.space
        self.conditions = content.conditions
        self._has_cells = (np.diff(self.conditions.start) > 0)[self.postings]
        self._checks = PatternChecks()
        self._checks.add(others, np.arange(len(self.ids)))
        self._hosted = np.setdiff1d(np.arange(len(self.ids)), self.postings)
        self._host: Segment | None = None
        if len(self._hosted):
            hosted = replace(take(others, self._hosted), subscription=np.arange(len(self._hosted)))
            self._host = Segment.build(from_table(hosted))

    def _tests_as_keys(
        self,
        owner: NDArray[np.int64],
        leads: NDArray[np.bool_],
        is_test: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Return a test of each conjunction to which nothing else leads, the rarest."""
        table, n = self.table, len(self.ids)
        is_led = np.zeros(n, np.bool_)
        is_led[owner[leads]] = True
        places = np.flatnonzero(is_test & ~is_led[owner])
        counts = np.bincount(table.attribute[is_test], minlength=len(table.attributes))
        places = places[np.lexsort((counts[table.attribute[places]], owner[places]))]
        first: NDArray[np.int64] = places[np.diff(owner[places], prepend=-1) != 0]
        return first

    def _set_keys(self, owner: NDArray[np.int64], code: NDArray[np.int32], n_codes: int) -> None:
        """Choose the rarest value of each conjunction as its key; it requires the others too."""
        counts = np.bincount(code[code >= 0], minlength=n_codes)
        owner, code = owner[code >= 0], code[code >= 0]
        order = np.lexsort((counts[code], owner))
        owner, code = owner[order], code[order]
        is_first = np.diff(owner, prepend=-1) != 0
        key, keyed = code[is_first], owner[is_first]
        is_second = np.zeros(len(code), np.bool_)
        is_second[1:] = is_first[:-1] & ~is_first[1:]
        second = np.full(len(self.ids), -1, np.int32)
        second[keyed] = key
        second[owner[is_second]] = code[is_second]
        order = np.lexsort((second[keyed], key))
        self.postings = keyed[order].astype(np.int32)
        self.second = second[self.postings]
        self.posting_start = np.zeros(n_codes + 1, np.int64)
        np.cumsum(np.bincount(key, minlength=n_codes), out=self.posting_start[1:])
        is_rest = ~is_first & ~is_second
        self.required_start, self.required = self._by_place(owner[is_rest], code[is_rest])

    def _by_place(
        self, owner: NDArray[np.int64], code: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the codes of conjunctions in the order of the postings, and where each begin."""
        n = len(self.postings)
        place_of = np.full(len(self.ids), -1, np.int64)
        place_of[self.postings] = np.arange(n)
        place = place_of[owner]
        code, place = code[place >= 0], place[place >= 0]
        start = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(place, minlength=n), out=start[1:])
        return start, code[np.argsort(place, kind="stable")]

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Return the conjunctions that each event satisfies."""
        rows = self._keyed(events)
        if self._host is not None:
            rows = _both(rows, self._from_host(self._host, events))
        rows = self._element_tests.keep(events, rows)
        return self._tests.keep(events, rows)

    def _from_host(self, host: Segment, events: EventBatch) -> RaggedIds:
        """Return the conjunctions that are reached by other conditions, but for their tests."""
        offsets, values = host.match(PreparedBatch(events, host.space))
        return RaggedIds(offsets, self._hosted[values].astype(np.uint32))

    def _keyed(self, events: EventBatch) -> RaggedIds:
        """Return the conjunctions that are reached by their keys, but for their tests."""
        start, codes = self._codes.of_batch(events)
        if not (codes >= 0).any():
            return RaggedIds(np.zeros(len(events) + 1, np.int64), np.empty(0, np.uint32))
        rows = self._match(start, codes, self.space.encode(events))
        return self._checks.keep(events, rows)

    def match_one(self, event: Mapping[str, object]) -> NDArray[np.int32]:
        """Return the dense ids, perhaps repeated, that one event matches."""
        codes = self._codes.of_event(event)
        numbers = np.empty(0, np.uint32)
        if len(codes):
            cells = np.array(self.space.encode_event(event), np.int32).reshape(-1, 1)
            rows = self._match(np.array([0, len(codes)]), codes, cells)
            numbers = self._checks.keep_one(event, rows.values)
        if self._host is not None:
            hosted = self._hosted[self._host.match_one(event)].astype(np.uint32)
            numbers = np.concatenate([numbers, hosted])
        if self._element_tests:
            numbers = self._element_tests.keep_one(event, numbers)
        ids: NDArray[np.int32] = self.ids[self._tests.keep_one(event, numbers)]
        return ids

    def _match(
        self, start: NDArray[np.int64], codes: NDArray[np.int32], cells: NDArray[np.int32]
    ) -> RaggedIds:
        n = len(start) - 1
        offsets = np.zeros(n + 1, np.int64)
        state = np.zeros(len(self.posting_start) - 1, np.uint8)
        out = np.empty(max(1024, 2 * n), np.uint32)
        reached = 0
        while True:
            reached = element_kernels.match_elements(
                start,
                codes,
                self.posting_start,
                self.postings,
                self.second,
                self.required_start,
                self.required,
                self.forbidden_start,
                self.forbidden,
                self._has_cells,
                *self.conditions,
                cells,
                state,
                reached,
                out,
                offsets,
            )
            if reached == n:
                return RaggedIds(offsets, out[: offsets[n]])
            larger = np.empty(4 * len(out), np.uint32)
            larger[: offsets[reached]] = out[: offsets[reached]]
            out = larger

    def explain(self, dense: int) -> list[str]:
        """Say what leads to each conjunction of a subscription."""
        return [self._explain_one(number) for number in np.flatnonzero(self.ids == dense).tolist()]

    def _explain_one(self, conjunction: int) -> str:
        others = [term_text(name) for name in self._element_tests.names_of(conjunction)]
        others += self._tests.explain(conjunction)
        checks = f", then checked: {' AND '.join(others)}" if others else ""
        if self._host is not None and conjunction in self._hosted:
            [line] = self._host.explain(int(np.searchsorted(self._hosted, conjunction)))
            return line + checks
        place = int(np.flatnonzero(self.postings == conjunction)[0])
        code = int(np.searchsorted(self.posting_start, place, side="right")) - 1
        size = int(np.diff(self.posting_start)[code])
        n_others = int(np.diff(self.required_start)[place])
        n_others += int(self.second[place] != code)
        more = f", then {n_others} more of its values" if n_others else ""
        return f"element {self._codes.names[code]}: {size} under this value{more}{checks}"

    def describe(self) -> list[str]:
        """Say what is indexed by the elements of each list."""
        lists: dict[str, int] = {}
        for key in self._codes.keys:
            lists[key.list] = lists.get(key.list, 0) + 1
        sizes = np.diff(self.posting_start)
        largest = int(sizes.max()) if len(sizes) else 0
        lines = [
            f"elements of {term_text(name)}: {n} values, at most {largest} conjunctions under one"
            for name, n in lists.items()
        ]
        if self._codes.tests.codes:
            lines.append(f"{len(self._codes.tests.codes)} conditions on elements as keys")
        if self._element_tests:
            n_tests = self._element_tests.n
            lines.append(f"{n_tests} conditions on elements are checked on what is reached")
        if self._host is not None:
            lines.append(f"{len(self._hosted)} conjunctions are reached by other conditions")
        return lines

    @property
    def nbytes(self) -> int:
        """The bytes of the index."""
        arrays = (
            self.ids,
            self.postings,
            self.second,
            self.posting_start,
            self.required,
            self.required_start,
        )
        conditions = sum(array.nbytes for array in self.conditions)
        return int(sum(a.nbytes for a in arrays) + conditions + self.table.nbytes)


def _both(a: RaggedIds, b: RaggedIds) -> RaggedIds:
    """Join two results, event by event."""
    if not len(a.values):
        return b
    event = np.concatenate([a.rows(), b.rows()])
    values = np.concatenate([a.values, b.values])
    return RaggedIds(a.offsets + b.offsets, values[np.argsort(event, kind="stable")])


def _codes_of(keys: list[Key | None], codes: Mapping[Key, int]) -> NDArray[np.int32]:
    return np.array([-1 if key is None else codes[key] for key in keys], np.int32)


def term_text(name: str) -> str:
    """Return the text of a list."""
    from tocsin.language.printer import print_attribute

    return print_attribute(name)


class _Codes:
    """The numbers of the values that somebody asks elements for."""

    def __init__(self, codes: dict[Key, int], tests: ElementKeys) -> None:
        self.keys, self.tests = list(codes), tests
        self.n = len(codes) + len(tests.codes)
        self._by_list: dict[str, dict[tuple[Domain, object], int]] = {}
        for key, code in codes.items():
            self._by_list.setdefault(key.list, {})[key.domain, key.value] = code
        self._strings = {name: _string_codes(known) for name, known in self._by_list.items()}

    @property
    def names(self) -> list[str]:
        """The values as people write them."""
        values = [f"{term_text(key.list)} = {key.value!r}" for key in self.keys]
        return values + [term_text(name) for name in self.tests.codes]

    def of_event(self, event: Mapping[str, object]) -> NDArray[np.int32]:
        """Return the codes of the elements of one event that somebody asks for."""
        codes: dict[int, None] = {}
        for name, known in self._by_list.items():
            term: Term = term_of(name)
            for element in read_list(term, partial(read_value, texts_of(event))) or ():
                domain = domain_of(element)
                code = None if domain is None else known.get((domain, to_key(element)))
                if code is not None:
                    codes[code] = None
        return np.array([*codes, *self.tests.of_event(event)], np.int32)

    def of_batch(self, events: EventBatch) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the codes of all elements, and where those of each event begin."""
        parts = []
        for name in self._by_list:
            term = term_of(name)
            if isinstance(term, Call) and term.function == "words":
                texts = events.computed.vector(term.arguments[0])
                if texts.kind is Kind.STRING:
                    parts.append(self._strings[name].of_words(_where_here(texts)))
                    continue
            elements = events.computed.elements(term)
            if elements is not None:
                parts.append((elements.start, self._of_elements(name, elements)))
        parts += self.tests.of_batch(events)
        if len(parts) == 1:
            return parts[0]
        return _joined(parts, len(events))

    def _of_elements(self, name: str, elements: Elements) -> NDArray[np.int32]:
        vector = EventBatch.values_of(elements)
        if vector.kind is Kind.STRING:
            return self._strings[name].of_strings(_where_here(vector))
        known = self._by_list[name]
        of: dict[object, int] = {}
        result = np.full(len(vector), -1, np.int32)
        for at, element in enumerate(to_objects(vector)):
            domain = domain_of(element)
            if domain is not None:
                key = domain, to_key(element)
                code = of.get(key)
                if code is None:
                    code = of[key] = known.get(key, -1)
                result[at] = code
        return result


def _string_codes(known: Mapping[tuple[Domain, object], int]) -> StringCodes:
    """Return the codes of the strings among values."""
    strings = {
        str(value): code for (domain, value), code in known.items() if domain is Domain.STRING
    }
    return StringCodes(list(strings), np.array(list(strings.values()), np.int32))


def _where_here(vector: Vector) -> pa.Array:
    """Return strings, null where one is absent."""
    if vector.here is None:
        return plain_strings(vector.values)
    return pc.if_else(pa.array(vector.here), plain_strings(vector.values), None)


def _joined(
    parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int32]]], n: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Put the codes of several lists together, event by event."""
    owners = [np.repeat(np.arange(n), np.diff(start)) for start, _ in parts]
    codes = [code for _, code in parts]
    owner = np.concatenate([np.empty(0, np.int64), *owners])
    code = np.concatenate([np.empty(0, np.int32), *codes])
    start = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=n), out=start[1:])
    return start, code[np.argsort(owner, kind="stable")]
