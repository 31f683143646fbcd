"""The planner: statistics of events → access tables for a segment's conjunctions.

Enters: the conditions of a segment, and the share of events that each cell holds. Leaves: a `Plan`:
how cells become key digits, which families of tables there are, and where each conjunction goes.

After Fabret et al., section 3: the cost of a set of tables is what an event pays for looking into
them, plus the checks it is expected to make there; tables are added greedily, each time the one
that saves most. We deviate in four ways. A range can be part of a key, by groups of neighbouring
cells narrow enough that it falls into one or two of them; what it is expected to cost is what
events have in these. Tables that share all but one attribute form a *family*: an event computes the
shared part of the key once, and its clusters lie together. Where a family has many members and no
prefix, only those are kept that pay for being looked into. And the search is made on a sample of
the conjunctions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto import plan_kernels as kernels
from tocsin.engines.auto.arrays import Coding, Conditions, Flags, Integers

MAX_DIGITS = 8
"""A condition that covers more digits than this is not used in keys."""
MAX_PREFIX = 3
MAX_FAMILIES = 8
_SAMPLE = 20_000
_SAMPLE_CELLS = 8_000_000
_CANDIDATES = 24
_MANY_MEMBERS = 64
"""With fewer attributes than these, all members of a family are kept."""
_FEWEST_BITS = 512
"""With fewer conjunctions than these there are no bitmaps."""
_MAX_CODES = 65_535

_Checks: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64]]
"""For each sampled conjunction its expected checks an event, and the attribute of its member."""


@dataclass(frozen=True)
class Costs:
    """What an event pays, in nanoseconds: to look into tables, and to check entries.

    Measured by `tocsin bench calibrate`; a probe is given more, as it often misses the cache.
    """

    family: float = 8.0
    probe: float = 3.0
    look: float = 15.0
    """What it costs to look into one of many tables by itself, where something is found."""
    check: float = 1.5
    word: float = 4.0
    """What a word of 64 conjunctions costs in a bitmap, and one attribute of it."""
    band: float = 0.4
    scan: float = 400.0
    """What it costs to find the literals of LIKE patterns in a text."""
    literal: float = 10.0
    """What a conjunction costs that is found under its pattern."""
    like: float = 40.0
    """What it costs to try a pattern on a text."""

    @property
    def bit_share(self) -> tuple[float, float]:
        """How often a conjunction may be checked before a bitmap is cheaper, in two parts.

        The first is what it costs there in itself, the second what each of its conditions adds.
        """
        return self.word / 64 / self.check, self.band / 64 / self.check


class PatternKeys(NamedTuple):
    """The LIKE patterns under which conjunctions may be found, at most one for each.

    `row` is a row of the `PatternTable`, `share` the expected share of events that fit the pattern,
    and `group` the automaton that finds it; one group is one scan of a text.
    """

    conjunction: Integers
    row: Integers
    share: NDArray[np.float64]
    group: Integers


_NONE = np.empty(0, np.int64)
NO_PATTERNS = PatternKeys(_NONE, _NONE, np.empty(0), _NONE)


@dataclass(frozen=True)
class Plan:
    """Where the conjunctions of a segment go; family -1 is the bitmaps.

    Those of `pattern_rows`, rows of the `PatternTable`, go under their LIKE patterns instead, and
    are marked in `in_patterns`.
    """

    coding: Coding
    selectivity: NDArray[np.float64]
    prefixes: tuple[tuple[int, ...], ...]
    family: NDArray[np.int16]
    member: NDArray[np.int32]
    in_patterns: Flags
    pattern_rows: Integers


def make_plan(
    conditions: Conditions,
    n_cells: NDArray[np.int32],
    shares: list[NDArray[np.float64]],
    costs: Costs,
    patterns: PatternKeys = NO_PATTERNS,
) -> Plan:
    """Plan the access tables; `shares[a]` is the expected share of events in each cell of a."""
    coding, counts = _make_coding(conditions, n_cells)
    first, below = _cumulated(shares)
    selectivity = _selectivities(conditions, first, below)
    is_key = np.empty(len(conditions.attribute), np.bool_)
    kernels.find_keys(coding, conditions, counts, MAX_DIGITS, is_key)
    checked = selectivity
    if not coding.is_point.all():
        checked = selectivity.copy()
        kernels.find_key_shares(coding, conditions, first, below, checked)
    search = _Search(conditions, coding, checked, is_key, costs, patterns)
    prefixes = search.run()
    is_kept = search.kept_members(prefixes, shares)
    most_keys = max_keys(len(conditions.start) - 1)
    while True:
        family, member, pattern_rows = _choose(
            conditions, checked, is_key, prefixes, is_kept, costs, patterns, selectivity
        )
        n_keys = [_count_keys(coding, p, member[family == f]) for f, p in enumerate(prefixes)]
        widest = int(np.argmax(n_keys))
        if n_keys[widest] <= most_keys or not prefixes[widest]:
            break
        prefixes = tuple(p for p in prefixes if p != prefixes[widest])
    used = np.unique(family[family >= 0])
    numbers = np.full(len(prefixes) + 1, -1, np.int16)
    numbers[used] = np.arange(len(used))
    in_patterns = np.zeros(len(family), np.bool_)
    in_patterns[patterns.conjunction[np.isin(patterns.row, pattern_rows)]] = True
    prefixes = tuple(prefixes[f] for f in used)
    return Plan(coding, selectivity, prefixes, numbers[family], member, in_patterns, pattern_rows)


def plan_under(conditions: Conditions, coding: Coding, prefix: tuple[int, ...]) -> Plan | None:
    """Plan one table with a given key for all conjunctions, if they all have it.

    It takes no search and no statistics: for few conjunctions, in the cells of a planned segment.
    """
    counts = np.empty(len(conditions.attribute), np.int64)
    kernels.count_codes(coding, conditions, counts)
    is_key = np.empty(len(counts), np.bool_)
    kernels.find_keys(coding, conditions, counts, MAX_DIGITS, is_key)
    if not kernels.fit_prefix(coding, conditions, is_key, np.array(prefix, np.int64)):
        return None
    n = len(conditions.start) - 1
    selectivity = counts / coding.n_cells[conditions.attribute]
    family, member = np.zeros(n, np.int16), np.full(n, -1, np.int32)
    return Plan(coding, selectivity, (prefix,), family, member, np.zeros(n, np.bool_), _NONE)


def max_keys(n_conjunctions: int) -> int:
    """How many keys a family may have: each takes some bytes, whether it is used or not."""
    return max(1 << 22, 4 * n_conjunctions)


def _choose(
    conditions: Conditions,
    checked: NDArray[np.float64],
    is_key: NDArray[np.bool_],
    prefixes: tuple[tuple[int, ...], ...],
    is_kept: NDArray[np.bool_],
    costs: Costs,
    patterns: PatternKeys,
    selectivity: NDArray[np.float64],
) -> tuple[NDArray[np.int16], NDArray[np.int32], Integers]:
    """Return the family (-1: bitmaps) and the member attribute (-1: none) of each conjunction.

    Also the rows of the patterns under which conjunctions go instead; their family is -1.
    """
    n = len(conditions.start) - 1
    family, member, checks = np.empty(n, np.int16), np.empty(n, np.int32), np.empty(n)
    prefix_start = np.cumsum([0, *(len(prefix) for prefix in prefixes)])
    prefix = np.array([a for each in prefixes for a in each], np.int64)
    for bit_share in (costs.bit_share, (np.inf, 0.0)):
        shares = np.array(bit_share)
        kernels.choose_tables(
            conditions,
            checked,
            is_key,
            prefix_start,
            prefix,
            is_kept,
            shares,
            family,
            member,
            checks,
        )
        chosen = _choose_patterns(conditions, selectivity, checks, patterns, costs)
        under_pattern = patterns.conjunction[chosen]
        n_bits = np.count_nonzero(family < 0) - np.count_nonzero(family[under_pattern] < 0)
        if n_bits == 0 or n_bits >= _FEWEST_BITS:
            break
    family[under_pattern], member[under_pattern] = -1, -1
    return family, member, np.sort(patterns.row[chosen])


def _choose_patterns(
    conditions: Conditions,
    selectivity: NDArray[np.float64],
    checks: NDArray[np.float64],
    patterns: PatternKeys,
    costs: Costs,
) -> NDArray[np.bool_]:
    """Return which patterns serve as keys: where that saves more than it costs to scan texts.

    A conjunction in a table is checked by `checks` events, and its pattern is tried on the events
    that satisfy its other conditions.
    """
    c = patterns.conjunction
    if not len(c):
        return np.empty(0, np.bool_)
    logarithms = np.append(0.0, np.cumsum(np.log(selectivity)))[conditions.start]
    satisfied = np.exp(logarithms[c + 1] - logarithms[c])
    gain = checks[c] * costs.check + satisfied * costs.like - patterns.share * costs.literal
    is_better: NDArray[np.bool_] = gain > 0
    gains = np.bincount(patterns.group[is_better], gain[is_better], int(patterns.group.max()) + 1)
    return is_better & (gains > costs.scan)[patterns.group]


def _count_keys(coding: Coding, prefix: tuple[int, ...], members: NDArray[np.int32]) -> int:
    """Return how many keys a family has whose conjunctions have these member attributes."""
    n_digits = coding.n_digits
    stride = sum(int(n_digits[a]) if a >= 0 else 1 for a in np.unique(members).tolist())
    for a in prefix:
        stride *= int(n_digits[a])
    return stride


def _cumulated(shares: list[NDArray[np.float64]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return where the cells of each attribute begin, and the share of events before each."""
    first = np.cumsum([0, *(len(share) + 1 for share in shares)])
    below = np.concatenate([np.zeros(0), *(np.append(0.0, np.cumsum(share)) for share in shares)])
    return first, below


def _selectivities(
    conditions: Conditions, first: NDArray[np.int64], below: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the expected share of events that satisfy each condition."""
    counts = np.diff(conditions.range_start)
    base = np.repeat(first[conditions.attribute], counts)
    per_range = below[base + conditions.high] - below[base + conditions.low]
    total = np.concatenate([[0.0], np.cumsum(per_range)])
    selectivity = total[conditions.range_start[1:]] - total[conditions.range_start[:-1]]
    clipped: NDArray[np.float64] = np.clip(selectivity, 1e-9, 1.0)
    return clipped


def _make_coding(
    conditions: Conditions, n_cells: NDArray[np.int32]
) -> tuple[Coding, NDArray[np.int64]]:
    """Choose how the cells of each attribute become codes and key digits."""
    n_attributes = len(n_cells)
    is_exact = n_cells <= _MAX_CODES
    n_codes = np.where(is_exact, n_cells, _MAX_CODES + 1).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(n_codes)]).astype(np.int64)
    coding = Coding(
        n_cells=n_cells.astype(np.int64),
        is_exact=is_exact,
        is_point=np.zeros(n_attributes, np.bool_),
        shift=np.zeros(n_attributes, np.int64),
        first=first,
        digit=np.full(first[-1] + 1, -1, np.int32),
        n_digits=np.zeros(n_attributes, np.int64),
    )
    counts = np.empty(len(conditions.attribute), np.int64)
    kernels.count_codes(coding, conditions, counts)
    n_conditions = np.maximum(np.bincount(conditions.attribute, minlength=n_attributes), 1)
    n_narrow = np.bincount(conditions.attribute[counts <= 2], minlength=n_attributes)
    coding.is_point[:] = 2 * n_narrow >= n_conditions
    widths = np.log2(counts)
    mean = np.bincount(conditions.attribute, widths, n_attributes) / n_conditions
    coding.shift[:] = np.floor(mean)
    is_marked = np.zeros(first[-1] + 1, np.bool_)
    kernels.mark_codes(coding, conditions, counts, MAX_DIGITS, is_marked)
    for a in range(n_attributes):
        digits = coding.digit[first[a] : first[a + 1]]
        if coding.is_point[a]:
            marked = np.flatnonzero(is_marked[first[a] : first[a + 1]])
            digits[marked] = np.arange(len(marked))
        else:
            digits[2:] = np.arange(len(digits) - 2) >> coding.shift[a]
        coding.n_digits[a] = digits.max(initial=-1) + 1
    return coding, counts


class _Search:
    """The greedy search for families, on a sample of the conjunctions."""

    def __init__(
        self,
        conditions: Conditions,
        coding: Coding,
        selectivity: NDArray[np.float64],
        is_key: NDArray[np.bool_],
        costs: Costs,
        patterns: PatternKeys,
    ) -> None:
        self.costs = costs
        self.n_digits = np.maximum(coding.n_digits, 1)
        n = len(conditions.start) - 1
        n_attributes = len(coding.n_cells)
        size = min(_SAMPLE, max(_SAMPLE_CELLS // max(n_attributes, 1), 1000))
        rng = np.random.default_rng(0)
        sample = np.arange(n) if n <= size else np.sort(rng.choice(n, size, replace=False))
        self.weight = n / max(len(sample), 1)
        self.max_keys = max_keys(n)
        self.share = np.ones((len(sample), n_attributes), np.float32)
        lengths = (conditions.start[1:] - conditions.start[:-1])[sample]
        row = np.repeat(np.arange(len(sample)), lengths)
        inside = np.arange(lengths.sum()) + np.repeat(
            conditions.start[sample] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths
        )
        chosen = is_key[inside]
        self.share[row[chosen], conditions.attribute[inside][chosen]] = selectivity[inside][chosen]
        self.has = self.share < 1.0
        fixed, each = costs.bit_share
        self.most_checks = (fixed + each * lengths).astype(np.float32)
        if n < _FEWEST_BITS:
            self.most_checks[:] = 1.0
        if len(patterns.conjunction):
            under_pattern = np.ones(n, np.float32)
            under_pattern[patterns.conjunction] = patterns.share * (costs.literal / costs.check)
            self.most_checks = np.minimum(self.most_checks, under_pattern[sample])

    def run(self) -> tuple[tuple[int, ...], ...]:
        """Return the prefixes of the families, the empty one first."""
        families: list[tuple[int, ...]] = [()]
        if not self.share.size:
            return ((),)
        known: dict[tuple[int, ...], _Checks] = {(): self._family(())}
        cost = self._total([known[()]])
        while len(families) < MAX_FAMILIES:
            best: tuple[float, tuple[int, ...]] | None = None
            for candidate in self._candidates(families):
                if candidate not in known:
                    known[candidate] = self._family(candidate)
                total = self._total([known[f] for f in (*families, candidate)])
                if best is None or total < best[0]:
                    best = (total, candidate)
            if best is None or best[0] > 0.9 * cost:
                break
            cost = best[0]
            families.append(best[1])
        return tuple(families)

    def _candidates(self, families: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        use = self.has.sum(axis=0)
        frequent = np.argsort(-use, kind="stable")[:_CANDIDATES]
        candidates: dict[tuple[int, ...], None] = {}
        for family in families:
            if len(family) == MAX_PREFIX:
                continue
            for a in frequent.tolist():
                if a in family or not use[a]:
                    continue
                candidate = tuple(sorted((*family, a)))
                n_keys = int(np.prod(self.n_digits[list(candidate)]))
                if candidate not in families and n_keys * 4 <= self.max_keys:
                    candidates[candidate] = None
        return list(candidates)

    def _family(self, prefix: tuple[int, ...]) -> _Checks:
        """Return for each sampled conjunction its checks under a family, and its member."""
        columns = list(prefix)
        rest = self.share.copy()
        rest[:, columns] = 1.0
        member = rest.argmin(axis=1)
        least = rest[np.arange(len(rest)), member]
        member[least >= 1.0] = -1
        checks = least * self.share[:, columns].prod(axis=1, dtype=np.float32)
        checks[~self.has[:, columns].all(axis=1)] = np.inf
        return checks, member

    def kept_members(
        self, prefixes: tuple[tuple[int, ...], ...], shares: list[NDArray[np.float64]]
    ) -> NDArray[np.bool_]:
        """Return which members the family without a prefix keeps, where all do not pay.

        With fewer tables an event looks into fewer of them, and checks hardly more as long as most
        conjunctions have a condition in one that is kept. The most frequent ones are kept.
        """
        n_attributes = self.share.shape[1]
        is_kept = np.ones(n_attributes, np.bool_)
        if n_attributes < _MANY_MEMBERS:
            return is_kept
        checks = np.stack([self._family(prefix)[0] for prefix in prefixes])
        own = self.share[checks.argmin(axis=0) == prefixes.index(())]
        present = np.array([1.0 - share[0] for share in shares])
        order = np.argsort(-(own < 1.0).sum(axis=0), kind="stable")
        best = np.inf
        for eighths in range(8, 0, -1):
            kept = order[: n_attributes * eighths // 8]
            cost = self._members_cost(own, kept, present)
            if cost < best:
                best = cost
                is_kept[:] = False
                is_kept[kept] = True
        return is_kept

    def _members_cost(
        self, own: NDArray[np.float32], kept: NDArray[np.int64], present: NDArray[np.float64]
    ) -> float:
        """Return what an event pays where some members are kept: for checks, and for looks."""
        member = kept[own[:, kept].argmin(axis=1)]
        every = np.arange(len(own))
        has_none = own[every, member] >= 1.0
        member[has_none] = own[has_none].argmin(axis=1)
        share = own[every, member]
        expected = np.bincount(member, share, len(present)) * self.weight
        lookups = present * -np.expm1(-expected / np.maximum(present, 1e-9))
        return float(expected.sum()) * self.costs.check + float(lookups.sum()) * self.costs.look

    def _total(self, families: list[_Checks]) -> float:
        """Return the cost of an event with some families."""
        checks = np.stack([family[0] for family in families])
        choice = checks.argmin(axis=0)
        least = np.minimum(checks.min(axis=0), self.most_checks)
        total = float(least.sum()) * self.weight * self.costs.check
        in_tables = checks.min(axis=0) <= self.most_checks
        for f, (_, member) in enumerate(families):
            used = np.unique(member[in_tables & (choice == f)])
            if len(used):
                total += self.costs.family + self.costs.probe * len(used)
        return total
