"""`tocsin demo` and `tocsin bench`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app

run = CliRunner().invoke


def test_the_demo_tells_what_it_did() -> None:
    result = run(app, ["demo", "match", "--subscriptions", "2000", "--events", "500"])
    assert result.exit_code == 0
    for words in ("2,000", "500", "matched at", "Most matches", "One notification", "in words"):
        assert words in result.stdout


def test_the_demo_is_the_same_for_the_same_seed_and_any_engine() -> None:
    size = ["demo", "match", "--subscriptions", "300", "--events", "200", "--seed", "7", "--json"]
    found = [json.loads(run(app, [*size, "--engine", e]).stdout) for e in ("auto", "oracle")]
    for figures in found:
        assert (figures["subscriptions"], figures["events"]) == (300, 200)
        for key in [key for key in figures if key.startswith("seconds")]:
            del figures[key]
        figures["sample"].pop("subscription")
        figures["sample"].pop("where")
        figures["sample"].pop("in_words")
    assert found[0] == found[1]
    assert found[0]["matches"] > 0


@pytest.mark.slow
def test_bench_parse_prints_its_figures_as_json() -> None:
    result = run(app, ["bench", "parse", "--subscriptions", "200", "--repeats", "1", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["subscriptions"] == 200
