"""Any term on any values: all engines match by every road what the oracle does.

DuckDB refuses most of these conditions, since kinds mix. `python -m tests.property.terms` tries as
many as are wanted.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.property.wild import Wild, differences_from_oracle, draw_event

from tocsin import Matcher, covers
from tocsin.errors import TocsinError
from tocsin.language import parse
from tocsin.normalize import NormalForm, normalize
from tocsin.normalize.layout import from_forms
from tocsin.summary import CoverForest, Summary

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_roads_agree_with_the_oracle(seed: int) -> None:
    assert differences_from_oracle(seed, 20, 12) == []


def test_covers_and_summaries_are_sound() -> None:
    random = Random(7)
    wild = Wild(random)
    events = [draw_event(random) for _ in range(40)]
    forms: list[NormalForm] = []
    matcher = Matcher(engine="oracle")
    while len(forms) < 60:
        text = wild.condition(random.choice([0, 0, 1, 2]))
        try:
            matcher.subscribe(len(forms), text)
            forms.append(normalize(parse(text)))
        except TocsinError:
            continue
    matches = [set(matcher.match(event)) for event in events]
    for a, form in enumerate(forms):
        covered = {b for b, other in enumerate(forms) if covers(form, other)}
        assert a in covered
        assert all(a in found for found in matches if covered & found)
    for start in range(0, len(forms), 2):
        members = forms[start : start + 2]
        summary, forest = Summary.of_table(from_forms(members)), CoverForest()
        for id, form in enumerate(members):
            forest.insert(id, form)
        for event, found in zip(events, matches, strict=True):
            is_matched = bool(found & {start, start + 1})
            assert summary.admits_one(event) >= is_matched
            assert forest.admits_one(event) == is_matched
