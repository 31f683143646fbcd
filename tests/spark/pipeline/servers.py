"""Servers on loopback: a Kafka broker in KRaft mode, and a standalone Spark cluster."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.spark.pipeline.jars import HOME, scala_library

_KAFKA = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.partitions=2
"""


def free_ports(n: int) -> list[int]:
    """Return ports that nobody listens on just now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def await_port(port: int, process: subprocess.Popen[bytes], log: Path, seconds: float = 90) -> None:
    """Wait until a server listens; say what it wrote when it does not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"no server on port {port}:\n{log.read_text(errors='replace')[-3000:]}")


@contextmanager
def kafka(folder: Path, jars: Sequence[Path]) -> Iterator[str]:
    """Run a Kafka broker; yield its address."""
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(_KAFKA.format(port=port, controller=controller, folder=folder))
    path = os.pathsep.join(map(str, [*jars, scala_library()]))
    java = ["java", "-Xmx256m", "-cp", path]
    octets = uuid.uuid4().bytes  # the text must not begin with "-", which would be an option
    octets = bytes([octets[0] & 0x7F]) + octets[1:]
    cluster = base64.urlsafe_b64encode(octets).decode().rstrip("=")
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)],
        check=True,
        capture_output=True,
        timeout=90,
    )
    log = folder / "kafka.log"
    with log.open("wb") as out:
        server = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=out, stderr=out)
    try:
        await_port(port, server, log)
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@contextmanager
def cluster(folder: Path, n_workers: int = 2) -> Iterator[tuple[str, list[int]]]:
    """Run a master and workers; yield the master's URL and the workers' process ids."""
    port, *ports = free_ports(1 + n_workers)
    environment = {**os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(folder / "work")}
    environment |= {"SPARK_DAEMON_MEMORY": "256m"}
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{arguments[-1].rpartition(':')[2]}-{len(started)}.log"
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        with log.open("wb") as out:
            started.append(
                subprocess.Popen(
                    [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
                    env=environment,
                    stdout=out,
                    stderr=out,
                )
            )
        return log

    url = f"spark://127.0.0.1:{port}"
    try:
        log = start("master.Master", "--port", str(port))
        await_port(port, started[-1], log)
        for each in ports:
            size = ["--cores", "1", "--memory", "1g", "--port", str(each)]
            log = start("worker.Worker", *size, url)
            await_port(each, started[-1], log)
        yield url, [process.pid for process in started[1:]]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
