"""Random conditions of the dialects, and evaluators of them that know nothing of ours.

A condition is drawn as a tree of tuples, which is written as text, and evaluated on an event by the
rules of the specification: one value at a time, with errors as exceptions (CloudEvents SQL) or with
None for NULL and unknown (message selectors).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

Tree = tuple[Any, ...]
Event = dict[str, Any]

NAMES = ("a", "b", "c")
VALUES: tuple[Any, ...] = (
    None, 0, 1, -1, 5, 10, 2**31 - 1, -(2**31), True, False,
    "", "a", "ab", "aB", "5", "-5", "+5", "05", "5 ", "true", "TRUE", "false", "x_y", "%",
)  # fmt: skip
NUMBERS = (1.5, 5.0, -0.0, 2**31, 2**63 - 1)
"""Values that CloudEvents do not have."""
PATTERNS = ("a%", "%b", "5", "_", "%", "tr%", "x\\_y", "-%", "")
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")


def draw_event(random: Random, *, all_numbers: bool) -> Event:
    values = VALUES + NUMBERS if all_numbers else VALUES
    return {name: random.choice(values) for name in NAMES}


def like(text: str, pattern: str) -> bool:
    """Whether a text fits a pattern with the escape character backslash."""
    made = ""
    for escaped, wild, plain in re.findall(r"\\([%_])|([%_])|(.)", pattern, re.DOTALL):
        made += {"%": ".*", "_": "."}[wild] if wild else re.escape(escaped or plain)
    return re.fullmatch(made, text, re.DOTALL) is not None


# CloudEvents SQL.


class CesqlError(Exception):
    """An error of the evaluation, of any sort: the event does not pass."""


def draw_cesql(random: Random, depth: int = 3) -> Tree:
    """Draw an expression."""
    if depth == 0 or random.random() < 0.15:
        leaf = random.choice(("name", "name", "int", "text", "bool", "exists"))
        literals = {
            "int": random.choice((0, 1, 5, -5, 2**31 - 1, -(2**31))),
            "text": random.choice([v for v in VALUES if isinstance(v, str)]),
            "bool": random.random() < 0.5,
        }
        return (leaf, literals.get(leaf, random.choice(NAMES)))

    def part() -> Tree:
        return draw_cesql(random, depth - 1)

    kind = random.choice(("logic", "logic", "compare", "compare", "sum", "not", "in", "like", "fn"))
    if kind == "logic":
        return (kind, random.choice(("AND", "OR", "XOR")), part(), part())
    if kind == "compare":
        return (kind, random.choice((*_COMPARISONS, "!=")), part(), part())
    if kind == "sum":
        return (kind, random.choice("+-*/%"), part(), part())
    if kind == "not":
        return (random.choice(("not", "minus")), part())
    if kind == "in":
        items = tuple(part() for _ in range(random.randint(1, 3)))
        return (kind, random.random() < 0.5, part(), items)
    if kind == "like":
        return (kind, random.random() < 0.5, part(), random.choice(PATTERNS))
    name = random.choice(tuple(_CESQL_FUNCTIONS))
    return (kind, name, tuple(part() for _ in range(_CESQL_FUNCTIONS[name][0])))


def write_cesql(tree: Tree) -> str:
    """Write an expression, with parentheses around each part."""
    kind = tree[0]
    if kind in ("name", "int"):
        return str(tree[1])
    if kind == "text":
        return "'" + tree[1].replace("'", "\\'") + "'"
    if kind == "bool":
        return str(tree[1])
    if kind == "exists":
        return f"EXISTS {tree[1]}"
    if kind in ("logic", "compare", "sum"):
        return f"({write_cesql(tree[2])} {tree[1]} {write_cesql(tree[3])})"
    if kind in ("not", "minus"):
        return f"({'NOT' if kind == 'not' else '-'} {write_cesql(tree[1])})"
    if kind == "fn":
        return f"{tree[1]}({', '.join(map(write_cesql, tree[2]))})"
    negated = "NOT " * tree[1]
    if kind == "like":
        return f"({write_cesql(tree[2])} {negated}LIKE '{tree[3]}')"
    return f"({write_cesql(tree[2])} {negated}IN ({', '.join(map(write_cesql, tree[3]))}))"


def passes_cesql(tree: Tree, event: Event) -> bool:
    """Whether an event passes a filter."""
    try:
        return evaluate_cesql(tree, event) is True
    except CesqlError:
        return False


def evaluate_cesql(tree: Tree, event: Event) -> Any:
    kind = tree[0]
    if kind == "name":
        value = event.get(tree[1])
        if value is None:
            raise CesqlError
        return value
    if kind in ("int", "text", "bool"):
        return tree[1]
    if kind == "exists":
        return event.get(tree[1]) is not None
    if kind == "logic":
        return _logic(tree, event)
    if kind == "not":
        return not _cast(evaluate_cesql(tree[1], event), bool)
    if kind == "minus":
        return _int32(-_cast(evaluate_cesql(tree[1], event), int))
    if kind == "compare":
        left, right = evaluate_cesql(tree[2], event), evaluate_cesql(tree[3], event)
        if tree[1] in ("=", "<>", "!="):
            return (_cast(left, type(right)) == right) is (tree[1] == "=")
        return _compare(tree[1], _cast(left, int), _cast(right, int))
    if kind == "sum":
        left, right = (_cast(evaluate_cesql(part, event), int) for part in tree[2:])
        return _calculate(tree[1], left, right)
    if kind == "like":
        text = _cast(evaluate_cesql(tree[2], event), str)
        return like(text, tree[3]) is not tree[1]
    if kind == "in":
        left = evaluate_cesql(tree[2], event)
        for item in tree[3]:
            if _cast(evaluate_cesql(item, event), type(left)) == left:
                return not tree[1]
        return bool(tree[1])
    _, types, apply = _CESQL_FUNCTIONS[tree[1]]
    values = [evaluate_cesql(part, event) for part in tree[2]]
    return apply(*(_cast(value, types[at]) for at, value in enumerate(values)))


def _logic(tree: Tree, event: Event) -> bool:
    left = _cast(evaluate_cesql(tree[2], event), bool)
    if tree[1] == "AND" and not left:
        return False
    if tree[1] == "OR" and left:
        return True
    right = _cast(evaluate_cesql(tree[3], event), bool)
    return left is not right if tree[1] == "XOR" else right


def _compare(op: str, a: Any, b: Any) -> bool:
    return bool({"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op])


def _calculate(op: str, a: int, b: int) -> int:
    if op in "+-*":
        return _int32({"+": a + b, "-": a - b, "*": a * b}[op])
    if b == 0:
        raise CesqlError
    quotient = abs(a) // abs(b) * (1 if (a < 0) is (b < 0) else -1)
    return _int32(quotient if op == "/" else a - b * quotient)


def _int32(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise CesqlError
    return value


def _cast(value: Any, to: type) -> Any:
    if to is int:
        if isinstance(value, str) and re.fullmatch("[+-]?[0-9]+", value) is None:
            raise CesqlError
        return _int32(int(value))
    if to is str:
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, str) and value.lower() not in ("true", "false"):
        raise CesqlError
    return value.lower() == "true" if isinstance(value, str) else bool(value)


def _part(text: str, count: int, last: bool) -> str:
    if count < 0:
        raise CesqlError
    return text[max(len(text) - count, 0) :] if last else text[:count]


def _substring(text: str, start: int, length: int = 2**31) -> str:
    if length < 0 or abs(start) > len(text):
        raise CesqlError
    if start == 0:
        return ""
    first = start - 1 if start > 0 else len(text) + start
    return text[first : first + length]


_CESQL_FUNCTIONS: dict[str, tuple[int, tuple[type, ...], Callable[..., Any]]] = {
    "LENGTH": (1, (str,), len),
    "CONCAT": (2, (str, str), lambda a, b: a + b),
    "CONCAT_WS": (3, (str, str, str), lambda d, a, b: a + d + b),
    "LOWER": (1, (str,), str.lower),
    "UPPER": (1, (str,), str.upper),
    "TRIM": (1, (str,), str.strip),
    "LEFT": (2, (str, int), lambda text, count: _part(text, count, False)),
    "RIGHT": (2, (str, int), lambda text, count: _part(text, count, True)),
    "SUBSTRING": (3, (str, int, int), _substring),
    "ABS": (1, (int,), lambda a: _int32(abs(a))),
    "INT": (1, (int,), lambda a: a),
    "BOOL": (1, (bool,), lambda a: a),
    "STRING": (1, (str,), lambda a: a),
}


# Message selectors.


def draw_selector(random: Random, depth: int = 3) -> Tree:
    """Draw a conditional expression."""
    if depth > 0 and random.random() < 0.6:
        if random.random() < 0.3:
            return ("not", draw_selector(random, depth - 1))
        parts = tuple(draw_selector(random, depth - 1) for _ in range(2))
        return (random.choice(("and", "or")), *parts)
    kind = random.choice(("compare", "compare", "compare", "between", "in", "like", "null", "name"))
    subject = _draw_value(random, 1)
    if kind == "compare":
        return (kind, random.choice(_COMPARISONS), subject, _draw_value(random, 1))
    if kind == "between":
        bounds = [_draw_number(random, 1) for _ in range(2)]
        return (kind, random.random() < 0.5, _draw_number(random, 1), *bounds)
    if kind == "in":
        texts = [v for v in VALUES if isinstance(v, str)]
        items = tuple(("text", random.choice(texts)) for _ in range(random.randint(1, 3)))
        return (kind, random.random() < 0.5, ("name", random.choice(NAMES)), items)
    if kind == "like":
        name = ("name", random.choice(NAMES))
        return (kind, random.random() < 0.5, name, random.choice(PATTERNS))
    name = ("name", random.choice(NAMES))
    return (kind, random.random() < 0.5, name) if kind == "null" else name


def _draw_value(random: Random, depth: int) -> Tree:
    if random.random() < 0.4:
        texts = [v for v in VALUES if isinstance(v, str)]
        return random.choice((("text", random.choice(texts)), ("bool", random.random() < 0.5)))
    return _draw_number(random, depth)


def _draw_number(random: Random, depth: int) -> Tree:
    if depth > 0 and random.random() < 0.3:
        parts = (_draw_number(random, depth - 1), _draw_number(random, depth - 1))
        return ("sum", random.choice("+-*/%"), *parts)
    number = random.choice((0, 1, 5, -5, 1.5, 10, 2.0))
    return random.choice((("name", random.choice(NAMES)), ("number", number)))


def write_selector(tree: Tree) -> str:
    """Write a selector, with parentheses around each part."""
    kind = tree[0]
    if kind in ("name", "number"):
        return str(tree[1])
    if kind == "text":
        return "'" + tree[1].replace("'", "''") + "'"
    if kind == "bool":
        return str(tree[1])
    if kind == "not":
        return f"NOT ({write_selector(tree[1])})"
    if kind in ("and", "or"):
        return f"(({write_selector(tree[1])}) {kind} ({write_selector(tree[2])}))"
    if kind in ("compare", "sum"):
        written = f"{write_selector(tree[2])} {tree[1]} {write_selector(tree[3])}"
        return f"({written})" if kind == "sum" else written
    subject, negated = write_selector(tree[2]), "NOT " * tree[1]
    if kind == "between":
        low, high = map(write_selector, tree[3:])
        return f"{subject} {negated}BETWEEN {low} AND {high}"
    if kind == "in":
        return f"{subject} {negated}IN ({', '.join(map(write_selector, tree[3]))})"
    if kind == "like":
        return f"{subject} {negated}LIKE '{tree[3]}' ESCAPE '\\'"
    return f"{subject} IS {negated}NULL"


def evaluate_selector(tree: Tree, event: Event) -> bool | None:
    """Return the truth of a selector; None for unknown."""
    kind = tree[0]
    if kind in ("name", "bool"):
        value = _value(tree, event)
        return value if isinstance(value, bool) else None
    if kind == "not":
        return _not(evaluate_selector(tree[1], event))
    if kind in ("and", "or"):
        truths = [evaluate_selector(part, event) for part in tree[1:]]
        decisive = kind == "or"
        if decisive in truths:
            return decisive
        return None if None in truths else not decisive
    if kind == "compare":
        return _ordered(tree[1], _value(tree[2], event), _value(tree[3], event))
    subject = _value(tree[2], event)
    if kind == "null":
        return (subject is None) is not tree[1]
    if kind == "between":
        low, high = (_value(part, event) for part in tree[3:])
        truths = [_ordered(">=", subject, low), _ordered("<=", subject, high)]
        inside = False if False in truths else None if None in truths else True
        return _not(inside) if tree[1] else inside
    if kind == "in":
        if subject is None:
            return None
        found = any(_ordered("=", subject, item[1]) is True for item in tree[3])
        return found is not tree[1]
    return like(subject, tree[3]) is not tree[1] if isinstance(subject, str) else None


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _value(tree: Tree, event: Event) -> Any:
    if tree[0] == "name":
        return event.get(tree[1])
    if tree[0] != "sum":
        return tree[1]
    a, b = _value(tree[2], event), _value(tree[3], event)
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (a, b)):
        return None
    if tree[1] in "+-*":
        result = {"+": a + b, "-": a - b, "*": a * b}[tree[1]]
        fits = isinstance(result, float) or -(2**63) <= result < 2**63
        return result if fits else None
    if b == 0:
        return None
    rest = abs(a) % abs(b)
    return a / b if tree[1] == "/" else -rest if a < 0 else rest


def _ordered(op: str, a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None
    if isinstance(a, bool) or isinstance(b, bool):
        both = isinstance(a, bool) and isinstance(b, bool) and op in ("=", "<>")
        return both and _compare(op, a, b)
    return isinstance(a, str) is isinstance(b, str) and _compare(op, a, b)
