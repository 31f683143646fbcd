"""The shape of the package: which way imports point, what is exported, how long functions are."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tocsin
from tocsin.kernel_cache import digest_of, is_kernel_source

SOURCE = Path(tocsin.__file__).parent

LAYERS = [
    ["errors"],
    ["extras"],
    ["model"],
    ["kernel_cache"],
    ["arrow", "jit", "bundle", "compiling"],
    ["language"],
    ["normalize"],
    ["encode"],
    ["engines"],
    ["catalog"],
    ["matches", "explain", "arguments", "drift"],
    ["loading", "storage", "schema_watch"],
    ["matcher"],
    ["store"],
    ["warm"],
    ["transitions"],
    ["subjects"],
    ["summary"],
    ["workloads"],
    ["spark", "broker"],
    ["web"],
    ["cli"],
]
"""Imports point from later lines to earlier ones. Modules on one line do not know each other."""

RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FACE = "warm"
"""`import tocsin` is as high as what it gives: whoever may not know the matcher may not use it."""

MAX_FUNCTION = 60
LONG_FUNCTIONS = {
    "engines/auto/literal_kernels.py:scan_text": "its stages prefetch for each other",
    "engines/auto/pattern_row_kernels.py:check_patterns": "two ways to check, chosen by the pair",
    "normalize/fold_kernels.py:fold": "the loop of every bulk load, its common case written out",
}


def modules() -> dict[str, Path]:
    """Return the modules of the package by their dotted names."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ["tocsin", *path.relative_to(SOURCE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Yield the modules of the package that a module imports, wherever it does, with the line."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner if inner in MODULES else base), node.lineno


def own_imports(name: str) -> list[tuple[str, int]]:
    return [(m, line) for m, line in imports(name) if m == "tocsin" or m.startswith("tocsin.")]


def layer(name: str) -> str:
    return name.split(".")[1] if "." in name else FACE


def test_every_module_has_its_layer() -> None:
    unknown = sorted({layer(name) for name in MODULES} - set(RANK))
    assert not unknown, f"give {', '.join(unknown)} a place in LAYERS"


def test_imports_point_one_way() -> None:
    wrong = []
    for name, path in MODULES.items():
        if name == "tocsin":  # loads its names when they are asked for
            continue
        for imported, line in own_imports(name):
            here, there = layer(name), layer(imported)
            if here != there and RANK[there] >= RANK[here]:
                where = f"{path.relative_to(SOURCE)}:{line}"
                wrong.append(f"{where}: {name} ({here}) imports {imported} ({there})")
    assert not wrong, "\n".join(wrong)


def test_the_product_imports_nothing_of_the_laboratory() -> None:
    for name, path in MODULES.items():
        assert "tocsin_lab" not in {m.partition(".")[0] for m, _ in imports(name)}, path


def of_types_only(name: str) -> set[int]:
    """Return the lines of imports that only a type checker reads."""
    return {
        node.lineno
        for block in ast.walk(tree(name))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
    }


def test_modules_of_one_layer_import_each_other_in_no_circle() -> None:
    graph = {
        name: sorted({m for m, at in own_imports(name) if at not in of_types_only(name)} - {name})
        for name in MODULES
    }
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        assert name not in trail, " → ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for following in graph.get(name, []):
                if following != "tocsin":
                    visit(following, [*trail, name])
            done.add(name)

    for name in MODULES:
        if name != "tocsin":
            visit(name, [])


def test_kernels_import_only_modules_that_the_name_of_their_cache_covers() -> None:
    for name in MODULES:
        if "kernels" in name:
            for imported, line in own_imports(name):
                assert is_kernel_source(MODULES[imported]), f"{name}:{line} imports {imported}"


@pytest.mark.parametrize("edited", ["a_kernels.py", "inside/jit.py", "inside/arrays.py"])
def test_the_name_of_the_cache_changes_with_every_source_of_a_kernel(
    edited: str, tmp_path: Path
) -> None:
    (tmp_path / "inside").mkdir()
    for name in ("a_kernels.py", "b_kernels.py", "inside/jit.py", "inside/arrays.py", "plain.py"):
        (tmp_path / name).write_text("x = 1")
    before = digest_of(tmp_path)
    (tmp_path / "plain.py").write_text("x = 2")
    assert digest_of(tmp_path) == before
    (tmp_path / edited).write_text("x = 2")
    assert digest_of(tmp_path) != before
    assert digest_of(tmp_path, tmp_path / "inside") != digest_of(tmp_path)


def test_numba_is_imported_by_kernels_only() -> None:
    for name in MODULES:
        used = {m.partition(".")[0] for m, _ in imports(name)}
        allowed = name in ("tocsin.jit", "tocsin.kernel_cache") or "kernels" in name
        assert "numba" not in used or allowed, name


OPTIONAL = {
    "pyspark": ("spark", "workloads", "cli"),
    "duckdb": ("cli",),
    "polars": ("matches", "cli"),
    "pandas": ("matches", "spark", "cli"),
    "starlette": ("broker",),
    "uvicorn": ("broker", "cli"),
    "httpx": ("broker", "cli"),
    "httptools": ("broker",),
    "orjson": ("broker",),
    "uvloop": ("broker",),
    "websockets": ("broker",),
    "typer": ("cli",),
    "rich": ("cli",),
}


def test_what_only_some_users_have_is_imported_where_they_are() -> None:
    for name in MODULES:
        for imported, line in imports(name):
            allowed = OPTIONAL.get(imported.partition(".")[0])
            assert allowed is None or layer(name) in allowed, f"{name}:{line} imports {imported}"


OF_OTHERS = {
    "_active_spark_context",
    "_cache",
    "_exit",
    "_jsc",
    "_locator_classes",
    "_show_string",
}
"""Private attributes of other libraries that we use, for want of public ones."""
OF_TUPLES = {"_replace", "_asdict", "_fields", "_make"}


def private_names(package: str) -> set[str]:
    """Return the private names that the modules of a package define on objects."""
    names: set[str] = set()
    for name in MODULES:
        if layer(name) == package:
            for node in ast.walk(tree(name)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    names.add(node.name)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    names.add(node.attr)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.id)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    names.add(node.target.id)
    return names


def test_no_package_uses_the_private_attributes_of_another() -> None:
    wrong = []
    for package in {layer(name) for name in MODULES}:
        own = private_names(package)
        for name in MODULES:
            if layer(name) != package:
                continue
            for node in ast.walk(tree(name)):
                if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
                    continue
                is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                is_known = node.attr in own | OF_OTHERS | OF_TUPLES or node.attr.endswith("__")
                if not is_own and not is_known:
                    wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


# What the package shows.


def test_these_names_are_exported_and_no_others() -> None:
    assert tocsin.__all__ == [
        "AsyncClient",
        "Client",
        "EventType",
        "Expression",
        "Kind",
        "LoadReport",
        "Matcher",
        "Matches",
        "Notification",
        "SubjectSpace",
        "Subscription",
        "SubscriptionStore",
        "__version__",
        "connect",
        "connect_async",
        "covers",
        "engines",
        "errors",
        "parse",
        "warm_up",
    ]
    assert dir(tocsin) == sorted(tocsin.__all__)
    for name in tocsin.__all__:
        assert getattr(tocsin, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tocsin.Nothing  # noqa: B018


def test_the_version_is_that_of_the_distribution() -> None:
    assert tocsin.__version__ == importlib.metadata.version("tocsin")


def test_types_are_shipped() -> None:
    assert (SOURCE / "py.typed").exists()


HEAVY = ["numba", "llvmlite", "pyspark", "pyarrow", "numpy", "pandas", "polars", "duckdb", "rich"]


def loaded_after(code: str) -> list[str]:
    """Return which heavy modules a fresh process has loaded after some code."""
    script = (
        f"import sys, json\n{code}\nprint(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    found: list[str] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import tocsin", []),
        ("import tocsin; tocsin.EventType('T', x=int); tocsin.errors.TocsinError", []),
        ("import tocsin; tocsin.engines.names(); tocsin.parse('x = 1'); tocsin.Expression", []),
        ("import tocsin; tocsin.covers('x > 1', 'x > 2')", []),
        ("from tocsin.language import parse; parse('x = 1')", []),
        ("import tocsin; tocsin.Matcher", ["numba", "llvmlite", "pyarrow", "numpy"]),
    ],
    ids=[
        "tocsin",
        "event types",
        "engines and the parser",
        "covers",
        "the language",
        "the matcher",
    ],
)
def test_what_is_heavy_is_loaded_only_when_it_is_used(code: str, allowed: list[str]) -> None:
    assert set(loaded_after(code)) <= set(allowed)


# Style.


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_every_module_says_what_it_is(name: str) -> None:
    text = ast.get_docstring(tree(name))
    assert text, f"{name} has no docstring"
    assert text.split("\n")[0].endswith("."), "the first line is a sentence"


def test_functions_are_short() -> None:
    for name, path in MODULES.items():
        relative = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                n_lines = node.end_lineno - node.lineno + 1
                named = f"{relative}:{node.name}"
                assert n_lines <= MAX_FUNCTION or named in LONG_FUNCTIONS, (
                    f"{named} has {n_lines} lines; more than {MAX_FUNCTION}"
                )


def test_exceptions_have_their_reasons() -> None:
    for name, reason in LONG_FUNCTIONS.items():
        assert (SOURCE / name.partition(":")[0]).exists(), f"{name} is gone"
        assert reason


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        if not name.endswith("__main__"):
            importlib.import_module(name)
