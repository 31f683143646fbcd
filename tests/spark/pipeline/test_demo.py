"""`tocsin demo`: a pipeline that shows itself."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.cli.demo_view import sparkline


@pytest.mark.usefixtures("spark")
def test_the_demonstration_adds_a_rule_while_it_runs_and_leaves_a_report(tmp_path: Path) -> None:
    options = ["--subscriptions", "5000", "--seconds", "1", "--rate", "1000", "--json"]
    result = CliRunner().invoke(app, ["demo", *options, "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    story = json.loads(result.stdout)
    assert story["rows"] == sum(batch["matches"] for batch in story["batches"]) > 0
    assert story["n_added"] > 0
    assert story["sample"]["volume"] > 10_000
    first = next(batch for batch in story["batches"] if batch["version"] >= story["added_version"])
    assert story["first_batch"] >= first["batch"]
    report = (tmp_path / "demo" / "report.html").read_text()
    assert "Try next" in report
    assert "volume &gt; 10000" in report
    ElementTree.fromstring(report[report.index("<svg") : report.index("</svg>") + len("</svg>")])


def test_a_sparkline_begins_at_zero_and_has_the_last_values() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0]) == ""
    assert sparkline([0.0, 1.0, 2.0]) == " ▄█"
    assert len(sparkline([1.0] * 100)) == 60
