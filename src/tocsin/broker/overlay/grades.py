"""The interests behind a broker, summarized for one link, in one of several grades.

Enters: members (local subscriptions, and slots of other links) with their forms, as they come,
change and go. Leaves: slots for the link.

=========== ========================================================================
grade       slots
=========== ========================================================================
lub         one: the least upper bound, attribute by attribute (Beretta, section 5.6)
disjunction the conjunctions that no other covers; where there are more than `bound`,
            conjunctions of the same single values share one (its non-approximate
            variant, kept small)
exact       all conjunctions that no other covers: a poset's roots (section 2.4)
flood       one that admits everything: no filter
=========== ========================================================================

A slot keeps its number while it is changed, so that updates are small: as many removed and added
slots as possible are sent as changes of slots (section 5.6).
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tocsin.broker.overlay.forms import Slots
from tocsin.errors import ArgumentError
from tocsin.language.names import is_path
from tocsin.normalize.domains import Domain, point_value
from tocsin.normalize.layout import from_forms
from tocsin.normalize.normal import Conjunction, NormalForm
from tocsin.summary import CoverForest, LiveSummary, Summary

GRADES = ("lub", "disjunction", "exact", "flood")
Member: TypeAlias = Hashable


@dataclass(frozen=True)
class Grading:
    """How interests are summarized for a link."""

    grade: str = "lub"
    bound: int = 64
    """Slots of a disjunction."""
    max_pieces: int = 1
    """Intervals of numbers in a LUB. One, as in the paper, moves least often; more admit less."""
    max_values: int = 1024
    """Strings in a LUB."""

    def __post_init__(self) -> None:
        if self.grade not in GRADES:
            raise ArgumentError(f"a grade is {', '.join(GRADES)}, not {self.grade!r}")
        for name in ("bound", "max_pieces", "max_values"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1")


PLAIN = Grading()
"""What is used where nothing is said."""


class Aggregate(Protocol):
    """Members of one topic, seen from one link."""

    def put(self, member: Member, form: NormalForm) -> None:
        """Take a member in, or change its form."""

    def drop(self, member: Member) -> None:
        """Let go of a member."""

    def slots(self) -> Slots:
        """Return what the members want together. Not changed later."""


def new_aggregate(grading: Grading) -> Aggregate:
    """Return an empty gathering of a grade."""
    if grading.grade == "lub":
        return _Lub(grading)
    if grading.grade == "flood":
        return _Flood()
    return _Roots(grading.bound if grading.grade == "disjunction" else None, grading)


def of_attributes(form: NormalForm) -> NormalForm:
    """Return a form without conditions on computed values and on elements of lists.

    It admits more: such conditions are decided where the subscription is.
    """
    if all(is_path(name) for conjunction in form for name in conjunction):
        return form
    return NormalForm(
        tuple(
            {name: condition for name, condition in conjunction.items() if is_path(name)}
            for conjunction in form
        )
    )


class _Flood:
    def put(self, member: Member, form: NormalForm) -> None:
        """Nothing depends on members."""

    def drop(self, member: Member) -> None:
        """Nothing depends on members."""

    def slots(self) -> Slots:
        return {0: {}}


class _Lub:
    def __init__(self, grading: Grading) -> None:
        self._live = LiveSummary(max_pieces=grading.max_pieces, max_values=grading.max_values)
        self._members: dict[Member, NormalForm] = {}

    def put(self, member: Member, form: NormalForm) -> None:
        form = of_attributes(form)
        old = self._members.get(member)
        self._members[member] = form
        if old is not None:
            self._live.remove(from_forms([old]))
        self._live.insert(from_forms([form]))

    def drop(self, member: Member) -> None:
        self._live.remove(from_forms([self._members.pop(member)]))

    def slots(self) -> Slots:
        summary = self._live.summary()
        return {} if summary.is_never else {0: summary.conditions}


class _Roots:
    """A disjunction of the conjunctions that no other covers, bounded or not."""

    def __init__(self, bound: int | None, grading: Grading) -> None:
        self._bound = bound
        self._grading = grading
        self._forest = CoverForest()
        self._slots: dict[int, Conjunction] = {}
        self._slot_of: dict[int, int] = {}  # by identity: roots are the members' own objects
        self._buckets: dict[int, tuple[list[Conjunction], Conjunction]] = {}
        self._free: list[int] = []
        self._next = 0

    def put(self, member: Member, form: NormalForm) -> None:
        form = of_attributes(form)
        if member in self._forest:
            self._forest.update(member, form)  # type: ignore[arg-type]
        else:
            self._forest.insert(member, form)  # type: ignore[arg-type]

    def drop(self, member: Member) -> None:
        self._forest.remove(member)  # type: ignore[arg-type]

    def slots(self) -> Slots:
        roots = list(self._forest.roots())
        if self._bound is not None and len(roots) > self._bound:
            roots = self._bucketed(roots, self._bound)
        else:
            self._buckets.clear()
        current = {id(root): root for root in roots}
        removed = [key for key in self._slot_of if key not in current]
        new = [root for key, root in current.items() if key not in self._slot_of]
        if removed or new:
            self._slots = dict(self._slots)
            self._replace(removed, new)
        return self._slots

    def _replace(self, removed: Iterable[int], new: Sequence[Conjunction]) -> None:
        """Reuse the slots of removed roots for new ones, first for those of the same attributes."""
        freed: dict[Any, list[int]] = {}
        for key in removed:
            slot = self._slot_of.pop(key)
            freed.setdefault(frozenset(self._slots.pop(slot)), []).append(slot)
        later = []
        for root in new:
            alike = freed.get(frozenset(root))
            if alike:
                self._place(alike.pop(), root)
            else:
                later.append(root)
        self._free += [slot for slots in freed.values() for slot in slots]
        self._free.sort(reverse=True)
        for root in later:
            if self._free:
                self._place(self._free.pop(), root)
            else:
                self._place(self._next, root)
                self._next += 1

    def _place(self, slot: int, root: Conjunction) -> None:
        self._slots[slot] = root
        self._slot_of[id(root)] = slot

    def _bucketed(self, roots: Sequence[Conjunction], bound: int) -> list[Conjunction]:
        """Return at most `bound` conjunctions that cover the roots."""
        groups: dict[int, list[Conjunction]] = {}
        for root in roots:
            groups.setdefault(_bucket(root) % bound, []).append(root)
        made: dict[int, tuple[list[Conjunction], Conjunction]] = {}
        for bucket, members in groups.items():
            known = self._buckets.get(bucket)
            alike = known is not None and len(known[0]) == len(members)
            if known is not None and alike and all(map(_is, known[0], members)):
                made[bucket] = known
            else:
                made[bucket] = (members, self._bound_of(members))
        self._buckets = made
        return [covering for _, covering in made.values()]

    def _bound_of(self, members: Sequence[Conjunction]) -> Conjunction:
        if len(members) == 1:
            return members[0]
        grading = self._grading
        table = from_forms([NormalForm(tuple(members))])
        summary = Summary.of_table(
            table, max_pieces=grading.max_pieces, max_values=grading.max_values
        )
        return summary.conditions


def _is(a: object, b: object) -> bool:
    return a is b


def _bucket(conjunction: Conjunction) -> int:
    """Return a number that is the same for conjunctions that ask for the same single strings."""
    points = []
    for name, condition in sorted(conjunction.items()):
        strings = condition.intervals[Domain.STRING]
        value = point_value(strings[0]) if len(strings) == 1 else None
        points.append(f"{name}={value}")
    return zlib.crc32("\0".join(points).encode(errors="surrogatepass"))
