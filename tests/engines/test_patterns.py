"""LIKE patterns of many subscriptions: each is tried once on each text."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tocsin.encode.events import to_batch
from tocsin.engines.patterns import PatternChecks
from tocsin.engines.ragged import RaggedIds
from tocsin.language import parse
from tocsin.language.functions import like
from tocsin.normalize import normalize
from tocsin.normalize.layout import from_forms
from tocsin.normalize.patterns import Pattern


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Count the patterns that are tried, by pattern and text."""
    counts: Counter[tuple[str, str]] = Counter()
    matches = Pattern.matches

    def counted(pattern: Pattern, text: str) -> bool:
        counts[pattern.text, text] += 1
        return matches(pattern, text)

    monkeypatch.setattr(Pattern, "matches", counted)
    return counts


def checks_of(conditions: list[str]) -> PatternChecks:
    """Return the patterns of some conditions; the numbers are their places."""
    table = from_forms([normalize(parse(text)) for text in conditions])
    checks = PatternChecks()
    checks.add(table, np.arange(len(conditions)))
    return checks


CONDITIONS = [f"t {'NOT ' * (i % 2)}LIKE '%{'xyz'[i % 3]}_%'" for i in range(60)]


def test_each_pattern_is_tried_once_on_each_text_of_a_batch(
    tried: Counter[tuple[str, str]],
) -> None:
    events = to_batch([{"t": "axb" * (i % 2 + 1)} for i in range(10)])
    every = RaggedIds(np.arange(11) * 60, np.tile(np.arange(60), 10))
    kept = checks_of(CONDITIONS).keep(events, every)
    assert kept.of(3).tolist() == [i for i in range(60) if (i % 3 == 0) == (i % 2 == 0)]
    assert len(tried) == 6
    assert set(tried.values()) == {1}


def test_each_pattern_is_tried_once_on_an_event(tried: Counter[tuple[str, str]]) -> None:
    kept = checks_of(CONDITIONS).keep_one({"t": "axb"}, np.arange(60))
    assert kept.tolist() == [i for i in range(60) if (i % 3 == 0) == (i % 2 == 0)]
    assert len(tried) == 3
    assert set(tried.values()) == {1}


@pytest.mark.parametrize("pattern", ["%a" * 200 + "%b", "%a_" * 100 + "b", "%" * 1_000 + "b_"])
def test_the_evaluator_takes_no_exponential_time(pattern: str) -> None:
    assert like("a" * 5_000, pattern, None) is False
