"""Text → expression, and back: the native SQL subset.

`parse` reads a condition, `parse_shape` reads it with its literals lifted out, `print_expression`
writes it. `docs/language.md` is the specification.
"""

from tocsin.language.parser import parse, parse_shape
from tocsin.language.printer import print_expression

__all__ = ["parse", "parse_shape", "print_expression"]
