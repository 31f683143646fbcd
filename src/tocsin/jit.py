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

from numba import njit

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
