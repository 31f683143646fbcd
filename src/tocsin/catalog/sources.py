"""Sources: the conditions of subscriptions in their original form.

Enters: texts, expressions, templates with columns of parameters, rule tables. Leaves: for each
subscription its condition and its parameters. Conditions stay in the columns they came in, and are
parsed on demand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tocsin.language import parse
from tocsin.language.expression import Expression
from tocsin.model import Kind, from_microseconds, kind_of, to_microseconds, to_plain
from tocsin.normalize.rows import RuleTable, take_rules

Template: TypeAlias = tuple[Expression, Mapping[str, object]]


class Source(Protocol):
    """The conditions of one insertion."""

    def template(self, at: int) -> Template:
        """Return the condition of the at-th subscription and its parameters."""

    def one(self, at: int) -> OneSource:
        """Return the at-th subscription as a source of its own."""

    def take(self, rows: NDArray[np.int64]) -> Source:
        """Return a source of some subscriptions, without references to the data of the others."""


@dataclass(frozen=True, slots=True)
class OneSource:
    """A single subscription; a text stays a text, which is smaller than its expression."""

    where: str | Expression
    params: Mapping[str, object]

    def template(self, at: int = 0) -> Template:
        """Return the condition and its parameters."""
        return to_expression(self.where), self.params


@dataclass(frozen=True)
class SinglesSource:
    """A list of single subscriptions."""

    singles: Sequence[OneSource]

    def template(self, at: int) -> Template:
        """Return one condition and its parameters."""
        return self.singles[at].template()

    def one(self, at: int) -> OneSource:
        """Return one of them."""
        return self.singles[at]

    def take(self, rows: NDArray[np.int64]) -> SinglesSource:
        """Return some of them."""
        return SinglesSource([self.singles[at] for at in rows.tolist()])


@dataclass(frozen=True)
class TextSource:
    """A column of texts; `params`, where there are any, are written by `write_params`."""

    texts: pa.Array
    params: pa.Array | None = None

    def template(self, at: int) -> Template:
        """Return one condition and its parameters."""
        return self.one(at).template()

    def one(self, at: int) -> OneSource:
        """Return one text with its parameters."""
        params = None if self.params is None else self.params[at].as_py()
        return OneSource(self.texts[at].as_py(), read_params(params) if params else {})

    def take(self, rows: NDArray[np.int64]) -> TextSource:
        """Return some of the texts."""
        places = pa.array(rows)
        params = None if self.params is None else self.params.take(places)
        return TextSource(self.texts.take(places), params)


@dataclass(frozen=True)
class TemplateSource:
    """One condition with columns of parameters; those in `fixed` are the same for all."""

    where: str | Expression
    columns: Mapping[str, pa.Array]
    fixed: Mapping[str, object]

    def template(self, at: int) -> Template:
        """Return the condition and one row of parameters."""
        return self.one(at).template()

    def one(self, at: int) -> OneSource:
        """Return the condition and one row of parameters."""
        row = {name: column[at].as_py() for name, column in self.columns.items()}
        return OneSource(self.where, {**self.fixed, **row})

    def take(self, rows: NDArray[np.int64]) -> TemplateSource:
        """Return the template with some rows of parameters."""
        places = pa.array(rows)
        columns = {name: column.take(places) for name, column in self.columns.items()}
        return TemplateSource(self.where, columns, self.fixed)


@dataclass(frozen=True)
class RuleSource:
    """A rule table."""

    rules: RuleTable

    def template(self, at: int) -> Template:
        """Return one condition, put together from its rows."""
        return self.rules.expression(at), {}

    def one(self, at: int) -> OneSource:
        """Return one condition as an expression."""
        return OneSource(self.rules.expression(at), {})

    def take(self, rows: NDArray[np.int64]) -> RuleSource:
        """Return the rules of some subscriptions."""
        return RuleSource(take_rules(self.rules, rows))


def to_expression(where: str | Expression) -> Expression:
    """Return the expression of a condition, which is parsed if it is a text."""
    return parse(where) if isinstance(where, str) else where


_LIST = "list"


def write_params(params: Mapping[str, object]) -> str:
    """Write parameters as JSON that keeps their kinds."""
    return json.dumps({name: _write_value(value) for name, value in params.items()})


def read_params(text: str) -> dict[str, object]:
    """Read what `write_params` wrote."""
    return {name: _read_value(*written) for name, written in json.loads(text).items()}


def _write_value(value: object) -> tuple[str | None, object]:
    if isinstance(value, list | tuple):
        return _LIST, [_write_value(each) for each in value]
    plain = to_plain(value)
    kind = kind_of(plain)
    if kind is None:
        return None, None
    if kind is Kind.FLOAT:  # JSON has no infinity
        return kind.value, repr(float(plain))  # type: ignore[arg-type]
    if kind is Kind.TIMESTAMP:
        return kind.value, to_microseconds(plain)  # type: ignore[arg-type]
    return kind.value, plain


def _read_value(kind: str | None, written: object) -> object:
    if kind == _LIST:
        return [_read_value(*each) for each in written]  # type: ignore[attr-defined]
    if kind == Kind.FLOAT.value:
        return float(written)  # type: ignore[arg-type]
    if kind == Kind.TIMESTAMP.value:
        return from_microseconds(written)  # type: ignore[arg-type]
    return written
