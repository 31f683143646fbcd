"""Cells → codes, digits and bands, compiled: the helpers that kernels of all parts share.

See `arrays.Coding` for what they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    N_BANDS,
    Coding,
    Scalar,
)
from tocsin.jit import inlined


@inlined
def code_of(cell: Scalar, n_cells: Scalar, is_exact: Scalar) -> Scalar:
    """Return the code of a cell: the cell itself, or its share of 16 bits where there are more."""
    if is_exact or cell < 2:
        return cell
    return 2 + (cell - 2) * 65533 // (n_cells - 2)


@inlined
def band_of(cell: Scalar, n_cells: Scalar) -> Scalar:
    """Return the band of a cell: the cell itself, or its share of the bands."""
    if n_cells <= N_BANDS or cell < 2:
        return cell
    return 2 + (cell - 2) * (N_BANDS - 2) // (n_cells - 2)


@inlined
def digit_of(coding: Coding, attribute: Scalar, code: Scalar) -> Scalar:
    """Return the key digit of a code, or -1 where it has none."""
    return np.int64(coding.digit[coding.first[attribute] + code])


@inlined
def code_range(coding: Coding, attribute: Scalar, low: Scalar, high: Scalar) -> Any:
    """Return the first and the last code of a range of cells."""
    n_cells, is_exact = coding.n_cells[attribute], coding.is_exact[attribute]
    return (
        code_of(np.int64(low), n_cells, is_exact),
        code_of(np.int64(high) - 1, n_cells, is_exact),
    )
