"""Random lives in which matchers are saved and opened now and then: nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.property.strategies import MIXED, TYPED, World
from tests.stress.test_life_cycle import Life

import tocsin


class SavedLife(Life):
    """A life with one step more."""

    def __init__(self, seed: int, world: World, folder: Path) -> None:
        super().__init__(seed, world, [("auto", {}), ("oracle", {}), ("tree", {})])
        self.folder = folder

    def steps(self) -> list[Callable[[], None]]:
        return [*super().steps(), self.reopen]

    def reopen(self) -> None:
        for at, matcher in enumerate(self.matchers):
            path = self.folder / matcher.engine
            matcher.save(path)
            self.matchers[at] = tocsin.Matcher.open(path, clock=lambda: self.model.now / 1_000_000)


@pytest.mark.parametrize("world", [TYPED, MIXED], ids=["typed", "mixed"])
def test_lives_with_stores_are_what_a_dictionary_says(world: World, tmp_path: Path) -> None:
    SavedLife(3, world, tmp_path).run(40)


@pytest.mark.slow
@pytest.mark.parametrize("world", [TYPED, MIXED], ids=["typed", "mixed"])
def test_long_lives_with_stores_are_what_a_dictionary_says(world: World, tmp_path: Path) -> None:
    for seed in (200, 201):
        SavedLife(seed, world, tmp_path / str(seed)).run(400)
