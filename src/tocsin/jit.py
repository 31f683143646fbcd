"""How kernels are compiled: decorators for what Python calls and for what only kernels call.

Kernels release the GIL and are cached on disk, see `kernel_cache`. Helpers have no entry for
Python: unpacking tuples of arrays takes longer to compile than most kernels. `inlined` copies a
helper into its caller, because a call that passes arrays counts references, which costs as much as
a short loop. Where an inlined helper has a loop, the compiler does not see that the counting is
useless: `uncounted` functions do without it, and must neither make nor return arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from tocsin.kernel_cache import KernelCache

_Function = TypeVar("_Function", bound=Callable[..., Any])

LANES = 16
"""How many elements `emit_block` and `count_below` process."""


def _cached(compiled: Any) -> Any:
    compiled._cache = cache = KernelCache(compiled.py_func)
    compile_or_load = compiled.compile

    def compile(signature: Any) -> Any:
        try:
            return compile_or_load(signature)
        finally:
            cache.release()

    compiled.compile = compile
    return compiled


def kernel(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    compiled: Any = njit
    return _cached(compiled(nogil=True)(function))  # type: ignore[no-any-return]


def inner(function: _Function) -> _Function:
    """Compile a helper that only kernels call."""
    compiled: Any = njit
    return compiled(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)  # type: ignore[no-any-return]


def inlined(function: _Function) -> _Function:
    """Compile a helper that is copied into the kernels that call it."""
    compiled: Any = njit
    return compiled(  # type: ignore[no-any-return]
        nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)


def uncounted(function: _Function) -> _Function:
    """Compile a function that Python calls, without reference counting."""
    compiled: Any = njit
    return _cached(compiled(nogil=True, _nrt=False)(function))  # type: ignore[no-any-return]


def uncounted_inlined(function: _Function) -> _Function:
    """Compile a helper that is copied into the kernels that call it, without reference counting."""
    compiled: Any = njit
    return compiled(  # type: ignore[no-any-return]
        nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False
    )(function)


def _prefetch_row(typing_context: Any, array: Any, row: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tools: Any = cgutils
        matrix = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = arguments[1]
        for length in tools.unpack_tuple(builder, matrix.shape)[1:]:
            place = builder.mul(place, length)
        place = builder.gep(matrix.data, [place])
        octets, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [octets, number, number, number])
        ask = tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(ask, [builder.bitcast(place, octets), to_read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


prefetch_row: Any = intrinsic(_prefetch_row)
"""`prefetch_row(array, row)` asks for the cache line where a row starts, and does not wait.

A row of an array of one dimension is an element.
"""


def _lowest_bit(typing_context: Any, mask: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


lowest_bit: Any = intrinsic(_lowest_bit)
"""`lowest_bit(mask)` is the place of the lowest bit of a 64-bit mask, which must not be zero."""


def _loader(n_bits: int, kind: Any) -> Any:
    def load(typing_context: Any, address: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = builder.inttoptr(arguments[0], ir.IntType(n_bits).as_pointer())
            return builder.load(builder.gep(start, [arguments[1]]))

        return kind(types.int64, types.int64), generate

    return load


load_integer: Any = intrinsic(_loader(64, types.int64))
"""`load_integer(address, i)` is the i-th 64-bit integer from a place in memory on.

It is for a number of arrays that is not known when kernels are compiled; bounds are not checked.
"""
load_short: Any = intrinsic(_loader(32, types.int32))
"""The same for 32 bits."""


def _count_below(typing_context: Any, numbers: Any, at: Any, n: Any, value: Any) -> Any:
    number = ir.IntType(16)
    lanes = ir.VectorType(number, LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), lanes.as_pointer())
        loaded = builder.load(place)
        loaded.align = 2
        nothing = ir.Constant(lanes, ir.Undefined)
        one = builder.insert_element(nothing, arguments[3], ir.Constant(ir.IntType(32), 0))
        kind = ir.VectorType(ir.IntType(32), LANES)
        limit = builder.shuffle_vector(one, nothing, ir.Constant(kind, [0] * LANES))
        below = builder.bitcast(builder.icmp_unsigned("<", loaded, limit), number)
        bits, first = builder.zext(below, ir.IntType(64)), ir.Constant(ir.IntType(64), 1)
        valid = builder.sub(builder.shl(first, arguments[2]), first)
        return builder.ctpop(builder.and_(bits, valid))

    return types.int64(numbers, types.int64, types.int64, types.uint16), generate


count_below: Any = intrinsic(_count_below)
"""`count_below(numbers, at, n, value)`: how many of n numbers from `at` on are below a value.

They are unsigned numbers of 16 bits; n is at most `LANES`, and `LANES` numbers are always read.
"""


def _has_wide_vectors() -> bool:
    """Whether kernels are compiled for a processor that permutes vectors of 512 bits."""
    options: Any = config
    is_configured = options.CPU_NAME is not None or options.CPU_FEATURES is not None
    return not is_configured and bool(binding.get_host_cpu_features().get("avx512f"))


def _gather(context: Any, builder: Any, row: Any, which: Any) -> Any:
    """Return the 32-bit words of a row at a vector of places."""
    number, wide, tools = ir.IntType(32), ir.IntType(64), cgutils
    lanes, flags = ir.VectorType(number, LANES), ir.VectorType(ir.IntType(1), LANES)
    addresses, places = ir.VectorType(number.as_pointer(), LANES), ir.VectorType(wide, LANES)
    nothing, zeros = ir.Constant(places, ir.Undefined), ir.Constant(lanes, [0] * LANES)
    start = builder.insert_element(nothing, builder.ptrtoint(row, wide), ir.Constant(number, 0))
    steps = builder.shl(builder.zext(which, places), ir.Constant(places, [2] * LANES))
    place = builder.add(builder.shuffle_vector(start, nothing, zeros), steps)
    kind = ir.FunctionType(lanes, [addresses, number, flags, lanes])
    name = f"llvm.masked.gather.v{LANES}i32.v{LANES}p0"
    gather = tools.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    everywhere = ir.Constant(flags, [1] * LANES)
    pointers = builder.inttoptr(place, addresses)
    return builder.call(gather, [pointers, ir.Constant(number, 4), everywhere, zeros])


def _permute(context: Any, builder: Any, row: Any, which: Any) -> Any:
    """Do the same for a row of 32 words, which fit into two vectors."""
    number, tools = ir.IntType(32), cgutils
    lanes = ir.VectorType(number, LANES)
    halves = []
    for half in range(2):
        place = builder.gep(row, [ir.Constant(number, half * LANES)])
        halves.append(builder.load(builder.bitcast(place, lanes.as_pointer())))
        halves[half].align = 4
    kind = ir.FunctionType(lanes, [lanes, lanes, lanes])
    name = "llvm.x86.avx512.vpermi2var.d.512"
    permute = tools.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(permute, [halves[0], which, halves[1]])


def _pair_finder(is_short: bool) -> Any:
    def find(typing_context: Any, pairs: Any, at: Any, n: Any, bits: Any, first: Any) -> Any:
        number, wide = ir.IntType(32), ir.IntType(64)
        lanes, flags = ir.VectorType(number, LANES), ir.VectorType(ir.IntType(1), LANES)
        take = _permute if is_short and _has_wide_vectors() else _gather

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def address(which: int, place: Any) -> Any:
                array = context.make_array(signature.args[which])
                return builder.gep(array(context, builder, arguments[which]).data, [place])

            def same(value: int) -> Any:
                return ir.Constant(lanes, [value] * LANES)

            def has_bit(which: Any) -> Any:
                words = take(context, builder, row, builder.lshr(which, same(5)))
                return builder.lshr(words, builder.and_(which, same(31)))

            row = address(3, arguments[4])
            loaded = builder.load(builder.bitcast(address(0, arguments[1]), lanes.as_pointer()))
            loaded.align = 4
            one, other = builder.and_(loaded, same(0xFFFF)), builder.lshr(loaded, same(16))
            are_set = builder.trunc(builder.and_(has_bit(one), has_bit(other)), flags)
            bits = builder.zext(builder.bitcast(are_set, ir.IntType(LANES)), wide)
            least = ir.Constant(wide, 1)
            valid = builder.sub(builder.shl(least, arguments[2]), least)
            is_few = builder.icmp_signed("<", arguments[2], ir.Constant(wide, LANES))
            return builder.and_(bits, builder.select(is_few, valid, ir.Constant(wide, -1)))

        return types.uint64(pairs, types.int64, types.int64, bits, types.int64), generate

    return find


find_pairs: Any = intrinsic(_pair_finder(is_short=False))
"""Which of n pairs of numbers are both in a set, as bits.

`find_pairs(pairs, at, n, bits, first)`: a pair is a 32-bit word, 16 bits for each number; the set
is a bitmap that begins at the word `bits[first]`, of 32 bits. n is at most `LANES`, and `LANES`
pairs are always read.
"""

find_pairs_in_short: Any = intrinsic(_pair_finder(is_short=True))
"""The same for a bitmap of `SHORT` words."""

SHORT = 2 * LANES


def _all_within(
    typing_context: Any,
    values: Any,
    start: Any,
    steps: Any,
    first: Any,
    low: Any,
    width: Any,
    at: Any,
) -> Any:
    number = ir.IntType(32)
    lanes = ir.VectorType(number, RANGES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def address(which: int, place: Any) -> Any:
            array = context.make_array(signature.args[which])(context, builder, arguments[which])
            return builder.gep(array.data, [place])

        def load(which: int) -> Any:
            place = builder.bitcast(address(which, arguments[6]), lanes.as_pointer())
            loaded = builder.load(place)
            loaded.align = 4
            return loaded

        wide = ir.IntType(64)
        gathered = ir.Constant(lanes, ir.Undefined)
        for lane in range(RANGES):
            place = builder.add(arguments[3], ir.Constant(wide, lane))
            step = builder.sext(builder.load(address(2, place)), wide)
            value = builder.load(address(0, builder.add(arguments[1], step)))
            gathered = builder.insert_element(gathered, value, ir.Constant(number, lane))
        is_beyond = builder.icmp_unsigned(">", builder.sub(gathered, load(4)), load(5))
        beyond = builder.bitcast(is_beyond, ir.IntType(RANGES))
        return builder.icmp_unsigned("==", beyond, ir.Constant(ir.IntType(RANGES), 0))

    number_64 = types.int64
    kinds = (values, number_64, steps, number_64, low, width, number_64)
    return types.boolean(*kinds), generate


RANGES = 8
"""How many ranges `all_within` checks."""

all_within: Any = intrinsic(_all_within)
"""Whether each of some values is within its own range.

`all_within(values, start, steps, first, low, width, at)`: whether the values at
`start + steps[first + i]` less `low[at + i]` are at most `width[at + i]`, for each i below
`RANGES`; all are unsigned numbers of 32 bits.
"""


def _press_and_write(context: Any, builder: Any, values: Any, mask: Any, to: Any) -> None:
    """Write the lanes of a mask one after the other, and nothing else."""
    kind = ir.FunctionType(ir.VoidType(), [values.type, to.type, mask.type])
    name, tools = f"llvm.masked.compressstore.v{LANES}i32", cgutils
    store = tools.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    builder.call(store, [values, to, mask])


def _press(builder: Any, values: Any, mask: Any) -> Any:
    """Return the lanes of a mask one after the other."""
    kind = ir.FunctionType(values.type, [values.type, values.type, mask.type])
    name, tools = f"llvm.x86.avx512.mask.compress.v{LANES}i32", cgutils
    press = tools.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(press, [values, values, mask])


def _write_pressed(context: Any, builder: Any, values: Any, mask: Any, to: Any) -> None:
    """Write the lanes of a mask one after the other, and undefined values behind them.

    A compressing store is very slow on some processors.
    """
    pressed = _press(builder, values, mask)
    store = builder.store(pressed, builder.bitcast(to, values.type.as_pointer()))
    store.align = 4


def _emit_block(
    typing_context: Any,
    high: Any,
    other_low: Any,
    other_width: Any,
    number: Any,
    at: Any,
    cell: Any,
    other: Any,
    base: Any,
    out: Any,
    n: Any,
) -> Any:
    number_type = ir.IntType(32)
    lanes = ir.VectorType(number_type, LANES)
    write = _write_pressed if _has_wide_vectors() else _press_and_write

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def address(which: int, place: Any) -> Any:
            array = context.make_array(signature.args[which])(context, builder, arguments[which])
            return builder.gep(array.data, [place])

        def load(which: int) -> Any:
            place = builder.bitcast(address(which, arguments[4]), lanes.as_pointer())
            loaded = builder.load(place)
            loaded.align = 4
            return loaded

        def spread(which: int) -> Any:
            nothing = ir.Constant(lanes, ir.Undefined)
            one = builder.insert_element(nothing, arguments[which], ir.Constant(number_type, 0))
            return builder.shuffle_vector(one, nothing, ir.Constant(lanes, [0] * LANES))

        distance = builder.sub(spread(6), load(1))
        fits = builder.and_(
            builder.icmp_unsigned(">", load(0), spread(5)),
            builder.icmp_unsigned("<=", distance, load(2)),
        )
        numbers = builder.add(load(3), spread(7))
        write(context, builder, numbers, fits, address(8, arguments[9]))
        count = builder.ctpop(builder.bitcast(fits, ir.IntType(LANES)))
        return builder.add(arguments[9], builder.zext(count, ir.IntType(64)))

    arguments = (high, other_low, other_width, number, at, cell, other, base, out, n)
    return types.int64(*arguments), generate


emit_block: Any = intrinsic(_emit_block)
"""Filter `LANES` rows of four columns of 32 bits, from `at` on, and write their numbers.

`emit_block(high, other_low, other_width, number, at, cell, other, base, out, n)` writes
`number + base` to `out[n]` and on for each place where `high > cell` and `other - other_low` is at
most `other_width`, all unsigned, and returns where the next one goes. `out` must have capacity for
`LANES` numbers from `n` on: those behind the results are undefined. It takes a few instructions
where the processor can compress a vector, and a branch for each row elsewhere.
"""


WORDS = 8
"""How many words of 64 bits a row of masks has."""


def _common(is_range: bool) -> Any:
    """Return an intrinsic that intersects three rows of masks, or of differences of two rows."""

    def find(typing_context: Any, masks: Any, *places: Any) -> Any:
        words, wide = ir.VectorType(ir.IntType(64), WORDS), ir.IntType(64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])

            def row(place: Any) -> Any:
                first = builder.mul(place, ir.Constant(wide, WORDS))
                start = builder.bitcast(builder.gep(array.data, [first]), words.as_pointer())
                loaded = builder.load(start)
                loaded.align = 8
                return loaded

            rows = [row(place) for place in arguments[1:]]
            if is_range:
                rows = [builder.xor(*rows[i : i + 2]) for i in range(0, len(rows), 2)]
            met = builder.and_(builder.and_(rows[0], rows[1]), rows[2])
            is_any = builder.icmp_unsigned("!=", met, ir.Constant(words, [0] * WORDS))
            return builder.zext(builder.bitcast(is_any, ir.IntType(WORDS)), wide)

        return types.uint64(masks, *(types.uint64 for _ in places)), generate

    if is_range:
        return lambda context, masks, a, b, c, d, e, f: find(context, masks, a, b, c, d, e, f)
    return lambda context, masks, a, b, c: find(context, masks, a, b, c)


common_words: Any = intrinsic(_common(is_range=False))
"""`common_words(masks, a, b, c)`: in which words three rows of masks have a common bit, as bits."""

common_words_of_ranges: Any = intrinsic(_common(is_range=True))
"""The same for differences of two rows each: `(masks, low, high, low2, high2, low3, high3)`."""


def _pass_block(
    typing_context: Any, numbers: Any, at: Any, n: Any, words: Any, passed: Any, to: Any, tag: Any
) -> Any:
    number, wide = ir.IntType(32), ir.IntType(64)
    lanes, flags = ir.VectorType(number, LANES), ir.VectorType(ir.IntType(1), LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def address(which: int, place: Any) -> Any:
            array = context.make_array(signature.args[which])(context, builder, arguments[which])
            return builder.gep(array.data, [place])

        def same(value: int) -> Any:
            return ir.Constant(lanes, [value] * LANES)

        least = ir.Constant(wide, 1)
        valid = builder.sub(builder.shl(least, arguments[2]), least)
        valid = builder.bitcast(builder.trunc(valid, ir.IntType(LANES)), flags)
        loaded = _load_masked(builder, address(0, arguments[1]), valid)
        which = builder.lshr(loaded, same(5))
        start = ir.Constant(wide, 0)
        lower = _permute(context, builder, address(3, start), which)
        upper = _permute(context, builder, address(3, ir.Constant(wide, SHORT)), which)
        is_upper = builder.icmp_unsigned(">=", which, same(SHORT))
        bits = builder.select(is_upper, upper, lower)
        bits = builder.trunc(builder.lshr(bits, builder.and_(loaded, same(31))), flags)
        bits = builder.and_(bits, valid)
        steps = ir.Constant(lanes, list(range(LANES)))
        pressed = _press(builder, steps, bits)
        count = builder.zext(builder.ctpop(builder.bitcast(bits, ir.IntType(LANES))), wide)
        target = address(4, arguments[5])
        _write_long(builder, pressed, _FEW_LANES, arguments[6], target)
        is_more = builder.icmp_unsigned(">", count, ir.Constant(wide, _FEW_LANES))
        with builder.if_then(is_more, likely=False):
            _write_long(builder, pressed, LANES, arguments[6], target)
        return builder.add(arguments[5], count)

    kinds = (numbers, types.int64, types.int64, words, passed, types.int64, types.uint64)
    return types.int64(*kinds), generate


_FEW_LANES = 4
"""How many lanes are always written; more are rarely set."""


def _write_long(builder: Any, values: Any, n: int, tag: Any, to: Any) -> None:
    """Write the first n lanes as numbers of 64 bits, with a tag added to each."""
    longs, number = ir.VectorType(ir.IntType(64), n), ir.IntType(32)
    nothing = ir.Constant(values.type, ir.Undefined)
    first = ir.Constant(ir.VectorType(number, n), list(range(n)))
    numbers = builder.zext(builder.shuffle_vector(values, nothing, first), longs)
    nothing = ir.Constant(longs, ir.Undefined)
    one = builder.insert_element(nothing, tag, ir.Constant(number, 0))
    tags = builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(number, n), [0] * n))
    store = builder.store(builder.add(numbers, tags), builder.bitcast(to, longs.as_pointer()))
    store.align = 8


def _load_masked(builder: Any, place: Any, mask: Any) -> Any:
    """Return the lanes of a mask from a place on, zeros elsewhere; reads no other lanes."""
    lanes, tools = ir.VectorType(ir.IntType(32), LANES), cgutils
    place = builder.bitcast(place, lanes.as_pointer())
    kind = ir.FunctionType(lanes, [place.type, ir.IntType(32), mask.type, lanes])
    name = f"llvm.masked.load.v{LANES}i32.p0"
    load = tools.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    zeros = ir.Constant(lanes, [0] * LANES)
    return builder.call(load, [place, ir.Constant(ir.IntType(32), 4), mask, zeros])


pass_block: Any = intrinsic(_pass_block)
"""`pass_block(numbers, at, n, words, passed, to, tag)`: which of some numbers are in a set.

It reads n numbers of 32 bits, at most `LANES`, from `at` on, and writes `tag + i` to
`passed[to]` and on for the i-th if the set has it; it returns where the next one goes. The set is
a bitmap of `MOST_BITS` bits in words of 32; `passed` must have capacity for `LANES` numbers of 64
bits from `to` on. This needs wide vectors: see `HAS_WIDE_VECTORS`.
"""

MOST_BITS = 32 * 2 * SHORT
HAS_WIDE_VECTORS = _has_wide_vectors()
"""Whether kernels are compiled for a processor that permutes vectors of 512 bits."""
