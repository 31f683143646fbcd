"""`tocsin demo fleet`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.cli.fleet import ZONES, Fleet

pytestmark = pytest.mark.slow


def test_the_fleet_tells_what_enters_and_leaves_and_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "fleet.svg"
    arguments = ["demo", "fleet", "--vehicles", "40", "--steps", "20", "--picture", str(picture)]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)
    assert figures["reports"] == 800
    fleet = Fleet(40, 0)
    for _ in range(20):
        fleet.move()
    for name, left, top, right, bottom in ZONES:
        inside = sum(
            left <= x <= right and top <= y <= bottom for x, y in zip(fleet.x, fleet.y, strict=True)
        )
        assert figures["inside"][name] == inside
    assert figures["enters"] - figures["leaves"] == sum(figures["inside"].values())
    ElementTree.fromstring(picture.read_text())


def test_the_fleet_can_be_read_on_a_terminal() -> None:
    result = CliRunner().invoke(app, ["demo", "fleet", "--vehicles", "30", "--steps", "10"])
    assert result.exit_code == 0, result.output
    assert "transitions" in result.output
    assert "into" in result.output
