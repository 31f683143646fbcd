"""STOMP 1.2, 1.1 and 1.0: bytes ↔ frames.

Enters: bytes as they come from a socket, in pieces of any size. Leaves: frames, and bytes of
frames. Follows the specification's sections "STOMP Frames" and "Value Encoding": header values are
escaped except in CONNECT and CONNECTED, the first of repeated headers counts, a body may follow
SEND, MESSAGE and ERROR only. We are stricter in two places: an undefined escape is an error (as the
specification says), and so is a body where none may be.

The versions differ in how header values are written (`Dialect`): 1.1 has no escape for a carriage
return, 1.0 has none at all, and there spaces around a value do not count. What a version cannot
write is percent-encoded, as a NUL is in each. A CR before a line end is taken in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import repeat
from typing import NamedTuple

from tocsin.errors import LimitError, ProtocolError

_ESCAPED = re.compile(r"\\.?", re.DOTALL)


class Dialect(NamedTuple):
    """How a version of the protocol writes header values."""

    version: str
    escapes: Mapping[str, str]
    """Characters, and what stands for them."""
    special: re.Pattern[str]
    """Finds the characters that something else stands for."""
    is_escaped: bool
    """Whether values have escapes; else spaces around them do not count."""

    def escape(self, text: str) -> str:
        """Return a text as it is written in a header.

        What has no escape, such as a NUL, is percent-encoded: it would end the header or the frame,
        and what follows it would be read as another one.
        """
        if self.special.search(text) is None:
            return text
        return self.special.sub(lambda special: self.escapes[special.group()], text)

    def header(self, name: str, value: str) -> str:
        """Return the line of a header."""
        written = self.escape(name)
        if not self.is_escaped:
            written = written.replace(":", "%3A")
        return f"{written}:{self.escape(value)}"

    def unescape(self, text: str) -> str:
        """Return a header's text with its escapes undone."""
        if not self.is_escaped:
            return text.strip(" \t")
        return text if "\\" not in text else _ESCAPED.sub(self._undo, text)

    def _undo(self, match: re.Match[str]) -> str:
        for character, written in self.escapes.items():
            if written == match.group():
                return character
        raise ProtocolError(f"an undefined escape in a header: {match.group()!r}")


_NUL = {"\0": "%00"}
_V11 = {"\n": "\\n", ":": "\\c", "\\": "\\\\"}
V12 = Dialect("1.2", {**_V11, "\r": "\\r", **_NUL}, re.compile(r"[\r\n:\\\0]"), True)
V11 = Dialect("1.1", {**_V11, "\r": "%0D", **_NUL}, re.compile(r"[\r\n:\\\0]"), True)
V10 = Dialect("1.0", {"\r": "%0D", "\n": "%0A", **_NUL}, re.compile(r"[\r\n\0]"), False)
DIALECTS = {each.version: each for each in (V12, V11, V10)}
"""By version, the latest first."""


def choose(accepted: str | None) -> Dialect | None:
    """Return the latest version that a client accepts, None for none; without a list, 1.0."""
    versions = {"1.0"} if accepted is None else {each.strip() for each in accepted.split(",")}
    return next((each for each in DIALECTS.values() if each.version in versions), None)


_WITH_BODY = frozenset(("SEND", "MESSAGE", "ERROR"))
_UNESCAPED = frozenset(("CONNECT", "CONNECTED"))


class Frame(NamedTuple):
    """One frame."""

    command: str
    headers: dict[str, str]
    body: bytes = b""


class Parser:
    """Bytes → frames. After an error, which `error` holds, it takes nothing more."""

    def __init__(
        self, max_header_bytes: int = 16_384, max_headers: int = 128, max_body: int = 1 << 20
    ) -> None:
        self.max_header_bytes = max_header_bytes
        self.max_headers = max_headers
        self.max_body = max_body
        self.dialect = V12
        """The version of the frames that come: known after CONNECT, which is the same in all."""
        self._buffer = bytearray()
        self._head: tuple[str, dict[str, str], int | None] | None = None
        self._searched = 0
        self.error: ProtocolError | LimitError | None = None

    def put(self, data: bytes) -> None:
        """Take more bytes, to be parsed by the next `feed`."""
        if self.error is None:
            self._buffer += data

    def feed(self, data: bytes, most: int | None = None) -> list[Frame]:
        """Take more bytes; return the frames that they complete, the first `most` of them.

        What is not a frame sets `error`; the frames before it count. With `most`, `feed(b"")`
        returns the frames that follow.
        """
        frames: list[Frame] = []
        if self.error is not None:
            return frames
        self._buffer += data
        try:
            for _ in repeat(None) if most is None else repeat(None, most):
                frame = self._next()
                if frame is None:
                    break
                frames.append(frame)
        except (ProtocolError, LimitError) as error:
            self.error = error
            self._buffer.clear()
        return frames

    @property
    def waiting(self) -> int:
        """How many bytes wait for more."""
        return len(self._buffer)

    def _next(self) -> Frame | None:
        if self._head is None and not self._read_head():
            return None
        assert self._head is not None
        command, headers, length = self._head
        body = self._read_body(length)
        if body is None:
            return None
        if body and command not in _WITH_BODY:
            raise ProtocolError(f"a {command} frame has no body")
        self._head = None
        return Frame(command, headers, body)

    def _read_head(self) -> bool:
        buffer = self._buffer
        if buffer.startswith((b"\n", b"\r")):  # heart-beats, and line ends after a frame
            del buffer[: len(buffer) - len(buffer.lstrip(b"\r\n"))]
        if not buffer:
            return False
        end = _end_of_head(buffer)
        if end is None:
            if len(buffer) > self.max_header_bytes:
                raise LimitError("the headers of a frame are too long", "max_header_bytes")
            if b"\0" in buffer:
                raise ProtocolError("a frame ends within its headers")
            return False
        if end[0] > self.max_header_bytes:
            raise LimitError("the headers of a frame are too long", "max_header_bytes")
        self._head = self._parse_head(bytes(buffer[: end[0]]))
        del buffer[: end[1]]
        self._searched = 0
        return True

    def _parse_head(self, raw: bytes) -> tuple[str, dict[str, str], int | None]:
        if b"\0" in raw:
            raise ProtocolError("a frame ends within its headers")
        try:
            command, *lines = raw.decode().split("\n")
        except UnicodeDecodeError:
            raise ProtocolError("headers are not UTF-8") from None
        command = command.removesuffix("\r")
        if not command.isalpha() or not command.isupper() or len(command) > 20:
            raise ProtocolError(f"no command: {command[:20]!r}")
        if len(lines) > self.max_headers:
            raise LimitError("a frame has too many headers", "max_headers")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.removesuffix("\r").partition(":")
            if not colon or not name:
                raise ProtocolError(f"no header: {line[:60]!r}")
            if command not in _UNESCAPED and ("\\" in line or not self.dialect.is_escaped):
                name, value = self.dialect.unescape(name), self.dialect.unescape(value)
            headers.setdefault(name, value)
        return command, headers, self._to_length(headers)

    def _to_length(self, headers: Mapping[str, str]) -> int | None:
        text = headers.get("content-length")
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > 15:
            raise ProtocolError(f"content-length is no number: {text[:20]!r}")
        length = int(text)
        if length > self.max_body:
            raise LimitError("the body of a frame is too long", "max_body")
        return length

    def _read_body(self, length: int | None) -> bytes | None:
        buffer = self._buffer
        if length is None:
            end = buffer.find(0, self._searched)
            self._searched = len(buffer)
            if end > self.max_body or (end < 0 and len(buffer) > self.max_body):
                raise LimitError("the body of a frame is too long", "max_body")
            if end < 0:
                return None
        else:
            if len(buffer) <= length:
                return None
            if buffer[length]:
                raise ProtocolError("a frame does not end where its content-length says")
            end = length
        body = bytes(buffer[:end])
        del buffer[: end + 1]
        return body


def _end_of_head(buffer: bytearray) -> tuple[int, int] | None:
    """Return where the headers end and where the body begins."""
    plain = buffer.find(b"\n\n")
    carried = buffer.find(b"\n\r\n", 0, plain + 1 if plain >= 0 else len(buffer))
    if carried >= 0:
        return carried, carried + 3
    return (plain, plain + 2) if plain >= 0 else None


def encode(
    command: str, headers: Mapping[str, str], body: bytes = b"", dialect: Dialect = V12
) -> bytes:
    """Return the bytes of a frame; a body gets its content-length."""
    if command in _UNESCAPED:
        lines = [command, *(f"{name}:{value}" for name, value in headers.items())]
    else:
        lines = [command, *(dialect.header(name, value) for name, value in headers.items())]
    if body:
        lines.append(f"content-length:{len(body)}")
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"


def heart_beats(text: str) -> tuple[int, int]:
    """Return the two numbers of a heart-beat header, in milliseconds."""
    first, comma, second = text.partition(",")
    plain = text.isascii() and first.strip().isdigit() and second.strip().isdigit()
    if not comma or not plain or len(text) > 30:
        raise ProtocolError(f"heart-beat takes two numbers, not {text[:40]!r}")
    return min(int(first), 1 << 31), min(int(second), 1 << 31)
