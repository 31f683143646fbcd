"""Writes an expression in one of the many ways that mean the same.

Our printer writes each expression one way. People do not: they vary case, space, quotes,
parentheses, the side on which a literal stands, and how they write a number or a moment. The paths
that read texts in bulk must read all of that as the parser does.
"""

from __future__ import annotations

import datetime as dt
import re

from tests.property.strategies import Source, choose, one_in

from tocsin.language.expression import (
    And,
    Between,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    Or,
    Parameter,
)
from tocsin.language.tokens import KEYWORDS

_PLAIN = re.compile(r"[^\W\d][\w$]*(\.[^\W\d][\w$]*)*")
_SPELLINGS = {"=": ("=", "=="), "<>": ("<>", "!=")}
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_GAPS = (" ", " ", " ", "  ", "\n", "\t", " \r\n ", "\f", "\v")


def scribble(expression: Expression, source: Source) -> str:
    """Return a text that parses to the expression."""
    return _Scribbler(source).condition(expression)


class _Scribbler:
    def __init__(self, source: Source) -> None:
        self.source = source

    def condition(self, expression: Expression) -> str:
        text = self._condition(expression)
        if one_in(self.source, 12):
            text = f"({self.maybe()}{text}{self.maybe()})"
        return text

    def _condition(self, expression: Expression) -> str:
        if isinstance(expression, And | Or):
            word = self.word("AND" if isinstance(expression, And) else "OR")
            parts = [self.inside(part, Or, And) for part in expression.operands]
            return f"{self.gap()}{word}{self.gap()}".join(parts)
        if isinstance(expression, Not):
            return f"{self.word('NOT')}{self.gap()}{self.inside(expression.operand, Or, And)}"
        if isinstance(expression, Constant):
            return self.word({True: "TRUE", False: "FALSE", None: "NULL"}[expression.value])
        name = self.name(expression.attribute)
        if isinstance(expression, Comparison):
            return self.comparison(name, expression)
        if isinstance(expression, Between):
            low, high = self.operand(expression.low), self.operand(expression.high)
            words = self.words("NOT BETWEEN" if expression.negated else "BETWEEN")
            return self.joined(name, words, low, self.word("AND"), high)
        if isinstance(expression, In):
            words = self.words("NOT IN" if expression.negated else "IN")
            comma = f"{self.maybe()},{self.maybe()}"
            inside = comma.join(map(self.operand, expression.operands))
            return f"{self.joined(name, words)}{self.maybe()}({self.maybe()}{inside})"
        if isinstance(expression, Like):
            words = self.words("NOT LIKE" if expression.negated else "LIKE")
            escape = [] if expression.escape is None else [self.word("ESCAPE")]
            escape += [] if expression.escape is None else [_string(expression.escape)]
            return self.joined(name, words, self.operand(expression.pattern), *escape)
        if isinstance(expression, IsNull):
            return self.joined(name, self.words("IS NOT NULL" if expression.negated else "IS NULL"))
        return name

    def inside(self, expression: Expression, *looser: type) -> str:
        text = self.condition(expression)
        return f"({text}{self.maybe()})" if isinstance(expression, looser) else text

    def comparison(self, name: str, expression: Comparison) -> str:
        op, literal = expression.op, self.operand(expression.operand)
        left, right = name, literal
        if one_in(self.source, 5):
            left, op, right = literal, _FLIPPED[op], name
        op = choose(self.source, _SPELLINGS.get(op, (op,)))
        return f"{left}{self.maybe()}{op}{self.maybe()}{right}"

    def joined(self, *parts: str) -> str:
        return self.gap().join(parts)

    def gap(self) -> str:
        return choose(self.source, _GAPS)

    def maybe(self) -> str:
        return choose(self.source, ("", " ", " ", "  ", "\n\t"))

    def words(self, words: str) -> str:
        return self.joined(*map(self.word, words.split()))

    def word(self, word: str) -> str:
        return choose(self.source, (word, word, word.lower(), word.title(), word.swapcase()))

    def name(self, name: str) -> str:
        plain = _PLAIN.fullmatch(name) and not any(p.upper() in KEYWORDS for p in name.split("."))
        if plain and not one_in(self.source, 6):
            return name.replace(".", choose(self.source, (".", ".", " . ", ". ")))
        quote = choose(self.source, ('"', "`"))
        if "." in name and one_in(self.source, 2):
            dot = choose(self.source, (".", " . "))
            return dot.join(_quoted(part, quote) for part in name.split("."))
        return _quoted(name, quote)

    def operand(self, operand: Operand) -> str:
        if isinstance(operand, Parameter):
            return f":{operand.name}"
        value = operand.value
        if value is None or isinstance(value, bool):
            return self.word({None: "NULL", True: "TRUE", False: "FALSE"}[value])
        if isinstance(value, str):
            return _string(value)
        if isinstance(value, dt.datetime):
            return f"{self.word('TIMESTAMP')}{self.maybe()}{_string(self.moment(value))}"
        return self.number(operand)

    def number(self, operand: Literal) -> str:
        value = operand.value
        text = repr(value)
        if isinstance(value, float):
            mantissa = repr(abs(value))
            if mantissa.endswith(".0") and one_in(self.source, 3):
                text = text.removesuffix("0")
            elif mantissa.startswith("0.") and one_in(self.source, 3):
                text = text.replace("0.", ".", 1)
            elif "e" not in text and one_in(self.source, 4):
                text += choose(self.source, ("e0", "E+0", "e-0", "00"))
            elif one_in(self.source, 4):
                text = text.upper()
        elif one_in(self.source, 8):
            text = text.replace("-", "-00") if text.startswith("-") else "00" + text
        if not text.startswith("-") and one_in(self.source, 8):
            text = "+" + text
        if text[0] in "+-" and one_in(self.source, 8):
            text = text[0] + " " + text[1:]
        return text

    def moment(self, value: dt.datetime) -> str:
        if 1 < value.year < 9999 and one_in(self.source, 3):
            hours = dt.timezone(dt.timedelta(hours=choose(self.source, (2, -5, 9))))
            value = value.astimezone(hours)
        elif one_in(self.source, 2):
            value = value.replace(tzinfo=None)
        text = value.isoformat(sep=choose(self.source, ("T", " ")))
        if value.tzinfo is None:
            text = text.removesuffix("T00:00:00").removesuffix(" 00:00:00")
        return text.replace("+00:00", choose(self.source, ("+00:00", "Z")))


def _string(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _quoted(name: str, quote: str) -> str:
    return quote + name.replace(quote, quote * 2) + quote
