"""Every engine passes the suite that a stranger's must pass; a wrong engine does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tocsin import engines
from tocsin.encode.events import EventBatch
from tocsin.engines import EngineSpec
from tocsin.engines.oracle import OracleEngine
from tocsin.engines.ragged import RaggedIds
from tocsin.errors import ArgumentError
from tocsin_lab import conformance
from tocsin_lab.conformance import EngineConformance

EXAMPLES = Path(__file__).parents[2] / "examples"


class TestAuto(EngineConformance):
    engine = "auto"


class TestAutoWithoutMerges(EngineConformance):
    engine = "auto"
    options = {"merges": False}  # noqa: RUF012 - never changed


class TestOracle(EngineConformance):
    engine = "oracle"


class TestCounting(EngineConformance):
    engine = "counting"


class TestPropagation(EngineConformance):
    engine = "propagation"


class TestPropagationPrefetch(EngineConformance):
    engine = "propagation-prefetch"


class TestStatic(EngineConformance):
    engine = "static"


class TestDynamic(EngineConformance):
    engine = "dynamic"


class TestTree(EngineConformance):
    engine = "tree"


class TestTama(EngineConformance):
    engine = "tama"


class TestFastint(EngineConformance):
    engine = "fastint"


class ForgetfulEngine(OracleEngine):
    """Loses the last match of a batch."""

    def match_batch(self, events: EventBatch) -> RaggedIds:
        offsets, ids = super().match_batch(events)
        return RaggedIds(offsets.clip(max=max(len(ids) - 1, 0)), ids[:-1])


def test_every_engine_of_the_laboratory_has_a_class_here() -> None:
    tested = {value.engine for value in globals().values() if hasattr(value, "engine")}
    assert set(engines.names()) <= tested


def test_a_wrong_engine_fails() -> None:
    engines.register("forgetful", EngineSpec(f"{__name__}:ForgetfulEngine", None, True))
    try:
        results = dict(conformance.verdicts("forgetful", {}))
    finally:
        engines.unregister("forgetful")
    assert results["no subscriptions match nothing"] is None
    assert "wrong matches in a batch" in str(results["subscriptions match by their dense ids"])


def test_the_engines_of_the_product_cannot_be_replaced() -> None:
    with pytest.raises(ArgumentError, match="auto"):
        engines.register("auto", EngineSpec("somewhere:Else"))


def run(*arguments: str, path: Path = EXAMPLES) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(path), str(EXAMPLES)])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_example_conforms_as_an_installed_engine(tmp_path: Path) -> None:
    """The metadata of a distribution, as an installation adds it to the example."""
    info = tmp_path / "groups-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: groups\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tocsin.engines]\ngroups = attribute_groups:SPEC\n")
    result = run("-m", "tocsin_lab.conformance", "groups", path=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("groups conforms\n")


def test_an_engine_is_named_by_its_class_or_refused() -> None:
    code = "import sys; from tocsin_lab.conformance import main; "
    made = "from tocsin import engines, Matcher; from tocsin.engines import EngineSpec; "
    made += "engines.register('mine', EngineSpec('attribute_groups:AttributeGroups')); "
    made += "m = Matcher(engine='mine'); m.subscribe(1, 'x = 1'); print(m.match({'x': 1}))"
    assert run("-c", made).stdout == "[1]\n"
    result = run("-c", code + "sys.exit(main(['warp']))")
    assert result.returncode == 2
    assert "warp" in result.stderr
