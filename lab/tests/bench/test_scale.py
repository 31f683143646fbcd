"""`bench scale`: every size in a process of its own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.errors import ArgumentError, TocsinError
from tocsin_lab.bench import scale
from tocsin_lab.bench.settings import MatchSetting, ScaleSetting

pytestmark = pytest.mark.slow

SMALL = ScaleSetting("M", (40, 10, 40), events=20, engine="oracle", seed=3, repeats=1)


def test_sizes_are_measured_from_the_smallest_on():
    announced = []
    result = scale.run(SMALL, progress=lambda *step: announced.append(step))
    assert json.loads(json.dumps(result)) == result
    assert [size["subscriptions"] for size in result["sizes"]] == [10, 40]
    rates = [size["events_per_s"] for size in result["sizes"]]
    assert result["ratio"] == pytest.approx(rates[1] / rates[0], rel=0.01, abs=1e-4)
    for size in result["sizes"]:
        assert {"load_s", "build_s", "bytes_per_subscription", "peak_rss_mb"} <= size.keys()
    assert announced[0][1:] == (0, 2)
    assert announced[-1][1:] == (2, 2)
    table = scale.render(result)
    assert f"{rates[1]:,.0f}" in table
    assert str(result["ratio"]) in table


def test_what_goes_wrong_in_the_process_is_told():
    with pytest.raises(ArgumentError, match="steam"):
        scale._run_apart(MatchSetting(engine="steam"))
    with pytest.raises(AssertionError, match="TypeError"):
        scale._run_apart(MatchSetting(events="many"))  # type: ignore[arg-type]


def test_the_command_prints_json():
    options = ["--workload", "M", "--events", "10", "--engine", "oracle", "--repeats", "1"]
    sizes = ["--subscriptions", "5,20"]
    printed = CliRunner().invoke(app, ["bench", "scale", *options, *sizes, "--json"])
    assert printed.exit_code == 0
    assert len(json.loads(printed.stdout)["sizes"]) == 2


@pytest.mark.parametrize("sizes", [(), (0, 10), (-5,)])
def test_sizes_that_make_no_sense_are_refused(sizes):
    with pytest.raises(ArgumentError):
        scale.run(replace(SMALL, subscriptions=sizes))


@pytest.mark.parametrize("wrong", [{"workload": "W9"}, {"engine": "steam"}, {"repeats": 0}])
def test_a_setting_that_makes_no_sense_is_refused_before_anything_runs(wrong):
    announced = []
    with pytest.raises(TocsinError):
        scale.run(replace(SMALL, **wrong), progress=lambda *step: announced.append(step))
    assert not announced


@pytest.mark.parametrize("sizes", ["many", "10,", "1e6", ""])
def test_the_command_takes_numbers_only(sizes):
    refused = CliRunner().invoke(app, ["bench", "scale", "--subscriptions", sizes])
    assert refused.exit_code == 2
    assert "numbers with commas" in refused.stderr
