"""A sample of the events that went by, kept for the next compile.

Enters: the events of batches. Leaves: `statistics/sample.parquet` under the output folder, a few
thousand events of which the newer ones are more numerous; `Matcher.profile` learns from it which
values are common, and the next index is planned for them (`learned` for `tocsin.spark.compile`,
`replan` for the store of a pipeline).
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
"""A visit replaces at most this part of the sample: one quarter."""


class Sampler:
    """Takes some events now and then."""

    def __init__(self, config: Config, folder: Folder) -> None:
        self.most = config.sample
        self.seconds = config.sample_seconds
        self.folder = folder
        self.last = 0.0

    def add(self, events: DataFrame, n_events: int, batch: Batch) -> None:
        """Look at a batch, if it is time; a batch that is replayed may be looked at again."""
        now = time.monotonic()
        if not self.most or (self.last and now - self.last < self.seconds):
            return
        self.last = now
        size = max(1, self.most // _TAKEN)
        share = 1.2 * size / max(1, n_events)
        some = events.sample(share, batch.number) if share < 1 else events
        fresh = some.drop(ORIGIN).limit(size).toArrow()
        if fresh.num_rows:
            self._merge(fresh, batch.number)

    def _merge(self, fresh: pa.Table, seed: int) -> None:
        """Put fresh events into the sample; old ones make room by chance."""
        kept = _load(self.folder)
        if kept is not None and kept.schema.equals(fresh.schema):
            room = self.most - fresh.num_rows
            if kept.num_rows > room:
                chosen = np.random.default_rng(seed).choice(kept.num_rows, room, replace=False)
                kept = kept.take(pa.array(np.sort(chosen)))
            fresh = pa.concat_tables([kept, fresh])
        content = io.BytesIO()
        pq.write_table(fresh, content)
        self.folder.replace(SAMPLE, content.getvalue())


def _load(folder: Folder) -> pa.Table | None:
    content = folder.read(SAMPLE)
    if content is None:
        return None
    try:
        return pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError):  # it will be made anew
        return None


def learned(output: str) -> Profile | None:
    """Return the sample as `tocsin.spark.compile` takes it, or None."""
    found = sample(output)
    return None if found is None else Profile(found.num_rows, found)


def replan(config: Config) -> int | None:
    """Build the index of a store anew, planned for the events that went by; return its version.

    What others change meanwhile stays. None where no events have been kept yet.
    """
    found = sample(config.output)
    if found is None:
        return None
    return SubscriptionStore(config.subscriptions).rebuild(lambda matcher: matcher.profile(found))


def sample(output: str) -> pa.Table | None:
    """Return the sample of events that a pipeline keeps under its output folder, or None."""
    return _load(open_folder(output))
