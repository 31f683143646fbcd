"""Compiling ahead."""

from __future__ import annotations

import subprocess
import sys

COLD = """
import importlib, pkgutil, tocsin
from tocsin.engines import auto

tocsin.warm_up()
names = {module.name for module in pkgutil.iter_modules(auto.__path__) if "kernels" in module.name}
assert len(names) > 10, names
for each in sorted(names - {"bounds_kernels"}):  # those run when a store is opened
    module = importlib.import_module(f"{auto.__name__}.{each}")
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
