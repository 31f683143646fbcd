"""Text → expression, and back: the native SQL subset.

`parse` reads a condition, `print_expression` writes it, `lift` reads a column of texts shape by
shape. `docs/language.md` is the specification.
"""

from tocsin.language.parser import parse, parse_shape
from tocsin.language.printer import print_expression

__all__ = ["parse", "parse_shape", "print_expression"]
