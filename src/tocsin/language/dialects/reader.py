"""What the readers of SQL-like dialects share: tokens, errors with their place, decisions.

Enters: a text and the tokens of its dialect. Leaves: tokens one after the other, and decisions. A
dialect may have truths of its own (an error, a comparison of two kinds that is false), so a
condition is read as a *decision*: asked for a truth, it returns the expression of our tree that is
true where the condition has that truth; asked for None, where it has one at all. So NOT, AND and OR
of a dialect need no counterparts in the tree's three-valued logic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeAlias

from tocsin.errors import ConditionCostError, ConditionSyntaxError
from tocsin.language.computed import canonical, fold_constants
from tocsin.language.expression import Constant, Expression, conjoin, disjoin
from tocsin.language.terms import Call, Literal, Term
from tocsin.model import Value, kind_of

Truth: TypeAlias = bool | None
Decision: TypeAlias = Callable[[Truth], Expression]
"""From a truth to the expression that holds where a condition has it; None: where it has one."""

MAX_DEPTH = 100
"""How deep parentheses, signs and functions may nest."""
MAX_STEPS = 50_000
"""How many decisions may be asked for: an exclusive or asks for each side twice."""


class Reader:
    """One use: a text, its tokens and the place reached."""

    def __init__(self, text: str, tokens: re.Pattern[str], keywords: frozenset[str]) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConditionSyntaxError("not valid Unicode", text, error.start) from None
        self.text = text
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.positions: list[int] = []
        self.at = 0
        self.depth = 0
        self.steps = 0
        self._cut(tokens, keywords)

    def _cut(self, tokens: re.Pattern[str], keywords: frozenset[str]) -> None:
        """Cut the text into tokens; a keyword and an operator are kinds of their own."""
        at, text = 0, self.text
        while True:
            while at < len(text) and text[at] in " \t\n\r\f":
                at += 1
            match = tokens.match(text, at)
            if match is None:
                if at < len(text):
                    self._refuse_character(at)
                break
            kind, piece = match.lastgroup or "", match.group()
            if kind == "name" and piece.upper() in keywords and piece.isascii():
                kind = piece.upper()
            self.add(piece if kind == "op" else kind, piece, at)
            at = match.end()
        self.add("END", "", at)

    def add(self, kind: str, piece: str, position: int) -> None:
        """Add a token."""
        self.kinds.append(kind)
        self.texts.append(piece)
        self.positions.append(position)

    def _refuse_character(self, at: int) -> NoReturn:
        piece = self.text[at]
        if piece in "'\"":
            message = "a string literal is not closed"
            raise ConditionSyntaxError(message, self.text, at, f"a quote ({piece})")
        raise ConditionSyntaxError(f"unexpected character {piece!r}", self.text, at)

    @property
    def kind(self) -> str:
        """The kind of the token reached."""
        return self.kinds[self.at]

    def take(self) -> str:
        """Return the text of the token reached, and go on."""
        self.at += 1
        return self.texts[self.at - 1]

    def skip(self, *kinds: str) -> str | None:
        """Go on past a token of one of some kinds, and return its kind."""
        kind = self.kind
        if kind not in kinds:
            return None
        self.at += 1
        return kind

    def expect(self, kind: str, expected: str) -> None:
        """Go on past a token that must be there."""
        if self.skip(kind) is None:
            self.refuse(expected)

    def refuse(self, expected: str) -> NoReturn:
        """Refuse the token reached."""
        piece = self.texts[self.at]
        what = "the text ends too early" if self.kind == "END" else f"unexpected {piece}"
        self.fail(what, None, expected)

    def fail(self, message: str, at: int | None = None, expected: str | None = None) -> NoReturn:
        """Refuse the text at a token, by default the one reached."""
        place = self.positions[self.at if at is None else at]
        raise ConditionSyntaxError(message, self.text, place, expected)

    def enter(self) -> None:
        """Count a level of nesting; `depth` is counted back when it is left."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nested more than {MAX_DEPTH} deep")

    # Decisions.

    def spend(self) -> None:
        """Count a decision."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise ConditionCostError("steps", MAX_STEPS)

    def every(self, parts: Sequence[Decision]) -> Decision:
        """Return the conjunction: true if all are, false if one is."""

        def decided(truth: Truth) -> Expression:
            self.spend()
            if truth is None:
                return disjoin([decided(True), decided(False)])
            of_parts = [part(truth) for part in parts]
            return fold_constants(conjoin(of_parts) if truth else disjoin(of_parts))

        return decided

    def some(self, parts: Sequence[Decision]) -> Decision:
        """Return the disjunction: true if one is, false if all are."""
        return negation(self.every([negation(part) for part in parts]))


def negation(of: Decision) -> Decision:
    """Return what is true where a condition is false, and false where it is true."""
    return lambda truth: of(None if truth is None else not truth)


def fixed(value: bool | None) -> Decision:
    """Return a condition that has one truth, or none."""
    return lambda truth: Constant(value is truth if truth is not None else value is not None)


def call(function: str, *arguments: Term) -> Term:
    """Return a function of terms in canonical form."""
    return canonical(Call(function, arguments))


def literal(value: Value) -> Literal:
    """Return a value as a term."""
    return Literal(value, kind_of(value))


ESCAPE = "\\"
"""The escape character of the patterns that readers make."""


def pattern_of(characters: Sequence[tuple[str, bool]]) -> tuple[str, str | None]:
    """Return a LIKE pattern and its escape character, of characters that are wildcards or not."""
    needs_escape = any(not wild and char in "%_" for char, wild in characters)
    if not needs_escape:
        return "".join(char for char, _ in characters), None
    return "".join(
        char if wild or char not in ("%", "_", ESCAPE) else ESCAPE + char
        for char, wild in characters
    ), ESCAPE
