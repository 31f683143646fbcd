"""What computed values may cost: operators in a row, texts that grow, lists within lists."""

from __future__ import annotations

import pytest

from tocsin import Matcher
from tocsin.errors import ConditionSyntaxError
from tocsin.language import parse, print_expression
from tocsin.language.evaluate import MAX_PAIRS
from tocsin.language.functions import MAX_MADE
from tocsin.language.parser import MAX_DEPTH, MAX_REGEXPS


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


def test_a_condition_has_no_more_than_some_regular_expressions() -> None:
    def of(n: int) -> str:
        return " OR ".join(f"regexp_matches(s, 'a+{i}')" for i in range(n))

    Matcher().subscribe("it", of(MAX_REGEXPS))
    with pytest.raises(ConditionSyntaxError, match="more than 32 regular expressions"):
        Matcher().subscribe("it", of(MAX_REGEXPS + 1))
