from __future__ import annotations

import json

import pytest

from tocsin.errors import ArgumentError
from tocsin.normalize.bulk import normalize_texts
from tocsin.workloads import workload
from tocsin_lab.bench import parse as bench
from tocsin_lab.bench.settings import ParseSetting

pytestmark = pytest.mark.slow

N = 100
CASES = {
    "texts": (N, "texts"),
    "unique": (N // 10, "texts"),
    "either": (N // 100, "texts"),
    "template": (N, "subscriptions"),
    "rows": (5 * N, "rows"),
    "range rows": (20 * N // 10, "rows"),
}


@pytest.fixture(scope="module")
def announced():
    return []


@pytest.fixture(scope="module")
def result(announced):
    return bench.run(
        ParseSetting(N, seed=3, repeats=1), progress=lambda *step: announced.append(step)
    )


def test_every_case_is_checked_and_timed(result):
    assert {c["name"]: (c["n"], c["unit"]) for c in result["cases"]} == CASES
    for case in result["cases"]:
        assert case["checked"] == min(case["subscriptions"], 200)
        for way in ("normalize", "subscribe"):
            assert len(case[way]["all_seconds"]) == 1
            assert case[way]["per_second"] > 0


def test_the_result_is_ready_for_json_and_says_where_it_was_measured(result):
    read = json.loads(json.dumps(result))
    assert read == result
    assert read["seed"] == 3
    assert {"cpu", "cores", "memory_gb"} <= read["machine"].keys()
    assert {"python", "numpy", "pyarrow", "numba"} <= read["versions"].keys()


def test_progress_goes_from_nothing_to_all(result, announced):
    steps = [done for _, done, _ in announced]
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert {total for *_, total in announced} == {steps[-1]}


def test_the_table_shows_every_case_with_its_rates(result):
    table = bench.render(result)
    for case in result["cases"]:
        assert case["name"] in table
        assert f"{case['normalize']['per_second']:,}" in table
        assert f"{case['subscribe']['per_second']:,}" in table


def test_a_normal_form_that_differs_is_found():
    chosen = workload("W0")
    table = chosen.subscription_texts(2)
    form = normalize_texts(table["where"], chosen.event_type)
    events = list(bench._events(chosen, 0, 0))
    right, wrong = table["where"].to_pylist()
    bench._check_form(form, 0, right, chosen.event_type, events)
    with pytest.raises(AssertionError, match="is not satisfied"):
        bench._check_form(form, 0, wrong, chosen.event_type, events)
    with pytest.raises(AssertionError, match="something else"):
        bench._check_form(form, 1, right, chosen.event_type, events)


@pytest.mark.parametrize(("subscriptions", "repeats"), [(5, 1), (1_000, 0)])
def test_too_little_to_measure_is_refused(subscriptions, repeats):
    with pytest.raises(ArgumentError):
        bench.run(ParseSetting(subscriptions, repeats=repeats))
