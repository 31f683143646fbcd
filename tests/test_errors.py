"""Errors: what they are in Python, what they say, and that they survive a process boundary."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import tocsin
from tocsin import errors
from tocsin.extras import explain_missing, load


def test_wrong_arguments_are_value_errors() -> None:
    with pytest.raises(ValueError, match="event_type must be an EventType"):
        tocsin.Matcher("Quote")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no engine 'none'"):
        tocsin.Matcher(engine="none")
    with pytest.raises(ValueError, match="line 1, column 4"):
        tocsin.parse("x >")


def test_an_unknown_id_is_a_key_error_whose_message_is_a_sentence() -> None:
    with pytest.raises(KeyError) as caught:
        tocsin.Matcher().unsubscribe("a")
    assert str(caught.value) == "there is no subscription with id 'a'"
    with pytest.raises(KeyError) as caught:
        tocsin.SubjectSpace().retract("k")
    assert str(caught.value) == "there is no publication with key 'k'"


def test_a_missing_extra_is_an_import_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "tocsin.broker.client", raising=False)
    with pytest.raises(ImportError) as caught:
        tocsin.connect  # noqa: B018
    assert isinstance(caught.value, errors.MissingExtraError)
    assert str(caught.value) == (
        "tocsin.connect needs the package httpx, which is not installed: "
        "pip install 'tocsin[broker]'"
    )
    assert caught.value.code == "missing-extra"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_spark_without_pyspark_says_what_to_install() -> None:
    """In a process of its own, which has imported nothing yet."""
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from tocsin import errors, spark\n"
        "try: spark.match\n"
        "except errors.MissingExtraError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "tocsin[spark]" in result.stdout, result.stderr


def test_an_import_that_fails_for_another_reason_is_left_as_it_is() -> None:
    error = ModuleNotFoundError("No module named 'nowhere'", name="nowhere")
    assert explain_missing(error, "x") is error
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        load("tocsin.nowhere", "x", "x")
