"""What conditions ask for, and whether any row has it.

Enters: a matcher, and the events that it matches, batch by batch. Leaves: the attributes that no
row had, or had with values of another kind than conditions compare them with, for the end of a run.
It is said once, about all rows: an attribute may be missing in the first million.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tocsin.drift import SchemaIssue, Seen, find_issues
from tocsin.encode.events import EventBatch
from tocsin.matcher import Matcher
from tocsin.model import similar_name
from tocsin.normalize.domains import Domain
from tocsin.schema_watch import paths_of

_MAX_PARSED = 10_000
"""Up to this number, conditions are parsed again for an engine that cannot list them."""
_SAMPLED = 200
_WORDS = {
    Domain.NUMBER: "numbers",
    Domain.STRING: "strings",
    Domain.BOOLEAN: "booleans",
    Domain.TIMESTAMP: "timestamps",
}


class Coverage:
    """Compares what the conditions of a matcher ask for with what events have."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.is_known = matcher.engine == "auto" or len(matcher) <= _MAX_PARSED
        self.attributes: dict[str, set[Domain]] = {}
        """What conditions compare each attribute with; nothing where they only ask for it."""
        if self.is_known:
            for group in matcher.conditions():
                for name, domains in zip(group.space.attributes, group.space.domains, strict=True):
                    self.attributes.setdefault(name, set()).update(domains)
        self._pending = set(self.attributes)
        self._domains: dict[str, set[Domain]] = {}
        self._present: set[str] = set()
        self._names: dict[str, None] = {}
        declared = matcher.event_type.attributes if matcher.event_type else {}
        self.moments = tuple(
            name
            for name, domains in self.attributes.items()
            if Domain.TIMESTAMP in domains and name not in declared
        )

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
        domains = self._domains.setdefault(name, set())
        plain = batch.plain(name)
        if plain is not None:
            if plain.n_here:
                domains.add(Domain.NUMBER)
        else:
            column = batch.column(name)
            if column.other is not None:
                self._present.add(name)
            domains.update(
                part.domain for part in column.parts if part.here is None or np.any(part.here)
            )
        if domains:
            self._present.add(name)
            if domains >= self.attributes[name]:
                self._pending.discard(name)

    def issues(self) -> list[SchemaIssue]:
        """Return the attributes whose conditions no row could meet, by name."""
        if not self._names or not self._pending:
            return []
        seen = {name: self._seen(name) for name in sorted(self._pending)}
        return find_issues(self._matcher.conditions(), seen.get, self._matcher.catalog)

    def _seen(self, name: str) -> Seen:
        if name not in self._present:
            near = similar_name(name, [each for each in self._names if each])
            hint = f"; did you mean {near!r}?" if near else ""
            return Seen(f"no row has it{hint}")
        domains = self._domains[name]
        reason = f"its values are {_words(domains) or 'of no kind that compares'}"
        if others := self.attributes[name] - domains:
            reason += f", and conditions compare it with {_words(others)}"
        return Seen(reason, frozenset(domains), is_present=True)


def _words(domains: Iterable[Domain]) -> str:
    return " or ".join(_WORDS[domain] for domain in sorted(domains))
