"""LIKE patterns as an access path: found in texts all at once, and checked on candidates."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tocsin
from tocsin.encode.events import to_batch
from tocsin.encode.strings import Strings, distinct_strings, one_string
from tocsin.engines.auto.arrays import Integers, Octets, Programs
from tocsin.engines.auto.batch import PreparedBatch
from tocsin.engines.auto.bounds import check_bounds
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.content import from_table
from tocsin.engines.auto.like_kernels import fits
from tocsin.engines.auto.literal_kernels import ROOM
from tocsin.engines.auto.literals import Literals
from tocsin.engines.auto.pattern_set import PatternSet, Scratch
from tocsin.engines.auto.plan import Costs
from tocsin.engines.auto.segment import Segment
from tocsin.engines.auto.serialization import put_together, take_apart
from tocsin.jit import kernel
from tocsin.language import parse
from tocsin.normalize import normalize
from tocsin.normalize.layout import from_forms
from tocsin.normalize.patterns import Pattern, parse_pattern

ALPHABETS = ("ab", "abc%_", "aé𝄞", "ab\0", "aAéÉßẞİıſK", "abcdefgh ")


def words(rng: random.Random, alphabet: str, longest: int, n: int) -> list[str]:
    return ["".join(rng.choices(alphabet, k=rng.randint(0, longest))) for _ in range(n)]


def patterns_of(rng: random.Random, alphabet: str, n: int) -> list[Pattern]:
    """Return distinct patterns of pieces of every kind."""
    made = set()
    for _ in range(n):
        pieces = rng.choices(["%", "_", *words(rng, alphabet.strip("%_"), 7, 4)], k=5)
        made.add(parse_pattern("".join(pieces), None))
    return sorted(made, key=str)


def strings_of(texts: Sequence[str], *, ignore_case: bool = False) -> Strings:
    batch = to_batch(pa.table({"t": pa.array(texts, pa.string())}))
    return batch.strings("t", ignore_case=ignore_case)


@kernel
def fit_all(start: Integers, octets: Octets, programs: Programs, is_fit: Octets) -> None:
    """Write for each text, and each program, whether they fit: a row for each text."""
    n = len(programs.start) - 1
    for text in range(len(start) - 1):
        for p in range(n):
            is_fit[text * n + p] = fits(
                octets,
                start[text],
                start[text + 1],
                programs.octets,
                programs.start[p],
                programs.start[p + 1],
            )


def tried(patterns: PatternSet, strings: Strings) -> NDArray[np.bool_]:
    """Try each program on each text by itself; a row for each text, in the order of the given."""
    is_fit = np.zeros(strings.n * len(patterns), np.uint8)
    fit_all(strings.start, strings.octets, patterns.programs, is_fit)
    by_text = np.zeros((strings.n, len(patterns)), np.bool_)
    by_text[:, patterns.order] = is_fit.reshape(strings.n, -1)
    return by_text


def scanned(patterns: PatternSet, strings: Strings) -> NDArray[np.bool_]:
    """Find all patterns at once; those without a literal are not looked for."""
    hits = patterns.scan(strings, Scratch(), BufferPool())
    by_text = np.zeros((strings.n, len(patterns)), np.bool_)
    by_text[hits.rows(), patterns.order[hits.values]] = True
    assert by_text.sum() == len(hits.values), "a pattern is found twice"
    return by_text


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_programs_and_the_automaton_find_what_duckdb_finds(alphabet: str) -> None:
    rng = random.Random(alphabet)
    patterns = patterns_of(rng, alphabet, 150)
    texts = list(dict.fromkeys([*words(rng, alphabet, 24, 150), "", "a", "é" * 300]))
    strings, compiled = strings_of(texts), PatternSet(patterns)
    found = tried(compiled, strings)
    database = duckdb.connect()
    database.register("texts", pa.table({"i": range(len(texts)), "t": texts}))
    columns = {"j": range(len(patterns)), "p": [p.text for p in patterns]}
    database.register("patterns", pa.table(columns))
    query = "SELECT i, j FROM texts, patterns WHERE t LIKE p ESCAPE '\\'"
    expected = np.zeros_like(found)
    i, j = database.execute(query).fetchnumpy().values()
    expected[i, j] = True
    database.close()
    wrong = np.argwhere(found != expected)
    assert not len(wrong), [(texts[i], patterns[j].text) for i, j in wrong[:5]]
    assert expected.any()
    assert not expected.all()
    has_literal = np.zeros(len(patterns), np.bool_)
    has_literal[compiled.order[: compiled.n_with_literal]] = True
    assert np.array_equal(scanned(compiled, strings), found & has_literal)


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_without_case_they_find_what_duckdb_finds_with_ilike(alphabet: str) -> None:
    rng = random.Random(alphabet + "i")
    patterns = patterns_of(rng, alphabet, 100)
    texts = list(dict.fromkeys([*words(rng, alphabet, 16, 100), "ΑΣ", "STRASSE", "straße"]))
    compiled = PatternSet(patterns, ignore_case=True)
    strings = strings_of(texts, ignore_case=True)
    by_lower_case = tried(compiled, strings)
    found = np.array([by_lower_case[strings.of_event[at]] for at in range(len(texts))])
    database = duckdb.connect()
    database.register("texts", pa.table({"i": range(len(texts)), "t": texts}))
    columns = {"j": range(len(patterns)), "p": [p.text for p in patterns]}
    database.register("patterns", pa.table(columns))
    query = "SELECT i, j FROM texts, patterns WHERE t ILIKE p ESCAPE '\\'"
    i, j = database.execute(query).fetchnumpy().values()
    expected = np.zeros_like(found)
    expected[i, j] = True
    database.close()
    wrong = np.argwhere(found != expected)
    assert not len(wrong), [(texts[i], patterns[j].text) for i, j in wrong[:5]]
    for text, row in zip(texts, found, strict=True):  # a single event folds the same
        one = tried(compiled, one_string(text, ignore_case=True))[0]
        assert np.array_equal(one, row), text


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("a" * 5_000, "%" + "a" * 400 + "b%"),
        ("a" * 5_000 + "b" + "a" * 100, "%" + "a" * 400 + "b%"),
        ("ab" * 3_000, "%" + "ab_b" * 75 + "c%"),
        ("ab" * 3_000 + "c", "%" + "ab_b" * 75 + "c%"),
        ("é" * 3_000, "%" + "é_" * 100 + "b%"),
        ("é𝄞" * 1_000 + "éb" + "é" * 100, "%" + "é_" * 100 + "b_%"),
        ("ab" * 3_000, "%" + "abab_" * 30 + "_a_%b"),
    ],
)
def test_pieces_that_nearly_fit_everywhere_are_found_in_linear_time(
    text: str, pattern: str
) -> None:
    parsed = parse_pattern(pattern, None)
    assert tried(PatternSet([parsed]), strings_of([text]))[0, 0] == parsed.matches(text)


def test_long_texts_and_more_hits_than_there_is_room_for_at_once() -> None:
    rng = random.Random(3)
    for alphabet in ("ab", "abcdefgh"):
        pieces = [p for p in words(rng, alphabet, 9, 3000) if p]
        patterns = [parse_pattern(f"%{p}%", None) for p in dict.fromkeys(pieces)]
        texts = ["".join(rng.choices(alphabet, k=n)) for n in (ROOM - 1, ROOM, ROOM + 3, 5000)]
        found = scanned(PatternSet(patterns), strings_of(texts))
        expected = [[p.text[1:-1] in text for p in patterns] for text in texts]
        assert np.array_equal(found, np.array(expected))


def test_many_patterns_with_a_common_literal_are_found_by_the_other_one() -> None:
    shared = [parse_pattern(f"%www.example.org/%{at:05}%", None) for at in range(500)]
    patterns = PatternSet([*shared, parse_pattern("%x_y%", None)])
    assert len(patterns.automaton.shorter) == 501
    found = scanned(patterns, strings_of(["http://www.example.org/page/00042", "xxy", "x00042"]))
    assert [np.flatnonzero(row).tolist() for row in found] == [[42], [500], []]


def rules(n: int, seed: int) -> list[str]:
    """Return conditions with patterns of many forms, alone, in conjunctions and negated."""
    rng = random.Random(seed)
    forms = [
        "t LIKE '%{0}%'",
        "t LIKE '%{0}'",
        "t LIKE '{0}%{1}'",
        "t LIKE '%{0}_{1}%'",
        "t NOT LIKE '%{0}%'",
        "t LIKE '__%'",
        "t LIKE '%{0}%' AND t LIKE '%{1}%'",
        "t LIKE '%{0}%' AND t NOT LIKE '%{1}%' AND n < {2}",
        "t LIKE '%{0}%' AND u LIKE '%{1}%'",
        "n = {2} AND t LIKE '%{0}%'",
        "(n = {2} OR t LIKE '%{0}%') AND u <> '{1}'",
        "NOT (t LIKE '%{0}%' AND n > {2})",
        "t LIKE '%{0}%' AND t > 'b'",
        "n = {2}",
    ]
    made = []
    for _ in range(n):
        one, two = words(rng, "abcd", 5, 2)
        made.append(rng.choice(forms).format(one, two, rng.randint(0, 20)))
    return made


def texts_and_numbers(n: int, seed: int) -> list[dict[str, object]]:
    rng = random.Random(seed)
    made: list[dict[str, object]] = []
    for text, other in zip(words(rng, "abcd", 14, n), words(rng, "abcd", 6, n), strict=True):
        event: dict[str, object] = {"t": text, "u": other, "n": rng.randint(0, 20)}
        for name in rng.sample(["t", "u", "n"], k=rng.choice([0, 0, 0, 1, 2])):
            event[name] = rng.choice([None, 3, 0.5, True])
        made.append(event)
    return made


def answers(matcher: tocsin.Matcher, events: list[dict[str, object]]) -> list[list[Any]]:
    return [sorted(ids, key=str) for ids in matcher.match_batch(events)]


def test_loads_changes_and_merges_agree_with_the_oracle(tmp_path: Path) -> None:
    conditions, events = rules(500, 1), texts_and_numbers(60, 2)
    columns = {"id": list(range(400)), "where": conditions[:400]}
    matchers = [tocsin.Matcher(engine=name) for name in ("auto", "oracle")]

    def compare() -> None:
        mine, oracle = (answers(matcher, events) for matcher in matchers)
        assert mine == oracle
        for event, expected in zip(events[:20], oracle, strict=False):
            assert sorted(matchers[0].match(event), key=str) == expected

    for matcher in matchers:
        matcher.subscribe_many(columns)
    compare()
    for at in range(400, 500):
        for matcher in matchers:
            matcher.subscribe(at, conditions[at])
            matcher.unsubscribe(at - 300)
        if at % 50 == 0:
            compare()
    compare()
    matchers[0].save(tmp_path / "saved")
    opened = tocsin.Matcher.open(tmp_path / "saved")
    assert answers(opened, events) == answers(matchers[1], events)
    matchers[0].rebuild()
    compare()
    matchers[0].check()


def test_patterns_are_found_together_by_several_threads() -> None:
    conditions, events = rules(400, 5), texts_and_numbers(300, 6)
    matcher = tocsin.Matcher()
    matcher.subscribe_many({"id": list(range(400)), "where": conditions})
    results: list[list[list[int]]] = []
    threads = [
        threading.Thread(target=lambda: results.append(answers(matcher, events))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    oracle = tocsin.Matcher(engine="oracle")
    oracle.subscribe_many({"id": list(range(400)), "where": conditions})
    assert results == [answers(oracle, events)] * 6


def build(texts: Sequence[str]) -> Segment:
    return Segment.build(from_table(from_forms([normalize(parse(text)) for text in texts])))


def pairs(segment: Segment, events: list[dict[str, object]]) -> list[list[int]]:
    found = segment.match(PreparedBatch(to_batch(events), segment.space))
    return [sorted(found.of(at).tolist()) for at in range(len(events))]


def test_the_planner_takes_the_key_that_costs_less() -> None:
    rare_words = [f"t LIKE '%word{at:03}%' AND n < {at}" for at in range(400)]
    rare_numbers = [f"t LIKE '%a%' AND n = {1000 + at}" for at in range(400)]
    segment = build([*rare_words, *rare_numbers])
    assert "kept under t LIKE '%word007%'" in segment.explain(7)[0]
    explained = segment.explain(407)[0]
    assert explained.startswith("kept under (n)")
    assert explained.endswith("then checked: t LIKE '%a%'")
    reports = [report.text(segment.space.attributes) for report in segment.describe(None)]
    assert any("(t): 400 under 400 LIKE patterns" in report for report in reports), reports
    assert any("(t): 400 checks of 1 LIKE patterns" in report for report in reports), reports


def test_a_few_patterns_are_not_worth_a_scan_of_each_text() -> None:
    texts = [f"n = {at}" for at in range(1000)] + ["n = 5 AND t LIKE '%word%'"]
    segment = build(texts)
    assert not len(segment.layout.pattern_rows)
    assert pairs(segment, [{"n": 5, "t": "a word"}, {"n": 5, "t": "none"}]) == [[5, 1000], [5]]


def test_a_sample_of_events_says_which_patterns_are_rare() -> None:
    texts = [f"t LIKE '%common%' AND t LIKE '%x{at}%'" for at in range(600)]
    texts += [f"t LIKE '%common%' AND n = {at}" for at in range(600)]
    sample = to_batch([{"t": f"a common text x{at}", "n": at} for at in range(600)])
    table = from_table(from_forms([normalize(parse(text)) for text in texts]))
    segment = Segment.build(table, sample)
    assert "kept under t LIKE '%x7%'" in segment.explain(7)[0]
    assert "kept under (n)" in segment.explain(607)[0]


def test_a_segment_of_an_earlier_version_has_no_keys_of_patterns_and_matches_the_same() -> None:
    texts = [f"t LIKE '%a{at % 90}%' AND n <> 3" for at in range(300)]
    segment = build(texts)
    assert len(segment.layout.pattern_rows) == 300
    events: list[dict[str, object]] = [{"t": f"xa{at}x", "n": at % 5} for at in range(90)]
    parts = take_apart(build_with_entries(texts))
    del parts.arrays["patterns.keys"], parts.facts["patterns_ignore_case"]
    again = put_together(parts, BufferPool())
    check_bounds(again, 300)
    assert not len(again.layout.pattern_rows)
    assert pairs(again, events) == pairs(segment, events)


def build_with_entries(texts: Sequence[str]) -> Segment:
    """Return a segment in which no conjunction is under a pattern."""
    content = from_table(from_forms([normalize(parse(text)) for text in texts]))
    segment = Segment.build(content, costs=Costs(scan=np.inf))
    segment.check()
    return segment


def test_keys_of_patterns_out_of_bounds_are_refused() -> None:
    segment = build([f"t LIKE '%a{at}%'" for at in range(300)])
    check_bounds(segment, 300)
    segment.layout = dataclasses.replace(segment.layout, pattern_rows=np.array([300]))
    with pytest.raises(ValueError, match="patterns"):
        check_bounds(segment, 300)


def test_case_is_ignored_where_a_pattern_says_so() -> None:
    words_of = ["Straße", "ÉTÉ", "HELLO", "world", "İstanbul", "ſ"]
    content = from_table(from_forms([normalize(parse(f"t LIKE '%{w}%'")) for w in words_of] * 60))
    folded = np.ones(len(content.patterns.patterns), np.bool_)
    content = dataclasses.replace(content, patterns=content.patterns._replace(ignore_case=folded))
    segment = Segment.build(content)
    assert len(segment.layout.pattern_rows) == 360
    assert "t ILIKE '%HELLO%'" in segment.explain(2)[0]
    events: list[dict[str, object]] = [
        {"t": text} for text in ("STRASSE straße", "été Hello", "WORLD İSTANBUL", "S", "ſ", "s")
    ]
    database = duckdb.connect()
    expected = [
        [
            at
            for at in range(360)
            if database.execute(
                "SELECT ? ILIKE ?", [event["t"], f"%{words_of[at % 6]}%"]
            ).fetchone()
            == (True,)
        ]
        for event in events
    ]
    database.close()
    assert pairs(segment, events) == expected
    assert [sorted(segment.match_one(event).tolist()) for event in events] == expected
    again = put_together(take_apart(segment), BufferPool())
    assert pairs(again, events) == expected


def test_strings_of_a_column_are_distinct_and_nulls_have_none() -> None:
    events: list[dict[str, object]] = [{"t": "a"}, {"t": None}, {"t": 3}, {"t": "b"}, {"t": "a"}]
    strings = to_batch(events).strings("t")
    assert strings.n == 2
    assert strings.of_event.tolist() == [0, -1, -1, 1, 0]
    column = to_batch(pa.table({"t": pa.array([None, None], pa.string())})).column("t")
    assert distinct_strings(column, 2).of_event.tolist() == [-1, -1]


def test_what_is_compiled_counts_as_memory_of_the_index() -> None:
    segment = build([f"t LIKE '%word{at}%'" for at in range(300)])
    before = segment.nbytes
    pairs(segment, [{"t": "word7"}])
    assert segment.nbytes > before
    assert isinstance(segment.parts[-1], Literals)
