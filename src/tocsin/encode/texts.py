"""Texts → values of a kind, for the file formats that hold nothing but texts.

Enters: a text and a kind. Leaves: the value, or a ValueError that says why there is none.
"""

from __future__ import annotations

import math
import re

from tocsin.language.timestamps import parse_timestamp
from tocsin.model import INT64_MAX, INT64_MIN, Kind

_INTEGER = r"[+-]?[0-9]+"
_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
NO_NUMBER = r"[+-]?([nN][aA][nN]|[iI][nN][fF]([iI][nN][iI][tT][yY])?)"
_BOOLEAN = r"[tT][rR][uU][eE]|[fF][aA][lL][sS][eE]"
TEXTS = {
    Kind.BOOLEAN: rf"^[ \t]*({_BOOLEAN})[ \t]*$",
    Kind.INTEGER: rf"^[ \t]*({_INTEGER})[ \t]*$",
    Kind.FLOAT: rf"^[ \t]*({_NUMBER}|{NO_NUMBER})[ \t]*$",
}
# Texts that Arrow casts just as we would, without a look at each of them.
PLAIN_TEXTS = {
    Kind.INTEGER: r"^-?[0-9]{1,18}$",
    Kind.FLOAT: r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$",
    Kind.TIMESTAMP: r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$",
}


def parse_text(text: str, kind: Kind, name: str) -> object:
    """Return the value of a kind that a text stands for."""
    if kind is Kind.TIMESTAMP:
        moment = parse_timestamp(text)
        if moment is not None:
            return moment
    elif re.match(TEXTS[kind], text):
        if kind is Kind.BOOLEAN:
            return text.strip().lower() == "true"
        if kind is Kind.FLOAT:
            number = float(text)
            if math.isinf(number) and "n" not in text.lower():
                raise ValueError(f"attribute {name!r}: a number beyond the range of 64-bit floats")
            return number
        if len(text) < 40 and INT64_MIN <= int(text) <= INT64_MAX:
            return int(text)
        raise ValueError(f"attribute {name!r}: an integer beyond 64 bits")
    shown = text if len(text) <= 40 else text[:40] + "…"
    raise ValueError(f"attribute {name!r}: {shown!r} is not of kind {kind.value}")
