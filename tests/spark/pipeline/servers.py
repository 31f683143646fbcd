"""A server on loopback: a Kafka broker in KRaft mode. A Spark cluster is in `bench.cluster`."""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.spark.pipeline.jars import scala_library

from tocsin_lab.bench.cluster import await_port, free_ports

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
