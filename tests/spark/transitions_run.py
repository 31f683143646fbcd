"""A stream of positions → its transitions; run, and killed, by `test_transitions_killed`.

Spark is set as in `bench transitions`. Once all files are processed, what was told is written as
JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tocsin import spark as ts
from tocsin_lab.bench.transitions import SETTINGS


def main(folder: Path) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]")
    more = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.daemon.module": "tocsin.spark.daemon",
    }
    for name, value in (SETTINGS | more).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    events = (
        session.readStream.schema("vehicle int, x int, y int, n long, gone boolean")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "input"))
    )
    found = ts.transitions(
        events, folder / "store", "vehicle", order="n", retract="gone", buckets=5
    )
    query = (
        found.writeStream.format("parquet")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = session.read.parquet(str(folder / "output")).collect()
    (folder / "found.json").write_text(json.dumps([tuple(row) for row in rows]))
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
