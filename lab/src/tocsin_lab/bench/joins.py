"""The ways to write a workload's matching as a join in DuckDB's SQL.

Enters: a workload, how many of its subscriptions. Leaves: a table of the subscriptions, with
columns and types chosen for the workload, and formulations: queries that count the pairs of events
and subscriptions that match. They are of two kinds:

===== ===========================================================================================
plain what someone who knows SQL writes: subscriptions as typed columns, a hash join on the columns
      that all of them equate (T: on their first attribute, over events with one line for each
      value; G: on the two attributes tested most, the few that do not test them apart), all else
      as conditions of the join; all pairs where subscriptions have nothing in common (TW,
      K, L, X), or those in a box (P)
keyed an index built by hand: a key made of as many equalities as can be had, or of buckets of
      ranges, or of words; a subscription stands under all its keys, an event probes all it could
      have (K: each part of its title that is as long as some word; L and X: the rarest tag or
      word of a subscription, all tags or words of an event).
      In "keyed, late" the predicates left to check are fetched by a second join with the events
===== ===========================================================================================

IEJoin, DuckDB's join on inequalities, was slower by an order of magnitude on M. Subscriptions as a
column for each attribute, null where it is not tested, were several times slower on W0 than pairs
of attribute and value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tocsin.errors import ArgumentError
from tocsin.workloads import Market, Workload
from tocsin_lab.workloads import (
    Circles,
    Equalities,
    Highway,
    Popularity,
    Ranges,
    Searches,
    Tags,
    Targets,
    Titles,
    Turnover,
)
from tocsin_lab.workloads.circles import RADIUS

Ints = NDArray[np.int64]
Kind = Literal["plain", "keyed"]


@dataclass(frozen=True)
class Formulation:
    """A way to write the join: statements that prepare it, and the query that counts matches.

    `how` says in words what is joined on what. The query finds its events in the view `events`. A
    subscription stands about `copies` times in the tables that are made.
    """

    name: str
    kind: Kind
    how: str
    query: str
    prepare: tuple[str, ...] = ()
    copies: int = 1


_MOST_ROWS = 50_000_000
"""A table with more rows would not fit in memory with a matcher, or take minutes to make."""


def formulations(chosen: Workload, n: int) -> list[Formulation]:
    """Return the ways to write the join of n subscriptions of a workload, plain ones first.

    Formulations that need too large a table are left out.
    """
    ways = _all_formulations(chosen)
    return [way for way in ways if way.kind == "plain" or way.copies * n <= _MOST_ROWS]


def _all_formulations(chosen: Workload) -> list[Formulation]:
    if isinstance(chosen, Equalities):
        return _equalities(chosen)
    if isinstance(chosen, Ranges):
        return [_ranges_plain(chosen), _ranges_keyed(chosen)]
    if isinstance(chosen, Market):
        return _market(chosen)
    if isinstance(chosen, Highway):
        return _highway(chosen)
    if isinstance(chosen, Popularity):
        return _popularity(chosen)
    if isinstance(chosen, Titles):
        return _titles()
    if isinstance(chosen, Turnover):
        return _turnover(chosen)
    if isinstance(chosen, Tags):
        return _sets("tags")
    if isinstance(chosen, Searches):
        return _sets("string_split(body, ' ')")
    if isinstance(chosen, Targets):
        return _targets()
    if isinstance(chosen, Circles):
        return _circles(chosen)
    raise ArgumentError(f"there is no baseline for workload {chosen.name}")


def subscriptions(chosen: Workload, n: int, seed: int) -> pa.Table:
    """Return the subscriptions with one line each, in columns that suit the joins."""
    if isinstance(chosen, Equalities):
        return _equalities_table(chosen, *_matrix(chosen, n, seed))
    if isinstance(chosen, Ranges):
        return _ranges_table(*_matrix(chosen, n, seed))
    if isinstance(chosen, Market):
        return _market_table(chosen, n, seed)
    if isinstance(chosen, Highway):
        return _highway_table(chosen, n, seed)
    if isinstance(chosen, Popularity):
        return _popularity_table(chosen, n, seed)
    if isinstance(chosen, Titles):
        return _titles_table(chosen, n, seed)
    if isinstance(chosen, Turnover):
        return chosen.subscription_params(n, seed)[0]
    if isinstance(chosen, Tags):
        return _sets_table(chosen.ranks(n, seed), chosen.tags)
    if isinstance(chosen, Searches):
        return _sets_table(chosen.ranks(n, seed), chosen.words)
    if isinstance(chosen, Targets):
        return chosen.subscription_params(n, seed)[0]
    if isinstance(chosen, Circles):
        return _circles_table(chosen, n, seed)
    raise ArgumentError(f"there is no baseline for workload {chosen.name}")


def _matrix(chosen: Workload, n: int, seed: int) -> tuple[Ints, NDArray[Any]]:
    """Return attributes and values, a line for each subscription: all have as many predicates."""
    rows = chosen.subscription_rows(n, seed)
    return _attribute_codes(rows).reshape(n, -1), rows["value"].to_numpy().reshape(n, -1)


def _attribute_codes(rows: pa.Table) -> Ints:
    chunks = [chunk.indices.to_numpy() for chunk in rows["attribute"].chunks]
    return np.concatenate(chunks).astype(np.int64)


def _names(chosen: Workload) -> list[str]:
    return list(chosen.event_type.attributes)


def _listed(expressions: Iterable[str]) -> str:
    return f"[{', '.join(expressions)}]"


class _Words:
    """Small values of many attributes packed in words, so that one mask tests many equalities."""

    def __init__(self, attributes: Sequence[int], names: Sequence[str], n_values: int) -> None:
        self.bits = n_values.bit_length()
        per_word = 63 // self.bits
        self.parts = [attributes[i : i + per_word] for i in range(0, len(attributes), per_word)]
        self.of_events = [
            " | ".join(f"({names[i]}::BIGINT << {self.bits * at})" for at, i in enumerate(part))
            + f" AS w{word}"
            for word, part in enumerate(self.parts)
        ]
        words = range(len(self.parts))
        self.conditions = [f"e.w{word} & s.m{word} = s.w{word}" for word in words]
        self.columns = [f"{letter}{word}" for word in words for letter in "mw"]

    def of_subscriptions(self, attribute: Ints, value: Ints) -> dict[str, Ints]:
        """Return a mask and a value for each word; value 0 stands for no predicate."""
        columns: dict[str, Ints] = {}
        for word, part in enumerate(self.parts):
            shift = np.full(attribute.max(initial=0) + 1, -1)
            shift[part] = np.arange(len(part)) * self.bits
            mask, expected = np.zeros((2, len(attribute)), np.int64)
            for own, cells in zip(attribute.T, value.T, strict=True):
                here = (shift[own] >= 0) & (cells > 0)
                mask[here] |= (2**self.bits - 1) << shift[own[here]]
                expected[here] |= cells[here] << shift[own[here]]
            columns |= {f"m{word}": mask, f"w{word}": expected}
        return columns


# W0, W1, W2: plain joins on the fixed equalities, the free ones as pairs of attribute and value; a
# key is made of the fixed ones and of the first free one, and an event has a key for every
# attribute that can be free.


def _free_attributes(chosen: Equalities) -> list[int]:
    fixed = {*chosen.equal, *chosen.less, *chosen.greater}
    return [i for i in range(chosen.n_attributes) if i not in fixed]


def _equalities_words(chosen: Equalities) -> _Words:
    free = _free_attributes(chosen) if chosen.n_free > 1 else []
    return _Words(free, _names(chosen), chosen.n_values)


def _equalities_table(chosen: Equalities, attribute: Ints, value: Ints) -> pa.Table:
    base, first = chosen.n_values + 1, value.shape[1] - chosen.n_free
    prefix = np.zeros(len(value), np.int64)
    for j in range(len(chosen.equal)):
        prefix = prefix * base + value[:, j]
    key = (prefix * chosen.n_attributes + attribute[:, first]) * base + value[:, first]
    columns = {f"e{i}": value[:, j].astype(np.int8) for j, i in enumerate(chosen.equal)}
    columns["k"] = key.astype(np.int32)
    for j, i in enumerate((*chosen.less, *chosen.greater), len(chosen.equal)):
        columns[f"c{i}"] = value[:, j].astype(np.int8)
    for j in range(chosen.n_free):
        columns[f"f{j}"] = attribute[:, first + j].astype(np.int8)
        columns[f"v{j}"] = value[:, first + j].astype(np.int8)
    others = attribute[:, first + 1 :], value[:, first + 1 :]
    return pa.table(columns | _equalities_words(chosen).of_subscriptions(*others))


def _equalities(chosen: Equalities) -> list[Formulation]:
    return [_equalities_plain(chosen), *_equalities_keyed(chosen)]


def _compared(chosen: Equalities) -> tuple[list[str], list[str]]:
    """Return the event columns of the fixed comparisons, and the comparisons."""
    compared = [(i, "<") for i in chosen.less] + [(i, ">") for i in chosen.greater]
    names = _names(chosen)
    columns = [f"{names[i]}::TINYINT AS c{i}" for i, _ in compared]
    return columns, [f"e.c{i} {op} s.c{i}" for i, op in compared]


def _equalities_plain(chosen: Equalities) -> Formulation:
    names = _names(chosen)
    columns, ranges = _compared(chosen)
    equal = [f"{names[i]}::TINYINT AS e{i}" for i in chosen.equal]
    values = _listed(f"{name}::TINYINT" for name in names)
    on = [f"e.e{i} = s.e{i}" for i in chosen.equal] + ranges
    on += [f"e.l[s.f{j} + 1] = s.v{j}" for j in range(chosen.n_free)]
    query = f"""
        WITH e AS (SELECT {", ".join([*equal, *columns, f"{values} AS l"])} FROM events)
        SELECT count(*) FROM e JOIN subscriptions s ON {" AND ".join(on)}"""
    how = f"on {' and '.join(names[i] for i in chosen.equal)}, the other predicates as conditions"
    return Formulation("plain", "plain", how, query)


def _equalities_keyed(chosen: Equalities) -> list[Formulation]:
    names, base, words = _names(chosen), chosen.n_values + 1, _equalities_words(chosen)
    columns, ranges = _compared(chosen)
    prefix = names[chosen.equal[0]]
    for i in chosen.equal[1:]:
        prefix = f"({prefix}) * {base} + {names[i]}"
    keys = _listed(
        f"(({prefix}) * {chosen.n_attributes} + {i}) * {base} + {names[i]}"
        for i in _free_attributes(chosen)
    )
    tested = ", ".join([*columns, *words.of_events])
    compared = (*chosen.less, *chosen.greater)
    kept = ", ".join([*(f"s.c{i}" for i in compared), *words.columns])
    rest = " AND ".join([*ranges, *words.conditions])
    keyed = f"""
        WITH e AS (SELECT unnest({keys})::INT AS k, {tested} FROM events)
        SELECT count(*) FROM e JOIN subscriptions s ON e.k = s.k WHERE {rest}"""
    late = f"""
        WITH n AS MATERIALIZED (SELECT row_number() OVER () AS r, * FROM events),
             e AS (SELECT r, {tested} FROM n),
             k AS (SELECT r, unnest({keys})::INT AS k FROM n),
             s AS (SELECT r, {kept} FROM k JOIN subscriptions s ON k.k = s.k)
        SELECT count(*) FROM s JOIN e ON s.r = e.r WHERE {rest}"""
    how = f"on {' and '.join(names[i] for i in chosen.equal)} and one free attribute with its value"
    return [
        Formulation("keyed", "keyed", how, keyed),
        Formulation("keyed, late", "keyed", how + ", then with the events again", late),
    ]


# T, TW: events unpivoted to one line for each value. A key is one attribute and a bucket of its
# values; or two, where ranges are so wide that one would leave too much.

_BUCKET_SPAN = 256
"""More buckets than an attribute has."""


def _ranges_table(attribute: Ints, bound: NDArray[np.float64]) -> pa.Table:
    columns: dict[str, NDArray[Any]] = {"id": np.arange(len(bound), dtype=np.int32)}
    for j in range(attribute.shape[1] // 2):
        columns[f"a{j}"] = attribute[:, 2 * j].astype(np.int16)
        columns[f"l{j}"], columns[f"h{j}"] = bound[:, 2 * j], bound[:, 2 * j + 1]
    return pa.table(columns)


def _unpivoted(chosen: Ranges, columns: str, kept: str = "") -> str:
    """Return the expressions `e` (r, l: all values of an event) and `u` (a line for each value).

    `r` is a multiple of the number of attributes, so that r + a names the value of attribute a.
    `kept` is MATERIALIZED where the lists are used again.
    """
    width = chosen.n_attributes
    return f"""
        e AS {kept} (
            SELECT (row_number() OVER () - 1) * {width} AS r, {_listed(_names(chosen))} AS l
            FROM events),
        u AS MATERIALIZED (
            SELECT v, {columns}
            FROM (SELECT r, unnest(l) AS v, unnest(range({width})) AS a FROM e)
            WHERE v IS NOT NULL)"""


def _ranges_plain(chosen: Ranges) -> Formulation:
    inside = [f"e.l[s.a{j} + 1] BETWEEN s.l{j} AND s.h{j}" for j in range(chosen.n_ranges)]
    if chosen.n_present == chosen.n_attributes:
        query = f"""
            SELECT count(*)
            FROM (SELECT {_listed(_names(chosen))} AS l FROM events) e, subscriptions s
            WHERE {" AND ".join(inside)}"""
        how = "all pairs, the ranges as conditions"
    else:
        query = f"""
            WITH {_unpivoted(chosen, "r, a::SMALLINT AS a", "MATERIALIZED")}
            SELECT count(*)
            FROM u JOIN subscriptions s ON u.a = s.a0 AND u.v BETWEEN s.l0 AND s.h0
            JOIN e ON e.r = u.r
            WHERE {" AND ".join(inside[1:])}"""
        how = "on the first attribute, the ranges as conditions"
    return Formulation("plain", "plain", how, query)


def _ranges_keyed(chosen: Ranges) -> Formulation:
    """Join on the key, then on one attribute after the other; the last of many by counting."""
    n_keys = 1 if chosen.n_attributes > 100 else 2
    n_joined = 2 if n_keys == 1 else chosen.n_ranges
    scale = round((2 if n_keys == 1 else 3) / chosen.width)
    bucket = f"floor(v * {scale})::INT"
    if n_keys == 1:
        u = f"(r + a)::INT AS w, (a * {_BUCKET_SPAN} + {bucket})::INT AS k"
        r = f"u.w - u.w % {chosen.n_attributes}"
        joined = "u JOIN keyed s ON s.k = u.k AND u.v BETWEEN l0 AND h0"
    else:
        u, r = f"(r + a)::INT AS w, r::INT AS r, a::INT AS a, {bucket} AS b", "u.r"
        pair = f"(u.a * {chosen.n_attributes} + y.a) * {_BUCKET_SPAN} + u.b"
        joined = f"""u JOIN u y ON y.r = u.r AND y.a > u.a
            JOIN keyed s ON s.k = ({pair}) * {_BUCKET_SPAN} + y.b
            AND u.v BETWEEN l0 AND h0 AND y.v BETWEEN l1 AND h1"""
    steps = [_unpivoted(chosen, u), f"h{n_keys} AS (SELECT s.*, {r} AS r FROM {joined})"]
    steps += [
        f"""h{j + 1} AS (SELECT h.* FROM h{j} h JOIN u ON u.w = h.r + h.a{j}
                         WHERE u.v BETWEEN h.l{j} AND h.h{j})"""
        for j in range(n_keys, n_joined)
    ]
    last, n_left = f"h{n_joined}", chosen.n_ranges - n_joined
    if n_left:
        last = f"""(SELECT h.r, h.id FROM {last} h JOIN remaining s ON s.id = h.id
                    JOIN u ON u.w = h.r + s.a AND u.v BETWEEN s.l AND s.h
                    GROUP BY h.r, h.id HAVING count(*) = {n_left})"""
    query = f"WITH {', '.join(steps)} SELECT count(*) FROM {last}"
    how = "one attribute and a bucket of it" if n_keys == 1 else "two attributes and their buckets"
    prepare = _ranges_tables(chosen, n_keys, n_joined, scale)
    copies = int(chosen.width * scale + 1) ** n_keys
    return Formulation("keyed", "keyed", f"on {how}", query, prepare, copies)


def _ranges_tables(chosen: Ranges, n_keys: int, n_joined: int, scale: int) -> tuple[str, ...]:
    """Return the statements that make `keyed` and, for the ranges not joined, `remaining`."""

    def buckets(j: int) -> str:
        return f"unnest(range(floor(l{j} * {scale})::INT, floor(h{j} * {scale})::INT + 1))::INT"

    key = f"SELECT *, a0::INT * {_BUCKET_SPAN} + {buckets(0)} AS k FROM subscriptions"
    if n_keys == 2:
        pair = f"a0::INT * {chosen.n_attributes} + a1"
        first = f"SELECT *, ({pair}) * {_BUCKET_SPAN} + {buckets(0)} AS k0 FROM subscriptions"
        key = f"SELECT * EXCLUDE k0, k0 * {_BUCKET_SPAN} + {buckets(1)} AS k FROM ({first})"
    later = [f"{letter}{j}" for j in range(n_joined, chosen.n_ranges) for letter in "alh"]
    if not later:
        return (f"CREATE TABLE keyed AS {key}",)
    parts = [
        f"SELECT id, a{j} AS a, l{j} AS l, h{j} AS h FROM subscriptions"
        for j in range(n_joined, chosen.n_ranges)
    ]
    return (
        f"CREATE TABLE keyed AS SELECT * EXCLUDE ({', '.join(later)}) FROM ({key})",
        f"CREATE TABLE remaining AS {' UNION ALL '.join(parts)}",
    )


# M: a key of the firm and a bucket of the price, half a per cent wide.

_PRICE_STEP = 0.005


def _market_table(chosen: Market, n: int, seed: int) -> pa.Table:
    return _with_last(chosen, n, seed, ["firm", "low", "high", "volume"])


def _with_last(chosen: Workload, n: int, seed: int, columns: list[str]) -> pa.Table:
    """Return parameters of both templates; -1 stands for the last, which one of them lacks."""
    last = columns[-1]
    tables = [
        t if last in t.column_names else t.append_column(last, pa.array([-1] * len(t)))
        for t in chosen.subscription_params(n, seed)
    ]
    return pa.concat_tables(t.select(columns) for t in tables)


def _market(chosen: Market) -> list[Formulation]:
    firms = ", ".join(f"'{firm}'" for firm in chosen.firms)
    coded = """SELECT firm::firms AS firm, low, high, volume::INT AS volume FROM subscriptions"""
    event = "price, volume::INT AS volume, TRY_CAST(firm AS firms) AS firm"
    inside = "e.price BETWEEN s.low AND s.high AND e.volume > s.volume"
    plain = f"""
        SELECT count(*) FROM (SELECT {event} FROM events) e
        JOIN coded s ON e.firm = s.firm AND {inside}"""

    def bucket(price: str) -> str:
        return f"floor(ln({price}) / {_PRICE_STEP})::INT"

    code = "enum_code(firm)::INT * 65536"
    keyed = f"""
        SELECT count(*)
        FROM (SELECT *, {code} + {bucket("price")} AS k FROM (SELECT {event} FROM events)) e
        JOIN keyed s ON e.k = s.k AND {inside}"""
    buckets = f"unnest(range({bucket('low')}, {bucket('high')} + 1))::INT"
    prepare = (f"CREATE TYPE firms AS ENUM ({firms})", f"CREATE TABLE coded AS {coded}")
    to_keyed = f"CREATE TABLE keyed AS SELECT *, {code} + {buckets} AS k FROM coded"
    on_bucket = "on the firm and a bucket of the price"
    copies = int(chosen.max_width / _PRICE_STEP / 2 + 1)
    return [
        Formulation("plain", "plain", "on the firm, the ranges as conditions", plain, prepare),
        Formulation("keyed", "keyed", on_bucket, keyed, (to_keyed,), copies),
    ]


# H: a key of the road and the segment.


def _highway_table(chosen: Highway, n: int, seed: int) -> pa.Table:
    return _with_last(chosen, n, seed, ["road", "low", "high", "speed", "occupancy"])


def _highway(chosen: Highway) -> list[Formulation]:
    ahead = "e.speed < s.speed AND e.occupancy > s.occupancy"
    plain = f"""
        SELECT count(*) FROM events e JOIN subscriptions s
        ON e.road = s.road AND e.segment BETWEEN s.low AND s.high AND {ahead}"""
    keyed = f"""
        SELECT count(*) FROM events e
        JOIN keyed s ON e.road = s.road AND e.segment = s.segment AND {ahead}"""
    prepare = """
        CREATE TABLE keyed AS
        SELECT road, unnest(range(low, high + 1)) AS segment, speed, occupancy FROM subscriptions"""
    on_segment = "on the road and the segment"
    return [
        Formulation("plain", "plain", "on the road, the ranges as conditions", plain),
        Formulation("keyed", "keyed", on_segment, keyed, (prepare,), chosen.most_ahead + 1),
    ]


# K: plain joins try every word on every title, by LIKE or by contains. A key is a word; a title has
# all its parts that are as long as some word.


def _titles_table(chosen: Titles, n: int, seed: int) -> pa.Table:
    [table] = chosen.subscription_params(n, seed)
    word = pc.utf8_trim(table["pattern"], "%")
    return pa.table({"pattern": table["pattern"], "word": word})


def _titles() -> list[Formulation]:
    join = "SELECT count(*) FROM events e JOIN subscriptions s ON"
    lengths = "CREATE TABLE lengths AS SELECT DISTINCT length(word) AS n FROM subscriptions"
    keyed = """
        SELECT count(*) FROM (
            SELECT DISTINCT event, substring(title, place, n) AS word FROM (
                SELECT event, title, unnest(range(1, length(title) + 1)) AS place
                FROM (SELECT row_number() OVER () AS event, title FROM events)
            ) JOIN lengths ON place + n <= length(title) + 1
        ) JOIN subscriptions USING (word)"""
    return [
        Formulation("plain, LIKE", "plain", "on title LIKE pattern", f"{join} title LIKE pattern"),
        Formulation("plain, contains", "plain", "on contains", f"{join} contains(title, word)"),
        Formulation("keyed", "keyed", "on the parts of titles", keyed, (lengths,)),
    ]


# C, CA: a key is the firm and a bucket of the turnover, by its logarithm.

_BUCKETS = 20
"""Buckets for each factor of e: a range lies in two or three."""


def _turnover(chosen: Turnover) -> list[Formulation]:
    symbol, turnover = chosen.terms
    quotes = f"(SELECT {symbol} AS symbol, {turnover} AS turnover FROM events) e"
    plain = f"""
        SELECT count(*) FROM {quotes} JOIN subscriptions s
        ON e.symbol = s.symbol AND e.turnover BETWEEN s.low AND s.high"""
    keyed = f"""
        SELECT count(*) FROM {quotes} JOIN keyed s
        ON e.symbol = s.symbol AND floor(ln(e.turnover) * {_BUCKETS}) = s.bucket
        AND e.turnover BETWEEN s.low AND s.high"""
    low, high = (f"floor(ln({end}) * {_BUCKETS})::BIGINT" for end in ("low", "high"))
    prepare = f"""
        CREATE TABLE keyed AS
        SELECT *, unnest(range({low}, {high} + 1))::DOUBLE AS bucket FROM subscriptions"""
    return [
        Formulation("plain", "plain", "on the firm, the range as a condition", plain),
        Formulation("keyed", "keyed", "on the firm and a bucket", keyed, (prepare,), 3),
    ]


# L, X: a plain join compares lists; a key is the rarest element that a subscription requires.


def _sets_table(rank: Ints, names: list[str]) -> pa.Table:
    kept = rank >= 0
    values = pa.array(names, pa.string())
    starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int32)
    required = pa.ListArray.from_arrays(pa.array(starts), values.take(pa.array(rank[kept])))
    return pa.table({"rarest": values.take(pa.array(rank.max(axis=1))), "required": required})


def _sets(elements: str) -> list[Formulation]:
    of_events = f"SELECT row_number() OVER () AS event, {elements} AS elements FROM events"
    plain = f"""
        SELECT count(*) FROM ({of_events}) e JOIN subscriptions s
        ON list_has_all(e.elements, s.required)"""
    keyed = f"""
        WITH e AS MATERIALIZED ({of_events}),
             k AS (SELECT event, elements, unnest(list_distinct(elements)) AS rarest FROM e)
        SELECT count(*) FROM k JOIN subscriptions s USING (rarest)
        WHERE list_has_all(k.elements, s.required)"""
    return [
        Formulation("plain", "plain", "all pairs, the lists as a condition", plain),
        Formulation("keyed", "keyed", "on the rarest element", keyed),
    ]


# R: a key is the firm and a bucket of the price, by its logarithm.


def _targets() -> list[Formulation]:
    near = "abs(e.price - s.target) < s.within"
    plain = f"SELECT count(*) FROM events e JOIN subscriptions s ON e.firm = s.firm AND {near}"
    keyed = f"""
        SELECT count(*) FROM events e JOIN keyed s
        ON e.firm = s.firm AND floor(ln(e.price) * {_BUCKETS}) = s.bucket AND {near}"""
    low, high = (f"floor(ln(target {sign} within) * {_BUCKETS})::BIGINT" for sign in "-+")
    prepare = f"""
        CREATE TABLE keyed AS
        SELECT *, unnest(range({low}, {high} + 1))::DOUBLE AS bucket FROM subscriptions"""
    return [
        Formulation("plain", "plain", "on the firm, the distance as a condition", plain),
        Formulation("keyed", "keyed", "on the firm and a bucket", keyed, (prepare,), 2),
    ]


# P: plain joins on the box of a circle; a key is a square of a grid, of which a circle has a few.

_SQUARES = 10
"""Squares for a degree."""


def _circles_table(chosen: Circles, n: int, seed: int) -> pa.Table:
    [table] = chosen.subscription_params(n, seed)
    lat, lon, radius = (table[name].to_numpy() for name in ("lat", "lon", "radius"))
    height = np.degrees(radius / RADIUS) * (1 + 1e-9)
    ratio = np.sin(radius / RADIUS) / np.cos(np.radians(lat))
    width = np.degrees(np.arcsin(ratio)) * (1 + 1e-9)
    box = {"south": lat - height, "north": lat + height, "west": lon - width, "east": lon + width}
    return pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **box})


def _circles(chosen: Circles) -> list[Formulation]:
    metres = f"""2 * {RADIUS} * asin(sqrt(
        pow(sin(radians(e.lat - s.lat) / 2), 2)
        + cos(radians(e.lat)) * cos(radians(s.lat)) * pow(sin(radians(e.lon - s.lon) / 2), 2)))"""
    box = "e.lat BETWEEN s.south AND s.north AND e.lon BETWEEN s.west AND s.east"
    near = f"{box} AND {metres} < s.radius"
    plain = f"SELECT count(*) FROM events e JOIN subscriptions s ON {near}"

    def square(value: str) -> str:
        return f"floor({value} * {_SQUARES})::INT"

    keyed = f"""
        SELECT count(*) FROM events e JOIN keyed s
        ON {square("e.lat")} = s.row AND {square("e.lon")} = s.place AND {near}"""
    prepare = f"""
        CREATE TABLE keyed AS SELECT *,
            unnest(range({square("west")}, {square("east")} + 1))::INT AS place
        FROM (SELECT *,
            unnest(range({square("south")}, {square("north")} + 1))::INT AS row
            FROM subscriptions)"""
    copies = math.ceil((2 * chosen.most / 110_000 * _SQUARES + 1) ** 2)
    return [
        Formulation("plain", "plain", "on the box, the distance as a condition", plain),
        Formulation("keyed", "keyed", "on a square of a grid", keyed, (prepare,), copies),
    ]


# G: plain joins on the first two attributes, which are tested most often; four joins, because a
# subscription may leave out either. A key is made of the values tested among the first eight; an
# event has a key for every subset of these.

_JOIN_ATTRIBUTES = 2
_KEY_ATTRIBUTES = 8


def _popularity_words(chosen: Popularity) -> _Words:
    return _Words(range(chosen.n_attributes), _names(chosen), chosen.n_values)


def _popularity_table(chosen: Popularity, n: int, seed: int) -> pa.Table:
    rows = chosen.subscription_rows(n, seed)
    value = np.zeros((n, chosen.n_attributes), np.int64)
    value[rows["id"].to_numpy(), _attribute_codes(rows)] = rows["value"].to_numpy()
    first = {f"a{i}": value[:, i].astype(np.int8) for i in range(_JOIN_ATTRIBUTES)}
    attribute = np.broadcast_to(np.arange(chosen.n_attributes), value.shape)
    return pa.table(first | _popularity_words(chosen).of_subscriptions(attribute, value))


def _popularity(chosen: Popularity) -> list[Formulation]:
    return [_popularity_plain(chosen), _popularity_keyed(chosen)]


def _popularity_plain(chosen: Popularity) -> Formulation:
    words, names = _popularity_words(chosen), _names(chosen)[:_JOIN_ATTRIBUTES]
    values = ", ".join([*(f"{name}::TINYINT AS {name}" for name in names), *words.of_events])
    parts = []
    for subset in range(2**_JOIN_ATTRIBUTES):
        tested = [name for i, name in enumerate(names) if subset >> i & 1]
        these = " AND ".join(f"{name} {'>' if name in tested else '='} 0" for name in names)
        on = " AND ".join([*(f"e.{name} = s.{name}" for name in tested), *words.conditions])
        parts.append(
            f"SELECT count(*) AS n FROM e JOIN (FROM subscriptions WHERE {these}) s ON {on}"
        )
    query = f"""
        WITH e AS MATERIALIZED (SELECT {values} FROM events)
        SELECT sum(n)::BIGINT FROM ({" UNION ALL ".join(parts)})"""
    how = f"on {' and '.join(names)} where they are tested, packed equalities as conditions"
    return Formulation("plain", "plain", how, query)


def _popularity_keyed(chosen: Popularity) -> Formulation:
    words = _popularity_words(chosen)
    tested, rest = ", ".join(words.of_events), " AND ".join(words.conditions)
    one = 2**words.bits - 1
    masks = [
        sum(one << words.bits * i for i in range(_KEY_ATTRIBUTES) if subset >> i & 1)
        for subset in range(2**_KEY_ATTRIBUTES)
    ]
    prepare = (
        f"CREATE TABLE keyed AS SELECT *, w0 & {masks[-1]} AS k FROM subscriptions",
        f"CREATE TABLE masks AS SELECT unnest({masks})::BIGINT AS mask",
    )
    query = f"""
        WITH e AS (SELECT *, w0 & mask AS k FROM (SELECT {tested} FROM events), masks)
        SELECT count(*) FROM e JOIN keyed s ON e.k = s.k WHERE {rest}"""
    how = f"on the values tested among the first {_KEY_ATTRIBUTES} attributes"
    return Formulation("keyed", "keyed", how, query, prepare)
