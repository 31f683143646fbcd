"""What events are asked for, and whether they have it: checked once, not at every match.

Enters: the conditions of a matcher as they are added, and some of its events. Leaves: the
attributes whose ISO 8601 texts count as timestamps (`Moments`), because conditions compare them
with timestamps; and attributes that no event has, or has with values of another kind only.

A table's schema is checked when it is a new one, or when conditions ask for something new. Mappings
have no schema: an attribute is *pending* from the first condition that mentions it until an event
has it. A kind that differs, or an attribute that hardly differs from the name of one that no
condition mentions, is reported at the first event; otherwise there must be more events to say so.
Every attribute is reported once. When nothing is pending, events are not looked at.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arrow import kind_of_type
from tocsin.drift import Seen
from tocsin.encode.choices import Choices
from tocsin.encode.events import EventBatch, Reading, lookup
from tocsin.engines.conditions import IndexedConditions
from tocsin.engines.protocol import Reader
from tocsin.engines.ragged import RaggedIds
from tocsin.language.computed import choices_of, moments_of
from tocsin.language.names import each_name, is_computed, is_path, spelling
from tocsin.language.timestamps import parse_timestamp
from tocsin.model import EventType, Kind, kind_of, similar_name, to_plain
from tocsin.normalize import table as conjunction_table
from tocsin.normalize.condition import Condition
from tocsin.normalize.demands import (
    ABSENT,
    ALL,
    ANY,
    LIST,
    MOMENT,
    TEXT,
    compared_pair,
    demands_of,
    list_of,
    shown_name,
)
from tocsin.normalize.domains import DOMAIN_OF_KIND, Domain
from tocsin.normalize.normal import NormalForm

_SURE = 1_000
"""After this number of events without it, an attribute is one that events do not have."""
_LIKELY = 20
"""The same where an attribute of the events has nearly this name, or the kind is another."""
_MOST_CHECKS = 2_000_000
"""Attributes of mappings that are looked up between two conditions that ask for a new one."""
_MAX_MIXED = 4
"""Attributes of one event that are read both ways; others that could be are timestamps."""
_MAX_SHOWN = 40
_MAX_HINTS = 20
_MAX_SEARCHED = 200
"""Computed values that are searched for the one in which a name is missing."""


class Moments(NamedTuple):
    """Attributes whose ISO 8601 texts count as timestamps; `mixed` are compared with texts too."""

    names: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()


class _Pending:
    """What conditions ask of an attribute that no event has shown yet."""

    __slots__ = ("mask", "n_events", "other")

    def __init__(self, mask: int) -> None:
        self.mask = mask
        self.n_events = 0
        self.other: object = None
        """A value of a kind that was not asked for."""


class SchemaWatch:
    """Compares what conditions ask for with what events have. Changed under the matcher's lock."""

    def __init__(self, event_type: EventType | None) -> None:
        self._event_type = event_type
        self._used: dict[str, int] = {}
        self._alike: dict[str, str] = {}
        """One name of all that differ in literals only; it stands for them."""
        self._pending: dict[str, _Pending] = {}
        self._reported: set[str] = set()
        self._schema: pa.Schema | None = None
        self._n_checks = 0
        self.moments = Moments()
        self.choices = Choices()
        self.is_open = False
        """Whether something is pending, so that mappings are to be looked at."""
        self.reads_moments = True
        self.is_muted = False

    # Conditions.

    def add_form(self, form: NormalForm) -> None:
        """Take note of what a condition asks for."""
        used = self._used
        self.choices.add_sets(
            frozenset(each for name in conjunction for each in choices_of(name))
            for conjunction in form
        )
        for conjunction in form:
            for name, condition in conjunction.items():
                mask = mask_of(condition)
                if name not in used or mask & ~used[name]:
                    self._add(name, mask)

    def add_table(self, table: conjunction_table.ConjunctionTable) -> None:
        """Take note of what conditions ask for."""
        n = table.n_conditions
        if not n:
            return
        self.choices.add_table(table)
        masks = np.zeros(n, np.int64)
        has_pieces = np.diff(table.piece_start) > 0
        if has_pieces.any():
            bits = np.left_shift(1, table.domain.astype(np.int64))
            masks[has_pieces] = np.bitwise_or.reduceat(bits, table.piece_start[:-1][has_pieces])
        presence = table.flags & (conjunction_table.PRESENT | conjunction_table.ABSENT)
        masks[presence == conjunction_table.PRESENT] |= ANY
        masks[presence == conjunction_table.ABSENT] |= ABSENT
        both = table.attribute.astype(np.int64) * ALL + masks
        distinct = np.unique(both) if n < 1_000 else np.flatnonzero(np.bincount(both))
        for one in distinct.tolist():
            name, mask = table.attributes[one // ALL], one % ALL
            if name not in self._used or mask & ~self._used[name]:
                self._add(name, mask)

    def add_groups(self, groups: Iterable[IndexedConditions]) -> None:
        """Take note of what the conditions of an opened index ask for."""
        for group in groups:
            self.choices.add_group(group)
            for name, domains in zip(group.space.attributes, group.space.domains, strict=True):
                self._add(name, sum(1 << domain for domain in domains))

    def _add(self, name: str, mask: int) -> None:
        if is_computed(name):
            name = self._alike.setdefault(spelling(name), name)
        is_known, before = name in self._used, self._used.get(name, 0)
        self._used[name] = before | mask
        if not is_path(name):
            if is_known and not mask & ~before:
                return
            for attribute in moments_of(name):
                self._add(attribute, MOMENT)
            for attribute, need in demands_of(name, mask):
                if attribute != name:
                    self._add(attribute, need)
            if compared_pair(name) is None and list_of(name) is None:
                return
        new = mask & ~before & ~ABSENT
        self._schema = None
        if new and shown_name(name) not in self._reported:
            waiting = self._pending.get(name)
            self._pending[name] = _Pending(new | (waiting.mask if waiting else 0))
            self._n_checks = 0
            self.is_open = not self.is_muted
        if (
            new & (TEXT | MOMENT)
            and (before | mask) & MOMENT
            and self.reads_moments
            and is_path(name)
        ):
            self._find_moments()

    def _find_moments(self) -> None:
        declared = self._event_type.attributes if self._event_type else {}
        used = self._used
        names = tuple(
            name
            for name, mask in used.items()
            if mask & MOMENT and name not in declared and is_path(name)
        )
        self.moments = Moments(names, tuple(name for name in names if used[name] & TEXT))

    def configure(self, *, warns: bool, reads_moments: bool) -> None:
        """Say whether issues are found, and whether texts count as timestamps."""
        self.is_muted, self.reads_moments = not warns, reads_moments
        self.is_open = self.is_open and warns
        if not reads_moments:
            self.moments = Moments()

    # Matching with texts that are timestamps.

    def match_one(self, reader: Reader, event: Mapping[str, object]) -> list[int]:
        """Match an event, some of whose texts count as timestamps, or that has choices."""
        rows = self.choices.rows(event) if self.choices.names else None
        if rows is None:
            return self._match_read(reader, event)
        return list(dict.fromkeys(i for row in rows for i in self._match_read(reader, row)))

    @property
    def reads_events(self) -> bool:
        """Whether events are not matched just as they are."""
        return bool(self.moments.names or self.choices.names)

    def _match_read(self, reader: Reader, event: Mapping[str, object]) -> list[int]:
        moments = self.moments
        values: dict[str, object] = {}
        for name in moments.names:
            value = lookup(event, name)
            if isinstance(value, str) and (moment := parse_timestamp(value)) is not None:
                values[name] = moment
        if not values:
            return reader.match_one(event)
        chosen = [
            (each_name(name), name) for name in values if each_name(name) in self.choices.names
        ]
        if chosen:  # these stay texts
            event = {each: lookup(event, name) for each, name in chosen} | dict(event)
        known = frozenset(moments.names)
        mixed = [name for name in values if name in moments.mixed][:_MAX_MIXED]
        matches: dict[int, None] = {}
        for texts in _subsets(mixed):
            read = [name for name in values if name not in texts]
            matches.update(dict.fromkeys(reader.match_one(Reading(event, read, known))))
        return list(matches)

    def match_batch(self, reader: Reader, batch: EventBatch) -> RaggedIds:
        """Match a batch: each of the choices that its events have."""
        expanded = self.choices.expand(batch)
        if expanded is None:
            return self._match_batch(reader, batch)
        rows, owner = expanded
        return _united(self._match_batch(reader, rows), owner, len(batch))

    def _match_batch(self, reader: Reader, batch: EventBatch) -> RaggedIds:
        """Match a batch; where attributes are compared with both, it is read both ways."""
        moments, rows = self.moments, reader.match_batch(batch)
        mixed = [name for name in moments.mixed if _has_moments(batch, name)][:_MAX_MIXED]
        for texts in itertools.islice(_subsets(mixed), 1, None):
            names = frozenset(moments.names).difference(texts)
            rows = _union(rows, reader.match_batch(batch.reading(names)), len(batch))
        return rows

    # Events.

    def look_at(self, batch: EventBatch) -> dict[str, Seen]:
        """Return what is known of attributes that are suspect, given a batch; each once."""
        schema = batch.schema
        if self.is_muted:
            return {}
        if schema is None:
            return self.look_at_mappings(batch.mappings) if self.is_open else {}
        if not len(batch) or (self._schema is not None and schema.equals(self._schema)):
            return {}
        self._schema = schema
        suspects: dict[str, Seen] = {}
        for name, mask in list(self._used.items()):
            if shown_name(name) not in self._reported:
                seen = self._seen_in(batch, name, len(suspects) < _MAX_HINTS)
                if seen is not None and mask & ~_mask_seen(seen):
                    suspects[name] = seen
        return suspects

    def _seen_in(self, batch: EventBatch, name: str, has_hint: bool) -> Seen | None:
        """Return what the column of an attribute says of its values."""
        if not is_path(name):
            return self._seen_within(batch, name)
        kind = batch.type_of(name)
        if kind is None:
            assert batch.schema is not None
            hint = self._hint(name, batch.schema.names)[0] if has_hint else ""
            return Seen("there is no such column" + hint, is_missing=True)
        if pa.types.is_null(kind):
            return None
        values = kind_of_type(kind)
        reason = f"the column has type {kind}"
        if values is None:
            is_list = _is_list(kind)
            hint = f"; ANY({name}) stands for its elements" if is_list else ""
            return Seen(reason + hint, is_present=True, is_list=is_list)
        domains = {DOMAIN_OF_KIND[values]}
        if values is Kind.STRING and self._used[name] & MOMENT:
            parts = batch.column(name).parts
            domains |= {part.domain for part in parts}
            reason += "" if Domain.TIMESTAMP in domains else ", and no text in it is a timestamp"
        return Seen(reason, frozenset(domains), is_present=True)

    def _seen_within(self, batch: EventBatch, name: str) -> Seen | None:
        """Return what columns say of the elements of a list, or of two that are compared."""
        pair, of = compared_pair(name), list_of(name)
        if pair is not None:
            left, right = (self._seen_in(batch, each, False) for each in pair)
            if left is None or right is None or not (left.domains and right.domains):
                return None
            if left.domains & right.domains:
                return None
            types = [f"{each} has type {batch.type_of(each)}" for each in pair]
            return Seen(" and ".join(types))
        kind = None if of is None else batch.type_of(of)
        if kind is None or not _is_list(kind):
            return None
        elements = kind_of_type(kind.value_type)
        if elements is None:
            return None
        domains = {DOMAIN_OF_KIND[elements]}
        if elements is Kind.STRING:
            domains.add(Domain.TIMESTAMP)
        return Seen(
            f"its elements have type {kind.value_type}", frozenset(domains), is_present=True
        )

    def _hint(self, name: str, names: Iterable[str]) -> tuple[str, bool]:
        """Return which name was probably meant, and whether nothing else can be meant."""
        names = list(names)
        near = similar_name(name, names)
        if near:
            return f"; did you mean {near!r}?", near not in self._used
        for computed in self._using(name):
            text = shown_name(computed)
            odd = next((each for each in names if each == text.replace(" ", "")), None)
            if odd is not None:
                return f'; did you mean "{odd}"? It needs double quotes', True
            if compared_pair(computed) and any(op in text for op in (" = ", " <> ")):
                return f"; write '{name}' for a text", False
        return "", False

    def _using(self, name: str) -> Iterator[str]:
        """Yield some of the computed values that ask for an attribute."""
        computed = (each for each in list(self._used) if not is_path(each))
        for each in itertools.islice(computed, _MAX_SEARCHED):
            if any(name == demand.attribute for demand in demands_of(each, self._used[each])):
                yield each

    def look_at_mappings(self, events: Sequence[Mapping[str, object]]) -> dict[str, Seen]:
        """Return what is known of attributes that are suspect, given some events; each once."""
        suspects: dict[str, Seen] = {}
        for event in events[:_SURE]:
            waiting = list(self._pending.items())
            self._n_checks += len(waiting)
            if not waiting or self._n_checks > _MOST_CHECKS:
                break
            for name, pending in waiting:
                seen = self._look_up(name, pending, event)
                if seen is not None:
                    suspects[name] = seen
                    self._pending.pop(name, None)
                elif not pending.mask:
                    self._pending.pop(name, None)
        if not self._pending or self._n_checks > _MOST_CHECKS:
            self.is_open = False
        return suspects

    def _look_up(self, name: str, pending: _Pending, event: Mapping[str, object]) -> Seen | None:
        """Return what is to be reported of an attribute after another event, if anything."""
        if not is_path(name):
            return self._look_within(name, pending, event)
        value = present_value(event, name)
        pending.n_events += 1
        n = pending.n_events
        if value is not None:
            mask = mask_of_value(value)
            pending.mask &= ~(mask | ANY)
            if not pending.mask:
                return None
            pending.other = value
            is_clear = n >= _LIKELY or not mask & self._used[name]
            return _seen_value(name, value) if is_clear else None
        if n not in (1, _LIKELY) and n < _SURE:
            return None
        if pending.other is not None:
            return _seen_value(name, pending.other) if n >= _LIKELY else None
        hint, is_clear = self._hint(name, paths_of(event))
        if n >= _SURE or is_clear or (hint and n >= _LIKELY):
            return Seen("no event has it" + hint)
        return None

    def _look_within(
        self, name: str, pending: _Pending, event: Mapping[str, object]
    ) -> Seen | None:
        """Look at the elements of a list, or at two attributes that are compared."""
        pair, of = compared_pair(name), list_of(name)
        if pair is not None:
            values = [present_value(event, each) for each in pair]
            left, right = map(domains_of, values)
            if left and right:
                if left & right:
                    pending.mask = 0
                else:
                    texts = [f"{n} is {shown(v)}" for n, v in zip(pair, values, strict=True)]
                    return Seen(f"kinds do not compare, such as where {' and '.join(texts)}")
            return None
        value = present_value(event, of or "")
        if is_sequence(value):
            for element in value:
                mask = mask_of_value(to_plain(element))
                pending.mask &= ~(mask | ANY)
                pending.n_events += 1
                if not pending.mask:
                    return None
                if mask and (pending.n_events >= _LIKELY or not mask & self._used[name]):
                    reason = _clash(element, "its elements are")
                    return Seen(reason, domains_of(element), is_present=True)
        return None

    def set_reported(self, names: Iterable[str]) -> None:
        """Do not report some attributes again."""
        self._reported.update(names)
        for name in [each for each in self._pending if shown_name(each) in self._reported]:
            self._pending.pop(name)


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a value is a list."""
    return isinstance(value, list | tuple | np.ndarray)


def present_value(event: Mapping[str, object], name: str) -> object:
    """Return the value of an attribute; None for a list in which nothing is there."""
    value = to_plain(lookup(event, name))
    if is_sequence(value) and len(value) and all(each is None for each in value):
        return None
    return value


def mask_of(condition: Condition) -> int:
    """Return the domains that a condition compares values in, as a mask."""
    if condition.other:
        return 0 if condition.absent else ANY
    numbers, strings, booleans, timestamps = condition.intervals
    asks_for = bool(numbers) | bool(strings) << 1 | bool(booleans) << 2 | bool(timestamps) << 3
    return asks_for | ABSENT if condition.absent else asks_for


def _mask_seen(seen: Seen) -> int:
    here = ANY | ABSENT if seen.is_present else 0
    return sum(1 << domain for domain in seen.domains) | here | LIST * seen.is_list


def _subsets(names: Sequence[str]) -> Iterator[frozenset[str]]:
    """Yield all subsets of some names, first the empty one."""
    for n in range(len(names) + 1):
        yield from map(frozenset, itertools.combinations(names, n))


def _has_moments(batch: EventBatch, name: str) -> bool:
    """Whether texts of an attribute count as timestamps in a batch."""
    if batch.schema is not None:
        kind = batch.type_of(name)
        if kind is None or kind_of_type(kind) is not Kind.STRING:
            return False
    return any(part.domain is Domain.TIMESTAMP for part in batch.column(name).parts)


def _union(one: RaggedIds, other: RaggedIds, n_events: int) -> RaggedIds:
    """Return what either of two results has, each match once."""
    rows = np.concatenate([one.rows(), other.rows()])
    return _distinct(rows, np.concatenate([one.values, other.values]), n_events)


def _united(matches: RaggedIds, owner: NDArray[np.int64], n_events: int) -> RaggedIds:
    """Return what any of the rows of each event has, each match once."""
    if len(owner) == n_events:
        return matches
    return _distinct(owner[matches.rows()], matches.values, n_events)


def _distinct(rows: NDArray[Any], values: NDArray[Any], n_events: int) -> RaggedIds:
    pairs = np.unique(rows.astype(np.int64) << 32 | values.astype(np.int64))
    offsets = np.zeros(n_events + 1, np.int64)
    np.cumsum(np.bincount(pairs >> 32, minlength=n_events), out=offsets[1:])
    return RaggedIds(offsets, (pairs & 0xFFFFFFFF).astype(values.dtype))


def domains_of(value: object) -> frozenset[Domain]:
    """Return the domains that a value can be compared in; a text may be a timestamp too."""
    kind = kind_of(value)
    if kind is None or (isinstance(value, float) and math.isnan(value)):
        return frozenset()
    if isinstance(value, str) and parse_timestamp(value) is not None:
        return frozenset({Domain.STRING, Domain.TIMESTAMP})
    return frozenset({DOMAIN_OF_KIND[kind]})


def mask_of_value(value: object) -> int:
    """Return the domains that a value can be compared in, as a mask."""
    return LIST if is_sequence(value) else sum(1 << domain for domain in domains_of(value))


def demanded_by(form: NormalForm) -> dict[str, int]:
    """Return what a condition asks of the attributes of events, and of the elements of lists."""
    masks: dict[str, int] = {}
    for conjunction in form:
        for name, condition in conjunction.items():
            for attribute, mask in demands_of(name, mask_of(condition)):
                masks[attribute] = masks.get(attribute, 0) | mask
    return masks


NAMES_OF_DOMAINS = {
    Domain.NUMBER: "numbers",
    Domain.STRING: "strings",
    Domain.BOOLEAN: "booleans",
    Domain.TIMESTAMP: "timestamps",
}


def _seen_value(name: str, value: object) -> Seen:
    """Return what a value of a kind that was not asked for says."""
    is_list = is_sequence(value)
    hint = f"; ANY({name}) stands for their elements" if is_list else ""
    return Seen(_clash(value) + hint, domains_of(value), is_present=True, is_list=is_list)


def _clash(value: object, are: str = "its values are") -> str:
    kinds = [NAMES_OF_DOMAINS[domain] for domain in sorted(domains_of(value))]
    what = kinds[0] if kinds else "lists" if is_sequence(value) else "of no kind that compares"
    return f"{are} {what}, such as {shown(value)}"


def shown(value: object) -> str:
    """Return a value as it is shown in a warning."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def paths_of(event: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the attributes of an event, also those within objects and lists, as paths."""
    for name, value in event.items():
        if isinstance(value, Mapping):
            yield from paths_of(value, f"{prefix}{name}.")
            continue
        yield f"{prefix}{name}"
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from paths_of(value[0], f"{prefix}{name}.")
