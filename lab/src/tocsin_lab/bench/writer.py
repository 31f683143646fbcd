"""A thread that changes a matcher's subscriptions at a given rate.

Enters: a matcher, new subscriptions, the ids that may be removed. Leaves: the changes made, how
long each call took, which subscriptions are left. Changes are due at even intervals. Half of them
subscribe, half unsubscribe; who goes is drawn at random from all who are there. A writer that is
late does not wait between calls, and it stops when its time is up, whatever it has done by then;
but not before one call of each kind.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.matcher import Matcher

Ids = NDArray[np.int64]

_BLOCK = 4096


class Writer:
    """Makes changes, a chunk in each call.

    `texts` has columns `id` and `where`; there must be enough of them. With a chunk of one the
    calls are `subscribe` and `unsubscribe`, otherwise `subscribe_many` and `unsubscribe_many`.
    """

    def __init__(
        self, matcher: Matcher, texts: pa.Table, removable: Ids, chunk: int, seed: int
    ) -> None:
        self.subscribe_ns: list[int] = []
        self.unsubscribe_ns: list[int] = []
        self.removed: list[int] = []
        self.elapsed_s = 0.0
        self._matcher = matcher
        self._texts = texts
        self._chunk = chunk
        self._random = np.random.default_rng(seed)
        self._live = np.concatenate([removable, np.empty(len(texts), np.int64)])
        self._n_live = len(removable)
        self._block: list[str] = []
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._error: BaseException | None = None

    @staticmethod
    def n_texts(rate: float, seconds: float, chunk: int) -> int:
        """Return how many new subscriptions it may take in that time."""
        return int(rate * seconds / 2) + 2 * chunk

    @property
    def n_subscribed(self) -> int:
        """How many subscriptions were made."""
        return self._chunk * len(self.subscribe_ns)

    @property
    def n_changes(self) -> int:
        """How many subscriptions were made or removed."""
        return self.n_subscribed + len(self.removed)

    @property
    def live(self) -> Ids:
        """The live subscriptions that may be removed."""
        return self._live[: self._n_live]

    @property
    def is_running(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, rate: float, seconds: float) -> None:
        """Make changes on a thread of their own, `rate` a second."""
        self._thread = threading.Thread(target=self._run, args=(rate, seconds), name="writer")
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present call; raise what went wrong there."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, rate: float, seconds: float) -> None:
        started = time.perf_counter()
        try:
            while not self._stopped.is_set():
                now, due = time.perf_counter() - started, self.n_changes / rate
                if max(now, due) >= seconds and self.removed:
                    self._stopped.wait(max(seconds - now, 0))
                    break
                if now < due < seconds:
                    time.sleep(due - now)
                else:
                    self.change()
        except BaseException as error:
            self._error = error
        self.elapsed_s = time.perf_counter() - started

    def change(self) -> None:
        """Make the next call: first one that subscribes, then one that unsubscribes, and so on."""
        if len(self.subscribe_ns) == len(self.unsubscribe_ns):
            self._subscribe()
        else:
            self._unsubscribe()

    def _subscribe(self) -> None:
        at, chunk, matcher = self.n_subscribed, self._chunk, self._matcher
        ids = self._texts["id"].slice(at, chunk).to_numpy()
        if chunk == 1:
            if at % _BLOCK == 0:
                self._block = self._texts["where"].slice(at, _BLOCK).to_pylist()
            id, where = int(ids[0]), self._block[at % _BLOCK]
            started = time.perf_counter_ns()
            matcher.subscribe(id, where)
        else:
            table = self._texts.slice(at, chunk)
            started = time.perf_counter_ns()
            matcher.subscribe_many(table)
        self.subscribe_ns.append(time.perf_counter_ns() - started)
        self._live[self._n_live : self._n_live + chunk] = ids
        self._n_live += chunk

    def _unsubscribe(self) -> None:
        ids = self._draw()
        started = time.perf_counter_ns()
        if self._chunk == 1:
            self._matcher.unsubscribe(ids[0])
        else:
            self._matcher.unsubscribe_many(ids)
        self.unsubscribe_ns.append(time.perf_counter_ns() - started)
        self.removed += ids

    def _draw(self) -> list[int]:
        """Take a chunk out of the live subscriptions."""
        at = self._random.choice(self._n_live, self._chunk, replace=False)
        drawn: list[int] = self._live[at].tolist()
        last = np.arange(self._n_live - self._chunk, self._n_live)
        self._n_live -= self._chunk
        holes = at[at < self._n_live]
        self._live[holes] = self._live[np.setdiff1d(last, at)]
        return drawn
