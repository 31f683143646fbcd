"""The commands of benchmarks have the options of their settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tocsin.cli.app import app
from tocsin.cli.console import BAD_ROWS, guarded
from tocsin_lab.cli import commands
from tocsin_lab.cli.app import BENCHMARKS


def option(default: Any, *, least: float | None = None, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": "?", "least": least, "choices": choices})


@dataclass(frozen=True)
class Setting:
    """Do something."""

    n: int = option(3, least=1)
    rate: float | None = option(None)
    sizes: tuple[int, ...] = option((1, 2))
    names: tuple[str, ...] = option(("a",))
    mode: str = option("slow", choices=("slow", "fast"))
    hidden: int = 7


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, list[Setting]]:
    """Run a command of `Setting`; return its exit code, output, and the settings that it ran."""
    ran: list[Setting] = []

    class Module:
        @staticmethod
        def run(setting: Setting, progress: Any) -> dict[str, Any]:
            progress("something", 0, 1)
            ran.append(setting)
            return {"n": setting.n, "verified": setting.n < 100}

        @staticmethod
        def render(result: Any) -> str:
            return f"n is {result['n']}"

    monkeypatch.setattr(commands, "import_module", lambda name: Module)
    made = typer.Typer()
    made.command()(guarded(commands.command_of("something", Setting)))
    result = CliRunner().invoke(made, [*arguments])
    return result.exit_code, result.output, ran


def test_options_fill_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output, ran = run(monkeypatch=monkeypatch)
    assert (code, ran) == (0, [Setting()])
    assert "n is 3" in output
    options = ["--n", "5", "--rate", "0.5", "--sizes", "4, 5,6", "--names", "b,c", "--mode", "fast"]
    code, output, ran = run(*options, "--json", monkeypatch=monkeypatch)
    assert ran == [Setting(5, 0.5, (4, 5, 6), ("b", "c"), "fast")]
    assert json.loads(output.splitlines()[-1])["n"] == 5
    assert run("--sizes", "", monkeypatch=monkeypatch)[2] == [Setting(sizes=())]


@pytest.mark.parametrize(
    "wrong",
    [["--n", "0"], ["--sizes", "1,x"], ["--sizes", "1,"], ["--mode", "?"], ["--hidden"]],
)
def test_wrong_options_are_refused(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, ran = run(*wrong, monkeypatch=monkeypatch)
    assert (code, ran) == (2, [])


def test_an_output_that_is_found_wrong_has_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--n", "100", monkeypatch=monkeypatch)[0] == BAD_ROWS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_shows_its_options(name: str) -> None:
    shown = CliRunner().invoke(app, ["bench", name, "--help"]).output
    setting = BENCHMARKS[name]
    assert str(setting.__doc__).split(",")[0][:40] in shown
    for f in fields(setting):
        assert (f"--{f.name.replace('_', '-')}" in shown) == ("help" in f.metadata)
