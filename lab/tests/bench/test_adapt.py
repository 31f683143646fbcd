"""`bench adapt`: the paper's scenarios, a curve with all phases, wrong answers noticed."""

from __future__ import annotations

import json

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.errors import TocsinError
from tocsin.matcher import Matcher
from tocsin_lab.bench import adapt
from tocsin_lab.bench.adapt import SCENARIOS
from tocsin_lab.bench.settings import AdaptSetting

pytestmark = pytest.mark.slow

SMALL = {
    "subscriptions": 101,
    "events": 20,
    "parts": 4,
    "engine": "auto",
    "seed": 3,
    "repeats": 1,
}


def small(scenario, **others):
    return AdaptSetting(scenario, **{**SMALL, **others})


@pytest.fixture(scope="module")
def announced():
    return []


@pytest.fixture(scope="module")
def result(announced):
    return adapt.run(small("skew"), progress=lambda *step: announced.append(step))


def test_the_result_is_ready_for_json_and_repeats_what_was_asked(result):
    assert json.loads(json.dumps(result)) == result
    assert {name: result[name] for name in SMALL} == SMALL
    assert result["scenario"] == "skew"


def test_the_curve_goes_through_all_phases(result):
    phases = [point["phase"] for point in result["curve"]]
    assert phases == (
        ["before"] * 3 + ["changing"] * 4 + ["after"] * 3 + ["adapted"] * 3 + ["fresh"] * 3
    )
    replaced = [point["replaced"] for point in result["curve"]]
    assert replaced == sorted(replaced)
    assert replaced[2:5] == [0, 0.2475, 0.495]
    assert set(result["events_per_s"]) == set(phases)


def test_the_lowest_rate_is_one_between_the_change_and_the_merge(result):
    rates = {
        phase: [p["events_per_s"] for p in result["curve"] if p["phase"] == phase]
        for phase in result["events_per_s"]
    }
    lowest = min(rates["changing"] + rates["after"]) / result["events_per_s"]["before"]
    assert result["lowest_over_before"] == pytest.approx(lowest, abs=1e-4)


def test_the_checks_an_event_needs_are_reported_where_the_engine_knows_them():
    checks = adapt.run(small("skew", subscriptions=30_000))["checks"]
    assert set(checks) == {"before", "adapted", "fresh"}
    assert 0 < checks["before"] < checks["adapted"] == checks["fresh"]
    assert adapt.run(small("skew", engine="oracle", subscriptions=20))["checks"]["before"] is None


def test_progress_goes_from_nothing_to_all(result, announced):
    steps = [done for _, done, _ in announced]
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert {total for *_, total in announced} == {steps[-1]}


def test_the_table_shows_every_point_and_the_ratios(result):
    table = adapt.render(result)
    for point in result["curve"]:
        assert f"{point['events_per_s']:,.0f}" in table
    assert str(result["adapted_over_fresh"]) in table


def test_interests_turn_to_the_other_half_of_the_attributes():
    before, after = SCENARIOS["interests"]
    halves = []
    for side in (before, after):
        rows = side.rows(300, 1)
        assert len(rows) == 5 * 300
        halves.append(set(rows["attribute"].to_pylist()))
    assert halves == [{f"a{i}" for i in range(16)}, {f"a{i}" for i in range(16, 32)}]
    assert before.events(50, 1).equals(after.events(50, 1))


def test_skew_leaves_two_values_of_one_attribute_and_touches_no_other():
    before, after = SCENARIOS["skew"]
    old, new = before.events(300, 1), after.events(300, 1)
    assert set(new["a0"].to_pylist()) == {1, 2}
    assert len(set(old["a0"].to_pylist())) == 35
    assert old.drop_columns("a0").equals(new.drop_columns("a0"))
    old, new = before.rows(300, 1), after.rows(300, 1)
    is_skewed = pc.equal(new["attribute"], "a0")
    assert set(new.filter(is_skewed)["value"].to_pylist()) == {1, 2}
    others = pc.invert(is_skewed)
    assert old.filter(others).equals(new.filter(others))


class Emptied(Matcher):
    """Loses everything in a rebuild."""

    def rebuild(self):
        super().rebuild()
        self.unsubscribe_many([name for name in range(100_000) if name in self])


class Unchanging(Matcher):
    """Keeps no new subscriptions in place of old ones."""

    def unsubscribe_many(self, ids):
        pass

    def subscribe_many(self, table, where=None, *, dialect="sql", on_error="raise", progress=None):
        if not len(self):
            return super().subscribe_many(table)
        return None


@pytest.mark.parametrize("broken", [Emptied, Unchanging])
def test_a_matcher_that_is_wrong_after_the_change_is_caught(broken, monkeypatch):
    monkeypatch.setattr(adapt, "Matcher", broken)
    with pytest.raises(AssertionError, match="a fresh matcher"):
        adapt.run(small("interests"))


def test_parts_may_be_more_than_subscriptions():
    assert adapt.run(small("interests", subscriptions=2, parts=3))["checked"] == 32


@pytest.mark.parametrize(
    "wrong",
    [
        {"scenario": "boredom"},
        {"subscriptions": 0},
        {"events": 0},
        {"parts": 0},
        {"repeats": 0},
        {"engine": "steam"},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(TocsinError):
        adapt.run(AdaptSetting(**{"scenario": "skew", **SMALL, **wrong}))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_index_is_right_after_the_change(scenario):
    result = adapt.run(small(scenario, subscriptions=3000, events=500))
    assert result["checked"] == 60


def test_the_command_prints_json_or_a_table():
    size = ["--subscriptions", "50", "--events", "10", "--parts", "2", "--repeats", "1"]
    printed = CliRunner().invoke(app, ["bench", "adapt", *size, "--scenario", "skew", "--json"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout)["scenario"] == "skew"
    printed = CliRunner().invoke(app, ["bench", "adapt", *size])
    assert "adapted / fresh" in printed.stdout
