"""Text → tokens.

Enters: the text of a condition. Leaves: parallel lists of token kinds, texts and positions, the
last token being END. A token's kind is a one-word string; keywords are their own kind. White space
is that of ASCII; comments count as white space. Characters that start no token are refused here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tocsin.errors import ConditionSyntaxError

KEYWORDS = frozenset(
    ("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE")
)
"""Words that cannot be attribute names unless quoted. TIMESTAMP is one only before a string."""

TERM_WORDS = frozenset(("CASE", "WHEN", "THEN", "ELSE", "END"))
"""Words that end or divide a term; as names they are quoted, though a lone one is understood."""

_TOKEN = re.compile(
    r"""[\x20\t-\r]*(?:
        (?P<name>[^\W\d][\w$]*)
      | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<op><=>|<>|<=|>=|!=|==|<|>|=|\(|\)|,)
      | (?P<string>'(?:[^']|'')*')
      | (?P<param>:[^\W\d]\w*)
      | (?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
      | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<mark>\|\||&&|::|->>?|/\*|[.+\-*/%~^&|\[\]{}?;@\#!:])
      | (?P<end>\Z)
      | (?P<bad>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_SPELLINGS = {"==": "=", "!=": "<>", "&&": "AND"}


class Tokens(NamedTuple):
    """The tokens of one text, as parallel lists."""

    kinds: list[str]
    texts: list[str]
    positions: list[int]


def tokenize(text: str) -> Tokens:
    """Cut a text into tokens; the last one is END."""
    kinds: list[str] = []
    texts: list[str] = []
    positions: list[int] = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "bad"
        piece = match.group(kind)
        position = match.start(kind)
        if kind == "name":
            upper = piece.upper()
            kind = upper if upper in KEYWORDS and piece.isascii() else "name"
        elif kind == "op":
            kind = _SPELLINGS.get(piece, piece)
        elif kind == "quoted" and piece[1] == "\0":  # such names are ours: see `names`
            raise ConditionSyntaxError("the name of an attribute begins with NUL", text, position)
        elif kind == "number":
            _check_number_ends(text, match.end(), position)
        elif kind == "mark":
            if piece == "/*":
                raise ConditionSyntaxError("a comment is not closed", text, position, "*/")
            kind = _SPELLINGS.get(piece, piece)
        elif kind == "end":
            kind = "END"
        elif kind == "comment":
            continue
        elif kind == "bad":
            _refuse(text, piece, position)
        kinds.append(kind)
        texts.append(piece)
        positions.append(position)
        if kind == "END":
            break
    return Tokens(kinds, texts, positions)


def _check_number_ends(text: str, end: int, position: int) -> None:
    following = text[end : end + 1]
    if following == "_" or following.isalnum():
        raise ConditionSyntaxError("a number runs into a name", text, position)


def _refuse(text: str, piece: str, position: int) -> None:
    if piece == "'":
        raise ConditionSyntaxError("a string literal is not closed", text, position, "a quote (')")
    if piece in '"`':
        raise ConditionSyntaxError("a quoted name is not closed", text, position, piece)
    raise ConditionSyntaxError(f"unexpected character {piece!r}", text, position)
