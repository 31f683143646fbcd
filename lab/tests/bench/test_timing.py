from __future__ import annotations

from tocsin_lab.bench.timing import Timing, measure, measure_in_turn


def test_every_repeat_is_kept_and_announced():
    calls, announced = [], []
    timing = measure(lambda: calls.append(1), 3, lambda: announced.append(1))
    assert len(calls) == len(announced) == len(timing.seconds) == len(timing.cpu_seconds) == 3


def test_the_rate_is_that_of_the_median_repeat():
    figures = Timing((2.0, 100.0, 1.0), (1.0, 1.0, 1.0)).to_dict(10)
    assert figures["seconds"] == 2
    assert figures["per_second"] == 5
    assert figures["all_seconds"] == [2, 100, 1]


def test_two_calls_are_timed_in_turn():
    calls, announced = [], []
    one, other = measure_in_turn(
        lambda: calls.append("one"), lambda: calls.append("other"), 3, lambda: announced.append(1)
    )
    assert calls == ["one", "other"] * 3
    assert len(one.seconds) == len(other.cpu_seconds) == len(announced) == 3
