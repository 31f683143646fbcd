"""Subscriptions as users write them → boxes, and the book of who asked for what.

Enters: conditions, `Subscription`s of several regions, tables of either. Leaves: boxes and filters
for `state`, dense ids. The book is that of the matcher; a subscription of several regions, or in
another space than the first, is kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tocsin.catalog.sources import OneSource
from tocsin.catalog.subscriptions import SubscriptionBook
from tocsin.errors import (
    ArgumentError,
    DuplicateSubscriptionError,
    ParameterError,
    UnknownSubscriptionError,
)
from tocsin.language.expression import Constant, Expression, parameter_names
from tocsin.loading import to_expression, to_params
from tocsin.model import SubscriptionId, check_id
from tocsin.normalize import bind, normalize
from tocsin.normalize.table import from_forms
from tocsin.subjects.axes import Axes
from tocsin.subjects.filters import ONE, FilterTerms, to_terms
from tocsin.subjects.interests import Interests, NewBoxes, boxes_of, stack
from tocsin.subjects.model import InterestRegion, Notify, Subscription, check_regions

Where = str | Expression | Subscription

_WANTS = {Notify.BOTH: 3, Notify.ENTER: 1, Notify.LEAVE: 2}
_ELSEWHERE = OneSource(Constant(False), {})
"""Stands in the book for what is kept beside it."""


class Prepared(NamedTuple):
    """A subscription whose boxes lack only its dense id."""

    source: OneSource
    defined: Subscription | None
    boxes: NewBoxes
    filter: FilterTerms


def to_wants(notify: object) -> int:
    """Return which transitions are wanted, as bits."""
    try:
        return _WANTS[Notify(notify)]
    except ValueError:
        known = ", ".join(repr(each.value) for each in Notify)
        raise ArgumentError(f"notify is one of {known}, not {notify!r}") from None


def from_wants(wants: int) -> str:
    """Undo `to_wants`."""
    return next(notify.value for notify, bits in _WANTS.items() if bits == wants)


class Subscribing:
    """The book of subscriptions and their definitions."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.book = SubscriptionBook()
        self.defined: dict[int, Subscription] = {}

    def prepare(self, where: object, params: Mapping[str, Any] | None) -> Prepared:
        """Turn what a user asks for into boxes; refuse what cannot be."""
        if isinstance(where, Subscription):
            if params is not None:
                raise ArgumentError("the parameters of a Subscription stand in its regions")
            return self._prepare_defined(where)
        values = to_params(params)
        expression = to_expression(where)
        boxes = self._boxes(expression, values, 0, 0)
        return Prepared(OneSource(where, values), None, boxes, ONE)  # type: ignore[arg-type]

    def _prepare_defined(self, given: Subscription) -> Prepared:
        check_regions(given.regions, InterestRegion)
        terms = to_terms(given.filter, list(given.regions))
        parts = [
            self._boxes(
                to_expression(region.where),
                to_params(region.params),
                self.axes.space(region.space),
                number,
            )
            for number, region in enumerate(given.regions.values())
        ]
        if len(parts) > 1:  # a later part may have spread the labels of an earlier one
            parts = [
                self._boxes(
                    to_expression(region.where),
                    to_params(region.params),
                    self.axes.space(region.space),
                    number,
                )
                for number, region in enumerate(given.regions.values())
            ]
        held = {
            name: replace(region, params=to_params(region.params))
            for name, region in given.regions.items()
        }
        whole = Subscription(held, given.filter)
        terms = ONE if len(parts) == 1 else terms
        return Prepared(_ELSEWHERE, whole, stack(parts), terms)

    def _boxes(
        self, expression: Expression, params: Mapping[str, object], space: int, region: int
    ) -> NewBoxes:
        form = normalize(bind(expression, params), self.axes.spaces[space])
        return boxes_of(from_forms([form]), self.axes, space, region)

    def make_room(self, interests: Interests, n: int = 1) -> None:
        """See to it that there are n dense ids to give, and that few were given in vain.

        Changes the dense ids of all subscriptions where that is needed.
        """
        if self.book.has_room(n):
            return
        live = self.book.live()
        book = self.book.renumbered(live)
        interests.renumber(live)
        self.book = book
        places = np.searchsorted(live, np.fromiter(self.defined, np.int64, len(self.defined)))
        self.defined = dict(zip(places.tolist(), self.defined.values(), strict=True))
        self.book.check_room(n)

    def check_new(self, id: object) -> SubscriptionId:
        """Return an id that is free, or raise an error."""
        name = check_id(id)
        if name in self.book:
            raise DuplicateSubscriptionError(name)
        return name

    def dense(self, id: object) -> int:
        """Return the dense id of a subscription, or raise an error."""
        name = check_id(id)
        dense = self.book.dense(name)
        if dense is None:
            raise UnknownSubscriptionError(name)
        return dense

    def add(
        self, name: SubscriptionId, prepared: Prepared, until: int | None
    ) -> tuple[int, NewBoxes]:
        """Register a subscription; return its dense id and its boxes."""
        dense = self.book.add(name, prepared.source, until)
        if prepared.defined is not None:
            self.defined[dense] = prepared.defined
        boxes = prepared.boxes
        return dense, boxes._replace(sub=np.full(len(boxes.counts), dense))

    def changed(self, dense: int, where: object, params: Mapping[str, Any] | None) -> Prepared:
        """Return a subscription with another condition, or with some other parameters."""
        old = self.defined.get(dense)
        if isinstance(where, Subscription):
            return self.prepare(where, params)
        if where is None and old is not None:
            return self._prepare_defined(_with_params(old, to_params(params)))
        values = to_params(params)
        if old is not None:
            return self.prepare(where, values)
        expression, old_values = self.book.template(dense)
        source: Any = expression
        if where is not None:
            expression, source = to_expression(where), where
        names = parameter_names(expression)
        if where is None and not names:
            raise ParameterError("the subscription has no parameters", unknown=list(values))
        merged = {k: v for k, v in old_values.items() if k in names} | values
        return self.prepare(source, merged)

    def remove(self, dense: NDArray[np.int64]) -> None:
        """Forget subscriptions."""
        if len(dense):
            self.book.remove(dense)
            for number in dense.tolist() if self.defined else ():
                self.defined.pop(number, None)


def _with_params(given: Subscription, values: dict[str, object]) -> Subscription:
    """Return a subscription with parameters changed wherever a region has them."""
    found = {
        name: set(parameter_names(to_expression(region.where)))
        for name, region in given.regions.items()
    }
    unknown = sorted(set(values).difference(*found.values()))
    if unknown:
        raise ParameterError(
            f"no region has a parameter {', '.join(':' + name for name in unknown)}",
            unknown=unknown,
        )
    regions = {
        name: replace(
            region,
            params={**region.params, **{k: v for k, v in values.items() if k in found[name]}},
        )
        for name, region in given.regions.items()
    }
    return Subscription(regions, given.filter)
