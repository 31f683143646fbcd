"""Text queries in bulk: the same table as one by one."""

from __future__ import annotations

from random import Random
from re import escape

import pyarrow as pa
import pytest

from tocsin import EventType, Matcher
from tocsin.errors import SubscriptionError
from tocsin.language import parse
from tocsin.normalize import bind, normalize
from tocsin.normalize.bulk import normalize_template, normalize_texts
from tocsin.normalize.elements import elements_as_truths
from tocsin.normalize.layout import from_forms

QUERIES = [
    "rate hike", "Rate rate", "infl*", "öl ÖL öl*", "a OR b", "a -b", '"central bank" a', "e-mail",
    "(a OR b) c", "or", " a\tb ", "x" * 300, " ".join(f"w{i}" for i in range(20)),
]  # fmt: skip
BAD = ["", "-", "*", '"', "a OR", "( a", "!?"]
WHERES = [
    "matches(body, :query)",
    "firm = :firm AND matches(body, :query)",
    "NOT matches(body, :query) OR firm = :firm",
    "matches(lower(body), :query) AND (firm = :firm OR price > 5)",
    "matches(body, :query) AND matches(title, :query)",
    "CASE WHEN matches(body, :query) THEN 1 ELSE 2 END = 1 AND firm = :firm",
]


def described(table, n):
    """The conditions of each subscription, in an order of their own."""
    return [
        sorted(
            repr(sorted(zip(*conjunction, strict=True), key=repr))
            for conjunction in conjunctions_of(table, row)
        )
        for row in range(n)
    ]


def conjunctions_of(table, row):
    for number in range(table.n_conjunctions):
        if table.subscription[number] == row:
            places = range(*table.condition_start[number : number + 2].tolist())
            names = [table.attributes[table.attribute[at]] for at in places]
            yield names, [table.condition(at) for at in places]


def one_by_one(where, rows):
    forms = [normalize(bind(parse(where), row)) for row in rows]
    return elements_as_truths(from_forms(forms))


@pytest.mark.parametrize("where", WHERES)
def test_queries_in_bulk_are_as_one_by_one(where):
    random = Random(len(where))
    queries = [random.choice(QUERIES) for _ in range(60)]
    rows = [
        {"query": query, "firm": f"F{random.randrange(5)}"}
        if ":firm" in where
        else {"query": query}
        for query in queries
    ]
    expected = described(one_by_one(where, rows), len(rows))
    names = list(rows[0])
    columns = {name: pa.array([row[name] for row in rows]) for name in names}
    by_template = normalize_template(where, columns, len(rows))
    assert not by_template.bad
    assert described(by_template.table, len(rows)) == expected
    texts = []
    for row in rows:
        text = where
        for name, value in row.items():
            text = text.replace(f":{name}", f"'{value}'")
        texts.append(text)
    by_text = normalize_texts(pa.array(texts))
    assert not by_text.bad
    assert described(by_text.table, len(rows)) == expected


def test_bad_queries_are_refused_in_bulk_with_the_error_of_each():
    queries = [*BAD, "good"]
    texts = [f"matches(body, '{query}')" for query in queries]
    assert [bad.row for bad in normalize_texts(pa.array(texts)).bad] == list(range(len(BAD)))
    columns = {"query": pa.array(queries)}
    form = normalize_template("matches(body, :query)", columns, len(queries))
    assert [bad.row for bad in form.bad] == list(range(len(BAD)))
    for bad in form.bad:
        with pytest.raises(SubscriptionError, match=escape(str(bad.error))):
            bind(parse("matches(body, :query)"), {"query": queries[bad.row]})


def test_a_query_that_is_no_text_is_unknown():
    form = normalize_template("matches(body, :query)", {"query": pa.array([None, "a"])}, 2)
    assert form.table.subscription.tolist() == [1]


def test_declared_attributes_within_terms_are_not_warned_of():
    matcher = Matcher(EventType("Document", {"body": str}, strict=True))
    texts = ["matches(body, 'a b')", "matches(title, 'a')", "length(body) > 3"]
    table = pa.table({"id": [0, 1, 2], "where": texts})
    report = matcher.subscribe_many(table, on_error="quarantine")
    assert [bad.row for bad in report.bad] == [1]
    matcher = Matcher(EventType("Document", {"body": str}))
    report = matcher.subscribe_many(table)
    assert [(w.code, w.attribute) for w in report.warnings] == [("undeclared", "title")]
