"""Files of publications that a pipeline keeps: a changed byte is an error, never another value."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tocsin.errors import PipelineError, StoreError
from tocsin.spark.pipeline.publication_table import BucketFile, PublicationManifest, read_state
from tocsin.spark.publications import State
from tocsin.storage.local import LocalPlace
from tocsin.storage.pins import Pin
from tocsin.store.subscription_store import SubscriptionStore


def flipped(octets: bytes, source: Random, at: int) -> bytes:
    changed = bytearray(octets)
    changed[at] ^= 1 << source.randrange(8)
    return bytes(changed)


def test_a_flipped_bit_in_kept_publications_is_an_error(tmp_path: Path) -> None:
    octets = State(pa.table({"key": ["a", "b"], "x": [1, 2]}), Pin(3, 4.5)).to_bytes()
    bucket = BucketFile("q-0.arrow", 2, zlib.crc32(octets))
    place, source = LocalPlace(tmp_path), Random(1)
    (tmp_path / bucket.name).write_bytes(octets)
    assert read_state(place, bucket).pin == Pin(3, 4.5)
    for at in source.sample(range(len(octets)), 60):
        (tmp_path / bucket.name).write_bytes(flipped(octets, source, at))
        with pytest.raises(PipelineError, match=bucket.name):
            read_state(place, bucket)
    (tmp_path / bucket.name).unlink()
    with pytest.raises(PipelineError, match="is missing"):
        read_state(place, bucket)


def test_a_flipped_bit_in_the_manifest_of_a_batch_is_an_error_or_harmless() -> None:
    kept = PublicationManifest(
        "q", 7, 3, 4.5, "key", 2, 10, 5, 4, {"0": BucketFile("a.arrow", 2, 9)}, ("b.parquet",)
    )
    octets, source = kept.to_json(), Random(2)
    assert PublicationManifest.from_json(octets, "kept") == kept
    for at in range(len(octets)):
        damaged = flipped(octets, source, at)
        with contextlib.suppress(PipelineError):
            assert PublicationManifest.from_json(damaged, "kept") == kept
    with pytest.raises(PipelineError, match="kept"):
        PublicationManifest.from_json(octets[:-10], "kept")


def test_a_manifest_of_an_earlier_release_is_read() -> None:
    old = (
        b'{"query": "q", "batch": 1, "version": 2, "now": 3.0, "key": "k", "buckets": 4,'
        b' "events": 5, "entered": 6, "left": 7, "states": {"0": ["a.arrow", 8]},'
        b' "found": ["b.parquet"], "schema": null, "format": 1}'
    )
    kept = PublicationManifest.from_json(old, "kept")
    assert kept.states == {"0": BucketFile("a.arrow", 8, None)}
    assert kept.publications == 8


def test_a_flipped_bit_in_a_pin_is_an_error_or_harmless(tmp_path: Path) -> None:
    store = SubscriptionStore.create(tmp_path / "store", engine="oracle")
    pinned = store.pin("query", 1, now=5)
    path = next((tmp_path / "store" / "pins" / "query").iterdir())
    octets, source = path.read_bytes(), Random(3)
    for at in range(len(octets)):
        path.write_bytes(flipped(octets, source, at))
        with contextlib.suppress(StoreError):
            assert store.pin("query", 1) == pinned
    path.write_bytes(octets[:-10])
    with pytest.raises(StoreError, match=path.name):
        store.pin("query", 1)
    path.write_bytes(b'{"version": 1, "now": 5.0}')
    assert store.pin("query", 1) == pinned, "pins of earlier releases have no checksum"
