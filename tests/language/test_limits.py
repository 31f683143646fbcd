"""What computed values may cost: operators in a row, texts that grow, lists within lists."""

from __future__ import annotations

import pytest

from tocsin import Matcher
from tocsin.errors import ConditionSyntaxError
from tocsin.language import parse, print_expression
from tocsin.language.evaluate import MAX_PAIRS
from tocsin.language.functions import MAX_MADE, regexp_size
from tocsin.language.parser import MAX_DEPTH


def nested(form: str, n: int, inner: str) -> str:
    for _ in range(n):
        inner = form.format(inner)
    return inner


CHAINS = {
    "sums": lambda n: " + ".join(["n"] * n) + " > 5",
    "texts": lambda n: "length(" + " || ".join(["s"] * n) + ") > 5",
    "casts": lambda n: "n" + "::INTEGER" * n + " > 5",
    "tests": lambda n: "n" + " IS NULL" * n,
    "sums in parentheses": lambda n: nested("({} + 1)", n, "n") + " > 5",
    "sums in functions": lambda n: nested("abs({} - 1)", n, "n") + " > 5",
    "conditions on elements": lambda n: nested("exists(l, e -> e > 1 OR {})", n, "n = 1"),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_operators_in_a_row_are_refused_beyond_a_limit(kind: str) -> None:
    for n in (MAX_DEPTH + 2, 4_000):
        with pytest.raises(ConditionSyntaxError, match=f"more than {MAX_DEPTH} "):
            Matcher().subscribe("it", CHAINS[kind](n))


@pytest.mark.parametrize("engine", ["auto", "oracle"])
@pytest.mark.parametrize("kind", CHAINS)
def test_what_is_accepted_is_printed_read_again_and_matched(kind: str, engine: str) -> None:
    text = CHAINS[kind](19 if kind == "conditions on elements" else MAX_DEPTH - 2)
    assert parse(print_expression(parse(text))) == parse(text)
    matcher = Matcher(engine=engine)
    matcher.subscribe("it", text)
    events = [{"n": 1, "s": "ab", "l": [1, 2]}] * 2
    found = [list(ids) for ids in matcher.match_batch(events)]
    assert found == [matcher.match(event) for event in events]
    assert "it" in matcher.explain("it")


def test_a_text_that_grows_beyond_all_bounds_is_absent() -> None:
    bomb = nested("replace({}, 'a', 'aaaaaaaaaa')", 30, "s")
    conditions = {
        "bomb": f"{bomb} IS NULL",
        "joined": f"{' || '.join(['s'] * 20)} IS NULL",
        "short": "replace(s, 'a', 'bb') || s IS NOT NULL",
    }
    long = "a" * (MAX_MADE // 10)
    expected = [["short"], ["bomb", "short"], ["bomb", "joined", "short"], ["bomb", "joined"]]
    events = [{"s": text} for text in ("b", "a", long, long * 5)]
    for engine in ("auto", "oracle"):
        matcher = Matcher(engine=engine)
        for id, where in conditions.items():
            matcher.subscribe(id, where)
        assert [sorted(map(str, ids)) for ids in matcher.match_batch(events)] == expected
        assert [sorted(map(str, matcher.match(event))) for event in events] == expected


@pytest.mark.parametrize("engine", ["auto", "oracle"])
def test_a_list_of_the_event_is_absent_where_it_would_be_used_for_too_many_elements(
    engine: str,
) -> None:
    matcher = Matcher(engine=engine)
    matcher.subscribe("common", "exists(l, e -> e = ANY(k))")
    matcher.subscribe("cubic", "exists(l, e -> exists(l, f -> exists(l, g -> e + f + g = 3)))")
    matcher.subscribe("own", "exists(o, i -> exists(i.x, y -> y = 1))")
    n = int(MAX_PAIRS**0.5)
    events: list[dict[str, object]] = [
        {"l": [1, 2], "k": [2], "o": [{"x": [0, 1]}]},
        {"l": list(range(n)), "k": list(range(n))},
        {"l": list(range(n)), "k": list(range(n + 1))},
        {"l": [1] * 20, "o": [{"x": [1] * n}] * (2 * n)},
        {"l": [1] * 40},
    ]
    expected = [["common", "cubic", "own"], ["common"], [], ["cubic", "own"], []]
    assert [sorted(map(str, ids)) for ids in matcher.match_batch(events)] == expected
    assert [sorted(map(str, matcher.match(event))) for event in events] == expected


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        (r"\d{4}-\d\d", 7),
        ("(ab|c){3}d", 10),
        ("((a{1,30}){1,30})b", 901),
        (r"[]{9}]{2}\{3}(x{2,}){5}", 15),
        (r"\pL{3}\p{Greek}{2}\x{41}{2}", 8),
        ("(unclosed{2", 10),
    ],
)
def test_a_regular_expression_is_as_long_as_with_repetitions_written_out(
    pattern: str, size: int
) -> None:
    assert regexp_size(pattern) == size


def test_the_regular_expressions_of_a_condition_have_a_size_in_all() -> None:
    def of(n: int, pattern: str) -> str:
        return " OR ".join(f"regexp_matches(s, '{pattern}')" for _ in range(n))

    Matcher().subscribe("it", of(40, "error: [0-9]{1,12} of [a-z]+"))
    Matcher().subscribe("it", of(2, "(a{1,30}){1,30}b"))
    for text in (of(3, "(a{1,30}){1,30}b"), of(101, "a+bcd|e"), of(2_000, "")):
        with pytest.raises(ConditionSyntaxError, match="regular expression"):
            Matcher().subscribe("it", text)
    with pytest.raises(ConditionSyntaxError, match="written out"):
        Matcher().subscribe("it", of(1, "((a{1,40}){1,40}){1,40}"))
    matcher = Matcher()
    matcher.subscribe("dynamic", "regexp_matches(s, p)")
    events = [{"s": "aab", "p": p} for p in ("a{2}b", "((a{1,40}){1,40}){1,40}", "a+" * 501)]
    assert [list(ids) for ids in matcher.match_batch(events)] == [["dynamic"], [], []]
    assert [matcher.match(event) for event in events] == [["dynamic"], [], []]
