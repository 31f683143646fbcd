"""`tocsin bench subjects` on few publications and subscriptions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tocsin.errors import ArgumentError
from tocsin_lab.bench import subjects
from tocsin_lab.bench.settings import SubjectsSetting

pytestmark = pytest.mark.slow


def test_the_figures_have_a_row_for_every_pair_and_a_plot_each(tmp_path: Path) -> None:
    setting = SubjectsSetting((10, 50), (10, 400), (500,), plots=str(tmp_path))
    result = subjects.run(setting)
    assert json.loads(json.dumps(result)) == result
    for figure in ("insert", "update"):
        rows = [row for row in result["grid"] if row["figure"] == figure]
        pairs = {(row["publications"], row["subscriptions"]) for row in rows}
        assert pairs == {(10, 10), (10, 400), (50, 10), (50, 400)}
    text = subjects.render(result)
    assert all(f"Figure {number}" in text for number in (11, 12, 13))
    assert len(list(tmp_path.glob("*.svg"))) == 5


def test_a_benchmark_of_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError):
        subjects.run(SubjectsSetting((), (10,)))
