"""Tables of subscriptions → ids, conjunctions and the rows that are refused.

Enters: anything Arrow, in one of three forms: texts (`id`, `where` and perhaps `params`), a
template (`id` and one column per parameter of a separate text) or rules (`id`, `attribute`,
`op`, `value`: one predicate a row). All may have `valid_until`; texts are written with their
dialects (`written_table`). Leaves: a `Load`, computed without
touching a matcher, so that it can be refused whole. `load_catalog` loads an opened catalog again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arguments import id_column, to_expression, to_params, to_table
from tocsin.arrow import INT64, STRING, decoded, kind_of_type, to_array, to_canonical
from tocsin.catalog.blocks import NEVER
from tocsin.catalog.id_index import IdTable
from tocsin.catalog.ids import FEW, Ids
from tocsin.catalog.records import read_json, text_and_params
from tocsin.catalog.serialization import to_text
from tocsin.catalog.sources import (
    OneSource,
    RuleSource,
    Source,
    TemplateSource,
    TextSource,
    write_params,
)
from tocsin.catalog.subscriptions import SubscriptionCatalog
from tocsin.errors import (
    ArgumentError,
    BadRow,
    DuplicateSubscriptionError,
    InvalidIdError,
    ParameterError,
    SubscriptionError,
    TocsinError,
    UndeclaredAttributeError,
    UnknownSubscriptionError,
)
from tocsin.language import parse
from tocsin.language.computed import attribute_names, attributes_of, parameter_names
from tocsin.language.dialects import SQL, write
from tocsin.language.dialects import check as check_dialect
from tocsin.language.expression import Expression
from tocsin.language.names import is_path
from tocsin.model import (
    INT64_MAX,
    INT64_MIN,
    EventType,
    Kind,
    SubscriptionId,
    check_id,
    kind_of,
    similar_name,
    to_plain,
)
from tocsin.normalize import MAX_CONJUNCTIONS, NormalForm, bind, normalize
from tocsin.normalize.budget import Budget
from tocsin.normalize.bulk import (
    BadSubscription,
    BulkForm,
    normalize_template,
    normalize_texts,
)
from tocsin.normalize.layout import from_forms
from tocsin.normalize.literals import canonical_values
from tocsin.normalize.rows import held_rules, normalize_rows, read_rows
from tocsin.normalize.table import ConjunctionTable, stack, take
from tocsin.normalize.unindexed import MESSAGE as UNINDEXED
from tocsin.normalize.unindexed import unindexed_conjunctions

_CHUNK = 10_000
_MIN_GROUP = 8
"""Fewer subscriptions that share a text are brought into normal form one by one."""
_RARE = 100
"""An attribute is rare where another is mentioned at least that many times as often."""
_MAX_RARE = 20
_EXAMPLES = 3
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_RESERVED = frozenset(("id", "where", "params", "valid_until"))
"""Columns of a table of new parameters that are no parameters."""


class LoadWarning(NamedTuple):
    """Something suspect about conditions that were taken in; `str` is a sentence.

    `code` is `never` (they can never match), `unindexed` (no index helps them), `ended` (their
    `valid_until` is past: perhaps it is in seconds, not microseconds), `undeclared` (an attribute
    that the event type does not declare) or `rare-attribute` (hardly any condition mentions it, and
    nearly all mention one of nearly that name).
    """

    code: str
    message: str
    n_subscriptions: int
    examples: tuple[SubscriptionId, ...]
    attribute: str | None = None

    def __str__(self) -> str:
        some = ", ".join(map(repr, self.examples))
        more = ", …" if self.n_subscriptions > len(self.examples) else ""
        return f"{self.message}: {self.n_subscriptions} subscription(s) ({some}{more})"


@dataclass(frozen=True)
class LoadReport:
    """What a bulk call did: the number of subscriptions it took in, and the rows it refused.

    `version` is the version of the store that has them; None where there are no versions.
    `warnings` say what is suspect about conditions that were taken in. `replaced` of those loaded
    replaced another of the same id (`put_many`).
    """

    loaded: int
    bad: tuple[BadRow, ...] = ()
    version: int | None = None
    warnings: tuple[LoadWarning, ...] = ()
    replaced: int = 0


class PreparedCondition(NamedTuple):
    """A condition that is ready to be indexed: as it came, and in normal form."""

    source: OneSource
    form: NormalForm
    table: ConjunctionTable


def prepare(
    where: object,
    params: object,
    event_type: EventType | None,
    *,
    limit: int = MAX_CONJUNCTIONS,
    budget: Budget | None = None,
) -> PreparedCondition:
    """Parse a condition and bring it into normal form, or refuse it; touches no matcher."""
    expression, values = to_expression(where), to_params(params)
    if event_type is not None and event_type.is_strict:
        for name in attribute_names(expression):
            if event_type.kind_of(name) is None:
                raise _undeclared(name, event_type)
    if values or not isinstance(where, str) or ":" in where:  # else there is no parameter
        expression = bind(expression, values)
    form = normalize(expression, event_type, limit=limit, budget=budget)
    source = OneSource(where, values)  # type: ignore[arg-type]
    return PreparedCondition(source, form, from_forms([form]))


def unindexed_texts(texts: Sequence[str]) -> set[int]:
    """Return the places of the conditions that no index helps."""
    if not any(map(may_be_unindexed, texts)):
        return set()
    table = normalize_texts(pa.array(texts, STRING)).table
    return set(table.subscription[unindexed_conjunctions(table)].tolist())


may_be_unindexed = re.compile(
    r"[()|*/%+-]|::|[<>=]\s*[^\W\d]|[<>=]\s*[\"`]|\b(IS|LIKE|ILIKE|RLIKE|REGEXP)\b", re.IGNORECASE
).search
"""Finds texts that are more than simple predicates on attributes."""


def _undeclared(name: str, event_type: EventType) -> UndeclaredAttributeError:
    near = similar_name(name, event_type.attributes)
    return UndeclaredAttributeError(name, event_type.name, near)


class Load:
    """A table of subscriptions before it is taken in: ids, conditions, and the rows refused."""

    def __init__(
        self,
        ids: Ids,
        missing: NDArray[np.bool_] | None,
        source: Source,
        form: BulkForm,
        event_type: EventType | None,
        *,
        rows: NDArray[np.int64] | None = None,
        until: NDArray[np.int64] | None = None,
    ) -> None:
        self.ids = IdTable(ids, missing)
        self.source = source
        self.until = until
        """The ends, NEVER for none; None where the table has no column `valid_until`."""
        self.conjunctions = form.table
        self._rows = rows
        self._bad: dict[int, TocsinError] = {bad.row: bad.error for bad in form.bad}
        if missing is not None:
            for at in np.flatnonzero(missing).tolist():
                self._bad.setdefault(at, InvalidIdError(None))
        self._refuse(self.ids.repeated, DuplicateSubscriptionError)
        self._event_type = event_type
        if event_type is not None and event_type.is_strict:
            for name, places in self._with_undeclared():
                for at in places.tolist():
                    self._bad.setdefault(at, _undeclared(name, event_type))

    def __len__(self) -> int:
        return len(self.ids.ids)

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes of events that the conditions mention."""
        names = map(attributes_of, self.conjunctions.attributes)
        return tuple(dict.fromkeys(itertools.chain.from_iterable(names)))

    @property
    def bad(self) -> tuple[BadRow, ...]:
        """The refused rows, in order."""
        return tuple(
            BadRow(self._row(at), self._name(at), str(error), error.code)
            for at, error in sorted(self._bad.items())
        )

    def _refuse(
        self, places: NDArray[np.int64], error: Callable[[SubscriptionId], TocsinError]
    ) -> None:
        for at in places.tolist():
            self._bad.setdefault(at, error(self.ids.ids[at]))

    def refuse_taken(self, catalog: SubscriptionCatalog) -> tuple[BadRow, ...]:
        """Refuse the ids that a catalog already has; return all refused rows."""
        if len(catalog):
            self._refuse(np.flatnonzero(catalog.find(self.ids) >= 0), DuplicateSubscriptionError)
        return self.bad

    def refuse_unknown(self, catalog: SubscriptionCatalog) -> tuple[BadRow, ...]:
        """Refuse the ids that a catalog does not have; return all refused rows."""
        dense = catalog.find(self.ids)
        if self.ids.missing is not None:
            dense[self.ids.missing] = 0
        self._refuse(np.flatnonzero(dense < 0), partial(unknown_id, catalog))
        return self.bad

    def _with_undeclared(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield the attributes that the event type does not declare, and where they are used."""
        if self._event_type is None:
            return
        declared = self._event_type.attributes
        numbers: dict[str, list[int]] = {}
        for number, name in enumerate(self.conjunctions.attributes):
            if name not in declared:
                for path in attributes_of(name):
                    if path not in declared:
                        numbers.setdefault(path, []).append(number)
        for path, of_path in numbers.items():
            places = self._using(of_path)
            if len(places):
                yield path, places

    def _using(self, attributes: list[int]) -> NDArray[np.int64]:
        """Return the places of the subscriptions that mention attributes, by their numbers."""
        table = self.conjunctions
        is_of = np.zeros(len(table.attributes), np.bool_)
        is_of[attributes] = True
        conditions = np.flatnonzero(is_of[table.attribute])
        conjunctions = np.searchsorted(table.condition_start, conditions, side="right") - 1
        return np.unique(table.subscription[conjunctions])

    def warnings(self, now: float) -> tuple[LoadWarning, ...]:
        """Return what is suspect about the good rows; `now` is in seconds since 1970."""
        is_used = np.zeros(len(self), np.bool_)
        is_used[self.conjunctions.subscription] = True
        warnings = [self._warning("never", "the condition can never match", ~is_used)]
        unindexed = self.conjunctions.subscription[unindexed_conjunctions(self.conjunctions)]
        warnings.append(self._warning("unindexed", UNINDEXED, np.unique(unindexed)))
        if self.until is not None:
            over = (self.until <= now * 1_000_000) & (self.until != NEVER)
            warnings.append(self._warning("ended", "valid_until is past", over))
        for name, places in self._with_undeclared():
            assert self._event_type is not None
            message = f"attribute {name!r} is {self._event_type.undeclared(name)}"
            warnings.append(self._warning("undeclared", message, places, name))
        if self._event_type is None:
            warnings.extend(self._rare_attributes())
        return tuple(warning for warning in warnings if warning is not None)

    def _rare_attributes(self) -> Iterator[LoadWarning | None]:
        """Yield the attributes that are probably misspelt: another of this name is everywhere."""
        names = self.conjunctions.attributes
        counts = np.bincount(self.conjunctions.attribute, minlength=len(names))
        counts[[not is_path(name) for name in names]] = 0
        usual = counts.max(initial=0)
        rare = np.flatnonzero((counts > 0) & (counts * _RARE <= usual))
        for number in rare[:_MAX_RARE].tolist():
            common = [names[at] for at in np.flatnonzero(counts >= counts[number] * _RARE).tolist()]
            near = similar_name(names[number], common)
            if near is not None:
                message = f"attribute {names[number]!r} is hardly used; did you mean {near!r}?"
                places = self._using([number])
                yield self._warning("rare-attribute", message, places, names[number])

    def _warning(
        self, code: str, message: str, where: NDArray[Any], attribute: str | None = None
    ) -> LoadWarning | None:
        """Return a warning about the good ones of some places, or None."""
        places = np.flatnonzero(where) if where.dtype == np.bool_ else where
        if self._bad and len(places):
            places = places[~np.isin(places, list(self._bad))]
        if not len(places):
            return None
        examples = tuple(self.ids.ids[at] for at in places[:_EXAMPLES].tolist())
        return LoadWarning(code, message, len(places), examples, attribute)

    def known(self, catalog: SubscriptionCatalog) -> list[SubscriptionId]:
        """Return the ids of good rows that a catalog has."""
        places = np.flatnonzero(catalog.find(self.ids) >= 0)
        return [self.ids.ids[at] for at in places.tolist() if at not in self._bad]

    def _row(self, at: int) -> int:
        return at if self._rows is None else int(self._rows[at])

    def _name(self, at: int) -> SubscriptionId | None:
        missing = self.ids.missing
        return None if missing is not None and missing[at] else self.ids.ids[at]

    @property
    def good(self) -> NDArray[np.int64] | None:
        """The places that are not refused; None for all."""
        if not self._bad:
            return None
        is_good = np.ones(len(self), np.bool_)
        is_good[list(self._bad)] = False
        return np.flatnonzero(is_good)

    @property
    def n_good(self) -> int:
        """The number of rows that are not refused."""
        return len(self) - len(self._bad)

    def numbered(self, first: int) -> tuple[NDArray[np.int64], ConjunctionTable]:
        """Return dense ids from `first` on for the good rows, and their conjunctions."""
        good, table = self.good, self.conjunctions
        if good is None:
            if first:
                table = replace(table, subscription=table.subscription + first)
            return np.arange(first, first + len(self)), table
        dense = np.arange(first, first + len(good))
        number = np.full(len(self), -1, np.int64)
        number[good] = dense
        table = take(table, np.flatnonzero(number[table.subscription] >= 0))
        subscription = number[table.subscription]
        return dense, replace(table, subscription=subscription, n_subscriptions=len(good))

    def enter(self, catalog: SubscriptionCatalog, until: NDArray[np.int64] | None = None) -> None:
        """Register the good rows in a catalog; `until` are their ends, by default the table's."""
        good = self.good
        if until is None and self.until is not None:
            until = self.until if good is None else self.until[good]
        if until is not None and np.all(until == NEVER):
            until = None
        catalog.add_many(self.ids, self.source, good, until)

    def add_to(self, catalog: SubscriptionCatalog) -> tuple[NDArray[np.int64], ConjunctionTable]:
        """Register the good rows; return their dense ids and conjunctions."""
        numbered = self.numbered(catalog.next_dense)
        self.enter(catalog)
        return numbered


def load_table(
    data: object,
    where: str | Expression | None,
    event_type: EventType | None,
    progress: Callable[[int], None] | None = None,
    *,
    is_bounded: bool = True,
) -> Load:
    """Read a table of subscriptions; its columns, and `where`, say in which form it is.

    Conditions that would take too much work are refused, unless they are unbounded.
    """
    table = to_table(data)
    if where is not None:
        return _load_template(table, to_expression(where), event_type, is_bounded)
    if "where" not in table.column_names and {"attribute", "op"} & set(table.column_names):
        return load_rows(table, event_type)
    _need(table, ["id", "where"])
    ids, missing = id_column(table.column("id"))
    texts = to_array(table.column("where"))
    if kind_of_type(texts.type) is not Kind.STRING and texts.null_count < len(texts):
        raise ArgumentError(f"the column where must hold texts, not {texts.type}")
    texts = texts.cast(STRING)
    if "params" in table.column_names and table.column("params").null_count < table.num_rows:
        params, bad = _read_params(table.column("params"))
        return load_conditions(
            ids, missing, texts, params, event_type, bad, _until(table), is_bounded=is_bounded
        )
    form = normalize_texts(texts, event_type, progress, is_bounded=is_bounded)
    return Load(ids, missing, TextSource(texts), form, event_type, until=_until(table))


def written_table(data: object, dialect: str) -> pa.Table:
    """Return a table of subscriptions whose conditions are written with their dialects.

    Those are in its column `dialect`; where that is null or missing, all conditions are of one.
    """
    table, name = to_table(data), check_dialect(dialect)
    if "where" not in table.column_names:
        return table
    marks: Any = pa.scalar(write("", name), STRING)
    if "dialect" in table.column_names:
        names = decoded(to_array(table.column("dialect")))
        if kind_of_type(names.type) is not Kind.STRING and names.null_count < len(names):
            raise ArgumentError(f"the column dialect must hold texts, not {names.type}")
        table = table.drop_columns("dialect")
        written = [write("", each or name) for each in names.to_pylist()]
        marks = pa.array(written, STRING)
    elif name == SQL:
        return table
    texts = to_array(table.column("where"))
    if kind_of_type(texts.type) is not Kind.STRING:
        return table  # it is refused later
    at = table.schema.get_field_index("where")
    texts = decoded(texts).cast(STRING)
    joined = pc.binary_join_element_wise(marks, texts, pa.scalar("", STRING))
    return table.set_column(at, "where", joined)


def are_rules(table: pa.Table) -> bool:
    """Whether a table has one predicate a row."""
    return "where" not in table.column_names and {"attribute", "op"} <= set(table.column_names)


def _load_template(
    table: pa.Table, expression: Expression, event_type: EventType | None, is_bounded: bool
) -> Load:
    _need(table, ["id"])
    ids, missing = id_column(table.column("id"))
    names = parameter_names(expression)
    lacking = [name for name in names if name not in table.column_names]
    if lacking:
        raise ParameterError(
            f"the table has no column for parameter {', '.join(':' + n for n in lacking)}",
            missing=lacking,
        )
    if any(_is_list(table.column(name).type) for name in names):
        text, lifted = to_text(expression)
        columns_of = {name: table.column(name).to_pylist() for name in names}
        params = [
            {**dict(zip(columns_of, row, strict=True)), **lifted}
            for row in zip(*columns_of.values(), strict=True)
        ]
        texts = pa.array([text] * table.num_rows, STRING)
        until = _until(table)
        return load_conditions(
            ids, missing, texts, params, event_type, {}, until, is_bounded=is_bounded
        )
    columns = {name: _parameter(name, table.column(name)) for name in names}
    form = normalize_template(
        expression, columns, table.num_rows, event_type, is_bounded=is_bounded
    )
    source = TemplateSource(expression, columns, {})
    return Load(ids, missing, source, form, event_type, until=_until(table))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def load_rows(data: object, event_type: EventType | None) -> Load:
    """Read a table with one predicate a row."""
    table = to_table(data)
    rules = read_rows(table)
    ids, missing = id_column(rules.ids)
    form = normalize_rows(rules, event_type)
    until = _until(table)
    if until is not None:  # the end of a subscription stands in its first row
        until = until[rules.first_row]
    source = RuleSource(held_rules(rules))
    return Load(ids, missing, source, form, event_type, rows=rules.first_row, until=until)


def load_conditions(
    ids: Ids,
    missing: NDArray[np.bool_] | None,
    texts: pa.Array,
    params: Sequence[Mapping[str, object] | None],
    event_type: EventType | None,
    bad: Mapping[int, SubscriptionError],
    until: NDArray[np.int64] | None,
    *,
    is_bounded: bool = True,
) -> Load:
    """Read texts with parameters of their own; `bad` are rows that are refused already.

    Subscriptions that share a text, and the kinds of their parameters, are brought into normal form
    together.
    """
    errors = dict(bad)
    groups: dict[object, list[int]] = {}
    for at, (text, values) in enumerate(zip(texts.to_pylist(), params, strict=True)):
        if at not in errors:
            kinds = tuple((name, kind_of(to_plain(v))) for name, v in (values or {}).items())
            groups.setdefault((text, kinds) if values else None, []).append(at)
    tables: list[ConjunctionTable] = []
    for group, members in groups.items():
        rows = np.array(members)
        if group is None:
            form = normalize_texts(texts.take(pa.array(rows)), event_type, is_bounded=is_bounded)
        else:
            text = texts[members[0]].as_py()
            values_of = [params[at] or {} for at in members]
            form = _normalize_group(text, values_of, event_type, is_bounded)
        errors.update((members[bad.row], bad.error) for bad in form.bad)
        tables.append(replace(form.table, subscription=rows[form.table.subscription]))
    table = stack(tables or [from_forms([])], [0] * max(1, len(tables)), len(texts))
    table = take(table, np.argsort(table.subscription, kind="stable"))
    written = [write_params(values) if values else None for values in params]
    source = TextSource(texts, pa.array(written, STRING))
    refused = tuple(BadSubscription(at, error) for at, error in sorted(errors.items()))
    return Load(ids, missing, source, BulkForm(table, refused), event_type, until=until)


def _normalize_group(
    text: str | None,
    params: Sequence[Mapping[str, object]],
    event_type: EventType | None,
    is_bounded: bool,
) -> BulkForm:
    """Bring subscriptions with one text and parameters of the same kinds into normal form."""
    try:
        if text is None:
            raise SubscriptionError("the condition is missing")
        expression = parse(text)
        bind(expression, params[0])
    except SubscriptionError as error:
        refused = tuple(BadSubscription(at, error) for at in range(len(params)))
        return BulkForm(replace(from_forms([]), n_subscriptions=len(params)), refused)
    has_lists = any(isinstance(value, list) for values in params for value in values.values())
    if len(params) >= _MIN_GROUP and not has_lists:
        columns = {
            name: _parameter(name, pa.chunked_array([pa.array([p[name] for p in params])]))
            for name in params[0]
        }
        return normalize_template(
            expression, columns, len(params), event_type, is_bounded=is_bounded
        )
    forms, errors = [], []
    for at, values in enumerate(params):
        budget = None if is_bounded else Budget.unlimited()
        try:
            forms.append(normalize(bind(expression, values), event_type, budget=budget))
        except SubscriptionError as error:
            errors.append(BadSubscription(at, error))
            forms.append(NormalForm(()))
    return BulkForm(from_forms(forms), tuple(errors))


def load_params(
    table: pa.Table,
    look_up: Callable[[IdTable], tuple[NDArray[np.int64], Sequence[OneSource | None]]],
    event_type: EventType | None,
) -> tuple[Load, NDArray[np.int64]]:
    """Read new values of some parameters, of subscriptions that are looked up.

    Returns the subscriptions as they will be, and the dense ids that `look_up` returned.

    Each column is a parameter, and `params` (JSON) holds several; all others keep their values.
    """
    _need(table, ["id"])
    ids, missing = id_column(table.column("id"))
    columns = {
        name: _parameter(name, table.column(name)).to_pylist()
        for name in table.column_names
        if name not in _RESERVED
    }
    params: list[dict[str, object]] = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ] or [{} for _ in range(table.num_rows)]
    bad: dict[int, SubscriptionError] = {}
    if "params" in table.column_names:
        more, bad = _read_params(table.column("params"))
        params = [{**values, **(extra or {})} for values, extra in zip(params, more, strict=True)]
    texts: list[str | None] = []
    names_of: dict[str, frozenset[str]] = {}
    replaced, sources = look_up(IdTable(ids, missing))
    for at, source in enumerate(sources):
        text, old = ("FALSE", {}) if source is None else text_and_params(source)
        texts.append(text)
        if source is None or at in bad:  # an unknown id is refused by its name later
            params[at] = {}
            continue
        if text not in names_of:
            names_of[text] = frozenset(parameter_names(parse(text)))
        names = names_of[text]
        if params[at] and not names:
            name = ids[at]
            error = ParameterError(
                f"subscription {name!r} has no parameters", unknown=[*params[at]]
            )
            bad[at] = error
        params[at] = {k: v for k, v in old.items() if k in names} | params[at]
    load = load_conditions(
        ids, missing, pa.array(texts, STRING), params, event_type, bad, _until(table)
    )
    return load, replaced


def has_conditions(table: pa.Table, where: object) -> bool:
    """Whether a table of updates has new conditions; otherwise new values of parameters."""
    return where is not None or "where" in table.column_names or are_rules(table)


def load_catalog(
    catalog: SubscriptionCatalog, event_type: EventType | None
) -> Iterator[tuple[NDArray[np.int64], ConjunctionTable]]:
    """Yield the dense ids and conjunctions of all subscriptions of a catalog, in chunks.

    Conditions are parsed one by one: this is for engines that cannot save their index. The work
    that a condition takes is not bounded, since it was accepted before.
    """
    unbounded = Budget.unlimited()
    live = catalog.live()
    for first in range(0, len(live), _CHUNK):
        ids = live[first : first + _CHUNK]
        table = from_forms(
            [normalize(catalog.expression(i), event_type, budget=unbounded) for i in ids.tolist()]
        )
        yield ids, replace(table, subscription=ids[table.subscription])


def unknown_id(catalog: SubscriptionCatalog, name: SubscriptionId) -> UnknownSubscriptionError:
    """Return the error for an id that a catalog does not have; it names one of the other kind."""
    other: SubscriptionId | None = None
    if isinstance(name, int):
        other = str(name)
    elif _INTEGER.fullmatch(name) and INT64_MIN <= int(name) <= INT64_MAX:
        other = int(name)
    is_known = other is not None and catalog.dense(other) is not None
    return UnknownSubscriptionError(name, other if is_known else None)


def find_all(catalog: SubscriptionCatalog, ids: Ids | list[SubscriptionId]) -> NDArray[np.int64]:
    """Return the dense ids of a list or column of ids; raise for the first that is unknown.

    A repeated id is unknown the second time.
    """
    if isinstance(ids, Ids) and len(ids) > FEW:
        dense = catalog.find(IdTable(ids))
        unknown = np.flatnonzero(dense < 0)
        if len(unknown):
            raise unknown_id(catalog, ids[int(unknown[0])])
        return dense
    dense_ids: dict[int, None] = {}
    for name in ids.to_list() if isinstance(ids, Ids) else ids:
        number = catalog.dense(check_id(name))
        if number is None or number in dense_ids:
            raise unknown_id(catalog, name)
        dense_ids[number] = None
    return np.array(list(dense_ids), np.int64)


def _need(table: pa.Table, columns: list[str]) -> None:
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise ArgumentError(
            f"the table has no column {', '.join(missing)}; it has {', '.join(table.column_names)}"
        )


def _parameter(name: str, column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_null(column.type):
        return to_array(column)
    return canonical_values(name, column)


def _until(table: pa.Table) -> NDArray[np.int64] | None:
    """Return the ends, NEVER for none; None where the table has no column of them."""
    if "valid_until" not in table.column_names:
        return None
    column = table.column("valid_until")
    if column.null_count == len(column):
        return np.full(len(column), NEVER)
    if kind_of_type(column.type) not in (Kind.TIMESTAMP, Kind.INTEGER):
        raise ArgumentError(f"the column valid_until must hold timestamps, not {column.type}")
    try:
        canonical = to_canonical(column)
    except pa.ArrowInvalid:
        raise ArgumentError("the column valid_until holds moments beyond 64 bits") from None
    assert canonical is not None
    return canonical[0].cast(INT64).fill_null(NEVER).to_numpy()  # type: ignore[no-any-return]


def _read_params(
    column: pa.ChunkedArray,
) -> tuple[list[Mapping[str, object] | None], dict[int, SubscriptionError]]:
    """Return parameters written as JSON objects, and the rows where they are no such thing."""
    texts = decoded(to_array(column))
    if kind_of_type(texts.type) is not Kind.STRING and texts.null_count < len(texts):
        raise ArgumentError(f"the column params must hold JSON objects as texts, not {texts.type}")
    params: list[Mapping[str, object] | None] = []
    bad: dict[int, SubscriptionError] = {}
    for at, text in enumerate(texts.to_pylist()):
        params.append(None)
        if text is not None:
            try:
                params[at] = read_json(text)
            except ValueError as error:
                bad[at] = ParameterError(f"params is not a JSON object of parameters: {error}")
    return params, bad
