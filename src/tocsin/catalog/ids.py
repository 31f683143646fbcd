"""Columns of ids: 64-bit integers, strings, or some of each.

Enters: Arrow columns, NumPy arrays, lists. Leaves: `Ids`, an immutable column with access to single
ids, parts, hashes and comparisons. 1 and "1" are two ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import STRING
from tocsin.catalog import id_index_kernels as kernels
from tocsin.compiling import use_kernels
from tocsin.model import SubscriptionId

FEW = 64
"""Up to this many ids are processed one by one."""
_MOST_WITHOUT_KERNELS = 16_384

_WORD = 0xFFFFFFFFFFFFFFFF
_NO_OCTETS = np.zeros(1, np.uint8)
_NO_OCTETS.flags.writeable = False


def are_missing_kernels(n: int) -> bool:
    """Whether n ids are processed without kernels, because these are not compiled yet."""
    return not use_kernels(n, _MOST_WITHOUT_KERNELS)


def hash_number(number: int) -> int:
    """Hash one integer as the kernels do."""
    word = number & _WORD
    word = (word ^ word >> 32) * 0xBF58476D1CE4E5B9 & _WORD
    return ((word ^ word >> 29) * 0x94D049BB133111EB & _WORD) >> 32


def hash_text(octets: bytes) -> int:
    """Hash the UTF-8 bytes of one string as the kernels do."""
    return hash_number(zlib.crc32(octets) | len(octets) << 32)


def to_octets(text: str) -> bytes:
    """Return a string as UTF-8; a lone surrogate gives bytes that no id has."""
    return text.encode("utf-8", "surrogatepass")


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that kernels see as read-only: one signature serves files and memory."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return np.asarray(view)


@dataclass(frozen=True, eq=False)
class Ids:
    """A column of ids: `numbers`, `texts`, or both, with null in `texts` for numbers."""

    numbers: NDArray[np.int64] | None = None
    texts: pa.Array | None = None

    def __post_init__(self) -> None:
        if self.numbers is not None:
            object.__setattr__(self, "numbers", read_only(self.numbers))

    @staticmethod
    def of(names: Sequence[SubscriptionId]) -> Ids:
        """Make a column of single ids."""
        kinds = set(map(type, names))
        if kinds == {int}:
            return Ids(np.array(names, np.int64))
        if kinds == {str}:
            return Ids(None, pa.array(names, STRING))
        numbers = [0 if isinstance(name, str) else name for name in names]
        texts = [name if isinstance(name, str) else None for name in names]
        return Ids(np.array(numbers, np.int64), pa.array(texts, STRING))

    @staticmethod
    def joined(columns: Sequence[Ids]) -> Ids | None:
        """Concatenate columns of one kind; return None where they have several."""
        numbers = [ids.numbers for ids in columns if ids.numbers is not None]
        texts = [ids.texts for ids in columns if ids.texts is not None]
        if not texts:
            return Ids(np.concatenate(numbers))
        is_one_kind = not numbers and len({column.type for column in texts}) == 1
        return Ids(None, pa.concat_arrays(texts)) if is_one_kind else None

    @property
    def kinds(self) -> set[str]:
        """The kinds of the ids: `integers`, `strings` or both."""
        if self.texts is None:
            return {"integers"}
        return {"strings"} if self.numbers is None else {"integers", "strings"}

    def __len__(self) -> int:
        return len(self.texts) if self.numbers is None else len(self.numbers)  # type: ignore[arg-type]

    def __getitem__(self, at: int) -> SubscriptionId:
        if self._is_number(at):
            return self._number_view[at]
        data, starts = self._text_views
        return str(data[starts[at] : starts[at + 1]], "utf-8")

    @cached_property
    def read(self) -> Callable[[int], SubscriptionId]:
        """Returns the id at a place."""
        return self._number_view.__getitem__ if self.texts is None else self.__getitem__

    @cached_property
    def octets(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The bytes of the texts, and where each starts."""
        assert self.texts is not None
        return text_octets(self.texts)

    @cached_property
    def _number_view(self) -> memoryview:
        return memoryview(self.numbers)  # type: ignore[arg-type]

    @cached_property
    def _text_views(self) -> tuple[memoryview, memoryview]:
        data, starts = self.octets
        return memoryview(data), memoryview(starts)  # type: ignore[arg-type]

    def is_at(self, at: int, name: SubscriptionId, octets: bytes | None) -> bool:
        """Whether a place has an id; `octets` are the bytes of the id when it is a string."""
        if octets is None:
            if self.texts is None:
                return self._number_view[at] == name
            return self._is_number(at) and self._number_view[at] == name
        if self._is_number(at):
            return False
        data, starts = self._text_views
        return data[starts[at] : starts[at + 1]] == octets

    def _is_number(self, at: int) -> bool:
        return self.texts is None or (self.numbers is not None and not self.texts[at].is_valid)

    def take(self, places: NDArray[np.int64]) -> Ids:
        """Return the ids at some places, in their order."""
        if self.texts is None:
            assert self.numbers is not None
            return Ids(self.numbers[places])
        texts = self.texts.take(pa.array(places))
        if self.numbers is None or not texts.null_count:
            return Ids(None, texts)
        return Ids(self.numbers[places], None if texts.null_count == len(texts) else texts)

    def to_list(self) -> list[SubscriptionId]:
        """Return all ids as Python objects."""
        if self.texts is None:
            assert self.numbers is not None
            return self.numbers.tolist()  # type: ignore[no-any-return]
        texts = self.texts.to_pylist()
        if self.numbers is None:
            return texts  # type: ignore[no-any-return]
        return [n if t is None else t for t, n in zip(texts, self.numbers.tolist(), strict=True)]

    def to_texts(self) -> pa.Array:
        """Return all ids as strings; integers in decimal."""
        if self.numbers is None:
            return self.texts
        numbers = pa.array(self.numbers).cast(STRING)
        return numbers if self.texts is None else pc.coalesce(self.texts, numbers)

    def hashes(self) -> NDArray[np.uint64]:
        """Return the hash of each id."""
        if are_missing_kernels(len(self)):
            names = self.to_list()
            few = [hash_number(n) if isinstance(n, int) else hash_text(to_octets(n)) for n in names]
            return np.array(few, np.uint64)
        hashes = np.empty(len(self), np.uint64)
        if self.numbers is not None:
            kernels.hash_numbers(self.numbers, hashes)
        if self.texts is not None:
            of_texts = hashes if self.numbers is None else np.empty(len(self), np.uint64)
            kernels.hash_texts(*self.octets, of_texts)
            if self.numbers is not None:
                hashes = np.where(_valid(self.texts), of_texts, hashes)
        return hashes

    def equal(
        self, places: NDArray[np.int64], other: Ids, other_places: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Compare pairs of ids of two columns."""
        equal = np.zeros(len(places), np.bool_)
        if self.numbers is not None and other.numbers is not None:
            equal = self.numbers[places] == other.numbers[other_places]
            if self.texts is not None or other.texts is not None:
                equal &= self._are_numbers(places) & other._are_numbers(other_places)
        if self.texts is not None and other.texts is not None:
            are_texts = np.empty(len(places), np.bool_)
            kernels.compare_texts(*self.octets, places, *other.octets, other_places, are_texts)
            equal |= are_texts & ~self._are_numbers(places) & ~other._are_numbers(other_places)
        return equal

    def _are_numbers(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self.texts is None or self.numbers is None:
            return np.full(len(places), self.texts is None)
        return ~_valid(self.texts)[places]


def text_octets(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of a large_string array, and where each string starts."""
    _, offsets, values = texts.buffers()
    if not len(texts):
        return _NO_OCTETS, read_only(np.zeros(1, np.int64))
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(values, np.uint8) if values is not None and values.size else _NO_OCTETS
    return read_only(data), read_only(starts)


def _valid(array: pa.Array) -> NDArray[np.bool_]:
    return array.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
