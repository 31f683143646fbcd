"""A standalone Spark cluster on loopback: a master and workers, each a process of its own.

Enters: a folder for logs, how many workers, how large. Leaves: the URL of the master, and the
workers' process ids, while the context lasts. Started by PySpark's own scripts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_ports(n: int) -> list[int]:
    """Return ports that are free."""
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
def cluster(
    folder: Path, n_workers: int = 2, memory: str = "1g"
) -> Iterator[tuple[str, list[int]]]:
    """Run a master and workers of one core; yield the master's URL and the workers' ids."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port, *ports = free_ports(1 + n_workers)
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(folder / "work")}
    environment |= {"SPARK_DAEMON_MEMORY": "256m"}
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{arguments[-1].rpartition(':')[2]}-{len(started)}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
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
            size = ["--cores", "1", "--memory", memory, "--port", str(each)]
            log = start("worker.Worker", *size, url)
            await_port(each, started[-1], log)
        yield url, [process.pid for process in started[1:]]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
