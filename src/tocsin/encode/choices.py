"""Choices: an event with lists → one row for each way to choose an element of every list.

Enters: events, and the names `EACH(path)` and `HAS(path)` that conditions mention together. Leaves:
rows, in which each path has one value; an event satisfies a condition if one of its rows does. An
event without lists on the way to these paths is its own row, so that it costs nothing more.

An element of a list is chosen where it holds others (an object or a list); of the plain values in a
list, each is chosen for its own path, whatever is chosen elsewhere. Fields of one object of a list
stay together so: `EACH(items.sku) = 'a' AND EACH(items.n) > 3` asks for one item that has both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.encode.lists import Elements, is_list
from tocsin.errors import EventError
from tocsin.language.computed import choices_of
from tocsin.language.names import HAS, each_name, path_of, paths_of
from tocsin.model import FIRST_MOMENT, to_plain
from tocsin.normalize.table import ConjunctionTable

if TYPE_CHECKING:
    from tocsin.encode.events import EventBatch

MAX_CHOICES = 1 << 16
"""An event with more choices is refused."""
_MOST_AT_ONCE = 64
"""Events of a table with more choices are taken one by one, which makes no more than needed."""
_MOST_NEEDS = 1024
"""How many sets of names with several values are remembered."""
_MOST_COMPARED = 256
"""Up to this number, a set of names that is part of another one is left out."""
_PLAIN = frozenset((str, int, float, bool))
Event: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[Any, ...]


class Leaf(NamedTuple):
    """A value at a path, and which elements of lists it is within: (place of a list, number)."""

    value: object
    within: frozenset[tuple[Place, int]]


_Row: TypeAlias = dict[str, Leaf]


def read_each(event: Event, name: str) -> object:
    """Return the value of `EACH(path)` or `HAS(path)` in an event that is one choice.

    Where the event has several choices it is a list.
    """
    if name in event:
        return event[name]
    path, is_has = path_of(name), name.startswith(HAS)
    value: Any = event.get(path)
    if value is None and "." in path:
        value = event
        for step in path.split("."):
            if value.__class__ is not dict:
                value = None
                break
            value = value.get(step)
    if value.__class__ in _PLAIN:
        if is_has:
            return value == value
        return None if value != value else value
    if is_has:
        return next(leaves(event, path), None) is not None
    listed = list(leaves(event, path))
    if not listed:
        return None
    if len(listed) == 1 and not listed[0].within:
        return listed[0].value
    return [leaf.value for leaf in listed]


def leaves(value: object, path: str) -> Iterator[Leaf]:
    """Yield the values at a path within a value."""
    yield from _leaves(value, path, frozenset(), ())


def _leaves(value: Any, path: str, within: frozenset[Any], place: Place) -> Iterator[Leaf]:
    if isinstance(value, Mapping):
        for name, rest in _steps(value, path):
            yield from _leaves(value[name], rest, within, (*place, name))
    elif isinstance(value, list | tuple | np.ndarray):
        several = sum(1 for each in value if _holds_others(each)) > 1
        for at, each in enumerate(value):
            is_chosen = several and _holds_others(each)
            yield from _leaves(
                each, path, within | {(place, at)} if is_chosen else within, (*place, at)
            )
    elif not path:
        plain = _plain(value)
        if plain is not None:
            yield Leaf(plain, within)


def _plain(value: object) -> object:
    """Return a value as a plain one, a null as the first moment; None for all others."""
    if value is None:
        return FIRST_MOMENT
    value = to_plain(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def _holds_others(value: object) -> bool:
    return isinstance(value, Mapping | list | tuple | np.ndarray)


def _steps(value: Event, path: str) -> Iterator[tuple[str, str]]:
    """Yield the names that a path may begin with, and the rest of it."""
    if not path:
        return
    if path in value:
        yield path, ""
    end = path.rfind(".")
    while end > 0:
        if path[:end] in value:
            yield path[:end], path[end + 1 :]
        end = path.rfind(".", 0, end)


def _rows(value: Any, paths: Mapping[str, str], within: frozenset[Any], place: Place) -> list[_Row]:
    """Return the choices within a value; `paths` are the rests of paths, by whole path."""
    if isinstance(value, Mapping):
        inner: dict[str, dict[str, str]] = {}
        for whole, rest in paths.items():
            for name, more in _steps(value, rest):
                inner.setdefault(name, {})[whole] = more
        parts = [_rows(value[n], rests, within, (*place, n)) for n, rests in inner.items()]
        parts = [part for part in parts if part]
        if math.prod(map(len, parts)) > MAX_CHOICES:
            raise EventError(f"lists in which more than {MAX_CHOICES:,} choices can be made")
        return [_joined(row) for row in product(*parts)] if len(parts) != 1 else parts[0]
    if isinstance(value, list | tuple | np.ndarray):
        return _rows_of_list(list(value), paths, within, place)
    plain = _plain(value)
    if plain is None:
        return [{}]
    return [{whole: Leaf(plain, within) for whole, rest in paths.items() if not rest}]


def _rows_of_list(
    values: list[Any], paths: Mapping[str, str], within: frozenset[Any], place: Place
) -> list[_Row]:
    ended = [whole for whole, rest in paths.items() if not rest]
    plain = [_plain(each) for each in values if not _holds_others(each)]
    own = [{w: Leaf(each, within) for w in ended} for each in plain if each is not None]
    others = [(at, each) for at, each in enumerate(values) if _holds_others(each)]
    several = len(others) > 1
    chosen: list[_Row] = []
    for at, each in others:
        inside = within | {(place, at)} if several else within
        chosen += _rows(each, paths, inside, (*place, at))
        if len(chosen) > MAX_CHOICES:
            raise EventError(f"lists in which more than {MAX_CHOICES:,} choices can be made")
    if not ended:
        return chosen or [{}]
    if not others:
        return own or [{}]
    mixed = [{**row, **values_of} for row in chosen for values_of in own]
    return [*(row for row in chosen if not own or row.keys() & set(ended)), *mixed] or [{}]


def _joined(parts: Sequence[_Row]) -> _Row:
    """Put parts together; two ways to one path are alternatives, of which the last one counts."""
    return {path: leaf for part in parts for path, leaf in part.items()}


class Group(Protocol):
    """Conditions of an opened index."""

    @property
    def space(self) -> Any:
        """What the conditions are ranges of, with their attributes."""

    def read(self) -> Any:
        """Return the starts and the attributes of conditions, and more."""


class Choices:
    """The names that conditions mention together, and the rows of events for them.

    Changed under the matcher's lock, and read without it: it only grows.
    """

    def __init__(self) -> None:
        self._sets: dict[frozenset[str], None] = {}
        self._needs: dict[frozenset[str], list[frozenset[str]]] = {}
        self._unread: list[Group] = []
        self.names: tuple[str, ...] = ()

    def add_sets(self, sets: Iterable[frozenset[str]]) -> None:
        """Take note of names that conditions mention together."""
        new = [names for names in sets if names and names not in self._sets]
        if new:
            self._sets.update(dict.fromkeys(new))
            self._needs = {}
            self.names = tuple(dict.fromkeys([*self.names, *(n for s in new for n in sorted(s))]))

    def add_table(self, table: ConjunctionTable) -> None:
        """Take note of the conditions of a table."""
        self.add_conditions(table.attributes, table.condition_start, table.attribute)

    def add_conditions(
        self, attributes: Sequence[str], start: NDArray[Any], attribute: NDArray[Any]
    ) -> None:
        """Take note of conditions: those of each conjunction, by the attributes they are about."""
        of = [choices_of(name) for name in attributes]
        is_choice = np.array([bool(names) for names in of], np.bool_)
        if not is_choice.any():
            return
        # Conjunctions about the same attributes have the same sum of random numbers.
        weights = np.random.default_rng().integers(1, 1 << 62, len(of)).astype(np.uint64)
        sums = np.zeros(len(attribute) + 1, np.uint64)
        np.cumsum(np.where(is_choice, weights, np.uint64(0))[attribute], out=sums[1:])
        first = np.unique(sums[start[1:]] - sums[start[:-1]], return_index=True)[1]
        self.add_sets(
            frozenset(name for a in attribute[start[at] : start[at + 1]].tolist() for name in of[a])
            for at in first.tolist()
        )

    def add_group(self, group: Group) -> None:
        """Take note of the conditions of an opened index, which are read when an event needs it."""
        if any(map(choices_of, group.space.attributes)):
            names = frozenset(each for n in group.space.attributes for each in choices_of(n))
            self.names = tuple(dict.fromkeys([*self.names, *sorted(names)]))
            self._unread.append(group)
            self._needs = {}

    def _needed(self, several: frozenset[str]) -> list[frozenset[str]]:
        """Return the names whose values are to be chosen together, where some have several."""
        unread, self._unread = self._unread, []
        for group in unread:
            start, attribute = group.read()[:2]
            self.add_conditions(group.space.attributes, start, attribute)
        needs = self._needs
        known = needs.get(several)
        if known is None:
            together = {
                frozenset(names & several) | {n for n in names if "\0" in n[len(HAS) :]}
                for names in list(self._sets)
                if names & several
            }
            known = sorted(together, key=len, reverse=True)
            if len(known) <= _MOST_COMPARED:
                known = [one for one in known if not any(one < other for other in known)]
            if len(needs) >= _MOST_NEEDS:
                needs.clear()
            needs[several] = known
        return known

    def rows(self, event: Event) -> list[Event] | None:
        """Return the rows of an event, None where it is its own."""
        values = {n: read_each(event, n) for n in self.names if not n.startswith(HAS)}
        several = frozenset(name for name, value in values.items() if value.__class__ is list)
        if not several:
            return None
        plain = {name: value for name, value in values.items() if name not in several}
        rows: dict[tuple[Any, ...], Event] = {}
        for needed in self._needed(several):
            paths = {path_of(name): path_of(name) for name in needed & several}
            for choice in _rows(event, paths, frozenset(), ()):
                row: dict[str, object] = {name: [] for name in several}
                row.update({each_name(path): None for path in paths})
                row.update({each_name(path): leaf.value for path, leaf in choice.items()})
                row.update(
                    {name: _has(event, name, choice) for name in needed if name.startswith(HAS)}
                )
                rows.setdefault(tuple((n, v.__class__, str(v)) for n, v in row.items()), row)
            if len(rows) > MAX_CHOICES:
                raise EventError(f"lists in which more than {MAX_CHOICES:,} choices can be made")
        return [{**event, **plain, **row} for row in rows.values()]

    def expand(self, batch: EventBatch) -> tuple[EventBatch, NDArray[np.int64]] | None:
        """Return the rows of a batch and the event of each, None where all are their own."""
        if not self.names:
            return None
        names = [name for name in self.names if not name.startswith(HAS)]
        if batch.schema is not None:
            names = [n for n in names if is_list(batch.type_of(path_of(n)) or pa.null())]
            if not names:
                return None
            rows = self._rows_of_columns(batch, names)
            if rows is not None:
                return rows
        has_choices = np.zeros(len(batch), np.bool_)
        for name in names:
            other = batch.column(name).other
            if other is not None:
                has_choices |= other
        if batch.schema is None and not has_choices.any():
            return None
        events: list[Event] = []
        owners: list[int] = []
        for row, event in enumerate(batch.events()):
            try:
                chosen = self.rows(event) if has_choices[row] else None
            except EventError as error:
                raise EventError(error.message, row=row) from None
            events += [event] if chosen is None else chosen
            owners += [row] * (1 if chosen is None else len(chosen))
        return batch.with_events(events), np.array(owners, np.int64)

    def _rows_of_columns(
        self, batch: EventBatch, names: list[str]
    ) -> tuple[EventBatch, NDArray[np.int64]] | None:
        """Return the rows of a table with lists of plain values; None for others, or too many."""
        lists: list[tuple[str, Elements]] = []
        n_rows = np.ones(len(batch), np.int64)
        for name in names:
            elements = batch.list(path_of(name))
            kind = None if elements is None else getattr(elements.source, "type", None)
            if elements is None or kind is None or is_list(kind) or pa.types.is_struct(kind):
                return None
            if batch.is_within_list(path_of(name)):
                return None
            lists.append((name, elements))
            n_rows *= np.maximum(np.diff(elements.start), 1)
        if n_rows.max(initial=1) > _MOST_AT_ONCE:
            return None
        owner = np.repeat(np.arange(len(batch)), n_rows)
        start = np.zeros(len(batch) + 1, np.int64)
        np.cumsum(n_rows, out=start[1:])
        at = np.arange(len(owner)) - start[owner]
        columns: dict[str, pa.Array] = {}
        for name, elements in lists:
            counts = np.diff(elements.start)[owner]
            place = elements.start[owner] + at % np.maximum(counts, 1)
            columns[name] = elements.source.take(pa.array(place, mask=counts == 0))
            at //= np.maximum(counts, 1)
        return batch.with_columns(owner, columns), owner


def _has(event: Event, name: str, choice: _Row) -> bool:
    """Whether an event has a value at a path that goes together with those chosen at others."""
    path, *others = paths_of(name)
    chosen = dict(item for at in others if at in choice for item in choice[at].within)
    return any(
        all(chosen.get(place, at) == at for place, at in leaf.within)
        for leaf in leaves(event, path)
    )
