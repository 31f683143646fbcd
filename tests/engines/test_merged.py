"""A merge of segments is what a segment built of all that is kept would be.

Merges renumber cells and know no conditions, so the lines and cuts that only other segments have
are the delicate part: each merge is tried at every bound of every condition, and beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.encode.test_cells import OF_NO_DOMAIN, literals_of, neighbours
from tests.property.strategies import MIXED, NUMERIC, STRINGY, TYPED, Seeded, World, expression

import tocsin
from tocsin.encode.cells import CellSpace
from tocsin.encode.events import to_batch
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.content import from_table, merged
from tocsin.engines.auto.segment import Segment
from tocsin.language import parse
from tocsin.language.expression import Expression, predicates
from tocsin.normalize import normalize
from tocsin.normalize.layout import from_forms

WORLDS = {"mixed": MIXED, "typed": TYPED, "numeric": NUMERIC, "stringy": STRINGY}


class Pile:
    """Conditions by id, and segments of some of them."""

    def __init__(self) -> None:
        self.conditions: list[Expression] = []

    def segment(self, conditions: Sequence[Expression]) -> Segment:
        """Build a segment; its ids go on where those of the last one ended."""
        first = len(self.conditions)
        self.conditions += conditions
        table = from_forms([normalize(condition) for condition in conditions])
        table = replace(table, subscription=table.subscription + first)
        return Segment.build(from_table(table))

    def merge(self, segments: Sequence[Segment], gone: set[int]) -> Segment:
        kept = [~np.isin(segment.ids, sorted(gone)) for segment in segments]
        segment = Segment.build(merged(segments, kept))
        segment.check()
        return segment

    def events(self, source: Seeded, n: int) -> list[dict[str, Any]]:
        """Return events at the bounds of all conditions: n mixed ones, all for one attribute."""
        values: dict[str, list[Any]] = {}
        for condition in self.conditions:
            for made in predicates(condition):
                held = values.setdefault(made.attribute, [*OF_NO_DOMAIN, 0.5, True, "b"])
                for literal in literals_of(made):
                    if literal.value is not None:
                        held += neighbours(literal.value)
        names = sorted(values)
        mixed = [
            {name: values[name][source.below(len(values[name]))] for name in names}
            for _ in range(n)
        ]
        one = names[source.below(len(names))]
        return mixed + [{one: value} for value in values[one]]

    def check(self, segment: Segment, gone: set[int], events: list[dict[str, Any]]) -> int:
        """Compare with the normal forms; return how many match."""
        forms = {id: normalize(c) for id, c in enumerate(self.conditions) if id not in gone}
        forms = {id: form for id, form in forms.items() if id in set(segment.ids.tolist())}
        found = segment.match(PreparedBatch(to_batch(events), segment.space))
        for e, event in enumerate(events):
            expected = [id for id, form in forms.items() if form.holds(event)]
            ids = segment.ids[found.values[found.offsets[e] : found.offsets[e + 1]]]
            assert np.unique(ids).tolist() == expected, event
            if e % 10 == 0:
                assert np.unique(segment.match_one(event)).tolist() == expected, event
        return len(found.values)


def cuts_of(space: CellSpace) -> dict[str, dict[Any, list[tuple[Any, int]]]]:
    """Return the cuts of each attribute and line that has some, strings as they are."""
    found: dict[str, dict[Any, list[tuple[Any, int]]]] = {}
    strings = space.vocabulary.to_pylist()
    for name, by_domain in zip(space.attributes, space.domains, strict=True):
        found[name] = {
            domain: [
                (strings[key] if domain.name == "STRING" else key, offset)
                for key, offset in zip(cells.keys.tolist(), cells.offsets.tolist(), strict=True)
            ]
            for domain, cells in by_domain.items()
            if len(cells.keys)
        }
    return found


def lives(world: World, seeds: Sequence[int], n: int, n_events: int) -> int:
    n_found = 0
    for seed in seeds:
        source, pile = Seeded(seed), Pile()
        segments = [
            pile.segment([expression(source, world, 2) for _ in range(1 + source.below(n))])
            for _ in range(2 + source.below(4))
        ]
        segments = [segment for segment in segments if len(segment.ids)]
        events = pile.events(source, n_events)
        gone: set[int] = set()
        while len(segments) > 1:
            first = source.below(len(segments) - 1)
            last = first + 2 + source.below(len(segments) - first - 1)
            if source.below(3):
                gone |= {id for id in range(len(pile.conditions)) if not source.below(4)}
            if set(np.concatenate([s.ids for s in segments[first:last]]).tolist()) <= gone:
                break
            segment = pile.merge(segments[first:last], gone)
            segments[first:last] = [segment]
            n_found += pile.check(segment, gone, events)
    return n_found


@pytest.mark.parametrize("name", WORLDS)
def test_merges_of_merges_find_what_is_kept(name: str) -> None:
    assert lives(WORLDS[name], range(3), 12, 25) > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_many_merges_of_merges_find_what_is_kept(name: str) -> None:
    assert lives(WORLDS[name], range(100, 115), 25, 60) > 4_000


@pytest.mark.parametrize(
    "texts",
    [
        ["x IS NOT NULL", "x < 3", "x = 'b'"],
        ["x < 3", "x IS NOT NULL", "x = TIMESTAMP '2026-07-01' OR x = TRUE"],
        ["x IS NULL", "y = 1", "x IS NOT NULL AND y IS NULL"],
        ["x IS NULL OR x > 2", "x IS NULL OR x = 'a'", "x <> 2"],
        ["x LIKE '%a%'", "x > 'a'", "x LIKE 'a%b' OR x = 1", "NOT x LIKE '%b'"],
        ["x = 9007199254740993", "x < 9007199254740992.0", "x > 9007199254740992"],
        ["x IN ('b', 'd')", "x NOT IN ('a', 'c') AND y = 'z'", "x BETWEEN 'aa' AND 'cc'"],
        ["TRUE", "x = 1", "TRUE"],
        ["x", "NOT x", "x = 0 OR x > 1.5"],
    ],
)
def test_domains_that_come_between_leave_conditions_what_they_are(texts: list[str]) -> None:
    pile = Pile()
    segments = [pile.segment([parse(text)]) for text in texts]
    events = pile.events(Seeded(1), 40) if texts[0] != "TRUE" else [{"x": 1}, {}]
    for order in (segments, segments[::-1], segments[1:] + segments[:1]):
        segment = pile.merge(order, set())
        found = segment.match(PreparedBatch(to_batch(events), segment.space))
        for e, event in enumerate(events):
            ids = segment.ids[found.values[found.offsets[e] : found.offsets[e + 1]]]
            expected = [i for i, text in enumerate(texts) if normalize(parse(text)).holds(event)]
            assert sorted(set(ids.tolist())) == expected, event


@pytest.mark.parametrize("name", WORLDS)
def test_a_merge_keeps_the_cuts_of_what_is_kept_and_no_others(name: str) -> None:
    source, pile = Seeded(7), Pile()
    segments = [
        pile.segment([expression(source, WORLDS[name], 2) for _ in range(12)]) for _ in range(3)
    ]
    gone = {id for id in range(36) if id % 12 == 0 or not source.below(3)}
    gone |= {int(segment.ids[0]) for segment in segments}  # of each something goes
    segment = pile.merge(segments, gone)
    kept = [normalize(c) for id, c in enumerate(pile.conditions) if id not in gone]
    anew = from_table(from_forms(kept))
    assert cuts_of(segment.space) == cuts_of(anew.space)
    assert set(segment.space.vocabulary.to_pylist()) <= set(anew.space.vocabulary.to_pylist())
    assert set(segment.patterns.patterns) == set(anew.patterns.patterns)


def test_what_comes_and_goes_leaves_no_cells_behind() -> None:
    m = tocsin.Matcher()
    m.subscribe("stays", "a = 1")
    for i in range(60):
        m.subscribe("passes", f"x = {i} AND s = 'v{i}' AND u{i} LIKE '%{i}%'")
        assert m.match({"a": 1, "x": i, "s": f"v{i}"}) == ["stays"]
        m.unsubscribe("passes")
    m.rebuild()
    (segment, _), *others = m._engine.reader().segments  # type: ignore[attr-defined]
    assert not others
    assert segment.space.attributes == ("a",)
    assert segment.space.vocabulary.to_pylist() == []
    assert segment.patterns.patterns == ()
