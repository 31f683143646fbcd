"""Text → expression, in the languages of other systems.

Enters: the text of a condition and the name of its dialect. Leaves: an expression of our own tree,
so that whatever follows knows one language. Each dialect is a module with `parse(text)`, imported
when it is first used; one that has `print_expression(expression)` can be written too.
`docs/dialects.md` says what each means.

A *written* condition is one text that says its dialect too: wherever a condition is kept as a text
(catalogs, stores, logs, the broker's database) it is kept so, and a text of our own language is
written as it is.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from tocsin.errors import ArgumentError

if TYPE_CHECKING:
    from tocsin.language.expression import Expression

SQL = "sql"
"""Our own language, and what is meant where no dialect is named."""
DIALECTS = (SQL, "cesql", "eventbridge", "sns", "jms")
MARK = "\0"
"""What stands before and after the dialect in a written condition."""


def parse(text: str, dialect: str = SQL) -> Expression:
    """Parse the text of a condition in a dialect."""
    parsed: Expression = module_of(dialect).parse(text)
    return parsed


def module_of(dialect: str) -> ModuleType:
    """Return the module of a dialect."""
    if check(dialect) == SQL:
        return import_module("tocsin.language")
    return import_module(f"tocsin.language.dialects.{dialect}")


def check(dialect: object) -> str:
    """Return the name of a dialect, or raise ArgumentError."""
    if not isinstance(dialect, str) or dialect not in DIALECTS:
        raise ArgumentError(f"dialect must be one of {', '.join(DIALECTS)}, not {dialect!r}")
    return dialect


def write(text: str, dialect: str) -> str:
    """Return a text with its dialect."""
    return text if dialect == SQL else f"{MARK}{dialect}{MARK}{text}"


def read(written: str) -> tuple[str, str]:
    """Return the text of a written condition, and its dialect."""
    if not written.startswith(MARK):
        return written, SQL
    dialect, _, text = written[1:].partition(MARK)
    return text, dialect
