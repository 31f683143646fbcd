"""Engines of the matching tree, made from texts and matched with mappings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tocsin.encode.events import to_batch
from tocsin.language import parse
from tocsin.normalize import normalize
from tocsin.normalize.layout import from_forms
from tocsin_lab.engines.tree import TreeEngine
from tocsin_lab.engines.tree.options import read_options

PLAIN = {"order": "given", "index_attributes": 0, "implied": False, "collapse": False}
"""The options of a tree without any optimisation."""


class Grove:
    """An engine, the texts of its subscriptions, and what it should answer."""

    def __init__(self, *texts: str, **options: object) -> None:
        self.engine = TreeEngine(read_options(options))
        self.forms: dict[int, Any] = {}
        for text in texts:
            self.insert(text)

    def insert(self, *texts: str) -> list[int]:
        forms = [normalize(parse(text)) for text in texts]
        first = max(self.forms, default=-1) + 1
        ids = np.arange(first, first + len(texts))
        self.forms.update(zip(ids.tolist(), forms, strict=True))
        table = from_forms(forms)
        self.engine.insert(ids, replace(table, subscription=table.subscription + first))
        return ids.tolist()

    def delete(self, *ids: int) -> None:
        for dense in ids:
            del self.forms[dense]
        self.engine.delete(np.array(ids, np.int64))

    def check(self, events: Sequence[dict[str, Any]]) -> int:
        """Compare batch and single answers with the normal forms; return the visits of all."""
        self.engine.check()
        matches = self.engine.match_batch(to_batch(events))
        n_visits = self.engine.n_visits
        for i, event in enumerate(events):
            expected = sorted(d for d, form in self.forms.items() if form.holds(event))
            assert sorted(matches.of(i).tolist()) == expected, event
            assert sorted(self.engine.match_one(event)) == expected, event
        return n_visits


def warm_up() -> None:
    """Compile what most tests of the tree need."""
    grove = Grove(index_attributes=0)
    grove.insert("a = 1 AND b < 2", "b < 1 OR a > 3")
    grove.check([{"a": 1, "b": 0}])
    grove.delete(0)
