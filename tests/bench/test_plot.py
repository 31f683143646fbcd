"""Plots are SVG that a browser can read."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tocsin.bench.plot import line_plot


@pytest.mark.parametrize("is_log", [False, True])
def test_every_point_of_every_series_is_drawn_inside_the_picture(is_log: bool) -> None:
    series = {"a < b": [(1.0, 10.0), (100.0, 1e6)], "c": [(10.0, 0.5)]}
    text = line_plot("times & sizes", series, "x", "y", log_x=is_log, log_y=is_log)
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    circles = root.findall(f"{space}circle")
    assert len(circles) == 3
    assert all(0 <= float(c.get("cx", "-1")) <= 720 for c in circles)
    assert all(0 <= float(c.get("cy", "-1")) <= 420 for c in circles)
    words = {element.text for element in root.iter(f"{space}text")}
    assert {"a < b", "c", "times & sizes", "x", "y"} <= words


def test_what_a_logarithm_cannot_show_is_left_out() -> None:
    text = line_plot("t", {"a": [(0.0, 1.0), (10.0, 0.0), (10.0, 2.0)]}, "x", "y", log_x=True,
                     log_y=True)  # fmt: skip
    assert text.count("<circle") == 1
    assert "<svg" in line_plot("nothing", {}, "x", "y")
