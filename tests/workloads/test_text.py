from __future__ import annotations

import numpy as np

from tocsin.workloads.text import StringTable, glue


def test_a_text_is_the_concatenation_of_its_pieces():
    names, values = StringTable.of(["a", "", "long name"]), StringTable.of(["1", "22"])
    texts = glue(3, [(names, np.array([0, 1, 2])), " = ", (values, np.array([1, 0, 1]))])
    texts.validate(full=True)
    assert texts.to_pylist() == ["a = 22", " = 1", "long name = 22"]


def test_no_rows_give_no_texts():
    assert glue(0, [(StringTable.of(["a"]), np.array([], np.int64)), "b"]).to_pylist() == []
