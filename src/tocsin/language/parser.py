"""Text → expression: a recursive-descent parser of the native language.

Enters: the text of a condition. Leaves: an expression. `docs/language.md` is the specification.
What is SQL but not in our subset is refused by its name, never ignored, and where there is a way
to say it, the error has it.

A hand-written parser serves better here than a general one: an event's language has two dozen
productions, bulk loads meet thousands of shapes, and errors can say what was expected. A level of
the grammar returns a term or a condition, whichever stands there (`(a + b)`, `(a OR b)`), and the
level above says which it needs.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, NoReturn, TypeAlias, TypeGuard

from tocsin.errors import ConditionCostError, ConditionSyntaxError, UnsupportedSyntaxError
from tocsin.language import functions
from tocsin.language.computed import (
    bind_names,
    canonical,
    compare,
    fold_constants,
    negate,
    static_kind,
    to_condition,
)
from tocsin.language.expression import (
    Between,
    Comparison,
    Constant,
    Distinct,
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
from tocsin.language.functions import ALIASES, FUNCTIONS
from tocsin.language.names import (
    ElementName,
    each_name,
    element_name,
    has_name,
    is_elements,
    is_path,
)
from tocsin.language.printer import name_of
from tocsin.language.term_names import read_terms_with, term_of
from tocsin.language.terms import (
    Attribute,
    Call,
    Case,
    Cast,
    Exists,
    Interval,
    Term,
    Test,
)
from tocsin.language.text_query import TextQueryError
from tocsin.language.timestamps import parse_timestamp
from tocsin.language.tokens import TERM_WORDS, tokenize
from tocsin.model import INT64_MAX, INT64_MIN, Kind, Value

MAX_DEPTH = 100
"""How deep parentheses and NOTs may nest: far beyond use, well within Python's stack."""
MAX_REGEXPS = 2 * functions.MAX_REGEXP
"""How long the regular expressions of a condition may be together, with repetitions written out."""
_SHORT_REGEXP = 20
"""A shorter one counts as this long."""
MAX_COPIED = 20_000
"""How many tokens of terms may be repeated, such as that of `term IN (a, b, c)` for each value."""
_EXISTS_HEIGHT = 5
"""A condition on elements counts as this many operators: deciding it takes several calls."""
MAX_POLYGONS = 32
"""How many polygons a condition may have: each may have thousands of vertices."""

_COMPARISONS = functions.COMPARISONS
_FOREIGN_MARKS = {
    "<=>": ("the null-safe comparison (<=>)", "write IS NOT DISTINCT FROM"),
    "->": ("a JSON path (->)", "write a path with dots"),
    "->>": ("a JSON path (->>)", "write a path with dots"),
    "[": ("indexing ([ ])", "write ANY(list) = value for an element"),
    "?": ("a positional parameter (?)", "write :name"),
    "~": ("the regular-expression operator (~)", "write RLIKE"),
    "&": ("a bit operator (&)", "AND joins conditions"),
    "|": ("a bit operator (|)", "OR joins conditions"),
    "^": ("the operator ^", "write power(a, b)"),
    ";": ("a second statement (;)", None),
}
"""Characters that begin SQL which we do not take: what that is, and what to write instead."""
_SQL_WORDS = frozenset(
    "COLLATE CONTAINS DISTINCT DIV GLOB ISNULL MATCH NOTNULL SELECT SIMILAR SYMMETRIC XOR".split()
)
_FEATURES = {"SELECT": "a subquery"}
_HINTS = {
    "ISNULL": "write IS NULL",
    "NOTNULL": "write IS NOT NULL",
    "GLOB": "write LIKE",
    "XOR": "write <>",
    "DIV": "write floor(a / b)",
}
_KINDS = {
    **dict.fromkeys(("INTEGER", "INT", "BIGINT", "LONG", "INT64"), Kind.INTEGER),
    **dict.fromkeys(("DOUBLE", "FLOAT", "REAL", "FLOAT64"), Kind.FLOAT),
    **dict.fromkeys(("VARCHAR", "STRING", "TEXT"), Kind.STRING),
    **dict.fromkeys(("BOOLEAN", "BOOL"), Kind.BOOLEAN),
    "TIMESTAMP": Kind.TIMESTAMP,
}
"""The names of kinds that CAST takes."""
_LIKES = frozenset(("LIKE", "ILIKE", "RLIKE", "REGEXP"))
_QUANTIFIERS = {"ANY": "any", "SOME": "any", "ALL": "all"}
_FIELDS = {field.upper(): field for field in functions.FIELDS}
_SHORT_FIELDS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
"""Fields that are functions too: `hour(t)`."""

_CONDITION = "an attribute, a literal, NOT or ("
_TERM = "an attribute, a literal or a parameter"
_OPERATOR = "an operator (=, <>, <, <=, >, >=, BETWEEN, IN, LIKE or IS)"

_OR, _AND, _NOT, _TEST, _CONCAT, _SUM, _PRODUCT, _SIGN, _CAST = range(9)
_POWERS = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys((*_COMPARISONS, "BETWEEN", "IN", "IS", "LIKE", "NOT"), _TEST),
    "||": _CONCAT,
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/", "%"), _PRODUCT),
    "::": _CAST,
}
"""How tightly operators bind, the loosest first. The tests do not associate."""

_Node: TypeAlias = Term | Expression
_TERMS = (Literal, Parameter, Attribute, Interval, Call, Case, Cast, Test, Exists)


def parse(text: str) -> Expression:
    """Parse the text of a condition.

    >>> parse("price IS NOT NULL")
    IsNull(attribute='price', negated=True)
    """
    if text[:1] == "\0":
        return _parse_written(text)
    return _Parser(text, lift=False).condition()


def _parse_written(written: str) -> Expression:
    """Parse a text that says its dialect."""
    from tocsin.language import dialects

    text, dialect = dialects.read(written)
    if dialect not in dialects.DIALECTS or dialect == dialects.SQL:
        known = ", ".join(dialects.DIALECTS)
        raise ConditionSyntaxError(f"there is no dialect {dialect!r}, only {known}", written, 0)
    return dialects.parse(text, dialect)


def parse_term(text: str) -> Term:
    """Parse the text of a term."""
    return _Parser(text, lift=False).whole_term()


class Shape(NamedTuple):
    """The expression of a text with its number, string and timestamp literals lifted out.

    They are parameters, numbered from 0 in the order of the text; that of a text query is named by
    its number. Some cannot be lifted, most of those within terms among them: another text has this
    shape only if it has the same literals there.
    """

    expression: Expression
    n_literals: int
    fixed: tuple[int, ...]
    """The numbers of the literals that were not lifted."""


def parse_shape(text: str) -> Shape:
    """Parse a text with its literals lifted out."""
    parser = _Parser(text, lift=True)
    expression = parser.condition()
    fixed = sorted(set(range(parser.n_literals)) - parser.lifted_numbers)
    return Shape(expression, parser.n_literals, tuple(fixed))


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
        self.height = 0
        """The height of the highest tree below the node that is being read."""
        self.regexps_size = 0
        self.subject_size = 0
        self.n_copied = 0
        self.lift = lift
        self.n_literals = 0
        self.numbered: dict[int, tuple[Literal, int]] = {}
        self.lifted_numbers: set[int] = set()
        self.n_polygons = 0

    # Conditions.

    def condition(self) -> Expression:
        if self.word() == "WHERE" and self.kinds[self.at + 1] not in _NAME_FOLLOWERS:
            self.at += 1
        expression = self.to_condition(self.node())
        if self.kinds[self.at] == ";" and self.kinds[self.at + 1] == "END":
            self.at += 1
        if self.kinds[self.at] != "END":
            self.refuse("AND, OR or the end")
        return expression

    def whole_term(self) -> Term:
        term = self.to_term(self.node())
        if self.kinds[self.at] != "END":
            self.refuse("the end of a term")
        return term

    def node(self, level: int = 0, expected: str = _CONDITION) -> _Node:
        """Read what binds at least as tightly as a level."""
        start, kind, copied = self.at, self.kinds[self.at], self.n_copied
        others, self.height = self.height, 0
        if kind == "NOT" and level <= _NOT:
            self.enter()
            self.at += 1
            left: _Node = Not(self.to_condition(self.node(_NOT)))
            self.depth -= 1
        elif kind in ("-", "+") and self.kinds[self.at + 1] != "number":
            left = self.sign(kind)
        else:
            simple = level <= _TEST and kind == "name" and self.kinds[self.at + 1] in _COMPARISONS
            left = (self.simple_comparison() if simple else None) or self.primary(expected)
        while True:
            kind = self.kinds[self.at]
            power = _POWERS.get(kind, -1)
            if kind == "name" and self.word() in _LIKES:
                power = _TEST
            if power < level:
                self.height = max(others, self.height)
                return left
            self.subject_size = self.at - start + self.n_copied - copied
            left = self.joined(left, kind, power, start)

    def joined(self, left: _Node, kind: str, power: int, start: int) -> _Node:
        """Read an infix operator and what is to the right of it."""
        if power <= _AND:
            parts = [self.to_condition(left)]
            while self.kinds[self.at] == kind:
                self.at += 1
                parts.append(self.to_condition(self.node(power + 1)))
            return disjoin(parts) if kind == "OR" else conjoin(parts)
        self.grow(1)
        if power == _TEST:
            if not isinstance(left, _TERMS) and kind != "IS":
                self.refuse("AND, OR or the end")
            if kind in _COMPARISONS:
                return self.comparison(left, kind, start)
            return self.test(self.to_term(left))
        self.at += 1
        if kind == "::":
            return canonical(Cast(self.value(left), self.kind()))
        right = self.value(self.node(power + 1, _TERM))
        return canonical(Call(kind, (self.value(left), right)))

    def copy(self, size: int) -> None:
        """Count the tokens of a term that stands in an expression more often than in the text."""
        self.n_copied += size
        if self.n_copied > MAX_COPIED:
            raise ConditionCostError("copies", MAX_COPIED)

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nested more than {MAX_DEPTH} deep")

    def grow(self, by: int) -> None:
        """Count what is put on top of the nodes of this level; it may need parentheses in print."""
        self.height += by
        if self.height > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} operators, each on the result of another")

    def to_condition(self, node: _Node) -> Expression:
        """Return what stands where a condition is needed."""
        if not isinstance(node, _TERMS):
            return node
        if isinstance(node, Parameter):
            self.refuse("a comparison operator")
        if isinstance(node, Literal) and node.kind not in (None, Kind.BOOLEAN):
            self.refuse("a comparison operator")
        if isinstance(node, Attribute):
            if self.kinds[self.at] not in _CONDITION_ENDS and self.word() not in TERM_WORDS:
                self.refuse(_OPERATOR)
            return Truth(node.name)
        kind = static_kind(node)
        if isinstance(node, Interval) or (kind is not None and kind is not Kind.BOOLEAN):
            self.refuse("a comparison operator")
        return self.checked(lambda: to_condition(node))

    def to_term(self, node: _Node) -> Term:
        """Return what stands where a value is needed."""
        if isinstance(node, _TERMS):
            return (
                canonical(Test(self.grounded(node.condition))) if isinstance(node, Test) else node
            )
        return canonical(Test(self.grounded(node)))

    def grounded(self, condition: Expression) -> Expression:
        """Put literals that were lifted out back into a condition within a term."""
        if not self.lifted_numbers:
            return condition
        literals = {number: literal for literal, number in self.numbered.values()}

        def put_back(operand: Operand) -> Operand:
            if not isinstance(operand, Parameter) or not str(operand.name).isdecimal():
                return operand
            self.lifted_numbers.discard(int(operand.name))
            return literals[int(operand.name)]

        return bind_names(condition, put_back)

    def checked(self, make: Callable[[], Expression]) -> Expression:
        """Make a condition whose text query may be wrong."""
        try:
            return make()
        except TextQueryError as error:
            self.fail(f"in a text query: {error}", self.positions[max(self.at - 2, 0)])

    def simple_comparison(self) -> Expression | None:
        """Read `word op literal`, the usual case; None where it is something else."""
        piece, op, following = self.texts[self.at], self.kinds[self.at + 1], self.kinds[self.at + 2]
        is_simple = following in ("number", "string", "param")
        if not is_simple or self.kinds[self.at + 3] not in _CONDITION_ENDS:
            return None
        if piece.upper() in _SQL_WORDS:
            return None
        self.at += 2
        return Comparison(piece, op, self.operand())

    def comparison(self, left: _Node, op: str, start: int) -> Expression:
        """Read the right side of a comparison."""
        left_term = self.to_term(left)
        self.at += 1
        if not _is_operand(left_term):
            self.check_quoted_text(start)
        right = self.to_term(self.node(_TEST + 1, _TERM))
        if _is_operand(left_term) and _is_operand(right):
            return self.compare_constants(left_term, op, right, start)
        return self.compared(op, self.lifted(left_term), self.lifted(right))

    def compared(self, op: str, left: Term, right: Term) -> Expression:
        """Return the comparison of two terms of which at most one is an interval."""
        if isinstance(left, Interval) or isinstance(right, Interval):
            other = right if isinstance(left, Interval) else left
            if static_kind(other) is not None or isinstance(other, Attribute | Parameter):
                self.fail("an interval is no value", None, "a difference of two timestamps")
        return compare(op, left, right)

    def compare_constants(self, left: Term, op: str, right: Term, start: int) -> Constant:
        if isinstance(left, Literal) and isinstance(right, Literal):
            return Constant(functions.compare(op, left.value, right.value))
        self.fail(
            "a parameter is compared with a constant",
            self.positions[start],
            "an attribute on one side",
        )

    def check_quoted_text(self, start: int) -> None:
        """Refuse `firm = "IBM"`, which in SQL names an attribute and is nearly always a slip."""
        piece = self.texts[self.at]
        is_text = self.kinds[self.at] == "quoted" and piece[0] == '"'
        if not is_text or self.kinds[start] != "name" or "." in piece:
            return
        if self.kinds[self.at + 1] in _CONDITION_ENDS and piece[1:-1].isidentifier():
            self.fail(
                f"double quotes hold the name of an attribute: write '{piece[1:-1]}' for a text",
                None,
                f"{piece[1:-1]} without quotes for the attribute, or a text in single quotes",
            )

    def test(self, subject: Term) -> Expression:
        """Read what follows a term: [NOT] BETWEEN, IN, LIKE and its kin, IS."""
        if not _is_of_elements(subject):
            return self.tested(subject)
        assert isinstance(subject, Attribute)
        of, variable = element_name(subject.name), "element"
        while variable in self.text:
            variable += "_"
        condition = self.tested(Attribute(variable))
        is_plain = isinstance(condition, Between | In | Like | IsNull | Distinct)
        if is_plain and condition.attribute == variable:  # type: ignore[union-attr]
            return replace(condition, attribute=subject.name)  # type: ignore[arg-type]
        # What takes several predicates is asked of one element.
        exists = Exists(
            term_of(of.list), variable, self.grounded(condition), of.quantifier == "all"
        )
        return Truth(name_of(exists))

    def tested(self, subject: Term) -> Expression:
        kind = self.kinds[self.at]
        negated = kind == "NOT"
        if negated:
            self.at += 1
            kind = self.kinds[self.at]
        word = self.word()
        size = self.subject_size
        if kind == "BETWEEN":
            self.at += 1
            return self.between(subject, negated, size)
        if kind == "IN":
            self.at += 1
            return self.membership(subject, negated, size)
        if kind == "LIKE" or word == "ILIKE":
            self.at += 1
            return self.like(subject, negated, word == "ILIKE")
        if word in ("RLIKE", "REGEXP"):
            self.at += 1
            return negate(self.regexp(subject), negated)
        if negated:
            self.refuse("BETWEEN, IN or LIKE")
        self.at += 1
        return self.what_it_is(subject)

    def between(self, subject: Term, negated: bool, size: int) -> Expression:
        low = self.bound(subject)
        self.expect("AND", "AND")
        high = self.bound(subject)
        if _is_operand(low) and _is_operand(high) and not _is_constant(subject):
            return Between(name_of(subject), low, high, negated)
        self.copy(size)
        both = conjoin([self.compared(">=", subject, low), self.compared("<=", subject, high)])
        return fold_constants(negate(both, negated))

    def bound(self, subject: Term) -> Term:
        """Read a value that a subject is compared with."""
        term = self.to_term(self.node(_TEST + 1, _TERM))
        return term if _is_constant(subject) else self.lifted(term)

    def membership(self, subject: Term, negated: bool, size: int) -> Expression:
        if self.kinds[self.at] == "param":  # IN :ids
            items: tuple[Term, ...] = (self.operand(),)
        else:
            items = self.item_list(subject)
        if all(map(_is_operand, items)) and not _is_constant(subject):
            return In(name_of(subject), items, negated)  # type: ignore[arg-type]
        self.copy(size * (len(items) - 1))
        tests = [self.compared("=", subject, item) for item in items]
        return fold_constants(negate(disjoin(tests), negated))

    def item_list(self, subject: Term) -> tuple[Term, ...]:
        if self.kinds[self.at] == "name" and self.kinds[self.at - 1] == "IN":
            self.refuse("( and a list of values; for a list attribute write value = ANY(list)")
        self.expect("(", "( and a list of values")
        items = [self.bound(subject)]
        while self.kinds[self.at] == ",":
            self.at += 1
            items.append(self.bound(subject))
        self.expect(")", ", or )")
        return tuple(items)

    def like(self, subject: Term, negated: bool, ignore_case: bool) -> Expression:
        if self.kinds[self.at] in ("-", "+", "number", "TRUE", "FALSE"):
            self.refuse("a pattern: a string or a parameter")
        start = self.at
        pattern = self.value(self.node(_TEST + 1, _TERM))
        escape = None
        if self.kinds[self.at] == "ESCAPE":
            self.at += 1
            if self.kinds[self.at] != "string":
                self.refuse("a string of one character")
            escape = self.string()
            if len(escape) != 1:
                self.fail("ESCAPE takes one character", self.positions[self.at - 1])
        text = pattern.value if isinstance(pattern, Literal) else None
        if isinstance(text, str) and escape is not None and not escapes_are_sound(text, escape):
            self.fail(
                "in a pattern the escape character must stand before %, _ or itself",
                self.positions[start],
            )
        if _is_operand(pattern) and not _is_constant(subject):
            lifted = self.lifted(pattern)
            assert isinstance(lifted, Literal | Parameter)
            return Like(name_of(subject), lifted, escape, negated, ignore_case)
        arguments = (subject, pattern, Literal(escape, None if escape is None else Kind.STRING))
        call = canonical(Call("ilike" if ignore_case else "like", arguments))
        return fold_constants(negate(to_condition(call), negated))

    def regexp(self, subject: Term) -> Expression:
        start = self.at
        return self.regexp_of((subject, self.value(self.node(_TEST + 1, _TERM))), start)

    def regexp_of(self, arguments: tuple[Term, ...], start: int) -> Expression:
        self.check_regexp(arguments[1], start)
        return to_condition(canonical(Call("regexp_matches", arguments)))

    def check_regexp(self, pattern: Term, start: int) -> None:
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            problem = functions.regexp_problem(pattern.value)
            if problem is not None:
                self.fail(f"not a regular expression of RE2: {problem}", self.positions[start])
            self.regexps_size += max(functions.regexp_size(pattern.value), _SHORT_REGEXP)
        else:
            self.regexps_size += functions.MAX_REGEXP
        if self.regexps_size > MAX_REGEXPS:
            message = f"regular expressions of more than {MAX_REGEXPS} characters in all"
            self.fail(f"{message}, repetitions written out", self.positions[start])

    def what_it_is(self, subject: Term) -> Expression:
        """Read what follows IS."""
        negated = self.kinds[self.at] == "NOT"
        if negated:
            self.at += 1
        kind, word = self.kinds[self.at], self.word()
        if kind in ("TRUE", "FALSE"):
            self.at += 1
            literal = Literal(kind == "TRUE", Kind.BOOLEAN)
            return self.distinct(subject, literal, not negated)
        if word == "UNKNOWN":
            self.at += 1
            self.copy(self.subject_size)
            truths = [self.distinct(subject, Literal(t, Kind.BOOLEAN), True) for t in (True, False)]
            return negate(disjoin(truths), not negated)
        if word == "DISTINCT":
            self.at += 1
            if self.word() != "FROM":
                self.refuse("FROM")
            self.at += 1
            return self.distinct(subject, self.value(self.node(_TEST + 1, _TERM)), negated)
        self.expect("NULL", "NULL" if negated else "NULL or NOT NULL")
        if isinstance(subject, Literal):
            return Constant((subject.value is None) is not negated)
        if isinstance(subject, Parameter):
            self.at -= 1
            self.fail("a parameter is no attribute", None, "an attribute before IS")
        return IsNull(name_of(subject), negated)

    def distinct(self, subject: Term, other: Term, negated: bool) -> Expression:
        if _is_operand(subject) and not _is_operand(other):
            subject, other = other, subject
        if isinstance(other, Literal | Parameter) and not _is_constant(subject):
            return Distinct(name_of(subject), self.lifted_operand(other), negated)
        call = canonical(Call("is distinct from", (subject, other)))
        return negate(to_condition(call), negated)

    # Terms.

    def value(self, node: _Node) -> Term:
        """Return an operand of an operator."""
        if _is_of_elements(node):
            self.fail(
                "ANY and ALL stand alone before an operator",
                self.positions[self.at - 1],
                "exists(list, element -> condition)",
            )
        return self.to_term(node)

    def sign(self, kind: str) -> Term:
        self.enter()
        self.at += 1
        inner = self.value(self.node(_SIGN, _TERM))
        self.depth -= 1
        return inner if kind == "+" else canonical(Call("neg", (inner,)))

    def kind(self) -> Kind:
        kind = _KINDS.get(self.word())
        if kind is None:
            self.refuse("a kind: INTEGER, FLOAT, STRING, BOOLEAN or TIMESTAMP")
        self.at += 1
        if self.word() == "PRECISION":
            self.at += 1
        return kind

    def primary(self, expected: str) -> _Node:
        kind = self.kinds[self.at]
        if kind == "(":
            self.enter()
            self.at += 1
            node = self.node()
            self.expect(")", "AND, OR or )")
            self.depth -= 1
            return node if isinstance(node, _TERMS) else Test(node)
        if kind == "param":
            self.at += 1
            return Parameter(self.texts[self.at - 1][1:])
        if kind in ("number", "string", "-", "+", "TRUE", "FALSE", "NULL"):
            return self.literal()
        if kind == "name" or kind == "quoted":
            return self.named()
        self.refuse(expected)

    def named(self) -> _Node:
        """Read what begins with a word: an attribute, a function, CASE, a literal."""
        word, following = self.word(), self.kinds[self.at + 1]
        if self.kinds[self.at] == "name":
            if following == "string" and word in ("TIMESTAMP", "DATE", "INTERVAL"):
                self.at += 1
                return self.interval() if word == "INTERVAL" else self.timestamp()
            if word == "CASE" and following not in _NAME_FOLLOWERS:
                return self.case()
            if word == "INTERVAL" and following == "number":
                self.at += 1
                return self.counted_interval()
            if word in _NOW and following != "(" and following not in _COMPARISONS:
                self.at += 1
                return Call("now", ())
            if following == "(" and word != "SELECT":
                return self.call(word)
            if following == "string" and word not in _LIKES:
                self.fail_unsupported(f"a literal of the form {self.texts[self.at]} '…'")
        return Attribute(self.attribute())

    def call(self, word: str) -> _Node:
        self.enter()
        node = self.called(word)
        self.depth -= 1
        return node

    def called(self, word: str) -> _Node:
        position, name = self.positions[self.at], self.texts[self.at].lower()
        self.at += 2
        if word in _QUANTIFIERS:
            return self.elements(_QUANTIFIERS[word])
        if word in ("EACH", "HAS"):
            return self.each(word)
        if word in ("CAST", "TRY_CAST"):
            inner = self.value(self.node())
            if self.word() != "AS":
                self.refuse("AS")
            self.at += 1
            kind = self.kind()
            self.expect(")", ")")
            return canonical(Cast(inner, kind))
        if word == "EXTRACT":
            return self.extract()
        if word in ("EXISTS", "FORALL"):
            return self.exists(every=word == "FORALL")
        if word in ("IF", "IFF"):
            return self.if_call()
        if word == "POSITION":
            return self.position(position)
        return self.function(ALIASES.get(name, name), position)

    def function(self, name: str, position: int) -> _Node:
        start = self.at
        arguments: list[Term] = []
        while self.kinds[self.at] != ")" or arguments:
            arguments.append(self.value(self.node()))
            if self.kinds[self.at] != ",":
                break
            self.at += 1
        self.expect(")", ", or )")
        if name in ("array_contains", "list_contains", "array_has", "list_has"):
            self.check_count(name, arguments, 2, 2, position)
            if not isinstance(arguments[0], Attribute | Call):
                self.fail(f"{name} takes a list first", position)
            elements = Attribute(ElementName("any", name_of(arguments[0])).name)
            return Test(compare("=", elements, self.lifted(arguments[1])))
        if name.upper() in _FIELDS and _FIELDS[name.upper()] in _SHORT_FIELDS:
            self.check_count(name, arguments, 1, 1, position)
            return canonical(Call("extract", (Literal(name, Kind.STRING), arguments[0])))
        least, most = self.counts(name, position)
        self.check_count(name, arguments, least, most, position)
        if name == "regexp_matches":
            self.check_regexp(arguments[1], start)
        return self.made(canonical(Call(name, tuple(arguments))), start)

    def made(self, term: Term, start: int) -> _Node:
        """Return a call; one that is a condition on words as that condition."""
        if isinstance(term, Call) and term.function == "matches":
            try:
                return Test(to_condition(self.with_lifted_query(term)))
            except TextQueryError as error:
                self.fail(f"in a text query: {error}", self.positions[start])
        if isinstance(term, Call):
            self.n_polygons += term.function == "inside"
            if self.n_polygons > MAX_POLYGONS:
                self.fail(f"more than {MAX_POLYGONS} polygons", self.positions[start])
            problem = functions.problem_of(term.function, term.arguments)
            if problem is not None:
                self.fail(problem, self.positions[start])
        return term

    def with_lifted_query(self, term: Call) -> Call:
        """Lift the query of `matches` out, if this is to make a shape."""
        subject, query = term.arguments
        lifted = self.lifted(query)
        if lifted is query or not isinstance(lifted, Parameter):
            return term
        return Call(term.function, (subject, Parameter(str(lifted.name))))

    def counts(self, name: str, position: int) -> tuple[int, int]:
        function = FUNCTIONS.get(name)
        if function is not None and name.isidentifier() and name != "neg":
            return function.least, function.most
        if name == "%":
            return 2, 2
        counts = functions.SPECIAL_COUNTS.get(name)
        if counts is None:
            near = functions.similar(name)
            hint = f"did you mean {near}?" if near else None
            self.fail_unsupported(f"the function {name}(…)", position, hint)
        return counts

    def check_count(
        self, name: str, arguments: list[Term], least: int, most: int, position: int
    ) -> None:
        if not least <= len(arguments) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            count = f"at least {least}" if most > functions.MANY_ARGUMENTS else count
            plural = "s" * (count != "1")
            self.fail(f"{name} takes {count} argument{plural}, not {len(arguments)}", position)

    def elements(self, quantifier: str) -> Term:
        """Read the list of ANY(…) or ALL(…)."""
        of = self.value(self.node())
        if not isinstance(of, Attribute | Call):
            self.fail("ANY and ALL take a list", self.positions[self.at - 1], "an attribute")
        self.expect(")", ")")
        return Attribute(ElementName(quantifier, name_of(of)).name)

    def each(self, word: str) -> Term:
        """Read the path of EACH(…), or those of HAS(…)."""
        paths = [self.attribute()]
        while word == "HAS" and self.kinds[self.at] == ",":
            self.at += 1
            paths.append(self.attribute())
        self.expect(")", ")")
        return Attribute(each_name(paths[0]) if word == "EACH" else has_name(paths[0], paths[1:]))

    def exists(self, *, every: bool) -> Term:
        of = self.value(self.node(_TEST + 1, _TERM))
        self.expect(",", ", and a condition on an element: exists(items, i -> i.price > 5)")
        if self.kinds[self.at] != "name":
            self.refuse("the name of an element")
        variable = self.texts[self.at]
        self.at += 1
        self.expect("->", "-> and a condition")
        condition = self.grounded(self.to_condition(self.node()))
        self.grow(_EXISTS_HEIGHT)
        self.expect(")", "AND, OR or )")
        return Exists(of, variable, condition, every)

    def extract(self) -> Term:
        field = _FIELDS.get(self.word())
        if field is None:
            self.refuse(f"one of {', '.join(functions.FIELDS)}")
        self.at += 1
        if self.word() != "FROM":
            self.refuse("FROM")
        self.at += 1
        moment = self.value(self.node(_TEST + 1, _TERM))
        self.expect(")", ")")
        return canonical(Call("extract", (Literal(field, Kind.STRING), moment)))

    def position(self, place: int) -> _Node:
        """Read `position(part IN text)`, or the function with a comma."""
        start = self.at
        part = self.value(self.node(_TEST + 1, _TERM))
        if self.kinds[self.at] != "IN":
            self.at = start
            return self.function("position", place)
        self.at += 1
        text = self.value(self.node(_TEST + 1, _TERM))
        self.expect(")", ")")
        return canonical(Call("position", (text, part)))

    def if_call(self) -> Term:
        condition = self.grounded(self.to_condition(self.node()))
        self.expect(",", ",")
        then = self.value(self.node())
        self.expect(",", ",")
        otherwise = self.value(self.node())
        self.expect(")", ")")
        return canonical(Case(((condition, then),), otherwise))

    def case(self) -> Term:
        self.enter()
        self.at += 1
        start, copied = self.at, self.n_copied
        subject = None if self.word() == "WHEN" else self.value(self.node())
        size = self.at - start + self.n_copied - copied
        branches: list[tuple[Expression, Term]] = []
        while self.word() == "WHEN":
            self.at += 1
            when = self.node()
            if subject is None:
                condition = self.grounded(self.to_condition(when))
            else:
                self.copy(size * (len(branches) > 0))
                condition = compare("=", subject, self.value(when))
            self.expect_word("THEN")
            branches.append((condition, self.value(self.node())))
        if not branches:
            self.refuse("WHEN")
        otherwise: Term = Literal(None, None)
        if self.word() == "ELSE":
            self.at += 1
            otherwise = self.value(self.node())
        self.expect_word("END")
        self.depth -= 1
        return canonical(Case(tuple(branches), otherwise))

    # Names.

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
            name = parts[-1]
            self.fail_unsupported(f"the function {name}(…)", self.positions[self.at - 1])
        return parts[0] if len(parts) == 1 else ".".join(parts)

    def name_part(self) -> str:
        kind, piece = self.kinds[self.at], self.texts[self.at]
        if kind == "name":
            if piece.upper() in _SQL_WORDS and self.kinds[self.at + 1] not in _NAME_FOLLOWERS:
                word = piece.upper()
                self.fail_unsupported(_FEATURES.get(word, word), None, _HINTS.get(word))
            self.at += 1
            return piece
        quote = piece[0]
        name = piece[1:-1].replace(quote * 2, quote)
        if not name:
            self.fail("an attribute's name is empty")
        if not is_path(name):
            self.fail("no attribute has such a name")
        self.at += 1
        return name

    # Literals.

    def operand(self) -> Operand:
        return self.lifted_operand(
            self.literal() if self.kinds[self.at] != "param" else self.parameter()
        )

    def parameter(self) -> Parameter:
        self.at += 1
        return Parameter(self.texts[self.at - 1][1:])

    def lifted(self, term: Term) -> Term:
        """Lift a literal out, if this is to make a shape."""
        return self.lifted_operand(term) if isinstance(term, Literal | Parameter) else term

    def lifted_operand(self, operand: Operand) -> Operand:
        _, number = self.numbered.get(id(operand), (operand, -1))
        if number < 0:
            return operand
        self.lifted_numbers.add(number)
        return Parameter(number)

    def literal(self) -> Literal:
        kind = self.kinds[self.at]
        if kind == "string":
            return self.numbered_literal(Literal(self.string(), Kind.STRING))
        if kind == "number" or kind == "-" or kind == "+":
            return self.numbered_literal(self.number())
        self.at += 1
        if kind == "NULL":
            return Literal(None, None)
        return Literal(kind == "TRUE", Kind.BOOLEAN)

    def numbered_literal(self, literal: Literal) -> Literal:
        """Number a literal in the order of the text, so that it can be lifted out."""
        if self.lift:
            self.numbered[id(literal)] = literal, self.n_literals
            self.n_literals += 1
        return literal

    def string(self) -> str:
        self.at += 1
        return self.texts[self.at - 1][1:-1].replace("''", "'")

    def number(self) -> Literal:
        sign = self.texts[self.at] if self.kinds[self.at] in ("-", "+") else ""
        if sign:
            self.at += 1
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

    def timestamp(self) -> Literal:
        position = self.positions[self.at]
        is_date = self.texts[self.at - 1].upper() == "DATE"
        moment = parse_timestamp(self.string())
        if moment is None or (is_date and moment.time() != dt.time()):
            expected = "'YYYY-MM-DD[ hh:mm[:ss[.ffffff]][±hh:mm]]'"
            what, expected = ("a date", "'YYYY-MM-DD'") if is_date else ("a timestamp", expected)
            self.fail(f"not {what}", position, expected)
        literal = Literal(moment, Kind.TIMESTAMP)
        if not is_date:
            return self.numbered_literal(literal)
        self.n_literals += 1
        return literal

    def interval(self) -> Interval:
        """Read `INTERVAL '2 hours 30 minutes'`, or `INTERVAL '2' HOUR`."""
        position = self.positions[self.at]
        text = self.string()
        self.n_literals += 1
        unit = self.word().lower()
        if unit.rstrip("s") in functions.INTERVALS and text.strip().lstrip("+-").isdigit():
            self.at += 1
            text = f"{text} {unit}"
        return self.made_interval(text, position)

    def counted_interval(self) -> Interval:
        """Read `INTERVAL 2 HOUR`."""
        position = self.positions[self.at]
        self.n_literals += 1
        text = f"{self.texts[self.at]} {self.texts[self.at + 1]}"
        self.at += 2
        return self.made_interval(text, position)

    def made_interval(self, text: str, position: int) -> Interval:
        parsed = functions.parse_interval(text)
        if parsed is None:
            self.fail("not an interval", position, "such as '2 hours' or '1 day 30 minutes'")
        return Interval(*parsed)

    # Refusals.

    def word(self) -> str:
        """Return the word reached in upper case; empty where there is none."""
        piece = self.texts[self.at]
        is_word = self.kinds[self.at] == "name" or self.kinds[self.at].isalpha()
        return piece.upper() if is_word and piece.isascii() else ""

    def expect(self, kind: str, expected: str) -> None:
        if self.kinds[self.at] != kind:
            self.refuse(expected)
        self.at += 1

    def expect_word(self, word: str) -> None:
        if self.word() != word:
            self.refuse(word)
        self.at += 1

    def refuse(self, expected: str) -> NoReturn:
        """Refuse the token reached, by name where it is SQL that we do not take."""
        kind, piece = self.kinds[self.at], self.texts[self.at]
        word = piece.upper()
        if kind in _FOREIGN_MARKS:
            feature, hint = _FOREIGN_MARKS[kind]
            self.fail_unsupported(feature, None, hint)
        if kind == "name" and word in _SQL_WORDS:
            self.fail_unsupported(_FEATURES.get(word, word), None, _HINTS.get(word))
        what = "the text ends too early" if kind == "END" else f"unexpected {piece}"
        self.fail(what, None, expected)

    def fail(
        self, message: str, position: int | None = None, expected: str | None = None
    ) -> NoReturn:
        place = self.positions[self.at] if position is None else position
        raise ConditionSyntaxError(message, self.text, place, expected)

    def fail_unsupported(
        self, feature: str, position: int | None = None, hint: str | None = None
    ) -> NoReturn:
        place = self.positions[self.at] if position is None else position
        raise UnsupportedSyntaxError(feature, self.text, place, hint)


_CONDITION_ENDS = frozenset(("AND", "OR", ")", "END", ";", ","))
_NAME_FOLLOWERS = (
    _COMPARISONS
    | {"BETWEEN", "IN", "LIKE", "IS", "NOT", "AND", "OR", ")", ".", ",", "END"}
    | {"+", "*", "/", "%", "||", "::"}
)
_NOW = frozenset(("CURRENT_TIMESTAMP", "LOCALTIMESTAMP"))


def _is_operand(term: Term) -> TypeGuard[Operand]:
    return isinstance(term, Literal | Parameter)


def _is_of_elements(node: _Node) -> bool:
    return isinstance(node, Attribute) and is_elements(node.name)


def _is_constant(term: Term) -> bool:
    return isinstance(term, Literal | Parameter | Interval)


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


read_terms_with(lambda text: canonical(parse_term(text)))
