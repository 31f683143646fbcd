"""The sample of events that a pipeline keeps: what the next index is planned with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.spark.pipeline import statistics
from tocsin.spark.pipeline.config import Config, from_mapping
from tocsin.store.subscription_store import SubscriptionStore

N = 5_000


def conditions() -> pa.Table:
    """Return conditions with a range and a value: either may be the key."""
    random = np.random.default_rng(0)
    low, kind = random.integers(0, 990, N), random.integers(0, 40, N)
    where = [f"x BETWEEN {a} AND {a + 9} AND kind = {b}" for a, b in zip(low, kind, strict=True)]
    return pa.table({"id": range(N), "where": where})


def events(n: int = 2_000) -> pa.Table:
    """Return events that are all of one kind: a key by kind tells nothing apart."""
    x = np.random.default_rng(1).integers(0, 1000, n)
    return pa.table({"x": x, "kind": np.full(n, 7)})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    values = {
        "pipeline": {"subscriptions": str(tmp_path / "store"), "output": str(tmp_path / "out")},
        "event": {"attributes": {"x": "integer", "kind": "integer"}},
        "source": {"format": "json", "path": str(tmp_path / "events")},
    }
    store = SubscriptionStore.create(tmp_path / "store")
    store.subscribe_many(conditions())
    return from_mapping(values)


def keep(config: Config, content: bytes | pa.Table) -> None:
    place = Path(config.output) / statistics.SAMPLE
    place.parent.mkdir(parents=True)
    if isinstance(content, bytes):
        place.write_bytes(content)
    else:
        pq.write_table(content, place)


def test_an_index_is_planned_anew_for_the_events_that_went_by(config: Config) -> None:
    keep(config, events())
    store = SubscriptionStore.open(config.subscriptions)
    before, was = store.matcher(), store.newest()
    rebuilt = statistics.rebuild(config)
    assert rebuilt is not None
    assert rebuilt > was
    after = store.matcher()
    assert after.explain() != before.explain()
    batch = events()
    assert [set(found) for found in after.match_batch(batch)] == [
        set(found) for found in before.match_batch(batch)
    ]
    assert len(after) == N


def test_without_events_nothing_is_planned_anew(config: Config) -> None:
    was = SubscriptionStore.open(config.subscriptions).newest()
    assert statistics.rebuild(config) is None
    assert statistics.read_profile(config.output) is None
    assert SubscriptionStore.open(config.subscriptions).newest() == was


def test_a_damaged_sample_counts_as_none(config: Config) -> None:
    keep(config, b"PAR1 and nothing more")
    assert statistics.sample(config.output) is None
    assert statistics.rebuild(config) is None


def test_compile_is_given_all_events_of_the_sample(config: Config) -> None:
    keep(config, events(300))
    found = statistics.read_profile(replace(config, name="another").output)
    assert found is not None
    assert found.n_events == 300
