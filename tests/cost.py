"""The cost fuzzer: adversarial conditions and texts up to the limits, none of which may take long.

`python -m tests.cost --seeds 200` tries so many cases of every kind and prints the costliest of
each; it ends with status 1 where one took more CPU time than its budget. `--kind` chooses kinds,
`--first` the first seed. The suite tries a few of each (`tests/test_cost.py`).

A kind is a function from a source of randomness to a `Case`. Others, such as requests of a broker,
are added with `@kind`.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tocsin import Matcher, covers
from tocsin.errors import TocsinError
from tocsin.language import parse, print_expression
from tocsin.language.functions import MAX_PIECE
from tocsin.normalize import normalize
from tocsin.normalize.describe import describe, to_json
from tocsin.normalize.diagnose import diagnose
from tocsin.normalize.patterns import parse_pattern

MAX_TEXT = 65_536
"""Conditions are no longer than this: what a matcher promises to take or refuse soon."""

SECONDS = 0.5
"""The CPU time that one step on the way of a condition may take."""

MATCH_SECONDS = 0.1
"""The CPU time that a pattern may take on one text."""


@dataclass(frozen=True)
class Case:
    """Steps of work by name, each with a budget in seconds of CPU time; they run in this order."""

    name: str
    steps: Sequence[tuple[str, Callable[[], object], float]]


@dataclass(frozen=True)
class Cost:
    """What a step took."""

    kind: str
    seed: int
    case: str
    step: str
    seconds: float
    budget: float
    outcome: str

    @property
    def share(self) -> float:
        """The part of its budget that it took."""
        return self.seconds / self.budget

    def __str__(self) -> str:
        took = f"{self.seconds:.3f} s of {self.budget:g}"
        return f"{self.kind} seed {self.seed} ({self.case}), {self.step}: {took}, {self.outcome}"


Kind = Callable[[random.Random], Case]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    """Add a kind of case."""
    KINDS[function.__name__] = function
    return function


# Conditions.


def joined(parts: Iterator[str], separator: str, most: int = MAX_TEXT) -> str:
    """Join as many parts as fit."""
    kept: list[str] = []
    size = 0
    for part in parts:
        size += len(part) + len(separator)
        if size > most and kept:
            break
        kept.append(part)
    return separator.join(kept)


def literal(draw: random.Random) -> str:
    """Return a literal; many of the numbers have one hash in Python."""
    return draw.choice(
        [
            lambda: str(draw.choice([-1, -2, 0, 1, 2, 2**61 - 1, 2**61, -(2**61), 2**62])),
            lambda: str(draw.randrange(10_000)),
            lambda: f"{draw.random():.6f}",
            lambda: f"'{'a' * draw.randrange(5)}{draw.randrange(99)}'",
            lambda: f"TIMESTAMP '2024-01-01 00:00:{draw.randrange(60):02}'",
            lambda: "TRUE",
        ]
    )()


def like_text(draw: random.Random, most: int) -> str:
    """Return a LIKE pattern of few letters with many wildcards."""
    unit = draw.choice(["%a", "_a", "a_", "%_", "%a_", "a%_b", "%ab_", "aab", "%é_"])
    size = draw.randrange(1, max(most // len(unit), 2))
    lead, tail = draw.choice(["", "%", "_"]), draw.choice(["", "%", "b%", "_b%", "b"])
    return lead + unit * size + tail


def predicate(draw: random.Random, names: int) -> str:
    """Return one predicate on one of some attributes."""
    name = f"a{draw.randrange(names)}"
    return draw.choice(
        [
            lambda: f"{name} = {literal(draw)}",
            lambda: f"{name} {draw.choice(['<', '<=', '>', '>=', '<>'])} {literal(draw)}",
            lambda: f"{name} BETWEEN {draw.randrange(50)} AND {draw.randrange(100)}",
            lambda: f"{name} IN ({', '.join(literal(draw) for _ in range(draw.randrange(1, 20)))})",
            lambda: f"{name} NOT IN ({draw.randrange(9)}, {draw.randrange(9)})",
            lambda: f"{name} LIKE '{like_text(draw, 20)}'",
            lambda: f"{name} NOT LIKE '{like_text(draw, 20)}'",
            lambda: f"{name} IS NULL",
            lambda: f"NOT {name} = {literal(draw)}",
            lambda: name,
        ]
    )()


def alike(draw: random.Random, names: int) -> Iterator[str]:
    """Yield predicates of one form without an end."""
    form, step = draw.choice(["=", "<>", "<", ">", "LIKE", "NOT LIKE", "TEXT"]), draw.randrange(4)
    n = 0
    while True:
        n += 1
        name = f"a{n % names}"
        if form.endswith("LIKE"):
            yield f"{name} {form} '%{n}%'"
        elif form == "TEXT":
            yield f"{name} = 'x{n * step}'"
        else:
            yield f"{name} {form} {n * step}"


def some(draw: random.Random) -> int:
    """Return a number of attributes: few, some or very many."""
    return draw.choice([1, 2, 5, 30, 300, 10_000])


def conjunctive(draw: random.Random) -> str:
    """ANDs of ORs, with something in common or not: what has to be multiplied out."""
    names, width, shared = some(draw), draw.randrange(2, 6), draw.randrange(3)
    common = [predicate(draw, names) for _ in range(draw.randrange(1, 4))]

    def factors() -> Iterator[str]:
        for _ in range(draw.randrange(2, 15)):
            yield f"({' OR '.join(predicate(draw, 1_000) for _ in range(2))})"
        while True:
            parts = [predicate(draw, names) for _ in range(width)]
            yield f"({' OR '.join(parts + common[:shared])})"

    return joined(factors(), " AND ", draw.choice([300, 1_000, 4_000, 16_384, MAX_TEXT]))


def disjunctive(draw: random.Random) -> str:
    """ORs of ANDs that differ in little."""
    names, width = some(draw), draw.randrange(1, 30)
    fixed = [predicate(draw, names) for _ in range(width)]

    def terms() -> Iterator[str]:
        for one in alike(draw, names):
            yield f"({' AND '.join([*fixed[: draw.randrange(width + 1)], one])})"

    return joined(terms(), " OR ", draw.choice([1_000, 16_384, MAX_TEXT]))


def uniform(draw: random.Random) -> str:
    """One predicate, thousands of times."""
    return joined(alike(draw, some(draw)), draw.choice([" AND ", " OR "]))


def points_and_patterns(draw: random.Random) -> str:
    """A list of strings, on which many patterns have to be tried."""
    size = draw.randrange(1, 4_000)
    strings = ", ".join(f"'{'a' * draw.randrange(9)}{n}'" for n in range(size))
    tests = (
        f"a0 {draw.choice(['', 'NOT '])}LIKE '{like_text(draw, draw.choice([4, 40, 400]))}'"
        for _ in iter(int, 1)
    )
    start = f"a0 IN ({strings})"
    return f"{start} AND {joined(tests, ' AND ', max(MAX_TEXT - len(start), 10))}"


def nested(draw: random.Random) -> str:
    """Parentheses and NOTs as deep as may be, with ANDs and ORs in turn."""
    depth, names = draw.randrange(2, 99), some(draw)
    text = predicate(draw, names)
    for level in range(depth):
        word = draw.choice(["AND", "OR"]) if draw.random() < 0.2 else ("AND", "OR")[level % 2]
        more = f" {word} ".join(predicate(draw, names) for _ in range(draw.randrange(1, 4)))
        text = draw.choice(["({t} {w} {m})", "({m} {w} {t})", "NOT ({t} {w} {m})"]).format(
            t=text, w=word, m=more
        )
        if len(text) > MAX_TEXT // 2:
            break
    return text[:0] + text if len(text) <= MAX_TEXT else predicate(draw, names)


def huge(draw: random.Random) -> str:
    """One long literal, name, list or pattern."""
    size = draw.randrange(1_000, MAX_TEXT - 100)
    return draw.choice(
        [
            lambda: f"a = '{'x' * size}'",
            lambda: f"a = {'0' * size}7",
            lambda: f"a = {'9' * size}",
            lambda: f"a = 0.{'3' * size}",
            lambda: f"a = {'1' * size}.5e-{size}",
            lambda: f'"{"n" * size}" = 1',
            lambda: ".".join("p" for _ in range(size // 2)) + " = 1",
            lambda: f"a IN ({joined((literal(draw) for _ in iter(int, 1)), ', ', size)})",
            lambda: f"a NOT IN ({', '.join(str(n) for n in range(size // 7))})",
            lambda: f"a LIKE '{like_text(draw, size)}'",
            lambda: "NOT " * (size // 4) + "a = 1",
            lambda: "(" * size + "a = 1",
            lambda: "a = 1 " + "AND " * (size // 4),
            lambda: "'" * size,
        ]
    )()


def leaf(draw: random.Random) -> str:
    """Return a short term."""
    return draw.choice(["a0", "a1", "s", "7", "2.5", "'ab'", "TRUE", "NULL", "now()"])


def deep_terms(draw: random.Random) -> str:
    """Functions and operators within each other as deep as may be, on a long core or a short."""
    forms = ["({t} + {l})", "({l} || {t})", "power({t}, 9)", "-({t})", "abs({t})",
             "CASE WHEN {t} = {l} THEN {l} END", "CASE {t} WHEN 1 THEN {l} WHEN 2 THEN 3 END",
             "({t} BETWEEN {l} AND a2)", "({t} IS UNKNOWN)", "({t} IN (a1, a2, {l}))",
             "CAST({t} AS STRING)", "coalesce({t}, {l}, {t})", "replace({t}, 'a', 'aaaaaaaa')",
             "concat({t}, {t})", "regexp_matches({t}, '(a+a+)+b')"]  # fmt: skip
    chosen, text = draw.sample(forms, draw.randrange(1, 4)), leaf(draw)
    if draw.random() < 0.4:
        branches = (f"WHEN a0 = {n} THEN {n}" for n in iter(lambda: draw.randrange(9999), -1))
        text = f"CASE {joined(branches, ' ', draw.choice([500, 20_000]))} END"
    for _ in range(draw.randrange(1, 105)):
        longer = draw.choice(chosen).format(t=text, l=leaf(draw))
        if len(longer) > MAX_TEXT - 20:
            break
        text = longer
    return f"{text} > 3"


def wide_terms(draw: random.Random) -> str:
    """Very many computed values, or one of very many parts."""
    size = draw.choice([300, 4_000, 30_000, MAX_TEXT - 100])
    number = draw.randrange

    def many(form: str, separator: str) -> str:
        parts = (form.format(n=n, m=number(50)) for n in range(size))
        return joined(parts, separator, size)

    return draw.choice(
        [
            lambda: many("a{n} * s > {m}", draw.choice([" AND ", " OR "])),
            lambda: many("a0 + {n} > s", draw.choice([" AND ", " OR "])),
            lambda: f"a0 IN ({many('a1 + {n}', ', ')})",
            lambda: f"lower(a0) IN ({many(chr(39) + 'x{n}' + chr(39), ', ')})",
            lambda: f"CASE {many('WHEN a0 = {n} THEN a{m} + {n}', ' ')} END = 1",
            lambda: f"coalesce({many('a{n}', ', ')}) = 1",
            lambda: f"concat({many('s', ', ')}) = 'a'",
            lambda: many("replace(s, 'a', 'aaa{n}') = 'b'", " OR "),
            lambda: many("regexp_matches(s, '(x{n}+)+y')", " OR "),
            lambda: f"regexp_matches(s, '{many('(a|b{m})*', '')}')",
            lambda: f"s RLIKE '{'(a?){500}' * (size // 100 + 1)}'",
            lambda: many("ANY(tags) = 'x{n}'", draw.choice([" AND ", " OR "])),
            lambda: many("ALL(tags) <> 'x{n}'", draw.choice([" AND ", " OR "])),
            lambda: f"ANY(tags) IN ({many(chr(39) + 'x{n}' + chr(39), ', ')})",
            lambda: f"exists(tags, t -> {many('t = {n}', ' OR ')})",
            lambda: f"matches(s, '{many('w{n}', draw.choice([' ', ' OR ', ' -']))}')",
            lambda: f"matches(s, '{'(' * (size // 2)}a')",
            lambda: f"CASE WHEN s LIKE '{like_text(draw, size)}' THEN 1 END = 1",
            lambda: many("a{n}", draw.choice([" + ", " || ", " - ", "::STRING || "])) + " = 1",
        ]
    )()


def of_condition(name: str, text: str) -> Case:
    """Return all that may be done with a condition, by every road."""
    matcher, loaded = Matcher(), Matcher()
    matcher.subscribe("other", "a0 = 1")

    def subscribe() -> None:
        matcher.subscribe("it", text)

    event = {"a0": 1, "a1": 2, "a2": "aab", "s": "ab" * 500, "tags": ["x1", "x2", 5, None]}

    def match() -> None:
        matcher.match(event)
        matcher.match_batch([event, {}])

    def explain() -> None:
        if "it" in matcher:
            matcher.explain("it")
            matcher.explain("it", {"a0": 1})

    def tell() -> None:
        form = normalize(parse(text))
        describe(form)
        to_json(form)

    def compare() -> None:
        form = normalize(parse(text))
        covers(form, form)

    return Case(
        name,
        [
            ("parse", lambda: print_expression(parse(text)), SECONDS),
            ("subscribe", subscribe, SECONDS),
            ("update", lambda: matcher.update("other", where=text), SECONDS),
            ("load", lambda: loaded.subscribe_many({"id": [1], "where": [text]}), SECONDS),
            ("match", match, 2 * SECONDS),  # what was subscribed is indexed first
            ("explain", explain, 4 * SECONDS),
            ("describe", tell, 2 * SECONDS),
            ("diagnose", lambda: diagnose(parse(text)), 2 * SECONDS),
            ("covers", compare, 2 * SECONDS),
        ],
    )


def _add_conditions() -> None:
    conditions = (conjunctive, disjunctive, uniform, points_and_patterns, nested, huge)
    for make in (*conditions, deep_terms, wide_terms):

        def condition(draw: random.Random, make: Callable[..., str] = make) -> Case:
            text = make(draw)
            return of_condition(f"{len(text)} characters, {text[:50]!r}…", text)

        condition.__name__ = make.__name__
        kind(condition)


_add_conditions()


@kind
def parameters(draw: random.Random) -> Case:
    """Thousands of parameters, or long ones used often."""
    n = draw.randrange(1, 4_000)
    op = draw.choice(["=", "<>", "LIKE"])
    value = draw.choice([lambda i: i, lambda i: like_text(draw, 4_000), lambda i: "x" * 50_000])
    if op == "LIKE" or n < 50:
        names = [f"a{i % 7} {op} :p{i % 3}" for i in range(n)]
        params = {f"p{i}": value(i) for i in range(min(n, 3))}
    else:
        names = [f"a{i} {op} :p{i}" for i in range(n)]
        params = {f"p{i}": i for i in range(n)}
    text = joined(iter(names), draw.choice([" AND ", " OR "]))
    params = {name: params[name] for name in params if f":{name}" in text}
    matcher = Matcher()
    steps = [
        ("subscribe", lambda: matcher.subscribe("it", text, params), SECONDS),
        ("update", lambda: matcher.update("it", params=params), SECONDS),
        ("again", lambda: matcher.update("it", params=dict(list(params.items())[:1])), SECONDS),
    ]
    return Case(f"{n} parameters, {text[:40]!r}…", steps)


@kind
def pattern_on_text(draw: random.Random) -> Case:
    """A LIKE pattern that nearly fits a long text everywhere."""
    text = draw.choice(["a", "ab", "aab", "a" * 50 + "b", "é", "a😀"])
    text = (text * (1 << 20))[: draw.choice([0, 1, 100, 100_000, 1 << 20])]
    shape = like_text(draw, draw.choice([10, 300, MAX_PIECE, 16_384]))
    matcher = Matcher()

    def subscribe() -> None:
        matcher.subscribe("it", "t LIKE :p", {"p": shape})
        matcher.match({"t": ""})

    steps = [
        ("subscribe", subscribe, SECONDS),
        ("match", lambda: parse_pattern(shape, None).matches(text), MATCH_SECONDS),
        ("event", lambda: matcher.match({"t": text}), MATCH_SECONDS),
    ]
    return Case(f"{len(shape)} on {len(text)} characters, {shape[:30]!r}…", steps)


@kind
def text_query(draw: random.Random) -> Case:
    """A search, and a long text of words, of one word, or of other scripts."""
    unit = draw.choice(["a", "a ", "ab, ", "é", "日本 ", "- ", "x" * 50 + " ", "😀 a"])
    text = (unit * (1 << 20))[: draw.choice([0, 100, 100_000, 1 << 18])]
    shape = draw.choice(
        ["a ", "a* ", "-a ", '"a a" ', "(", "a OR ", '"', "é ", "(a ", f"{'b' * 60} "]
    )
    query = (shape * 20_000)[: draw.choice([5, 100, 1_000, 20_000])]
    matcher = Matcher()
    steps = [
        ("subscribe", lambda: matcher.subscribe("it", "matches(t, :q)", {"q": query}), SECONDS),
        (
            "load",
            lambda: matcher.subscribe_many({"id": [1], "where": [f"matches(t, '{query}')"]}),
            SECONDS,
        ),
        ("warm", lambda: matcher.match({"t": "a é 日"}), 60.0),
        ("event", lambda: matcher.match({"t": text}), SECONDS),
        ("batch", lambda: matcher.match_batch([{"t": text}]), SECONDS),
    ]
    return Case(f"{len(query)} of {query[:20]!r} on {len(text)} of {text[:10]!r}", steps)


@kind
def elements(draw: random.Random) -> Case:
    """Conditions on the elements of a long list."""
    n = draw.choice([0, 10, 10_000])
    values = [draw.choice([i, f"t{i}", None, 0.5]) for i in range(n)]
    parts = ["ANY(x) > 5", "ANY(x) LIKE 't1%'", "ANY(x) = 7", "ALL(x) <> 't'", "ANY(x) IN (1, 't')"]
    parts += ["exists(x, i -> i > 3 AND i < 9)", "forall(x, i -> i IS NOT NULL)"]
    text = joined(
        iter(draw.choices(parts, k=draw.choice([1, 5, 40]))), draw.choice([" AND ", " OR "])
    )
    matcher = Matcher()
    steps = [
        ("subscribe", lambda: matcher.subscribe("it", text), SECONDS),
        ("warm", lambda: matcher.match_batch([{"x": [1, "t1"]}]), 60.0),
        ("event", lambda: matcher.match({"x": values}), SECONDS),
        ("batch", lambda: matcher.match_batch([{"x": values}]), SECONDS),
    ]
    return Case(f"{n} elements, {text[:60]!r}…", steps)


def wrapped(draw: random.Random, forms: Sequence[str], inner: str) -> str:
    """Put a term into others, as deep as may be."""
    for _ in range(draw.choice([1, 5, 30, 99])):
        inner = draw.choice(forms).format(inner)
    return inner


@kind
def computed(draw: random.Random) -> Case:
    """Terms: deep, long, very many, or ones that make long texts."""
    texts = ["replace({}, 'a', 'aaaaaaaaaa')", "({0} || s)", "lower({})", "reverse({})"]
    numbers = ["({} + n)", "abs({})", "(n * {})", "CASE WHEN n > 1 THEN {} ELSE n END", "({} - 1)"]
    text = draw.choice(
        [
            lambda: f"{wrapped(draw, texts, 's')} = 'x'",
            lambda: f"{wrapped(draw, numbers, 'n')} > 5",
            lambda: draw.choice([" + ", " || ", " - "]).join(["n"] * draw.randrange(20_000)) + "=1",
            lambda: "n" + draw.choice(["::INTEGER", " IS NULL"]) * draw.randrange(5_000),
            lambda: joined((f"n + {i} > m * {i}" for i in range(2_000)), " OR ", 2_000),
            lambda: joined(
                (f"regexp_matches(s, '(a{{1,{i % 30}}}){{1,9}}b')" for i in range(40)), " OR "
            ),
            lambda: f"s LIKE '{like_text(draw, 300)}' || 'b'",
            lambda: f"lower(s) LIKE '{like_text(draw, 300)}'",
        ]
    )()
    return of_events(text, {"n": 1, "s": "a" * draw.choice([1, 1_000, 100_000])})


@kind
def lists(draw: random.Random) -> Case:
    """Conditions on elements, one within the other, on long lists and texts."""
    size = draw.choice([1, 30, 1_000, 5_000])
    event: dict[str, object] = {
        "l": list(range(size)),
        "k": list(range(-size, 0)),
        "s": "a b " * size,
    }
    names = draw.sample(["l", "k", "words(s)"], 2)
    test = draw.choice(["e = 1", f"e = ANY({names[1]})", f"cardinality({names[1]}) > e"])
    forms = [f"exists({name}, e -> {{}})" for name in names]
    queries = (draw.choice(["a", "b", '"a b"', '"b a a"', "-c", "OR", "a*"]) for _ in iter(int, 1))
    text = draw.choice(
        [
            lambda: wrapped(draw, forms, test),
            lambda: wrapped(draw, ["NOT ({})", *forms], test),
            lambda: f"matches(s, '{joined(queries, ' ', draw.choice([20, 900]))}')",
            lambda: joined((f"ANY(l) = {i}" for i in range(9_999)), draw.choice([" AND ", " OR "])),
        ]
    )()
    return of_events(text, event)


def of_events(text: str, event: dict[str, object]) -> Case:
    """Return the steps of a condition that is costly for events."""
    matcher = Matcher()
    matcher.subscribe("other", "a0 = 1")

    def match() -> None:
        if "it" in matcher:
            matcher.match(event)

    def match_batch() -> None:
        if "it" in matcher:
            matcher.match_batch([event] * 4)

    steps = [
        ("parse", lambda: print_expression(parse(text)), SECONDS),
        ("subscribe", lambda: matcher.subscribe("it", text), SECONDS),
        ("event", match, 10 * MATCH_SECONDS),
        ("batch", match_batch, 10 * MATCH_SECONDS),
    ]
    return Case(f"{len(text)} characters, {text[:50]!r}…", steps)


# Running.


def warm_up() -> None:
    """Compile what cases need, which is not part of their cost."""
    matcher = Matcher()
    for text in ("a = 1 AND b < 2 OR c LIKE '%x%'", "NOT (a = 'x' AND t = 1)", "b IN (1, 2)"):
        matcher.subscribe(text, text)
        matcher.subscribe_many({"id": [text + "s"], "where": [text]})
        matcher.match({"a": 1})
        matcher.match_batch([{"a": 1}])
    matcher.subscribe("terms", "lower(s) = 'x' AND ANY(l) = 1 AND exists(k, e -> e = n + 1)")
    matcher.match_batch([{"s": "x", "n": 1, "l": [1], "k": [1]}] * 4)
    matcher.update("b IN (1, 2)", where="z = 1")
    parse_pattern("%" + "a_" * 40 + "b%", None).matches("a" * 1_000)


def run(name: str, seed: int, slack: float = 1.0) -> list[Cost]:
    """Make one case and measure its steps; budgets are multiplied by a slack."""
    case = KINDS[name](random.Random(f"{name} {seed}"))
    gc.collect()
    gc.freeze()  # what others left behind is not scanned on the account of this case
    costs = []
    for step, work, budget in case.steps:
        start = time.thread_time()
        try:
            work()
            outcome = "done"
        except TocsinError as error:
            outcome = error.code
        seconds = time.thread_time() - start
        costs.append(Cost(name, seed, case.name, step, seconds, budget * slack, outcome))
    gc.unfreeze()
    return costs


def main(arguments: list[str]) -> int:
    """Try many cases, and say which were costly."""
    options = argparse.ArgumentParser(prog="python -m tests.cost")
    options.add_argument("--seeds", type=int, default=50, help="cases of each kind")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--slack", type=float, default=1.0, help="multiplies every budget")
    options.add_argument("--kind", choices=list(KINDS), action="append", help="only this kind")
    chosen = options.parse_args(arguments)
    warm_up()
    failed = 0
    for name in chosen.kind or KINDS:
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        costs = [c for seed in seeds for c in partial(run, name, slack=chosen.slack)(seed)]
        print(f"{name}: costliest {max(costs, key=lambda cost: cost.share)}", flush=True)
        for cost in costs:
            if cost.share > 1:
                failed += 1
                print(f"  beyond its budget: {cost}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
