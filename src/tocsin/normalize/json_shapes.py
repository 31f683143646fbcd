"""Many patterns in JSON → one conjunction table, shape by shape.

Enters: written conditions in the dialects that are JSON. Leaves: their predicates, in a batch of
`bulk`. Patterns that differ only in their texts and numbers share a shape: one of them is parsed,
and columns of texts and numbers fill its template. The others, among them all that are wrong, are
left over: they are parsed one by one, so that errors come from one parser.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.arrow import STRING
from tocsin.errors import SubscriptionError
from tocsin.language import dialects
from tocsin.language.dialects.eventbridge import (
    USES,
    Lifted,
    problem_of_cidr,
    problem_of_wildcard,
)
from tocsin.language.expression import (
    And,
    Literal,
    Operand,
    Or,
    Parameter,
    conjoin,
    disjoin,
    map_operands,
    no_text,
)
from tocsin.normalize import json_kernels as kernels
from tocsin.normalize.domains import Domain
from tocsin.normalize.fold import Block, PredicateBatch
from tocsin.normalize.fold_kernels import Literals
from tocsin.normalize.keys import float_keys
from tocsin.normalize.literals import LiteralColumn, column_literals, copy_texts
from tocsin.normalize.template import NoText, Template, make_template

Integers: TypeAlias = NDArray[np.int64]
JSON_DIALECTS = ("eventbridge", "sns")
_CHUNK = 1 << 18
_MOST_BYTES = 256 * 1024
_NUMBER = r"^-?(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,5})?$"
"""Numbers that any dialect takes and any float holds; others go one by one."""
_PROBLEMS: dict[str, Callable[[str], str | None]] = {
    "wildcard": problem_of_wildcard,
    "first address": problem_of_cidr,
    "last address": problem_of_cidr,
}
_UNUSED, _NUMERIC = 0, 1
_CODES = {use: 2 + at for at, use in enumerate(USES)}


class _Shape(NamedTuple):
    """A template, and what becomes of the literals of texts that share it."""

    template: Template
    lifted: Lifted
    constants: tuple[Literal, ...]


def add_patterns(batch: PredicateBatch, texts: pa.Array, rows: Integers) -> Integers:
    """Add written patterns to a batch, as the subscriptions `rows`; return the rows left over."""
    left = [np.empty(0, np.int64)]
    for dialect in JSON_DIALECTS:
        mark = dialects.write("", dialect)
        is_of = pc.starts_with(texts, mark).to_numpy(zero_copy_only=False)
        shapes: dict[str, _Shape | None] = {}
        own = np.flatnonzero(is_of)
        for start in range(0, len(own), _CHUNK):
            places = own[start : start + _CHUNK]
            patterns = pc.binary_replace_slice(texts.take(pa.array(places)), 0, len(mark), "")
            chunk = _Chunk(batch, patterns, rows[places], dialect, shapes)
            left.append(rows[places[chunk.read()]])
        texts, rows = texts.filter(pa.array(~is_of)), rows[~is_of]
    return np.concatenate([rows, *left])


class _Chunk:
    """One use: some texts, their skeletons, and their literals."""

    def __init__(
        self,
        batch: PredicateBatch,
        texts: pa.Array,
        rows: Integers,
        dialect: str,
        shapes: dict[str, _Shape | None],
    ) -> None:
        self.batch = batch
        self.texts = texts
        self.rows = rows
        self.parse_shape: Callable[[str], Lifted] = import_module(
            f"tocsin.language.dialects.{dialect}"
        ).parse_shape
        self.shapes = shapes

    def read(self) -> Integers:
        """Add what can be read by shapes; return the rows that are left."""
        self._scan()
        codes = self.skeletons.indices.to_numpy()
        shape_of = [self._shape(text, codes) for text in self._representatives(codes)]
        known = np.array([shape is not None for shape in shape_of], np.bool_)
        self.taken &= known[codes] if len(known) else False
        self._read_literals(shape_of, codes)
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(shape_of)))
        for shape, members in zip(shape_of, np.split(order, ends[:-1]), strict=True):
            members = members[self.taken[members]]
            if shape is not None and len(members):
                self._fill(shape, members)
        return np.flatnonzero(~self.taken)

    def _scan(self) -> None:
        _, offsets, values = self.texts.buffers()
        n = len(self.texts)
        starts = np.frombuffer(offsets, np.int64)[self.texts.offset : self.texts.offset + n + 1]
        size = int(starts[-1])
        data = np.frombuffer(values, np.uint8)[:size] if size else np.zeros(1, np.uint8)
        for array in (data, starts):  # a writable array would compile another version
            array.flags.writeable = False
        n_bytes = int(starts[-1] - starts[0])
        out, out_start = np.empty(n_bytes + 1, np.uint8), np.zeros(n + 1, np.int64)
        spans, literal_end = np.empty((n_bytes // 2 + 2, 3), np.int64), np.empty(n, np.int64)
        self.taken = np.empty(n, np.bool_)
        kernels.scan(data, starts, out, out_start, spans, literal_end, self.taken)
        self.taken &= self.texts.is_valid().to_numpy(zero_copy_only=False)
        self.taken &= np.diff(starts) <= _MOST_BYTES
        self.data = data
        self.literal_start = np.concatenate([np.zeros(1, np.int64), literal_end])
        self.spans = spans[: self.literal_start[-1]]
        buffers = [None, pa.py_buffer(out_start), pa.py_buffer(out)]
        self.skeletons = pa.Array.from_buffers(STRING, n, buffers).dictionary_encode()

    def _representatives(self, codes: Integers) -> list[int]:
        """Return a text of each skeleton."""
        first = np.zeros(len(self.skeletons.dictionary), np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        return first.tolist()

    def _shape(self, row: int, codes: Integers) -> _Shape | None:
        """Parse a text for the shape of all that have its skeleton."""
        if not self.taken[row]:
            return None
        skeleton = self.skeletons.dictionary[int(codes[row])].as_py()
        if skeleton not in self.shapes:
            n_literals = int(self.literal_start[row + 1] - self.literal_start[row])
            self.shapes[skeleton] = self._read_shape(self.texts[row].as_py(), n_literals)
        return self.shapes[skeleton]

    def _read_shape(self, text: str, n_literals: int) -> _Shape | None:
        try:
            lifted = self.parse_shape(text)
        except SubscriptionError:
            return None
        if lifted.n_literals != n_literals:
            return None
        constants: list[Literal] = []

        def number(operand: Operand) -> Operand:
            if not isinstance(operand, Literal):
                return operand
            constants.append(operand)
            return Parameter(2 * n_literals + len(constants) - 1)

        expression = map_operands(_with_kinds_joined(lifted.expression), number)
        template = make_template(expression, 2 * n_literals + len(constants))
        return None if template is None else _Shape(template, lifted, tuple(constants))

    # Literals.

    def _read_literals(self, shapes: list[_Shape | None], codes: Integers) -> None:
        """Read the literals of all texts; texts with one that cannot be read here are left."""
        counts = np.diff(self.literal_start)
        row_of = np.repeat(np.arange(len(codes)), counts)
        place = np.arange(len(row_of)) - self.literal_start[row_of]
        n_of = [0 if shape is None else shape.lifted.n_literals for shape in shapes]
        start_of = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_of)])
        at = np.minimum(start_of[codes[row_of]] + place, max(int(start_of[-1]) - 1, 0))
        literals: list[Literals] = []
        for second in (False, True):
            uses = np.zeros(max(int(start_of[-1]), 1), np.int8)
            for shape, start, n in zip(shapes, start_of.tolist(), n_of, strict=False):
                for number, use in {} if shape is None else shape.lifted.uses.items():
                    if (number >= n) is second:
                        uses[start + number % n] = _NUMERIC if use == "number" else _CODES[use]
            own = np.where(self.taken[row_of], uses[at], _UNUSED)
            if second and not own.any():
                break
            literals.append(self._literals(own, row_of))
        self.values = literals[0].key
        self.bases = [self.batch.literals.add(part) for part in literals]

    def _literals(self, uses: NDArray[np.int8], row_of: Integers) -> Literals:
        """Return literals by their uses."""
        n = len(uses)
        domain, key = np.full(n, -1, np.int8), np.zeros(n, np.int64)
        numbers = np.flatnonzero(uses == _NUMERIC)
        if len(numbers):
            texts = self._texts(numbers)
            good = pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False)
            good &= self.spans[numbers, 2] == 0
            self.taken[row_of[numbers[~good]]] = False
            values = pc.cast(texts.filter(pa.array(good)), pa.float64()).to_numpy() + 0.0
            domain[numbers[good]] = Domain.NUMBER
            key[numbers[good]] = float_keys(values)
        for use, code in _CODES.items():
            places = np.flatnonzero(uses == code)
            if len(places):
                strings, good = _used(self._texts(places), use)
                self.taken[row_of[places[~good]]] = False
                domain[places] = Domain.STRING
                key[places] = self.batch.literals.add_strings(strings)
        return Literals(domain, key, np.zeros(n, np.int16))

    def _texts(self, places: Integers) -> pa.Array:
        return copy_texts(self.data, self.spans[places, 0], self.spans[places, 1])

    # Templates.

    def _fill(self, shape: _Shape, members: Integers) -> None:
        """Add the predicates of all texts of a shape."""
        starts = self.literal_start[members]
        for low, high in shape.lifted.ordered:
            in_order = self.values[starts + low] < self.values[starts + high]
            self.taken[members[~in_order]] = False
            members, starts = members[in_order], starts[in_order]
        n, n_literals = len(members), shape.lifted.n_literals
        first_constant = _add_constants(self.batch.literals, shape.constants)
        parts = shape.template.rows
        columns: list[Any] = []
        for row in parts:
            which, number = divmod(max(row.slot, 0), max(n_literals, 1)) if n_literals else (2, 0)
            if row.slot >= 2 * n_literals:
                columns.append(np.full(n, first_constant + row.slot - 2 * n_literals))
            elif row.n_literals == 0:
                columns.append(np.zeros(n, np.int64))
            else:
                columns.append(starts + self.bases[which] + number)
        escapes = [-1 if row.escape is None else ord(row.escape) for row in parts]
        literal_start = np.stack(columns, axis=1) if columns else np.empty((n, 0), np.int64)
        self.batch.add(
            Block(
                np.repeat(self.rows[members], len(shape.template.conjunctions)),
                np.tile(shape.template.row_counts, n),
                np.tile(self.batch.attribute_ids(row.attribute for row in parts), n),
                np.tile(np.array([row.op for row in parts], np.uint8), n),
                literal_start.reshape(-1),
                np.tile(np.array([row.n_literals for row in parts], np.int32), n),
                np.tile(np.array(escapes, np.int32), n) if max(escapes, default=-1) >= 0 else None,
            )
        )


def _with_kinds_joined(expression: Any) -> Any:
    """Return an expression in which the conditions of `no_text` are one."""
    if isinstance(expression, And):
        return conjoin([_with_kinds_joined(part) for part in expression.operands])
    if not isinstance(expression, Or):
        return expression
    joined: list[Any] = []
    rest = [_with_kinds_joined(part) for part in expression.operands]
    while rest:
        name = getattr(rest[0], "attribute", "")
        if rest[:4] == no_text(name):
            rest[:4] = [NoText(name)]
        joined.append(rest.pop(0))
    return disjoin(joined)


def _add_constants(column: LiteralColumn, constants: tuple[Literal, ...]) -> int:
    """Add constants one after the other; return the number of the first."""
    first = column.n
    for constant in constants:
        column.add(column_literals(pa.array([constant.value]), column))
    return first


def _used(texts: pa.Array, use: str) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return texts changed for their use, and which could be."""
    if use == "string":
        return texts, np.ones(len(texts), np.bool_)
    encoded = texts.dictionary_encode()
    change, problem_of = USES[use], _PROBLEMS.get(use)
    distinct = encoded.dictionary.to_pylist()
    good = np.array([problem_of is None or problem_of(text) is None for text in distinct], np.bool_)
    changed = [change(text) if ok else "" for text, ok in zip(distinct, good, strict=True)]
    indices = encoded.indices.to_numpy()
    return pa.array(changed, STRING).take(encoded.indices), good[indices]
