"""Lists: the elements of a list of each event, one after the other.

Enters: Arrow lists, Python lists, or texts, whose words are a list. Leaves: `Elements`, the values
of all elements and where those of each event begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import to_array
from tocsin.encode import vectors
from tocsin.encode.vectors import Mask, Vector
from tocsin.language.evaluate import MAX_PAIRS
from tocsin.language.words import split_words
from tocsin.model import Kind

Integers = NDArray[np.int64]


class Elements:
    """The elements of a list: those of event i are from `start[i]` to `start[i + 1]`.

    `here` marks the events that have a list; None: all have one. `source` is what the elements
    are: an Arrow array, or Python values.
    """

    def __init__(self, start: Integers, source: Any, here: Mask | None) -> None:
        self.start = start
        self.source = source
        self.here = here
        self.values: Vector | None = None
        """The values of the elements, once `EventBatch.values_of` was called."""

    def __len__(self) -> int:
        return int(self.start[-1])

    def rows(self) -> Integers:
        """Return the event of each element."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def repeated(self, rows: Integers, sizes: Integers) -> Elements:
        """Return the elements of some events; those of which there would be too many are absent.

        `sizes` is how often the list of an event is used, see `MAX_PAIRS`.
        """
        counts = np.diff(self.start)[rows]
        fits = counts * sizes <= MAX_PAIRS
        here = fits if self.here is None else fits & self.here[rows]
        counts[~here] = 0
        start = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=start[1:])
        at = np.repeat(self.start[rows] - start[:-1], counts) + np.arange(start[-1])
        return Elements(start, _take(self.source, at), None if here.all() else here)


def _take(source: Any, at: Integers) -> Any:
    if isinstance(source, Vector):
        return vectors.take(source, at)
    if isinstance(source, pa.Array):
        return source.take(pa.array(at))
    return [source[i] for i in at.tolist()]


def is_list(kind: pa.DataType) -> bool:
    """Whether an Arrow type is that of lists."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def arrow_elements(lists: pa.Array) -> Elements:
    """Return the elements of Arrow lists."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    start = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    here = lists.is_valid().to_numpy(zero_copy_only=False) if lists.null_count else None
    return Elements(start, to_array(pc.list_flatten(lists)), here)


def with_absent(elements: Elements) -> Elements:
    """Return elements of which one is null in place of each absent list."""
    if elements.here is None:
        return elements
    counts = np.where(elements.here, np.diff(elements.start), 1)
    start = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    is_null = np.zeros(int(start[-1]), np.bool_)
    is_null[start[:-1][~elements.here]] = True
    places = np.cumsum(~is_null) - 1
    return Elements(start, elements.source.take(pa.array(places, mask=is_null)), None)


def flattened(outer: Elements, inner: Elements) -> Elements:
    """Return the elements of lists within lists as those of one list each."""
    return Elements(inner.start[outer.start], inner.source, outer.here)


def python_elements(values: Sequence[object]) -> Elements | None:
    """Return the elements of Python lists, or None where there is none."""
    lists = [value if isinstance(value, list | tuple) else None for value in values]
    if all(value is None for value in lists):
        return None
    start = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(value or ()) for value in lists], out=start[1:])
    here = np.array([value is not None for value in lists], np.bool_)
    elements = [element for value in lists for element in value or ()]
    return Elements(start, elements, None if here.all() else here)


def word_elements(texts: Vector) -> Elements:
    """Return the words of texts; see `language.text_query`."""
    start, words = split_words(vectors.plain_strings(texts.values))
    return Elements(start, Vector(Kind.STRING, words), texts.here)
