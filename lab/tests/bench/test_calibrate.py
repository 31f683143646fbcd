"""`bench calibrate`: every constant of the planner is measured and printed with its default."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.engines.auto.plan import Costs

pytestmark = pytest.mark.slow


def test_every_cost_of_the_planner_is_measured() -> None:
    result = CliRunner().invoke(app, ["bench", "calibrate", "--repeats", "1", "--json"])
    assert result.exit_code == 0, result.output
    costs = json.loads(result.output)["nanoseconds"]
    assert {name: value["in_use"] for name, value in costs.items()} == asdict(Costs())
    assert costs["check"]["measured"] > 0


def test_the_table_shows_measured_and_used_costs() -> None:
    result = CliRunner().invoke(app, ["bench", "calibrate", "--repeats", "1"])
    assert [line.split()[0] for line in result.output.splitlines()[1:]] == [
        "probe",
        "family",
        "look",
        "check",
        "word",
        "band",
        "scan",
        "literal",
        "like",
    ]
