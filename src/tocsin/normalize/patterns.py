"""LIKE patterns: their canonical form, what of them is an interval, and matching.

Enters: a pattern's text and its escape character. Leaves: a `Pattern`, a tuple of parts in which
a string stands for itself, ONE for `_` and MANY for `%`. In a canonical pattern neighbouring
strings are joined, a run of wildcards is its `_`s followed by at most one `%`. A pattern without
wildcards is a string, one with a single final `%` is a prefix; both are intervals of strings and
never reach this module's matcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from tocsin.errors import ParameterError
from tocsin.normalize.lines import HIGH, Cut, Interval, Line

ONE: Final = 1
MANY: Final = 2
Part: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A canonical LIKE pattern; equal patterns accept the same strings."""

    parts: tuple[Part, ...]

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The pattern as LIKE text; literal wildcards are escaped by a backslash."""
        marks = {ONE: "_", MANY: "%"}
        return "".join(
            marks[part] if isinstance(part, int) else _escape(part) for part in self.parts
        )

    @property
    def needs_escape(self) -> bool:
        """Whether the text holds a literal wildcard, so that it needs ESCAPE."""
        return any(isinstance(p, str) and any(c in p for c in "%_\\") for p in self.parts)

    def matches(self, text: str) -> bool:
        """Whether the whole of a text fits the pattern, in time linear but for `_` runs."""
        chunks = _split_at_many(self.parts)
        head, *middle = chunks
        start = _fits_at(head, text, 0)
        if not middle:
            return start == len(text)
        if start < 0:
            return False
        *middle, tail = middle
        for chunk in middle:
            start = _find(chunk, text, start)
            if start < 0:
                return False
        tail_start = len(text) - _width(tail)
        return tail_start >= start and _fits_at(tail, text, tail_start) == len(text)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def parse_pattern(text: str, escape: str | None) -> Pattern:
    """Read a LIKE pattern."""
    parts: list[Part] = []
    at = 0
    while at < len(text):
        char = text[at]
        if escape is not None and char == escape:
            at += 1
            if at == len(text) or text[at] not in ("%", "_", escape):
                raise ParameterError(
                    f"in the pattern {text!r} the escape character {escape!r} must stand "
                    f"before %, _ or itself"
                )
            parts.append(text[at])
        else:
            parts.append(ONE if char == "_" else MANY if char == "%" else char)
        at += 1
    return Pattern(_canonical(parts))


def _canonical(parts: list[Part]) -> tuple[Part, ...]:
    found: list[Part] = []
    many = False
    for part in parts:
        if part == MANY:
            many = True
        elif part == ONE:
            found.append(ONE)
        else:
            if many:
                found.append(MANY)
                many = False
            if found and isinstance(found[-1], str):
                found[-1] += str(part)
            else:
                found.append(part)
    if many:
        found.append(MANY)
    return tuple(found)


def interval_of(pattern: Pattern) -> Interval | None:
    """Return the interval of strings that a pattern is, or None when it is none."""
    parts = pattern.parts
    if not parts:
        return (("", 0), ("", 1))
    first = parts[0]
    if isinstance(first, str):
        if len(parts) == 1:
            return (_before(first), (first, 1))
        if parts[1:] == (MANY,):
            return (_before(first), prefix_end(first))
    elif parts == (MANY,):
        return (("", 0), HIGH[Line.STRING])
    return None


def prefix_interval(pattern: Pattern) -> Interval:
    """Return the interval of the strings that start as the pattern does."""
    first = pattern.parts[0] if pattern.parts else ""
    if isinstance(first, int):
        return (("", 0), HIGH[Line.STRING])
    return (_before(first), prefix_end(first))


def _before(text: str) -> Cut:
    return (text[:-1], 1) if text.endswith("\0") else (text, 0)


def prefix_end(prefix: str) -> Cut:
    """Return the cut after all strings with a prefix: before the next prefix of that length."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            following = 0xE000 if last == 0xD7FF else last + 1
            return (prefix[:-1] + chr(following), 0)
        prefix = prefix[:-1]
    return HIGH[Line.STRING]


def _split_at_many(parts: tuple[Part, ...]) -> list[tuple[Part, ...]]:
    chunks: list[tuple[Part, ...]] = []
    start = 0
    for at, part in enumerate(parts):
        if part == MANY:
            chunks.append(parts[start:at])
            start = at + 1
    chunks.append(parts[start:])
    return chunks


def _width(chunk: tuple[Part, ...]) -> int:
    return sum(len(part) if isinstance(part, str) else 1 for part in chunk)


def _fits_at(chunk: tuple[Part, ...], text: str, at: int) -> int:
    """Return where the chunk ends when it starts at a place, or -1."""
    for part in chunk:
        if isinstance(part, str):
            if not text.startswith(part, at):
                return -1
            at += len(part)
        else:
            at += 1
            if at > len(text):
                return -1
    return at


def _find(chunk: tuple[Part, ...], text: str, start: int) -> int:
    """Return where the first fit of the chunk at or after a place ends, or -1."""
    lead = 0
    while lead < len(chunk) and chunk[lead] == ONE:
        lead += 1
    rest = chunk[lead:]
    if not rest:
        return start + lead if start + lead <= len(text) else -1
    anchor = str(rest[0])
    at = start + lead
    while True:
        at = text.find(anchor, at)
        if at < 0:
            return -1
        end = _fits_at(rest, text, at)
        if end >= 0:
            return end
        at += 1
