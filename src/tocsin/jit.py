"""How kernels are compiled: decorators for what Python calls and for what only kernels call.

Kernels release the GIL and are cached on disk. Those that call each other live in one module,
because a cached kernel does not notice a change in another one. An inner kernel gets no entry for
Python, whose unpacking of tuples of arrays takes longer to compile than most kernels. An inlined
one is copied into its caller: a call that passes arrays counts references, which costs as much as
a short loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    return njit(cache=True, nogil=True)(function)  # type: ignore[return-value]


def inner(function: _Function) -> _Function:
    """Compile a function that only kernels call."""
    compiled: Any = njit
    return compiled(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)  # type: ignore[no-any-return]


def inlined(function: _Function) -> _Function:
    """Compile a function that is copied into the kernels that call it."""
    compiled: Any = njit
    return compiled(  # type: ignore[no-any-return]
        nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)


def _prefetch_row(typing_context: Any, array: Any, row: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tools: Any = cgutils
        given = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = arguments[1]
        for step in tools.unpack_tuple(builder, given.shape)[1:]:
            at = builder.mul(at, step)
        place = builder.gep(given.data, [at])
        octets, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [octets, number, number, number])
        ask = tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(ask, [builder.bitcast(place, octets), to_read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


prefetch_row: Any = intrinsic(_prefetch_row)
"""`prefetch_row(array, row)` asks for the cache line where a row starts, and does not wait.

In an array of one dimension a row is an item.
"""
