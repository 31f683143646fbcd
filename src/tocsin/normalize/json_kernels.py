"""Texts in JSON → their structure and their literals, compiled.

Enters: the UTF-8 bytes of many texts. Leaves for each its *skeleton*: all but white space, with a
mark for each text and number that is a value; and the places of these. Nothing is judged: what is
no JSON has a skeleton too, and one text of each skeleton is parsed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.jit import inner, kernel

Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Scalar: TypeAlias = Any

TEXT_MARK, NUMBER_MARK, EMPTY_MARK, WORD_END = 1, 2, 3, 4
"""In a skeleton: a text, a number, an empty text, the end of a word such as `true`."""


@inner
def _skip_space(data: Bytes, at: Scalar, end: Scalar) -> Scalar:
    while at < end and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@inner
def _text_end(data: Bytes, at: Scalar, end: Scalar) -> Scalar:
    """Return the place of the quote that ends a text; -1 where it has escapes, or does not end."""
    while at < end:
        c = data[at]
        if c == 34:
            return at
        if c == 92 or c < 32:
            return -1
        at += 1
    return -1


@inner
def _is_structure(data: Bytes, start: Scalar, end: Scalar) -> Scalar:
    """Whether a text is an operator (2), or may be an IPv6 address (1), which has its own test."""
    n = end - start
    if n <= 2 and n > 0 and (data[start] == 60 or data[start] == 61 or data[start] == 62):
        if n == 1:
            return 2
        if data[start] != 61 and data[start + 1] == 61:
            return 2
    has_colon = False
    for at in range(start, end):
        c = data[at]
        if c == 58:
            has_colon = True
        elif not ((c >= 48 and c <= 57) or (c >= 65 and c <= 70) or (c >= 97 and c <= 102)):
            return 0
    return 1 if has_colon else 0


@inner
def _is_number_part(c: Scalar) -> Scalar:
    return (c >= 48 and c <= 57) or c == 46 or c == 101 or c == 69 or c == 43 or c == 45


@inner
def _copy(data: Bytes, begin: Scalar, end: Scalar, out: Bytes, n_out: Scalar) -> Scalar:
    for k in range(begin, end):
        out[n_out] = data[k]
        n_out += 1
    return n_out


@inner
def _set_span(spans: Integers, at: Scalar, begin: Scalar, end: Scalar, is_text: Scalar) -> None:
    spans[at, 0], spans[at, 1], spans[at, 2] = begin, end, is_text


@kernel
def scan(
    data: Bytes,
    starts: Integers,
    out: Bytes,
    out_start: Integers,
    spans: Integers,
    literal_end: Integers,
    taken: Flags,
) -> None:
    """Write the skeleton of each text, and the spans of its literals: start, end, is it a text."""
    n_out, n_literals = 0, 0
    for i in range(len(starts) - 1):
        at, end = _skip_space(data, starts[i], starts[i + 1]), starts[i + 1]
        first_out, first_literal = n_out, n_literals
        is_taken = True
        while at < end:
            c = data[at]
            if c < 32:
                is_taken = False
                break
            if c == 34:
                close = _text_end(data, at + 1, end)
                if close < 0:
                    is_taken = False
                    break
                following = _skip_space(data, close + 1, end)
                is_key = following < end and data[following] == 58
                structure = 2 if is_key else _is_structure(data, at + 1, close)
                if structure < 2:
                    _set_span(spans, n_literals, at + 1, close, 1)
                    n_literals += 1
                if structure > 0:
                    n_out = _copy(data, at, close + 1, out, n_out)
                else:
                    out[n_out] = TEXT_MARK if close > at + 1 else EMPTY_MARK
                    n_out += 1
                at = following
                continue
            if c == 45 or (c >= 48 and c <= 57):
                close = at
                while close < end and _is_number_part(data[close]):
                    close += 1
                _set_span(spans, n_literals, at, close, 0)
                n_literals += 1
                out[n_out] = NUMBER_MARK
                n_out += 1
                at = _skip_space(data, close, end)
                continue
            out[n_out] = c
            n_out += 1
            following = _skip_space(data, at + 1, end)
            if following > at + 1 and ((c >= 65 and c <= 90) or (c >= 97 and c <= 122)):
                out[n_out] = WORD_END
                n_out += 1
            at = following
        taken[i] = is_taken
        if not is_taken:
            n_out, n_literals = first_out, first_literal
        literal_end[i] = n_literals
        out_start[i + 1] = n_out
