"""The id index: hashes in kernels and in Python, duplicates, look-ups, what is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.catalog.catalogs import ONE, add_many, find_many

from tocsin.catalog.id_index import IdIndex, IdTable
from tocsin.catalog.ids import FEW, Ids, hash_number, hash_text, to_octets
from tocsin.catalog.subscriptions import SubscriptionCatalog
from tocsin.model import INT64_MAX, INT64_MIN

NUMBERS = [0, 1, -1, 2**31, -(2**31), 2**53 + 1, INT64_MAX, INT64_MIN, *range(1000, 1100)]
TEXTS = ["", "a", "été 😀", "a\0b", *("x" * n for n in range(40)), *map(str, NUMBERS)]


def test_kernels_hash_as_python_does() -> None:
    assert Ids.of(NUMBERS).hashes().tolist() == [hash_number(n) for n in NUMBERS]
    assert Ids.of(TEXTS).hashes().tolist() == [hash_text(to_octets(t)) for t in TEXTS]
    mixed: list[Any] = [*NUMBERS, *TEXTS]
    assert Ids.of(mixed).hashes().tolist() == [
        hash_text(to_octets(name)) if isinstance(name, str) else hash_number(name) for name in mixed
    ]


def test_hashes_spread() -> None:
    """Ids that people make up are regular; their hashes must not be."""
    n = 1 << 14
    for ids in (
        Ids(np.arange(n)),
        Ids(np.arange(n) << 40),
        Ids(np.arange(n) * 1000),
        Ids.of([f"user-{i:08d}" for i in range(n)]),
        Ids.of([f"{i:08d}@example.org" for i in range(n)]),
    ):
        crowded = np.bincount(ids.hashes().astype(np.int64) >> 22, minlength=1 << 10)
        assert len(crowded) == 1 << 10
        assert crowded.max() < 48, "16 are expected"


@pytest.mark.parametrize("n", [FEW, 5 * FEW])
@pytest.mark.parametrize("name_of", [int, str], ids=["integers", "strings"])
def test_ids_that_stand_twice_are_found(n: int, name_of: Any) -> None:
    names = [name_of(i % 50) for i in range(n)]
    assert IdTable(Ids.of(names)).repeated.tolist() == list(range(50, n))
    assert IdTable(Ids.of([name_of(i) for i in range(n)])).repeated.tolist() == []


def test_missing_ids_stand_nowhere_twice() -> None:
    n = 5 * FEW
    missing = np.arange(n) % 2 == 1
    table = IdTable(Ids(np.where(missing, 0, np.arange(n))), missing)
    assert table.repeated.tolist() == []
    catalog = SubscriptionCatalog()
    add_many(catalog, list(range(n)))
    assert np.flatnonzero(catalog.find(table) < 0).tolist() == np.flatnonzero(missing).tolist()


def test_many_are_found_as_one_by_one() -> None:
    """Among ids that came singly, in bulk, as integers and as strings, and of those gone."""
    catalog = SubscriptionCatalog()
    for i in range(300):
        catalog.add(i if i % 3 else f"s{i}", ONE)
    add_many(catalog, [f"t{i}" for i in range(500)])
    add_many(catalog, list(range(1000, 1500)))
    for i in range(2000):
        catalog.add(str(i) if i % 2 else i + 5000, ONE)
    catalog.remove(np.arange(0, 3300, 7))
    asked = [*range(0, 8000, 3)]
    texts = [f"{kind}{i}" for kind in ("s", "t", "") for i in range(0, 2000, 3)]
    for names in (asked, texts):
        expected = [catalog.dense(name) for name in names]
        assert find_many(catalog, names) == [-1 if d is None else d for d in expected]
        assert len([d for d in expected if d is not None]) > 100


def test_what_is_no_id_has_no_dense_id() -> None:
    catalog = SubscriptionCatalog()
    add_many(catalog, list(range(100)))
    add_many(catalog, [str(i) for i in range(100)])
    for name in (INT64_MAX + 1, 2**64 + 5, "\ud800", "x" * 10_000, 10**30):
        assert catalog.dense(name) is None
        assert name not in catalog
    assert (catalog.dense(5), catalog.dense("5")) == (5, 105)


def test_equal_hashes_are_told_apart_by_the_ids() -> None:
    """An index gives all dense ids with the same hash, whichever ids they are of."""
    index = IdIndex()
    texts = _texts_of_equal_hash()
    index.add(Ids.of(texts), np.array([7, 8]))
    octets = to_octets(texts[0])
    assert sorted(index.candidates(texts[0], octets)) == [7, 8]
    catalog = SubscriptionCatalog()
    filler = [f"f{i}" for i in range(100)]
    dense = add_many(catalog, [*filler, *texts])
    assert [catalog.dense(text) for text in texts] == dense[-2:].tolist()
    assert find_many(catalog, [*filler, *texts]) == dense.tolist()
    catalog.remove(dense[-1:])
    assert catalog.dense(texts[0]) == dense[-2]
    assert catalog.dense(texts[1]) is None
    assert find_many(catalog, [*filler, *texts])[-2:] == [dense[-2], -1]


def _texts_of_equal_hash() -> list[str]:
    """Find two strings with one CRC-32 and one length among a hundred thousand and more."""
    names = pa.array(np.arange(300_000)).cast(pa.large_string())
    hashes = Ids(None, names).hashes()
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(np.diff(hashes[order]) == 0)
    assert len(same)
    return [names[int(at)].as_py() for at in order[same[0] : same[0] + 2]]


def test_entries_of_what_is_gone_do_not_pile_up() -> None:
    catalog = SubscriptionCatalog()
    names = [f"a{i}" for i in range(2_000)]
    for _ in range(10):
        dense = add_many(catalog, names)
        assert find_many(catalog, names) == dense.tolist()
        catalog.remove(dense)
        assert len(catalog) == 0
        assert catalog.dense("a5") is None
    assert catalog._id_index.n_entries <= 4_000
