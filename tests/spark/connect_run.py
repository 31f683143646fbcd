"""Matches through Spark Connect; run by `test_connect` in a process of its own.

A process has either a classic session or one through Connect, so this one starts a server of its
own. Prints what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tocsin
from tocsin import spark as ts


def main(folder: Path) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    rows = [("IBM", 89.5), ("SAP", 120.0), ("IBM", 101.0)]
    events = spark.createDataFrame(rows, "firm string, price double")
    found: dict[str, object] = {"session": type(spark).__module__}
    texts = [("cheap", "price < 100"), ("ibm", "firm = 'IBM'"), ("bad", "price <")]
    frame = spark.createDataFrame(texts, "id string, where string")
    store = folder / "store"
    report = ts.compile(frame, store, parts=2, on_error="quarantine", profile=ts.profile(events))
    found["bad"] = [[bad.row, bad.id] for bad in report.bad]
    for mode in ("replicated", "partitioned"):
        matches = ts.match(events, store, placement=mode).collect()
        found[mode] = sorted(list(row) for row in matches)
    m = tocsin.Matcher()
    m.subscribe(1, "price > 100")
    found["shipped"] = sorted(list(row) for row in ts.match(events, m, keep=["price"]).collect())
    found["generated"] = ts.generate_events(spark, "M", 100).count()
    events.write.parquet(str(folder / "events"))
    stream = spark.readStream.schema(events.schema).parquet(str(folder / "events"))
    query = (
        ts.match(stream, store, keep=["price"]).writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination()
    found["stream"] = sorted(list(row) for row in spark.read.parquet(str(folder / "out")).collect())
    spark.stop()
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
