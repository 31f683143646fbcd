"""Line plots: what is drawn, and what can be read without seeing it."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tocsin_lab.bench.plot import Plot, Series, render, short

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*series: Series, x_log: bool = False, y_log: bool = False) -> ElementTree.Element:
    plot = Plot("Time <of> all", "subscriptions", "µs", series, x_log, y_log)
    return ElementTree.fromstring(render(plot))


def places(svg: ElementTree.Element) -> list[list[tuple[float, float]]]:
    lines = svg.iter(f"{SVG}polyline")
    pairs = [line.attrib["points"].split() for line in lines]
    return [[tuple(map(float, pair.split(","))) for pair in line] for line in pairs]  # type: ignore[misc]


def test_equal_factors_are_equally_far_apart_on_a_logarithmic_axis() -> None:
    svg = drawn(Series("a", ((1, 5), (10, 50), (100, 500))), x_log=True, y_log=True)
    ((x0, y0), (x1, y1), (x2, y2)) = places(svg)[0]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y1, "more is higher"


def test_a_linear_axis_begins_at_zero() -> None:
    svg = drawn(Series("a", ((0, 0), (10, 50), (20, 100))))
    ((x0, _y0), (x1, _y1), (x2, _y2)) = places(svg)[0]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert "0" in texts


def test_what_an_axis_cannot_show_is_left_out() -> None:
    points = ((1, 0.0), (2, float("nan")), (3, 4.0), (4, float("inf")))
    assert len(places(drawn(Series("a", points), y_log=True))[0]) == 1
    assert len(places(drawn(Series("a", points)))[0]) == 2
    assert places(drawn(Series("a", ()))) == [[]]


def test_lines_differ_by_more_than_colour_and_are_named() -> None:
    lines = [Series(f"line {i}", ((1, i + 1), (2, i + 2))) for i in range(3)]
    svg = drawn(*lines)
    dashes = [line.attrib["stroke-dasharray"] for line in svg.iter(f"{SVG}polyline")]
    assert len(set(dashes)) == 3
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert {"line 0", "line 1", "line 2", "subscriptions", "µs"} <= set(texts)


def test_the_description_says_what_is_to_be_seen() -> None:
    svg = drawn(Series("auto", ((1_000, 5), (2_000_000, 0.25))))
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-label"] == "Time <of> all"
    description = svg.find(f"{SVG}desc")
    assert description is not None
    assert description.text == ("µs against subscriptions. auto: from 5 at 1 k, 0.25 at 2 M.")


def test_numbers_are_short() -> None:
    assert [short(n) for n in (6_000_000, 250_000, 12, 0.5, 0)] == [
        "6 M",
        "250 k",
        "12",
        "0.5",
        "0",
    ]
