"""Which attribute is tested first, and which values have trees of their own.

Enters: the tests of all conjunctions, and a sample of events or none. Leaves: the attributes by
level, and the values of the index attributes. Aguilera et al. assume a fixed order and put popular
attributes first in their simulations; here an attribute counts by how many of the conjunctions its
tests rule out, which is the same where all tests are equally selective. Factoring is their
section 4: the first attributes, the values that most conjunctions ask for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.encode.events import EventBatch
from tocsin_lab.engines.tree.conditions import SET, UNIT, VALUE, TestBook

_GUESSED = 0.3
"""The share of events that is thought to satisfy a test of many values."""
_MAX_ROOTS = 1 << 16
"""How many trees there may be."""
_PER_ROOT, _MAX_COPIES = 8, 1.25
"""Unless a number of index attributes is given: how many conjunctions a tree has on average at
least, and how many times a conjunction may be kept."""
_LARGE, _MORE_COPIES = 10_000, 2.5
"""The same where that leaves trees large: these are read from memory, and dividing them pays."""


def choose_order(
    book: TestBook, tests: NDArray[np.int32], sample: EventBatch | None
) -> NDArray[np.int64]:
    """Return the attributes, the one that rules out most conjunctions first."""
    uses = np.bincount(tests, minlength=book.n)
    shares = _guessed(book, uses) if sample is None else _measured(book, sample)
    attribute = book.attribute[: book.n]
    n_attributes = len(book.places.attributes)
    ruled_out = np.bincount(attribute, weights=uses * (1.0 - shares), minlength=n_attributes)
    return np.argsort(-ruled_out, kind="stable")


def _guessed(book: TestBook, uses: NDArray[np.int64]) -> NDArray[np.float64]:
    """Guess that the values named by conditions share all events evenly."""
    attribute, is_set = book.attribute[: book.n], book.sort[: book.n] == SET
    is_guessed = ~is_set & (uses > 0)
    n_values = np.bincount(attribute[is_guessed], minlength=len(book.places.attributes))
    return np.where(is_set, _GUESSED, 1.0 / (1.0 + n_values[attribute]))


def _measured(book: TestBook, sample: EventBatch) -> NDArray[np.float64]:
    """Return the share of sampled events that satisfies each test."""
    places, n = book.places, book.n
    end = int(book.start[n])
    inside = np.zeros(end)
    attribute_of_range = np.repeat(book.attribute[:n], np.diff(book.start[: n + 1]))
    for number, attribute in enumerate(places.attributes):
        own = np.flatnonzero(attribute_of_range == number)
        cuts = attribute.encode(sample.column(attribute.name), len(sample))
        marks = np.sort(places.mark[cuts])
        below_high = np.searchsorted(marks, places.mark[book.high[own]])
        below_low = np.searchsorted(marks, places.mark[book.low[own]])
        inside[own] = (below_high - below_low) / max(len(sample), 1)
    shares = np.zeros(n)
    np.add.at(shares, np.repeat(np.arange(n), np.diff(book.start[: n + 1])), inside)
    return shares


def choose_index(
    book: TestBook, tests: NDArray[np.int32], order: NDArray[np.int64], n_index: int | None
) -> list[NDArray[np.int32]]:
    """Return for each index attribute the tests of one value that get trees of their own.

    Without a number of attributes, as many are taken as copy few conjunctions, or more where trees
    are large all the same.
    """
    uses = np.bincount(tests, minlength=book.n)
    attribute, sort = book.attribute[: book.n], book.sort[: book.n]
    n_conjunctions = int(np.bincount(attribute, weights=uses).max(initial=0))
    room = _MAX_ROOTS if n_index is not None else min(_MAX_ROOTS, n_conjunctions // _PER_ROOT)
    copies, n_roots = 1.0, 1
    chosen: list[NDArray[np.int32]] = []
    for number in order[:n_index].tolist():
        by_sort = [np.flatnonzero((attribute == number) & (sort == s)) for s in (VALUE, UNIT)]
        values = max(by_sort, key=lambda own: int(uses[own].sum()))
        values = values[uses[values] > 0]
        values = values[np.argsort(-uses[values], kind="stable")]
        copies *= 1.0 + len(values) * (1.0 - uses[values].sum() / max(n_conjunctions, 1))
        n_roots *= len(values) + 1
        most = _MORE_COPIES if n_conjunctions >= _LARGE * n_roots else _MAX_COPIES
        if n_index is None and (copies > most or len(values) >= room):
            break
        values = np.sort(values[: room - 1])
        if not len(values):
            break
        chosen.append(values.astype(np.int32))
        room //= len(values) + 1
    return chosen
