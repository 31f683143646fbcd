"""Subscriptions of a subject space: their catalog, their regions, and their boxes.

Enters: conditions, `Interest`s of several regions, bulk loads. Leaves: changes, the pairs that
begin or cease to match. The catalog is the matcher's; a subscription with several regions, or in
another space than the first, is stored separately by its dense id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.arguments import UNCHANGED, Unchanged, to_expression, to_params
from tocsin.catalog.id_index import IdTable
from tocsin.catalog.records import Subscription
from tocsin.catalog.sources import OneSource
from tocsin.catalog.subscriptions import SubscriptionCatalog
from tocsin.errors import (
    ArgumentError,
    DuplicateSubscriptionError,
    ParameterError,
)
from tocsin.language.computed import parameter_names
from tocsin.language.expression import Constant, Expression
from tocsin.loading import Load, unknown_id
from tocsin.model import SubscriptionId, check_id
from tocsin.normalize import bind, normalize
from tocsin.normalize.layout import from_forms
from tocsin.subjects.box_index import NewBoxes, boxes_of, stack
from tocsin.subjects.dimensions import Dimensions
from tocsin.subjects.filters import ONE, FilterTerms, to_terms
from tocsin.subjects.model import Interest, InterestRegion, Notify, check_regions, to_json
from tocsin.subjects.state import Changes, State

Where = str | Expression | Interest

_MASK_OF = {Notify.BOTH: 3, Notify.ENTER: 1, Notify.LEAVE: 2}
_DEFINED_SEPARATELY = OneSource(Constant(False), {})
"""The catalog's source for a subscription with regions."""


class Prepared(NamedTuple):
    """A validated subscription; its boxes have no dense id yet."""

    source: OneSource
    regions: Interest | None
    boxes: NewBoxes
    filter: FilterTerms


def to_transition_mask(notify: object) -> int:
    """Return the transition mask of a `notify` argument: 1 for ENTER, 2 for LEAVE, 3 for both."""
    try:
        return _MASK_OF[Notify(notify)]
    except ValueError:
        known = ", ".join(repr(each.value) for each in Notify)
        raise ArgumentError(f"notify must be one of {known}, not {notify!r}") from None


def from_transition_mask(mask: int) -> str:
    """Return the `notify` argument of a transition mask."""
    return next(notify.value for notify, bits in _MASK_OF.items() if bits == mask)


class SubscriptionTable:
    """The subscriptions of a space: their catalog, and the definitions of those with regions."""

    def __init__(self, dimensions: Dimensions, state: State) -> None:
        self.dimensions = dimensions
        self.state = state
        self.catalog = SubscriptionCatalog()
        self.regions: dict[int, Interest] = {}

    def prepare(self, where: object, params: Mapping[str, Any] | None) -> Prepared:
        """Validate a condition and return its boxes."""
        if isinstance(where, Interest):
            if params is not None:
                raise ArgumentError("the parameters of an Interest belong to its regions")
            return self._prepare_regions(where)
        values = to_params(params)
        expression = to_expression(where)
        boxes = self._boxes(expression, values, 0, 0)
        return Prepared(OneSource(where, values), None, boxes, ONE)  # type: ignore[arg-type]

    def _prepare_regions(self, subscription: Interest) -> Prepared:
        check_regions(subscription.regions, InterestRegion)
        terms = to_terms(subscription.filter, list(subscription.regions))
        regions = {
            name: replace(region, params=to_params(region.params))
            for name, region in subscription.regions.items()
        }
        for _ in range(min(2, len(regions))):  # a region may change the labels of an earlier one
            parts = [
                self._boxes(
                    to_expression(region.where),
                    region.params,
                    self.dimensions.space(region.space),
                    number,
                )
                for number, region in enumerate(regions.values())
            ]
        whole = Interest(regions, subscription.filter)
        terms = ONE if len(parts) == 1 else terms
        return Prepared(_DEFINED_SEPARATELY, whole, stack(parts), terms)

    def _boxes(
        self, expression: Expression, params: Mapping[str, object], space: int, region: int
    ) -> NewBoxes:
        form = normalize(bind(expression, params), self.dimensions.spaces[space])
        return boxes_of(from_forms([form]), self.dimensions, space, region)

    def prepare_update(
        self, dense: int, where: object, params: Mapping[str, Any] | None
    ) -> Prepared:
        """Return a subscription with another condition, or with some parameters changed."""
        old = self.regions.get(dense)
        if isinstance(where, Interest):
            return self.prepare(where, params)
        if where is None and old is not None:
            return self._prepare_regions(_with_params(old, to_params(params)))
        values = to_params(params)
        if old is not None:
            return self.prepare(where, values)
        expression, old_values = self.catalog.template(dense)
        source: Any = self.catalog.source(dense).where
        if where is not None:
            expression, source = to_expression(where), where
        names = parameter_names(expression)
        if where is None and not names and params is not None:
            raise ParameterError("the subscription has no parameters", unknown=list(values))
        merged = {k: v for k, v in old_values.items() if k in names} | values
        return self.prepare(source, merged)

    def reserve(self, n: int = 1) -> None:
        """Ensure that n dense ids are free; renumber all subscriptions if most ids are unused."""
        if self.catalog.has_room(n):
            return
        live = self.catalog.live()
        catalog = self.catalog.renumbered(live)
        self.state.box_index.renumber(live)
        self.catalog = catalog
        numbers = np.searchsorted(live, np.fromiter(self.regions, np.int64, len(self.regions)))
        self.regions = dict(zip(numbers.tolist(), self.regions.values(), strict=True))
        self.catalog.check_room(n)

    def check_new(self, id: object) -> SubscriptionId:
        """Return an unused id; raise `DuplicateSubscriptionError` if it is in use."""
        name = check_id(id)
        if name in self.catalog:
            raise DuplicateSubscriptionError(name)
        return name

    def dense(self, id: object) -> int:
        """Return the dense id of a subscription; raise `UnknownSubscriptionError`."""
        name = check_id(id)
        dense = self.catalog.dense(name)
        if dense is None:
            raise unknown_id(self.catalog, name)
        return dense

    def add(
        self, name: SubscriptionId, prepared: Prepared, until: int | None, mask: int
    ) -> Changes:
        """Add a subscription; the items of the changes are rows."""
        dense, boxes = self._register(name, prepared, until)
        filters = None if prepared.regions is None else [prepared.filter]
        return self.state.subscribe(np.array([dense]), boxes, mask, filters)

    def add_many(self, loaded: Load, mask: int, quiet: bool) -> Changes:
        """Add the subscriptions of a bulk load; the items of the changes are rows."""
        dense, conjunctions = loaded.add_to(self.catalog)
        boxes = boxes_of(conjunctions, self.dimensions, 0)
        return self.state.subscribe(dense, boxes, mask, quiet=quiet)

    def replace(
        self,
        old: int,
        name: SubscriptionId,
        prepared: Prepared,
        mask: int,
        end: int | Unchanged | None = UNCHANGED,
    ) -> Changes:
        """Replace a subscription; it keeps its id. Items of the changes are rows."""
        until = self.catalog.valid_until(old) if isinstance(end, Unchanged) else end
        self._forget(np.array([old]))
        dense, boxes = self._register(name, prepared, until)
        return self.state.replace_subscription(old, dense, boxes, mask, prepared.filter)

    def _register(
        self, name: SubscriptionId, prepared: Prepared, until: int | None
    ) -> tuple[int, NewBoxes]:
        """Add a subscription to the catalog; return its dense id and its boxes."""
        dense = self.catalog.add(name, prepared.source, until)
        if prepared.regions is not None:
            self.regions[dense] = prepared.regions
        boxes = prepared.boxes
        return dense, boxes._replace(sub=np.full(len(boxes.counts), dense))

    def look_up(self, ids: IdTable) -> tuple[NDArray[np.int64], list[OneSource | None]]:
        """Return the dense ids and conditions of ids; -1 and None for an unknown id."""
        dense = self.catalog.find(ids)
        return dense, [self.catalog.source(each) if each >= 0 else None for each in dense.tolist()]

    def record(self, dense: int) -> Subscription:
        """Return a subscription as users read it back."""
        record, interest = self.catalog.record(dense), self.regions.get(dense)
        if interest is None:
            return record
        return replace(record, where=json.dumps(to_json(interest)), params={})

    def to_table(self) -> pa.Table:
        """Return all subscriptions as a table; those with regions as JSON."""
        table = self.catalog.listing().to_table()
        dense = self.catalog.live().tolist()
        texts = [
            json.dumps(to_json(self.regions[each])) if each in self.regions else text
            for each, text in zip(dense, table.column("where").to_pylist(), strict=True)
        ]
        at = table.schema.get_field_index("where")
        return table.set_column(at, "where", pa.array(texts, pa.large_string()))

    def mask(self, dense: int) -> int:
        """Return the transition mask of a subscription."""
        return int(self.state.box_index.masks[dense])

    def set_mask(self, dense: int, mask: int) -> None:
        """Set which transitions a subscription asks for."""
        self.state.box_index.masks[dense] = mask
        self.state.box_index.has_masks = True

    def remove(self, dense: NDArray[np.int64]) -> None:
        """Remove subscriptions; their matches end without transitions."""
        if len(dense):
            self._forget(dense)
            self.state.box_index.remove(dense)

    def _forget(self, dense: NDArray[np.int64]) -> None:
        self.catalog.remove(dense)
        for number in dense.tolist() if self.regions else ():
            self.regions.pop(number, None)

    def remove_due(self, now: int) -> None:
        """Remove the subscriptions that have expired."""
        if self.catalog.has_expiries:
            self.remove(self.catalog.due(now))


def _with_params(subscription: Interest, values: dict[str, object]) -> Interest:
    """Return a subscription with parameters changed in every region that has them."""
    names_of = {
        name: set(parameter_names(to_expression(region.where)))
        for name, region in subscription.regions.items()
    }
    unknown = sorted(set(values).difference(*names_of.values()))
    if unknown:
        raise ParameterError(
            f"no region has a parameter {', '.join(':' + name for name in unknown)}",
            unknown=unknown,
        )
    regions = {
        name: replace(
            region,
            params={**region.params, **{k: v for k, v in values.items() if k in names_of[name]}},
        )
        for name, region in subscription.regions.items()
    }
    return Interest(regions, subscription.filter)
