"""LIKE patterns of the normal form: parsing, conversion to intervals, and matching one string.

Enters: a pattern's text and its escape character. Leaves: a `Pattern`, a tuple of parts in which
a string stands for itself, ONE for `_` and MANY for `%`. In a canonical pattern neighbouring
strings are joined, a run of wildcards is its `_`s followed by at most one `%`. A pattern without
wildcards is a string, one with a single final `%` is a prefix; both are intervals of strings and
never reach this module's matcher. `engines.patterns` verifies the other patterns for the candidates
of a batch, with the matcher here.

A text is matched piece by piece: the first and the last piece are anchored, and each piece between
two `%` matches at its first occurrence. Python searches a piece that is a string. A piece with `_`
is tried at the occurrences of its longest string, and after a few failures searched by a kernel, in
time text × piece / 64 at worst. So a pattern costs at most the text times its widest piece with
`_`, which is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tocsin.errors import ConditionCostError, ParameterError
from tocsin.language.functions import MAX_PATTERN, MAX_PIECE
from tocsin.normalize.domains import HIGH, Cut, Domain, Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WILDCARDS = re.compile("([%_])")

_MAX_TRIES = 32
"""How often a piece is tried before the kernel looks for it."""

ONE: Final = 1
MANY: Final = 2
Part: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A canonical LIKE pattern; equal patterns accept the same strings."""

    parts: tuple[Part, ...]
    _plan: _Plan | None = field(default=None, init=False, repr=False, compare=False)

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
        """Whether the whole of a text fits the pattern."""
        head, middle, tail, is_whole = self._planned()
        start = _fits_at(head, text, 0)
        if is_whole:
            return start == len(text)
        if start < 0:
            return False
        for piece in middle:
            start = _find(piece, text, start)
            if start < 0:
                return False
        tail_start = len(text) - _width(tail)
        return tail_start >= start and _fits_at(tail, text, tail_start) == len(text)

    def steps(self, n_characters: int) -> int:
        """Return about how many steps it takes to match a text of some length."""
        plan = self._planned()
        words = max((piece.n_words for piece in plan.middle), default=1)
        return 8 + 2 * len(plan.middle) + (n_characters * words >> 6)

    def _planned(self) -> _Plan:
        plan = self._plan
        if plan is None:
            plan = _make_plan(self.parts)
            object.__setattr__(self, "_plan", plan)
        return plan


class _Piece(NamedTuple):
    """What stands between two `%`: the `_`s at both ends are counted, the rest is looked for."""

    lead: int
    core: tuple[Part, ...]
    width: int
    trail: int
    anchor: str
    """The longest string in the core."""
    anchor_at: int

    @property
    def n_words(self) -> int:
        """How many words of 64 bits the core takes, where the kernel looks for it."""
        return 1 if len(self.core) < 2 else (self.width + 63) // 64


class _Plan(NamedTuple):
    """A pattern, cut at its `%`; `is_whole` where it has none."""

    head: tuple[Part, ...]
    middle: tuple[_Piece, ...]
    tail: tuple[Part, ...]
    is_whole: bool


def _make_plan(parts: tuple[Part, ...]) -> _Plan:
    head, *others = _split_at_many(parts)
    if not others:
        return _Plan(head, (), (), True)
    return _Plan(head, tuple(map(_make_piece, others[:-1])), others[-1], False)


def _make_piece(chunk: tuple[Part, ...]) -> _Piece:
    strings = [at for at, part in enumerate(chunk) if isinstance(part, str)]
    if not strings:
        return _Piece(len(chunk), (), 0, 0, "", 0)
    first, stop = strings[0], strings[-1] + 1
    core = chunk[first:stop]
    anchor, anchor_at, width = "", 0, 0
    for part in core:
        if isinstance(part, str) and len(part) > len(anchor):
            anchor, anchor_at = part, width
        width += len(part) if isinstance(part, str) else 1
    return _Piece(first, core, width, len(chunk) - stop, anchor, anchor_at)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def parse_pattern(text: str, escape: str | None, *, is_bounded: bool = True) -> Pattern:
    """Read a LIKE pattern; where it is to be bounded, refuse one that is costly to match."""
    if is_bounded and len(text) > MAX_PATTERN:
        raise ConditionCostError("pattern", MAX_PATTERN)
    if escape is None:
        marks: dict[str, Part] = {"_": ONE, "%": MANY}
        parts = [marks.get(piece, piece) for piece in _WILDCARDS.split(text) if piece]
    else:
        parts = _unescaped(text, escape)
    pattern = Pattern(_canonical(parts))
    if is_bounded and len(text) > MAX_PIECE:
        for piece in pattern._planned().middle:
            if len(piece.core) > 1 and piece.width > MAX_PIECE:
                raise ConditionCostError("piece", MAX_PIECE)
    return pattern


def _unescaped(text: str, escape: str) -> list[Part]:
    """Read a pattern with an escape character, character by character."""
    parts: list[Part] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == escape:
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
    return parts


def _canonical(parts: list[Part]) -> tuple[Part, ...]:
    joined: list[Part] = []
    run: list[str] = []
    many = False
    for part in parts:
        if isinstance(part, str):
            if many:
                joined.append(MANY)
                many = False
            run.append(part)
            continue
        if run:
            joined.append("".join(run))
            run = []
        if part == MANY:
            many = True
        else:
            joined.append(ONE)
    if run:
        joined.append("".join(run))
    if many:
        joined.append(MANY)
    return tuple(joined)


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
        return (("", 0), HIGH[Domain.STRING])
    return None


def prefix_interval(pattern: Pattern) -> Interval:
    """Return the interval of the strings that start as the pattern does."""
    first = pattern.parts[0] if pattern.parts else ""
    if isinstance(first, int):
        return (("", 0), HIGH[Domain.STRING])
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
    return HIGH[Domain.STRING]


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


def _find(piece: _Piece, text: str, start: int) -> int:
    """Return where the first fit of a piece at or after a place ends, or -1."""
    first = start + piece.lead
    if len(piece.core) < 2:
        at = text.find(piece.anchor, first) if first <= len(text) else -1
        end = -1 if at < 0 else at + piece.width
    else:
        end = _find_core(piece, text, first)
    return -1 if end < 0 or end + piece.trail > len(text) else end + piece.trail


def _find_core(piece: _Piece, text: str, first: int) -> int:
    """Return where the first fit of a core with `_` at or after a place ends, or -1."""
    at = first + piece.anchor_at
    for _ in range(_MAX_TRIES):
        at = text.find(piece.anchor, at)
        if at < 0:
            return -1
        end = _fits_at(piece.core, text, at - piece.anchor_at)
        if end >= 0:
            return end
        at += 1
    return _find_by_kernel(piece, text, at - piece.anchor_at)


def _find_by_kernel(piece: _Piece, text: str, start: int) -> int:
    import numpy as np

    from tocsin.normalize.pattern_kernels import find_piece

    class_of, masks = _masks(piece.core)
    reached = np.zeros(masks.shape[1], np.uint64)
    return int(find_piece(_codes(text), start, class_of, masks, piece.width, reached))


@lru_cache(maxsize=2)
def _codes(text: str) -> NDArray[np.uint32]:
    """Return the code points of a text; one text is usually tried with several patterns."""
    import numpy as np

    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


@lru_cache(maxsize=32)
def _masks(core: tuple[Part, ...]) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
    """Return the classes of characters and their masks that `find_piece` takes."""
    import numpy as np

    places: list[int] = []
    for part in core:
        places += map(ord, part) if isinstance(part, str) else (-1,)
    codes = np.array(places, np.int64)
    known, classes = np.unique(codes[codes >= 0], return_inverse=True)
    class_of = np.zeros(int(known[-1]) + 1, np.uint16)
    class_of[known] = np.arange(1, len(known) + 1)
    masks = np.zeros((len(known) + 1, (len(codes) + 63) // 64), np.uint64)
    at = np.arange(len(codes))
    bit = np.uint64(1) << (at & 63).astype(np.uint64)
    is_any = codes < 0
    np.bitwise_or.at(masks[0], at[is_any] >> 6, bit[is_any])
    masks[1:] = masks[0]
    taken = at[~is_any]
    np.bitwise_or.at(masks, (classes + 1, taken >> 6), bit[taken])
    return class_of, masks
