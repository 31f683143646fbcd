"""`bench match` and `bench latency`: what they report, and that they notice wrong answers."""

from __future__ import annotations

import json
from itertools import chain

import numpy as np
import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.engines.ragged import RaggedIds
from tocsin.errors import ArgumentError, TocsinError
from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.model import EventType
from tocsin.workloads import names, workload
from tocsin_lab.bench import baselines, joins, latency, load, match
from tocsin_lab.bench.checking import Predicates, check
from tocsin_lab.bench.settings import LatencySetting, MatchSetting

pytestmark = pytest.mark.slow

SMALL = {"subscriptions": 500, "events": 50, "seed": 3, "repeats": 1}
KEYS = (
    "workload engine subscriptions events matches matches_per_event load_s build_s match_s "
    "events_per_s bytes_per_subscription peak_rss_mb baseline ratio baseline_keyed ratio_keyed "
    "machine versions seed threads repeats timings"
).split()


def small(name="W0", **others):
    return MatchSetting(name, **{**SMALL, **others})


class Broken(Matcher):
    """A matcher whose batches lose or gain a match of the last event that has one."""

    gained = 0

    def match_batch(self, events):
        answers = super().match_batch(events)
        ids = [[int(i) for i in event] for event in answers]
        for event in reversed(ids):
            if event:
                event.pop()
                event += [i for i in range(len(self)) if i not in event][: self.gained]
                break
        offsets = np.cumsum([0, *map(len, ids)])
        return Matches(RaggedIds(offsets, np.array([*chain(*ids)])), range(len(self)))


class Forgetful(Matcher):
    def match_batch(self, events):
        none = np.zeros(len(super().match_batch(events)) + 1, np.int64)
        return Matches(RaggedIds(none, np.empty(0, np.int64)), [])

    def match(self, event):
        return super().match(event)[1:]


@pytest.fixture(scope="module")
def announced():
    return []


@pytest.fixture(scope="module")
def result(announced):
    return match.run(small(), progress=lambda *step: announced.append(step))


def test_the_result_has_the_promised_keys_and_is_ready_for_json(result):
    assert json.loads(json.dumps(result)) == result
    assert sorted(result) == sorted(KEYS)
    for name in ("baseline", "baseline_keyed"):
        assert set(result[name]) == {"name", "events_per_s", "events", "join"}
    assert result["baseline"]["join"].startswith("plain: on a0 and a1")
    assert result["baseline_keyed"]["join"].startswith("keyed")
    assert {name: result[name] for name in SMALL} == SMALL
    assert result["versions"]["duckdb"]


def test_progress_goes_from_nothing_to_all(result, announced):
    steps = [done for _, done, _ in announced]
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert {total for *_, total in announced} == {steps[-1]}


def test_the_table_shows_the_rates_and_the_ratios(result):
    table = match.render(result)
    assert f"{result['events_per_s']:,.0f}" in table
    for name, ratio in (("baseline", "ratio"), ("baseline_keyed", "ratio_keyed")):
        assert f"{result[name]['events_per_s']:,}" in table
        assert f"{result[ratio]:,}" in table


@pytest.mark.parametrize("name", names())
def test_every_workload_matches_as_duckdb_counts(name):
    result = match.run(small(name))
    ways = joins.formulations(workload(name), SMALL["subscriptions"])
    for kind, timing in (("plain", "baseline"), ("keyed", "baseline_keyed")):
        assert result[timing]["events"] == 50
        assert set(result["timings"][timing]["tried"]) == {w.name for w in ways if w.kind == kind}


@pytest.mark.parametrize("name", ["W0", "T"])
def test_every_formulation_finds_a_subscription_by_an_event_made_for_it(name):
    chosen = workload(name)
    events = chosen.events(50, 3)
    matcher = Matcher(chosen.event_type, engine="oracle")
    matcher.subscribe_many(chosen.subscription_rows(500, 3))
    samples, counts = check(matcher.match_batch, chosen, 500, 3, events)
    assert len(samples) == 20
    assert np.all(counts[10:] >= 1)
    database = baselines.DuckDB(chosen, 500, 3)
    baselines.check_counts(database, samples, counts)
    counts[-1] -= 1
    with pytest.raises(AssertionError, match="DuckDB"):
        baselines.check_counts(database, samples, counts)


def test_texts_can_be_loaded_instead_of_rows_and_the_baseline_left_out():
    result = match.run(small("M", load="texts", baseline="none"))
    assert result["timings"]["load"] == "texts"
    nothing = {"name": "none", "events_per_s": None, "events": 0, "join": None}
    assert result["baseline"] == nothing
    assert result["baseline_keyed"] is result["ratio"] is result["ratio_keyed"] is None
    assert "ratio" not in match.render(result)


def test_several_threads_find_what_one_finds(result):
    several = match.run(small("TW", threads=3, baseline="none"))
    one = match.run(small("TW", baseline="none"))
    assert several["matches"] == one["matches"] > 0
    assert several["threads"] == 3
    assert several["speed_up"] > 0
    assert "speed_up" not in one
    assert "times one thread" in match.render(several)


@pytest.mark.parametrize("name", ["W0", "T", "M"])
def test_an_engine_that_loses_a_match_is_caught(name, monkeypatch):
    monkeypatch.setattr(load, "Matcher", Broken)
    with pytest.raises(AssertionError, match="matches instead of"):
        match.run(small(name, baseline="none"))


@pytest.mark.parametrize("name", ["W0", "TW"])
def test_an_engine_that_mistakes_a_subscription_for_another_is_caught(name, monkeypatch):
    monkeypatch.setattr(Broken, "gained", 1)
    monkeypatch.setattr(load, "Matcher", Broken)
    with pytest.raises(AssertionError, match="wrong about"):
        match.run(small(name, baseline="none"))


def test_an_engine_that_finds_nothing_is_caught_where_hardly_anything_matches(monkeypatch):
    monkeypatch.setattr(load, "Matcher", Forgetful)
    with pytest.raises(AssertionError, match="0 matches instead of"):
        match.run(small("T", baseline="none"))
    with pytest.raises(AssertionError, match="matches instead of"):
        latency.run(LatencySetting("W0", 500, 50))


@pytest.mark.parametrize("name", names())
def test_every_workload_has_a_plain_join_at_any_size(name):
    chosen = workload(name)
    assert {way.kind for way in joins.formulations(chosen, 1000)} == {"plain", "keyed"}
    assert {way.kind for way in joins.formulations(chosen, 10**9)} == {"plain"}


def test_where_no_keyed_join_fits_in_memory_there_is_no_ratio_to_one(monkeypatch):
    monkeypatch.setattr(joins, "_MOST_ROWS", 499)
    announced = []
    result = match.run(small("M"), progress=lambda *step: announced.append(step))
    assert result["baseline"]["events_per_s"] > 0
    assert result["baseline_keyed"] is result["ratio_keyed"] is None
    assert announced[-1][1] == announced[-1][2]


def test_a_slow_join_is_timed_once_and_on_a_single_event(monkeypatch):
    monkeypatch.setattr(baselines, "_ENOUGH_SECONDS", 0.0)
    monkeypatch.setattr(baselines, "_MOST_SECONDS", 0.0)
    result = match.run(small("M", repeats=3))
    for name in ("baseline", "baseline_keyed"):
        assert result[name]["events"] == 1
        assert len(result["timings"][name]["all_seconds"]) == 1


def test_a_baseline_that_counts_otherwise_is_an_error(monkeypatch):
    count = baselines.DuckDB.count
    monkeypatch.setattr(
        baselines.DuckDB, "count", lambda self, way, events: count(self, way, events) + 1
    )
    with pytest.raises(AssertionError, match="DuckDB"):
        match.run(small("G"))


def test_numpy_evaluates_numbers_texts_and_absence():
    rows = workload("M").subscription_rows(100, 3)
    predicates = Predicates.of(rows)
    quote = EventType("Quote", firm=str, price=float, volume=int)
    matcher = Matcher(quote, engine="oracle")
    matcher.subscribe_many(rows)
    for event in workload("M").events(30, 3).to_pylist():
        for absent in ("nothing", "volume", "price", "firm"):
            some = {name: value for name, value in event.items() if name != absent}
            assert predicates.matches(some) == sorted(matcher.match(some))


def test_latency_reports_percentiles_in_microseconds():
    announced = []
    result = latency.run(
        LatencySetting("W1", 500, 50), progress=lambda *step: announced.append(step)
    )
    assert json.loads(json.dumps(result)) == result
    assert 0 < result["p50_us"] <= result["p99_us"] <= result["max_us"]
    assert result["together_us"] > 0
    assert "µs" in latency.render(result)
    assert announced[-1][1] == announced[-1][2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"subscriptions": 0},
        {"threads": 0},
        {"repeats": 0},
        {"baseline": "abacus"},
        {"load": "punched cards"},
        {"engine": "steam"},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(TocsinError):
        match.run(small(**wrong))


def test_no_events_is_not_a_latency():
    with pytest.raises(ArgumentError):
        latency.run(LatencySetting("W0", 500, 0))


@pytest.mark.parametrize("name", names())
def test_every_workload_matches_as_duckdb_counts_with_many_subscriptions(name):
    result = match.run(small(name, subscriptions=20_000, events=500))
    assert result["events"] == 500


def test_the_commands_print_json_or_a_table():
    options = ["--workload", "TW", "--subscriptions", "50", "--events", "20"]
    once = [*options, "--repeats", "1", "--baseline", "none"]
    printed = CliRunner().invoke(app, ["bench", "match", *once, "--json"])
    assert json.loads(printed.stdout)["events"] == 20
    printed = CliRunner().invoke(app, ["bench", "match", *once])
    assert "events/s" in printed.stdout
    printed = CliRunner().invoke(app, ["bench", "latency", *options, "--json"])
    assert json.loads(printed.stdout)["p50_us"] > 0


def test_an_unknown_workload_is_bad_input():
    refused = CliRunner().invoke(app, ["bench", "match", "--workload", "W9"])
    assert refused.exit_code == 2
    assert "W9" in refused.stderr
