"""Words of columns, as those of one text; codes of words; queries by their form."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.language.text_query import words
from tocsin.language.words import StringCodes, read_word_queries, split_words

ALPHABETS = [
    "ab 1-,.XYZ",
    "äÖßé ́a 中文。、 Привет-мир ǅ İı",
    "".join(map(chr, range(32, 300))) + " 😀٣²Ⅷ‍ﬁ",
]


def draw_text(random: Random) -> str:
    alphabet = random.choice(ALPHABETS)
    others = [chr(random.randrange(0xE000, 0x110000)), chr(random.randrange(0xD800))]
    return "".join(random.choices([*alphabet, *others], k=random.randrange(30)))


def draw_texts() -> list[str]:
    random = Random(0)
    return [draw_text(random) for _ in range(1_000)]


def test_a_column_has_the_words_of_its_texts():
    for texts in (draw_texts(), ["Rate  hike!", "", "a", " b"]):
        start, listed = split_words(pa.array([*texts, None]))
        found = listed.to_pylist()
        assert [found[a:b] for a, b in pairwise(start)] == [
            *map(words, texts),
            [],
        ]


def test_words_and_strings_have_their_codes():
    texts = draw_texts()
    every = sorted({word for text in texts for word in words(text)})
    known = {word: code for code, word in enumerate(every[::3])}
    codes = StringCodes(list(known), np.arange(len(known), dtype=np.int32))
    assert codes.of_strings(pa.array([*every, None])).tolist() == [
        *(known.get(word, -1) for word in every),
        -1,
    ]
    encoded = pa.array([*every, None], pa.large_string()).dictionary_encode()
    assert codes.of_strings(encoded)[:-1].tolist() == [known.get(word, -1) for word in every]
    start, found = codes.of_words(pa.array(texts))
    for text, a, b in zip(texts, start, start[1:], strict=False):
        assert found[a:b].tolist() == [known[word] for word in words(text) if word in known]


def test_a_long_text_has_all_its_codes():
    codes = StringCodes(["a"], np.array([7], np.int32))
    start, found = codes.of_words(pa.array(["b", "a " * 10_000, "A"]))
    assert start.tolist() == [0, 0, 10_000, 10_001]
    assert set(found.tolist()) == {7}


def test_queries_of_words_and_prefixes_are_read_by_their_form():
    queries: list[Any] = [
        "a b",
        "x\n Y",
        "a* b b",
        " ÖL öl* ",
        "or",
        "a OR b",
        "-a",
        '"a b"',
        "a-b",
        "(a)",
        "",
    ]
    queries += ["*", "a*b", " ".join("abcdefghijklmnopq"), None]
    forms, rest = read_word_queries(pa.array(queries, pa.large_string()))
    found = {
        queries[row]: [w[at].as_py() for w in form.words]
        for form in forms
        for at, row in enumerate(form.rows.tolist())
    }
    assert found == {
        "a b": ["a", "b"],
        "x\n Y": ["x", "y"],
        "a* b b": ["a*", "b"],
        " ÖL öl* ": ["öl", "öl*"],
        "or": ["or"],
    }
    assert [queries[row] for row in rest] == queries[5:]
