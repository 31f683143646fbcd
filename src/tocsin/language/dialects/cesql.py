r"""CloudEvents SQL → expression: the filter language of CloudEvents, version 1.0.0.

Enters: the text of a filter. Leaves: an expression that is true where the filter is true without
an error, which is when an event passes (section 1.2 of the specification). A value of CESQL is a
term of ours that is absent where CESQL has an error; a Boolean is a decision that holds for neither
truth where it has one. An attribute is of the kind that it has in the event, so a comparison with
one is a choice by its kind where no simpler condition says the same.

The specification: https://github.com/cloudevents/spec/blob/cesql/v1.0.0/cesql/spec.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from tocsin.language.computed import canonical, compare, fold_constants
from tocsin.language.dialects.reader import (
    Decision,
    Reader,
    Truth,
    call,
    check_size,
    fixed,
    literal,
    negation,
    pattern_of,
)
from tocsin.language.expression import (
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    conjoin,
    disjoin,
)
from tocsin.language.expression import Truth as IsTrue
from tocsin.language.functions import cast, to_int32
from tocsin.language.printer import name_of
from tocsin.language.terms import Attribute, Case, Cast, Literal, Term
from tocsin.model import Kind

_TOKENS = re.compile(
    r"""(?P<name>[A-Za-z][A-Za-z0-9_]*|[0-9]+[A-Za-z][A-Za-z0-9]*)
      | (?P<number>[0-9]+)
      | (?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
      | (?P<op><>|!=|<=|>=|[=<>+\-*/%(),])""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(("AND", "OR", "XOR", "NOT", "LIKE", "IN", "EXISTS", "TRUE", "FALSE"))
_REQUIRED = frozenset(("id", "source", "specversion", "type"))
"""Attributes that every CloudEvent has."""
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""The white space of Unicode."""
_INVERSE = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_VALUE = "an attribute, a literal, a function or ("
_COUNTS = {
    "LENGTH": (1, 1), "CONCAT": (0, 200), "CONCAT_WS": (1, 100), "LOWER": (1, 1), "UPPER": (1, 1),
    "TRIM": (1, 1), "LEFT": (2, 2), "RIGHT": (2, 2), "SUBSTRING": (2, 3), "ABS": (1, 1),
    "INT": (1, 1), "BOOL": (1, 1), "STRING": (1, 1), "IS_INT": (1, 1), "IS_BOOL": (1, 1),
}  # fmt: skip
"""The functions, and how many arguments they take."""


@dataclass(frozen=True, slots=True)
class _Name:
    """An attribute, whose kind only the event has."""

    name: str

    @property
    def term(self) -> Term:
        return Attribute(self.name)


@dataclass(frozen=True, slots=True)
class _Number:
    """An integer of 32 bits; absent where there is an error."""

    term: Term

    def __post_init__(self) -> None:
        check_size(self.term)


@dataclass(frozen=True, slots=True)
class _Text:
    """A string; absent where there is an error."""

    term: Term

    def __post_init__(self) -> None:
        check_size(self.term)


@dataclass(frozen=True, slots=True)
class _Flag:
    """A Boolean; the value where it is a literal."""

    decision: Decision
    value: bool | None = None


_Value: TypeAlias = _Name | _Number | _Text | _Flag


def parse(text: str, prefix: str = "") -> Expression:
    """Parse the text of a filter; the names of its attributes follow a prefix.

    >>> parse("source = 'shop' AND EXISTS subject").operands[1]
    IsNull(attribute='subject', negated=True)
    """
    return _Parser(text, prefix).condition()


class _Parser(Reader):
    def __init__(self, text: str, prefix: str) -> None:
        super().__init__(text, _TOKENS, _KEYWORDS)
        self.prefix = prefix

    def condition(self) -> Expression:
        value = self.logic()
        if self.kind != "END":
            self.refuse("AND, OR, XOR or the end")
        if isinstance(value, _Name):
            return IsTrue(value.name)
        return value.decision(True) if isinstance(value, _Flag) else Constant(False)

    def logic(self) -> _Value:
        """Read AND, OR and XOR, which bind alike, from left to right."""
        depth, left = self.depth, self.comparison()
        while self.kind in ("AND", "OR", "XOR"):
            self.enter()  # what is to the left of another operator is within it
            op, parts = self.kind, [to_flag(left)]
            while self.skip(op):
                parts.append(to_flag(self.comparison()))
                if op == "XOR":
                    self.enter()
            if op == "XOR":
                left = _Flag(reduce(self.exclusive, parts))
            else:
                left = _Flag(self.in_order(parts, stop=op == "OR"))
        self.depth = depth
        return left

    def in_order(self, parts: Sequence[Decision], *, stop: bool) -> Decision:
        """Return AND or OR: a part is not evaluated where one before it decides.

        Where all parts before one have a truth, either one of them decides the same or that part is
        evaluated: which truth they have need not be said.
        """

        def decided(truth: Truth) -> Expression:
            self.spend()
            if truth is (not stop):
                return fold_constants(conjoin([part(truth) for part in parts]))
            before: dict[Expression, None] = {}
            deciding: list[Expression] = []
            for part in parts:
                deciding.append(conjoin([*before, part(stop)]))
                before[part(None)] = None
                self.spend(len(before))
            if truth is None:
                deciding.append(conjoin(list(before)))
            return fold_constants(disjoin(deciding))

        return decided

    def exclusive(self, a: Decision, b: Decision) -> Decision:
        def decided(truth: Truth) -> Expression:
            self.spend()
            if truth is None:
                return fold_constants(conjoin([a(None), b(None)]))
            pairs = [conjoin([a(left), b(left is not truth)]) for left in (True, False)]
            return fold_constants(disjoin(pairs))

        return decided

    def comparison(self) -> _Value:
        depth, left = self.depth, self.sum()
        while (op := self.skip("=", "!=", "<>", "<", "<=", ">", ">=")) is not None:
            self.enter()
            right = self.sum()
            if op in ("=", "!=", "<>"):
                equal = self.equal(left, right)
                left = _Flag(equal if op == "=" else negation(equal))
            else:
                left = _Flag(compared(op, to_number(left), to_number(right)))
        self.depth = depth
        return left

    def sum(self) -> _Value:
        depth, left = self.depth, self.product()
        while (op := self.skip("+", "-")) is not None:
            self.enter()
            left = _arithmetic(op, left, self.product())
        self.depth = depth
        return left

    def product(self) -> _Value:
        depth, left = self.depth, self.tested()
        while (op := self.skip("*", "/", "%")) is not None:
            self.enter()
            left = _arithmetic(op, left, self.tested())
        self.depth = depth
        return left

    def tested(self) -> _Value:
        """Read LIKE and IN, which bind more tightly than the other binary operators."""
        depth, left = self.depth, self.unary()
        while True:
            negated = self.kind == "NOT"
            if self.kinds[self.at + negated] not in ("LIKE", "IN"):
                self.depth = depth
                return left
            self.enter()
            self.at += negated
            of = self.like(left) if self.take().upper() == "LIKE" else self.membership(left)
            left = _Flag(negation(of) if negated else of)

    def unary(self) -> _Value:
        if self.kind not in ("NOT", "-", "+"):
            return self.primary()
        self.enter()
        op = self.take().upper()
        value: _Value
        if op != "NOT" and self.kind == "number":
            value = self.number(op)
        elif op == "+":
            self.refuse("a number after the sign")
        elif op == "-":
            value = _Number(call("int32", call("neg", to_number(self.unary()))))
        else:
            value = _Flag(negation(to_flag(self.unary())))
        self.depth -= 1
        return value

    def primary(self) -> _Value:
        kind = self.kind
        if kind == "number":
            return self.number()
        if kind == "string":
            return _Text(literal(_unquoted(self.take())))
        if kind in ("TRUE", "FALSE"):
            self.at += 1
            return _Flag(fixed(kind == "TRUE"), kind == "TRUE")
        if kind == "EXISTS":
            return self.exists()
        if kind == "(":
            self.enter()
            self.at += 1
            value = self.logic()
            self.expect(")", "AND, OR, XOR or )")
            self.depth -= 1
            return value
        if kind != "name":
            self.refuse(_VALUE)
        if self.kinds[self.at + 1] == "(":
            return self.function()
        return _Name(self.identifier())

    def identifier(self) -> str:
        if self.kind not in ("name", "number"):
            self.refuse("the name of an attribute")
        if "_" in self.texts[self.at]:
            self.fail("the name of a CloudEvents attribute has letters and digits only")
        return self.prefix + self.take()

    def number(self, sign: str = "") -> _Number:
        digits = self.texts[self.at].lstrip("0") or "0"
        value = to_int32(sign + digits)
        if value is None:
            self.fail("an integer literal does not fit 32 bits")
        self.at += 1
        return _Number(literal(value))

    def exists(self) -> _Flag:
        self.at += 1
        name = self.identifier()
        if name.removeprefix(self.prefix) in _REQUIRED:
            return _Flag(fixed(True))
        return _Flag(lambda truth: Constant(True) if truth is None else IsNull(name, truth))

    def like(self, left: _Value) -> Decision:
        if self.kind != "string":
            self.refuse("a pattern: a string")
        characters = list(_pattern(_unquoted(self.take())))
        pattern, escape = pattern_of(characters)
        is_plain = isinstance(left, _Name) and not _fits_others(characters)

        def decided(truth: Truth) -> Expression:
            self.spend()
            if truth is None:
                return _are_here(to_text(left))
            subject = left.term if is_plain and truth else to_text(left)  # type: ignore[union-attr]
            arguments = (subject, literal(pattern), literal(escape))
            if isinstance(subject, Literal):
                fits = call("like", *arguments)
                assert isinstance(fits, Literal)
                return Constant(None if fits.value is None else fits.value is truth)
            return Like(name_of(subject), literal(pattern), escape, not truth)

        return decided

    def membership(self, left: _Value) -> Decision:
        self.expect("(", "( and a set of values")
        items = [self.logic()]
        while self.skip(","):
            items.append(self.logic())
        self.expect(")", ", or )")
        if not isinstance(left, _Name):
            return self.among(left, items)
        general = self.by_kind(left, lambda of: self.among(of, items))
        if not all(map(_is_only_text, items)):
            return general
        plain = In(left.name, tuple(item.term for item in items))  # type: ignore[misc, union-attr]
        return lambda truth: plain if truth else general(truth)

    def among(self, left: _Value, items: Sequence[_Value]) -> Decision:
        """Compare with one value after the other, each cast to the kind of the first one."""
        if all(_is_literal(item) for item in items):
            return _truth_among(left, items) if isinstance(left, _Flag) else _among(left, items)
        return self.in_order([self.equal_as(left, left, item) for item in items], stop=True)

    # Comparisons.

    def equal(self, left: _Value, right: _Value) -> Decision:
        """Compare two values, the left one cast to the kind of the right one."""
        if isinstance(right, _Name):
            return self.by_kind(right, lambda of: self.equal_as(of, left, of))
        general = self.equal_as(right, left, right)
        if not isinstance(left, _Name) or not _is_only_text(right):
            return general
        plain = Comparison(left.name, "=", right.term)  # type: ignore[arg-type, union-attr]
        return lambda truth: plain if truth else general(truth)

    def equal_as(self, kind: _Value, left: _Value, right: _Value) -> Decision:
        """Compare two values cast to the kind of a value that is no attribute."""
        if isinstance(kind, _Flag):
            a, b = to_flag(left), to_flag(right)
            if isinstance(right, _Flag) and right.value is not None:
                return a if right.value else negation(a)
            return negation(self.exclusive(a, b))
        change = to_number if isinstance(kind, _Number) else to_text
        return compared("=", change(left), change(right))

    def by_kind(self, name: _Name, decide: Callable[[_Value], Decision]) -> Decision:
        """Decide by the kind that an attribute has in the event."""
        kind_of = name_of(call("typeof", name.term))
        number = decide(_Number(call("int32", name.term)))
        flag = decide(_Flag(to_flag(name)))
        text = decide(_Text(to_text(name)))
        others = (literal("integer"), literal("boolean"))

        def decided(truth: Truth) -> Expression:
            self.spend()
            of_kinds = [
                conjoin([In(kind_of, others, True), text(truth)]),
                conjoin([Comparison(kind_of, "=", others[0]), number(truth)]),
                conjoin([Comparison(kind_of, "=", others[1]), flag(truth)]),
            ]
            return fold_constants(disjoin(of_kinds))

        return decided

    # Functions.

    def function(self) -> _Value:
        start = self.at
        name = self.take().upper()
        self.enter()
        self.at += 1
        arguments: list[_Value] = []
        while self.kind != ")" or arguments:
            arguments.append(self.logic())
            if not self.skip(","):
                break
        self.expect(")", ", or )")
        self.depth -= 1
        counts = _COUNTS.get(name)
        if counts is None or not counts[0] <= len(arguments) <= counts[1]:
            what = f"there is no function {name} with {len(arguments)} arguments"
            self.fail(what, start)
        return _FUNCTIONS[name](arguments)


def compared(op: str, left: Term, right: Term) -> Decision:
    """Compare two terms of one kind; neither where one is absent."""

    def decided(truth: Truth) -> Expression:
        if truth is None:
            return _are_here(left, right)
        if literal(None) in (left, right):
            return Constant(None)
        return compare(op if truth else _INVERSE[op], left, right)

    return decided


def _are_here(*terms: Term) -> Expression:
    """Return whether terms are there: none of them has an error."""
    tests: list[Expression] = []
    for term in dict.fromkeys(terms):
        while isinstance(term, Cast) and term.kind is Kind.STRING:  # there if what is cast is
            term = term.term
        tests.append(_is_here(term, True))
    return fold_constants(conjoin(tests))


def _arithmetic(op: str, left: _Value, right: _Value) -> _Number:
    a, b = to_number(left), to_number(right)
    if op == "/":  # rounded towards zero
        quotient: Term = call("/", call("-", a, call("%", a, b)), b)
        if isinstance(quotient, Literal):
            return _Number(literal(to_int32(cast(quotient.value, Kind.INTEGER))))
        return _Number(call("int32", Cast(quotient, Kind.INTEGER)))
    return _Number(call("int32", call(op, a, b)))


# Casts.


def to_number(value: _Value) -> Term:
    """Return a value as an integer."""
    if isinstance(value, _Number):
        return value.term
    if isinstance(value, _Flag):
        return _chosen(value, literal(1), literal(0))
    return call("int32", value.term)


def to_text(value: _Value) -> Term:
    """Return a value as a string."""
    if isinstance(value, _Text):
        return value.term
    if isinstance(value, _Flag):
        return _chosen(value, literal("true"), literal("false"))
    if isinstance(value.term, Literal):
        return literal(cast(value.term.value, Kind.STRING))
    return Cast(value.term, Kind.STRING)


def _chosen(flag: _Flag, yes: Literal, no: Literal) -> Term:
    if flag.value is not None:
        return yes if flag.value else no
    branches = ((flag.decision(True), yes), (flag.decision(False), no))
    case = canonical(Case(branches, literal(None)))
    check_size(case)
    return case


def to_flag(value: _Value) -> Decision:
    """Return a value as a Boolean."""
    if isinstance(value, _Flag):
        return value.decision
    if isinstance(value, _Number):
        return compared("<>", value.term, literal(0))
    word = call("lower", to_text(value))

    def decided(truth: Truth) -> Expression:
        if truth is None:
            return disjoin([decided(True), decided(False)])
        is_word = compare("=", word, literal("true" if truth else "false"))
        if isinstance(value, _Text):
            return is_word
        is_number = compare("<>" if truth else "=", call("abs", value.term), literal(0))
        return disjoin([is_word, is_number])

    return decided


# Literals.


def _is_literal(value: _Value) -> bool:
    if isinstance(value, _Flag):
        return value.value is not None
    return isinstance(value, _Number | _Text) and isinstance(value.term, Literal)


def _truth_among(left: _Flag, items: Sequence[_Value]) -> Decision:
    """Compare a Boolean with literals: the first that cannot be cast is an error."""
    values: dict[bool, None] = {}
    is_whole = True
    for item in items:
        truths = [truth for truth in (True, False) if to_flag(item)(truth) == Constant(True)]
        if not truths:
            is_whole = False
            break
        values[truths[0]] = None

    def decided(truth: Truth) -> Expression:
        if truth is None and is_whole:
            return left.decision(None)
        if truth is False:
            others = [left.decision(not value) for value in values]
            return fold_constants(conjoin(others)) if is_whole else Constant(False)
        return fold_constants(disjoin([Constant(False), *map(left.decision, values)]))

    return decided


def _among(left: _Value, items: Sequence[_Value]) -> Decision:
    """Compare with literals: the first that cannot be cast is an error."""
    change = to_number if isinstance(left, _Number) else to_text
    term = change(left)
    literals: list[Literal] = []
    is_whole = True
    for item in items:
        one = change(item)
        assert isinstance(one, Literal)
        if one.value is None:
            is_whole = False
            break
        literals.append(one)
    if isinstance(term, Literal):
        is_in = term.value in [one.value for one in literals]
        return fixed(is_in if term.value is not None and (is_in or is_whole) else None)

    def decided(truth: Truth) -> Expression:
        if truth is None and is_whole:
            return _are_here(term)
        if not literals or (truth is False and not is_whole):
            return Constant(False)
        return In(name_of(term), tuple(literals), truth is False)

    return decided


def _is_only_text(value: _Value) -> bool:
    """Whether a value is a literal that no value but a string is equal to, whichever is cast."""
    if not isinstance(value, _Text) or not isinstance(value.term, Literal):
        return False
    text = value.term.value
    assert isinstance(text, str)
    return to_int32(text) is None and _TEXT_OF_OTHERS.fullmatch(text) is None


_TEXT_OF_OTHERS = re.compile(
    r"(?i:true|false)|nan|-?inf|-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+"
)
"""What values that are no strings are cast to, or are cast from."""


def _fits_others(pattern: Sequence[tuple[str, bool]]) -> bool:
    """Whether a value that is no string may fit a pattern once it is cast to one."""
    return all(wild or char in "0123456789+-.: truefalsinf" for char, wild in pattern)


def _unquoted(piece: str) -> str:
    r"""Return the text of a literal, in which `\` stands before a quote."""
    return piece[1:-1].replace(f"\\{piece[0]}", piece[0])


def _pattern(text: str) -> list[tuple[str, bool]]:
    r"""Return the characters of a pattern, and which are wildcards; `\` stands before one."""
    characters: list[tuple[str, bool]] = []
    for match in re.finditer(r"\\([%_])|(.)", text, re.DOTALL):
        escaped, plain = match.groups()
        characters.append((escaped or plain, escaped is None and plain in "%_"))
    return characters


# Functions.


def _concatenated(parts: Sequence[Term]) -> _Text:
    return _Text(call("concat", *parts) if parts else literal(""))


def _joined(arguments: Sequence[_Value]) -> _Text:
    delimiter, *parts = map(to_text, arguments)
    if not parts:  # an error of the delimiter is one of the result
        return _Text(call("substring", delimiter, literal(1), literal(0)))
    terms = [parts[0]]
    for part in parts[1:]:
        terms += [delimiter, part]
    return _concatenated(terms)


def _when(condition: Expression, term: Term, otherwise: Term) -> Term:
    condition = fold_constants(condition)
    if isinstance(condition, Constant):
        return term if condition.value is True else otherwise
    return Case(((condition, term),), otherwise)


def _left(arguments: Sequence[_Value]) -> _Text:
    text, count = to_text(arguments[0]), to_number(arguments[1])
    start = call("substring", text, literal(1), count)
    return _Text(_when(compare(">=", count, literal(0)), start, literal(None)))


def _right(arguments: Sequence[_Value]) -> _Text:
    text, count = to_text(arguments[0]), to_number(arguments[1])
    none = call("substring", text, literal(1), literal(0))
    end = call("substring", text, call("neg", count))
    zero = _when(compare("=", count, literal(0)), none, literal(None))
    return _Text(_when(compare(">", count, literal(0)), end, zero))


def _substring(arguments: Sequence[_Value]) -> _Text:
    text, start, *length = to_text(arguments[0]), *map(to_number, arguments[1:])
    is_sound = [compare(">=", of, literal(0)) for of in length]
    inside = compare("<=", call("abs", start), call("length", text))
    piece = call("substring", text, start, *length)
    none = call("substring", text, literal(1), literal(0))
    is_zero = compare("=", start, literal(0))
    some = _when(conjoin([inside, *is_sound]), piece, literal(None))
    return _Text(_when(conjoin([is_zero, *is_sound]), none, some))


def _can_be(change: Callable[[_Value], Term]) -> Callable[[Sequence[_Value]], _Flag]:
    """Make a function that says whether a value can be cast."""

    def applied(arguments: Sequence[_Value]) -> _Flag:
        result, value = change(arguments[0]), to_text(arguments[0])

        def decided(truth: Truth) -> Expression:
            if truth is None:
                return _are_here(value)
            if truth:
                return _is_here(result, True)
            return fold_constants(conjoin([_is_here(result, False), _is_here(value, True)]))

        return _Flag(decided)

    return applied


def _is_here(term: Term, is_here: bool) -> Expression:
    if isinstance(term, Literal):
        return Constant((term.value is not None) is is_here)
    return IsNull(name_of(term), is_here)


def _absolute(arguments: Sequence[_Value]) -> _Number:
    return _Number(call("int32", call("abs", to_number(arguments[0]))))


_FUNCTIONS: dict[str, Callable[[Sequence[_Value]], _Value]] = {
    "LENGTH": lambda of: _Number(call("length", to_text(of[0]))),
    "CONCAT": lambda of: _concatenated([to_text(part) for part in of]),
    "CONCAT_WS": _joined,
    "LOWER": lambda of: _Text(call("lower", to_text(of[0]))),
    "UPPER": lambda of: _Text(call("upper", to_text(of[0]))),
    "TRIM": lambda of: _Text(call("trim", to_text(of[0]), literal(_SPACES))),
    "LEFT": _left,
    "RIGHT": _right,
    "SUBSTRING": _substring,
    "ABS": _absolute,
    "INT": lambda of: _Number(to_number(of[0])),
    "BOOL": lambda of: _Flag(to_flag(of[0])),
    "STRING": lambda of: _Text(to_text(of[0])),
    "IS_INT": _can_be(to_number),
    "IS_BOOL": _can_be(lambda of: _chosen(_Flag(to_flag(of)), literal(True), literal(False))),
}
