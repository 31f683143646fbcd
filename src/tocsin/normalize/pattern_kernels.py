"""Where a piece of a LIKE pattern with `_` first fits a text, compiled: shift-and.

Enters: a text as code points, and a piece as bit masks: bit i of a character's mask says that the
piece takes the character at its place i. Leaves: where the first fit ends. R. Baeza-Yates and
G. Gonnet, A new approach to text searching (CACM 35, 1992), section 5, with as many words as the
piece needs, so that a character costs one step for 64 places of the piece, whatever stands there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import kernel


@kernel
def find_piece(
    text: NDArray[np.uint32],
    start: int,
    class_of: NDArray[np.uint16],
    masks: NDArray[np.uint64],
    width: int,
    reached: NDArray[np.uint64],
) -> int:
    """Return where the first fit at or after a place ends, or -1.

    `class_of` numbers the characters of the piece from 1; 0 is for all others. Row c of `masks` are
    the places that take a character of class c. Bit i of `reached`, zero at the start, says that
    the last i + 1 characters fit the piece up to its place i.
    """
    n_words = np.uint64(masks.shape[1])
    n_classes = len(class_of)
    one = np.uint64(1)
    last, final = np.uint64((width - 1) >> 6), one << np.uint64((width - 1) & 63)
    for at in range(start, len(text)):
        code = text[at]
        row = masks[class_of[code] if code < n_classes else 0]
        word = n_words - one
        while word > np.uint64(0):  # downwards, so that a word's neighbour is still the old one
            carry = reached[word - one] >> np.uint64(63)
            reached[word] = ((reached[word] << one) | carry) & row[word]
            word -= one
        reached[0] = ((reached[0] << one) | one) & row[0]
        if reached[last] & final:
            return at + 1
    return -1
