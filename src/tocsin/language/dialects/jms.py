"""Message selectors → expression: Jakarta Messaging 3.1, and what AMQP's SQL filters add.

Enters: the text of a selector. Leaves: an expression that is true where the selector is. Selectors
have three-valued logic as our language has, with one difference: a comparison of two values of
which neither is NULL and that are of unlike types is false, not unknown, so that NOT makes it true.

The specifications: https://jakarta.ee/specifications/messaging/3.1/ (section 3.8.1, message
selectors) and https://docs.oasis-open.org/amqp/filtex/v1.0/csd01/ (AMQP Filter Expressions 1.0,
Committee Specification Draft 01), which adds strings in order, functions, `%`, `!=`, EXISTS, and
the sections of a message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tocsin.language.computed import compare, fold_constants, static_kind, to_condition
from tocsin.language.dialects.reader import (
    Decision,
    Reader,
    Truth,
    call,
    fixed,
    literal,
    negation,
    pattern_of,
)
from tocsin.language.expression import (
    Between,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    conjoin,
    disjoin,
)
from tocsin.language.functions import ALIASES, FUNCTIONS, NUMBERS
from tocsin.language.printer import name_of
from tocsin.language.terms import (
    Attribute,
    Call,
    Case,
    Cast,
    Exists,
    Interval,
    Literal,
    Parameter,
    Term,
    Test,
)
from tocsin.language.timestamps import parse_timestamp
from tocsin.model import INT64_MAX, INT64_MIN, Kind, to_microseconds

_TOKENS = re.compile(
    r"""(?P<name>[^\W\d][\w$]*|\$[\w$]*)
      | (?P<number>0[xX][0-9a-fA-F_]+[lL]?|0[bB][01_]+[lL]?
          |(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lLfFdD]?)
      | (?P<string>'(?:[^']|'')*')
      | (?P<op><>|!=|<=|>=|[=<>+\-*/%(),.])""",
    re.VERBOSE,
)
_KEYWORDS = frozenset(
    ("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE")
)
_INVERSE = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")
_VALUE = "an identifier, a literal or ("
_HIDDEN = frozenset(
    ("JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered", "JMSDeliveryTime")
)
"""Header fields that a selector must not name."""
_SECTIONS = {
    "h": "header", "header": "header", "p": "properties", "properties": "properties",
    "a": "", "application-properties": "",
    "d": None, "delivery-annotations": None, "m": None, "message-annotations": None,
    "f": None, "footer": None,
}  # fmt: skip
"""Where the fields of AMQP's sections are; None: not in the events that we have."""
_FIELDS = {
    "header": ("durable", "priority", "ttl", "first-acquirer", "delivery-count"),
    "properties": (
        "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type",
        "content-encoding", "absolute-expiry-time", "creation-time", "group-id", "group-sequence",
        "reply-to-group-id",
    ),
}  # fmt: skip
_DEFAULTS: dict[str, int | bool] = {
    "header.priority": 4,
    "header.durable": False,
    "header.first-acquirer": False,
    "header.delivery-count": 0,
}
"""What a field of the header is where a message does not have it."""
_FUNCTIONS = frozenset(
    ("LOWER", "UPPER", "LENGTH", "LEN", "CHAR_LENGTH", "TRIM", "LTRIM", "RTRIM", "SUBSTRING",
     "SUBSTR", "CONCAT", "REPLACE", "ABS", "ROUND", "FLOOR", "CEIL", "CEILING", "SQRT", "POWER",
     "MOD", "COALESCE", "NULLIF")
)  # fmt: skip
"""Functions that are those of our language by the same name."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """A timestamp of AMQP: milliseconds since 1970."""

    term: Term


_Node: TypeAlias = Term | _Moment | Decision


def parse(text: str) -> Expression:
    """Parse the text of a selector.

    >>> parse("JMSType = 'car' AND weight > 2500").operands[1]
    Comparison(attribute='weight', op='>', operand=Literal(value=2500, kind=Kind.INTEGER))
    """
    return _Parser(text).selector()


class _Parser(Reader):
    def __init__(self, text: str) -> None:
        super().__init__(text, _TOKENS, _KEYWORDS)

    def selector(self) -> Expression:
        if self.kind == "END":  # no selector: all messages
            return Constant(True)
        node = self.condition()
        if self.kind != "END":
            self.refuse("AND, OR or the end")
        return self.decision(node)(True)

    def condition(self) -> _Node:
        return self.chain("OR", lambda: self.chain("AND", self.negated))

    def chain(self, op: str, read: Callable[[], _Node]) -> _Node:
        first = read()
        if self.kind != op:
            return first
        parts = [self.decision(first)]
        while self.skip(op):
            parts.append(self.decision(read()))
        return self.some(parts) if op == "OR" else self.every(parts)

    def negated(self) -> _Node:
        if not self.skip("NOT"):
            return self.predicate()
        self.enter()
        of = negation(self.decision(self.negated()))
        self.depth -= 1
        return of

    def decision(self, node: _Node) -> Decision:
        """Return what stands where a condition is needed; a value that is no boolean is unknown."""
        if not isinstance(node, _TERMS):
            return node
        if isinstance(node, Literal):
            if node.kind is not Kind.BOOLEAN:
                self.refuse("a comparison operator")
            return fixed(node.value is True)
        if isinstance(node, _Moment) or static_kind(node) not in (None, Kind.BOOLEAN):
            return fixed(None)
        if isinstance(node, Attribute):
            return lambda truth: compare("=", node, literal(truth is True))
        return lambda truth: to_condition(node) if truth else compare("=", node, literal(False))

    def term(self, node: _Node) -> Term | _Moment:
        """Return what stands where a value is needed."""
        if not isinstance(node, _TERMS):
            self.fail("a condition is no value", self.at - 1, "a value")
        return node

    def predicate(self) -> _Node:
        left = self.sum()
        op = self.skip(*_COMPARISONS)
        if op is not None:
            right = self.term(self.sum())
            return _compared("<>" if op == "!=" else op, self.term(left), right)
        if self.skip("IS"):
            is_null = self.skip("NOT") is None
            self.expect("NULL", "NULL" if not is_null else "NULL or NOT NULL")
            return _is_null(self.plain(left), is_null)
        negated = self.kind == "NOT"
        kind = self.kinds[self.at + negated]
        if kind not in ("BETWEEN", "IN", "LIKE"):
            return left
        subject = self.term(left)
        self.at += 1 + negated
        if kind == "BETWEEN":
            of = self.between(subject)
        else:
            of = self.membership(subject) if kind == "IN" else self.like(self.plain(left))
        return negation(of) if negated else of

    def between(self, subject: Term | _Moment) -> Decision:
        low = self.term(self.sum())
        self.expect("AND", "AND")
        high = self.term(self.sum())
        bounds = (low, high)
        both = self.every([_arithmetic(">=", subject, low), _arithmetic("<=", subject, high)])
        if not isinstance(subject, Attribute) or not all(map(_is_number, bounds)):
            return both
        plain = Between(subject.name, *bounds)  # type: ignore[arg-type]
        outside = disjoin([replace(plain, negated=True), _unlike(subject, low, ">=")])  # type: ignore[arg-type]
        return lambda truth: plain if truth else outside

    def membership(self, subject: Term | _Moment) -> Decision:
        self.expect("(", "( and a list of values")
        items = [self.term(self.sum())]
        while self.skip(","):
            items.append(self.term(self.sum()))
        self.expect(")", ", or )")
        strings = [i for i in items if isinstance(i, Literal) and i.kind is Kind.STRING]
        if len(strings) < len(items) or isinstance(subject, _Moment | Literal):
            return self.some([_compared("=", subject, item) for item in items])
        name = name_of(subject)
        outside = _unlike(subject, strings[0], "=")
        return lambda truth: (
            In(name, tuple(strings))
            if truth
            else fold_constants(disjoin([In(name, tuple(strings), True), outside]))
        )

    def like(self, subject: Term) -> Decision:
        if self.kind != "string":
            self.refuse("a pattern: a string")
        start = self.at
        text, escape = self.string(), None
        if self.skip("ESCAPE"):
            if self.kind != "string":
                self.refuse("a string of one character")
            escape = self.string()
            if len(escape) != 1:
                self.fail("ESCAPE takes one character", self.at - 1)
        characters = _pattern(text, escape)
        if characters is None:
            self.fail("a pattern ends with the escape character", start)
        pattern, escape = pattern_of(characters)
        if isinstance(subject, Literal):
            fits = call("like", subject, literal(pattern), literal(escape))
            assert isinstance(fits, Literal)
            return fixed(None if fits.value is None else fits.value is True)
        name = name_of(subject)
        return lambda truth: Like(name, literal(pattern), escape, not truth)

    # Values.

    def sum(self) -> _Node:
        depth, left = self.depth, self.product()
        while (op := self.skip("+", "-")) is not None:
            self.enter()
            left = self.operation(op, left, self.product())
        self.depth = depth
        return left

    def product(self) -> _Node:
        depth, left = self.depth, self.sign()
        while (op := self.skip("*", "/", "%")) is not None:
            self.enter()
            left = self.operation(op, left, self.sign())
        self.depth = depth
        return left

    def operation(self, op: str, left: _Node, right: _Node) -> _Node:
        a, b = self.term(left), self.term(right)
        result = call(op, _number(a), _number(b))
        is_moment = isinstance(a, _Moment) or isinstance(b, _Moment)
        return _Moment(result) if is_moment and op in ("+", "-") else result

    def sign(self) -> _Node:
        op = self.skip("+", "-")
        if op is None:
            return self.primary()
        if self.kind == "number":
            return self.number(op)
        self.enter()
        inner = _number(self.term(self.sign()))
        self.depth -= 1
        negative = call("neg", inner)
        return negative if op == "-" else call("neg", negative)

    def primary(self) -> _Node:
        kind = self.kind
        if kind == "number":
            return self.number()
        if kind == "string":
            return literal(self.string())
        if kind in ("TRUE", "FALSE"):
            self.at += 1
            return literal(kind == "TRUE")
        if kind == "(":
            self.enter()
            self.at += 1
            node = self.condition()
            self.expect(")", "AND, OR or )")
            self.depth -= 1
            return node
        if kind != "name":
            self.refuse(_VALUE)
        if self.kinds[self.at + 1] == "(":
            return self.function()
        return self.identifier()

    def plain(self, node: _Node) -> Term:
        term = self.term(node)
        return term.term if isinstance(term, _Moment) else term

    def string(self) -> str:
        return self.take()[1:-1].replace("''", "'")

    def number(self, sign: str = "+") -> Literal:
        value = _read_number(sign, self.texts[self.at])
        if value is None:
            self.fail("not a number")
        if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
            self.fail("an integer literal does not fit 64 bits")
        if isinstance(value, float) and math.isinf(value):
            self.fail("a number literal is beyond the range of 64-bit floats")
        self.at += 1
        if self.kind == "name" and self.positions[self.at] == self.positions[self.at - 1] + len(
            self.texts[self.at - 1]
        ):
            self.fail("a number runs into a name", self.at - 1)
        return literal(value)

    def identifier(self) -> Term:
        start = self.at
        section = self.spelled(f"{name}." for name in _SECTIONS)
        if section is not None:
            inside = _SECTIONS[section[:-1]]
            if inside is None:
                self.fail(f"the section {section[:-1]} is not in the events", start)
            return self.field(inside) if inside else Attribute(self.path(self.name()))
        path = self.path(self.name())
        if path in _HIDDEN:
            self.fail(f"a selector cannot name the header field {path}", start)
        return Attribute(path)

    def name(self) -> str:
        if self.kind != "name":
            self.refuse("a name")
        return self.take()

    def path(self, first: str) -> str:
        """Read the rest of a path with dots."""
        while self.skip("."):
            first += "." + self.name()
        return first

    def spelled(self, names: Iterable[str]) -> str | None:
        """Read one of some names, which may have hyphens: the longest that stands next."""
        for name in sorted(names, key=len, reverse=True):
            pieces = re.findall(r"\w+|\W", name)
            stands = self.texts[self.at : self.at + len(pieces)] == pieces
            if stands and self.text.startswith(name, self.positions[self.at]):
                self.at += len(pieces)
                return name
        return None

    def field(self, section: str) -> Term:
        """Read the field of a section."""
        name = self.spelled(_FIELDS[section])
        if name is None:
            self.fail(f"the section {section} has no such field")
        path = f"{section}.{name}"
        if path in _DEFAULTS:
            return call("coalesce", Attribute(path), literal(_DEFAULTS[path]))
        return Attribute(path)

    # Functions.

    def function(self) -> _Node:
        start = self.at
        name = self.take().upper()
        self.enter()
        self.at += 1
        arguments: list[Term | _Moment] = []
        while self.kind != ")" or arguments:
            arguments.append(self.term(self.condition()))
            if not self.skip(","):
                break
        self.expect(")", ", or )")
        self.depth -= 1
        node = self.applied(name, [_number(a) for a in arguments], start)
        if node is None:
            self.fail(f"there is no function {name} with {len(arguments)} arguments", start)
        return node

    def applied(self, name: str, arguments: list[Term], start: int) -> _Node | None:
        count = len(arguments)
        if name == "UTC" and count <= 1:
            return self.moment(arguments, start)
        if name == "EXISTS" and count == 1:
            return _is_null(arguments[0], False)
        if name in ("LEFT", "RIGHT") and count == 2:
            return _end_of(name, *arguments)
        ours = ALIASES.get(name.lower(), name.lower())
        function = FUNCTIONS.get(ours)
        if name not in _FUNCTIONS or function is None:
            return None
        return call(ours, *arguments) if function.least <= count <= function.most else None

    def moment(self, arguments: list[Term], start: int) -> _Moment:
        """Read UTC(), which is now, or UTC('2026-07-01T12:30:00Z')."""
        if not arguments:
            epoch: Term = Call("extract", (literal("epoch"), Call("now", ())))
            return _Moment(Cast(call("*", epoch, literal(1000)), Kind.INTEGER))
        text = arguments[0].value if isinstance(arguments[0], Literal) else None
        moment = parse_timestamp(text) if isinstance(text, str) else None
        if moment is None:
            self.fail("UTC takes the text of a timestamp", start + 2, "'YYYY-MM-DDThh:mm:ssZ'")
        return _Moment(literal(to_microseconds(moment) // 1000))


def _compared(op: str, left: Term | _Moment, right: Term | _Moment) -> Decision:
    """Compare two values: false where they are of unlike types, unknown where one is NULL."""
    a, b = _comparable(left, right), _comparable(right, left)
    if isinstance(a, Literal) and not isinstance(b, Literal):
        a, b, op = b, a, {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op)
    is_ordered = op not in ("=", "<>")
    if is_ordered and Kind.BOOLEAN in (static_kind(a), static_kind(b)):
        return _never(a, b)

    def decided(truth: Truth) -> Expression:
        if truth:
            true = compare(op, a, b)
            if is_ordered and static_kind(a) is None and static_kind(b) is None:
                kind = name_of(call("typeof", a))
                return conjoin([true, Comparison(kind, "<>", literal("boolean"))])
            return true
        return fold_constants(disjoin([compare(_INVERSE[op], a, b), _unlike(a, b, op)]))

    return decided


def _never(a: Term, b: Term) -> Decision:
    """Return what is false where both values are there, and unknown elsewhere."""
    present = [_is_null(term, False) for term in (a, b)]
    return lambda truth: (
        Constant(False) if truth else fold_constants(conjoin([of(True) for of in present]))
    )


def _unlike(a: Term, b: Term, op: str) -> Expression:
    """Return whether two values are there and cannot be compared."""
    if isinstance(a, Literal) and isinstance(b, Literal):
        is_unlike = None not in (a.kind, b.kind) and compare(op, a, b) == Constant(None)
        return Constant(is_unlike)
    a_kind, b_kind = static_kind(a), static_kind(b)
    if b_kind is None:
        a, b, a_kind, b_kind = b, a, b_kind, a_kind
    if a_kind is not None and b_kind is not None:
        if a_kind is b_kind or {a_kind, b_kind} <= NUMBERS:
            return Constant(False)
        return _never(a, b)(False)
    kinds = call("typeof", a)
    if b_kind is not None:
        like = NUMBERS if b_kind in NUMBERS else (b_kind,)
        names = tuple(literal(name) for name in sorted(kind.value for kind in like))
        differs: Expression = In(name_of(kinds), names, True)
        if len(names) == 1:
            differs = Comparison(name_of(kinds), "<>", names[0])
        present = [] if isinstance(b, Literal) else [_is_null(b, False)(True)]
        return conjoin([differs, *present])
    first, second = (
        call("replace", call("typeof", of), literal("float"), literal("integer")) for of in (a, b)
    )
    unlike = compare("<>", first, second)
    if op in ("=", "<>"):
        return unlike
    booleans = [compare("=", call("typeof", of), literal("boolean")) for of in (a, b)]
    return disjoin([unlike, conjoin(booleans)])


def _arithmetic(op: str, left: Term | _Moment, right: Term | _Moment) -> Decision:
    """Compare numbers; a string or a boolean as a bound has no order."""
    kinds = {static_kind(_number(of)) for of in (left, right)}
    return fixed(None) if kinds & {Kind.STRING, Kind.BOOLEAN} else _compared(op, left, right)


def _is_null(term: Term, is_null: bool) -> Decision:
    if isinstance(term, Literal):
        return fixed((term.value is None) is is_null)
    name = name_of(term)
    return lambda truth: IsNull(name, is_null is not truth)


def _number(value: Term | _Moment) -> Term:
    return value.term if isinstance(value, _Moment) else value


def _comparable(value: Term | _Moment, other: Term | _Moment) -> Term:
    """Return a value to be compared with another; with a moment, a timestamp is milliseconds."""
    if isinstance(value, _Moment):
        return value.term
    if not isinstance(other, _Moment) or not isinstance(value, Attribute):
        return value
    epoch = call("*", call("extract", literal("epoch"), value), literal(1000))
    is_moment = Comparison(name_of(call("typeof", value)), "=", literal("timestamp"))
    return Case(((is_moment, Cast(epoch, Kind.INTEGER)),), value)


def _is_number(term: Term | _Moment) -> bool:
    return isinstance(term, Literal) and term.kind in NUMBERS


def _end_of(name: str, text: Term, count: Term) -> Term:
    """Return the first or the last characters of a text."""
    none = call("substring", text, literal(1), literal(0))
    if name == "LEFT":
        return call("substring", text, literal(1), call("greatest", count, literal(0)))
    end = call("substring", text, call("neg", count))
    if isinstance(count, Literal):
        return end if compare(">", count, literal(0)) == Constant(True) else none
    return Case(((compare(">", count, literal(0)), end),), none)


def _pattern(text: str, escape: str | None) -> Sequence[tuple[str, bool]] | None:
    """Return the characters of a pattern, and which are wildcards; None where it ends escaped."""
    characters: list[tuple[str, bool]] = []
    is_escaped = False
    for char in text:
        if not is_escaped and char == escape:
            is_escaped = True
            continue
        characters.append((char, not is_escaped and char in "%_"))
        is_escaped = False
    return None if is_escaped else characters


def _read_number(sign: str, piece: str) -> int | float | None:
    """Return the number that a literal of Java is, or None."""
    text = piece.replace("_", "")
    try:
        if text[:2] in ("0x", "0X"):
            return int(sign + text.rstrip("lL"), 16)
        if text[:2] in ("0b", "0B"):
            return int(sign + text.rstrip("lL"), 2)
        if re.fullmatch("[0-9]+[lL]?", text):
            digits = text.rstrip("lL")
            is_octal = len(digits) > 1 and digits[0] == "0"
            if len(digits) > _MAX_DIGITS:
                return INT64_MAX + 1
            return int(sign + digits, 8 if is_octal else 10)
        return float(sign + text.rstrip("fFdD"))
    except ValueError:
        return None


_MAX_DIGITS = 1_000
_TERMS = (
    Literal, Parameter, Attribute, Interval, Call, Case, Cast, Test, Exists, _Moment,
)  # fmt: skip
