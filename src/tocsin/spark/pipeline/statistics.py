"""A sample of past events, by which the next index is planned.

Enters: the events of batches. Leaves: `statistics/sample.parquet` in the output folder, a few
thousand events, with more of the newer ones. `Matcher.profile` learns from it which values are
common (`read_profile` for `tocsin.spark.compile`, `rebuild` for the store of a pipeline).
"""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.spark.pipeline.batch import ORIGIN, Batch
from tocsin.spark.pipeline.config import Config
from tocsin.spark.pipeline.folders import Folder, open_folder
from tocsin.spark.profiles import Profile
from tocsin.store.subscription_store import SubscriptionStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE = "statistics/sample.parquet"
_TAKEN = 4
"""One addition replaces at most this fraction of the sample: a quarter."""


class Sampler:
    """Adds events of a batch to the sample, at intervals."""

    def __init__(self, config: Config, folder: Folder) -> None:
        self.size = config.sample
        self.seconds = config.sample_seconds
        self.folder = folder
        self.last = 0.0

    def add(self, events: DataFrame, n_events: int, batch: Batch) -> None:
        """Add some events of a batch if the interval has passed, perhaps again in a replay."""
        now = time.monotonic()
        if not self.size or (self.last and now - self.last < self.seconds):
            return
        self.last = now
        size = max(1, self.size // _TAKEN)
        share = 1.2 * size / max(1, n_events)
        some = events.sample(share, batch.number) if share < 1 else events
        fresh = some.drop(ORIGIN).limit(size).toArrow()
        if fresh.num_rows:
            self._merge(fresh, batch.number)

    def _merge(self, fresh: pa.Table, seed: int) -> None:
        """Add fresh events to the sample; they replace random old ones."""
        old = _load(self.folder)
        if old is not None and old.schema.equals(fresh.schema):
            n_old = self.size - fresh.num_rows
            if old.num_rows > n_old:
                rows = np.random.default_rng(seed).choice(old.num_rows, n_old, replace=False)
                old = old.take(pa.array(np.sort(rows)))
            fresh = pa.concat_tables([old, fresh])
        content = io.BytesIO()
        pq.write_table(fresh, content)
        self.folder.replace(SAMPLE, content.getvalue())


def _load(folder: Folder) -> pa.Table | None:
    content = folder.read(SAMPLE)
    if content is None:
        return None
    try:
        return pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError):  # it will be replaced
        return None


def read_profile(output: str) -> Profile | None:
    """Return the sample as a profile for `tocsin.spark.compile`; None if there is none yet."""
    events = sample(output)
    return None if events is None else Profile(events.num_rows, events)


def rebuild(config: Config) -> int | None:
    """Rebuild the index of a pipeline's store for the sampled events; return its version.

    Changes that others commit meanwhile stay. Returns None if there is no sample yet.
    """
    events = sample(config.output)
    if events is None:
        return None
    return SubscriptionStore(config.subscriptions).rebuild(lambda matcher: matcher.profile(events))


def sample(output: str) -> pa.Table | None:
    """Return the sample of events in the output folder of a pipeline, or None."""
    return _load(open_folder(output))
