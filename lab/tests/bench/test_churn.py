"""`bench churn`: what it reports and changes, and that it notices wrong answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.engines.ragged import RaggedIds
from tocsin.errors import TocsinError, UnknownSubscriptionError
from tocsin.matcher import Matcher
from tocsin.matches import Matches
from tocsin.workloads import workload
from tocsin_lab.bench import churn, load
from tocsin_lab.bench.settings import ChurnSetting
from tocsin_lab.bench.writer import Writer

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "subscriptions": 60,
    "rate": 200,
    "seconds": 0.3,
    "batch": 10,
    "engine": "auto",
    "seed": 3,
}


def small(name="W0", **others):
    return ChurnSetting(name, **{**SMALL, **others})


@pytest.fixture(scope="module")
def announced():
    return []


@pytest.fixture(scope="module")
def result(announced):
    return churn.run(small(), progress=lambda *step: announced.append(step))


def test_the_result_is_ready_for_json_and_repeats_what_was_asked(result):
    assert json.loads(json.dumps(result)) == result
    assert {name: result[name] for name in SMALL} == SMALL
    assert result["chunk"] == 1
    assert result["calls"] == ["subscribe", "unsubscribe"]


def test_half_of_the_changes_subscribe_and_half_unsubscribe(result):
    assert result["changes"] == result["subscribed"] + result["unsubscribed"] > 0
    assert result["subscribed"] - result["unsubscribed"] in (0, 1)
    assert result["survivors"] == 60 + result["subscribed"] - result["unsubscribed"]
    assert result["changes"] <= SMALL["rate"] * SMALL["seconds"]


def test_pauses_are_in_order_and_the_longest_are_named(result):
    busy = result["changing"]
    for phase in (result["unchanged"], busy):
        assert phase["batches"] >= 1
        assert 0 < phase["match_ms"]["p50"] <= phase["match_ms"]["p99"] <= phase["match_ms"]["max"]
    assert result["longest_match_ms"] == busy["match_ms"]["max"]
    assert result["longest_change_ms"] == max(
        busy["subscribe_ms"]["max"], busy["unsubscribe_ms"]["max"]
    )


def test_memory_is_reported_before_and_after(result):
    assert set(result["memory"]) == {"before", "after"}
    for memory in result["memory"].values():
        assert memory["rss_mb"] > 10


def test_progress_goes_from_nothing_to_all(result, announced):
    steps = [done for _, done, _ in announced]
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert {total for *_, total in announced} == {steps[-1]}


def test_the_table_shows_the_rates_and_the_ratio(result):
    table = churn.render(result)
    assert f"{result['changes_per_s']:,}" in table
    assert f"{result['changing']['events_per_s']:,.0f}" in table
    assert f"{result['ratio']}" in table


def test_a_writer_that_cannot_keep_up_says_so():
    result = churn.run(small(rate=1_000_000, seconds=0.1))
    assert not result["kept_up"]
    assert result["changes_per_s"] < 1_000_000
    assert "did not keep up" in churn.render(result)


def test_changes_can_be_made_in_chunks():
    result = churn.run(small("M", chunk=5))
    assert result["calls"] == ["subscribe_many", "unsubscribe_many"]
    assert result["changes"] % 5 == 0
    assert result["changes"] > 0


@pytest.mark.parametrize("chunk", [1, 7])
def test_the_writer_knows_which_subscriptions_are_there(chunk):
    chosen = workload("W1")
    matcher = Matcher(chosen.event_type, engine="oracle")
    matcher.subscribe_many(chosen.subscription_rows(50))
    texts = chosen.subscription_texts(200, first=50)
    kept = {3, 4}
    writer = Writer(matcher, texts, np.array([i for i in range(50) if i not in kept]), chunk, 1)
    for _ in range(41):
        writer.change()
    there = {id for id in range(250) if id in matcher}
    assert there == {*writer.live.tolist(), *kept}
    assert writer.n_subscribed == 21 * chunk
    assert len(set(writer.removed)) == 20 * chunk
    assert not there & set(writer.removed)


class Deaf(Matcher):
    """Takes new subscriptions for others that nothing satisfies."""

    def subscribe(self, id, where, params=None, *, valid_until=None, dialect="sql"):
        super().subscribe(id, "a0 = -1")


class Undying(Matcher):
    """Forgets to remove."""

    def unsubscribe(self, id):
        self.get(id)  # raises where there is no such subscription


class Haunted(Matcher):
    """Still matches removed subscriptions, under other ids."""

    n_ghosts = 0

    def unsubscribe(self, id):
        ghost = self.get(id)
        super().unsubscribe(id)
        super().subscribe(f"ghost of {id}", ghost.where, ghost.params)
        self.n_ghosts += 1

    def __len__(self):
        return super().__len__() - self.n_ghosts


class Lossy(Matcher):
    """Finds nothing any more once something has changed."""

    has_changed = False

    def unsubscribe(self, id):
        super().unsubscribe(id)
        self.has_changed = True

    def match_batch(self, events):
        answers = super().match_batch(events)
        if not self.has_changed:
            return answers
        return Matches(RaggedIds(np.zeros(len(answers) + 1, np.int64), np.empty(0, np.int32)), [])


class Failing(Matcher):
    def unsubscribe(self, id):
        super().unsubscribe("stranger")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        pytest.param(Deaf, "a fresh matcher", marks=pytest.mark.slow),
        pytest.param(Undying, "are left instead of", marks=pytest.mark.slow),
        (Haunted, "a fresh matcher"),
        pytest.param(Lossy, "by an event made for it|a fresh matcher", marks=pytest.mark.slow),
    ],
)
def test_a_matcher_that_is_wrong_about_changes_is_caught(broken, message, monkeypatch):
    monkeypatch.setattr(load, "Matcher", broken)
    with pytest.raises(AssertionError, match=message):
        churn.run(small())


def test_an_error_of_the_writer_is_not_lost(monkeypatch):
    monkeypatch.setattr(load, "Matcher", Failing)
    with pytest.raises(UnknownSubscriptionError, match="stranger"):
        churn.run(small())


@pytest.mark.parametrize(
    "wrong",
    [
        {"subscriptions": 0},
        {"rate": 0},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"batch": 0},
        {"chunk": 0},
        {"engine": "steam"},
        {"workload": "W9"},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(TocsinError):
        churn.run(ChurnSetting(**{**SMALL, **wrong}))


@pytest.mark.parametrize(("name", "chunk"), [("W0", 1), ("M", 20), ("G", 1)])
def test_answers_are_right_after_many_changes(name, chunk):
    result = churn.run(
        small(name, subscriptions=1000, rate=2000, seconds=0.5, chunk=chunk, batch=50)
    )
    assert result["checked"] >= 200


def test_the_command_prints_json_or_a_table():
    size = ["--subscriptions", "100", "--seconds", "0.2", "--batch", "20"]
    printed = CliRunner().invoke(app, ["bench", "churn", *size, "--chunk", "3", "--json"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout)["chunk"] == 3
    printed = CliRunner().invoke(app, ["bench", "churn", *size])
    assert "changes/s" in printed.stdout


def test_a_wrong_answer_is_no_success_of_the_command(monkeypatch):
    monkeypatch.setattr(load, "Matcher", Undying)
    size = ["--subscriptions", "50", "--seconds", "0.1", "--batch", "20"]
    printed = CliRunner().invoke(app, ["bench", "churn", *size])
    assert printed.exit_code != 0
    assert isinstance(printed.exception, AssertionError)
