"""The catalog: which subscriptions are registered, with their conditions and expiries.

Enters: ids, one at a time or by the column, with their sources and expiries. Leaves: dense ids,
numbered in order of arrival, and from them ids and bound expressions. A dense id is never used
twice; before they run out, or when few of them are live, `renumbered` makes a catalog in which they
start again.

Columns stay columns (`catalog.blocks`). Single subscriptions are appended to a list, with a
dictionary; a full list becomes a block, and its ids go into the id index. A removed subscription is
marked in its block; id index and expiry queue are cleaned up later, in bulk. A catalog is for one
thread at a time; other threads may read what `names` and `listing` return.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.bundle import Parts
from tocsin.catalog.blocks import NEVER, SINGLES, Block, Names, singles_block
from tocsin.catalog.expiry import ExpiryQueue
from tocsin.catalog.id_index import IdIndex, IdTable, octets_of
from tocsin.catalog.ids import FEW, Ids
from tocsin.catalog.listing import Listing
from tocsin.catalog.live_blocks import LiveBlocks
from tocsin.catalog.records import Subscription, text_and_params
from tocsin.catalog.renumbering import Renumbering
from tocsin.catalog.serialization import read_parts, write_parts
from tocsin.catalog.sources import OneSource, Source, Template
from tocsin.errors import CapacityError
from tocsin.language.dialects import read
from tocsin.language.expression import Expression
from tocsin.model import INT64_MIN, SubscriptionId, from_microseconds, to_microseconds
from tocsin.normalize.bind import bind

_SPARE = 1024
_FIRST = to_microseconds(dt.datetime.min)
_LAST = to_microseconds(dt.datetime.max)

MOST_IDS = 2**31 - 1
"""Dense ids are below this number: engines have 31 bits for them."""
_WASTE = 8, 1 << 16
"""A catalog that gave more than 8 dense ids for each live one, and 65,536, is renumbered."""


class SubscriptionCatalog:
    """The registered subscriptions."""

    def __init__(self, first: int = 0) -> None:
        """Make an empty catalog whose dense ids start at `first`."""
        self._blocks = LiveBlocks()
        self._id_index = IdIndex()
        self._ends = ExpiryQueue()
        self._n_in_blocks = 0
        self._n_ending = 0
        self._n_gone = 0
        self._verify: Callable[[], object] | None = None
        self._origin = first
        self._sure_until = first
        self._n_others = 0
        """The number of initial dense ids that are not live, but still in use in an engine."""
        self._start_growing(first)

    def _start_growing(self, first: int) -> None:
        self._first = first
        self._names: list[SubscriptionId] = []
        self._sources: list[OneSource | None] = []
        self._recent: dict[SubscriptionId, int] = {}
        self._until: dict[int, int] = {}

    def __len__(self) -> int:
        return self._n_in_blocks + len(self._recent)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str | int) and self.dense(name) is not None

    @property
    def names(self) -> Names:
        """A snapshot of the ids by dense id.

        Removed dense ids may be missing: take it together with the snapshot of the engine that it
        is for.
        """
        return self._blocks.names(self._names, self._first)

    def dense(self, name: SubscriptionId) -> int | None:
        """Return the dense id of a subscription, or None."""
        dense = self._recent.get(name)
        if dense is not None:
            return dense
        octets = octets_of(name)
        for dense in self._id_index.candidates(name, octets):
            if self._blocks.is_named(dense, name, octets):
                return dense
        return None

    @property
    def next_dense(self) -> int:
        """The dense id that the next subscription gets."""
        return self._first + len(self._names)

    def has_room(self, n: int) -> bool:
        """Whether n more dense ids are free, and not too many belong to removed subscriptions.

        Otherwise the catalog is to be renumbered. The exact count is taken once in some thousand
        ids.
        """
        stop = self._first + len(self._names) + n
        if stop <= self._sure_until:
            return True
        each, spare = _WASTE
        most = each * len(self) + spare + 2 * self._n_others
        if stop > MOST_IDS or stop - n - self._origin > most:
            return False
        self._sure_until = min(stop + spare // 16, MOST_IDS)
        return True

    def is_sparse(self) -> bool:
        """Whether most dense ids are of removed subscriptions, and there are more than a few."""
        return self.next_dense - self._origin > 2 * len(self) + _SPARE

    def is_full(self, n: int) -> bool:
        """Whether fewer than n dense ids are free."""
        return self.next_dense + n > MOST_IDS

    def check_room(self, n: int) -> None:
        """Raise CapacityError if fewer than n dense ids are free."""
        if self.is_full(n):
            raise CapacityError(
                f"a matcher, a store or a subject space has at most {MOST_IDS:,} subscriptions: "
                "divide them among several"
            )

    def find(self, table: IdTable) -> NDArray[np.int64]:
        """Return the dense id of each id of a column, -1 where there is none or it is repeated."""
        dense = np.full(len(table.ids), -1)
        if len(dense) <= FEW:
            return self._find_few(table, dense)
        self._flush()
        places, candidates = self._id_index.pairs(table)
        named = self._blocks.are_named(candidates, table.ids, places)
        dense[places[named]] = candidates[named]
        return dense

    def _find_few(self, table: IdTable, dense: NDArray[np.int64]) -> NDArray[np.int64]:
        for at, name in enumerate(table.ids.to_list()):
            if table.missing is None or not table.missing[at]:
                one = self.dense(name)
                dense[at] = -1 if one is None else one
        dense[table.repeated] = -1
        return dense

    def add(self, name: SubscriptionId, source: OneSource, until: int | None = None) -> int:
        """Register a subscription under a new id; return its dense id."""
        dense = self._first + len(self._names)
        if type(name) is not str and type(name) is not int:
            name = str.__str__(name) if isinstance(name, str) else int(name)
        self._names.append(name)
        self._sources.append(source)
        self._recent[name] = dense
        if until is not None and until < NEVER:
            self._until[dense] = max(until, INT64_MIN)
            self._ends.add(self._until[dense], dense)
            self._n_ending += 1
        if len(self._names) >= SINGLES:
            self._flush()
        return dense

    def add_many(
        self,
        table: IdTable,
        source: Source,
        rows: NDArray[np.int64] | None = None,
        until: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Register the subscriptions of a column under new ids; return their dense ids.

        `rows` are the places that are registered (all when None), in the column and in the source;
        `until` are their expiries, NEVER where there is none.
        """
        n = len(table.ids) if rows is None else len(rows)
        if n <= FEW:
            return self._add_few(table.ids, source, rows, until)
        self._flush()
        dense = np.arange(self._first, self._first + n)
        ids, numbers = table.ids, dense
        if rows is not None:
            ids, numbers = ids.take(rows), np.full(len(ids), -1)
            numbers[rows] = dense
        block = Block(self._first, self._first + n, ids, source, rows, until)
        self._id_index.add_table(table, numbers, n)
        self._blocks.append(block)
        if until is not None:
            ending = np.flatnonzero(until != NEVER)
            self._ends.add_many(until[ending], dense[ending])
            self._n_ending += len(ending)
        self._n_in_blocks += n
        self._start_growing(self._first + n)
        return dense

    def _add_few(
        self,
        ids: Ids,
        source: Source,
        rows: NDArray[np.int64] | None,
        until: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        places = np.arange(len(ids)) if rows is None else rows
        ends = [NEVER] * len(places) if until is None else until.tolist()
        dense = [
            self.add(ids[at], source.one(at), None if end == NEVER else end)
            for at, end in zip(places.tolist(), ends, strict=True)
        ]
        return np.array(dense, np.int64)

    def _flush(self) -> None:
        """Make a block of the growing list of single subscriptions."""
        first, stop = self._first, self._first + len(self._names)
        if first == stop:
            return
        live = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        if len(live):
            sources = [self._sources[dense - first] for dense in live.tolist()]
            block = singles_block(
                live,
                list(self._recent),
                sources,
                [self._until.get(dense, NEVER) for dense in live.tolist()],
            )
            self._id_index.add(block.ids, live)
            self._blocks.append(block)
            self._n_in_blocks += len(live)
        self._start_growing(stop)

    def remove(self, dense: NDArray[np.int64]) -> None:
        """Remove subscriptions by their dense ids, which must be live and distinct."""
        self.verify()
        if len(dense) == 1:
            one = int(dense[0])
            if one >= self._first:
                self._remove_recent(one)
            else:
                self._n_ending -= self._blocks.remove_one(one)
                self._n_in_blocks -= 1
        else:
            for one in dense[dense >= self._first].tolist():
                self._remove_recent(one)
            in_blocks = dense[dense < self._first]
            self._n_ending -= self._blocks.remove(in_blocks)
            self._n_in_blocks -= len(in_blocks)
        self._n_gone += len(dense)
        if self._n_gone >= _SPARE:
            self._tidy()

    def _remove_recent(self, dense: int) -> None:
        at = dense - self._first
        del self._recent[self._names[at]]
        self._sources[at] = None
        if self._until.pop(dense, None) is not None:
            self._n_ending -= 1

    def _tidy(self) -> None:
        """Drop index entries and expiries of removed subscriptions, where they are many."""
        self._n_gone = 0
        if self._id_index.n_entries > 2 * self._n_in_blocks + _SPARE:
            self._id_index.rebuild(self._blocks.are_live)
        if len(self._ends) > 2 * self._n_ending + _SPARE:
            self._ends.keep(self.are_live)

    def are_live(self, dense: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which dense ids belong to subscriptions that there are now."""
        live = self._blocks.are_live(dense)
        recent = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        return live | np.isin(dense, recent)

    def valid_until(self, dense: int) -> int | None:
        """Return until when a subscription is valid, in microseconds, or None."""
        if dense >= self._first:
            return self._until.get(dense)
        return self._blocks.valid_until(dense)

    @property
    def has_expiries(self) -> bool:
        """Whether any subscription may expire."""
        return self._n_ending > 0

    def due(self, now: int) -> NDArray[np.int64]:
        """Return live dense ids whose expiry has passed, each once; the caller removes them."""
        dense = self._ends.due(now)
        return dense[self.are_live(dense)] if len(dense) else dense

    def source(self, dense: int) -> OneSource:
        """Return a subscription's condition as it came, with its parameters; nothing is parsed."""
        self.verify()
        if dense >= self._first:
            source = self._sources[dense - self._first]
            assert source is not None
            return source
        return self._blocks.source(dense)

    def template(self, dense: int) -> Template:
        """Return a subscription's condition and its parameters."""
        return self.source(dense).template()

    def expression(self, dense: int) -> Expression:
        """Return a subscription's condition with its parameters bound."""
        return bind(*self.template(dense))

    def live(self) -> NDArray[np.int64]:
        """Return the dense ids of all subscriptions, in order."""
        parts = [
            live_block.block.dense_ids()[live_block.live_places()] for live_block in self._blocks
        ]
        recent = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        return np.concatenate([*parts, np.sort(recent)])

    def ends_of(self, dense: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return expiries of subscriptions, NEVER for none; None if no subscription has one."""
        if not self.has_expiries:
            return None
        ends = [self.valid_until(each) for each in dense.tolist()]
        return np.array([NEVER if end is None else end for end in ends], np.int64)

    # Reading back.

    def record(self, dense: int) -> Subscription:
        """Return a subscription as users read it back."""
        written, params = text_and_params(self.source(dense))
        text, dialect = read(written)
        end = self.valid_until(dense)
        moment = end if end is None or not _FIRST <= end <= _LAST else from_microseconds(end)
        return Subscription(self.names[dense], text, params, moment, dialect)

    def listing(self) -> Listing:
        """Return all subscriptions as they are now; later changes do not affect the result."""
        self.verify()
        self._flush()
        return Listing([(live.block, live.live_places()) for live in self._blocks])

    # Renumbering.

    def renumbered(self, dense: NDArray[np.int64]) -> SubscriptionCatalog:
        """Return a catalog of the same subscriptions, in which `dense[i]` has the dense id i.

        `dense` has, in order, all live dense ids, and perhaps others. This catalog is not changed.
        """
        self.verify()
        self._flush()
        new_of = Renumbering(dense)
        catalog = SubscriptionCatalog()
        catalog._blocks = self._blocks.renumbered(new_of)
        catalog._id_index = self._id_index.renumbered(self._blocks.are_live, new_of)
        catalog._ends = ExpiryQueue(self._ends.renumbered(self.are_live, new_of))
        catalog._n_in_blocks, catalog._n_ending = self._n_in_blocks, len(catalog._ends)
        catalog._start_growing(len(dense))
        catalog._n_others = len(dense) - len(self)
        return catalog

    # Writing and opening.

    def parts(self) -> Parts:
        """Return the catalog as arrays, columns and a description, to be written."""
        self.verify()
        self._flush()
        if self._id_index.n_entries > 1.25 * self._n_in_blocks:
            self._id_index.rebuild(self._blocks.are_live)
        ends = self._ends.joined(self.are_live)
        slots, n_entries = self._id_index.joined(), self._id_index.n_entries
        return write_parts(self._blocks, (slots, n_entries), ends, self._first)

    @staticmethod
    def from_parts(
        parts: Sequence[Parts], verify: Callable[[], object] | None = None
    ) -> SubscriptionCatalog:
        """Return the catalog of some parts, whose arrays and columns are used without a copy.

        Several parts are of catalogs that were numbered one after the other. `verify` raises an
        error where the conditions are damaged. It is called once, before conditions are first used:
        ids and expiries do not need them.
        """
        catalog = SubscriptionCatalog()
        catalog._verify = verify
        read = [read_parts(one) for one in parts]
        catalog._blocks = LiveBlocks([live_block for blocks, *_ in read for live_block in blocks])
        catalog._id_index = IdIndex.opened([id_slots for _, id_slots, *_ in read])
        ends = [of for _, _, of, _ in read if len(of[0])]
        catalog._ends = ExpiryQueue(ends[0] if len(ends) == 1 else None)
        for moments, dense in ends if len(ends) > 1 else []:
            catalog._ends.add_many(moments, dense)
        catalog._n_ending = len(catalog._ends)
        catalog._n_in_blocks = sum(live_block.n_live for live_block in catalog._blocks)
        catalog._start_growing(max(first for *_, first in read))
        starts = [live_block.block.first for live_block in catalog._blocks]
        catalog._origin = min([*starts, catalog._first])
        return catalog

    @property
    def kinds_of_ids(self) -> str | None:
        """The kinds of the ids: `integers`, `strings` or `mixed`; None where there are none."""
        kinds = {kind for live_block in self._blocks for kind in live_block.block.ids.kinds}
        kinds |= {"strings" if isinstance(name, str) else "integers" for name in self._recent}
        return None if not kinds else "mixed" if len(kinds) > 1 else kinds.pop()

    def verify(self) -> None:
        """Verify the conditions, once; a change that fails here has no effect."""
        if self._verify is not None:
            self._verify()
            self._verify = None
