from __future__ import annotations

import json
import platform

import numpy as np
import pyarrow as pa

from tocsin_lab.bench.machine import machine, one_core, peak_rss_mb, rss_mb, versions


def test_the_facts_are_ready_for_json():
    facts = json.loads(json.dumps({**machine(), **versions()}))
    assert facts["cpu"]
    assert facts["cores"] >= 1
    assert facts["memory_gb"] > 0.1
    assert facts["python"] == platform.python_version()
    assert facts["pyarrow"] == pa.__version__


def test_the_facts_do_not_name_the_host():
    assert platform.node() not in json.dumps(machine())


def test_a_package_that_is_missing_is_said_to_be():
    assert versions("no-such-package")["no-such-package"] == "not installed"


def test_memory_is_in_megabytes():
    assert 10 < rss_mb() <= peak_rss_mb() < 1_000_000


def test_memory_that_was_given_back_is_in_the_peak_only():
    before = rss_mb()
    block = np.ones(64 * 2**20, np.uint8)
    assert rss_mb() > before + 48
    del block
    assert rss_mb() < before + 48 < peak_rss_mb()


def test_one_core_is_undone_at_the_end():
    before = pa.cpu_count()
    with one_core():
        assert pa.cpu_count() == 1
    assert pa.cpu_count() == before
