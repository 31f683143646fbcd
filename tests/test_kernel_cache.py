"""The cache of compiled kernels: an edit in a helper is seen, and old folders go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tocsin import kernel_cache
from tocsin.engines.auto import bounds_kernels

KERNELS = """
from numba import types
from sample.b_kernels import helper
from tocsin.jit import kernel

@kernel
def run(x):
    return helper(x)

if __name__ != "__main__":
    print(run(1), run.stats.cache_hits[(types.int64,)] if run.stats.cache_hits else 0)
"""
LOADED_QUICKLY = """
import sys
from tocsin.jit import kernel

@kernel
def run(x):
    return hash(x) != hash(x + x)

first = run("abc") if "text" in sys.argv else run(1)
hits = sum(run.stats.cache_hits.values())
print(int(first), hits, int("numba.np.linalg" in sys.modules))
"""
HELPER = "from tocsin.jit import inlined\n@inlined\ndef helper(x):\n    return x + {}\n"


def run(folder: Path, *args: str) -> list[int]:
    """Return what the kernel of a package prints in a process of its own."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", "import sample.a_kernels", *args],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=True,
    )
    return [int(word) for word in result.stdout.split()]


@pytest.mark.slow
def test_a_cached_kernel_notices_an_edit_in_another_module(tmp_path: Path) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a_kernels.py").write_text(KERNELS)
    for added, hits in ((1, 0), (1, 1), (2, 0), (2, 1), (1, 1)):
        (package / "b_kernels.py").write_text(HELPER.format(added))
        assert run(tmp_path) == [1 + added, hits]
    for added in (3, 4):
        (package / "b_kernels.py").write_text(HELPER.format(added))
        assert run(tmp_path) == [1 + added, 0]
    (folder,) = (tmp_path / "cache").glob("sample_*")
    assert len(list(folder.iterdir())) == 3


@pytest.mark.slow
def test_a_cached_kernel_is_loaded_without_the_tables_of_the_compiler(tmp_path: Path) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a_kernels.py").write_text(LOADED_QUICKLY)
    assert run(tmp_path) == [1, 0, 1], "it is compiled"
    assert run(tmp_path) == [1, 1, 0], "it is loaded, and the compiler is not needed"
    # What hashes texts names symbols that are defined with the tables.
    assert run(tmp_path, "text") == [1, 0, 1]
    assert run(tmp_path, "text") == [1, 1, 1]
    assert run(tmp_path) == [1, 1, 0]


def test_kernels_of_the_package_are_cached_in_such_a_folder() -> None:
    bounds_kernels.ascend(np.zeros(2, np.uint32))
    folder = Path(bounds_kernels.ascend.stats.cache_path)  # type: ignore[attr-defined]
    assert folder.name.startswith("kernels-")
    root = Path(kernel_cache.__file__).parent
    assert folder.name.endswith(kernel_cache.digest_of(root))
