"""The literals of LIKE patterns, found in a text all at once, compiled.

Enters: distinct literals in the order of their bytes, and texts. Leaves: an `Automaton`; and for
each text the patterns that it fits.

After A. Aho and M. Corasick, Efficient string matching (CACM 18, 1975), with two changes. The trie
begins four bytes deep: most places of a text are passed over by one look into a small bit map,
and the automaton is entered where four bytes are those of a root. Where a suffix of fewer than four
bytes is all that is left of a match, it is left again, three bytes before. And a literal is
reported once in a text: the chain of the literals that others end with is followed up to one that
was reported. So a text costs time in proportion to its length and to the literals in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.engines.auto.arrays import (
    Automaton,
    Cells,
    Integers,
    Numbers,
    Octets,
    Programs,
    Scalar,
    Words,
)
from tocsin.engines.auto.like_kernels import fits
from tocsin.jit import inlined, inner, kernel, prefetch_row

ROOT_BYTES = 4
"""How many bytes the roots of the trie have."""
FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A free place of a hash table."""
ROOM = 256
"""How many places of a text are looked at together."""
_NO_CHILD = 256
_FIRST_CHILD = 0x1FF
_MORE = 0x200
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@inlined
def _hash(key: Scalar, n: Scalar) -> Scalar:
    """Return a number below n, a power of two of at most 2^32."""
    return np.int64(((np.uint64(key) * _SPREAD) >> np.uint64(32)) & np.uint64(n - 1))


@inlined
def _find(table: Words, key: Scalar, shift: Scalar) -> Scalar:
    """Return what a hash table has for a key, which stands above its lowest bits, or -1."""
    n = len(table)
    place = _hash(key, n)
    while True:
        entry = table[place]
        if entry == FREE:
            return np.int64(-1)
        if entry >> np.uint64(shift) == np.uint64(key):
            return np.int64(entry & ((np.uint64(1) << np.uint64(shift)) - np.uint64(1)))
        place = (place + 1) & (n - 1)


@inlined
def _put(table: Words, key: Scalar, shift: Scalar, value: Scalar) -> None:
    """Add a key to a hash table."""
    n = len(table)
    place = _hash(key, n)
    while table[place] != FREE:
        place = (place + 1) & (n - 1)
    table[place] = (np.uint64(key) << np.uint64(shift)) | np.uint64(value)


@inlined
def _short_key(octets: Octets, at: Scalar, n: Scalar) -> Scalar:
    """Return a key for up to three bytes."""
    key = np.int64(n)
    for i in range(n):
        key = (key << 8) | np.int64(octets[at + i])
    return key


@inlined
def _root_key(octets: Octets, at: Scalar) -> Scalar:
    """Return the four bytes at a place as a number."""
    return (
        np.uint64(octets[at])
        | (np.uint64(octets[at + 1]) << np.uint64(8))
        | (np.uint64(octets[at + 2]) << np.uint64(16))
        | (np.uint64(octets[at + 3]) << np.uint64(24))
    )


@inlined
def _child(nodes: Cells, edges: Words, node: Scalar, octet: Scalar) -> Scalar:
    """Return the child of a node by a byte, or -1."""
    word = nodes[node, 0]
    child = np.int64(-1)
    if word & _FIRST_CHILD == octet:
        child = np.int64(node + 1)
    elif word & _MORE:
        child = _find(edges, (np.int64(node) << 8) | np.int64(octet), 28)
    return child


@kernel
def measure(start: Integers, octets: Octets, sizes: Integers) -> None:
    """Count what an automaton of sorted literals needs: short literals, roots, nodes, edges."""
    n_short = n_roots = n_nodes = n_edges = np.int64(0)
    before, length_before = np.int64(0), np.int64(0)
    for literal in range(len(start) - 1):
        begin, n = start[literal], start[literal + 1] - start[literal]
        if n < ROOT_BYTES:
            n_short += 1
            continue
        same = np.int64(0)
        while same < min(n, length_before) and octets[begin + same] == octets[before + same]:
            same += 1
        if same < ROOT_BYTES:
            n_roots += 1
            n_nodes += n - ROOT_BYTES + 1
        else:
            n_nodes += n - same
            n_edges += same < length_before
        before, length_before = begin, n
    sizes[0], sizes[1], sizes[2], sizes[3] = n_short, n_roots, n_nodes, n_edges


@inner
def _by_depth(depth: NDArray[np.int32], longest: Scalar) -> NDArray[np.int32]:
    """Return the nodes in the order of their depths."""
    n_nodes = len(depth)
    order = np.empty(n_nodes, np.int32)
    counts = np.zeros(longest + 2, np.int64)
    for s in range(n_nodes):
        counts[depth[s] + 1] += 1
    for d in range(longest + 1):
        counts[d + 1] += counts[d]
    for s in range(n_nodes):
        order[counts[depth[s]]] = s
        counts[depth[s]] += 1
    return order


@inner
def _link_suffixes(
    automaton: Automaton,
    parent: NDArray[np.int32],
    depth: NDArray[np.int32],
    label: Octets,
    last_four: NDArray[np.uint32],
    longest: Scalar,
) -> None:
    """Lead each node to the node of its longest proper suffix, the shallow ones first."""
    nodes, edges, roots = automaton.nodes, automaton.edges, automaton.roots
    order = _by_depth(depth, longest)
    for i in range(len(order)):
        s = order[i]
        suffix = np.int64(-1)
        if depth[s] > ROOT_BYTES:
            other = np.int64(nodes[parent[s], 1])
            while other >= 0 and suffix < 0:
                suffix = _child(nodes, edges, other, label[s])
                other = np.int64(nodes[other, 1])
            if suffix < 0:
                suffix = _find(roots, np.uint64(last_four[s]), 32)
        nodes[s, 1] = suffix
        if suffix >= 0:
            of_suffix = nodes[suffix, 2]
            if nodes[s, 2] < 0:
                nodes[s, 2] = of_suffix
            else:
                automaton.shorter[nodes[s, 2]] = of_suffix


@kernel
def build(start: Integers, octets: Octets, automaton: Automaton) -> None:
    """Fill the tables of sorted literals; they are free, and as large as `measure` said."""
    nodes, edges, roots = automaton.nodes, automaton.edges, automaton.roots
    n_nodes = len(nodes)
    parent, depth = np.empty(n_nodes, np.int32), np.empty(n_nodes, np.int32)
    label, last_four = np.empty(n_nodes, np.uint8), np.empty(n_nodes, np.uint32)
    longest = np.int64(0)
    for literal in range(len(start) - 1):
        longest = max(longest, np.int64(start[literal + 1] - start[literal]))
    path = np.zeros(longest + 1, np.int32)
    n_bits = 64 * len(automaton.filter)
    node, before, length_before = np.int64(0), np.int64(0), np.int64(0)
    for literal in range(len(start) - 1):
        begin, n = start[literal], start[literal + 1] - start[literal]
        automaton.shorter[literal] = -1
        if n < ROOT_BYTES:
            automaton.short_lengths[octets[begin]] |= np.uint8(1 << n)
            _put(automaton.short, _short_key(octets, begin, n), 32, literal)
            continue
        same = np.int64(0)
        while same < min(n, length_before) and octets[begin + same] == octets[before + same]:
            same += 1
        n_known = same if same >= ROOT_BYTES else np.int64(ROOT_BYTES - 1)
        for d in range(n_known + 1, n + 1):
            octet = octets[begin + d - 1]
            nodes[node, 0], nodes[node, 1], nodes[node, 2] = _NO_CHILD, -1, -1
            depth[node], label[node] = d, octet
            if d == ROOT_BYTES:
                key = _root_key(octets, begin)
                parent[node], last_four[node] = -1, np.uint32(key)
                _put(roots, key, 32, node)
                bit = _hash(key, n_bits)
                automaton.filter[bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)
            else:
                above = np.int64(path[d - 1])
                parent[node] = above
                last_four[node] = (last_four[above] >> np.uint32(8)) | (
                    np.uint32(octet) << np.uint32(24)
                )
                if above == node - 1:
                    nodes[above, 0] = octet
                else:
                    nodes[above, 0] |= _MORE
                    _put(edges, (above << 8) | np.int64(octet), 28, node)
            path[d] = node
            node += 1
        nodes[path[n], 2] = literal
        before, length_before = begin, n
    _link_suffixes(automaton, parent, depth, label, last_four, longest)


@inner
def _report(
    automaton: Automaton,
    programs: Programs,
    octets: Octets,
    begin: Scalar,
    end: Scalar,
    literals: Cells,
    n_literals: Scalar,
    stamps: Integers,
    stamp: Scalar,
    out: Numbers,
    n: Scalar,
) -> Scalar:
    """Write the patterns, which the text fits, of literals and of the ends of literals."""
    for i in range(n_literals):
        literal = np.int64(literals[i])
        while literal >= 0 and stamps[literal] != stamp:
            stamps[literal] = stamp
            first = automaton.first[literal]
            is_decided = first & 1
            for p in range(first >> 1, automaton.first[literal + 1] >> 1):
                if not is_decided and not fits(
                    octets, begin, end, programs.octets, programs.start[p], programs.start[p + 1]
                ):
                    continue
                is_decided = np.int64(0)
                out[n] = np.uint32(p)
                n += 1
            literal = np.int64(automaton.shorter[literal])
    return n


@inner
def scan_text(
    automaton: Automaton,
    programs: Programs,
    octets: Octets,
    begin: Scalar,
    end: Scalar,
    stamps: Integers,
    stamp: Scalar,
    room: Cells,
    out: Numbers,
    n: Scalar,
) -> Scalar:
    """Write the patterns with a literal that a text fits, from n on; return where they end.

    `stamps[literal]` is set to the stamp, a number that is there for no literal. There is room for
    all patterns in `out`; `room` is three rows of `ROOM`. What reads far apart is done for many
    places of the text together, so that the processor waits for all of it at once.
    """
    places, reached_nodes, literals = room[0], room[1], room[2]
    n_literals = np.int64(0)
    if len(automaton.short) > 1:
        for at in range(begin, end):
            lengths = automaton.short_lengths[octets[at]]
            if lengths:
                for length in range(1, min(ROOT_BYTES, end - at + 1)):
                    if (lengths >> length) & 1:
                        key = _short_key(octets, at, length)
                        literal = _find(automaton.short, key, 32)
                        if literal >= 0:
                            literals[n_literals] = literal
                            n_literals += 1
                if n_literals + ROOT_BYTES > ROOM:
                    n = _report(
                        automaton,
                        programs,
                        octets,
                        begin,
                        end,
                        literals,
                        n_literals,
                        stamps,
                        stamp,
                        out,
                        n,
                    )
                    n_literals = np.int64(0)
    nodes, edges, roots = automaton.nodes, automaton.edges, automaton.roots
    bits, n_bits = automaton.filter, 64 * len(automaton.filter)
    at, last = begin, end - ROOT_BYTES
    if len(nodes) == 0:
        at = end
    while at <= last:
        stop = min(at + ROOM, last + 1)
        n_places = np.int64(0)
        for place in range(at, stop):
            bit = _hash(_root_key(octets, place), n_bits)
            places[n_places] = place - begin
            n_places += np.int64((bits[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1))
        for i in range(n_places):
            prefetch_row(roots, _hash(_root_key(octets, begin + places[i]), len(roots)))
        n_nodes = np.int64(0)
        for i in range(n_places):
            node = _find(roots, _root_key(octets, begin + places[i]), 32)
            if node >= 0:
                prefetch_row(nodes, node)
                places[n_nodes], reached_nodes[n_nodes] = places[i], node
                n_nodes += 1
        for i in range(n_nodes):
            if begin + places[i] < at:
                continue
            node, reached = np.int64(reached_nodes[i]), begin + places[i] + ROOT_BYTES
            while True:
                literal = np.int64(nodes[node, 2])
                if literal >= 0:
                    prefetch_row(stamps, literal)
                    prefetch_row(automaton.first, literal)
                    prefetch_row(automaton.shorter, literal)
                    literals[n_literals] = literal
                    n_literals += 1
                    if n_literals == ROOM:
                        n = _report(
                            automaton,
                            programs,
                            octets,
                            begin,
                            end,
                            literals,
                            n_literals,
                            stamps,
                            stamp,
                            out,
                            n,
                        )
                        n_literals = np.int64(0)
                if reached == end:
                    break
                octet = octets[reached]
                child = _child(nodes, edges, node, octet)
                while child < 0:
                    node = np.int64(nodes[node, 1])
                    if node < 0:
                        break
                    child = _child(nodes, edges, node, octet)
                if child < 0:
                    break
                node = child
                reached += 1
            at = reached - ROOT_BYTES + 1
        at = max(at, stop)
    return _report(
        automaton,
        programs,
        octets,
        begin,
        end,
        literals,
        n_literals,
        stamps,
        stamp,
        out,
        n,
    )


@kernel
def scan(
    automaton: Automaton,
    programs: Programs,
    start: Integers,
    octets: Octets,
    stamps: Integers,
    stamp: int,
    first: int,
    out: Numbers,
    offsets: Integers,
) -> Any:
    """Write the patterns that each text fits, see `output.by_event`; text t has `stamp + t`."""
    room = np.empty((3, ROOM), np.int32)
    n, most = offsets[first], len(programs.start) - 1
    for text in range(first, len(start) - 1):
        if n + most > len(out):
            return text
        n = scan_text(
            automaton,
            programs,
            octets,
            start[text],
            start[text + 1],
            stamps,
            stamp + text,
            room,
            out,
            n,
        )
        offsets[text + 1] = n
    return len(start) - 1
