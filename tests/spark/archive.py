"""An archive of the classes that Spark loads: a JVM that maps it starts in half the time.

`python -m tests.spark.archive PATH` starts Spark, does a little of what the tests do, and writes
the classes that were loaded to PATH (Java's class data sharing). `conftest` has it done once for
each version of Spark and Java. A JVM that cannot use the archive does without.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def main(path: Path) -> None:
    """Run Spark, and write the archive when its JVM ends."""
    part = path.with_suffix(f".{os.getpid()}")
    options = f'-XX:TieredStopAtLevel=1 -Xlog:disable -XX:ArchiveClassesAtExit="{part}"'
    os.environ["JDK_JAVA_OPTIONS"] = options
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        frame = spark.createDataFrame([(i, f"{i}") for i in range(100)], "a int, b string")
        frame.write.parquet(f"{folder}/rows")
        rows = spark.readStream.schema("a int, b string").parquet(f"{folder}/rows")
        query = (
            rows.mapInArrow(lambda batches: batches, "a int, b string")
            .writeStream.foreachBatch(lambda batch, _: batch.groupBy("b").count().show())
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    part.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
