"""Many subscriptions → one conjunction table, column by column.

Enters: a column of texts; one template with columns of parameters; or (in `rows`) a table with one
predicate a row. Leaves: a `BulkForm`: the conjunction table, and the rows that were refused with
their errors.

Texts that are conjunctions, or conjunctions joined by OR, are read by a kernel. Other texts that
differ only in literals share a *shape*, which is parsed once; its template is then filled with
columns of literals. A text query becomes its words, which are literals too (see `queries`). All
other texts, including the invalid ones, are parsed one by one, so that errors come from one parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import STRING, ArrowColumn, to_array
from tocsin.compiling import use_kernels
from tocsin.errors import ParameterError, SubscriptionError
from tocsin.language import parse, parse_shape
from tocsin.language import text_kernels as kernels
from tocsin.language.computed import parameter_names, parameters_of
from tocsin.language.dialects import MARK
from tocsin.language.expression import Expression, Literal, Parameter, predicates
from tocsin.language.parser import Shape
from tocsin.language.words import read_word_queries
from tocsin.model import EventType
from tocsin.normalize.bind import bind
from tocsin.normalize.fold import (
    MOST_WITHOUT_KERNELS,
    BadSubscription,
    Block,
    BulkForm,
    PredicateBatch,
)
from tocsin.normalize.fold_kernels import Literals
from tocsin.normalize.json_shapes import add_patterns
from tocsin.normalize.literals import (
    FALSE_LITERAL,
    NULL_LITERAL,
    TRUE_LITERAL,
    column_literals,
    read_literals,
)
from tocsin.normalize.queries import Query, query_of, with_words
from tocsin.normalize.shapes import fill_names
from tocsin.normalize.template import (
    FALSE_SLOT,
    NULL_SLOT,
    TRUE_SLOT,
    Template,
    make_template,
    number_operands,
)

__all__ = ["BadSubscription", "BulkForm", "normalize_template", "normalize_texts"]

_CHUNK = 1 << 14
_SHAPE_CHUNK = 1 << 18
_MANY = 16
"""From this number on, texts that differ in literals within terms are read together."""
_CONSTANTS = {NULL_SLOT: NULL_LITERAL, FALSE_SLOT: FALSE_LITERAL, TRUE_SLOT: TRUE_LITERAL}


def normalize_texts(
    texts: ArrowColumn,
    event_type: EventType | None = None,
    progress: Callable[[int], None] | None = None,
    *,
    is_bounded: bool = True,
) -> BulkForm:
    """Bring a column of texts into normal form; subscription i is the i-th text.

    If bounded, texts that would take too much work are refused.
    """
    column = to_array(texts).cast(STRING)
    batch = PredicateBatch(is_bounded)
    rest: list[NDArray[np.int64]] = []
    one_by_one: list[int] = []
    chunks = range(0, len(column), _CHUNK)
    if not use_kernels(len(column), MOST_WITHOUT_KERNELS):
        one_by_one, chunks = list(range(len(column))), range(0)
        if progress:
            progress(len(column))
    for start in chunks:
        rest.append(start + _add_disjunctions(batch, column.slice(start, _CHUNK), start))
        if progress:
            progress(min(start + _CHUNK, len(column)))
    others = np.concatenate(rest) if rest else np.empty(0, np.int64)
    if len(others):
        texts = column.take(pa.array(others))
        written = pc.fill_null(pc.starts_with(texts, MARK), False)
        if pc.any(written).as_py():
            is_written = written.to_numpy(zero_copy_only=False)
            left = add_patterns(batch, texts.filter(written), others[is_written])
            one_by_one += left.tolist()
            others = others[~is_written]
    for start in range(0, len(others), _SHAPE_CHUNK):
        one_by_one += _add_shapes(batch, column, others[start : start + _SHAPE_CHUNK])

    def expression_of(row: int) -> Expression:
        text = column[row].as_py()
        if text is None:
            raise SubscriptionError("the condition is missing")
        return bind(parse(text), None)

    return batch.fold(len(column), event_type, expression_of, one_by_one)


def _bytes_of(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of texts and their starts, both read-only."""
    _, offsets, values = texts.buffers()
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    n = int(starts[-1])
    data = np.frombuffer(values, np.uint8)[:n] if n else np.zeros(1, np.uint8)
    for array in (data, starts):  # a writable array would compile another version
        array.flags.writeable = False
    return data, starts


def _add_disjunctions(batch: PredicateBatch, texts: pa.Array, first: int) -> NDArray[np.int64]:
    """Read the texts of a chunk that are disjunctions of conjunctions; return the other rows."""
    data, starts = _bytes_of(texts)
    n = len(texts)
    capacity = int(starts[-1] - starts[0]) // 2 + 2  # an upper bound on literals and predicates
    spans, predicates = np.empty((capacity, 4), np.int64), np.empty((capacity, 5), np.int64)
    conjunctions = np.empty(capacity, np.int64)
    literal_end, conjunction_end = np.empty(n, np.int64), np.empty(n, np.int64)
    taken = np.empty(n, np.bool_)
    kernels.scan_disjunctions(
        data, starts, spans, predicates, conjunctions, literal_end, conjunction_end, taken
    )
    conjunctions = conjunctions[: conjunction_end[-1]]
    predicates = predicates[: conjunctions[-1] if len(conjunctions) else 0]
    literals, bad = read_literals(data, spans[: literal_end[-1]], batch.literals)
    first_literal = batch.literals.add(literals)
    text_of = np.repeat(np.arange(n), np.diff(conjunction_end, prepend=0))
    counts = np.diff(conjunctions, prepend=0)
    if bad.any():
        taken[np.searchsorted(literal_end, np.flatnonzero(bad), side="right")] = False
        predicates = predicates[np.repeat(taken[text_of], counts)]
        counts, text_of = counts[taken[text_of]], text_of[taken[text_of]]
    batch.add(
        Block(
            first + text_of,
            counts,
            _attributes(batch, data, predicates),
            predicates[:, kernels.OP].astype(np.uint8),
            predicates[:, kernels.FIRST_LITERAL] + first_literal,
            predicates[:, kernels.N_LITERALS].astype(np.int32),
        )
    )
    return np.flatnonzero(~taken)


def _attributes(
    batch: PredicateBatch, data: NDArray[np.uint8], predicates: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Number the attributes of predicates."""
    starts = np.ascontiguousarray(predicates[:, kernels.NAME_START])
    ends = np.ascontiguousarray(predicates[:, kernels.NAME_END])
    name_of = np.empty(len(starts), np.int32)
    capacity = 1 << 12
    while True:
        firsts = np.empty(capacity, np.int64)
        table = np.zeros(4 * capacity, np.int32)
        count = kernels.number_names(data, starts, ends, table, firsts, name_of)
        if count >= 0:
            break
        capacity *= 8
    names = [bytes(data[starts[i] : ends[i]]).decode() for i in firsts[:count]]
    return batch.attribute_ids(names)[name_of]


def _add_shapes(batch: PredicateBatch, texts: pa.Array, rows: NDArray[np.int64]) -> list[int]:
    """Read texts by their shapes; return the rows that must be parsed one by one."""
    shaped = texts.take(pa.array(rows))
    data, starts = _bytes_of(shaped)
    n = len(rows)
    spans = np.empty((int(starts[-1] - starts[0]) // 2 + 2, 4), np.int64)
    literal_end = np.empty(n, np.int64)
    shape = np.zeros(n, np.uint64)
    taken = np.empty(n, np.bool_)
    kernels.scan_shapes(data, starts, spans, literal_end, shape, taken)
    n_literals = int(literal_end[-1])
    taken &= shaped.is_valid().to_numpy(zero_copy_only=False)
    literals, bad = read_literals(data, spans[:n_literals], batch.literals)
    first_literal = batch.literals.add(literals)
    taken[np.searchsorted(literal_end, np.flatnonzero(bad), side="right")] = False
    _, representative, shape_of = np.unique(shape, return_index=True, return_inverse=True)
    same = np.empty(n, np.bool_)
    kernels.mark_same_shapes(data, starts, representative[shape_of], spans, n_literals, same)
    taken &= same
    literal_start = np.concatenate([np.zeros(1, np.int64), literal_end])
    counts = np.diff(literal_start)
    order = np.argsort(shape_of, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(shape_of))[:-1])
    pending = [group[taken[group]] for group in groups]
    while pending:
        members = pending.pop()
        if not len(members):
            continue
        shape_read = _shape_of(shaped, int(members[0]), counts)
        if shape_read is None:
            taken[members] = False
            continue
        query = query_of(shape_read.expression)
        expression, n_own = shape_read.expression, shape_read.n_literals
        template = None if query else make_template(expression, n_own)
        if query is None and template is None:
            taken[members] = False
            continue
        if shape_read.fixed and template is not None and len(members) >= _MANY:
            places = literal_start[members][:, None] + np.arange(n_own)
            first = shaped[int(members[0])].as_py()
            left = _fill_terms(batch, first, data, spans, literals, places, rows[members])
            if left is not None:
                taken[members[left]] = False
                continue
        if shape_read.fixed:
            places = literal_start[members][:, None] + np.array(shape_read.fixed)
            members, *others = _same_literals(data, spans, members, places)
            pending += others
        if template is None:
            assert query is not None
            places = literal_start[members][:, None] + np.arange(n_own)
            columns = [_take(literals, own) for own in places.T]
            queries = batch.literals.strings_at(first_literal + places[:, int(query.parameter)])
            rest = _fill_queries(batch, expression, query, queries, columns, rows[members])
            taken[members[rest]] = False
            continue
        bases = literal_start[members] + first_literal
        _fill(batch, template, rows[members], bases)
    return rows[~taken].tolist()  # type: ignore[no-any-return]


def _shape_of(texts: pa.Array, member: int, counts: NDArray[np.int64]) -> Shape | None:
    """Parse one text for its shape; None if those like it must be parsed one by one."""
    try:
        shape = parse_shape(texts[member].as_py())
    except SubscriptionError:
        return None
    names = parameter_names(shape.expression)
    if shape.n_literals != counts[member] or not all(name.isdecimal() for name in names):
        return None
    return shape


def _with_parameters(
    text: str,
    names: Sequence[str],
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> tuple[str, list[bytes], NDArray[np.bool_]]:
    """Replace the literals of the first of some texts by parameters.

    Returns the operators that were read as signs, and which of the texts have them too.
    """
    whole = text.encode()
    begin = int(starts[0, 0]) - whole.find(bytes(data[starts[0, 0] : ends[0, 0]]))
    end, pieces, signs = 0, [], list[bytes]()
    is_like = np.ones(len(starts), np.bool_)
    for at, name in enumerate(names):
        start, stop = int(starts[0, at]) - begin, int(ends[0, at]) - begin
        sign = whole[start : start + 1]
        if sign in (b"-", b"+") and _OPERAND_BEFORE.search(whole[max(start - _NEAR, 0) : start]):
            is_like &= data[starts[:, at]] == ord(sign)  # an operator, not the sign of a number
            pieces.append(whole[end : start + 1])
        else:
            pieces.append(whole[end:start])
            sign = b""
        signs.append(sign)
        pieces.append(b" :" + name.encode())
        end = stop
    return (b"".join(pieces) + whole[end:]).decode(), signs, is_like


def _fill_terms(
    batch: PredicateBatch,
    text: str,
    data: NDArray[np.uint8],
    spans: NDArray[np.int64],
    literals: Literals,
    places: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """Add the predicates of texts that differ in literals, also in those within terms.

    `places` are those of the literals of each text. Returns the places of texts that must be
    parsed one by one; None where all must be.
    """
    starts, ends = (spans[places, at] for at in (kernels.LITERAL_START, kernels.LITERAL_END))
    names = [f"{_LITERAL}{at}" for at in range(places.shape[1])]
    condition, signs, is_like = _with_parameters(text, names, data, starts, ends)
    try:
        expression = parse(condition)
        own = {predicate.attribute for predicate in predicates(parse(text))}
    except SubscriptionError:
        return None
    shape, operands = number_operands(expression)
    template = make_template(shape, len(operands))
    if template is None or not all(isinstance(operand, Parameter) for operand in operands):
        return None
    needed = dict.fromkeys(p for row in template.rows for p in parameters_of(row.attribute))
    values = {
        name: [
            _value(bytes(data[start:stop]).removeprefix(signs[at]))
            for start, stop in zip(starts[:, at].tolist(), ends[:, at].tolist(), strict=True)
        ]
        for at, name in enumerate(names)
        if name in needed
    }
    filled_names, known = _filled_names(template, values, len(rows))
    known &= is_like
    if not known[0] or not {names[0] for names in filled_names.values()} <= own:
        return None
    filled = []
    for operand in operands:
        assert isinstance(operand, Parameter)
        own_places = places[:, names.index(str(operand.name))]
        filled.append(_at(literals, own_places))
    base = batch.literals.add(_interleave(filled, len(rows), 0)) if filled else 0
    chosen = np.flatnonzero(known)
    _fill(batch, template, rows[chosen], base + chosen * len(operands), _some(filled_names, known))
    return np.flatnonzero(~known)


_LITERAL = "literal_"
_OPERAND_BEFORE = re.compile(rb"[\w$)\"'`\x80-\xff](?<!\bAND)(?<!\bBETWEEN)(?<!\bOR)\s*$", re.I)
"""What stands before a sign that is an operator. (A mistake is noticed: the text is parsed too.)"""
_NEAR = 32
"""How many bytes before a sign are looked at."""


def _value(text: bytes) -> object:
    """Return the value of a number or of a string; None for other literals."""
    if text[:1] == b"'":
        return text[1:-1].decode().replace("''", "'")
    text = text.replace(b" ", b"")
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return None


def _at(literals: Literals, places: NDArray[np.int64]) -> Literals:
    return Literals(literals.domain[places], literals.key[places], literals.offset[places])


def _some(names: Mapping[str, list[str]], chosen: NDArray[np.bool_]) -> dict[str, list[str]]:
    return {name: list(compress(listed, chosen)) for name, listed in names.items()}


def _fill_queries(
    batch: PredicateBatch,
    expression: Expression,
    query: Query,
    queries: pa.Array,
    columns: list[Literals],
    rows: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Add the predicates of subscriptions that share an expression with a text query.

    `columns` are the literals of all other slots. Returns the places of those whose query is more
    than words.
    """
    forms, rest = read_word_queries(queries)
    others = [rest]
    for form in forms:
        n_slots = len(columns) + len(form.words)
        expanded = with_words(expression, query, form.is_prefix, len(columns))
        template = make_template(expanded, n_slots)
        if template is None:
            others.append(form.rows)
            continue
        filled = [_at(column, form.rows) for column in columns]
        for words, is_prefix in zip(form.words, form.is_prefix, strict=True):
            pattern = pc.replace_substring(words, "*", "%") if is_prefix else words
            filled.append(column_literals(pattern, batch.literals))
        n = len(form.rows)
        base = batch.literals.add(_interleave(filled, n, 0))
        _fill(batch, template, rows[form.rows], base + np.arange(n) * n_slots)
    return np.concatenate(others)


def _same_literals(
    data: NDArray[np.uint8],
    spans: NDArray[np.int64],
    members: NDArray[np.int64],
    places: NDArray[np.int64],
) -> list[NDArray[np.int64]]:
    """Divide texts by the spelling of some of their literals; those like the first come first."""
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for member, own in zip(members.tolist(), places, strict=True):
        ranges = spans[own, kernels.LITERAL_START], spans[own, kernels.LITERAL_END]
        spelling = tuple(bytes(data[start:end]) for start, end in zip(*ranges, strict=True))
        groups.setdefault(spelling, []).append(member)
    return [np.array(group, np.int64) for group in groups.values()]


def _fill(
    batch: PredicateBatch,
    template: Template,
    rows: NDArray[np.int64],
    bases: NDArray[np.int64],
    names: Mapping[str, list[str]] | None = None,
) -> None:
    """Add the predicates of all subscriptions that share a template.

    `bases` is the index of each subscription's first literal; `names` has those of computed values
    by subscription, for the names in which there are parameters.
    """
    n, parts = len(rows), template.rows
    slots = np.array([row.slot for row in parts], np.int64)
    literal_start = bases[:, None] + slots[None, :]
    for place in np.flatnonzero(slots < 0):
        literal_start[:, place] = _CONSTANTS[int(slots[place])]
    escapes = [-1 if row.escape is None else ord(row.escape) for row in parts]
    has_escape = any(code >= 0 for code in escapes)
    attributes = np.empty((n, len(parts)), np.int32)
    for at, row in enumerate(parts):
        filled = names.get(row.attribute) if names else None
        attributes[:, at] = batch.attribute_ids([row.attribute] if filled is None else filled)
    batch.add(
        Block(
            np.repeat(rows, len(template.conjunctions)),
            np.tile(template.row_counts, n),
            attributes.reshape(-1),
            np.tile(np.array([row.op for row in parts], np.uint8), n),
            literal_start.reshape(-1),
            np.tile(np.array([row.n_literals for row in parts], np.int32), n),
            np.tile(np.array(escapes, np.int32), n) if has_escape else None,
        )
    )


def normalize_template(
    where: str | Expression,
    params: Mapping[str, ArrowColumn],
    n: int,
    event_type: EventType | None = None,
    *,
    is_bounded: bool = True,
) -> BulkForm:
    """Bring n subscriptions into normal form that share a text and differ in parameters."""
    expression = parse(where) if isinstance(where, str) else where
    names = parameter_names(expression)
    missing = [name for name in names if name not in params]
    if missing:
        raise ParameterError(
            f"no column for parameter {', '.join(':' + name for name in missing)}", missing=missing
        )
    columns = {name: to_array(params[name]) for name in names}

    def expression_of(row: int) -> Expression:
        return bind(expression, {name: columns[name][row].as_py() for name in names})

    batch = PredicateBatch(is_bounded)
    shape, operands = number_operands(expression)
    query = query_of(shape)
    template = None if query else make_template(shape, len(operands))
    if query is None:
        is_in_bulk = template is not None
    else:
        is_in_bulk = columns[query.parameter].type in (STRING, pa.string())
    if not is_in_bulk or not use_kernels(n, MOST_WITHOUT_KERNELS):
        return batch.fold(n, event_type, expression_of, range(n))
    used = {str(operand.name) for operand in operands if isinstance(operand, Parameter)}
    by_name = {name: column_literals(columns[name], batch.literals) for name in used}
    filled = [
        by_name[str(operand.name)]
        if isinstance(operand, Parameter)
        else _constant(operand, n, batch)
        for operand in operands
    ]
    if template is None:
        assert query is not None
        queries = columns[query.parameter].cast(STRING)
        rest = _fill_queries(batch, shape, query, queries, filled, np.arange(n))
        return batch.fold(n, event_type, expression_of, rest)
    base = batch.literals.take_over(_interleave(filled, n, batch.literals.n))
    bases = base + np.arange(n) * len(operands)
    needed = dict.fromkeys(p for row in template.rows for p in parameters_of(row.attribute))
    values = {name: columns[name].to_pylist() for name in needed}
    filled_names, known = _filled_names(template, values, n)
    rows = np.flatnonzero(known)
    if filled_names and len(rows):
        own = {predicate.attribute for predicate in predicates(expression_of(int(rows[0])))}
        if not {names[rows[0]] for names in filled_names.values()} <= own:
            return batch.fold(n, event_type, expression_of, range(n))
    _fill(batch, template, rows, bases[rows], _some(filled_names, known))
    return batch.fold(n, event_type, expression_of, np.flatnonzero(~known).tolist())


def _filled_names(
    template: Template, values: Mapping[str, list[object]], n: int
) -> tuple[dict[str, list[str]], NDArray[np.bool_]]:
    """Return the names of computed values with their parameters filled in, by subscription.

    Also which subscriptions have no values but such as can be filled in.
    """
    known = np.ones(n, np.bool_)
    filled: dict[str, list[str]] = {}
    for name in dict.fromkeys(row.attribute for row in template.rows):
        if n and parameters_of(name):
            filled[name], fits = fill_names(name, values)
            known &= fits
    return filled, known


def _constant(literal: Literal, n: int, batch: PredicateBatch) -> Literals:
    one = column_literals(pa.array([literal.value]), batch.literals)
    parts: list[Any] = [np.broadcast_to(part, (n,)) for part in one]
    return Literals(*parts)


def _take(literals: Literals, rows: NDArray[np.int64]) -> Literals:
    return Literals(literals.domain[rows], literals.key[rows], literals.offset[rows])


def _interleave(columns: list[Literals], n: int, n_before: int) -> Literals:
    """Interleave columns of literals by subscription, after `n_before` free entries."""

    def mix(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
        mixed: NDArray[Any] = np.empty(n_before + n * len(parts), dtype)
        for at, part in enumerate(parts):
            mixed[n_before + at :: len(parts)] = part
        return mixed

    return Literals(
        mix([c.domain for c in columns], np.int8),
        mix([c.key for c in columns], np.int64),
        mix([c.offset for c in columns], np.int16),
    )
