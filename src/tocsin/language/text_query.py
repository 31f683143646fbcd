"""Words in texts: what a word is, and `matches(text, 'query')` as a condition on words.

Enters: texts, and queries such as `rate hike -rumour "central bank" inflat*`. Leaves: the words of
a text; a condition on the list of its words, which an index can use. A word is a run of letters,
marks and digits of any script, in lower case. In a query, words stand for themselves, all of them
must occur; `OR` joins alternatives, `-` negates, quotes hold a phrase, `*` ends a prefix, and
parentheses group.
"""

from __future__ import annotations

import re
from typing import NoReturn

from tocsin.language.expression import Comparison, Expression, Like, Not, Truth, conjoin, disjoin
from tocsin.language.functions import fold_case
from tocsin.language.names import ElementName
from tocsin.language.printer import name_of
from tocsin.language.terms import Call, Literal
from tocsin.model import Kind

LETTERS = r"[\pL\pM\pN]"
"""What words are made of, as a regular expression of RE2."""
_SEPARATORS = r"[^\pL\pM\pN]+"
_ASCII_WORD = re.compile("[a-z0-9]+")
_PART = re.compile(r'\s*(?:(?P<mark>[-()])|"(?P<phrase>[^"]*)"|(?P<word>[^\s()"]+))')
MAX_WORDS = 256
"""How many words and phrases a query may have."""


class TextQueryError(ValueError):
    """A query that is not in the language; `position` is where."""

    def __init__(self, message: str, position: int) -> None:
        self.position = position
        super().__init__(message)


def words(text: str) -> list[str]:
    """Return the words of a text, in order."""
    folded = fold_case(text)
    if folded.isascii():
        return _ASCII_WORD.findall(folded)
    import pyarrow.compute as pc

    return [word for word in pc.split_pattern_regex(folded, _SEPARATORS).as_py() if word]


def has_phrase(text: list[str], phrase: list[str]) -> bool:
    """Whether words follow each other in a text."""
    n = len(phrase)
    return any(text[at : at + n] == phrase for at in range(len(text) - n + 1))


def expand(term: Call) -> Expression | None:
    """Return the condition on words that `matches(text, 'query')` is; None without a constant."""
    subject, query = term.arguments
    if not isinstance(query, Literal) or not isinstance(query.value, str):
        return None
    return _Query(subject, query.value).read()


class _Query:
    """One use: a query, its parts, and the place reached."""

    def __init__(self, subject: object, text: str) -> None:
        self.subject = subject
        listed = name_of(Call("words", (subject,)))  # type: ignore[arg-type]
        self.words = ElementName("any", listed).name
        self.parts = [m for m in _PART.finditer(text) if m.lastgroup]
        self.end = len(text)
        self.at = 0
        self.n_words = 0
        self.depth = 0

    def read(self) -> Expression:
        if not self.parts:
            raise TextQueryError("the query has no words", 0)
        condition = self.alternatives()
        if self.at < len(self.parts):
            self.fail("unexpected )")
        return condition

    def alternatives(self) -> Expression:
        options = [self.all_of()]
        while self.part() == ("word", "OR"):
            self.at += 1
            options.append(self.all_of())
        return disjoin(options)

    def all_of(self) -> Expression:
        conditions: list[Expression] = []
        while True:
            kind, text = self.part()
            if not kind or (kind, text) in (("word", "OR"), ("mark", ")")):
                break
            conditions.append(self.one())
        if not conditions:
            self.fail("a word is missing")
        return conjoin(conditions)

    def one(self) -> Expression:
        kind, text = self.part()
        self.at += 1
        if (kind, text) == ("mark", "-"):
            if not self.part()[0]:
                self.fail("a word is missing after -")
            return Not(self.one())
        if (kind, text) == ("mark", "("):
            self.depth += 1
            if self.depth > 50:
                self.fail("parentheses are nested more than 50 deep")
            condition = self.alternatives()
            if self.part() != ("mark", ")"):
                self.fail("a ) is missing")
            self.at += 1
            self.depth -= 1
            return condition
        if (kind, text) == ("mark", ")"):
            self.fail("unexpected )")
        is_prefix = kind == "word" and text.endswith("*")
        return self.of_words(words(text), text, is_prefix)

    def of_words(self, listed: list[str], text: str, is_prefix: bool) -> Expression:
        """Return the condition that words occur; several of them as a phrase."""
        if not listed:
            self.fail(f"{text!r} has no letters or digits", -1)
        self.n_words += len(listed)
        if self.n_words > MAX_WORDS:
            self.fail(f"more than {MAX_WORDS} words", -1)
        if is_prefix:
            if len(listed) > 1:
                self.fail("a prefix is the beginning of one word", -1)
            return Like(self.words, Literal(listed[0] + "%", Kind.STRING))
        conditions: list[Expression] = [self.has(word) for word in dict.fromkeys(listed)]
        if len(listed) > 1:
            literal = Literal(" ".join(listed), Kind.STRING)
            call = Call("has_phrase", (self.subject, literal))  # type: ignore[arg-type]
            conditions.append(Truth(name_of(call)))
        return conjoin(conditions)

    def has(self, word: str) -> Expression:
        return Comparison(self.words, "=", Literal(word, Kind.STRING))

    def part(self) -> tuple[str, str]:
        """Return the kind and the text of the part reached; empty at the end."""
        if self.at == len(self.parts):
            return "", ""
        match = self.parts[self.at]
        kind = str(match.lastgroup)
        return kind, match.group(kind)

    def fail(self, message: str, offset: int = 0) -> NoReturn:
        at = self.at + offset
        raise TextQueryError(message, self.parts[at].start() if at < len(self.parts) else self.end)
