"""Text → expression: a recursive-descent parser of the native language.

Enters: the text of a condition. Leaves: an expression. `docs/language.md` is the specification.
What is SQL but not in our subset is refused by its name, never ignored.

A hand-written parser serves better here than a general one: an event's language has a dozen
productions, bulk loads meet thousands of shapes, and errors can say what was expected.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import NoReturn

from tocsin.errors import ConditionSyntaxError, UnsupportedSyntaxError
from tocsin.language.expression import (
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
    Parameter,
    Truth,
    conjoin,
    disjoin,
)
from tocsin.language.tokens import tokenize
from tocsin.model import INT64_MAX, INT64_MIN, Kind, Value

MAX_DEPTH = 100
"""How deep parentheses and NOTs may nest: far beyond use, well within Python's stack."""

_COMPARISONS = frozenset(("=", "<>", "<", "<=", ">", ">="))
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_FOREIGN_MARKS = {
    "+": "arithmetic (+)",
    "-": "arithmetic (-)",
    "*": "arithmetic (*)",
    "/": "arithmetic (/)",
    "%": "arithmetic (%)",
    "||": "concatenation (||)",
    "::": "a cast (::)",
    "<=>": "the null-safe comparison (<=>)",
    "->": "a JSON path (->)",
    "->>": "a JSON path (->>)",
    "[": "indexing ([ ])",
    "?": "a positional parameter (?)",
    "~": "the regular-expression operator (~)",
    "&": "a bit operator (&)",
    "|": "a bit operator (|)",
    "^": "the operator ^",
    ";": "a second statement (;)",
}
_SQL_WORDS = frozenset(
    "ALL ANY CASE CAST COLLATE CONTAINS DISTINCT DIV EXISTS GLOB ILIKE INTERVAL ISNULL MATCH "
    "NOTNULL REGEXP RLIKE SELECT SIMILAR SOME SYMMETRIC XOR".split()
)


def parse(text: str) -> Expression:
    """Parse the text of a condition.

    >>> parse("price IS NOT NULL")
    IsNull(attribute='price', negated=True)
    """
    return _Parser(text, lift=False).condition()


def parse_shape(text: str) -> tuple[Expression, int] | None:
    """Parse a text with its number, string and timestamp literals lifted out.

    They become parameters numbered from 0 in the order of the text. Returns the expression and the
    number of literals, or None when the expression's structure depends on its literals (two
    constants compared), so that the text must be parsed by itself.
    """
    parser = _Parser(text, lift=True)
    expression = parser.condition()
    return None if parser.folded else (expression, parser.n_lifted)


class _Parser:
    """One use: a text, its tokens and the place reached."""

    def __init__(self, text: str, *, lift: bool) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConditionSyntaxError("not valid Unicode", text, error.start) from None
        self.text = text
        self.kinds, self.texts, self.positions = tokenize(text)
        self.at = 0
        self.depth = 0
        self.lift = lift
        self.n_lifted = 0
        self.folded = False

    def condition(self) -> Expression:
        expression = self.disjunction()
        if self.kinds[self.at] != "END":
            self.refuse("AND, OR or the end")
        return expression

    def disjunction(self) -> Expression:
        parts = [self.conjunction()]
        while self.kinds[self.at] == "OR":
            self.at += 1
            parts.append(self.conjunction())
        return disjoin(parts)

    def conjunction(self) -> Expression:
        parts = [self.negation()]
        while self.kinds[self.at] == "AND":
            self.at += 1
            parts.append(self.negation())
        return conjoin(parts)

    def negation(self) -> Expression:
        kind = self.kinds[self.at]
        if kind != "NOT" and kind != "(":
            return self.predicate()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nested more than {MAX_DEPTH} deep")
        self.at += 1
        expression: Expression
        if kind == "NOT":
            expression = Not(self.negation())
        else:
            expression = self.disjunction()
            self.expect(")", "AND, OR or )")
        self.depth -= 1
        return expression

    def predicate(self) -> Expression:
        kind = self.kinds[self.at]
        if kind == "name" or kind == "quoted":
            if self.starts_timestamp():
                return self.literal_first()
            return self.attribute_first()
        if kind in ("TRUE", "FALSE", "NULL"):
            following = self.kinds[self.at + 1]
            if following not in _COMPARISONS:
                self.at += 1
                return Constant({"TRUE": True, "FALSE": False, "NULL": None}[kind])
        if kind in ("number", "string", "param", "-", "+", "TRUE", "FALSE", "NULL"):
            return self.literal_first()
        self.refuse("an attribute, a literal, NOT or (")

    def attribute_first(self) -> Expression:
        attribute = self.attribute()
        kind = self.kinds[self.at]
        if kind in _COMPARISONS:
            self.at += 1
            if self.kinds[self.at] == "(":
                self.fail_unsupported("an expression in parentheses as an operand")
            return Comparison(attribute, kind, self.operand())
        negated = kind == "NOT"
        if negated:
            self.at += 1
            kind = self.kinds[self.at]
        if kind == "BETWEEN":
            self.at += 1
            low = self.operand()
            self.expect("AND", "AND")
            return Between(attribute, low, self.operand(), negated)
        if kind == "IN":
            self.at += 1
            return In(attribute, self.operand_list(), negated)
        if kind == "LIKE":
            self.at += 1
            return self.like(attribute, negated)
        if negated:
            self.refuse("BETWEEN, IN or LIKE")
        if kind == "IS":
            self.at += 1
            return self.is_null(attribute)
        if kind not in ("AND", "OR", ")", "END"):
            if kind == "string" and self.kinds[self.at - 1] == "name":
                self.at -= 1
                self.fail_other_literal()
            self.refuse("an operator (=, <>, <, <=, >, >=, BETWEEN, IN, LIKE or IS)")
        return Truth(attribute)

    def literal_first(self) -> Expression:
        start = self.at
        left = self.operand()
        op = self.kinds[self.at]
        if op not in _COMPARISONS:
            if op in ("BETWEEN", "IN", "LIKE", "IS", "NOT"):
                self.fail_unsupported(f"a literal on the left of {op}")
            self.refuse("a comparison operator")
        self.at += 1
        if self.kinds[self.at] in ("name", "quoted") and not self.starts_timestamp():
            return Comparison(self.attribute(), _FLIPPED[op], left)
        right = self.operand()
        self.folded = True
        if isinstance(left, Literal) and isinstance(right, Literal):
            return Constant(compare_constants(op, left, right))
        if self.lift:
            return Constant(None)
        self.fail("a parameter is compared with a constant", start, "an attribute on one side")

    def like(self, attribute: str, negated: bool) -> Expression:
        if self.kinds[self.at] not in ("string", "param", "NULL"):
            self.refuse("a pattern: a string or a parameter")
        pattern = self.operand()
        escape = None
        if self.kinds[self.at] == "ESCAPE":
            self.at += 1
            if self.kinds[self.at] != "string":
                self.refuse("a string of one character")
            escape = self.string()
            if len(escape) != 1:
                self.fail("ESCAPE takes one character", self.positions_at(-1))
        if isinstance(pattern, Literal) and isinstance(pattern.value, str) and escape is not None:
            self.check_escapes(pattern.value, escape)
        return Like(attribute, pattern, escape, negated)

    def check_escapes(self, pattern: str, escape: str) -> None:
        if not escapes_are_sound(pattern, escape):
            self.fail(
                "in a pattern the escape character must stand before %, _ or itself",
                self.positions_at(-3),
            )

    def is_null(self, attribute: str) -> Expression:
        negated = self.kinds[self.at] == "NOT"
        if negated:
            self.at += 1
        kind = self.kinds[self.at]
        if kind in ("TRUE", "FALSE"):
            self.fail_unsupported(f"IS {kind}")
        if kind == "name" and self.texts[self.at].upper() in ("DISTINCT", "UNKNOWN"):
            self.fail_unsupported(f"IS {self.texts[self.at].upper()}")
        self.expect("NULL", "NULL" if negated else "NULL or NOT NULL")
        return IsNull(attribute, negated)

    def attribute(self) -> str:
        parts = [self.name_part()]
        while self.kinds[self.at] == ".":
            self.at += 1
            if self.kinds[self.at] in ("name", "quoted"):
                parts.append(self.name_part())
            elif self.texts[self.at].isidentifier():  # a keyword is a name after a dot
                parts.append(self.texts[self.at])
                self.at += 1
            else:
                self.refuse("the rest of the attribute's path")
        if self.kinds[self.at] == "(":
            self.fail_unsupported(f"the function {parts[-1]}(…)", self.positions_at(-1))
        return parts[0] if len(parts) == 1 else ".".join(parts)

    def name_part(self) -> str:
        kind, piece = self.kinds[self.at], self.texts[self.at]
        if kind == "name":
            if piece.upper() in _SQL_WORDS and self.kinds[self.at + 1] not in _NAME_FOLLOWERS:
                self.fail_unsupported(piece.upper())
            self.at += 1
            return piece
        quote = piece[0]
        name = piece[1:-1].replace(quote * 2, quote)
        if not name:
            self.fail("an attribute's name is empty")
        self.at += 1
        return name

    def operand_list(self) -> tuple[Operand, ...]:
        self.expect("(", "( and a list of literals")
        if self.kinds[self.at] == "name" and self.texts[self.at].upper() == "SELECT":
            self.fail_unsupported("a subquery")
        operands = [self.operand()]
        while self.kinds[self.at] == ",":
            self.at += 1
            operands.append(self.operand())
        self.expect(")", ", or )")
        return tuple(operands)

    def operand(self) -> Operand:
        kind = self.kinds[self.at]
        if kind == "param":
            self.at += 1
            return Parameter(self.texts[self.at - 1][1:])
        literal = self.literal()
        if self.lift and literal.kind not in (None, Kind.BOOLEAN):
            self.n_lifted += 1
            return Parameter(self.n_lifted - 1)
        return literal

    def literal(self) -> Literal:
        kind = self.kinds[self.at]
        if kind == "string":
            return Literal(self.string(), Kind.STRING)
        if kind == "number" or kind == "-" or kind == "+":
            return self.number()
        if kind == "TRUE" or kind == "FALSE":
            self.at += 1
            return Literal(kind == "TRUE", Kind.BOOLEAN)
        if kind == "NULL":
            self.at += 1
            return Literal(None, None)
        if self.starts_timestamp():
            self.at += 1
            return self.timestamp()
        if kind == "name" or kind == "quoted":
            if self.kinds[self.at + 1] == "(":
                self.fail_unsupported(f"the function {self.texts[self.at]}(…)")
            if self.texts[self.at].upper() in _SQL_WORDS:
                self.fail_unsupported(self.texts[self.at].upper())
            if kind == "name" and self.kinds[self.at + 1] == "string":
                self.fail_other_literal()
            self.fail_unsupported("a comparison between two attributes")
        self.refuse("a literal or a parameter")

    def string(self) -> str:
        self.at += 1
        return self.texts[self.at - 1][1:-1].replace("''", "'")

    def number(self) -> Literal:
        sign = self.texts[self.at] if self.kinds[self.at] in ("-", "+") else ""
        if sign:
            self.at += 1
            if self.kinds[self.at] != "number":
                self.fail_unsupported(f"arithmetic ({sign})", self.positions_at(-1))
        piece = self.texts[self.at]
        position = self.positions[self.at]
        self.at += 1
        value: Value
        if piece.isdigit():
            digits = piece.lstrip("0")  # they say nothing, however many there are
            value = int(sign + (digits or "0")) if len(digits) < 20 else INT64_MAX + 1
            if not INT64_MIN <= value <= INT64_MAX:
                self.fail("an integer literal does not fit 64 bits", position)
            return Literal(value, Kind.INTEGER)
        value = float(sign + piece)
        if math.isinf(value):
            self.fail("a number literal is beyond the range of 64-bit floats", position)
        return Literal(value, Kind.FLOAT)

    def starts_timestamp(self) -> bool:
        return (
            self.kinds[self.at] == "name"
            and self.kinds[self.at + 1] == "string"
            and self.texts[self.at].upper() == "TIMESTAMP"
            and self.texts[self.at].isascii()
        )

    def timestamp(self) -> Literal:
        position = self.positions[self.at]
        moment = parse_timestamp(self.string())
        if moment is None:
            self.fail("not a timestamp", position, "'YYYY-MM-DD[ hh:mm[:ss[.ffffff]][±hh:mm]]'")
        return Literal(moment, Kind.TIMESTAMP)

    def expect(self, kind: str, expected: str) -> None:
        if self.kinds[self.at] != kind:
            self.refuse(expected)
        self.at += 1

    def refuse(self, expected: str) -> NoReturn:
        """Refuse the token reached, by name where it is SQL that we do not take."""
        kind, piece = self.kinds[self.at], self.texts[self.at]
        if kind in _FOREIGN_MARKS:
            self.fail_unsupported(_FOREIGN_MARKS[kind])
        if kind == "name" and piece.upper() in _SQL_WORDS:
            self.fail_unsupported(piece.upper())
        what = "the text ends too early" if kind == "END" else f"unexpected {piece}"
        self.fail(what, None, expected)

    def positions_at(self, offset: int) -> int:
        return self.positions[self.at + offset]

    def fail(
        self, message: str, position: int | None = None, expected: str | None = None
    ) -> NoReturn:
        place = self.positions[self.at] if position is None else position
        raise ConditionSyntaxError(message, self.text, place, expected)

    def fail_other_literal(self) -> NoReturn:
        self.fail_unsupported(f"a literal of the form {self.texts[self.at]} '…'")

    def fail_unsupported(self, feature: str, position: int | None = None) -> NoReturn:
        place = self.positions[self.at] if position is None else position
        raise UnsupportedSyntaxError(feature, self.text, place)


_NAME_FOLLOWERS = _COMPARISONS | {
    "BETWEEN",
    "IN",
    "LIKE",
    "IS",
    "NOT",
    "AND",
    "OR",
    ")",
    ".",
    "END",
}


def escapes_are_sound(pattern: str, escape: str) -> bool:
    """Whether each escape character in a pattern stands before %, _ or itself."""
    at = 0
    while at < len(pattern):
        if pattern[at] == escape:
            at += 1
            if at == len(pattern) or pattern[at] not in ("%", "_", escape):
                return False
        at += 1
    return True


_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d([T ]([01]\d|2[0-3]):\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII
)


def parse_timestamp(text: str) -> dt.datetime | None:
    """Return the UTC moment that an ISO 8601 text names (no zone: UTC), or None."""
    if _MOMENT.fullmatch(text.strip()) is None:  # Python would read other forms too, some wrongly
        return None
    try:
        moment = dt.datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            return moment.replace(tzinfo=dt.UTC)
        return moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return None


def compare_constants(op: str, left: Literal, right: Literal) -> bool | None:
    """Compare two literals under three-valued logic; None is unknown."""
    kinds = {left.kind, right.kind}
    if None in kinds or (len(kinds) == 2 and kinds != {Kind.INTEGER, Kind.FLOAT}):
        return None
    a, b = left.value, right.value
    if op == "=":
        return a == b
    if op == "<>":
        return a != b
    if op == "<":
        return a < b  # type: ignore[operator]
    if op == "<=":
        return a <= b  # type: ignore[operator]
    if op == ">":
        return a > b  # type: ignore[operator]
    return a >= b  # type: ignore[operator]
