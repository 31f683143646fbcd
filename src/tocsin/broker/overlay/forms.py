"""Interests as numbered conjunctions: differences, and their JSON.

Enters: conjunctions in *slots*: small numbers under which both ends of a link know them. Leaves:
the change from one set of slots to another, as little of it as tells it all, and its effect at the
other end. An attribute that both versions of a slot constrain alike is not mentioned; of a set of
strings the difference is sent (Jayaram et al., Beretta, algorithm 2, lines 31-51, and section 5.6).

Deviation: the paper's LUB and its disjunctions have messages of their own. Here a LUB is a
disjunction of one slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tocsin.broker.overlay.cells import PLAIN, Codes
from tocsin.broker.overlay.fields import MAX_ATTRIBUTES, MAX_SLOTS, to_attribute, to_list, to_number
from tocsin.errors import ArgumentError, ProtocolError
from tocsin.normalize.condition import Condition
from tocsin.normalize.domains import Domain, Intervals
from tocsin.normalize.normal import Conjunction, NormalForm
from tocsin.summary.plain import condition_of_plain, condition_to_plain

Slots: TypeAlias = Mapping[int, Conjunction]

ALWAYS = NormalForm(({},))
"""The interest of a peer whose interest is not known: all events."""
_LONGEST = 300
"""Characters of an error that repeats what a peer sent."""


def widened(form: NormalForm) -> NormalForm:
    """Return a form without patterns that admits all that a form admits."""
    if not any(condition.patterns for conjunction in form for condition in conjunction.values()):
        return form
    return NormalForm(tuple(_without_patterns(conjunction) for conjunction in form))


def _without_patterns(conjunction: Conjunction) -> Conjunction:
    return {
        name: Condition(condition.intervals, condition.absent, condition.other)
        if condition.patterns
        else condition
        for name, condition in conjunction.items()
    }


@dataclass(frozen=True)
class SlotChange:
    """How one conjunction becomes another."""

    free: tuple[str, ...] = ()
    """Attributes that are no longer constrained."""
    put: Mapping[str, Condition] = field(default_factory=dict)
    """Attributes with new conditions."""
    strings: Mapping[str, tuple[Intervals, Intervals]] = field(default_factory=dict)
    """Attributes whose sets of strings changed: what goes, what comes."""


@dataclass(frozen=True)
class Change:
    """How slots become others."""

    gone: tuple[int, ...] = ()
    new: Slots = field(default_factory=dict)
    changed: Mapping[int, SlotChange] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.gone or self.new or self.changed)

    def apply(self, before: Slots) -> dict[int, Conjunction]:
        """Return what slots become; what does not fit them is refused."""
        after = dict(before)
        try:
            for slot in self.gone:
                del after[slot]
            for slot, change in self.changed.items():
                after[slot] = _apply(change, after[slot])
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"a change does not fit what it changes: {error}") from None
        after.update(self.new)
        return after


def difference(before: Slots, after: Slots) -> Change:
    """Return the difference between two sets of slots."""
    return Change(
        tuple(slot for slot in before if slot not in after),
        {slot: conjunction for slot, conjunction in after.items() if slot not in before},
        {
            slot: slot_difference(before[slot], conjunction)
            for slot, conjunction in after.items()
            if slot in before and before[slot] is not conjunction and before[slot] != conjunction
        },
    )


def slot_difference(before: Conjunction, after: Conjunction) -> SlotChange:
    """Return the difference between two conjunctions."""
    put: dict[str, Condition] = {}
    strings: dict[str, tuple[Intervals, Intervals]] = {}
    for name, new in after.items():
        old = before.get(name)
        if old == new:
            continue
        moved = None if old is None else _string_difference(old, new)
        if moved is None:
            put[name] = new
        else:
            strings[name] = moved
    return SlotChange(tuple(name for name in before if name not in after), put, strings)


def _string_difference(old: Condition, new: Condition) -> tuple[Intervals, Intervals] | None:
    """Return which strings go and come; None where that is not all, or no less to say."""
    if old.absent != new.absent or old.other or new.other:
        return None
    before, after = list(old.intervals), list(new.intervals)
    had, has = before[Domain.STRING], after[Domain.STRING]
    before[Domain.STRING] = after[Domain.STRING] = ()
    if before != after or not had or not has:
        return None
    old_set, new_set = set(had), set(has)
    removed = tuple(each for each in had if each not in new_set)
    added = tuple(each for each in has if each not in old_set)
    return (removed, added) if len(removed) + len(added) < len(has) else None


def _apply(change: SlotChange, before: Conjunction) -> Conjunction:
    after = dict(before)
    for name in change.free:
        del after[name]
    after.update(change.put)
    for name, (removed, added) in change.strings.items():
        old = after[name]
        if not set(removed) <= set(old.intervals[Domain.STRING]):
            raise ValueError(f"{name} never had these strings")
        unchanged = set(old.intervals[Domain.STRING]).difference(removed)
        by_domain = list(old.intervals)
        by_domain[Domain.STRING] = tuple(sorted(unchanged.union(added)))
        after[name] = Condition(tuple(by_domain), old.absent)
    return after


# As JSON.


def conjunction_to_plain(conjunction: Conjunction, codes: Codes = PLAIN) -> dict[str, Any]:
    """Return a conjunction as what JSON can hold: objects, and texts where it is coded."""
    return {
        name: codes.write(name, condition) or condition_to_plain(condition)
        for name, condition in conjunction.items()
    }


def conjunction_of_plain(value: object, codes: Codes = PLAIN) -> Conjunction:
    """Undo `conjunction_to_plain`, or refuse what is ill-formed."""
    if not isinstance(value, dict):
        raise ProtocolError("a conjunction is an object")
    if len(value) > MAX_ATTRIBUTES:
        raise ProtocolError(f"{len(value)} attributes; at most {MAX_ATTRIBUTES} are taken")
    return {
        to_attribute(name): codes.read(name, each)
        if isinstance(each, str)
        else _condition(name, each)
        for name, each in value.items()
    }


def slots_to_plain(slots: Slots, codes: Codes = PLAIN) -> list[list[Any]]:
    """Return slots as what JSON can hold."""
    return [[slot, conjunction_to_plain(each, codes)] for slot, each in slots.items()]


def slots_of_plain(value: object, codes: Codes = PLAIN) -> dict[int, Conjunction]:
    """Undo `slots_to_plain`, or refuse what is ill-formed."""
    return {_slot(slot): conjunction_of_plain(each, codes) for slot, each in _pairs(value)}


def change_to_plain(change: Change, codes: Codes = PLAIN) -> dict[str, Any]:
    """Return a change as what JSON can hold; what is empty is left out."""
    plain: dict[str, Any] = {}
    if change.gone:
        plain["gone"] = list(change.gone)
    if change.new:
        plain["new"] = slots_to_plain(change.new, codes)
    if change.changed:
        changed = change.changed.items()
        plain["changed"] = [[slot, _slot_to_plain(each, codes)] for slot, each in changed]
    return plain


def _slot_to_plain(change: SlotChange, codes: Codes) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if change.free:
        plain["free"] = list(change.free)
    if change.put:
        plain["put"] = conjunction_to_plain(change.put, codes)
    if change.strings:
        plain["strings"] = {
            name: [_strings_to_plain(part) for part in parts]
            for name, parts in change.strings.items()
        }
    return plain


def _strings_to_plain(intervals: Intervals) -> list[Any]:
    plain: list[Any] = condition_to_plain(_of_strings(intervals)).get("strings", [])
    return plain


def _of_strings(intervals: Intervals) -> Condition:
    return Condition(((), intervals, (), ()))


def change_of_plain(value: object, codes: Codes = PLAIN) -> Change:
    """Undo `change_to_plain`, or refuse what is ill-formed."""
    if not isinstance(value, dict) or set(value) - {"gone", "new", "changed"}:
        raise ProtocolError("a change has gone, new and changed")
    gone = to_list(value.get("gone", []), MAX_SLOTS, "slots that go")
    changed = _pairs(value.get("changed", []))
    return Change(
        tuple(map(_slot, gone)),
        slots_of_plain(value.get("new", []), codes),
        {_slot(slot): _slot_of_plain(each, codes) for slot, each in changed},
    )


def _slot_of_plain(value: object, codes: Codes) -> SlotChange:
    if not isinstance(value, dict) or set(value) - {"free", "put", "strings"}:
        raise ProtocolError("the change of a slot has free, put and strings")
    strings: dict[str, tuple[Intervals, Intervals]] = {}
    parts = value.get("strings", {})
    if not isinstance(parts, dict):
        raise ProtocolError("strings is an object")
    for name, each in parts.items():
        if not isinstance(each, list) or len(each) != 2:
            raise ProtocolError("a difference of strings has two parts")
        strings[to_attribute(name)] = (
            _strings_of_plain(name, each[0]),
            _strings_of_plain(name, each[1]),
        )
    free = to_list(value.get("free", []), MAX_ATTRIBUTES, "attributes")
    put = conjunction_of_plain(value.get("put", {}), codes)
    return SlotChange(tuple(map(to_attribute, free)), put, strings)


def _strings_of_plain(name: str, value: object) -> Intervals:
    return _condition(name, {"strings": value}).intervals[Domain.STRING]


def _condition(name: object, value: object) -> Condition:
    try:
        return condition_of_plain(name, value)
    except ArgumentError as error:
        raise ProtocolError(str(error)[:_LONGEST]) from None


def _slot(value: object) -> int:
    return to_number(value, "slot")


def _pairs(value: object) -> Iterable[tuple[Any, Any]]:
    pairs: list[Any] = to_list(value, MAX_SLOTS, "slots")
    if not all(isinstance(each, list) and len(each) == 2 for each in pairs):
        raise ProtocolError("slots are an array of pairs")
    return [(first, second) for first, second in pairs]
