"""The process: how fast it answers, what it imports, and how it ends."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

TOCSIN = [sys.executable, "-m", "tocsin.cli"]


def run(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TOCSIN, *args], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]


def test_help_names_the_exit_codes() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "130 interrupted" in result.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tocsin.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'numba', 'pyarrow', 'numpy', 'pyspark', 'rich'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert result.stdout.endswith("[]\n"), result.stdout


def test_version_is_the_package_version() -> None:
    import tocsin

    assert run("--version").stdout == f"tocsin {tocsin.__version__}\n"


@pytest.mark.parametrize("args", [["bogus"], ["match"], ["check"], ["check", "--nope", "x = 1"]])
def test_wrong_usage_exits_with_two(args: list[str]) -> None:
    result = run(*args)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_our_errors_have_no_traceback() -> None:
    result = run("check", "price <")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.endswith("       ^\n")


def test_a_closed_pipe_ends_match_quietly(tmp_path: Path) -> None:
    subscriptions, events = tmp_path / "s.txt", tmp_path / "e.csv"
    subscriptions.write_text("".join(f"x < {i + 10}\n" for i in range(20)))
    events.write_text("x\n" + "1\n" * 3_000)
    command = [*TOCSIN, "match", "-s", str(subscriptions), "-e", str(events), "--engine", "oracle"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"0\t")
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 0
    assert b"Traceback" not in errors
    assert b"BrokenPipe" not in errors


def test_an_interruption_exits_with_130(tmp_path: Path) -> None:
    subscriptions, events = tmp_path / "s.txt", tmp_path / "e.jsonl"
    subscriptions.write_text("x < 10\n")
    os.mkfifo(events)
    pipe = os.open(events, os.O_RDWR)  # held open, so that the command waits for more
    os.write(pipe, b"{")
    command = [*TOCSIN, "match", "-s", str(subscriptions), "-e", str(events)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while n_unread(pipe) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        errors = process.stderr.read()
        assert process.wait(60) == 130
    os.close(pipe)
    assert "interrupted" in errors
    assert "Traceback" not in errors


def n_unread(pipe: int) -> int:
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0]


def test_shells_complete_commands_and_options() -> None:
    environment = {
        **os.environ, "_TOCSIN_COMPLETE": "complete_bash", "COMP_WORDS": "tocsin subscriptions ex",
        "COMP_CWORD": "2",
    }  # fmt: skip
    done = subprocess.run(
        [*TOCSIN], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["export"]
