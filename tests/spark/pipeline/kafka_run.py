"""What the Kafka test runs in a process of its own, whose Spark has the connector.

Usage: kafka_run.py FOLDER SERVERS JARS. Two runs of a pipeline from topic to topic; in the second
the sink breaks off in mid-batch, and a third one finishes what it left. Writes what is in the
output topic to FOLDER/found.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.pipeline.quotes import BAD, LATE, quotes

from tocsin.errors import PipelineError
from tocsin.spark.pipeline import kafka
from tocsin.spark.pipeline.config import Config, from_mapping
from tocsin.spark.pipeline.listener import Progress
from tocsin.spark.pipeline.run import Pipeline
from tocsin.store.subscription_store import SubscriptionStore


def configure(folder: Path, servers: str, jars: str) -> Config:
    return from_mapping(
        {
            "pipeline": {"subscriptions": "store", "output": "out", "trigger": "once"},
            "event": {"attributes": {"firm": "string", "price": "float", "number": "integer"}},
            "source": {"format": "kafka", "servers": servers, "topic": "quotes"},
            "match": {"keep": ["number"]},
            "sinks": [{"kind": "kafka", "servers": servers, "topic": "alerts"}],
            "spark": {"master": "local[2,4]", "conf": {"spark.jars": jars}},
        },
        folder,
    )


class BrokenError(Exception):
    """The sink broke off."""


def break_off(sink: Any, records: Any) -> None:
    """Send a part of a batch, then fail for good."""
    rows = records.sort("key", "value").limit(7)
    send(sink, rows)
    raise BrokenError


send = kafka.KafkaSink._send


def main(folder: Path, servers: str, jars: str) -> None:
    config = configure(folder, servers, jars)
    options = {"kafka.bootstrap.servers": servers}
    progress: list[Progress] = []
    with Pipeline(config, on_progress=progress.append) as pipeline:
        spark = pipeline.spark

        def produce(texts: list[str]) -> None:
            frame = spark.createDataFrame([(text,) for text in texts], "value string")
            frame.write.format("kafka").options(**options).option("topic", "quotes").save()

        produce([*map(json.dumps, quotes(0, 60)), *BAD])
        pipeline.run()
        store = SubscriptionStore(folder / "store")
        store.subscribe(*LATE)
        produce(list(map(json.dumps, quotes(60, 90))))
        patch = pytest.MonkeyPatch()
        patch.setattr(kafka.KafkaSink, "_send", break_off)
        patch.setattr(kafka, "_ATTEMPTS", 1)
        with pytest.raises(PipelineError) as failed:
            Pipeline(config, spark=spark).run()
        assert isinstance(failed.value.__cause__, BrokenError)
        patch.undo()
        store.subscribe("later", "price > 0")
        Pipeline(config, spark=spark).run()
        reader = spark.read.format("kafka").options(**options).option("includeHeaders", "true")
        rows = reader.option("subscribe", "alerts").load().collect()
        reported = [each.batch for each in progress]
    found = [
        {
            "key": row["key"].decode(),
            "value": json.loads(row["value"]),
            "headers": {header["key"]: header["value"].decode() for header in row["headers"]},
        }
        for row in rows
    ]
    (folder / "found.json").write_text(json.dumps({"records": found, "reported": reported}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
