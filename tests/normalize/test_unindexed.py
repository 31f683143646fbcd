"""Conditions that no index can help: they are warned of, and counted."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tocsin import Matcher
from tocsin.language import parse
from tocsin.loading import unindexed_texts
from tocsin.normalize import normalize
from tocsin.normalize.diagnose import diagnose
from tocsin.normalize.unindexed import is_unindexed

UNINDEXED = [
    "a < b",
    "regexp_matches(s, 'x.*y')",
    "ALL(tags) <> 'x'",
    "matches(body, '-rumour')",
    "a < b OR c = 1",
    "forall(items, i -> i.price > 5)",
    "contains(s, 'x') AND ends_with(s, 'y')",
]
INDEXED = [
    "a = 1",
    "a < b AND c = 1",
    "price * volume > 5",
    "lower(s) = 'x'",
    "ANY(tags) = 'x'",
    "exists(items, i -> i.price > 5)",
    "matches(body, 'rate -rumour')",
    "s LIKE '%x%'",
    "1 = 1",
    "cardinality(tags) > 3",
]


@pytest.mark.parametrize("where", UNINDEXED)
def test_a_condition_that_no_index_helps_is_found(where: str) -> None:
    assert is_unindexed(normalize(parse(where)))
    assert "unindexed" in [finding.code for finding in diagnose(parse(where))]


@pytest.mark.parametrize("where", INDEXED)
def test_a_condition_that_an_index_helps_is_not_found(where: str) -> None:
    assert not is_unindexed(normalize(parse(where)))
    assert "unindexed" not in [finding.code for finding in diagnose(parse(where))]


def test_a_bulk_load_warns_and_an_explanation_counts() -> None:
    texts = UNINDEXED + INDEXED
    assert unindexed_texts(texts) == set(range(len(UNINDEXED)))
    matcher = Matcher()
    table = pa.table({"id": range(len(texts)), "where": texts})
    [warning] = [w for w in matcher.subscribe_many(table).warnings if w.code == "unindexed"]
    assert warning.n_subscriptions == len(UNINDEXED)
    assert f"no index helps: {len(UNINDEXED)} conjunctions" in matcher.explain()
    assert "checked on every event" in matcher.explain(0)
    assert "checked on every event" not in matcher.explain(len(UNINDEXED))
