"""Server-Sent Events: notifications → text, and text → messages for clients.

Enters: a number and a line of JSON; or bytes of a stream in pieces of any size. Leaves: bytes; or
messages. Follows the WHATWG standard, section 9.2 "Server-sent events".
"""

from __future__ import annotations

from typing import NamedTuple

from tocsin.errors import LimitError, ProtocolError

COMMENT = b": heartbeat\n\n"


class Message(NamedTuple):
    """One message of a stream."""

    event: str
    data: str
    id: str | None


def encode(event: str, data: bytes, id: int | None = None) -> bytes:
    """Return a message; `data` has no line breaks."""
    number = b"" if id is None else b"id: %d\n" % id
    return b"%sevent: %s\ndata: %s\n\n" % (number, event.encode(), data)


class Parser:
    """Bytes → messages. Comments are dropped; an incomplete message is never returned."""

    def __init__(self, max_message: int = 16 << 20) -> None:
        self.max_message = max_message
        self.last_id: str | None = None
        self._rest = b""
        self._first = True
        self._event = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes; return the messages that they complete."""
        text = self._rest + data
        ends_in_return = text.endswith(b"\r")  # perhaps half of a line end
        lines = text.replace(b"\r\n", b"\n").split(b"\n")
        if ends_in_return or b"\r" in text.replace(b"\r\n", b""):
            lines = _split_all(text)
        self._rest = lines.pop()
        if len(self._rest) + self._size > self.max_message:
            raise LimitError("a message of the stream is too long", "max_message")
        return [message for line in lines if (message := self._take(line)) is not None]

    def _take(self, line: bytes) -> Message | None:
        if self._first:
            line, self._first = line.removeprefix(b"\xef\xbb\xbf"), False
        if not line:
            return self._dispatch()
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError:
            raise ProtocolError("the stream is not UTF-8") from None
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        return None

    def _dispatch(self) -> Message | None:
        event, data = self._event or "message", self._data
        self._event, self._data, self._size = "", [], 0
        return Message(event, "\n".join(data), self.last_id) if data else None


def _split_all(text: bytes) -> list[bytes]:
    """Split at every kind of line end; a return at the end of all may be half of one."""
    half = text.endswith(b"\r")
    body = text[:-1] if half else text
    lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    if half:
        lines[-1] += b"\r"
    return lines
