"""STOMP frames: whole, byte by byte, with trailing data; and what is no frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.broker.protocol.stomp import (
    V10,
    V11,
    V12,
    Dialect,
    Frame,
    Parser,
    choose,
    encode,
    heart_beats,
)
from tocsin.errors import LimitError, ProtocolError

FRAMES = [
    (b"CONNECT\nhost:a\\b\n\n\0", Frame("CONNECT", {"host": "a\\b"})),
    (b"SEND\ndestination:/events\n\nhello\0", Frame("SEND", {"destination": "/events"}, b"hello")),
    (b"SEND\r\na:/events\r\n\r\nhello\0", Frame("SEND", {"a": "/events"}, b"hello")),
    (b"SEND\ncontent-length:3\n\na\0b\0", Frame("SEND", {"content-length": "3"}, b"a\0b")),
    (b"SEND\na:1\na:2\n\n\0", Frame("SEND", {"a": "1"})),
    (b"SEND\nk\\c\\n\\r\\\\:v\\cw\n\n\0", Frame("SEND", {"k:\n\r\\": "v:w"})),
    (b"SEND\na:\n\n\0", Frame("SEND", {"a": ""})),
    (b"SEND\na: b:c \n\n\0", Frame("SEND", {"a": " b:c "})),
    ("SEND\nä:ö\n\n€\0".encode(), Frame("SEND", {"ä": "ö"}, "€".encode())),
    (b"\n\r\n\nACK\nid:1\n\n\0", Frame("ACK", {"id": "1"})),
    (b"BEGIN\ntransaction:t\n\n\0", Frame("BEGIN", {"transaction": "t"})),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "frame"), FRAMES)
def test_a_frame_is_read_whole(raw: bytes, frame: Frame) -> None:
    parser = Parser()
    assert parser.feed(raw) == [frame]
    assert parser.error is None
    assert parser.waiting == 0


@pytest.mark.parametrize(("raw", "frame"), FRAMES)
def test_a_frame_is_read_byte_by_byte(raw: bytes, frame: Frame) -> None:
    parser = Parser()
    found = [each for at in range(len(raw)) for each in parser.feed(raw[at : at + 1])]
    assert found == [frame]
    assert parser.error is None


@pytest.mark.parametrize(("raw", "frame"), FRAMES)
def test_what_follows_a_frame_is_read_too(raw: bytes, frame: Frame) -> None:
    parser = Parser()
    assert parser.feed(raw + b"\n" + raw + b"\r\nSEND\nx:") == [frame, frame]
    assert parser.error is None
    assert parser.waiting == len(b"SEND\nx:")


BAD = [
    b"\0",
    b"send\n\n\0",
    b"SEND SEND\n\n\0",
    b"SEND\nno header\n\n\0",
    b"SEND\n:no name\n\n\0",
    b"SEND\na:\\t\n\n\0",
    b"SEND\na:\\\n\n\0",
    b"SEND\ncontent-length:x\n\n\0",
    b"SEND\ncontent-length:-1\n\n\0",
    b"SEND\ncontent-length:2\n\nabc\0",
    b"SEND\n\xff:1\n\n\0",
    b"SEND\na:1\0\n\n\0",
    b"ACK\nid:1\n\nbody\0",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.mark.parametrize("raw", BAD)
@pytest.mark.parametrize("step", [1, 1000])
def test_what_is_no_frame_is_an_error_and_the_frames_before_it_count(raw: bytes, step: int) -> None:
    good = b"SEND\na:1\n\nx\0"
    parser = Parser()
    stream = good + raw
    found = [f for at in range(0, len(stream), step) for f in parser.feed(stream[at : at + step])]
    assert found == [Frame("SEND", {"a": "1"}, b"x")]
    assert isinstance(parser.error, ProtocolError)
    assert parser.feed(good) == []
    assert parser.waiting == 0


@pytest.mark.parametrize(
    ("raw", "limit"),
    [
        (b"SEND\na:" + b"x" * 200, "max_header_bytes"),
        (b"SEND\na:" + b"x" * 200 + b"\n\n\0", "max_header_bytes"),
        (b"SEND\n" + b"a:1\n" * 20 + b"\n\0", "max_headers"),
        (b"SEND\ncontent-length:101\n\n", "max_body"),
        (b"SEND\n\n" + b"x" * 101, "max_body"),
        (b"SEND\n\n" + b"x" * 101 + b"\0", "max_body"),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_there(raw: bytes, limit: str) -> None:
    parser = Parser(max_header_bytes=100, max_headers=10, max_body=100)
    assert parser.feed(raw) == []
    assert isinstance(parser.error, LimitError)
    assert parser.error.limit == limit


_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    st.dictionaries(_names.filter(lambda n: n != "content-length"), _values, max_size=5),
    st.binary(),
    st.lists(st.integers(1, 40)),
)
def test_a_frame_that_is_written_is_read_again_however_it_is_cut(
    headers: dict[str, str], body: bytes, cuts: list[int]
) -> None:
    raw = encode("MESSAGE", headers, body)
    parser = Parser()
    found, at = [], 0
    for cut in [*cuts, len(raw)]:
        found += parser.feed(raw[at : at + cut])
        at += cut
    (frame,) = found
    assert frame.body == body
    assert {k: v for k, v in frame.headers.items() if k != "content-length"} == headers


@given(_values)
def test_escapes_are_undone(text: str) -> None:
    assert V12.unescape(V12.escape(text)) == text


def test_heart_beats_are_two_numbers() -> None:
    assert heart_beats("0,10000") == (0, 10000)
    for text in ("", "1", "a,b", "-1,0", "1,2,3"):
        with pytest.raises(ProtocolError):
            heart_beats(text)


@pytest.mark.parametrize("dialect", [V10, V11, V12], ids=lambda dialect: dialect.version)
@pytest.mark.parametrize(
    "text", ["plain", "a:b", "back\\slash", "\\c", "two\nlines", "\r", "\0", "é"]
)
def test_what_a_version_can_write_comes_back_in_it(dialect: Dialect, text: str) -> None:
    parser = Parser()
    parser.dialect = dialect
    (frame,) = parser.feed(encode("SEND", {"x": text, "y": "1"}, b"body", dialect))
    lost = {"1.2": "\0", "1.1": "\0\r", "1.0": "\0\r\n"}[dialect.version]
    expected = "".join(f"%{ord(each):02X}" if each in lost else each for each in text)
    assert frame == Frame("SEND", {"x": expected, "y": "1", "content-length": "4"}, b"body")


@pytest.mark.parametrize(
    ("accepted", "version"),
    [(None, "1.0"), ("1.0", "1.0"), ("1.0,1.1", "1.1"), ("1.1, 1.2", "1.2"), ("1.2,2.0", "1.2")],
)
def test_the_latest_version_that_both_know_is_spoken(accepted: str | None, version: str) -> None:
    dialect = choose(accepted)
    assert dialect is not None
    assert dialect.version == version


def test_no_version_in_common_is_none() -> None:
    assert choose("2.0") is None
    assert choose("") is None
