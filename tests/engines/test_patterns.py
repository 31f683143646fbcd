"""LIKE patterns of many subscriptions: each is tried once on each text."""

from __future__ import annotations

from collections import Counter

import pytest

import tocsin
from tocsin.language.evaluate import like
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


def subscribed() -> tocsin.Matcher:
    """Return a matcher in which many subscriptions share few patterns."""
    matcher = tocsin.Matcher()
    texts = [f"t LIKE '%{'xyz'[i % 3]}_%' AND n < {i}" for i in range(60)]
    matcher.subscribe_many({"id": list(range(60)), "where": texts})
    for i in range(60, 90):
        matcher.subscribe(i, f"t NOT LIKE '%{'xyz'[i % 3]}_%'")
    return matcher


def test_each_pattern_is_tried_once_on_each_text_of_a_batch(
    tried: Counter[tuple[str, str]],
) -> None:
    matcher = subscribed()
    matcher.match_batch([{"t": "axb" * (i % 2 + 1), "n": 1} for i in range(10)])
    assert len(tried) == 6
    # Two segments of the index at most: one for the load, one for what came after it.
    assert max(tried.values()) <= 2


def test_each_pattern_is_tried_once_on_an_event(tried: Counter[tuple[str, str]]) -> None:
    matcher = subscribed()
    matcher.match({"t": "axb", "n": 1})
    assert len(tried) == 3
    assert max(tried.values()) <= 2


@pytest.mark.parametrize("pattern", ["%a" * 200 + "%b", "%a_" * 100 + "b", "%" * 1_000 + "b_"])
def test_the_evaluator_takes_no_exponential_time(pattern: str) -> None:
    assert like("a" * 5_000, pattern, None) is False
