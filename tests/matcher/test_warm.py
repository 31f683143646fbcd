"""Compiling ahead."""

from __future__ import annotations

import subprocess
import sys

COLD = """
import tocsin
from tocsin.engines.auto import (
    bitmap_kernels, column_kernels, delta_kernels, entry_kernels, group_kernels, member_kernels,
    row_kernels, verify_kernels,
)

tocsin.warm_up()
for module in (
    bitmap_kernels, column_kernels, delta_kernels, entry_kernels, group_kernels, member_kernels,
    row_kernels, verify_kernels,
):
    for name, function in vars(module).items():
        options = getattr(function, "targetoptions", {"no_cpython_wrapper": True})
        is_kernel = not options.get("no_cpython_wrapper")
        if is_kernel and not function.signatures:
            print(module.__name__, name)
"""


def test_warming_up_leaves_no_kernel_that_matches_to_be_compiled_later() -> None:
    found = subprocess.run(
        [sys.executable, "-c", COLD], check=True, capture_output=True, text=True, timeout=300
    )
    assert found.stdout == ""
