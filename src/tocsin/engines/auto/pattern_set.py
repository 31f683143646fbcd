"""The distinct LIKE patterns of an attribute, compiled to be tried on a text all at once.

Enters: patterns that are no intervals. Leaves: programs, which `like_kernels` runs on a text; and
an automaton of one literal of each pattern, with which `literal_kernels` finds the patterns that a
text fits, however many there are. A pattern without a literal (`_%`) is only in the programs.

Which literal: of those with at least as many bytes as a root of the automaton, the one that the
fewest patterns have, then the longest. Where many patterns say `%www.example.org/%word%`, a text
that has the first literal is not tried with all of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.encode.strings import Strings
from tocsin.engines.auto import literal_kernels
from tocsin.engines.auto.arrays import Automaton, Programs
from tocsin.engines.auto.buffer_pool import BufferPool
from tocsin.engines.auto.like_kernels import MANY as MANY_BYTE
from tocsin.engines.auto.like_kernels import ONE as ONE_BYTE
from tocsin.engines.auto.output import Buffer, by_event
from tocsin.engines.auto.tables import check_capacity
from tocsin.engines.ragged import RaggedIds
from tocsin.normalize.patterns import MANY, ONE, Part, Pattern

_MAX_LITERAL = 256
"""Of a longer literal, only the last bytes are looked for."""
_MAX_NODES = (1 << 28) - 1
_BITS_PER_ROOT = 32
_MARKS = {ONE: bytes([int(ONE_BYTE)]), MANY: bytes([int(MANY_BYTE)])}
_GUESSED_LENGTH = 60
"""How many characters texts are thought to have, and how many letters their alphabet has."""
_GUESSED_LETTERS = 12.0


class Scratch(threading.local):
    """What a thread reuses from one match to the next."""

    def __init__(self) -> None:
        self._literals = _Stamps()
        self._patterns = _Stamps()
        self._hits = self._rows = np.empty(0, np.uint32)

    def literal_stamps(self, n: int, n_texts: int) -> tuple[NDArray[np.int64], int]:
        """Return an array for n literals, in which all is less than a stamp, and that stamp.

        The texts have it and the following ones.
        """
        return self._literals.reserve(n, n_texts)

    def pattern_stamps(self, n: int, n_texts: int) -> tuple[NDArray[np.int64], int]:
        """Return the same for patterns."""
        return self._patterns.reserve(n, n_texts)

    def hits(self, n: int) -> NDArray[np.uint32]:
        """Return an array that n patterns fit into, to be used at once."""
        if len(self._hits) < n:
            self._hits = np.empty(max(n, 2 * len(self._hits)), np.uint32)
        return self._hits

    def rows(self, n: int) -> NDArray[np.uint32]:
        """Return an array that n rows fit into, to be used at once."""
        if len(self._rows) < n:
            self._rows = np.empty(max(n, 2 * len(self._rows)), np.uint32)
        return self._rows


class _Stamps:
    """Which text something was last seen in; texts are numbered as long as the thread lives."""

    def __init__(self) -> None:
        self._last = np.zeros(0, np.int64)
        self._next = 1

    def reserve(self, n: int, n_texts: int) -> tuple[NDArray[np.int64], int]:
        if len(self._last) < n:
            self._last = np.zeros(max(n, 2 * len(self._last)), np.int64)
        stamp = self._next
        self._next += n_texts
        return self._last, stamp


class PatternSet:
    """Patterns, numbered in an order of its own: `order` has their places among the arguments.

    Those without a literal come last. Immutable.
    """

    def __init__(self, patterns: Sequence[Pattern], *, ignore_case: bool = False) -> None:
        parts = [pattern.parts for pattern in patterns]
        if ignore_case:
            parts = _folded(parts)
        encoded = [[_encode(part) for part in each] for each in parts]
        literals = _choose_literals(parts, encoded)
        distinct = sorted({literal for literal in literals if literal is not None})
        number = {literal: at for at, literal in enumerate(distinct)}
        of_pattern = [len(distinct) if literal is None else number[literal] for literal in literals]
        is_decided = np.array(
            [
                len(each) == 3 and each[0] == each[2] == _MARKS[MANY] and each[1] == literal
                for each, literal in zip(encoded, literals, strict=True)
            ],
            np.bool_,
        )
        self.order = np.lexsort((~is_decided, np.array(of_pattern)))
        self.programs = _make_programs([b"".join(encoded[at]) for at in self.order.tolist()])
        first = np.searchsorted(np.array(of_pattern)[self.order], np.arange(len(distinct) + 1))
        self.n_with_literal = int(first[-1])
        flags = np.append(is_decided[self.order], False)[first[:-1]]
        self.automaton = _make_automaton(distinct, 2 * first + np.append(flags, False))
        lengths = [_MAX_LITERAL if literal is None else len(literal) for literal in literals]
        self.guessed_shares: NDArray[np.float64] = np.clip(
            _GUESSED_LENGTH * _GUESSED_LETTERS ** -np.array(lengths, np.float64)[self.order],
            1e-6,
            0.5,
        )

    def __len__(self) -> int:
        return len(self.order)

    def scan(self, strings: Strings, scratch: Scratch, pool: BufferPool) -> RaggedIds:
        """Return for each text the patterns with a literal that it fits."""
        n = strings.n
        buffer = Buffer(pool, len(self) + max(2 * n, 1024), np.uint32)
        stamps, stamp = scratch.literal_stamps(len(self.automaton.shorter), n)
        arguments = (*self.arrays, strings.start, strings.octets, stamps, stamp)
        return by_event(literal_kernels.scan, arguments, n, buffer, len(self))

    def shares(self, strings: Strings, n_events: int) -> NDArray[np.float64]:
        """Return the expected share of events that fit each pattern, measured on a sample."""
        fits = self.scan(strings, Scratch(), BufferPool())
        weights = np.bincount(strings.of_event[strings.of_event >= 0], minlength=strings.n)
        counts = np.bincount(fits.values, np.repeat(weights, np.diff(fits.offsets)), len(self))
        shares: NDArray[np.float64] = (counts + self.guessed_shares) / (n_events + 1)
        return shares

    @property
    def arrays(self) -> tuple[Automaton, Programs]:
        """The automaton and the programs, as kernels take them."""
        return self.automaton, self.programs

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.nbytes for array in (*self.automaton, *self.programs))


def _folded(patterns: list[tuple[Part, ...]]) -> list[tuple[Part, ...]]:
    """Return patterns with their literals in lower case."""
    literals = [part for parts in patterns for part in parts if isinstance(part, str)]
    lower = iter(pc.utf8_lower(pa.array(literals, pa.large_string())).to_pylist())
    return [
        tuple(next(lower) if isinstance(part, str) else part for part in parts)
        for parts in patterns
    ]


def _encode(part: Part) -> bytes:
    return part.encode() if isinstance(part, str) else _MARKS[part]


def _make_programs(programs: list[bytes]) -> Programs:
    lengths = np.fromiter(map(len, programs), np.int64, len(programs))
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return Programs(start, np.frombuffer(b"".join(programs), np.uint8).copy())


def _choose_literals(
    patterns: list[tuple[Part, ...]], encoded: list[list[bytes]]
) -> list[bytes | None]:
    """Return the literal of each pattern that is looked for, if it has any."""
    several: list[tuple[int, list[bytes]]] = []
    chosen: list[bytes | None] = [None] * len(patterns)
    uses: Counter[bytes] = Counter()
    for at, (parts, pieces) in enumerate(zip(patterns, encoded, strict=True)):
        literals = [
            piece[-_MAX_LITERAL:]
            for part, piece in zip(parts, pieces, strict=True)
            if isinstance(part, str)
        ]
        if len(literals) == 1:
            chosen[at] = literals[0]
        elif literals:
            several.append((at, literals))
        uses.update(set(literals))
    for at, literals in several:
        chosen[at] = min(
            literals,
            key=lambda each: (len(each) < literal_kernels.ROOT_BYTES, uses[each], -len(each)),
        )
    return chosen


def _table(n: int) -> NDArray[np.uint64]:
    """Return a hash table for n entries, at most half full."""
    size = 1 << (2 * n - 1).bit_length() if n else 1
    return np.full(size, literal_kernels.FREE, np.uint64)


def _make_automaton(literals: list[bytes], first: NDArray[np.int64]) -> Automaton:
    """Return the automaton of distinct literals in order."""
    start, octets = _make_programs(literals)
    sizes = np.zeros(4, np.int64)
    literal_kernels.measure(start, octets, sizes)
    n_short, n_roots, n_nodes, n_edges = sizes.tolist()
    check_capacity(n_nodes, "characters of LIKE patterns", _MAX_NODES)
    automaton = Automaton(
        short_lengths=np.zeros(256, np.uint8),
        short=_table(n_short),
        filter=np.zeros(max(1 << (_BITS_PER_ROOT * n_roots - 1).bit_length() >> 6, 64), np.uint64),
        roots=_table(n_roots),
        nodes=np.empty((n_nodes, 4), np.int32),
        edges=_table(n_edges),
        shorter=np.empty(len(literals), np.int32),
        first=first,
    )
    literal_kernels.build(start, octets, automaton)
    return automaton
