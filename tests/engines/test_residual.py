"""Tests on candidate pairs: terms with constants of their own, however they are indexed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tocsin import Matcher

N = 250
OPS = ["<", "<=", ">", ">=", "=", "<>"]


def draw_condition(random: Random, at: int) -> str:
    a, b = (random.choice([0, 5, -3.5, 17.25, 1e-3, random.uniform(-50, 50)]) for _ in range(2))
    size = random.choice([1, 2.5, 10, random.uniform(0, 30), -1])
    lat = random.choice([89.9, -89.99, 90, *(random.uniform(-90, 90) for _ in range(6))])
    lon = random.choice([179.9, -179.95, -180, *(random.uniform(-180, 180) for _ in range(6))])
    op, half = random.choice(OPS), random.choice([0.5, 5.0, 60.0])
    metres = random.choice([0, 1e5, 1e6, 5e6, 1.9e7, 2.1e7])
    south, north = max(-90, lat - half), min(90, lat + half)
    corners = [(-half, south), (half, south), (half, north), (-half, north), (-half, south)]
    ring = ", ".join(f"{(lon + by + 180) % 360 - 180!r} {y!r}" for by, y in corners)
    text = random.choice(
        [
            f"abs(a - {a}) < {size}",
            f"abs(a - {a}) + abs(b - {b}) {op} {random.uniform(0, 60)}",
            f"(a - {a}) * {size} {op} {random.uniform(-100, 100)}",
            f"(a + {a}) / {b} BETWEEN -2 AND 7.5",
            f"sqrt(power(a - {a}, 2) + power(b - {b}, 2)) < {size}",
            f"a * b - {a} {op} {b}",
            f"distance(lat, lon, {lat}, {lon}) {op} {metres}",
            f"distance({lat}, {lon}, lat, lon) BETWEEN 100000 AND {metres}",
            f"inside(lat, lon, 'POLYGON (({ring}))')",
            f"s || 'x{at % 50}' = '{random.choice('abc')}x{at % 50}'",
            f"a % {random.randrange(1, 40)} = {random.randrange(3)}",
        ]
    )
    if random.random() < 0.3:
        text = f"NOT ({text})"
    if random.random() < 0.3:
        text += " AND " + random.choice(["a > 3", "s = 'a'", "b IS NULL", "lat BETWEEN -9 AND 80"])
    if random.random() < 0.15:
        text = f"({text}) OR {random.choice(['a = 7', f'abs(b - {a}) < 1'])}"
    return text


def draw_event(random: Random) -> dict[str, Any]:
    event = {
        "a": random.choice([random.randrange(-60, 60), random.uniform(-60, 60), 17.25, "a", 2**40]),
        "b": random.choice([random.randrange(-20, 20), random.uniform(-60, 60)]),
        "lat": random.choice([random.uniform(-90, 90), 90, -90, 89.95, 91, random.randrange(90)]),
        "lon": random.choice([random.uniform(-180, 180), 180, -180, 179.99, 181]),
        "s": random.choice("abc"),
    }
    return {name: value for name, value in event.items() if random.random() < 0.93}


def sort_all(matches: Iterable[list[Any]]) -> list[list[Any]]:
    return [sorted(each) for each in matches]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, 1])
def test_terms_with_constants_of_their_own_answer_as_the_oracle(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    conditions = [draw_condition(random, at) for at in range(N)]
    events = [draw_event(random) for _ in range(80)]
    rows = pa.table({"id": list(range(N)), "where": conditions})
    oracle, matcher = Matcher(engine="oracle"), Matcher()
    for each in (oracle, matcher):
        each.subscribe_many(rows)
    expected = sort_all(oracle.match_batch(events))
    assert sort_all(matcher.match_batch(events)) == expected
    assert sort_all(map(matcher.match, events)) == expected

    grown = Matcher()
    for at, condition in enumerate(conditions):
        grown.subscribe(at, condition)
        if at % 50 == 49:
            grown.match_batch(events[:3])
    assert sort_all(grown.match_batch(events)) == expected
    grown.save(tmp_path / "saved")
    opened = Matcher.open(tmp_path / "saved")
    for each in (grown, opened):
        each.unsubscribe_many(list(range(0, N, 3)))
        each.subscribe(N, "abs(a - 3) < 1e3")
        left = [[id for id in own if id % 3] for own in expected]
        numbers = [isinstance(e.get("a"), int | float) and abs(e["a"]) < 1000 for e in events]
        left = [[*own, N] if fits else own for own, fits in zip(left, numbers, strict=True)]
        assert sort_all(each.match_batch(events)) == left
        each.rebuild()
        assert sort_all(each.match_batch(events)) == left
        each.index.check()


def test_circles_answer_as_duckdb() -> None:
    random = Random(5)
    places = [
        {
            "id": at,
            "lat": random.choice([random.uniform(-90, 90), 89.5, -90.0]),
            "lon": random.choice([random.uniform(-180, 180), 179.5, -180.0]),
            "radius": random.choice([1e4, 3e5, 2e6, 9e6]),
        }
        for at in range(400)
    ]
    subscriptions = pa.Table.from_pylist(places)
    events = pa.table(
        {
            "event": list(range(300)),
            "lat": [random.choice([random.uniform(-90, 90), 90.0, 89.9]) for _ in range(300)],
            "lon": [random.choice([random.uniform(-180, 180), 180.0, -179.9]) for _ in range(300)],
        }
    )
    matcher = Matcher()
    matcher.subscribe_many(subscriptions, where="distance(lat, lon, :lat, :lon) < :radius")
    pairs = [(at, id) for at, ids in enumerate(matcher.match_batch(events)) for id in ids]
    expected = duckdb.execute(
        """SELECT event, id FROM events e, subscriptions s WHERE 2 * 6371008.8 * asin(sqrt(
        pow(sin(radians(e.lat - s.lat) / 2), 2) + cos(radians(e.lat)) * cos(radians(s.lat))
        * pow(sin(radians(e.lon - s.lon) / 2), 2))) < radius"""
    ).fetchall()
    assert sorted(pairs) == sorted(expected)
    assert "tests distance(lat, lon, ?, ?): 400 conditions, checked on" in matcher.index.describe()
    assert "then tested: distance(lat, lon, " in str(matcher.explain(7))


def test_many_zones_by_template_and_those_that_are_none() -> None:
    zones = [f"POLYGON (({w} 0, {w + 1} 0, {w + 1} 1, {w} 1, {w} 0))" for w in range(40)]
    matcher = Matcher()
    table = pa.table({"id": list(range(42)), "zone": [*zones, "POLYGON ((1 2))", None]})
    report = matcher.subscribe_many(table, where="inside(lat, lon, :zone)", on_error="quarantine")
    assert [bad.row for bad in report.bad] == [40]
    events = [{"lat": 0.5, "lon": w + 0.5} for w in range(41)]
    assert list(matcher.match_batch(events)) == [*([w] for w in range(40)), []]


def test_a_term_is_a_column_where_many_share_it_and_explain_says_what_no_index_helps() -> None:
    matcher = Matcher()
    matcher.subscribe_many(
        pa.table(
            {
                "id": list(range(200)),
                "where": [f"a % 7 = {at % 7} AND b < {at}" for at in range(100)]
                + [f"a % {at} = 1" for at in range(100)],
            }
        )
    )
    assert "a % 7" in str(matcher.explain(3))
    assert "tested" not in str(matcher.explain(3)).partition("kept")[2]
    assert "checked on every event, then tested: a % 50 = 1" in str(matcher.explain(150))
    assert "checked on every event, since no index helps: " in matcher.index.describe()


def test_texts_that_differ_in_constants_within_terms_are_read_as_one_by_one() -> None:
    random = Random(7)
    texts = [
        form.format(random.randrange(9), random.choice([-7, 1e-7, -0.0, random.uniform(-9, 9)]))
        for form in (
            "distance(lat, lon, {1}, {0}) < 5{0}",
            "abs(a - {0}) <= {1} AND s IN ('a', 'b{0}')",
            "a -{0} > {1} OR a BETWEEN -{0} AND {0}",
            '"a 5" + {1} > {0}',
            "s || 'a''{0}' LIKE 'b{1}%'",
            "extract(hour FROM t) + {0} > {1}",
            "a < b + {1}",
            "in_network(ip, '10.{0}.0.0/16')",
        )
        for _ in range(20)
    ]
    matcher, single = Matcher(), Matcher()
    matcher.subscribe_many(pa.table({"id": list(range(len(texts))), "where": texts}))
    for at, text in enumerate(texts):
        single.subscribe(at, text)
    for at in range(len(texts)):
        forms = [str(each.explain(at)).partition("kept")[0] for each in (matcher, single)]
        assert forms[0] == forms[1]
