"""`bench update`: updates and new subscriptions are timed, and answers are held to the oracle."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.errors import ArgumentError
from tocsin_lab.bench import update
from tocsin_lab.bench.settings import UpdateSetting

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("engine", ["auto", "dynamic", "fastint", "tama"])
def test_both_ways_to_change_a_subscription_are_timed(engine: str) -> None:
    result = update.run(UpdateSetting(subscriptions=400, updates=15, engine=engine))
    assert result["engine"] == engine
    assert 0 < result["update_us"] <= result["update_delay_us"]
    assert 0 < result["resubscribe_us"] <= result["resubscribe_delay_us"]
    assert result["index_update_us"] > 0
    for name in ("parametric_us", "index_parametric_us"):
        assert (name in result) is (engine == "fastint")
    assert "fastint" not in update.render(result) or engine == "fastint"


def test_drivers_are_updated_too() -> None:
    result = update.run(UpdateSetting(400, 15, "fastint", "H"))
    assert result["workload"] == "H"


def test_the_command_prints_json() -> None:
    command = ["bench", "update", "--subscriptions", "300", "--updates", "5", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["updates"] == 5


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ArgumentError):
        update.run(UpdateSetting(subscriptions=0))
    with pytest.raises(ArgumentError, match="no parameters"):
        update.run(UpdateSetting(subscriptions=10, workload="W0"))
