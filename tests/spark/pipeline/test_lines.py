"""Lines of JSON and CSV: what is an event, and that it does not depend on the lines beside it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.model import EventType
from tocsin.spark.pipeline import lines
from tocsin.spark.pipeline.lines import CODE, ORIGINAL, REASON, LineFormat, parse_batch

QUOTE = EventType("Quote", firm=str, price=float, volume=int, at=dt.datetime, hot=bool)
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)


def parse(texts: list[bytes | None], form: LineFormat) -> list[dict[str, Any]]:
    """Return the rows that lines become, without nulls."""
    batch = pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.binary())})
    rows = parse_batch(batch, form).to_pylist()
    return [{k: v for k, v in row.items() if v is not None} for row in rows]


def test_values_get_the_declared_kinds() -> None:
    text = b'{"firm": "IBM", "price": 1, "volume": 2.0, "at": "2026-07-01 12:00:00", "hot": true}'
    expected = {"firm": "IBM", "price": 1.0, "volume": 2, "at": NOON, "hot": True}
    assert parse([text], LineFormat(QUOTE)) == [expected]
    assert parse([b'{"firm": null, "more": [1]}'], LineFormat(QUOTE)) == [{}]


def test_a_dotted_attribute_leads_into_objects() -> None:
    form = LineFormat(EventType("Order", {"order.total": float, "order": str}))
    rows = parse([b'{"order": {"total": 3}}', b'{"order.total": 4}'], LineFormat(form.event_type))
    assert rows[0][CODE] == "unknown-kind"  # an object where a string is declared
    assert rows[1] == {"order.total": 4.0}


BAD = [
    (b'{"firm": "IBM"', "syntax", "not JSON"),
    (b"", "syntax", "not JSON"),
    (None, "syntax", "not JSON"),
    (b"[1]", "syntax", "not a JSON object"),
    (b"{} {}", "syntax", "more text"),
    (b'{"price": NaN}', "syntax", "not JSON"),
    (b'\xff{"price": 1}', "syntax", "not UTF-8"),
    (b'{"firm": "\\ud800"}', "syntax", "surrogate"),
    (b'{"volume": 9223372036854775808}', "syntax", "beyond 64 bits"),
    (b'{"price": 1e999}', "syntax", "64-bit floats"),
    (b'{"firm": 1}', "kind", "declared string, not integer"),
    (b'{"hot": 1}', "kind", "declared boolean, not integer"),
    (b'{"volume": 1.5}', "kind", "declared integer, not float"),
    (b'{"price": "1"}', "kind", "declared float, not string"),
    (b'{"at": "noon"}', "kind", "'noon' is not of kind timestamp"),
    (b'{"at": 1}', "kind", "declared timestamp, not integer"),
    (b'{"price": [1]}', "unknown-kind", "not an array or object"),
    (b'{"firm": {}}', "unknown-kind", "not an array or object"),
]


@pytest.mark.parametrize(("text", "code", "reason"), BAD)
def test_bad_lines_are_set_aside_with_reason_and_original(
    text: bytes | None, code: str, reason: str
) -> None:
    good = b'{"firm": "IBM", "price": 1.5}'
    rows = parse([good, text, good], LineFormat(QUOTE))
    assert rows[0] == rows[2] == {"firm": "IBM", "price": 1.5}
    assert rows[1][CODE] == code
    assert reason in rows[1][REASON]
    original = None if text is None else text.decode(errors="replace")
    assert rows[1].get(ORIGINAL) == original
    assert set(rows[1]) <= {CODE, REASON, ORIGINAL}


def test_what_is_required_must_be_there() -> None:
    rows = parse([b'{"price": 1}', b'{"firm": "IBM"}'], LineFormat(QUOTE, ("firm",)))
    assert (rows[0][CODE], rows[0][REASON]) == ("missing", "attribute 'firm' is required")
    assert rows[1] == {"firm": "IBM"}


GOOD_JSON = [
    b'{"firm": "IBM", "price": 1.5, "volume": 100, "hot": false}',
    b' {"price": 9007199254740993, "x": {"y": [1, "}"]}} ',
    b'{"volume": -9223372036854775808, "price": 1e300, "at": "2026-07-01T12:00:00.5"}',
    b'{"firm": "a\\"b\\u00e9\xc3\xa9", "firm": "last one counts"}',
    b'{"price": 0.1, "volume": 3.0}',
    b'{"at": "2026-07-01 12:00:00+02:00"}',
    b'{"firm": "\\u0000"}',
    b"{}",
]


@given(st.lists(st.sampled_from([*GOOD_JSON, *(text for text, _, _ in BAD)]), max_size=6))
def test_a_line_of_json_means_the_same_whatever_stands_beside_it(texts: list[bytes | None]) -> None:
    alone = [parse([text], LineFormat(QUOTE))[0] for text in texts]
    assert parse(texts, LineFormat(QUOTE)) == alone


def test_the_short_way_gives_what_the_long_way_gives() -> None:
    plain = [text for text in GOOD_JSON if not lines._ODD_JSON.search(text)]
    taken = 0
    for text in plain:
        array = pa.array([text, text], pa.binary())
        short = lines._parse_plain_json(array, QUOTE)
        long, bad = lines._parse_any_json(array, QUOTE)
        assert not bad
        if short is not None:
            taken += 1
            assert {k: v.to_pylist() for k, v in short.items()} == {
                k: v.to_pylist() for k, v in long.items()
            }
    assert taken >= 3


TRADE = EventType("Trade", firm=str, price=float, volume=int)
CSV = LineFormat(TRADE, (), ("firm", "volume", "extra"))
CSV_LINES = [
    (b"IBM,5,x", {"firm": "IBM", "volume": 5}),
    (b'"a, ""b""", 7 ,', {"firm": 'a, "b"', "volume": 7}),
    (b",,", {}),
    (b"IBM,five,x", "kind"),
    (b"IBM,99999999999999999999,x", "kind"),
    (b"IBM,5", "syntax"),
    (b"IBM,5,x,y", "syntax"),
    (b'"IBM,5,x', "syntax"),
    (b"\xff,5,x", "syntax"),
    (b" ", "syntax"),
]


@given(st.lists(st.sampled_from(CSV_LINES), max_size=5))
def test_a_line_of_csv_means_the_same_whatever_stands_beside_it(chosen: list[Any]) -> None:
    rows = parse([text for text, _ in chosen], CSV)
    for (text, expected), row in zip(chosen, rows, strict=True):
        if isinstance(expected, str):
            assert row[CODE] == expected
            assert row[ORIGINAL] == text.decode(errors="replace")
        else:
            assert row == expected


def test_very_long_originals_are_cut() -> None:
    row = parse([b"x" * 200_000], LineFormat(QUOTE))[0]
    assert len(row[ORIGINAL]) == lines.MAX_ORIGINAL + 1
