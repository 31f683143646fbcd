"""Random conditions of all that the language has, on values of all kinds; and events to match.

Enters: a source of randomness. Leaves: conditions in which any term may stand anywhere, whatever
its kind, and events as odd as may be, as mappings or as a table. DuckDB refuses most of it, so the
oracle engine says what is right.
"""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from tocsin import Matcher
from tocsin.engines import names as engines
from tocsin.errors import TocsinError
from tocsin.language import parse, print_expression

NUMBERS = [0, 1, -1, 2, 3, 7, -7, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 0.0, -0.0, 0.5,
           -0.5, 1.5, 2.5, -2.5, 1e15, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan,
           float(2**53), 9.223372036854775807e18]  # fmt: skip
STRINGS = ["", "a", "A", "ab", "aB", "abc", " a ", "b", "5", "-7", " 2.5 ", "1e3", "true", "F",
           "é", "É", "ß", "İ", "😀a", "a\nb", "a.b", "a+b", "%", "_", "a%", "[", "(", "nan", "inf",
           "2026-01-31", "2026-01-31T12:30:15.25Z", "2026-02-30", "2024-02-29 23:59:59+02:00",
           "10.1.2.3", "10.0.0.0/8", "::1", "rate hike, central bank",
           "9223372036854775808"]  # fmt: skip
MOMENTS = [
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2026, 1, 31, 12, 30, 15, 250_000, tzinfo=dt.UTC),
    dt.datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=dt.UTC),
    dt.datetime(1969, 12, 31, 23, 0, 0, 1, tzinfo=dt.UTC),
    dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
]
INTERVALS = ["1 day", "90 minutes", "1 month", "-13 months", "1 year 1 day", "0 seconds",
             "3650000 days", "250 milliseconds"]  # fmt: skip
FUNCTIONS = {
    "abs": 1, "round": 1, "floor": 1, "ceil": 1, "sqrt": 1, "power": 2, "mod": 2, "least": 3,
    "greatest": 3, "coalesce": 3, "nullif": 2, "lower": 1, "upper": 1, "length": 1, "trim": 1,
    "ltrim": 1, "rtrim": 1, "reverse": 1, "concat": 3, "replace": 3, "position": 2,
    "starts_with": 2, "ends_with": 2, "contains": 2, "regexp_matches": 2, "in_network": 2,
    "substring": 3, "cardinality": 1,
}  # fmt: skip
FIELDS = ["year", "quarter", "month", "week", "day", "dow", "isodow", "doy", "hour", "minute",
          "second", "millisecond", "microsecond", "epoch"]  # fmt: skip
UNITS = ["year", "quarter", "month", "week", "day", "hour", "minute", "second"]
KINDS = ["INTEGER", "FLOAT", "STRING", "BOOLEAN", "TIMESTAMP"]
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]
PLAIN = ["i", "f", "s", "b", "t", "x", "y", "o.p", "o.q.r"]
LISTS = ["tags", "mixed", "items.sku", "items.price", "items.parts", "o.list", "x"]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Wild:
    """Draws terms and conditions."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.variables: list[str] = []

    def literal(self) -> str:
        pick = self.random.choice
        value: Any = pick([pick(NUMBERS), pick(STRINGS), pick([True, False, None]), pick(MOMENTS)])
        if value is None or isinstance(value, bool):
            return str({None: "NULL", True: "TRUE", False: "FALSE"}[value])
        if isinstance(value, str):
            return quoted(value)
        if isinstance(value, dt.datetime):
            return f"TIMESTAMP '{value.replace(tzinfo=None).isoformat(sep=' ')}'"
        if isinstance(value, float) and not math.isfinite(value):
            return "(1e308 * 10)" if value > 0 else "(-1e308 * 10)"
        return repr(value)

    def attribute(self) -> str:
        names = [*PLAIN, "i", "f", "s", "t"]
        for variable in self.variables:
            names += [variable, f"{variable}.sku", f"{variable}.price"] * 3
        return self.random.choice(names)

    def list(self) -> str:
        if self.variables:  # no other list may stand there
            return f"{self.variables[-1]}.parts"
        return self.random.choice([*LISTS, "words(s)"])

    def term(self, depth: int) -> str:
        pick, random = self.random.choice, self.random
        if depth <= 0 or random.random() < 0.25:
            return self.attribute() if random.random() < 0.65 else self.literal()
        form = pick(["arithmetic"] * 3 + ["function"] * 5 + ["negative", "interval", "cast", "case",
                    "extract", "trunc", "test", "round", "substring", "join", "if"])  # fmt: skip
        if form == "arithmetic":
            return f"({self.term(depth - 1)} {pick('+-*/%')} {self.term(depth - 1)})"
        if form == "function":
            name = pick(list(FUNCTIONS))
            if name == "cardinality":
                return f"cardinality({self.list()})"
            parts = [self.term(depth - 1) for _ in range(FUNCTIONS[name])]
            if name in ("regexp_matches", "in_network"):
                parts[1] = pick(
                    ["s", "'a.?b'", "'^a'"] if name[0] == "r" else ["s", "'10.0.0.0/8'"]
                )
            return f"{name}({', '.join(parts)})"
        if form == "negative":
            return f"(-({self.term(depth - 1)}))"
        if form == "interval":
            return f"({self.term(depth - 1)} {pick('+-')} INTERVAL '{pick(INTERVALS)}')"
        if form == "cast":
            return f"CAST({self.term(depth - 1)} AS {pick(KINDS)})"
        if form == "case":
            branches = "".join(
                f"WHEN {self.condition(depth - 1)} THEN {self.term(depth - 1)} "
                for _ in range(random.randrange(1, 3))
            )
            otherwise = pick(["", f"ELSE {self.term(depth - 1)} "])
            return f"CASE {branches}{otherwise}END"
        if form == "extract":
            return f"extract({pick(FIELDS)} FROM {self.term(depth - 1)})"
        if form == "trunc":
            return f"date_trunc('{pick(UNITS)}', {self.term(depth - 1)})"
        if form == "test":
            return f"({self.condition(depth - 1)})"
        if form == "round":
            return f"round({self.term(depth - 1)}, {pick(['2', '-1', '0', '-19', '400', 'i'])})"
        if form == "substring":
            return f"substring({self.term(depth - 1)}, {pick(['1', '2', '0', '-2', 'i'])})"
        if form == "if":
            parts = [self.condition(depth - 1), self.term(depth - 1), self.term(depth - 1)]
            return f"if({', '.join(parts)})"
        return f"({self.term(depth - 1)} || {self.term(depth - 1)})"

    def condition(self, depth: int) -> str:
        chance = self.random.random()
        if depth <= 0 or chance < 0.55:
            return self.predicate(depth - 1)
        if chance < 0.65:
            return f"NOT ({self.condition(depth - 1)})"
        word = "AND" if chance < 0.85 else "OR"
        parts = [self.condition(depth - 1) for _ in range(self.random.randrange(2, 4))]
        return f" {word} ".join(f"({part})" for part in parts)

    def predicate(self, depth: int) -> str:
        pick = self.random.choice
        form = pick(["compare"] * 5 + ["plain"] * 3 + ["elements"] * 3
                    + ["exists", "bare", "text", "tail", "tail", "difference"])  # fmt: skip
        if form == "compare":
            return f"{self.term(depth)} {pick(OPERATORS)} {self.term(depth)}"
        if form == "plain":
            return f"{self.attribute()} {self.tail(0)}"
        if form == "elements":
            if self.random.random() < 0.1:
                return f"{self.term(0)} {pick(OPERATORS)} {pick(['ANY', 'ALL'])}({self.list()})"
            return f"{pick(['ANY', 'ALL', 'SOME'])}({self.list()}) {self.tail(0)}"
        if form == "exists":
            variable = f"e{len(self.variables)}"
            name = pick(
                [*["items", "tags", "mixed", "o.list", "x"] * (not self.variables), self.list()]
            )
            self.variables.append(variable)
            inner = self.condition(depth)
            self.variables.pop()
            return f"{pick(['exists', 'forall'])}({name}, {variable} -> {inner})"
        if form == "bare":
            name = pick(["starts_with", "contains", "ends_with"])
            return pick(["b", "x", "NOT b", f"{name}({self.term(depth)}, {self.term(0)})"])
        if form == "text":
            query = pick(["rate hike", "a OR b", "-a", '"central bank"', 'rate -"b c"', "ra* b*"])
            text = f"{self.variables[-1]}.sku" if self.variables else pick(["s", "x", "lower(s)"])
            return f"matches({text}, {quoted(query)})"
        if form == "difference":
            return (
                f"({self.term(0)} - {self.term(0)}) {pick(OPERATORS)} INTERVAL '{pick(INTERVALS)}'"
            )
        return f"{self.term(depth)} {self.tail(depth)}"

    def tail(self, depth: int) -> str:
        """Return a test on what stands before it."""
        pick, random = self.random.choice, self.random
        negated = pick(["", "NOT "])

        def other() -> str:
            return self.literal() if random.random() < 0.6 else self.term(depth)

        form = pick(["compare"] * 4 + ["between", "in", "in", "like", "like", "null", "truth",
                                       "distinct"])  # fmt: skip
        if form == "compare":
            return f"{pick(OPERATORS)} {other()}"
        if form == "between":
            return f"{negated}BETWEEN {other()} AND {other()}"
        if form == "in":
            return f"{negated}IN ({', '.join(other() for _ in range(random.randrange(1, 4)))})"
        if form == "like":
            patterns = ["'a%'", "'%b%'", "'_'", "'A%'", "'%'", "'é'", "'a!%' ESCAPE '!'", "s", "x"]
            return f"{negated}{pick(['LIKE', 'ILIKE'])} {pick(patterns)}"
        if form == "null":
            return f"IS {negated}NULL"
        if form == "truth":
            return f"IS {negated}{pick(['TRUE', 'FALSE', 'UNKNOWN'])}"
        return f"IS {negated}DISTINCT FROM {other()}"


def draw_value(random: Random) -> Any:
    pick = random.choice
    return pick([None, pick(NUMBERS), pick(NUMBERS), pick(STRINGS), pick([True, False]),
                 pick(MOMENTS), Decimal(pick(["1.5", "3", "0.1"])), dt.date(2026, 1, 31),
                 b"bytes"])  # fmt: skip


def draw_list(random: Random) -> Any:
    if random.random() < 0.2:
        return None
    listed = [draw_value(random) for _ in range(random.randrange(4))]
    if random.random() < 0.15:
        listed.append([draw_value(random)])
    return listed


def draw_item(random: Random) -> Any:
    pick = random.choice
    if random.random() < 0.1:
        return pick([None, 5, "x"])
    item: dict[str, Any] = {"sku": pick([None, *STRINGS[:8]]), "price": pick([None, *NUMBERS])}
    if random.random() < 0.7:
        item["parts"] = pick([None, [], ["a"], ["a", None, "b"], [1, 2]])
    return item


def draw_event(random: Random) -> dict[str, Any]:
    """Return an event in which anything may be."""
    pick = random.choice
    integers = [n for n in NUMBERS if isinstance(n, int)]
    floats = [n for n in NUMBERS if not isinstance(n, int)]
    event: dict[str, Any] = {
        "i": pick([None, *integers]),
        "f": pick([None, *floats]),
        "s": pick([None, *STRINGS]),
        "b": pick([None, True, False]),
        "t": pick([None, *MOMENTS]),
        "x": pick([draw_value, draw_list])(random),
        "y": draw_value(random),
        "o": pick([None, {"p": draw_value(random), "q": {"r": draw_value(random)}},
                   {"p": 1, "list": draw_list(random)}, [{"p": 1}, {"p": "a"}]]),
        "tags": pick([None, random.choices([*STRINGS[:8], None], k=random.randrange(4))]),
        "mixed": draw_list(random),
        "items": pick([None, [draw_item(random) for _ in range(random.randrange(4))]]),
    }  # fmt: skip
    return {name: value for name, value in event.items() if random.random() < 0.9}


SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
        ("x", pa.string()),
        ("y", pa.decimal128(12, 3)),
        ("o", pa.struct([("p", pa.int32()), ("q", pa.struct([("r", pa.float32())])),
                         ("list", pa.list_(pa.int16()))])),
        ("tags", pa.list_(pa.string())),
        ("mixed", pa.list_(pa.list_(pa.float64()))),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("price", pa.float64()),
                                      ("parts", pa.list_(pa.string()))]))),
    ]
)  # fmt: skip


def draw_row(random: Random) -> dict[str, Any]:
    """Return a row of the schema."""
    pick = random.choice
    integers = [n for n in NUMBERS if isinstance(n, int)]
    floats = [n for n in NUMBERS if not isinstance(n, int)]
    item = lambda: pick([None, {"sku": pick([None, *STRINGS]), "price": pick([None, *floats]),  # noqa: E731
                         "parts": pick([None, [], ["a"], ["a", None, "b"]])}])  # fmt: skip
    return {
        "i": pick([None, *integers]),
        "f": pick([None, *floats]),
        "s": pick([None, *STRINGS]),
        "b": pick([None, True, False]),
        "t": pick([None, *MOMENTS]),
        "x": pick([None, *STRINGS]),
        "y": pick([None, Decimal("1.5"), Decimal(3), Decimal("0.125")]),
        "o": pick([None, {"p": pick([None, 1, 2]), "q": pick([None, {"r": pick([None, 0.5, 2.0])}]),
                          "list": pick([None, [], [1, None], [1, 2, 3]])}]),
        "tags": pick([None, random.choices([*STRINGS, None], k=random.randrange(4))]),
        "mixed": pick([None, [], [[1.0, None], None, []]]),
        "items": pick([None, [item() for _ in range(random.randrange(4))]]),
    }  # fmt: skip


def differences_from_oracle(seed: int, n_conditions: int, n_events: int) -> list[str]:
    """Return where an engine, or a road to it, differs from the oracle; and what is misprinted."""
    random = Random(seed)
    wild = Wild(random)
    conditions: list[str] = []
    problems: list[str] = []
    while len(conditions) < n_conditions:
        text = wild.condition(3)
        try:
            expression = parse(text)
        except TocsinError:
            continue
        if parse(print_expression(expression)) != expression:
            problems.append(f"printed otherwise: {text}")
        conditions.append(text)
    rows = [draw_row(random) for _ in range(n_events)]
    table = pa.Table.from_pylist(rows, SCHEMA)
    chunks = pa.concat_tables([table.slice(0, 7), table.slice(7, 0), table.slice(7)])
    for events in ([draw_event(random) for _ in range(n_events)], rows):
        oracle = _matcher("oracle", conditions)
        expected = [set(oracle.match(event)) for event in events]
        for name, matcher in _roads(conditions).items():
            ways: dict[str, Any] = {"batch": events}
            if events is rows:
                ways |= {"table": table, "chunks": chunks}
            found = {way: [set(ids) for ids in matcher.match_batch(of)] for way, of in ways.items()}
            found["one"] = [set(matcher.match(event)) for event in events]
            for way, sets in found.items():
                for event, right, given in zip(events, expected, sets, strict=True):
                    problems += [
                        f"{name} {way}: {conditions[int(id)]}\n    {event}" for id in right ^ given
                    ]
        for event, right in zip(events[:5], expected, strict=False):
            for id, text in enumerate(conditions):
                if oracle.explain(id, event).startswith("match") != (id in right):
                    problems.append(f"explained otherwise: {text}\n    {event}")
    return problems


def _matcher(engine: str, conditions: list[str]) -> Matcher:
    matcher = Matcher(engine=engine)
    for id, text in enumerate(conditions):
        matcher.subscribe(id, text)
    return matcher


def _roads(conditions: list[str]) -> dict[str, Matcher]:
    """Return matchers of the same conditions that came to them in different ways."""
    n = len(conditions)
    roads = {name: _matcher(name, conditions) for name in engines() if name != "oracle"}
    roads["bulk"] = Matcher()
    roads["bulk"].subscribe_many({"id": list(range(n)), "where": conditions})
    roads["updated"] = _matcher("auto", conditions[1:] + conditions[:1])
    for id in range(n):
        roads["updated"].update(id, where=conditions[id])
    with tempfile.TemporaryDirectory() as folder:
        roads["bulk"].save(folder)
        roads["opened"] = Matcher.open(folder)
        roads["opened"].rebuild()
    return roads
