"""Which processes belong to one that was started."""

from __future__ import annotations

import subprocess
import sys
import time

from tocsin_lab.bench.killing import Process, descendants, kill, wait_gone


def test_a_worker_whose_parent_is_gone_still_belongs_to_the_driver() -> None:
    leader = subprocess.Popen(
        ["bash", "-c", "(bash -c 'exec -a spark.daemon sleep 60' & echo $!); sleep 60; true"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert leader.stdout is not None
        orphan = int(leader.stdout.readline())
        time.sleep(0.5)
        processes = {each.pid: each for each in descendants(leader.pid)}
        assert processes[orphan].role == "worker"
        assert processes[orphan].parent != leader.pid
        assert leader.pid not in processes
        kill([orphan])
        assert not wait_gone([orphan], 20)
        assert orphan not in {each.pid for each in descendants(leader.pid)}
    finally:
        kill([leader.pid, *(each.pid for each in descendants(leader.pid))])
        leader.communicate()


def test_a_process_that_leads_no_session_has_its_children_only() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        time.sleep(0.2)
        assert descendants(child.pid) == []
    finally:
        child.kill()
        child.wait()


def test_the_role_of_a_process_is_seen_from_its_command() -> None:
    roles = {
        "java org.apache.spark.executor.CoarseGrainedExecutorBackend": "executor",
        "java org.apache.spark.deploy.SparkSubmit": "jvm",
        "python -m tocsin.spark.daemon pyspark.worker": "worker",
        "python -m tocsin.cli pipeline run": "driver",
        "bash": "other",
    }
    assert {command: Process(1, 0, command).role for command in roles} == roles
