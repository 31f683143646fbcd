"""Predicates of many subscriptions → a conjunction table: the driver of `fold_kernels`.

Enters: blocks of predicate rows from texts, templates or rule tables. Leaves: a `BulkForm`. What
the kernel leaves over is normalized one by one through the caller's `expression_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.errors import SubscriptionError
from tocsin.language.expression import Expression
from tocsin.model import EventType, Kind
from tocsin.normalize import fold_kernels as kernels
from tocsin.normalize.budget import Budget
from tocsin.normalize.domains import DOMAIN_OF_KIND
from tocsin.normalize.elements import elements_as_truths
from tocsin.normalize.layout import from_forms
from tocsin.normalize.literals import LikeTable, LiteralColumn, make_likes, string_follows
from tocsin.normalize.normal import NormalForm, normalize
from tocsin.normalize.table import ConjunctionTable, stack, take

MOST_WITHOUT_KERNELS = 10_000
"""Up to this many conditions are brought into normal form one by one while kernels are missing."""
MAX_PAIRWISE = 256
"""Up to how many conjunctions of one subscription every pair is tried for covering."""

_LARGE_CAPACITY = 1 << 12
_KINDS = tuple(Kind)
_IS_LIKE = np.isin(np.arange(256), (kernels.LIKE, kernels.NOT_LIKE))
_MORE_PIECES = np.isin(np.arange(256), (kernels.NE, kernels.NOT_IN, kernels.NOT_LIKE)).astype(int)
_MORE_PIECES[[kernels.OTHER_THAN, kernels.NO_TEXT]] = 4
"""By operator: whether it takes a pattern; how many pieces more than literals it may have."""
_T = TypeVar("_T", bound=np.generic)


class BadSubscription(NamedTuple):
    """A subscription that was refused: its row in the bulk load, and why."""

    row: int
    error: SubscriptionError


@dataclass(frozen=True)
class BulkForm:
    """The normal form of a bulk load; refused subscriptions have no conjunctions."""

    table: ConjunctionTable
    bad: tuple[BadSubscription, ...]


class Block(NamedTuple):
    """Predicates of some conjunctions; `escape` holds code points, -1 for none, or is None."""

    subscription: NDArray[np.int64]
    row_counts: NDArray[np.int64]
    attribute: NDArray[np.int32]
    op: NDArray[np.uint8]
    literal_start: NDArray[np.int64]
    n_literals: NDArray[np.int32]
    escape: NDArray[np.int32] | None = None


class PredicateBatch:
    """Predicate rows as they arrive, with the names and literals they refer to."""

    def __init__(self, is_bounded: bool = True) -> None:
        self.is_bounded = is_bounded
        self.literals = LiteralColumn()
        self._names: dict[str, int] = {}
        self._blocks: list[Block] = []

    def attribute_ids(self, names: Iterable[str]) -> NDArray[np.int32]:
        """Return the numbers of attributes, new ones included."""
        known = self._names
        return np.array([known.setdefault(name, len(known)) for name in names], np.int32)

    def add(self, block: Block) -> None:
        """Append a block of conjunctions."""
        self._blocks.append(block)

    def fold(
        self,
        n_subscriptions: int,
        event_type: EventType | None,
        expression_of: Callable[[int], Expression],
        one_by_one: Iterable[int] = (),
    ) -> BulkForm:
        """Fold all predicates, and the given rest one by one."""
        table, left_over = self._fold_columns(n_subscriptions, event_type)
        rest = np.union1d(left_over, np.fromiter(one_by_one, np.int64))
        forms: list[NormalForm] = []
        bad: list[BadSubscription] = []
        for row in rest.tolist():
            try:
                budget = Budget() if self.is_bounded else Budget.unlimited()
                forms.append(normalize(expression_of(row), event_type, budget=budget))
            except SubscriptionError as error:
                forms.append(NormalForm(()))
                bad.append(BadSubscription(row, error))
        if forms:
            table = _add_forms(table, rest, forms)
        return BulkForm(elements_as_truths(_in_order(table)), tuple(bad))

    def _fold_columns(
        self, n_subscriptions: int, event_type: EventType | None
    ) -> tuple[ConjunctionTable, NDArray[np.int64]]:
        if not self._blocks:
            return replace(from_forms([]), n_subscriptions=n_subscriptions), np.empty(0, np.int64)
        rows, subscription, escape = self._joined()
        like_rows = np.flatnonzero(_IS_LIKE[rows.op])
        likes = self._read_likes(rows, like_rows, escape)
        literals, vocabulary = self.literals.finish(likes.bound_strings())
        declared = self._declared(event_type)
        out, scratch, order = _allocate(rows, len(like_rows))
        status = np.empty(len(subscription), np.uint8)
        counts = kernels.fold(
            rows,
            literals,
            likes.ranked(vocabulary),
            declared,
            string_follows(vocabulary),
            status,
            out,
            scratch,
            order,
        )
        is_kept = status == kernels.KEPT
        folded = subscription if is_kept.all() else subscription[is_kept]
        table = self._to_table(out, counts, folded, vocabulary, likes, n_subscriptions)
        left_over = np.unique(subscription[status == kernels.LEFT_OVER])
        if len(left_over):
            table = take(table, np.flatnonzero(~np.isin(folded, left_over)))
        return _drop_covered(table), left_over

    def _joined(
        self,
    ) -> tuple[kernels.PredicateRows, NDArray[np.int64], NDArray[np.int32] | None]:
        def joined(name: str, dtype: type) -> Any:
            parts = [getattr(block, name) for block in self._blocks]
            if len(parts) == 1:
                return np.ascontiguousarray(parts[0])
            return np.concatenate(parts) if parts else np.empty(0, dtype)

        row_counts = joined("row_counts", np.int64)
        row_start = np.zeros(len(row_counts) + 1, np.int64)
        np.cumsum(row_counts, out=row_start[1:])
        rows = kernels.PredicateRows(
            row_start,
            joined("attribute", np.int32),
            joined("op", np.uint8),
            joined("literal_start", np.int64),
            joined("n_literals", np.int32),
        )
        escape = None
        if any(block.escape is not None for block in self._blocks):
            escape = np.concatenate(
                [
                    np.full(len(block.op), -1, np.int32) if block.escape is None else block.escape
                    for block in self._blocks
                ]
            )
        subscription = joined("subscription", np.int64)
        self._blocks.clear()
        return rows, subscription, escape

    def _read_likes(
        self,
        rows: kernels.PredicateRows,
        like_rows: NDArray[np.int64],
        escape: NDArray[np.int32] | None,
    ) -> LikeTable:
        """Read each distinct pattern once, and point the LIKE rows to them."""
        if not len(like_rows):
            return make_likes([], [])
        texts = self.literals.strings_at(rows.literal_start[like_rows]).dictionary_encode()
        codes = np.full(len(like_rows), -1) if escape is None else escape[like_rows]
        text_of = texts.indices.fill_null(-1).to_numpy().astype(np.int64)
        distinct, pattern_of = np.unique(text_of << 32 | (codes + 1), return_inverse=True)
        rows.literal_start[like_rows] = pattern_of
        dictionary = texts.dictionary.to_pylist()
        pairs = [(int(pair >> 32), int(pair & 0xFFFFFFFF) - 1) for pair in distinct]
        return make_likes(
            [None if text < 0 else dictionary[text] for text, _ in pairs],
            [None if code < 0 else chr(code) for _, code in pairs],
            is_bounded=self.is_bounded,
        )

    def _declared(self, event_type: EventType | None) -> kernels.Declared:
        kinds = [event_type.kind_of(name) if event_type else None for name in self._names]
        return kernels.Declared(
            np.array([-1 if k is None else _KINDS.index(k) for k in kinds], np.int8),
            np.array([-1 if k is None else DOMAIN_OF_KIND[k] for k in kinds], np.int8),
        )

    def _to_table(
        self,
        out: kernels.Conditions,
        counts: tuple[int, int, int, int],
        subscription: NDArray[np.int64],
        vocabulary: pa.Array,
        likes: LikeTable,
        n_subscriptions: int,
    ) -> ConjunctionTable:
        n_conjunctions, n_conditions, n_pieces, n_patterns = counts
        return ConjunctionTable(
            attributes=tuple(self._names),
            vocabulary=vocabulary,
            patterns=likes.patterns,
            n_subscriptions=n_subscriptions,
            subscription=subscription,
            condition_start=_with_zero(out.condition_end, n_conjunctions),
            attribute=_trim(out.attribute, n_conditions),
            flags=_trim(out.flags, n_conditions),
            piece_start=_with_zero(out.piece_end, n_conditions),
            domain=_trim(out.domain, n_pieces),
            low_key=_trim(out.low_key, n_pieces),
            low_offset=_trim(out.low_offset, n_pieces),
            high_key=_trim(out.high_key, n_pieces),
            high_offset=_trim(out.high_offset, n_pieces),
            pattern_condition=_trim(out.pattern_condition, n_patterns),
            pattern_id=_trim(out.pattern_id, n_patterns),
            pattern_negated=_trim(out.pattern_negated, n_patterns),
        )


def _trim(array: NDArray[_T], n: int) -> NDArray[_T]:
    """Cut an array to size; copy it if most of the memory would be wasted."""
    return array[:n] if 2 * n > len(array) else array[:n].copy()


def _with_zero(ends: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the first n ends with a zero before them, in the space that `_allocate` reserved."""
    starts: NDArray[np.int64] = ends.base[: n + 1]  # type: ignore[index]
    starts[0] = 0
    return _trim(starts, n + 1)


def _allocate(
    rows: kernels.PredicateRows, n_likes: int
) -> tuple[kernels.Conditions, kernels.Scratch, NDArray[np.int64]]:
    n_conjunctions, n_rows = len(rows.row_start) - 1, len(rows.op)
    most = np.maximum(rows.n_literals, 1) + _MORE_PIECES[rows.op]
    n_pieces = int(most.sum())
    longest = int(np.diff(rows.row_start).max(initial=0))
    capacity = longest * int(most.max(initial=0)) + 4
    if capacity > _LARGE_CAPACITY:  # very unequal rows: look more closely
        before = np.zeros(n_rows + 1, np.int64)
        np.cumsum(most, out=before[1:])
        capacity = int(np.diff(before[rows.row_start]).max(initial=0)) + 4
    out = kernels.Conditions(
        condition_end=np.empty(n_conjunctions + 1, np.int64)[1:],
        attribute=np.empty(n_rows, np.int32),
        flags=np.empty(n_rows, np.uint8),
        piece_end=np.empty(n_rows + 1, np.int64)[1:],
        domain=np.empty(n_pieces, np.uint8),
        low_key=np.empty(n_pieces, np.int64),
        low_offset=np.empty(n_pieces, np.int16),
        high_key=np.empty(n_pieces, np.int64),
        high_offset=np.empty(n_pieces, np.int16),
        pattern_condition=np.empty(n_likes, np.int64),
        pattern_id=np.empty(n_likes, np.int32),
        pattern_negated=np.empty(n_likes, np.uint8),
    )
    lists = [np.empty((capacity, 5), np.int64) for _ in range(4)]
    scratch = kernels.Scratch(*lists)
    return out, scratch, np.empty(longest + 1, np.int64)


def _add_forms(
    table: ConjunctionTable, rows: NDArray[np.int64], forms: list[NormalForm]
) -> ConjunctionTable:
    more = from_forms(forms)
    more = replace(more, subscription=rows[more.subscription])
    return stack([table, more], [0, 0], table.n_subscriptions)


def _in_order(table: ConjunctionTable) -> ConjunctionTable:
    """Order the conjunctions by subscription."""
    if np.all(table.subscription[1:] >= table.subscription[:-1]):
        return table
    return take(table, np.argsort(table.subscription, kind="stable"))


def _drop_covered(table: ConjunctionTable) -> ConjunctionTable:
    """Drop conjunctions that a sibling covers (siblings stand together here)."""
    if not np.any(table.subscription[1:] == table.subscription[:-1]):
        return table
    pattern = np.full(table.n_conditions, -1, np.int64)
    pattern[table.pattern_condition] = 2 * table.pattern_id + table.pattern_negated
    cuts = np.stack([table.low_key, table.low_offset, table.high_key, table.high_offset], axis=1)
    keep = np.ones(table.n_conjunctions, np.bool_)
    kernels.mark_uncovered(
        table.subscription,
        table.condition_start,
        table.attribute,
        table.flags,
        table.piece_start,
        table.domain,
        np.ascontiguousarray(cuts),
        pattern,
        MAX_PAIRWISE,
        keep,
    )
    return table if keep.all() else take(table, np.flatnonzero(keep))
