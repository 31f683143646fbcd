"""The dialect of a CSV file: what separates its fields, and whether its first line names them.

Enters: the beginning of a file. Leaves: a `Dialect`, found by looking at the first lines, or what a
caller laid down. A caller says what was found: a wrong guess must be seen.

The separator is the one that cuts the first lines into the same number of fields, more than one;
among several the first of `SEPARATORS`. The first line names the columns unless it holds a number
in a column of numbers and no column speaks against that.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass

from tocsin.encode.texts import TEXTS
from tocsin.errors import ArgumentError
from tocsin.model import Kind

SAMPLE_BYTES = 1 << 16
_SAMPLE_RECORDS = 200
SEPARATORS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
_IS_NUMBER = re.compile(TEXTS[Kind.FLOAT]).match


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written."""

    separator: str = ","
    has_header: bool = True

    def __str__(self) -> str:
        name = SEPARATORS.get(self.separator)
        by = f"{name}-separated" if name else f"separated by {self.separator!r}"
        return by if self.has_header else f"{by}, no header"


def to_separator(text: str) -> str:
    """Return the separator that an option names: a character, its name, or an escape."""
    names = {name: separator for separator, name in SEPARATORS.items()} | {"\\t": "\t"}
    separator = names.get(text.lower(), text)
    if len(separator.encode()) != 1 or separator in '"\r\n':
        known = ", ".join(SEPARATORS.values())
        raise ArgumentError(f"a delimiter is one character or one of {known}, not {text!r}")
    return separator


def find_dialect(
    sample: bytes, *, separator: str | None = None, has_header: bool | None = None
) -> Dialect:
    """Return the dialect of a file that begins with a sample; what is laid down is kept."""
    text = sample.decode(errors="replace")
    if len(sample) >= SAMPLE_BYTES:  # the last line may be cut off
        text = text[: text.rfind("\n") + 1] or text
    if separator is None:
        separator = _find_separator(text)
    if has_header is None:
        has_header = _has_header(_records(text, separator))
    return Dialect(separator, has_header)


def _records(text: str, separator: str) -> list[list[str]]:
    """Return the first records of a text, as far as they can be read."""
    records: list[list[str]] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        for record in reader:
            if record:
                records.append(record)
            if len(records) == _SAMPLE_RECORDS:
                break
    except csv.Error:
        pass
    return records


def _find_separator(text: str) -> str:
    first_line = text.partition("\n")[0]
    present = [separator for separator in SEPARATORS if separator in first_line]
    if present in ([], [","]):
        return ","
    for separator in present:
        widths = {len(record) for record in _records(text, separator)}
        if len(widths) == 1 and widths != {1}:
            return separator
    return present[0] if "," not in present else ","


def _has_header(records: list[list[str]]) -> bool:
    """Whether the first record names the columns of the others."""
    first, *rest = records or [[]]
    rest = [record for record in rest if len(record) == len(first)]
    if not rest:
        return True
    speaks_against = False
    for at, name in enumerate(first):
        values = [record[at] for record in rest if record[at]]
        are_numbers = bool(values) and all(map(_IS_NUMBER, values))
        if are_numbers and not _IS_NUMBER(name):
            return True
        speaks_against |= are_numbers
    return not speaks_against
