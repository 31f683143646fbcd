"""The benchmark of the network: all variants deliver the same, and flooding costs what it must."""

from __future__ import annotations

import pytest

from tocsin.errors import ArgumentError
from tocsin_lab.bench.overlay import VARIANTS, Load, Trial, render, run
from tocsin_lab.bench.settings import OverlaySetting


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["trading", "highway"])
def test_every_variant_delivers_the_same_events(workload: str) -> None:
    result = run(
        OverlaySetting(workload, subscribers=60, edges=4, events=60, updates=0.2, repeats=1)
    )
    (row,) = result["results"]
    figures = row["variants"]
    assert list(figures) == list(VARIANTS)
    assert figures["flooding"]["events_on_links"] == 4 * 60
    assert figures["lub"]["events_on_links"] < 4 * 60
    assert figures["exact"]["spurious"] <= figures["lub"]["spurious"] <= 1
    assert figures["lub"]["control_messages"] <= figures["resubscribe"]["control_messages"]
    assert figures["coded"]["control_messages"] <= figures["lub"]["control_messages"]
    assert figures["coded-exact"]["control_messages"] <= figures["exact"]["control_messages"]
    assert figures["coded-exact"]["initial_bytes"] < 0.8 * figures["exact"]["initial_bytes"]
    assert "bytes: flooding / lub" in render(result)


@pytest.mark.slow
def test_summaries_send_a_tenth_of_what_flooding_sends() -> None:
    load = OverlaySetting("trading", subscribers=1_000, edges=10, events=300, updates=0.2)
    n_bytes = {name: Trial(Load(load), name).run()["bytes"] for name in ("lub", "flooding")}
    assert n_bytes["lub"] * 10 <= n_bytes["flooding"]


def test_impossible_settings_are_refused() -> None:
    for wrong in ({"workload": "x"}, {"placement": "x"}, {"edges": 0}, {"updates": -1}):
        with pytest.raises(ArgumentError):
            OverlaySetting(**wrong)
    with pytest.raises(ArgumentError, match="a variant"):
        run(OverlaySetting(variants=("best",)))
