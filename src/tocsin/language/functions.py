"""The functions and operators of terms, for one value at a time.

Enters: plain Python values (integers of 64 bits, floats, strings, booleans, UTC datetimes; None for
an absent value; a timedelta for the difference of two timestamps). Leaves: such a value. No
function raises: a result beyond 64 bits, a division by zero, an argument of the wrong kind are
absent. This is the definition: `encode.computed` has the same for whole columns, and both are
tested against each other and against DuckDB.
"""

from __future__ import annotations

import datetime as dt
import difflib
import ipaddress
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from tocsin.language import places
from tocsin.language.timestamps import parse_timestamp
from tocsin.model import INT64_MAX, INT64_MIN, Kind, kind_of, to_microseconds

COMPARISONS = frozenset(("=", "<>", "<", "<=", ">", ">="))
FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
NUMBERS = frozenset((Kind.INTEGER, Kind.FLOAT))
_SECOND = dt.timedelta(seconds=1)
MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class Function:
    """A function of the language: how many arguments it takes, and what it makes of values.

    `kind` is the kind of its results, where all are of one; NUMBER_KIND stands for both numbers.
    One that is not strict is called with absent arguments too.
    """

    least: int
    most: int
    apply: Callable[..., Any]
    kind: Kind | None = None
    is_strict: bool = True


def compare(op: str, a: object, b: object) -> bool | None:
    """Compare two values; unknown when one is absent, NaN, or of another kind."""
    if isinstance(a, dt.timedelta) and isinstance(b, dt.timedelta):
        return _decide(op, a, b)
    a_kind, b_kind = kind_of(a), kind_of(b)
    if a_kind is None or b_kind is None:
        return None
    if a_kind is not b_kind and not (a_kind in NUMBERS and b_kind in NUMBERS):
        return None
    if a != a or b != b:  # NaN
        return None
    if isinstance(a, dt.datetime):
        a, b = to_microseconds(a), to_microseconds(b)  # type: ignore[arg-type]
    return _decide(op, a, b)


def _decide(op: str, a: Any, b: Any) -> bool:
    if op == "=":
        return bool(a == b)
    if op == "<>":
        return bool(a != b)
    if op == "<":
        return bool(a < b)
    if op == "<=":
        return bool(a <= b)
    return bool(a > b) if op == ">" else bool(a >= b)


def is_distinct(a: object, b: object) -> bool:
    """Whether two values differ; two absent ones do not, and values of two kinds do."""
    if a is None or b is None:
        return a is not b
    return compare("=", a, b) is not True


def call(name: str, arguments: Sequence[object]) -> Any:
    """Return the value of a function."""
    function = FUNCTIONS[name]
    if function.is_strict and any(value is None for value in arguments):
        return None
    return function.apply(*arguments)


def is_number(value: object) -> bool:
    """Whether a value is an integer or a float."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(value: int) -> int | None:
    """Return an integer, or None where it does not fit 64 bits."""
    return value if INT64_MIN <= value <= INT64_MAX else None


def shift(moment: dt.datetime, by: dt.timedelta) -> dt.datetime | None:
    """Return a moment some time later, or None beyond the calendar."""
    try:
        return moment + by
    except OverflowError:
        return None


def shift_months(moment: dt.datetime, months: int) -> dt.datetime | None:
    """Return the same day some months later, or the last day of a shorter month."""
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        return None
    return moment.replace(year=year, month=month + 1, day=min(moment.day, _days(year, month + 1)))


def _days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _add(a: Any, b: Any) -> Any:
    if is_number(a) and is_number(b):
        total = a + b
        return whole(total) if isinstance(total, int) else total
    if isinstance(b, dt.datetime) and isinstance(a, dt.timedelta):
        a, b = b, a
    if isinstance(b, dt.timedelta):
        if isinstance(a, dt.datetime):
            return shift(a, b)
        if isinstance(a, dt.timedelta):
            return _interval(a, b)
    return None


def _interval(a: dt.timedelta, b: dt.timedelta) -> dt.timedelta | None:
    try:
        return a + b
    except OverflowError:
        return None


def _subtract(a: Any, b: Any) -> Any:
    if is_number(a) and is_number(b):
        total = a - b
        return whole(total) if isinstance(total, int) else total
    if isinstance(a, dt.datetime) and isinstance(b, dt.datetime):
        return (to_microseconds(a) - to_microseconds(b)) * MICROSECOND
    return _add(a, -b) if isinstance(b, dt.timedelta) else None


def _multiply(a: Any, b: Any) -> Any:
    if not (is_number(a) and is_number(b)):
        return None
    product = a * b if isinstance(a, type(b)) else float(a) * float(b)
    return whole(product) if isinstance(product, int) else product


def _divide(a: Any, b: Any) -> float | None:
    if not (is_number(a) and is_number(b)) or b == 0:
        return None
    quotient = float(a) / float(b)
    return quotient


def _remainder(a: Any, b: Any) -> Any:
    if not (is_number(a) and is_number(b)) or b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        rest = abs(a) % abs(b)
        return -rest if a < 0 else rest
    if math.isinf(a):
        return math.nan
    return math.fmod(a, b)


def _negate(a: Any) -> Any:
    if isinstance(a, dt.timedelta):
        return -a
    if not is_number(a):
        return None
    return whole(-a) if isinstance(a, int) else -a


MAX_MADE = 1 << 18
"""How many characters a text may have that `||` or `replace` makes; a longer one is absent.

Otherwise a few replacements, one within the other, would make gigabytes of a word.
"""


def _concatenate(*parts: Any) -> str | None:
    if not all(isinstance(part, str) for part in parts):
        return None
    return "".join(parts) if sum(map(len, parts)) <= MAX_MADE else None


def _replace(text: str, old: str, new: str) -> str | None:
    growth = text.count(old) * (len(new) - len(old)) if old else 0
    if len(text) + growth > MAX_MADE:
        return None
    return text.replace(old, new) if old else text


def _on_strings(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function absent unless all arguments are strings."""

    def applied(*values: Any) -> Any:
        return apply(*values) if all(isinstance(value, str) for value in values) else None

    return applied


def fold_case(text: str, *, upper: bool = False) -> str:
    """Return a text in lower or upper case, character by character (simple mapping)."""
    if text.isascii():
        return text.upper() if upper else text.lower()
    import pyarrow.compute as pc

    change = pc.utf8_upper if upper else pc.utf8_lower
    return str(change(text).as_py())


def _substring(text: Any, start: Any, length: Any = INT64_MAX) -> str | None:
    numbers = isinstance(start, int) and isinstance(length, int)
    if not isinstance(text, str) or not numbers or isinstance(start, bool):
        return None
    first = start - 1 if start >= 0 else len(text) + start
    if length < 0:
        return None
    return text[max(first, 0) : max(first + length, 0)]


def _abs(a: Any) -> Any:
    return whole(abs(a)) if isinstance(a, int) and not isinstance(a, bool) else _on_float(abs, a)


def _on_float(apply: Callable[[float], float], a: Any) -> Any:
    return apply(a) if isinstance(a, float) else None


def _rounded(up: Callable[[float], int]) -> Callable[[Any], Any]:
    def applied(a: Any) -> Any:
        if not is_number(a) or isinstance(a, int) or not math.isfinite(a):
            return a if is_number(a) else None
        return math.copysign(float(up(a)), a) if up(a) == 0 else float(up(a))

    return applied


def half_away(a: float) -> float:
    """Round to the nearest integer, halves away from zero."""
    if not math.isfinite(a) or abs(a) >= 2.0**52:
        return a
    below = math.floor(abs(a))
    return math.copysign(below + (abs(a) - below >= 0.5), a)


def _round(a: Any, digits: Any = 0) -> Any:
    if not is_number(a) or not isinstance(digits, int) or isinstance(digits, bool):
        return None
    if isinstance(a, int):
        return a if digits >= 0 else _round_whole(a, -digits)
    if not -_MAX_DIGITS <= digits <= _MAX_DIGITS:
        return a if digits > 0 else 0.0
    scale = 10.0 ** abs(digits)
    rounded = half_away(a * scale) / scale if digits >= 0 else half_away(a / scale) * scale
    return rounded if math.isfinite(rounded) else a


_MAX_DIGITS = 300


def _round_whole(a: int, zeros: int) -> int | None:
    if zeros > 19:
        return 0
    scale = 10**zeros
    rounded = (abs(a) + scale // 2) // scale * scale
    return whole(-rounded if a < 0 else rounded)


def _sqrt(a: Any) -> float | None:
    return math.sqrt(a) if is_number(a) and (a >= 0 or a != a) else None


def _power(a: Any, b: Any) -> float | None:
    if not (is_number(a) and is_number(b)):
        return None
    try:
        power = math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and math.fmod(b, 2) != 0 else math.inf
    except ValueError:  # no real result
        return None
    return power


def _extreme(op: str) -> Callable[..., Any]:
    def applied(*values: Any) -> Any:
        best = None
        for value in values:
            if value is None:
                continue
            if kind_of(value) is None or value != value:
                return None
            better = True if best is None else compare(op, value, best)
            if better is None:
                return None
            best = value if better else best
        return best

    return applied


def _coalesce(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _nullif(a: Any, b: Any) -> Any:
    return None if compare("=", a, b) else a


FIELDS = (
    "year", "quarter", "month", "week", "day", "dow", "isodow", "doy", "hour", "minute", "second",
    "millisecond", "microsecond", "epoch",
)  # fmt: skip
"""What `extract` takes."""


def extract(field: Any, moment: Any) -> Any:
    """Return a part of a timestamp, as DuckDB counts them."""
    if not isinstance(moment, dt.datetime) or field not in FIELDS:
        return None
    if field in ("year", "month", "day", "hour", "minute", "second"):
        return getattr(moment, field)
    if field == "quarter":
        return (moment.month + 2) // 3
    if field == "week":
        return moment.isocalendar().week
    if field == "dow":
        return moment.isoweekday() % 7
    if field == "isodow":
        return moment.isoweekday()
    if field == "doy":
        return moment.timetuple().tm_yday
    if field == "epoch":
        return to_microseconds(moment) / 1_000_000
    micros = moment.second * 1_000_000 + moment.microsecond
    return micros // 1000 if field == "millisecond" else micros


UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")


def truncate(unit: Any, moment: Any) -> dt.datetime | None:
    """Return the beginning of the year, month, … that a moment is in."""
    if not isinstance(moment, dt.datetime) or unit not in UNITS:
        return None
    if unit in ("hour", "minute", "second"):
        zeros = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0}
        kept = {"hour": 1, "minute": 2, "second": 3}[unit]
        return moment.replace(**dict(list(zeros.items())[kept:]))  # type: ignore[arg-type]
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        return shift(day, dt.timedelta(days=-day.weekday()))
    if unit == "day":
        return day
    month = {"year": 1, "quarter": (day.month - 1) // 3 * 3 + 1}.get(unit, day.month)
    return day.replace(month=month, day=1)


def find_pattern(text: Any, pattern: Any) -> bool | None:
    """Whether an RE2 regular expression fits somewhere in a text; None where it is not valid."""
    if not isinstance(text, str) or not isinstance(pattern, str):
        return None
    if is_regexp_too_long(pattern):
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return bool(pc.match_substring_regex(pa.scalar(text), pattern).as_py())
    except pa.ArrowInvalid:
        return None


@lru_cache(maxsize=1024)
def network_of(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network that a text such as `10.0.0.0/8` names, or None."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _in_network(address: Any, network: Any) -> bool | None:
    if not isinstance(address, str) or not isinstance(network, str):
        return None
    among = network_of(network)
    try:
        return None if among is None else ipaddress.ip_address(address) in among
    except ValueError:
        return None


def to_int32(value: Any) -> int | None:
    """Return the integer of 32 bits that a value is: an integer, a text of one, or a boolean."""
    if isinstance(value, str):
        if not 0 < len(value) <= _MAX_INTEGER_TEXT or not _INTEGER_TEXT.fullmatch(value):
            return None
        value = int(value)
    if not isinstance(value, int):
        return None
    return int(value) if -(1 << 31) <= value < 1 << 31 else None


_INTEGER_TEXT = re.compile("[+-]?[0-9]+", re.ASCII)
_MAX_INTEGER_TEXT = 1_000
"""Longer texts are no integers, whatever their zeros: reading one takes time."""


def _typeof(value: Any) -> str | None:
    kind = kind_of(value)
    return None if kind is None else kind.value


_IP_V4 = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,10}){3}", re.ASCII)


def ip_address(address: Any) -> str | None:
    """Return a text for an IP address that sorts as addresses do, or None where it is none.

    It is the version and the address in hexadecimal digits; an IPv4 address written as an IPv6 one
    is the former.
    """
    if not isinstance(address, str):
        return None
    if _IP_V4.fullmatch(address):
        parts = [int(part) for part in address.split(".")]
        if max(parts) > 255:
            return None
        return "4:" + "".join(f"{part:02x}" for part in parts)
    if ":" not in address or "%" in address:
        return None
    try:
        number = ipaddress.IPv6Address(address)
    except ValueError:
        return None
    if number.ipv4_mapped is not None:
        return f"4:{int(number.ipv4_mapped):08x}"
    return f"6:{int(number):032x}"


def _number_of(value: Any) -> int | float | None:
    """Return the number that a text is, or None."""
    text = value.strip(" \t\n\r\f\v")
    if not text or "_" in text or text[-1] in "ndfxNFXy" or not text.isascii():
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def cast(value: Any, kind: Kind) -> Any:
    """Return a value as one of another kind, or None where it cannot be."""
    if value is None or kind_of(value) is None:
        return None
    if kind is Kind.STRING:
        return to_text(value)
    if kind is Kind.BOOLEAN:
        return _to_boolean(value)
    if kind is Kind.TIMESTAMP:
        return _to_timestamp(value)
    if isinstance(value, bool):
        value = int(value)
    number = _number_of(value) if isinstance(value, str) else value if is_number(value) else None
    if number is None:
        return None
    if kind is Kind.FLOAT:
        return float(number)
    if isinstance(number, float):
        return whole(round(number)) if math.isfinite(number) else None
    return whole(number)


def to_text(value: Any) -> str | None:
    """Return a value as a text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(sep=" ")
    return value if isinstance(value, str) else str(value)


def _to_boolean(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}.get(
            value.lower()
        )
    return bool(value) if isinstance(value, int) else None


def _to_timestamp(value: Any) -> dt.datetime | None:
    if isinstance(value, dt.datetime):
        return value
    if not isinstance(value, str):
        return None
    return parse_timestamp(value)


def _contains(text: str, part: str) -> bool:
    return part in text


MAX_PATTERN = 65_536
"""How many characters a LIKE pattern may have; one that is no constant, where `_` is in it."""
MAX_PIECE = 1_024
"""How many characters of a pattern may stand between two `%` where `_` is among them."""


def like(
    value: object, pattern: object, escape: str | None, *, ignore_case: bool = False
) -> bool | None:
    """Whether a string fits a LIKE pattern; unknown when either is no string."""
    if not isinstance(value, str) or not isinstance(pattern, str):
        return None
    if ignore_case:
        value, pattern = fold_case(value), fold_case(pattern)
        escape = None if escape is None else fold_case(escape)
    short = len(pattern) <= MAX_PIECE  # long ones are not kept
    pieces = (_pieces if short else _pieces.__wrapped__)(pattern, escape)
    return None if pieces is None else _fits(value, pieces)


def like_problem(pattern: object, escape: object) -> bool:
    """Whether a LIKE pattern takes too long to try."""
    if not isinstance(pattern, str):
        return False
    return _pieces(pattern, escape if isinstance(escape, str) else None) is None


def _fits(text: str, pieces: tuple[_Piece, ...]) -> bool:
    """Whether a text is pieces with anything between them.

    A piece is put where it first fits, so that no place is tried twice.
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return len(text) == first.length and first.find(text, 0, len(text)) == 0
    at, end = first.length, len(text) - last.length
    if at > end or first.find(text, 0, at) != 0 or last.find(text, end, len(text)) != end:
        return False
    for piece in pieces[1:-1]:
        place = piece.find(text, at, end)
        if place < 0:
            return False
        at = place + piece.length
    return True


@dataclass(frozen=True)
class _Piece:
    """What is between two `%` of a pattern: a text, or a regular expression where `_` is in it."""

    text: str
    regex: re.Pattern[str] | None
    length: int
    n_tried: int
    """How many characters may be compared at each place of a text."""

    def find(self, text: str, start: int, end: int) -> int:
        """Return the first place where it fits, -1 where there is none."""
        if self.regex is None:
            return text.find(self.text, start, end)
        match = self.regex.search(text, start, end)
        return match.start() if match else -1


@lru_cache(maxsize=1024)
def _pieces(pattern: str, escape: str | None) -> tuple[_Piece, ...] | None:
    """Return the pieces of a pattern; None where one would take too long to find."""
    pieces: list[_Piece] = []
    chars: list[str | None] = []  # None: any character
    each = iter(pattern)
    for char in each:
        if char == escape:
            chars.append(next(each, ""))
        elif char == "%":
            pieces.append(_piece(chars))
            chars = []
        else:
            chars.append(None if char == "_" else char)
    pieces.append(_piece(chars))
    if any(piece.length > MAX_PATTERN and piece.regex is not None for piece in pieces):
        return None
    return None if any(piece.n_tried > MAX_PIECE for piece in pieces[1:-1]) else tuple(pieces)


def _piece(chars: list[str | None]) -> _Piece:
    if None not in chars:
        text = "".join(map(str, chars))
        return _Piece(text, None, len(text), 0)
    known = [at for at, char in enumerate(chars) if char is not None]
    width = known[-1] - known[0] + 1 if known else 0
    n_tried = width if width > len(known) else 0
    wild = "".join("." if char is None else re.escape(char) for char in chars[:MAX_PATTERN])
    return _Piece("", re.compile(wild, re.DOTALL), len(chars), n_tried)


def _ilike(value: object, pattern: object, escape: Any) -> bool | None:
    return like(value, pattern, escape, ignore_case=True)


def _comparison(op: str) -> Callable[[Any, Any], bool | None]:
    return lambda a, b: compare(op, a, b)


_MANY = 255
_S, _B, _N, _I = Kind.STRING, Kind.BOOLEAN, Kind.FLOAT, Kind.INTEGER

FUNCTIONS: dict[str, Function] = {
    **{op: Function(2, 2, _comparison(op), _B) for op in sorted(COMPARISONS)},
    "is distinct from": Function(2, 2, is_distinct, _B, is_strict=False),
    "like": Function(3, 3, like, _B, is_strict=False),
    "ilike": Function(3, 3, _ilike, _B, is_strict=False),
    "+": Function(2, 2, _add),
    "-": Function(2, 2, _subtract),
    "*": Function(2, 2, _multiply, _N),
    "/": Function(2, 2, _divide, _N),
    "%": Function(2, 2, _remainder, _N),
    "neg": Function(1, 1, _negate),
    "||": Function(2, 2, _concatenate, _S),
    "concat": Function(1, _MANY, _concatenate, _S),
    "lower": Function(1, 1, _on_strings(fold_case), _S),
    "upper": Function(1, 1, _on_strings(lambda s: fold_case(s, upper=True)), _S),
    "length": Function(1, 1, _on_strings(len), _I),
    "trim": Function(1, 2, _on_strings(lambda s, chars=" ": s.strip(chars)), _S),
    "ltrim": Function(1, 2, _on_strings(lambda s, chars=" ": s.lstrip(chars)), _S),
    "rtrim": Function(1, 2, _on_strings(lambda s, chars=" ": s.rstrip(chars)), _S),
    "reverse": Function(1, 1, _on_strings(lambda s: s[::-1]), _S),
    "substring": Function(2, 3, _substring, _S),
    "starts_with": Function(2, 2, _on_strings(str.startswith), _B),
    "ends_with": Function(2, 2, _on_strings(str.endswith), _B),
    "contains": Function(2, 2, _on_strings(_contains), _B),
    "replace": Function(3, 3, _on_strings(_replace), _S),
    "position": Function(2, 2, _on_strings(lambda s, part: s.find(part) + 1), _I),
    "regexp_matches": Function(2, 2, find_pattern, _B),
    "abs": Function(1, 1, _abs, _N),
    "round": Function(1, 2, _round, _N),
    "floor": Function(1, 1, _rounded(math.floor), _N),
    "ceil": Function(1, 1, _rounded(math.ceil), _N),
    "sqrt": Function(1, 1, _sqrt, _N),
    "power": Function(2, 2, _power, _N),
    "least": Function(1, _MANY, _extreme("<"), is_strict=False),
    "greatest": Function(1, _MANY, _extreme(">"), is_strict=False),
    "coalesce": Function(1, _MANY, _coalesce, is_strict=False),
    "nullif": Function(2, 2, _nullif, is_strict=False),
    "extract": Function(2, 2, extract, _N),
    "date_trunc": Function(2, 2, truncate, Kind.TIMESTAMP),
    "in_network": Function(2, 2, _in_network, _B),
    "typeof": Function(1, 1, _typeof, _S),
    "int32": Function(1, 1, to_int32, _I),
    "ip_address": Function(1, 1, ip_address, _S),
    "distance": Function(4, 4, places.distance, Kind.FLOAT),
    "inside": Function(3, 3, places.inside, _B),
}
"""All functions by their names; `now`, lists and texts have modules of their own."""

ALIASES = {
    "len": "length",
    "char_length": "length",
    "character_length": "length",
    "ceiling": "ceil",
    "lcase": "lower",
    "ucase": "upper",
    "substr": "substring",
    "pow": "power",
    "startswith": "starts_with",
    "endswith": "ends_with",
    "prefix": "starts_with",
    "suffix": "ends_with",
    "strpos": "position",
    "instr": "position",
    "regexp_like": "regexp_matches",
    "ifnull": "coalesce",
    "nvl": "coalesce",
    "mod": "%",
}
"""Other spellings that Spark or DuckDB have."""

MANY_ARGUMENTS = 8
"""A function that takes more arguments takes as many as one likes."""
SPECIAL_COUNTS = {
    "now": (0, 0),
    "cardinality": (1, 1),
    "lower_each": (1, 1),
    "words": (1, 1),
    "matches": (2, 2),
    "has_phrase": (2, 2),
}
"""How many arguments the functions take that are no functions of plain values."""

INTERVALS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
    "month": -1,
    "quarter": -3,
    "year": -12,
}
"""Units of intervals: microseconds, or months where negative."""
_INTERVAL_PART = re.compile(r"\s*([+-]?\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]+)\s*", re.ASCII)


def print_interval(months: int, microseconds: int) -> str:
    """Write an interval as `parse_interval` reads it, in the largest unit that is whole."""
    parts = [f"{months} months"] if months else []
    if microseconds or not parts:
        units = [(of, unit) for unit, of in INTERVALS.items() if 0 < of <= INTERVALS["day"]]
        of, unit = max(pair for pair in units if microseconds % pair[0] == 0)
        parts.append(f"{microseconds // of} {unit}s")
    return " ".join(parts)


def parse_interval(text: str) -> tuple[int, int] | None:
    """Return the months and microseconds of a text such as `1 day 2 hours`, or None."""
    at, months, microseconds = 0, 0, 0
    while at < len(text):
        match = _INTERVAL_PART.match(text, at)
        if match is None:
            return None
        unit = INTERVALS.get(match[2].lower().removesuffix("s"))
        if unit is None:
            return None
        if unit > 0:
            microseconds += round(Fraction(match[1]) * unit)
        elif "." in match[1]:
            return None
        else:
            months -= int(match[1]) * unit
        at = match.end()
    fits = abs(microseconds) <= INT64_MAX and abs(months) <= 12 * 10_000
    return (months, microseconds) if at and fits else None


MAX_REGEXP = 1_000
"""How many characters a regular expression may have, and as many with its repetitions written out.

RE2 takes up to 40 ms for one of that size on a text of 100 kB.
"""
_REGEXP_PART = re.compile(
    r"(?P<atom>\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|(?P<char>.)",
    re.DOTALL,
)


@lru_cache(maxsize=1024)
def regexp_size(pattern: str) -> int:
    """Return how many characters and classes a regular expression has, repetitions written out."""
    sizes, last = [0], [0]  # of each open group: all of it, and what a repetition would repeat
    for part in _REGEXP_PART.finditer(pattern):
        if part["least"]:
            times = max(int(part["least"]), int(part["most"] or 0), 1)
            sizes[-1] += last[-1] * (times - 1)
            last[-1] *= times
        elif part["char"] == "(":
            sizes.append(0)
            last.append(0)
        elif part["char"] == ")" and len(sizes) > 1:
            size = sizes.pop()
            last.pop()
            sizes[-1] += size
            last[-1] = size
        elif part["char"] not in ("*", "+", "?", "|"):
            sizes[-1] += 1
            last[-1] = 1
    return sum(sizes)


def is_regexp_too_long(pattern: str) -> bool:
    """Whether a regular expression is longer than we take."""
    return len(pattern) > MAX_REGEXP or regexp_size(pattern) > MAX_REGEXP


@lru_cache(maxsize=1024)
def regexp_problem(pattern: str) -> str | None:
    """Return why a text is no regular expression that we take, or None."""
    if is_regexp_too_long(pattern):
        return f"more than {MAX_REGEXP} characters, repetitions written out"
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.scalar(""), pattern)
    except pa.ArrowInvalid as error:
        return str(error).partition(": ")[2]
    return None


def problem_of(name: str, arguments: Sequence[object]) -> str | None:
    """Return what is wrong with the constants of a call, or None."""
    constants = [getattr(argument, "value", None) for argument in arguments]
    if name == "in_network" and isinstance(constants[1], str) and network_of(constants[1]) is None:
        return f"{constants[1]!r} is not a network such as '10.0.0.0/8'"
    if name == "date_trunc" and isinstance(constants[0], str) and constants[0] not in UNITS:
        return f"date_trunc takes one of {', '.join(UNITS)}"
    if name == "inside" and isinstance(constants[2], str):
        return places.polygon_problem(constants[2])
    return None


def similar(name: str) -> str | None:
    """Return the name of a function that is written much like this one."""
    known = [*(name for name in FUNCTIONS if name.isidentifier()), *SPECIAL_COUNTS, *ALIASES]
    near = difflib.get_close_matches(name, known, n=1)
    return near[0] if near else None
