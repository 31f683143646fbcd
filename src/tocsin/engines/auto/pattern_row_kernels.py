"""Patterns that a text fits → conjunctions, and LIKE patterns of candidates → matches, compiled.

Enters: for each text the patterns that it fits, with the conjunctions under each; or candidates of
each event with patterns to be checked. Leaves: the conjunctions that events satisfy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.engines.auto.arrays import (
    NEEDS_CHECK,
    NUMBER,
    Automaton,
    Cells,
    Codes,
    Flags,
    Integers,
    Numbers,
    Octets,
    Programs,
    Stream,
)
from tocsin.engines.auto.like_kernels import fits
from tocsin.engines.auto.literal_kernels import ROOM, scan_text
from tocsin.engines.auto.stream_kernels import conjunction_holds
from tocsin.engines.auto.verify_kernels import fill_row
from tocsin.jit import kernel, prefetch_row

_MANY_CHECKS = 24
"""With more checks of a text than these, the automaton finds all patterns that it fits."""


@kernel
def match_rows(
    of_event: Cells,
    hit_start: Integers,
    hits: Numbers,
    row_start: Integers,
    rows: Numbers,
    stream: Stream,
    codes: Codes,
    cells: Cells,
    first: int,
    out: Numbers,
    offsets: Integers,
) -> Any:
    """Write the conjunctions under the patterns that each event fits, see `output.by_event`.

    Those of pattern p are `rows[row_start[p] : row_start[p + 1]]`; those flagged `NEEDS_CHECK` are
    verified against their conditions.
    """
    n = offsets[first]
    row = np.empty(codes.shape[1], np.int32)
    for event in range(first, len(of_event)):
        text = np.int64(of_event[event])
        if text >= 0:
            begin, end = hit_start[text], hit_start[text + 1]
            most = np.int64(0)
            for i in range(begin, end):
                prefetch_row(row_start, np.int64(hits[i]))
            for i in range(begin, end):
                start = row_start[hits[i]]
                prefetch_row(rows, start)
                most += row_start[hits[i] + 1] - start
            if n + most > len(out):
                return event
            is_filled = False
            for i in range(begin, end):
                for r in range(row_start[hits[i]], row_start[hits[i] + 1]):
                    number = rows[r]
                    holds = True
                    if number >= NEEDS_CHECK:
                        number &= NUMBER
                        if not is_filled:
                            fill_row(codes, cells, event, row)
                            is_filled = True
                        holds = conjunction_holds(stream.words, np.int64(stream.start[number]), row)
                    out[n] = number
                    n += holds
        offsets[event + 1] = n
    return len(of_event)


@kernel
def match_text(
    automaton: Automaton,
    programs: Programs,
    octets: Octets,
    stamps: Integers,
    stamp: int,
    row_start: Integers,
    rows: Numbers,
    stream: Stream,
    codes: Codes,
    cells: Cells,
    hits: Numbers,
    out: Numbers,
) -> Any:
    """Do both for the text of a single event: write its conjunctions, and return how many.

    Where `out` is too short, nothing is written and the length that suffices is returned, negated.
    There is room for all patterns in `hits`.
    """
    room = np.empty((3, ROOM), np.int32)
    n_hits = scan_text(
        automaton,
        programs,
        octets,
        np.int64(0),
        np.int64(len(octets)),
        stamps,
        np.int64(stamp),
        room,
        hits,
        np.int64(0),
    )
    most = np.int64(0)
    for i in range(n_hits):
        most += row_start[hits[i] + 1] - row_start[hits[i]]
    if most > len(out):
        return -most
    row = np.empty(codes.shape[1], np.int32)
    if n_hits > 0:
        fill_row(codes, cells, 0, row)
    n = np.int64(0)
    for i in range(n_hits):
        for r in range(row_start[hits[i]], row_start[hits[i] + 1]):
            number = rows[r]
            holds = True
            if number >= NEEDS_CHECK:
                number &= NUMBER
                holds = conjunction_holds(stream.words, np.int64(stream.start[number]), row)
            out[n] = number
            n += holds
    return n


@kernel
def check_patterns(
    automaton: Automaton,
    programs: Programs,
    start: Integers,
    octets: Octets,
    of_event: Cells,
    offsets: Integers,
    numbers: Numbers,
    check_start: Integers,
    check: Integers,
    stamps: Integers,
    stamp: int,
    literal_stamps: Integers,
    literal_stamp: int,
    is_match: Flags,
) -> None:
    """Clear the mark of each candidate whose text does not fit its patterns.

    The candidates of event e are `numbers[offsets[e] : offsets[e + 1]]`; conjunction c has the
    checks from `check_start[c]` to `check_start[c + 1]`: twice a pattern, plus 1 where the text
    must not fit it. A pattern is tried once on each text: `stamps[p]` becomes `2 * (stamp + text)`,
    plus 1 where it fits; all are less before. The literals have stamps too.
    """
    n_texts, n_events, n_patterns = len(start) - 1, len(of_event), len(programs.start) - 1
    n_with_literal = automaton.first[len(automaton.first) - 1] >> 1
    room = np.empty((3, ROOM), np.int32)
    hits = np.empty(0, np.uint32)
    ends = np.zeros(n_texts + 2, np.int64)  # events by text
    for event in range(n_events):
        ends[of_event[event] + 2] += 1
    ends[1] = 0  # those without a text have no patterned candidates
    for text in range(n_texts):
        ends[text + 2] += ends[text + 1]
    order = np.empty(n_events, np.int32)
    for event in range(n_events):
        text = of_event[event]
        if text >= 0:
            order[ends[text + 1]] = event
            ends[text + 1] += 1
    for text in range(n_texts):
        begin, end = start[text], start[text + 1]
        now = 2 * (stamp + text)
        n_checks = np.int64(0)
        for k in range(ends[text], ends[text + 1]):
            for i in range(offsets[order[k]], offsets[order[k] + 1]):
                c = numbers[i]
                n_checks += check_start[c + 1] - check_start[c]
        if n_checks == 0:
            continue
        is_scanned = n_checks > _MANY_CHECKS
        if is_scanned:
            if len(hits) < n_patterns:
                hits = np.empty(n_patterns, np.uint32)
            n_hits = scan_text(
                automaton,
                programs,
                octets,
                begin,
                end,
                literal_stamps,
                literal_stamp + text,
                room,
                hits,
                np.int64(0),
            )
            for i in range(n_hits):
                stamps[hits[i]] = now + 1
        for k in range(ends[text], ends[text + 1]):
            for i in range(offsets[order[k]], offsets[order[k] + 1]):
                c = numbers[i]
                for at in range(check_start[c], check_start[c + 1]):
                    p, is_negated = check[at] >> 1, check[at] & 1
                    if stamps[p] < now:
                        is_fit = False
                        if p >= n_with_literal or not is_scanned:
                            is_fit = fits(
                                octets,
                                begin,
                                end,
                                programs.octets,
                                programs.start[p],
                                programs.start[p + 1],
                            )
                        stamps[p] = now + np.int64(is_fit)
                    if stamps[p] - now == is_negated:
                        is_match[i] = False
                        break


@kernel
def keep_marked(
    offsets: Integers, numbers: Numbers, is_match: Flags, ends: Integers, out: Numbers
) -> None:
    """Write the marked candidates, and where those of each event end; `out` may be `numbers`."""
    n = np.int64(0)
    for event in range(len(offsets) - 1):
        for i in range(offsets[event], offsets[event + 1]):
            out[n] = numbers[i]
            n += is_match[i]
        ends[event] = n
