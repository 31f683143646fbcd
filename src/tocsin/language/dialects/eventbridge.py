"""Event patterns of Amazon EventBridge → expressions.

Enters: a pattern, as JSON. Leaves: an expression on `EACH(path)` and `HAS(path)`, since lists in
events match by any element; see `encode.choices`. The specification is Amazon's page on comparison
operators in event patterns, and where it is silent the behaviour of Amazon's Event Ruler 2.1;
`docs/dialects-eventbridge.md` says what differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeAlias

from tocsin.language.dialects.json_text import JsonObject, Number, PatternError, read
from tocsin.language.dialects.pattern_printer import print_expression
from tocsin.language.expression import (
    Comparison,
    Distinct,
    Expression,
    In,
    IsNull,
    Like,
    Not,
    Truth,
    conjoin,
    disjoin,
    no_text,
)
from tocsin.language.functions import fold_case, ip_address
from tocsin.language.names import each_name, has_name
from tocsin.language.printer import name_of
from tocsin.language.terms import Attribute, Call, Literal, Operand, Parameter
from tocsin.model import FIRST_MOMENT, Kind, kind_of

__all__ = ["parse", "parse_shape", "print_expression"]

MAX_BRANCHES = 1024
"""How many alternatives the `$or` of a pattern may come to."""
NULL = Literal(FIRST_MOMENT, Kind.TIMESTAMP)
"""A null that is there."""
_RESERVED = frozenset(
    "exactly equals-ignore-case prefix suffix anything-but exists wildcard numeric cidr "
    "= < <= > >= regex not-wildcard not-equals-ignore-case date-after date-on-or-after date-before "
    "date-on-or-before in-date-range ip-address-in-range ip-address-not-in-range".split()
)
"""Names that cannot be fields within `$or`."""
_IP_V6 = re.compile(r"[0-9a-fA-F:]*:[0-9a-fA-F:]*")
_Branch: TypeAlias = dict[str, "Field"]


class Field(NamedTuple):
    """What a pattern asks of one field: the conditions of which one must hold, and absence."""

    present: Expression | None
    absent: bool
    n_values: int
    level: int


def parse(text: str) -> Expression:
    """Return the expression of a pattern; raise PatternError."""
    return Reader(text).expression()


class Lifted(NamedTuple):
    """A pattern whose texts and numbers are lifted out: see `normalize.json_shapes`."""

    expression: Expression
    n_literals: int
    uses: dict[int, str]
    """What becomes of a lifted text or number, by its parameter's number."""
    ordered: list[tuple[int, int]]
    """Parameters of which the first must be less than the second."""


def parse_shape(text: str) -> Lifted:
    """Return a pattern with its texts and numbers lifted out."""
    return Reader(text, lift=True).lifted()


class Reader:
    """One use: a pattern and how far it was read."""

    def __init__(self, text: str, *, lift: bool = False) -> None:
        self.text = text
        self.lift = lift
        self.value, self.n_literals = read(text, lift=lift)
        self.uses: dict[int, str] = {}
        self.ordered: list[tuple[int, int]] = []
        self.has_or = True

    def lifted(self) -> Lifted:
        """Return the shape of the pattern."""
        expression = self.expression()
        return Lifted(expression, self.n_literals, self.uses, self.ordered)

    def expression(self) -> Expression:
        """Read the whole pattern."""
        return to_expression(self.branches())

    def branches(self) -> list[_Branch]:
        """Return the alternatives of the pattern.

        What `$or` has not the form of, is a field of that name.
        """
        if not isinstance(self.value, JsonObject):
            self.fail("a pattern is a JSON object", "$")
        try:
            return self.members(self.value, [], "$", (), is_in_or=False)
        except PatternError as error:
            if '"$or"' not in self.text:
                raise
            self.has_or = False
            try:
                return self.members(self.value, [], "$", (), is_in_or=False)
            except PatternError:
                raise error from None

    def fail(self, message: str, place: str) -> NoReturn:
        """Refuse the pattern."""
        raise PatternError(message, self.text, place)

    def members(
        self,
        value: JsonObject,
        branches: list[_Branch],
        place: str,
        path: tuple[str, ...],
        *,
        is_in_or: bool,
    ) -> list[_Branch]:
        """Add the fields of an object to all alternatives."""
        if not value:
            self.fail("an empty object asks for nothing", place)
        for name, inner in value:
            here = f"{place}.{name}"
            if name == "$or" and self.has_or:
                branches = self.either(inner, branches, here, path)
                continue
            if is_in_or and name in _RESERVED:
                self.fail(f"{name!r} cannot be the name of a field within $or", here)
            if isinstance(inner, JsonObject):
                branches = self.members(inner, branches, here, (*path, name), is_in_or=is_in_or)
            elif isinstance(inner, list):
                field = self.field(".".join((*path, name)), inner, here, len(path) + 1)
                branches = branches or [{}]
                for branch in branches:
                    branch[".".join((*path, name))] = field
            else:
                self.fail("a field has a list of values, or an object of fields", here)
        return branches

    def either(
        self, value: Any, branches: list[_Branch], place: str, path: tuple[str, ...]
    ) -> list[_Branch]:
        """Multiply all alternatives by those of `$or`."""
        if not isinstance(value, list):
            self.fail("$or has a list of objects", place)
        alternatives: list[_Branch] = []
        for at, each in enumerate(value):
            here = f"{place}[{at}]"
            if not isinstance(each, JsonObject):
                self.fail("$or has objects only", here)
            copies = [dict(branch) for branch in branches] or [{}]
            alternatives += self.members(each, copies, here, path, is_in_or=True)
            if len(alternatives) > MAX_BRANCHES:
                self.fail(f"$or comes to more than {MAX_BRANCHES} alternatives", place)
        if len(value) < 2:
            self.fail("$or has at least two objects", place)
        return alternatives

    # Fields.

    def field(self, path: str, values: list[Any], place: str, level: int) -> Field:
        """Read the values that a field may have."""
        if not values:
            self.fail("an empty list of values", place)
        name = each_name(path)
        options: list[Expression] = []
        points: list[Operand] = []
        absent = False
        for at, value in enumerate(values):
            here = f"{place}[{at}]"
            point = self.point(value, here)
            if point is not None:
                points.append(point)
                continue
            options += self.points(name, points)
            if isinstance(value, JsonObject):
                exists = self.existence(value, here)
                if exists is False:
                    absent = True
                else:
                    options.append(
                        IsNull(name, negated=True) if exists else self.test(name, value, here)
                    )
            elif isinstance(value, str):
                options.append(_equals_address(name, value))
        options += self.points(name, points)
        return Field(disjoin(options) if options else None, absent, len(values), level)

    def point(self, value: Any, place: str) -> Operand | None:
        """Return the constant that a value is, None where it is more than that."""
        if value is None:
            return NULL
        if isinstance(value, bool):
            return Literal(value, Kind.BOOLEAN)
        if isinstance(value, Number):
            return self.number(value)
        if isinstance(value, str):
            return None if _IP_V6.fullmatch(value) and ip_address(value) else self.of(value)
        if isinstance(value, JsonObject):
            if value and value[0][0] == "exactly":
                return self.of(self.string_in(value, place))
            return None
        self.fail("a value is a string, a number, true, false, null or a test", place)

    @staticmethod
    def points(name: str, points: list[Operand]) -> Iterator[Expression]:
        """Yield the condition that a field has one of some values, which are used up."""
        if len(points) == 1:
            yield Comparison(name, "=", points[0])
        elif points:
            yield In(name, tuple(points))
        points.clear()

    def existence(self, value: JsonObject, place: str) -> bool | None:
        """Return what a test `exists` says, None for other tests."""
        if not value or value[0][0] != "exists":
            return None
        self.single(value, place)
        if not isinstance(value[0][1], bool):
            self.fail("exists is true or false", f"{place}.exists")
        return value[0][1]

    def single(self, value: JsonObject, place: str) -> None:
        """Refuse a test with several keys."""
        if len(value) != 1:
            self.fail("a test has one key", place)

    def string_in(self, value: JsonObject, place: str) -> str:
        """Return the text that a test has."""
        (name, inner), *_ = value
        if not isinstance(inner, str):
            self.fail(f"{name} has a string", f"{place}.{name}")
        self.single(value, place)
        return inner

    # Tests.

    def test(self, name: str, value: JsonObject, place: str) -> Expression:
        """Read a test of a field, such as `{"prefix": "a"}`."""
        if not value:
            self.fail("an empty test", place)
        operator = value[0][0]
        test = _TESTS.get(operator)
        if test is None:
            self.fail(f"there is no test {operator!r}", f"{place}.{operator}")
        return test(self, name, value, place)

    def prefix(self, name: str, value: JsonObject, place: str) -> Expression:
        """Read `prefix` or `suffix`, perhaps without regard to case."""
        operator, inner = value[0]
        if isinstance(inner, JsonObject):
            here = f"{place}.{operator}"
            if not inner or inner[0][0] != "equals-ignore-case":
                self.fail(f"{operator} has a string or equals-ignore-case", here)
            text = self.string_in(inner, here)
            self.single(value, place)
            return self.like(_lower(name), text, f"{operator}-in-lower-case")
        return self.like(name, self.string_in(value, place), operator)

    def equals_ignore_case(self, name: str, value: JsonObject, place: str) -> Expression:
        """Read `equals-ignore-case`."""
        return Comparison(_lower(name), "=", self.of(self.string_in(value, place), "lower"))

    def wildcard(self, name: str, value: JsonObject, place: str) -> Expression:
        """Read `wildcard`."""
        text = self.string_in(value, place)
        self.check_wildcard(text, f"{place}.wildcard")
        return self.like(name, text, "wildcard")

    def check_wildcard(self, text: str, place: str) -> None:
        """Refuse a wildcard that is none."""
        problem = problem_of_wildcard(text)
        if problem:
            self.fail(problem, place)

    def cidr(self, name: str, value: JsonObject, place: str) -> Expression:
        """Read `cidr`: a range of addresses."""
        text = self.string_in(value, place)
        problem = problem_of_cidr(text)
        if problem:
            self.fail(problem, f"{place}.cidr")
        first, last = (self.of(text, f"{end} address") for end in ("first", "last"))
        key = _address(name)
        return conjoin([Comparison(key, ">=", first), Comparison(key, "<=", last)])

    def numeric(self, name: str, value: JsonObject, place: str) -> Expression:
        """Read a comparison with numbers, or a range."""
        here = f"{place}.numeric"
        inner = value[0][1]
        if not isinstance(inner, list):
            self.fail("numeric has a list", here)
        bounds = [self.bound(inner, at, here) for at in range(0, max(len(inner), 1), 2)]
        self.single(value, place)
        first, *rest = bounds
        if len(rest) > 1 or (rest and (first[0][0] != ">" or rest[0][0][0] != "<")):
            self.fail('a range has two bounds: [">", 0, "<=", 5]', here)
        if rest:
            low, high = first[1], rest[0][1]
            if isinstance(low, Literal) and isinstance(high, Literal):
                if not low.value < high.value:  # type: ignore[operator]
                    self.fail("the lower bound is not less than the upper one", here)
            else:
                assert isinstance(low, Parameter)
                assert isinstance(high, Parameter)
                self.ordered.append((int(low.name), int(high.name)))
        return conjoin([Comparison(name, op, number) for op, number in bounds])

    def bound(self, inner: list[Any], at: int, place: str) -> tuple[str, Operand]:
        """Read an operator and a number."""
        operator = inner[at] if at < len(inner) else None
        if operator not in ("=", "<", "<=", ">", ">="):
            self.fail("numeric has operators =, <, <=, > and >=", f"{place}[{at}]")
        number = inner[at + 1] if at + 1 < len(inner) else None
        if not isinstance(number, Number):
            self.fail(f"{operator} is followed by a number", f"{place}[{at + 1}]")
        return str(operator), self.comparable(number, f"{place}[{at + 1}]")

    # anything-but.

    def anything_but(self, name: str, value: JsonObject, place: str) -> Expression:
        """Read `anything-but`: a value that is there, and none of some."""
        here = f"{place}.anything-but"
        inner = value[0][1]
        if isinstance(inner, JsonObject):
            condition = self.anything_but_test(name, inner, here)
        else:
            condition = self.anything_but_values(name, inner, here)
        self.single(value, place)
        return condition

    def anything_but_values(self, name: str, inner: Any, place: str) -> Expression:
        """Read the values that a field must not have."""
        values = inner if isinstance(inner, list) else [inner]
        kinds = {Number if isinstance(value, Number) else type(value) for value in values}
        texts = all(isinstance(value, str) for value in values)
        if not values or not (texts or kinds == {Number}):
            self.fail("anything-but has strings, or numbers, or a test", place)
        operands = [
            self.comparable(each, place) if isinstance(each, Number) else self.of(each)
            for each in values
        ]
        present = IsNull(name, negated=True)
        return conjoin([present, *(Distinct(name, operand) for operand in operands)])

    def anything_but_test(self, name: str, inner: JsonObject, place: str) -> Expression:
        """Read the test that a field must not pass."""
        self.single(inner, place)
        operator, listed = inner[0]
        if operator not in ("prefix", "suffix", "wildcard", "equals-ignore-case"):
            self.fail(f"anything-but has no test {operator!r}", f"{place}.{operator}")
        texts = listed if isinstance(listed, list) else [listed]
        if not texts:
            self.fail("an empty list of values", f"{place}.{operator}")
        for text in texts:
            if not isinstance(text, str):
                self.fail(f"{operator} has strings", f"{place}.{operator}")
            if not text and operator in ("prefix", "suffix"):
                self.fail(f"an empty {operator}", f"{place}.{operator}")
            if operator == "wildcard":
                self.check_wildcard(text, f"{place}.{operator}")
        conditions: list[Expression]
        if operator == "equals-ignore-case":
            lower = _lower(name)
            conditions = [Comparison(lower, "<>", self.of(text, "lower")) for text in texts]
        else:
            conditions = [Not(self.like(name, text, operator)) for text in texts]
        return disjoin([conjoin(conditions), *no_text(name)])

    # Constants.

    def of(self, value: str, use: str = "string") -> Operand:
        """Return a text as an operand, changed for its use."""
        slot = getattr(value, "slot", None)
        if slot is None:
            return Literal(USES[use](value), Kind.STRING)
        return self.slot(slot, use)

    def slot(self, slot: int, use: str) -> Parameter:
        """Return the parameter for a text or number that is lifted out."""
        number = slot + self.n_literals * (use in SECOND_USES)
        self.uses[number] = use
        return Parameter(number)

    def like(self, name: str, text: str, use: str) -> Expression:
        """Return the condition that a field is like a text."""
        return Like(name, self.of(text, use), "\\")

    def number(self, number: Number) -> Operand:
        """Return a number; one that no event can have is never equal to any."""
        if number.slot is not None:
            return self.slot(number.slot, "number")
        value = number.value()
        return Literal(value, kind_of(value))

    def comparable(self, number: Number, place: str) -> Operand:
        """Return a number that is compared, or refuse it."""
        if number.slot is not None:
            return self.slot(number.slot, "number")
        value = number.value()
        if value is None or float(value) != value:
            self.fail(f"{number.text} cannot be compared: it is no 64-bit float", place)
        return Literal(value, kind_of(value))


_Test: TypeAlias = Callable[[Reader, str, JsonObject, str], Expression]
_TESTS: dict[str, _Test] = {
    "prefix": Reader.prefix,
    "suffix": Reader.prefix,
    "equals-ignore-case": Reader.equals_ignore_case,
    "wildcard": Reader.wildcard,
    "cidr": Reader.cidr,
    "numeric": Reader.numeric,
    "anything-but": Reader.anything_but,
}


def to_expression(branches: list[_Branch]) -> Expression:
    """Return the disjunction of the alternatives of a pattern."""
    return disjoin([each for branch in branches for each in _conjunctions(branch)])


def _conjunctions(branch: _Branch) -> Iterator[Expression]:
    """Yield what one alternative asks for.

    That a field is absent is meant among the elements of lists that the fields before it, in the
    order of their names, are in.
    """
    pending: list[tuple[list[Expression], list[str]]] = [([], [])]
    paths = sorted(branch)
    for at, path in enumerate(paths):
        present, absent = branch[path].present, branch[path].absent
        later = any(branch[p].absent and _first(p) == _first(path) for p in paths[at + 1 :])
        forked: list[tuple[list[Expression], list[str]]] = []
        for conditions, chosen in pending:
            missing: Expression | None = None
            if absent:
                others = [each for each in chosen if _first(each) == _first(path)]
                missing = Not(Truth(has_name(path, others)))
            if present is not None and missing is not None and not later:
                forked.append(([*conditions, disjoin([present, missing])], chosen))
                continue
            if present is not None:
                forked.append(([*conditions, present], [*chosen, path]))
            if missing is not None:
                forked.append(([*conditions, missing], chosen))
        pending = forked
    for conditions, _ in pending:
        yield conjoin(conditions)


def _first(path: str) -> str:
    return path.partition(".")[0]


def _lower(name: str) -> str:
    return name_of(Call("lower", (Attribute(name),)))


def _address(name: str) -> str:
    return name_of(Call("ip_address", (Attribute(name),)))


def _equals_address(name: str, text: str) -> Expression:
    return Comparison(_address(name), "=", Literal(ip_address(text), Kind.STRING))


def problem_of_wildcard(text: str) -> str | None:
    """Return what is wrong with a wildcard, or None."""
    at = 0
    while at < len(text):
        if text[at] == "\\":
            if text[at + 1 : at + 2] not in ("*", "\\"):
                return "a backslash stands before * or another backslash"
            at += 1
        elif text[at : at + 2] == "**":
            return "consecutive wildcards"
        at += 1
    return None


def problem_of_cidr(text: str) -> str | None:
    """Return what is wrong with a range of addresses, or None."""
    address, slash, bits = text.partition("/")
    if not slash or "/" in bits:
        return "a range of addresses has one /"
    if not re.fullmatch(r"\+?[0-9]{1,3}", bits):
        return "the bits of a range of addresses are a number"
    key = ip_address(address)
    if key is None:
        return f"{address!r} is no IP address"
    most = 31 if key.startswith("4") else 127
    return None if int(bits) <= most else f"a range of such addresses has at most {most} bits"


def _network(text: str) -> tuple[str, str]:
    """Return the first and the last address of a range, as `ip_address` has them."""
    address, _, bits = text.partition("/")
    key = ip_address(address)
    assert key is not None, "it was checked"
    digits = key[2:]
    n_bits = 4 * len(digits)
    free = (1 << (n_bits - int(bits))) - 1
    number = int(digits, 16)
    return tuple(  # type: ignore[return-value]
        f"{key[:2]}{each:0{len(digits)}x}" for each in (number & ~free, number | free)
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _from_wildcard(text: str) -> str:
    """Write a wildcard as a pattern of LIKE."""
    pieces = re.findall(r"\\[*\\]|\*|[^*\\]+", text)
    return "".join(
        "%" if piece == "*" else _escaped(piece[1:] if piece[0] == "\\" else piece)
        for piece in pieces
    )


USES: dict[str, Callable[[str], str]] = {
    "string": str,
    "lower": fold_case,
    "prefix": lambda text: _escaped(text) + "%",
    "suffix": lambda text: "%" + _escaped(text),
    "prefix-in-lower-case": lambda text: _escaped(fold_case(text)) + "%",
    "suffix-in-lower-case": lambda text: "%" + _escaped(fold_case(text)),
    "wildcard": _from_wildcard,
    "first address": lambda text: _network(text)[0],
    "last address": lambda text: _network(text)[1],
}
"""What a text of a pattern becomes as a constant of a condition."""
SECOND_USES = frozenset(("last address",))
"""Uses of a text that has another use too."""
