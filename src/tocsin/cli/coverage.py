"""What conditions ask for, and whether any row has it.

Enters: a matcher, and the events that it matches, batch by batch. Leaves: the attributes that no
row had, or had with values of another kind than conditions compare them with, for the end of a run.
It is said once, about all rows: an attribute may be missing in the first million.
"""

from __future__ import annotations

import numpy as np

from tocsin.drift import SchemaIssue, Seen, find_issues
from tocsin.encode.events import EventBatch
from tocsin.language.computed import attributes_of
from tocsin.language.names import is_path
from tocsin.matcher import Matcher
from tocsin.model import similar_name
from tocsin.normalize.demands import ANY, LIST, MOMENT, demands_of, list_of
from tocsin.normalize.domains import DOMAIN_OF_KIND, Domain
from tocsin.schema_watch import NAMES_OF_DOMAINS, paths_of

_MAX_PARSED = 10_000
"""Up to this number, conditions are parsed again for an engine that cannot list them."""
_SAMPLED = 200


class Coverage:
    """Compares what the conditions of a matcher ask for with what events have."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.is_known = matcher.engine == "auto" or len(matcher) <= _MAX_PARSED
        self.attributes: dict[str, int] = {}
        """What conditions ask of the attributes of events, and of the elements of lists."""
        self.reads: set[str] = set()
        """The attributes of events that conditions depend on, also where they may be absent."""
        if self.is_known:
            for group in matcher.conditions():
                for name, domains in zip(group.space.attributes, group.space.domains, strict=True):
                    self._ask(name, sum(1 << domain for domain in domains))
        self._pending = set(self.attributes)
        self._seen_mask: dict[str, int] = {}
        self._names: dict[str, None] = {}
        declared = matcher.event_type.attributes if matcher.event_type else {}
        self.moments = tuple(
            name
            for name, mask in self.attributes.items()
            if mask & MOMENT and is_path(name) and name not in declared
        )

    def _ask(self, name: str, mask: int) -> None:
        self.reads.update(attributes_of(name))
        for attribute, need in demands_of(name, mask):
            self.attributes[attribute] = self.attributes.get(attribute, 0) | need

    def add(self, batch: EventBatch) -> None:
        """Take note of what some events have."""
        if len(batch):
            self._add_names(batch)
            for name in list(self._pending):
                self._add(name, batch)

    def _add_names(self, batch: EventBatch) -> None:
        if batch.schema is not None:
            self._names.update(dict.fromkeys(batch.schema.names))
        elif len(self._names) < _SAMPLED:
            for event in batch.mappings[:_SAMPLED]:
                self._names.update(dict.fromkeys(paths_of(event)))

    def _add(self, name: str, batch: EventBatch) -> None:
        of = list_of(name)
        mask = self._mask_of_column(name, batch) if of is None else _mask_of_elements(of, batch)
        if mask:
            mask |= self._seen_mask.get(name, 0)
            self._seen_mask[name] = mask
            if not self.attributes[name] & ~mask:
                self._pending.discard(name)

    def _mask_of_column(self, name: str, batch: EventBatch) -> int:
        """Return what an attribute has in some events, as a mask of domains."""
        plain = batch.plain(name)
        if plain is not None:
            return (ANY | 1 << Domain.NUMBER) if plain.n_here else 0
        column = batch.column(name)
        mask = sum(
            1 << part.domain for part in column.parts if part.here is None or np.any(part.here)
        )
        if column.other is not None:
            mask |= ANY
            if self.attributes[name] & LIST and batch.list(name) is not None:
                mask |= LIST
        return mask | ANY * bool(mask)

    def issues(self) -> list[SchemaIssue]:
        """Return the attributes whose conditions no row could meet, by name."""
        if not self._names or not self._pending:
            return []
        seen = {name: self._seen(name) for name in sorted(self._pending)}
        return find_issues(self._matcher.conditions(), seen.get, self._matcher.catalog)

    def _seen(self, name: str) -> Seen | None:
        mask = self._seen_mask.get(name, 0)
        if not mask:
            if not is_path(name):
                return None  # no row has the list
            near = similar_name(name, [each for each in self._names if each])
            hint = f"; did you mean {near!r}?" if near else ""
            return Seen(f"no row has it{hint}")
        domains = frozenset(domain for domain in Domain if mask >> domain & 1)
        whose = "values" if is_path(name) else "elements"
        what = "lists" if mask & LIST else _words(mask) or "of no kind that compares"
        others = _words(self.attributes[name] & ~mask)
        reason = f"its {whose} are {what}" + (
            f", and conditions compare it with {others}" if others else ""
        )
        if self.attributes[name] & ~mask & LIST:
            reason += ", and conditions ask for elements of a list"
        return Seen(reason, domains, is_present=True, is_list=bool(mask & LIST))


def _mask_of_elements(of: str, batch: EventBatch) -> int:
    """Return what the elements of a list have in some events, as a mask of domains."""
    elements = batch.list(of)
    kind = None if elements is None else batch.values_of(elements).kind
    if kind is None:
        return 0
    return 1 << DOMAIN_OF_KIND[kind]


def _words(mask: int) -> str:
    return " or ".join(NAMES_OF_DOMAINS[domain] for domain in Domain if mask >> domain & 1)
