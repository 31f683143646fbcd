"""A run that calls the kernels of subject spaces as the package does; prints their signatures.

`python -m tests.subjects.representative` does so in a process of its own. Spaces small and large,
with lists from the first on and without, by one and by many, kept in a folder and opened again.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random

import pytest
from tests.engines.representative import signatures
from tests.subjects import test_space
from tests.subjects.test_relation import Both
from tests.transitions import test_differences

from tocsin.subjects import box_index, object_rows


def run() -> None:
    """Use all operations on values of every kind."""
    for seed in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(box_index, "MAX_UNINDEXED", seed * 3)
            patch.setattr(object_rows, "_MIN_ORDERED", seed)
            both, r = Both(), Random(seed)
            for _ in range(150):
                both.step(r)
            both.check_queries()
    test_space.test_a_batch_tells_what_its_rows_would_one_after_another()
    test_space.test_parameters_move_bounds_and_only_those_between_are_told()
    test_differences.test_batches_give_the_difference_of_their_matches()
    test_differences.test_changed_subscriptions_give_the_difference_too()
    with tempfile.TemporaryDirectory() as folder:
        test_space.test_a_closed_space_is_the_same_when_opened_again(Path(folder))


if __name__ == "__main__":
    run()
    print(json.dumps(signatures()))
