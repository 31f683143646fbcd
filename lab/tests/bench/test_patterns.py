"""Event patterns against the same rules in SQL, and Event Ruler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.errors import UnavailableError
from tocsin_lab.bench import patterns
from tocsin_lab.bench.settings import PatternsSetting


def test_patterns_match_as_the_same_rules_in_sql_do() -> None:
    result = patterns.run(PatternsSetting(200, 300, repeats=1))
    assert result["same"]
    assert "200 rules" in patterns.render(result)


def test_event_ruler_finds_the_same_matches_where_it_is_installed() -> None:
    try:
        result = patterns.run(PatternsSetting(100, 50, 50, "event-ruler", repeats=1))
    except UnavailableError:
        pytest.skip("Event Ruler is not installed")
    assert result["same"]
    assert "times event-ruler" in patterns.render(result)


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EVENT_RULER_PATH", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with pytest.raises(UnavailableError, match="EVENT_RULER_PATH"):
        patterns.run(PatternsSetting(10, 10, 10, "event-ruler", repeats=1))
