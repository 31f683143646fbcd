"""Conjunctions that are reached through the elements of a list: `ANY(tags) = 'x'`, words in texts.

Enters: a conjunction table, in which such a condition is a boolean computed value. Leaves: a
`ElementIndex`: an event asks once for each of its elements for the conjunctions that have the
rarest value they require under it, and these are verified: that the other values are among the
elements too, and all other conditions. Boolean columns would cost every event every value that any
subscription has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch, read_value, texts_of
from tocsin.encode.lists import Elements
from tocsin.encode.vectors import plain_strings, to_objects
from tocsin.engines.auto import element_kernels
from tocsin.engines.auto.content import Content, from_table
from tocsin.engines.patterns import PatternChecks
from tocsin.engines.ragged import RaggedIds
from tocsin.language.computed import term_of
from tocsin.language.evaluate import read_list
from tocsin.language.expression import Comparison, Literal
from tocsin.language.names import COMPUTED, elements_of, is_computed
from tocsin.language.terms import Term, Test
from tocsin.model import Kind
from tocsin.normalize.condition import Condition, domain_of
from tocsin.normalize.domains import Domain, to_key
from tocsin.normalize.elements import is_truth
from tocsin.normalize.table import ConjunctionTable, take, without_conditions

_COMMON = 256
"""A value that more conjunctions require, and more than a part of all, is no good key."""
_COMMON_PART = 50


class Key(NamedTuple):
    """A value that some element of a list must have."""

    list: str
    domain: Domain
    value: object


@lru_cache(maxsize=1 << 17)
def _value_of(name: str) -> tuple[Key | None, bool]:
    """Return the value that a computed value requires of elements, or that it forbids."""
    if not is_computed(name):
        return None, False
    term = term_of(name)
    if not isinstance(term, Test) or not isinstance(term.condition, Comparison):
        return None, False
    predicate = term.condition
    of, operand = elements_of(predicate.attribute), predicate.operand
    if of is None or not isinstance(operand, Literal):
        return None, False
    domain = domain_of(operand.value)
    if domain is None:
        return None, False
    key = Key(of.list, domain, to_key(operand.value))
    if of.quantifier == "any" and predicate.op == "=":
        return key, False
    # With a list that may hold null or several kinds, ALL can be unknown; words are all texts.
    is_words = of.list.startswith(f"{COMPUTED}words(") and domain is Domain.STRING
    if of.quantifier == "all" and predicate.op == "<>" and is_words:
        return key, True
    return None, False


def key_of(name: str) -> Key | None:
    """Return the key that a computed value is about, such as `ANY(tags) = 'x'`."""
    key, is_forbidden = _value_of(name)
    return None if is_forbidden else key


def forbidden_of(name: str) -> Key | None:
    """Return what `ALL(words(body)) <> 'x'` forbids."""
    key, is_forbidden = _value_of(name)
    return key if is_forbidden else None


def divide(table: ConjunctionTable) -> tuple[ConjunctionTable, ConjunctionTable | None]:
    """Divide a table into what other parts index, and what is reached through elements.

    The conjunctions of a subscription stay together. One that has other conditions goes by these if
    the values that it asks of elements are asked by many.
    """
    is_key = np.array([key_of(name) is not None for name in table.attributes], np.bool_)
    if not is_key.any():
        return table, None
    keyed = is_key[table.attribute] & is_truth(table)
    counts = np.bincount(table.attribute[keyed], minlength=len(table.attributes))
    owner = np.repeat(np.arange(table.n_conjunctions), np.diff(table.condition_start))
    rarest = np.full(table.n_conjunctions, np.iinfo(np.int64).max)
    np.minimum.at(rarest, owner[keyed], counts[table.attribute[keyed]])
    n_keyed = np.bincount(owner[keyed], minlength=table.n_conjunctions)
    is_common = rarest > max(_COMMON, table.n_conjunctions // _COMMON_PART)
    has_others = np.diff(table.condition_start) > n_keyed
    by_others = (n_keyed == 0) | (is_common & has_others)
    stays = np.isin(table.subscription, table.subscription[by_others])
    if stays.all():
        return table, None
    rest = take(table, np.flatnonzero(stays))
    return rest, take(table, np.flatnonzero(~stays))


class ElementIndex:
    """The index of some conjunctions; immutable. `ids` are dense ids, ascending."""

    def __init__(self, table: ConjunctionTable) -> None:
        self.table = table
        self.ids = table.subscription.astype(np.int32)
        self.n_subscriptions = len(np.unique(self.ids))
        self.has_siblings = self.n_subscriptions < len(self.ids)
        keys = [key_of(name) for name in table.attributes]
        not_these = [forbidden_of(name) for name in table.attributes]
        values = dict.fromkeys(key for key in (*keys, *not_these) if key is not None)
        codes = {key: code for code, key in enumerate(values)}
        self._codes = _Codes(codes)
        truths = is_truth(table)
        code = np.where(truths, _codes_of(keys, codes)[table.attribute], -1)
        self._set_keys(code, len(codes))
        forbidden = np.where(truths, _codes_of(not_these, codes)[table.attribute], -1)
        self._set_forbidden(forbidden)
        tested = np.array([is_computed(name) for name in table.attributes], np.bool_)
        tested = tested[table.attribute] & (code < 0) & (forbidden < 0)
        self._tests = _tests_of(table, np.flatnonzero(tested))
        self._is_tested = np.zeros(len(self.ids), np.bool_)
        self._is_tested[list(self._tests)] = True
        others = without_conditions(table, (code >= 0) | (forbidden >= 0) | tested)
        content: Content = from_table(others)
        self.space = content.space
        self.conditions = content.conditions
        self._checks = PatternChecks()
        self._checks.add(others, np.arange(len(self.ids)))

    def _set_keys(self, code: NDArray[np.int32], n_codes: int) -> None:
        """Choose the rarest value of each conjunction as its key; it requires the others too."""
        table = self.table
        counts = np.bincount(code[code >= 0], minlength=n_codes)
        owner = np.repeat(np.arange(len(self.ids)), np.diff(table.condition_start))[code >= 0]
        code = code[code >= 0]
        order = np.lexsort((counts[code], owner))
        owner, code = owner[order], code[order]
        is_first = np.diff(owner, prepend=-1) != 0
        key = code[is_first]
        is_second = np.zeros(len(code), np.bool_)
        is_second[1:] = is_first[:-1] & ~is_first[1:]
        second = key.copy()
        second[owner[is_second]] = code[is_second]
        self.postings = np.lexsort((second, key)).astype(np.int32)
        self.second = second[self.postings]
        self.posting_start = np.zeros(n_codes + 1, np.int64)
        np.cumsum(np.bincount(key, minlength=n_codes), out=self.posting_start[1:])
        is_rest = ~is_first & ~is_second
        self.required = np.ascontiguousarray(code[is_rest])
        self.required_start = np.zeros(len(self.ids) + 1, np.int64)
        n_required = np.bincount(owner[is_rest], minlength=len(self.ids))
        np.cumsum(n_required, out=self.required_start[1:])

    def _set_forbidden(self, code: NDArray[np.int32]) -> None:
        owner = np.repeat(np.arange(len(self.ids)), np.diff(self.table.condition_start))[code >= 0]
        self.forbidden = np.ascontiguousarray(code[code >= 0])
        self.forbidden_start = np.zeros(len(self.ids) + 1, np.int64)
        np.cumsum(np.bincount(owner, minlength=len(self.ids)), out=self.forbidden_start[1:])

    def match_batch(self, events: EventBatch) -> RaggedIds:
        """Return the conjunctions that each event satisfies."""
        start, codes = self._codes.of_batch(events)
        if not (codes >= 0).any():
            return RaggedIds(np.zeros(len(events) + 1, np.int64), np.empty(0, np.uint32))
        rows = self._match(start, codes, self.space.encode(events))
        rows = self._checks.keep(events, rows)
        return self._tested(events, rows) if self._tests else rows

    def _tested(self, events: EventBatch, rows: RaggedIds) -> RaggedIds:
        """Keep the pairs that satisfy the computed conditions, evaluated one by one."""
        places = np.flatnonzero(self._is_tested[rows.values])
        if not len(places):
            return rows
        event_of = rows.rows()
        listed = list(events.events())
        fits = np.ones(len(rows.values), np.bool_)
        for place in places.tolist():
            fits[place] = self._fits(int(rows.values[place]), listed[event_of[place]])
        counts = np.bincount(event_of[fits], minlength=len(events))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return RaggedIds(offsets, rows.values[fits])

    def _fits(self, conjunction: int, event: Mapping[str, object]) -> bool:
        return all(
            condition.holds(read_value(event, name))
            for name, condition in self._tests.get(conjunction, ())
        )

    def match_one(self, event: Mapping[str, object]) -> NDArray[np.int32]:
        """Return the dense ids, perhaps repeated, that one event matches."""
        codes = self._codes.of_event(event)
        if not len(codes):
            return np.empty(0, np.int32)
        cells = np.array(self.space.encode_event(event), np.int32).reshape(-1, 1)
        rows = self._match(np.array([0, len(codes)]), codes, cells)
        numbers = self._checks.keep_one(event, rows.values)
        if self._tests:
            numbers = numbers[[self._fits(number, event) for number in numbers.tolist()]]
        ids: NDArray[np.int32] = self.ids[numbers]
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
        """Say under which value each conjunction of a subscription is."""
        names = self._codes.names
        key_of_conjunction = np.empty(len(self.ids), np.int64)
        sizes = np.diff(self.posting_start)
        key_of_conjunction[self.postings] = np.repeat(np.arange(len(sizes)), sizes)
        second = np.empty(len(self.ids), np.int32)
        second[self.postings] = self.second
        lines = []
        for conjunction in np.flatnonzero(self.ids == dense).tolist():
            code = int(key_of_conjunction[conjunction])
            n_others = int(np.diff(self.required_start)[conjunction])
            n_others += int(second[conjunction] != code)
            checks = f", then {n_others} more of its values" if n_others else ""
            lines.append(f"element {names[code]}: {sizes[code]} under this value{checks}")
        return lines

    def describe(self) -> list[str]:
        """Say what is indexed by the elements of each list."""
        lists: dict[str, int] = {}
        for key in self._codes.keys:
            lists[key.list] = lists.get(key.list, 0) + 1
        sizes = np.diff(self.posting_start)
        largest = int(sizes.max()) if len(sizes) else 0
        return [
            f"elements of {term_text(name)}: {n} values, at most {largest} conjunctions under one"
            for name, n in lists.items()
        ]

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


def _codes_of(keys: list[Key | None], codes: Mapping[Key, int]) -> NDArray[np.int32]:
    return np.array([-1 if key is None else codes[key] for key in keys], np.int32)


def _tests_of(
    table: ConjunctionTable, conditions: NDArray[np.int64]
) -> dict[int, list[tuple[str, Condition]]]:
    """Return conditions on computed values by conjunction."""
    tests: dict[int, list[tuple[str, Condition]]] = {}
    owners = np.searchsorted(table.condition_start, conditions, side="right") - 1
    for at, owner in zip(conditions.tolist(), owners.tolist(), strict=True):
        name = table.attributes[table.attribute[at]]
        tests.setdefault(owner, []).append((name, table.condition(at)))
    return tests


def term_text(name: str) -> str:
    """Return the text of a list."""
    from tocsin.language.printer import print_attribute

    return print_attribute(name)


class _Codes:
    """The numbers of the values that somebody asks elements for."""

    def __init__(self, codes: dict[Key, int]) -> None:
        self.keys = list(codes)
        self._by_list: dict[str, dict[tuple[Domain, object], int]] = {}
        for key, code in codes.items():
            self._by_list.setdefault(key.list, {})[key.domain, key.value] = code
        self._strings = {name: _string_set(known) for name, known in self._by_list.items()}

    @property
    def names(self) -> list[str]:
        """The values as people write them."""
        return [f"{term_text(key.list)} = {key.value!r}" for key in self.keys]

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
        return np.array(list(codes), np.int32)

    def of_batch(self, events: EventBatch) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the codes of all elements, and where those of each event begin."""
        parts = []
        for name in self._by_list:
            elements = events.computed.elements(term_of(name))
            if elements is not None:
                parts.append((elements.start, self._of_elements(name, elements)))
        if len(parts) == 1:
            return parts[0]
        return _joined(parts, len(events))

    def _of_elements(self, name: str, elements: Elements) -> NDArray[np.int32]:
        vector = elements.vector()
        if vector.kind is Kind.STRING:
            strings, codes = self._strings[name]
            places = pc.index_in(plain_strings(vector.values), value_set=strings)
            of_strings: NDArray[np.int32] = codes[
                pc.fill_null(places, -1).to_numpy(zero_copy_only=False)
            ]
            return of_strings
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


def _string_set(
    known: Mapping[tuple[Domain, object], int],
) -> tuple[pa.Array, NDArray[np.int32]]:
    """Return the strings among values and their codes; the last code is of what is not there."""
    strings = {value: code for (domain, value), code in known.items() if domain is Domain.STRING}
    codes = np.array([*strings.values(), -1], np.int32)
    return pa.array(list(strings), pa.large_string()), codes


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
